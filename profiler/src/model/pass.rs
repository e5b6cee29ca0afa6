//! One pass over a file, past the page cache: pieces come in order while threads read the next ones.
//!
//! The page cache would evict the files of other programs, and nothing of this file is read twice. In a virtual machine the page cache
//! is often memory that the host has taken back. A mapping is then read several times slower than the disk.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::mpsc;
use std::thread;

use anyhow::{Context as _, anyhow};
use flashplan::internals::arena::{Align, Arena, Slab};
use flashplan::internals::flash::open;
use plans::PAGE_BYTES;

/// Threads that read. Each has one piece ready and reads another.
const READERS: usize = 2;
const BUFFERS: usize = 2 * READERS;
/// Maximum bytes of a piece.
pub(super) const PIECE_BYTES: usize = 4 << 20;
/// Bytes of a buffer: a piece begins and ends within a page.
const BUFFER_BYTES: usize = PIECE_BYTES + 2 * PAGE_BYTES as usize;

/// A buffer, and where the piece lies in it.
type Filled = io::Result<(Slab<u8>, Range<usize>)>;

/// Reads the pieces of a file, and lets `see` look at each, in order.
///
/// # Errors
/// A piece that cannot be read whole, and what `see` returns.
pub(super) fn each(
    path: &Path,
    pieces: &[Range<u64>],
    see: &mut dyn FnMut(usize, &[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let unreadable = || format!("{} cannot be read", path.display());
    // a file system without direct reads is read through the page cache
    let file = open(path, true).or_else(|_| open(path, false)).with_context(unreadable)?;
    let mut arena = Arena::new((BUFFERS * BUFFER_BYTES.next_multiple_of(PAGE_BYTES as usize)) as u64)?;
    thread::scope(|scope| {
        let mut readers = Vec::new();
        for reader in 0..READERS {
            let ((fill, filled), (empty, emptied)) = (mpsc::sync_channel::<Filled>(1), mpsc::channel());
            for _ in 0..BUFFERS / READERS {
                empty.send(arena.take::<u8>(BUFFER_BYTES, Align::Page)?)?;
            }
            let (file, mine) = (&file, pieces.iter().skip(reader).step_by(READERS));
            scope.spawn(move || {
                for piece in mine {
                    // an end that is gone is the other side's error, which it tells
                    let Ok(buffer) = emptied.recv() else { return };
                    if fill.send(read(file, piece, buffer)).is_err() {
                        return;
                    }
                }
            });
            readers.push((filled, empty));
        }
        for (number, (filled, empty)) in (0..pieces.len()).zip(readers.iter().cycle()) {
            let filled = filled.recv().map_err(|_| anyhow!("a thread that reads has ended"))?;
            let (buffer, at) = filled.with_context(unreadable)?;
            see(number, &buffer[at])?;
            // a reader that is done needs no buffer
            let _done = empty.send(buffer);
        }
        Ok(())
    })
}

/// Reads the pages of a piece into a buffer.
fn read(file: &File, piece: &Range<u64>, mut buffer: Slab<u8>) -> Filled {
    let start = piece.start / PAGE_BYTES * PAGE_BYTES;
    let at = (piece.start - start) as usize..(piece.end - start) as usize;
    let pages = at.end.next_multiple_of(PAGE_BYTES as usize);
    let mut done = 0;
    while done < at.end {
        match platform::file::read_at(file, &mut buffer[done..pages], start + done as u64) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file has become shorter")),
            // a short direct read goes on at its last whole page
            Ok(bytes) if done + bytes < at.end => {
                done = (done + bytes) / PAGE_BYTES as usize * PAGE_BYTES as usize;
            }
            Ok(bytes) => done += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok((buffer, at))
}
