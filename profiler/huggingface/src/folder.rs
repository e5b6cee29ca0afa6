//! The files of a folder: by names that stay in it, each with a bound on what is read.
//!
//! Weights are read, not mapped: a file that gets shorter is an error then, and not a signal.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::{FolderError, quote};

/// Bytes of `config.json` and of the other small files, at most.
pub(crate) const SMALL_MAX: u64 = 4 << 20;
/// Bytes of a tokenizer or an index, at most. The largest published are half of it.
pub(crate) const LARGE_MAX: u64 = 96 << 20;

/// Whether this is a folder as Hugging Face's hub has them: one with a `config.json`.
pub fn is_folder(path: &Path) -> bool {
    path.is_dir() && path.join("config.json").symlink_metadata().is_ok()
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

    /// Requires a name from another file to name a file in this very folder.
    pub(crate) fn named<'n>(&self, name: &'n str, by: &Path) -> Result<&'n str, FolderError> {
        let plain = !name.is_empty() && !name.contains(['/', '\\', '\0']) && name != "." && name != "..";
        if !plain {
            return Err(FolderError::damaged(
                by,
                format!("it names {}, which is no file of its folder", quote(name)),
            ));
        }
        Ok(name)
    }

    /// A file, if it is there. One that cannot be looked at, and a link to nothing, are not absent.
    pub(crate) fn open(&self, name: &str) -> Result<Option<Opened>, FolderError> {
        let path = self.file(name);
        let io = || FolderError::io("read", &path);
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            found => {
                if found.map_err(io())?.is_symlink() {
                    self.follow(&path)?;
                }
            }
        }
        // asked before it is opened, for a pipe would wait for a writer
        if !fs::metadata(&path).map_err(io())?.is_file() {
            return Err(FolderError::damaged(&path, "it is not a regular file"));
        }
        let file = File::open(&path).map_err(io())?;
        let metadata = file.metadata().map_err(io())?;
        let (bytes, changed) = (metadata.len(), metadata.modified().map_err(io())?);
        Ok(Some(Opened { path, file, bytes, changed }))
    }

    /// Requires a link to lead to a file of this folder, or in the hub's cache from `snapshots/COMMIT` to `blobs`.
    fn follow(&self, link: &Path) -> Result<(), FolderError> {
        let to = link.canonicalize().map_err(FolderError::io("follow the link", link))?;
        let own = self.path.canonicalize().map_err(FolderError::io("read", &self.path))?;
        let snapshots = own.parent().filter(|parent| parent.ends_with("snapshots"));
        let blobs = snapshots.and_then(Path::parent).map(|model| model.join("blobs"));
        if to.starts_with(&own) || blobs.is_some_and(|blobs| to.starts_with(blobs)) {
            return Ok(());
        }
        let what = format!("a link out of the folder, to {},", quote(&to.display().to_string()));
        Err(FolderError::with_remedy(link, what, "put the file itself in its place"))
    }

    /// The bytes of a file, if it is there.
    pub(crate) fn read(&self, name: &str, max: u64) -> Result<Option<Vec<u8>>, FolderError> {
        let Some(Opened { path, file, bytes: found, .. }) = self.open(name)? else { return Ok(None) };
        if found > max {
            return Err(FolderError::Large { path, found, max });
        }
        let mut bytes = Vec::with_capacity(found as usize);
        file.take(max).read_to_end(&mut bytes).map_err(FolderError::io("read", &path))?;
        Ok(Some(bytes))
    }
}

/// A file of a folder, open.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) path: PathBuf,
    file: File,
    /// Bytes when it was opened.
    pub(crate) bytes: u64,
    /// When it had been changed.
    changed: SystemTime,
}

impl Opened {
    /// Fills a buffer with the bytes from a place on.
    pub(crate) fn read_at(&self, place: u64, bytes: &mut [u8]) -> Result<(), FolderError> {
        platform::file::read_exact_at(&self.file, bytes, place).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                FolderError::damaged(&self.path, "it got shorter while it was read")
            }
            _ => FolderError::io("read", &self.path)(error),
        })
    }

    /// Requires the file to be unchanged since it was opened.
    pub(crate) fn is_unchanged(&self) -> Result<(), FolderError> {
        let metadata = self.file.metadata().map_err(FolderError::io("read", &self.path))?;
        let changed = metadata.modified().map_err(FolderError::io("read", &self.path))?;
        if metadata.len() == self.bytes && changed == self.changed {
            return Ok(());
        }
        Err(FolderError::with_remedy(
            &self.path,
            "a file that is changed while it is read",
            "wait until it is complete, and begin again",
        ))
    }
}
