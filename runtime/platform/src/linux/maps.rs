//! Memory of a process beyond its requests: freed memory kept by the allocator, and pages of its own program.
//!
//! A plan counts both, and both are needlessly large. Allocators keep an arena for each thread, with what was
//! freed in it. The system reads megabytes of a program for one page of it.
#![expect(unsafe_code, reason = "settings of the C library, and advice on mappings of files")]

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::path::Path;

use rustix::mm::{Advice, madvise};

use super::proc::read;
use crate::page_cache;

/// Freed blocks of at least this size return to the system, as does the heap's free end.
#[cfg(target_env = "gnu")]
const GIVEN_BACK_BYTES: libc::c_int = 64 << 10;

/// Makes this process small, at its start: one heap that returns freed memory, and no read-ahead for its
/// program and libraries. Ignores settings that the system refuses.
pub fn keep_small() {
    one_heap();
    for Mapping { start, end, .. } in mappings(&read(Path::new("/"), "/proc/self/maps").unwrap_or_default()) {
        let address = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: the advice changes no contents and no addresses; for a mapping that is gone it is refused.
        let _refused = unsafe { madvise(address, end - start, Advice::Random) };
    }
}

/// Drops unused page-cache pages of this process's program and libraries that read-ahead brought. Does
/// nothing if the start read nothing from disk.
pub fn forget_read_ahead() {
    let root = Path::new("/");
    if major_faults(root) == Some(0) {
        return;
    }
    let maps = read(root, "/proc/self/maps").unwrap_or_default();
    // for each file: its code and everything before it. Later pages are copied when written, and the next
    // start needs them again
    let mut files: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for mapping in mappings(&maps) {
        let (code, all) = files.entry(mapping.path).or_default();
        if mapping.is_code {
            *code = (*code).max(mapping.file_end());
        }
        *all = (*all).max(mapping.file_end());
    }
    for (path, (code, all)) in files {
        if let (Ok(file), Some(code)) = (page_cache::open(Path::new(path)), NonZeroU64::new(code)) {
            page_cache::forget_part(&file, 0, Some(code));
            page_cache::forget_part(&file, all, None);
        }
    }
}

/// Makes all threads share one heap, with GNU's C library; others have one anyway.
fn one_heap() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in [
        (libc::M_ARENA_MAX, 1),
        (libc::M_MMAP_THRESHOLD, GIVEN_BACK_BYTES),
        (libc::M_TRIM_THRESHOLD, GIVEN_BACK_BYTES),
    ] {
        // SAFETY: the parameters are the library's own; what is refused stays as it was.
        let _refused = unsafe { libc::mallopt(parameter, value) };
    }
}

/// A mapping of a file.
#[derive(Debug, PartialEq, Eq)]
struct Mapping<'m> {
    /// Its addresses: the first, and the end.
    start: usize,
    end: usize,
    /// Its offset in the file.
    offset: u64,
    is_code: bool,
    path: &'m str,
}

impl Mapping<'_> {
    /// Its end in the file.
    fn file_end(&self) -> u64 {
        self.offset + (self.end - self.start) as u64
    }
}

/// The file mappings of a process.
fn mappings(maps: &str) -> impl Iterator<Item = Mapping<'_>> {
    maps.lines().filter_map(|line| {
        let path = &line[line.find('/')?..];
        let mut fields = line.split(' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let (access, offset) = (fields.next()?, fields.next()?);
        let address = |digits| usize::from_str_radix(digits, 16).ok();
        Some(Mapping {
            start: address(start)?,
            end: address(end)?,
            offset: u64::from_str_radix(offset, 16).ok()?,
            is_code: access.contains('x'),
            path,
        })
    })
}

/// Major page faults of this process.
fn major_faults(root: &Path) -> Option<u64> {
    let text = read(root, "/proc/self/stat").ok()?;
    // the name in brackets may have blanks; state and numbers follow
    text.rsplit_once(')')?.1.split_whitespace().nth(9)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_of_files_are_distinguished_from_others() {
        let maps = "\
55d0a0000000-55d0a0100000 r--p 00000000 fe:00 1234                       /usr/bin/a program
55d0a0100000-55d0a0300000 r-xp 00100000 fe:00 1234                       /usr/bin/a program
7f0000000000-7f0000021000 rw-p 00000000 00:00 0
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]
";
        let found: Vec<_> = mappings(maps).collect();
        let first = |is_code, start: usize, end: usize, offset| Mapping {
            start,
            end,
            offset,
            is_code,
            path: "/usr/bin/a program",
        };
        let code = first(true, 0x55d0_a010_0000, 0x55d0_a030_0000, 0x10_0000);
        assert_eq!(code.file_end(), 0x30_0000);
        assert_eq!(found, [first(false, 0x55d0_a000_0000, 0x55d0_a010_0000, 0), code]);
    }

    #[test]
    fn this_process_is_made_small_and_goes_on() {
        assert!(major_faults(Path::new("/")).is_some(), "the system counts them");
        let maps = read(Path::new("/"), "/proc/self/maps").unwrap();
        assert!(mappings(&maps).any(|mapping| mapping.is_code), "{maps}");
        keep_small();
        forget_read_ahead();
        let blocks: Vec<Vec<u8>> = (1..200).map(|size| vec![1; size << 10]).collect();
        assert_eq!(blocks.iter().map(Vec::len).sum::<usize>(), (199 * 200 / 2) << 10);
    }
}
