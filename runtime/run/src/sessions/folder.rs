//! A folder of blocks that never grows beyond its bound. It may have other files, too: only what has a block's name and begins as a
//! block does is counted or removed.

use std::collections::BinaryHeap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use platform::file::{create_private_folder, set_used};

use super::block::{self, Block, Hashed, Problem};

/// End of the names of blocks, and of blocks that are being written.
const SUFFIX: &str = ".kv";
/// Beginning of the names of blocks that are being written; so many letters and digits follow.
const PART: (&str, usize) = ("part-", 6);
/// Files that are looked at to be removed at a time: what is remembered of a folder is bounded.
const REMOVED_AT_ONCE: usize = 64;

/// Where blocks lie.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    bytes_max: u64,
}

impl Folder {
    /// The folder, made for its owner alone if there is none; it can be written to.
    pub(super) fn open(path: &Path, bytes_max: u64) -> io::Result<Self> {
        create_private_folder(path)?;
        let folder = Self { path: path.to_owned(), bytes_max };
        folder.part().map(drop)?;
        Ok(folder)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    pub(super) fn path_of(&self, block: &Block<'_>) -> PathBuf {
        self.path.join(block.key.name() + SUFFIX)
    }

    /// Whether there is something by the block's name.
    pub(super) fn has(&self, block: &Block<'_>) -> bool {
        self.path_of(block).symlink_metadata().is_ok()
    }

    /// Notes when the block was used; whether it is there.
    pub(super) fn touch(&self, block: &Block<'_>, used: SystemTime) -> bool {
        // nothing is opened: it may be something that waits for others
        match set_used(&self.path_of(block), used) {
            Ok(()) => true,
            // without permission the file keeps its older time
            Err(_) => self.has(block),
        }
    }

    /// Begins to read a block.
    pub(super) fn read(&self, block: &Block<'_>) -> Result<Hashed, Problem> {
        block.read(&self.path_of(block))
    }

    /// Writes a block, whole or not at all, used at that time.
    pub(super) fn write(
        &self,
        block: &Block<'_>,
        used: SystemTime,
        fill: impl FnOnce(&mut Hashed) -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        let part = self.part()?;
        block.write(part.as_file().try_clone()?, fill)?;
        part.as_file().set_modified(used)?;
        part.persist(self.path_of(block)).map_err(|error| error.error)?;
        Ok(())
    }

    /// Removes a block, unless the file by its name was never one; whether it is gone.
    pub(super) fn remove(&self, block: &Block<'_>) -> bool {
        let path = self.path_of(block);
        block::begins_as_one(&path).unwrap_or(false) && fs::remove_file(path).is_ok()
    }

    /// Removes what was not used for longest until there is room for so many bytes more.
    pub(super) fn make_room(&self, bytes: u64) -> io::Result<()> {
        loop {
            let (mut held, oldest) = self.survey()?;
            for file in oldest {
                if held.saturating_add(bytes) <= self.bytes_max {
                    return Ok(());
                }
                held -= file.bytes;
                remove(&file.path)?;
            }
            if held.saturating_add(bytes) <= self.bytes_max {
                return Ok(());
            }
            if held == 0 {
                return Err(io::Error::other("there is no room for it"));
            }
        }
    }

    /// Bytes of all files that have a block's name and begin as one, and the oldest of them, the oldest first.
    fn survey(&self) -> io::Result<(u64, Vec<Old>)> {
        let (mut held, mut oldest) = (0, BinaryHeap::with_capacity(REMOVED_AT_ONCE + 1));
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            if !entry.file_name().to_str().is_some_and(is_name) {
                continue;
            }
            // another process may have removed it
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_file() && block::begins_as_one(&entry.path()).unwrap_or(false) {
                held += metadata.len();
                oldest.push(Old { used: metadata.modified()?, bytes: metadata.len(), path: entry.path() });
                if oldest.len() > REMOVED_AT_ONCE {
                    oldest.pop();
                }
            }
        }
        Ok((held, oldest.into_sorted_vec()))
    }

    /// A file that has no name of its own yet.
    fn part(&self) -> io::Result<tempfile::NamedTempFile> {
        let (prefix, random) = PART;
        tempfile::Builder::new().prefix(prefix).rand_bytes(random).suffix(SUFFIX).tempfile_in(&self.path)
    }
}

/// Whether a file's name is a block's, or a name for a block being written.
fn is_name(name: &str) -> bool {
    let Some(stem) = name.strip_suffix(SUFFIX) else { return false };
    match stem.strip_prefix(PART.0) {
        Some(random) => random.len() == PART.1 && random.bytes().all(|byte| byte.is_ascii_alphanumeric()),
        None => stem.len() == 64 && stem.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')),
    }
}

/// A file, and when it was used.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Old {
    used: SystemTime,
    bytes: u64,
    path: PathBuf,
}

/// Another process may have been faster.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::block::{Key, file_bytes};
    use super::*;

    fn block(number: u32) -> Block<'static> {
        Block { key: Key::root(&["model"]).followed_by(&[number]), tokens: &[1, 2], bytes: 50 }
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000 + seconds)
    }

    fn there(folder: &Folder, blocks: u32) -> Vec<u32> {
        (0..blocks).filter(|&number| folder.has(&block(number))).collect()
    }

    fn filled(path: &Path, bytes_max: u64, blocks: u32) -> Folder {
        let folder = Folder::open(path, bytes_max).unwrap();
        for number in 0..blocks {
            folder.write(&block(number), at(u64::from(number)), |file| file.put(&[3; 50])).unwrap();
        }
        folder
    }

    #[test]
    fn the_bound_is_kept_and_who_was_not_used_for_longest_goes_first() {
        let (here, each) = (tempfile::tempdir().unwrap(), file_bytes(2, 50));
        let folder = filled(&here.path().join("a/b"), 5 * each, 5);
        fs::write(folder.path().join("note.txt"), [0; 4096]).unwrap();
        folder.make_room(0).unwrap();
        assert_eq!(there(&folder, 5), [0, 1, 2, 3, 4]);
        assert!(folder.touch(&block(0), at(9)) && !folder.touch(&block(7), at(9)));
        folder.make_room(2 * each).unwrap();
        assert_eq!(there(&folder, 5), [0, 3, 4]);
        // remains of a killed process go, too
        let part = folder.part().unwrap().keep().unwrap().1;
        fs::write(&part, [&b"flashkv\n"[..], &vec![0; 2 * each as usize]].concat()).unwrap();
        fs::File::open(&part).unwrap().set_modified(at(0)).unwrap();
        folder.make_room(2 * each).unwrap();
        assert!(!part.exists());
        assert_eq!(there(&folder, 5), [0, 3, 4]);
        folder.make_room(5 * each).unwrap();
        assert_eq!(there(&folder, 5), [] as [u32; 0]);
        assert!(folder.make_room(6 * each).is_err());
        assert!(folder.path().join("note.txt").exists(), "it is not ours");
    }

    #[test]
    fn files_of_others_are_neither_counted_nor_removed() {
        let (here, each) = (tempfile::tempdir().unwrap(), file_bytes(2, 50));
        let folder = filled(here.path(), 3 * each, 3);
        let in_place_of_a_block = folder.path_of(&block(9));
        let mut foreign: Vec<PathBuf> =
            ["notes.kv", "part-1.kv", "part-abcdef.kv", ".kv", &format!("{}.kv", "A".repeat(64))]
                .map(|name| here.path().join(name))
                .into();
        // more than are looked at together
        foreign.extend((100..300).map(|number| folder.path_of(&block(number))));
        foreign.push(in_place_of_a_block.clone());
        for path in &foreign {
            fs::write(path, [7; 4096]).unwrap();
            fs::File::open(path).unwrap().set_modified(at(0)).unwrap();
        }
        folder.make_room(0).unwrap();
        assert_eq!(there(&folder, 3), [0, 1, 2]);
        folder.make_room(2 * each).unwrap();
        assert_eq!(there(&folder, 3), [2]);
        assert!(!folder.remove(&block(9)), "it is nobody's block");
        folder.make_room(3 * each).unwrap();
        assert!(folder.make_room(4 * each).is_err());
        for path in &foreign {
            assert_eq!(fs::read(path).unwrap(), [7; 4096], "{}", path.display());
        }
        // a link is no block, whatever it leads to
        fs::remove_file(&in_place_of_a_block).unwrap();
        folder.write(&block(1), at(1), |file| file.put(&[3; 50])).unwrap();
        std::os::unix::fs::symlink(folder.path_of(&block(1)), &in_place_of_a_block).unwrap();
        assert!(!folder.remove(&block(9)) && in_place_of_a_block.is_symlink());
    }

    #[test]
    fn more_files_go_than_are_looked_at_together() {
        let (here, each) = (tempfile::tempdir().unwrap(), file_bytes(2, 50));
        let many = 2 * REMOVED_AT_ONCE as u32 + 10;
        let folder = filled(here.path(), u64::from(many) * each, many);
        folder.make_room(u64::from(many - 3) * each).unwrap();
        assert_eq!(there(&folder, many), [many - 3, many - 2, many - 1]);
    }

    #[test]
    fn a_write_that_fails_leaves_nothing() {
        let here = tempfile::tempdir().unwrap();
        let folder = filled(here.path(), 1 << 20, 0);
        let failed = folder.write(&block(1), at(0), |file| {
            file.put(&[1; 10])?;
            Err(Problem::Damaged)
        });
        assert!(matches!(failed, Err(Problem::Damaged)));
        assert_eq!(fs::read_dir(here.path()).unwrap().count(), 0);
        fs::write(here.path().join("file"), "").unwrap();
        assert!(Folder::open(&here.path().join("file"), 1).is_err());
    }
}
