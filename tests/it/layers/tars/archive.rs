//! A writer of tar archives that no sane program would write.

/// The blocks of an archive, put together by hand.
#[derive(Debug, Default, Clone)]
pub(super) struct Archive {
    pub(super) bytes: Vec<u8>,
}

/// One header, with every field open to lies.
#[derive(Debug, Clone)]
pub(super) struct Head {
    pub(super) name: Vec<u8>,
    pub(super) flag: u8,
    pub(super) link: Vec<u8>,
    pub(super) mode: u32,
    pub(super) size: Vec<u8>,
    pub(super) checksum: Option<u32>,
}

impl Head {
    pub(super) fn new(name: &[u8], flag: u8, size: u64) -> Self {
        let mode = if flag == b'5' { 0o755 } else { 0o644 };
        let size = format!("{size:011o}\0").into_bytes();
        Self { name: name.to_vec(), flag, link: vec![], mode, size, checksum: None }
    }

    fn block(&self) -> [u8; 512] {
        let mut block = [0; 512];
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &self.name);
        put(100, format!("{:07o}\0", self.mode).as_bytes());
        put(108, b"0000000\0");
        put(116, b"0000000\0");
        put(124, &self.size);
        put(136, b"00000001750\0");
        put(148, b"        ");
        put(156, &[self.flag]);
        put(157, &self.link);
        put(257, b"ustar\x0000");
        let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
        let sum = self.checksum.unwrap_or(sum);
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        block
    }
}

impl Archive {
    pub(super) fn head(&mut self, head: &Head) -> &mut Self {
        self.bytes.extend(head.block());
        self
    }

    pub(super) fn content(&mut self, content: &[u8]) -> &mut Self {
        self.bytes.extend(content);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self
    }

    pub(super) fn file(&mut self, name: &[u8], content: &[u8]) -> &mut Self {
        self.head(&Head::new(name, b'0', content.len() as u64)).content(content)
    }

    pub(super) fn directory(&mut self, name: &[u8]) -> &mut Self {
        self.head(&Head::new(name, b'5', 0))
    }

    pub(super) fn symlink(&mut self, name: &[u8], target: &[u8]) -> &mut Self {
        self.head(&Head { link: target.to_vec(), ..Head::new(name, b'2', 0) })
    }

    pub(super) fn hardlink(&mut self, name: &[u8], target: &[u8]) -> &mut Self {
        self.head(&Head { link: target.to_vec(), ..Head::new(name, b'1', 0) })
    }

    /// An extended header with these records.
    pub(super) fn pax(&mut self, records: &[(&str, &[u8])]) -> &mut Self {
        let data: Vec<u8> = records.iter().flat_map(|(key, value)| record(key, value)).collect();
        self.raw_pax(&data)
    }

    pub(super) fn raw_pax(&mut self, data: &[u8]) -> &mut Self {
        self.head(&Head::new(b"PaxHeaders/x", b'x', data.len() as u64)).content(data)
    }

    pub(super) fn end(&mut self) -> Vec<u8> {
        self.bytes.extend([0; 1024]);
        std::mem::take(&mut self.bytes)
    }
}

/// `LENGTH KEY=VALUE\n`, where the length counts itself.
fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    [format!("{length} {key}=").as_bytes(), value, b"\n"].concat()
}
