//! Hostile layer archives, by the ids of `layers/testdata/hostile-archives.toml`.

use std::io::Write;

use super::archive::{Archive, Head};

/// Makes the archive of a case; `None` if there is no such case.
pub(super) fn archive(id: &str) -> Option<Vec<u8>> {
    let mut tar = Archive::default();
    let archive = match id {
        "T01-parent" => tar.file(b"../x", b"x").end(),
        "T01-parent-inside" => tar.file(b"a/../../x", b"x").end(),
        "T01-parent-and-empty" => tar.file(b"a//..//x", b"x").end(),
        "T02-absolute" => tar.file(b"/etc/x", b"x").end(),
        "T03-below-symlink" => tar.symlink(b"d", b"/tmp/out").file(b"d/f", b"x").end(),
        "T04-symlink-chain" => {
            tar.directory(b"s/").symlink(b"s/p", b"..").symlink(b"s/p/e", b"..").file(b"s/p/e/x", b"x").end()
        }
        "T05-whiteout-below-symlink" => tar.symlink(b"d", b"out").file(b"d/.wh.victim", b"").end(),
        "T05-opaque-below-symlink" => tar.symlink(b"d", b"out").file(b"d/.wh..wh..opq", b"").end(),
        "T06-hardlink-outside" => tar.hardlink(b"x", b"../../etc/passwd").end(),
        "T06-hardlink-absolute" => tar.hardlink(b"x", b"/etc/passwd").end(),
        "T06-hardlink-to-symlink" => tar.symlink(b"s", b"/etc/passwd").hardlink(b"x", b"s").end(),
        "T06-hardlink-relative" => tar.file(b"d/f", b"x").hardlink(b"d/g", b"f").end(),
        "T06-hardlink-to-later" => tar.hardlink(b"x", b"y").file(b"y", b"y").end(),
        "T06-hardlink-to-itself" => tar.hardlink(b"x", b"x").end(),
        "T07-hardlink-to-lower" => tar.hardlink(b"x", b"usr/bin/env").end(),
        "T08-directory-over-symlink" => {
            tar.symlink(b"d", b"/tmp/out").head(&Head { mode: 0o777, ..Head::new(b"d", b'5', 0) }).end()
        }
        "T09-smuggled-symlink" => {
            let mut hidden = Archive::default();
            hidden.symlink(b"evil", b"/");
            let content = [&[b'a'; 512][..], &hidden.bytes, &[b'b'; 1024]].concat();
            tar.pax(&[("size", b"2048")]).head(&Head::new(b"f", b'0', 8)).content(&content).end()
        }
        "T10-nested-archive" => {
            let nested = Archive::default().file(b"inner", b"x").end();
            let size = nested.len().to_string();
            tar.pax(&[("size", size.as_bytes())]).head(&Head::new(b"f", b'0', 0)).content(&nested).end()
        }
        "T11-length-too-long" => tar.raw_pax(b"99 path=a\n").file(b"f", b"").end(),
        "T11-length-too-short" => tar.raw_pax(b"5 path=a\n").file(b"f", b"").end(),
        "T11-key-twice" => tar.pax(&[("path", b"a"), ("path", b"b")]).file(b"f", b"").end(),
        "T11-two-headers" => tar.pax(&[("path", b"a")]).pax(&[("path", b"b")]).file(b"f", b"").end(),
        "T11-nul-in-path" => tar.pax(&[("path", b"a\0b")]).file(b"f", b"").end(),
        "T11-global-path" => {
            let data = b"10 path=a\n";
            tar.head(&Head::new(b"g", b'g', data.len() as u64)).content(data).file(b"f", b"").end()
        }
        "T12-long-name-of-4-gib" => tar.head(&Head::new(b"././@LongLink", b'L', 4 << 30)).end(),
        "T12-pax-of-4-gib" => tar.head(&Head::new(b"PaxHeaders/x", b'x', 4 << 30)).end(),
        "T12-negative-size" => tar.head(&Head { size: vec![0xff; 12], ..Head::new(b"f", b'0', 0) }).end(),
        "T12-huge-size" => {
            let size = b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff".to_vec();
            tar.head(&Head { size, ..Head::new(b"f", b'0', 0) }).end()
        }
        "T12-size-beyond-64-bits" => {
            let size = b"\x80\x01\0\0\0\0\0\0\0\0\0\0".to_vec();
            tar.head(&Head { size, ..Head::new(b"f", b'0', 0) }).end()
        }
        "T12-two-long-names" => tar
            .head(&Head::new(b"././@LongLink", b'L', 2))
            .content(b"a\0")
            .pax(&[("path", b"b")])
            .file(b"f", b"")
            .end(),
        "T13-zstd-zeros" => {
            let head = tar.head(&Head { size: big(10 << 30), ..Head::new(b"zeros", b'0', 0) }).bytes.clone();
            let mut encoder = zstd::Encoder::new(vec![], 1).expect("a level");
            encoder.write_all(&head).expect("memory");
            // As much as may be written before it is refused, and then some; then no more than a promise.
            zeros(&mut encoder, 300 << 20);
            encoder.finish().expect("memory")
        }
        "T13-gzip-zeros" => {
            let head = tar.head(&Head { size: big(10 << 30), ..Head::new(b"zeros", b'0', 0) }).bytes.clone();
            let mut encoder = flate2::write::GzEncoder::new(vec![], flate2::Compression::best());
            encoder.write_all(&head).expect("memory");
            zeros(&mut encoder, 300 << 20);
            encoder.finish().expect("memory")
        }
        "T13-zstd-window" => {
            // A frame header (RFC 8878, 3.1.1) with a window of 2 GiB and no content.
            vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa8, 0x01, 0x00, 0x00]
        }
        "T13-many-frames" => {
            let mut one = zstd::Encoder::new(vec![], 19).expect("a level");
            zeros(&mut one, 8 << 20);
            let one = one.finish().expect("memory");
            let head = tar.head(&Head { size: big(10 << 30), ..Head::new(b"zeros", b'0', 0) }).bytes.clone();
            let head = zstd::encode_all(&head[..], 1).expect("memory");
            [head, one.repeat(40)].concat()
        }
        "T14-million-files" => {
            let mut head = Head::new(b"", b'0', 0);
            for number in 0..1_000_001 {
                head.name = format!("{number}").into_bytes();
                tar.head(&head);
            }
            tar.end()
        }
        "T14-deep" => tar.pax(&[("path", b"d/".repeat(5000).as_slice())]).file(b"f", b"").end(),
        "T14-long-name" => tar.pax(&[("path", &[b'n'; 65536])]).file(b"f", b"").end(),
        "T14-many-attributes" => {
            let keys: Vec<String> =
                (0..100_000).map(|number| format!("SCHILY.xattr.user.{number}")).collect();
            let records: Vec<(&str, &[u8])> = keys.iter().map(|key| (key.as_str(), &b"v"[..])).collect();
            tar.pax(&records).file(b"f", b"").end()
        }
        "T15-device" => tar.head(&Head::new(b"dev/sda", b'4', 0)).end(),
        "T15-character-device" => tar.head(&Head::new(b"dev/mem", b'3', 0)).end(),
        "T15-fifo" => tar.head(&Head::new(b"pipe", b'6', 0)).end(),
        "T16-set-user-id" => {
            tar.head(&Head { mode: 0o4755, ..Head::new(b"su", b'0', 1) }).content(b"x").end()
        }
        "T17-attributes" => tar
            .pax(&[
                ("SCHILY.xattr.security.capability", b"\x01"),
                ("SCHILY.xattr.trusted.overlay.redirect", b"/etc"),
                ("SCHILY.xattr.user.overlay.opaque", b"y"),
                ("SCHILY.xattr.user.kept", b"v"),
            ])
            .file(b"f", b"x")
            .end(),
        "T18-whiteout-of-nothing" => tar.file(b".wh.", b"").end(),
        "T18-whiteout-of-dot" => tar.file(b"d/.wh..", b"").end(),
        "T18-whiteout-of-parent" => tar.file(b"d/.wh...", b"").end(),
        "T18-unknown-kind" => tar.file(b".wh..wh.foo", b"").end(),
        "T18-with-data" => tar.file(b"d/.wh.f", b"data").end(),
        "T18-directory" => tar.directory(b"d/.wh.f/").end(),
        "T19-own-file-stays" => tar.file(b"d/f", b"x").file(b"d/.wh.f", b"").end(),
        "T19-opaque-after-siblings" => {
            tar.directory(b"d/").file(b"d/f", b"x").file(b"d/.wh..wh..opq", b"").end()
        }
        "T20-file-twice" => tar.file(b"f", b"1").file(b"f", b"2").end(),
        "T20-directory-over-file" => tar.file(b"f", b"1").directory(b"f/").end(),
        "T20-symlink-over-directory" => tar.directory(b"d/").symlink(b"d", b"/").end(),
        "T20-file-below-file" => tar.file(b"f", b"1").file(b"f/g", b"2").end(),
        "T21-case-twins" => tar.file(b"A", b"1").file(b"a", b"2").end(),
        "T21-unicode-twins" => tar.file("\u{e9}".as_bytes(), b"1").file("e\u{301}".as_bytes(), b"2").end(),
        "T21-not-utf-8" => tar.file(b"caf\xe9", b"1").end(),
        "T22-sparse" => {
            let size = b"\x80\0\0\0\x70\0\0\0\0\0\0\0".to_vec();
            tar.head(&Head { size, ..Head::new(b"f", b'S', 0) }).end()
        }
        "T22-pax-sparse" => {
            tar.pax(&[("GNU.sparse.realsize", b"9223372036854775807")]).file(b"f", b"x").end()
        }
        "T23-truncated" => tar.file(b"f", &[1; 2000]).bytes[..1500].to_vec(),
        "T23-no-end" => tar.file(b"f", b"x").bytes.clone(),
        "T23-half-an-end" => [tar.file(b"f", b"x").bytes.clone(), vec![0; 512]].concat(),
        "T23-junk" => [tar.file(b"f", b"x").end(), b"junk".to_vec()].concat(),
        "T23-second-archive" => {
            [tar.file(b"f", b"x").end(), Archive::default().file(b"g", b"x").end()].concat()
        }
        "T23-padding" => [tar.file(b"f", b"x").end(), vec![0; 9 << 10]].concat(),
        "T23-endless-padding" => [tar.file(b"f", b"x").end(), vec![0; 2 << 20]].concat(),
        "T24-file-over-lower-symlink" => tar.file(b"bin/ls", b"coreutils").end(),
        "checksum" => tar.head(&Head { checksum: Some(7), ..Head::new(b"f", b'0', 0) }).end(),
        "content-of-a-directory" => tar.head(&Head::new(b"d/", b'5', 8)).content(b"contents").end(),
        "unknown-kind" => tar.head(&Head::new(b"f", b'Z', 0)).end(),
        "root-replaced" => tar.symlink(b"./", b"/tmp").end(),
        "empty-name" => tar.file(b"", b"x").end(),
        _ => return None,
    };
    Some(archive)
}

/// A size in base 256.
fn big(size: u64) -> Vec<u8> {
    [&[0x80, 0, 0, 0][..], &size.to_be_bytes()].concat()
}

fn zeros(output: &mut impl Write, count: usize) {
    let zeros = vec![0; 1 << 20];
    for _ in 0..count >> 20 {
        output.write_all(&zeros).expect("memory");
    }
}
