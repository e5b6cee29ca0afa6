//! The contract of every device: one set of tests over both back ends, and over a faulty device around each.

use std::io::Write as _;
use std::time::Duration;

use skipped::skipped;

use super::faulty::{Fault, Faulty};
use super::*;
use crate::arena::{Align, Arena};

pub(crate) const PAGE: usize = 4096;
const PAGES: usize = 64;
/// The byte before the target in a buffer; no page is filled with it.
const BEFORE: u8 = 0xee;
/// Slows every read more than ten times.
pub(crate) const SLOWED: Fault = Fault::Slowed { every: 1, by: Duration::from_millis(1) };

/// A file whose every page is filled with its own number.
pub(crate) fn file() -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    for page in 0..PAGES {
        file.write_all(&[page as u8; PAGE]).unwrap();
    }
    file.as_file().sync_all().unwrap();
    file
}

/// Buffers of four pages, side by side in an arena that they fill.
pub(crate) fn buffers(count: usize) -> (Arena, Vec<Buffer>) {
    let mut arena = Arena::new((count * 4 * PAGE) as u64).unwrap();
    let buffers = (0..count).map(|_| arena.take(4 * PAGE, Align::Page).unwrap()).collect();
    (arena, buffers)
}

/// Whether this kernel or container refuses `io_uring`; the test that needs it is skipped then.
pub(crate) fn refused(error: &io::Error) -> bool {
    let refused = matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied);
    if refused {
        skipped("io_uring", format_args!("refused here: {error}"));
    }
    refused
}

/// The back ends that this machine has, in every mode that the file system has.
fn devices(path: &Path, depth: usize) -> Vec<Box<dyn Flash>> {
    let mut devices: Vec<Box<dyn Flash>> = Vec::new();
    for backend in Backend::ALL {
        for direct in [false, true] {
            let file = match open(path, direct) {
                Err(error) if direct => {
                    skipped("direct reads", error);
                    continue;
                }
                opened => opened.unwrap(),
            };
            match open_backend(backend, file, direct, depth, 6, &[0]) {
                Err(error) if backend == Backend::IoUring && refused(&error) => {}
                made => devices.push(made.unwrap()),
            }
        }
    }
    devices
}

/// Reads every page once in reads of one to four pages, one or several at a time, each at the end of its
/// buffer. Each read completes or fails. Returns the pages of both.
fn read_everything(flash: &mut dyn Flash, adopt: bool) -> (usize, usize) {
    let (_arena, mut free) = buffers(6);
    if adopt {
        flash.adopt(&mut free);
    }
    let (mut next, mut good, mut failed) = (0, 0, 0);
    let mut batch = Vec::new();
    while next < PAGES || flash.in_flight() > 0 {
        while next < PAGES
            && let Some(mut buffer) = free.pop()
        {
            let pages = (1 + next % 4).min(PAGES - next);
            let (tag, offset, at) = ((next << 8 | pages) as u32, (next * PAGE) as u64, (4 - pages) * PAGE);
            buffer[..at].fill(BEFORE);
            batch.push(ReadRequest { tag, offset, bytes: pages * PAGE, buffer, at });
            next += pages;
            if next % 3 == 0 {
                flash.submit(&mut batch);
            }
        }
        flash.submit(&mut batch);
        let done = flash.reap(false).or_else(|| flash.reap(true)).unwrap();
        let (first, pages) = ((done.tag >> 8) as usize, (done.tag & 255) as usize);
        match done.result {
            Ok(()) => {
                let (before, read) = done.buffer.split_at((4 - pages) * PAGE);
                assert!(before.iter().all(|&byte| byte == BEFORE), "read over what lies before");
                for (page, bytes) in read.chunks(PAGE).enumerate() {
                    assert!(bytes.iter().all(|&b| b as usize == first + page), "page {}", first + page);
                }
                good += pages;
            }
            Err(_) => failed += pages,
        }
        free.push(done.buffer);
    }
    assert!(flash.reap(true).is_none(), "nothing is in flight");
    (good, failed)
}

#[test]
fn every_read_comes_back_whole_through_any_device() {
    let file = file();
    for (depth, adopt) in [(1, false), (3, true), (16, true)] {
        for mut flash in devices(file.path(), depth) {
            assert_eq!(read_everything(&mut *flash, adopt), (PAGES, 0), "{}", flash.describe());
            assert_eq!(flash.counters().bytes, (PAGES * PAGE) as u64);
        }
        for fault in [Fault::Reordered, Fault::Late, SLOWED, Fault::Short { every: 2 }] {
            for flash in devices(file.path(), depth) {
                let mut flash = Faulty::new(flash, fault);
                assert_eq!(read_everything(&mut flash, adopt), (PAGES, 0), "{}", flash.describe());
            }
        }
        for flash in devices(file.path(), depth) {
            let mut flash = Faulty::new(flash, Fault::Failing { every: 3 });
            let (good, failed) = read_everything(&mut flash, adopt);
            assert_eq!(good + failed, PAGES, "{}", flash.describe());
            assert!(failed > 0, "{}", flash.describe());
        }
    }
}

#[test]
fn a_file_that_was_cut_short_is_an_error_not_zeros() {
    // at a page boundary, and inside a page that a longer read covers
    for left in [PAGES / 2 * PAGE, PAGES / 2 * PAGE + 700] {
        let file = file();
        let devices = devices(file.path(), 2);
        file.as_file().set_len(left as u64).unwrap();
        for mut flash in devices {
            let (good, failed) = read_everything(&mut *flash, true);
            assert_eq!(good + failed, PAGES, "{}", flash.describe());
            assert!(failed >= PAGES - left / PAGE, "{}", flash.describe());
        }
    }
}

#[test]
fn a_device_dropped_with_reads_in_flight_keeps_their_buffers_until_they_are_over() {
    let file = file();
    for mut flash in devices(file.path(), 3) {
        let (_arena, free) = buffers(6);
        let requests = free.into_iter().zip(0..).map(|(buffer, tag)| ReadRequest {
            tag,
            offset: 0,
            bytes: 4 * PAGE,
            buffer,
            at: 0,
        });
        flash.submit(&mut requests.collect());
        assert_eq!(flash.in_flight(), 6);
    }
}
