//! The files of a folder: by names that stay in it, each with a bound on what is read.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::error::{FolderError, quote};

/// Bytes of `config.json` and of the other small files, at most.
pub(crate) const SMALL_MAX: u64 = 4 << 20;
/// Bytes of a tokenizer or an index, at most. The largest published are half of it.
pub(crate) const LARGE_MAX: u64 = 96 << 20;

/// Whether this is a folder as Hugging Face's hub has them: one with a `config.json`.
pub fn is_folder(path: &Path) -> bool {
    path.is_dir() && path.join("config.json").is_file()
}

/// A folder.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
}

impl Folder {
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file that the program names.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The path of a file that another file names: it must be one in this very folder.
    ///
    /// A link that stands there is followed, since the hub's cache has nothing else.
    pub(crate) fn named(&self, name: &str, by: &Path) -> Result<PathBuf, FolderError> {
        let plain = !name.is_empty() && !name.contains(['/', '\\', '\0']) && name != "." && name != "..";
        if !plain {
            return Err(FolderError::damaged(
                by,
                format!("it names {}, which is no file of its folder", quote(name)),
            ));
        }
        Ok(self.path.join(name))
    }

    /// The bytes of a file, if it is there.
    pub(crate) fn read(&self, name: &str, max: u64) -> Result<Option<Vec<u8>>, FolderError> {
        let path = self.file(name);
        let Ok(metadata) = fs::metadata(&path) else { return Ok(None) };
        if !metadata.is_file() {
            return Err(FolderError::damaged(&path, "it is not a regular file"));
        }
        if metadata.len() > max {
            return Err(FolderError::Large { path, found: metadata.len(), max });
        }
        let file = File::open(&path).map_err(FolderError::io("read", &path))?;
        let mut bytes = Vec::with_capacity(metadata.len() as usize);
        file.take(max).read_to_end(&mut bytes).map_err(FolderError::io("read", &path))?;
        Ok(Some(bytes))
    }
}

/// A whole file, read-only.
#[expect(unsafe_code, reason = "a mapping is memory that another process could change")]
pub(crate) fn map(path: &Path) -> Result<Mmap, FolderError> {
    let metadata = fs::metadata(path).map_err(FolderError::io("read", path))?;
    if !metadata.is_file() {
        return Err(FolderError::damaged(path, "it is not a regular file"));
    }
    let file = File::open(path).map_err(FolderError::io("read", path))?;
    // SAFETY: the mapping is read-only and as long as the file is now, and every access stays within it. That nobody changes the
    // file meanwhile cannot be enforced: it is the user's part, as with GGUF files. What is checked is copied first, so that a
    // change can alter weights but not lead a read out of the mapping.
    unsafe { Mmap::map(&file) }.map_err(FolderError::io("map", path))
}
