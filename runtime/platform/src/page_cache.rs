//! The page cache: reads past it, reads through it without read-ahead, and pages that leave it.
//!
//! Cached pages count as the memory of the process that caused them, because a control group counts them. Platforms without such groups
//! keep the pages; [`crate::MISSING`] says so.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::path::Path;

pub use crate::system::page_cache::{advise, drop_pages, open_direct, reopen};
pub use crate::types::{Access, Pattern};

/// Opens a file for reads through the page cache, without the system's read-ahead, which can be megabytes.
///
/// # Errors
/// The system's.
pub fn open(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    // advice only: a system that ignores it reads more than is used
    let _refused = advise(&file, Pattern::Random);
    Ok(file)
}

/// Drops a file's clean pages that no other process uses. Advice only: a system that ignores it keeps the pages.
pub fn forget(file: &File) {
    forget_part(file, 0, None);
}

/// Drops the clean pages of a part of a file; `None` reaches to the end. Advice only.
pub fn forget_part(file: &File, offset: u64, bytes: Option<NonZeroU64>) {
    let _refused = drop_pages(file, offset, bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_opened_again_is_the_same_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, [7; 8192]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        for (access, direct) in [(Access::Read, false), (Access::Write, false)] {
            let again = reopen(&file, access, direct).unwrap();
            assert_eq!(crate::file::id(&again).unwrap(), crate::file::id(&file).unwrap(), "{access:?}");
        }
        forget(&file);
        let mut bytes = [0; 8192];
        crate::file::read_exact_at(&open(&path).unwrap(), &mut bytes, 0).unwrap();
        assert_eq!(bytes, [7; 8192]);
        assert!(crate::file::read_exact_at(&file, &mut bytes, 1).is_err());
    }
}
