//! The cache of Hugging Face's own programs.
//!
//! ```text
//! models--OWNER--REPO/blobs/CHECKSUM              a file's bytes; CHECKSUM.incomplete while it is fetched
//! models--OWNER--REPO/snapshots/COMMIT/PATH       a link to them
//! models--OWNER--REPO/refs/main                   the latest COMMIT
//! .locks/models--OWNER--REPO/CHECKSUM.lock        held during the download
//! .locks/models--OWNER--REPO/CHECKSUM.checked     ours: the blob's state on the disk when its checksum was last right
//! ```
//!
//! Source: the guide "Understand caching" of `huggingface_hub`.

use std::fs::{self, File as OpenFile, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::Model;
use crate::checksum::is_hex;
use crate::error::HubError;
use crate::listing::File;
use crate::name::Name;
use crate::verify::Stamp;

/// A folder with models of the hub.
#[derive(Debug)]
pub(crate) struct Cache {
    folder: PathBuf,
}

/// The folder of Hugging Face's programs: of the cache, and of the token.
pub(crate) fn home(variable: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let cache = || {
        let own = variable("XDG_CACHE_HOME").map(PathBuf::from);
        Some(own.or_else(|| Some(Path::new(&variable("HOME")?).join(".cache")))?.join("huggingface"))
    };
    variable("HF_HOME").map(PathBuf::from).or_else(cache)
}

impl Cache {
    pub(crate) fn new(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, HubError> {
        let folder = match variable("HF_HUB_CACHE") {
            Some(folder) => Some(PathBuf::from(folder)),
            None => home(variable).map(|home| home.join("hub")),
        };
        let missing = || HubError::Environment {
            variable: "HF_HOME",
            why: "is not set, nor is HOME: set it to the folder that models are to be fetched into"
                .to_owned(),
        };
        Ok(Self { folder: folder.ok_or_else(missing)? })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    fn repository(&self, name: &Name) -> PathBuf {
        self.folder.join(in_one(name))
    }

    /// The path of a file's verified bytes.
    pub(crate) fn blob(&self, name: &Name, file: &File) -> PathBuf {
        self.repository(name).join("blobs").join(file.checksum.hex())
    }

    /// The path of a file's bytes during the download.
    pub(crate) fn incomplete(&self, name: &Name, file: &File) -> PathBuf {
        self.blob(name, file).with_extension("incomplete")
    }

    /// Whether the cache has a file of the right length; [`crate::Hub::discard_damaged`] verifies its checksum.
    pub(crate) fn has(&self, name: &Name, file: &File) -> bool {
        fs::metadata(self.blob(name, file)).is_ok_and(|it| it.is_file() && it.len() == file.bytes)
    }

    /// Bytes of a file that are there.
    pub(crate) fn fetched_bytes(&self, name: &Name, file: &File) -> u64 {
        if self.has(name, file) {
            return file.bytes;
        }
        let incomplete = fs::metadata(self.incomplete(name, file)).map_or(0, |it| it.len());
        if incomplete <= file.bytes { incomplete } else { 0 }
    }

    fn locks(&self, name: &Name) -> PathBuf {
        self.folder.join(".locks").join(in_one(name))
    }

    fn checked(&self, name: &Name, file: &File) -> PathBuf {
        self.locks(name).join(format!("{}.checked", file.checksum.hex()))
    }

    /// Whether a file's checksum was right in this state.
    pub(crate) fn is_checked(&self, name: &Name, file: &File, stamp: &Stamp) -> bool {
        fs::read_to_string(self.checked(name, file)).is_ok_and(|noted| noted == stamp.0)
    }

    /// Records that a file's checksum was right in this state. Without a record the file is read again the next time.
    pub(crate) fn note_checked(&self, name: &Name, file: &File, stamp: &Stamp) {
        let _noted =
            fs::create_dir_all(self.locks(name)).and_then(|()| fs::write(self.checked(name, file), &stamp.0));
    }

    /// A lock on the download of a file; `None` if another program downloads it.
    pub(crate) fn lock(&self, name: &Name, file: &File) -> Result<Option<OpenFile>, HubError> {
        let folder = self.locks(name);
        let path = folder.join(format!("{}.lock", file.checksum.hex()));
        fs::create_dir_all(&folder).map_err(HubError::io("create", &folder))?;
        let lock = OpenFile::create(&path).map_err(HubError::io("create", &path))?;
        match lock.try_lock() {
            Ok(()) => Ok(Some(lock)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(source)) => Err(HubError::io("lock", &path)(source)),
        }
    }

    /// Names the model's files in its snapshot folder, and returns the folder.
    pub(crate) fn link(&self, model: &Model) -> Result<PathBuf, HubError> {
        let repository = self.repository(&model.name);
        let snapshot = repository.join("snapshots").join(&model.commit);
        for file in &model.choice.files {
            let link = snapshot.join(&file.path);
            let up = "../".repeat(file.path.matches('/').count() + 2);
            let target = PathBuf::from(format!("{up}blobs/{}", file.checksum.hex()));
            let is_there = || fs::read_link(&link).is_ok_and(|there| there == target);
            if is_there() {
                continue;
            }
            let folder = link.parent().unwrap_or(&snapshot);
            fs::create_dir_all(folder).map_err(HubError::io("create", folder))?;
            // a link to be replaced is of the same commit, and so of the same file
            let _nothing_was_there = fs::remove_file(&link);
            match platform::file::link(&target, &link) {
                // another program was faster
                Err(error) if error.kind() == ErrorKind::AlreadyExists && is_there() => {}
                made => made.map_err(HubError::io("link", &link))?,
            }
        }
        let latest = repository.join("refs/main");
        if fs::read_to_string(&latest).is_ok_and(|there| there.trim() == model.commit) {
            return Ok(snapshot);
        }
        fs::create_dir_all(repository.join("refs")).map_err(HubError::io("create", &latest))?;
        fs::write(&latest, &model.commit).map_err(HubError::io("write", &latest))?;
        Ok(snapshot)
    }

    /// The folder of the last download of a repository.
    pub(crate) fn latest(&self, name: &Name) -> Option<PathBuf> {
        let repository = self.repository(name);
        let commit = fs::read_to_string(repository.join("refs/main")).ok()?;
        let commit = commit.trim();
        let snapshot = repository.join("snapshots").join(commit);
        (is_hex(commit, 40) && snapshot.is_dir()).then_some(snapshot)
    }
}

/// A repository's name as one folder.
fn in_one(name: &Name) -> String {
    format!("models--{}--{}", name.owner, name.repository)
}
