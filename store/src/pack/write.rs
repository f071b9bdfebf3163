//! Writing a pack: plain objects are read, hashed and compressed; blocks of other packs are copied as they are.
//!
//! One thread reads, the others compress, and blocks are written in order, so equal objects give equal bytes on any
//! number of processors.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use rayon::prelude::*;
use zstd::bulk::Compressor;

use super::read::{Reading, Unread};
use super::table::{FIRST_BLOCK, Packed, STORED, Table};
use super::{Pack, frame};
use crate::disk::DiskFile;
use crate::error::{Context, Result};
use crate::verify::Progress;
use crate::{Lease, ObjectId, PackId, Store};

/// Level of the blocks: as squashfs images of libraries were measured (`decisions/0020`).
const LEVEL: i32 = 3;

/// Blocks that are compressed at once: enough for the processors of a large machine, 32 MiB.
const BATCH: usize = 128;

/// Where the bytes of an object come from.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// The plain object.
    Plain(ObjectId),
    /// The blocks of another pack, copied as they are.
    Blocks(Arc<Pack>, ObjectId),
}

impl Source {
    pub(crate) fn object(&self) -> ObjectId {
        match self {
            Source::Plain(object) | Source::Blocks(_, object) => *object,
        }
    }
}

/// A pack that is written and has no name yet.
#[derive(Debug)]
pub(crate) struct Staged {
    pub(crate) id: PackId,
    pub(crate) table: Table,
    pub(crate) image: PathBuf,
    pub(crate) table_path: PathBuf,
}

/// An object that is not what its name says, and what is wrong with it.
pub(crate) type Damaged = (ObjectId, String);

/// A part of an object on its way into a pack.
enum Piece {
    /// Content of one block; with the last one, the hash of all.
    Content(Vec<u8>, Option<ObjectId>),
    /// A block of another pack; with the last one, the size of the content.
    Block(u32, Vec<u8>, Option<u64>),
    /// The object could not be read to its end.
    Failed(String),
    /// It is gone: a collection was faster.
    Gone,
}

impl Store {
    /// Writes a pack of `sources`, ascending by id, below the staging directory of `lease`, and syncs it.
    ///
    /// Objects that are not what their names say are left out and returned with what is wrong. Without any object
    /// left, there is no pack.
    pub(crate) fn write_pack(
        &self,
        lease: &Lease,
        sources: &[Source],
        progress: &dyn Progress,
    ) -> Result<(Option<Staged>, Vec<Damaged>)> {
        self.fill_pack(Table::default(), lease, sources, progress)
    }

    /// Writes a pack with the blocks of `table`, which is empty.
    pub(super) fn fill_pack(
        &self,
        table: Table,
        lease: &Lease,
        sources: &[Source],
        progress: &dyn Progress,
    ) -> Result<(Option<Staged>, Vec<Damaged>)> {
        let directory = lease.new_directory("pack")?;
        let (image, table_path) = (directory.join("image"), directory.join("table"));
        let mut file = self.disk().create(&image, 0o444).at("create", &image)?;
        file.write_all(&[0; FIRST_BLOCK as usize]).at("write", &image)?;
        let block = table.block();
        let mut writer = Writer { file, table, words: vec![], size: 0, damaged: vec![] };
        std::thread::scope(|scope| {
            let (sender, receiver) = sync_channel(1);
            let reader = std::thread::Builder::new().name("pack".to_owned());
            let read = move || read_all(self, sources, block, Sender { sender, batch: vec![] });
            reader.spawn_scoped(scope, read).at("read for", &image)?;
            write_all(&receiver, sources, &mut writer, progress).at("write", &image)
        })?;
        let Writer { mut file, table, damaged, .. } = writer;
        if table.objects().is_empty() {
            return Ok((None, damaged));
        }
        let frame = frame(&table);
        file.write_all(&frame.tail).at("write", &image)?;
        file.overwrite(0, &frame.head).at("write", &image)?;
        file.sync().at("sync", &image)?;
        let bytes = table.encode();
        let mut file = self.disk().create(&table_path, 0o444).at("create", &table_path)?;
        file.write_all(&bytes).at("write", &table_path)?;
        file.sync().at("sync", &table_path)?;
        Ok((Some(Staged { id: PackId::of(&bytes), table, image, table_path }), damaged))
    }
}

impl Store {
    /// Writes the image of a pack of one small object below the staging directory of `lease`, to try a mount with.
    pub fn sample_pack(&self, lease: &Lease) -> Result<PathBuf> {
        const CONTENT: &[u8] = b"sample\n";
        let mut table = Table::default();
        table.add(ObjectId::of(CONTENT), CONTENT.len() as u64, &[CONTENT.len() as u32 | STORED]);
        let frame = frame(&table);
        let path = lease.new_directory("pack")?.join("sample");
        let mut file = self.disk().create(&path, 0o444).at("create", &path)?;
        file.write_all(&[&frame.head, CONTENT, &frame.tail].concat()).at("write", &path)?;
        Ok(path)
    }
}

type Batch = Vec<(usize, Piece)>;

/// Collects pieces into batches for the writer.
struct Sender {
    sender: SyncSender<Batch>,
    batch: Batch,
}

impl Sender {
    /// Returns whether anybody still listens.
    fn send(&mut self, source: usize, piece: Piece) -> bool {
        self.batch.push((source, piece));
        self.batch.len() < BATCH || self.sender.send(std::mem::take(&mut self.batch)).is_ok()
    }
}

/// Reads every source in order, until the writer gives up.
fn read_all(store: &Store, sources: &[Source], block: u64, mut sender: Sender) {
    for (number, source) in sources.iter().enumerate() {
        let mut heard = true;
        let mut send = |piece| {
            heard = sender.send(number, piece);
            heard
        };
        let read = match source {
            Source::Plain(object) => read_plain(store, object, block, &mut send),
            Source::Blocks(pack, object) => read_blocks(store, pack, object, block, &mut send),
        };
        match read {
            Err(_) if !heard => {}
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => heard = sender.send(number, Piece::Gone),
            Err(error) => heard = sender.send(number, Piece::Failed(error.to_string())),
        }
        if !heard {
            return;
        }
    }
    let _the_writer_may_have_failed = sender.sender.send(sender.batch);
}

fn read_plain(
    store: &Store,
    object: &ObjectId,
    block: u64,
    send: &mut dyn FnMut(Piece) -> bool,
) -> io::Result<()> {
    let mut file = File::open(store.layout().object(object))?;
    let mut left = file.metadata()?.len();
    let mut hasher = blake3::Hasher::new();
    loop {
        let mut content = Vec::with_capacity(left.min(block) as usize);
        (&mut file).take(block).read_to_end(&mut content)?;
        hasher.update(&content);
        left = left.saturating_sub(content.len() as u64);
        let is_last = left == 0 || content.is_empty();
        let found = is_last.then(|| hasher.finalize().into());
        if !send(Piece::Content(content, found)) || is_last {
            return Ok(());
        }
    }
}

fn read_blocks(
    store: &Store,
    pack: &Pack,
    object: &ObjectId,
    block: u64,
    send: &mut dyn FnMut(Piece) -> bool,
) -> io::Result<()> {
    let gone = || io::Error::from(io::ErrorKind::NotFound);
    let packed = pack.table.find(object).ok_or_else(gone)?;
    let reading = store.open_pack(pack).map_err(io::Error::other)?.ok_or_else(gone)?;
    let sent = match pack.table.block() == block {
        true => copy_frames(&reading, packed, send),
        false => cut_anew(&reading, packed, block, send),
    };
    sent.map_err(|unread| match unread {
        Unread::Damaged(detail) => io::Error::other(detail),
        Unread::Failed(error) => error,
    })
}

/// Sends the blocks of a packed object as they are.
fn copy_frames(
    reading: &Reading<'_>,
    packed: &Packed,
    send: &mut dyn FnMut(Piece) -> bool,
) -> Result<(), Unread> {
    let mut left = reading.pack.table.words(packed).len();
    reading.frames(packed, |word, frame| {
        left -= 1;
        match send(Piece::Block(word, frame.to_vec(), (left == 0).then_some(packed.size))) {
            true => Ok(()),
            false => Err(Unread::Failed(io::ErrorKind::BrokenPipe.into())),
        }
    })
}

/// Sends the content of an object whose blocks are of another size: those of the first version are larger by a
/// whole number of times.
fn cut_anew(
    reading: &Reading<'_>,
    packed: &Packed,
    block: u64,
    send: &mut dyn FnMut(Piece) -> bool,
) -> Result<(), Unread> {
    let mut hasher = blake3::Hasher::new();
    let mut left = packed.size;
    reading.read(packed, |content| {
        for content in content.chunks(block as usize) {
            hasher.update(content);
            left -= content.len() as u64;
            let found = (left == 0).then(|| hasher.finalize().into());
            if !send(Piece::Content(content.to_vec(), found)) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
        Ok(())
    })
}

/// The image as far as it is written: whole objects, and the blocks of one that is not yet complete.
struct Writer {
    file: DiskFile,
    table: Table,
    words: Vec<u32>,
    size: u64,
    damaged: Vec<Damaged>,
}

fn write_all(
    receiver: &Receiver<Batch>,
    sources: &[Source],
    writer: &mut Writer,
    progress: &dyn Progress,
) -> io::Result<()> {
    for batch in receiver {
        let compress = |compressor: &mut io::Result<Compressor<'_>>, (_, piece): &(usize, Piece)| match piece
        {
            Piece::Content(content, _) => {
                let compressor = compressor.as_mut().map_err(|error| io::Error::from(error.kind()))?;
                let frame = compressor.compress(content)?;
                Ok((frame.len() < content.len()).then_some(frame))
            }
            _ => Ok(None),
        };
        let frames = batch.par_iter().map_init(|| Compressor::new(LEVEL), compress);
        let frames: Vec<Option<Vec<u8>>> = frames.collect::<io::Result<_>>()?;
        for ((source, piece), frame) in batch.into_iter().zip(frames) {
            writer.add(sources[source].object(), piece, frame, progress)?;
        }
    }
    Ok(())
}

impl Writer {
    fn add(
        &mut self,
        object: ObjectId,
        piece: Piece,
        frame: Option<Vec<u8>>,
        progress: &dyn Progress,
    ) -> io::Result<()> {
        match piece {
            Piece::Gone => self.leave_out(),
            Piece::Failed(detail) => {
                self.damaged.push((object, detail));
                self.leave_out()
            }
            Piece::Content(content, found) => {
                progress.advance(content.len() as u64);
                match &frame {
                    Some(frame) => self.write(frame.len() as u32, frame)?,
                    None => self.write(content.len() as u32 | STORED, &content)?,
                }
                self.size += content.len() as u64;
                match found {
                    None => Ok(()),
                    Some(found) if found == object => self.complete(object),
                    Some(found) => {
                        self.damaged.push((object, format!("its bytes hash to {found}")));
                        self.leave_out()
                    }
                }
            }
            Piece::Block(word, bytes, size) => {
                progress.advance(bytes.len() as u64);
                self.write(word, &bytes)?;
                self.size = size.unwrap_or(0);
                if size.is_some() { self.complete(object) } else { Ok(()) }
            }
        }
    }

    fn write(&mut self, word: u32, bytes: &[u8]) -> io::Result<()> {
        self.words.push(word);
        self.file.write_all(bytes)
    }

    fn complete(&mut self, object: ObjectId) -> io::Result<()> {
        self.table.add(object, std::mem::take(&mut self.size), &std::mem::take(&mut self.words));
        Ok(())
    }

    /// Takes back what was written of an object.
    fn leave_out(&mut self) -> io::Result<()> {
        (self.size, self.words) = (0, vec![]);
        self.file.cut(self.table.end())
    }
}
