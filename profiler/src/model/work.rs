//! The finished parts of a model's profile, on disk until the profile is complete.
//!
//! They lie in a folder `.profile-<key>` beside the output. The key is a hash of everything that decides the result: the model's
//! fingerprint, the texts, the options, the version of the tool. Each part is a file, written under another name and renamed. It begins
//! with the BLAKE3 of key, name and content: parts that are damaged, incomplete or from another run are ignored. The folder goes when the
//! output is complete.

use std::cell::OnceCell;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::bail;
use plans::output_file::OutputKind;

use crate::ProfileError;

/// A folder of finished parts.
#[derive(Debug)]
pub struct FinishedParts {
    folder: PathBuf,
    key: blake3::Hash,
    /// Held while this process uses the folder.
    lock: OnceCell<File>,
}

const HASH_BYTES: usize = blake3::OUT_LEN;

impl FinishedParts {
    /// The folder in `out` for a `key`. It is created with the first finished part.
    ///
    /// # Errors
    /// Another process that uses the folder.
    pub fn new(out: &Path, key: &[u8]) -> anyhow::Result<Self> {
        let key = blake3::hash(key);
        let folder = out.join(format!(".profile-{}", &key.to_hex()[..16]));
        let work = Self { folder, key, lock: OnceCell::new() };
        if work.folder.is_dir() {
            work.lock()?;
        }
        Ok(work)
    }

    /// The folder of the parts.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Bytes of all parts.
    pub fn bytes(&self) -> u64 {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum()
    }

    /// A finished part; `None` if it is missing or damaged.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn load(&self, name: &str) -> Result<Option<Vec<u8>>, ProfileError> {
        let path = self.folder.join(name);
        let io = |source| ProfileError::Io { action: "read", path: path.clone(), source };
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io(error)),
        };
        let mut hash = [0; HASH_BYTES];
        match file.read_exact(&mut hash) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(io(error)),
        }
        let mut content = Vec::new();
        file.read_to_end(&mut content).map_err(io)?;
        Ok((blake3::Hash::from(hash) == self.hash(name, &[&content])).then_some(content))
    }

    /// Writes a part: the pieces of `content`.
    ///
    /// # Errors
    /// The disk's; an earlier part of this name stays.
    pub fn save(&self, name: &str, content: &[&[u8]]) -> anyhow::Result<()> {
        if self.lock.get().is_none() {
            let io = |source| ProfileError::Io { action: "create", path: self.folder.clone(), source };
            fs::create_dir_all(&self.folder).map_err(io)?;
            self.lock()?;
        }
        let write = || -> io::Result<()> {
            let mut temporary = tempfile::Builder::new().suffix(".tmp").tempfile_in(&self.folder)?;
            temporary.write_all(self.hash(name, content).as_bytes())?;
            for piece in content {
                temporary.write_all(piece)?;
            }
            temporary.persist(self.folder.join(name)).map_err(|error| error.error)?;
            Ok(())
        };
        match write() {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => bail!(
                "the disk of {} is full; make room and start again: what is finished is kept there",
                self.folder.display()
            ),
            Err(source) => {
                bail!(ProfileError::Io { action: "write", path: self.folder.join(name), source })
            }
            Ok(()) => Ok(()),
        }
    }

    /// Writes a file here, and moves it to the output folder when it is complete.
    ///
    /// # Errors
    /// As `write`, and a failed move.
    pub fn deliver(
        &self,
        to: &Path,
        kind: OutputKind,
        write: impl FnOnce(&Path) -> Result<(), plans::ContractError>,
    ) -> Result<(), ProfileError> {
        let here = self.folder.join(to.file_name().unwrap_or_default());
        write(&here)?;
        plans::output_file::deliver(&here, to, kind).map_err(|source| ProfileError::Io {
            action: "write",
            path: to.to_owned(),
            source,
        })
    }

    /// Removes the folder with all parts.
    ///
    /// # Errors
    /// The system's.
    pub fn remove(self) -> Result<(), ProfileError> {
        if !self.folder.exists() {
            return Ok(());
        }
        fs::remove_dir_all(&self.folder).map_err(|source| ProfileError::Io {
            action: "remove",
            path: self.folder.clone(),
            source,
        })
    }

    /// Locks the folder, and removes the unfinished files of a killed process.
    fn lock(&self) -> anyhow::Result<()> {
        let io = |source| ProfileError::Io { action: "open", path: self.folder.clone(), source };
        let lock = File::create(self.folder.join("lock")).map_err(io)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => bail!(
                "another `profile` of the same model is at work in {}; wait until it has ended",
                self.folder.display()
            ),
            Err(TryLockError::Error(error)) => bail!(io(error)),
        }
        for entry in fs::read_dir(&self.folder).map_err(io)? {
            let path = entry.map_err(io)?.path();
            if path.extension().is_some_and(|extension| extension == "tmp") {
                fs::remove_file(&path).map_err(io)?;
            }
        }
        let _first = self.lock.set(lock);
        Ok(())
    }

    fn hash(&self, name: &str, content: &[&[u8]]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(self.key.as_bytes());
        hasher.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes());
        for piece in content {
            hasher.update(piece);
        }
        hasher.finalize()
    }
}

/// Bytes as numbers, at any alignment; an incomplete number at the end is left out.
pub fn numbers<T: bytemuck::Pod>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

/// Joins pieces: their count, their lengths, their bytes.
pub fn joined(pieces: &[&[u8]]) -> Vec<u8> {
    let mut out = (pieces.len() as u64).to_le_bytes().to_vec();
    out.extend(pieces.iter().flat_map(|piece| (piece.len() as u64).to_le_bytes()));
    out.extend(pieces.iter().flat_map(|piece| piece.iter().copied()));
    out
}

/// Splits [`joined`] pieces; `None` for other bytes.
pub fn pieces(bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let (count, mut lengths) = bytes.split_first_chunk()?;
    let count = usize::try_from(u64::from_le_bytes(*count)).ok()?;
    let mut left = lengths.get(count.checked_mul(8)?..)?;
    let mut pieces = Vec::new();
    for _ in 0..count {
        let (length, others) = lengths.split_first_chunk()?;
        let (piece, rest) = left.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        pieces.push(piece);
        (lengths, left) = (others, rest);
    }
    left.is_empty().then_some(pieces)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_part_comes_back_as_it_was_kept_and_only_so() {
        let out = tempfile::tempdir().unwrap();
        let work = FinishedParts::new(out.path(), b"key").unwrap();
        assert!(!work.folder().exists(), "nothing before something is finished");
        assert_eq!(work.load("part").unwrap(), None);
        work.save("part", &[b"some", b"thing"]).unwrap();
        assert_eq!(work.load("part").unwrap().unwrap(), b"something");

        let path = work.folder().join("part");
        let whole = fs::read(&path).unwrap();
        for damage in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[damage] ^= 1;
            fs::write(&path, damaged).unwrap();
            assert_eq!(work.load("part").unwrap(), None, "byte {damage}");
            fs::write(&path, &whole[..damage]).unwrap();
            assert_eq!(work.load("part").unwrap(), None, "{damage} bytes");
        }
        fs::write(work.folder().join("other"), &whole).unwrap();
        assert_eq!(work.load("other").unwrap(), None, "under another name");
        let other = FinishedParts::new(out.path(), b"other key").unwrap();
        fs::create_dir(other.folder()).unwrap();
        fs::write(other.folder().join("part"), &whole).unwrap();
        assert_eq!(other.load("part").unwrap(), None, "of another run");

        work.remove().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn two_at_work_are_one_too_many_and_unfinished_files_go() {
        let out = tempfile::tempdir().unwrap();
        let first = FinishedParts::new(out.path(), b"key").unwrap();
        first.save("part", &[b"content"]).unwrap();
        let half = first.folder().join("half.tmp");
        fs::write(&half, "ha").unwrap();
        let message = FinishedParts::new(out.path(), b"key").expect_err("locked").to_string();
        assert!(message.starts_with("another `profile` of the same model is at work in"), "{message}");
        drop(first);
        let second = FinishedParts::new(out.path(), b"key").unwrap();
        assert!(!half.exists() && second.load("part").unwrap().is_some());
    }

    proptest! {
        #[test]
        fn pieces_come_back_and_other_bytes_do_not_crash(
            list in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..5),
            cut in 0usize..64,
        ) {
            let slices: Vec<&[u8]> = list.iter().map(Vec::as_slice).collect();
            let bytes = joined(&slices);
            prop_assert_eq!(pieces(&bytes), Some(slices));
            if cut < bytes.len() {
                prop_assert_eq!(pieces(&bytes[..cut]), None);
                prop_assert_eq!(pieces(&bytes[cut..]).is_some_and(|p| p.len() > 1 << 32), false);
            }
        }
    }
}
