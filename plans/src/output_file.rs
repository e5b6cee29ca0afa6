//! Output files: never half written, and never in the place of something that is not a file.
//!
//! | what stands at the path | what happens |
//! |---|---|
//! | nothing, or a regular file | the bytes go to a temporary file beside it, which is renamed when it is complete; an existing file's permissions stay |
//! | a symbolic link | its target is treated so, and the link stays |
//! | a device, a pipe or a socket | the bytes are written to it; nothing is renamed |
//! | `/dev/stdout`, `/dev/stderr`, `/dev/fd/N` | the bytes go to that descriptor, whatever it is |
//! | a folder | refused |

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::page_cache;

/// Links that are followed before a path is given up as a circle; the system's own number.
const LINKS_MAX: usize = 40;

/// Bytes after which what was written goes to the disk and leaves the page cache.
const CACHED_BYTES_MAX: usize = 1 << 20;

/// An output file being written. Dropped before [`OutputFile::finish`], no file is left or changed.
#[derive(Debug)]
pub struct OutputFile {
    kind: Kind,
    /// Bytes since pages left the page cache.
    cached_bytes: usize,
}

#[derive(Debug)]
enum Kind {
    /// A temporary file, and the name that it will get.
    Renamed { file: BufWriter<NamedTempFile>, target: PathBuf },
    /// Something that takes bytes as they come.
    Direct { file: BufWriter<File>, is_file: bool },
}

/// The kind of thing at a path, links followed.
#[derive(Debug, PartialEq, Eq)]
enum PathKind {
    /// A regular file by this name, with these permissions; or none yet.
    File { target: PathBuf, mode: Option<u32> },
    /// A device, pipe or socket.
    Special { path: PathBuf, is_pipe: bool },
    /// An open descriptor of this process.
    Descriptor { path: PathBuf, number: u32 },
}

impl OutputFile {
    /// Begins an output file; a pipe is waited for until somebody reads it.
    ///
    /// # Errors
    /// The system's, without a temporary name; and a folder at this path.
    pub fn create(path: &Path) -> io::Result<Self> {
        let direct = |file: File| {
            let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
            Self::of(Kind::Direct { file: BufWriter::new(file), is_file })
        };
        match place(path)? {
            PathKind::File { target, mode } => {
                let file = BufWriter::new(temporary(&target, mode)?);
                Ok(Self::of(Kind::Renamed { file, target }))
            }
            PathKind::Special { path, .. } => OpenOptions::new().write(true).open(path).map(direct),
            PathKind::Descriptor { number: 1, .. } => {
                io::stdout().flush()?;
                Ok(direct(io::stdout().as_fd().try_clone_to_owned()?.into()))
            }
            PathKind::Descriptor { number: 2, .. } => {
                Ok(direct(io::stderr().as_fd().try_clone_to_owned()?.into()))
            }
            PathKind::Descriptor { path, .. } => OpenOptions::new().append(true).open(path).map(direct),
        }
    }

    fn of(kind: Kind) -> Self {
        Self { kind, cached_bytes: 0 }
    }

    /// Has what was written so far leave the page cache.
    fn uncache(&mut self) -> io::Result<()> {
        self.cached_bytes = 0;
        self.flush()?;
        let file = match &self.kind {
            Kind::Renamed { file, .. } => file.get_ref().as_file(),
            Kind::Direct { file, is_file: true } => file.get_ref(),
            Kind::Direct { is_file: false, .. } => return Ok(()),
        };
        file.sync_data()?;
        page_cache::forget(file);
        Ok(())
    }

    /// The file under it, to be written from its beginning by other means; none where the bytes go to something else, such as a pipe.
    /// Before [`OutputFile::finish`] everything must be written.
    pub fn as_file(&self) -> Option<&File> {
        match &self.kind {
            Kind::Renamed { file, .. } => Some(file.get_ref().as_file()),
            Kind::Direct { .. } => None,
        }
    }

    /// Ends the file: all bytes are where they belong, and a file has its name.
    ///
    /// # Errors
    /// The system's; the temporary file is gone then.
    pub fn finish(self) -> io::Result<()> {
        match self.kind {
            Kind::Renamed { file, target } => {
                let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
                file.as_file().sync_all()?;
                page_cache::forget(file.as_file());
                file.persist(target).map_err(|error| error.error)?;
                Ok(())
            }
            Kind::Direct { mut file, is_file } => {
                file.flush()?;
                if is_file { file.get_ref().sync_all() } else { Ok(()) }
            }
        }
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match &mut self.kind {
            Kind::Renamed { file, .. } => file.write(bytes),
            Kind::Direct { file, .. } => file.write(bytes),
        }?;
        self.cached_bytes += written;
        if self.cached_bytes >= CACHED_BYTES_MAX {
            self.uncache()?;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.kind {
            Kind::Renamed { file, .. } => file.flush(),
            Kind::Direct { file, .. } => file.flush(),
        }
    }
}

/// Writes a whole output file.
///
/// # Errors
/// Those of [`OutputFile::create`] and [`OutputFile::finish`].
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OutputFile::create(path)?;
    file.write_all(bytes)?;
    file.finish()
}

/// Whether an output file can be written there: to be known before the work, not after it. Nothing is changed, and no pipe is
/// waited for.
///
/// # Errors
/// Those of [`OutputFile::create`].
pub fn writable(path: &Path) -> io::Result<()> {
    match place(path)? {
        PathKind::File { target, mode } => temporary(&target, mode).map(drop),
        PathKind::Special { is_pipe: true, .. } | PathKind::Descriptor { .. } => Ok(()),
        PathKind::Special { path, .. } => OpenOptions::new().write(true).open(path).map(drop),
    }
}

/// Whether what is written there goes to a device, a pipe, a socket or a descriptor, so that no other file can stand beside it.
pub fn is_special(path: &Path) -> bool {
    matches!(place(path), Ok(PathKind::Special { .. } | PathKind::Descriptor { .. }))
}

/// Gives a complete file, which stands elsewhere on the disk, the name `to`: as an output file of the same bytes.
///
/// # Errors
/// The system's; `from` is still there then.
pub fn deliver(from: &Path, to: &Path) -> io::Result<()> {
    if let PathKind::File { target, mode } = place(to)? {
        if let Some(mode) = mode {
            fs::set_permissions(from, fs::Permissions::from_mode(mode))?;
        }
        match fs::rename(from, target) {
            // a link led to another disk
            Err(error) if error.kind() == ErrorKind::CrossesDevices => {}
            done => return done,
        }
    }
    let mut file = OutputFile::create(to)?;
    io::copy(&mut File::open(from)?, &mut file)?;
    file.finish()?;
    fs::remove_file(from)
}

/// Follows links to what the bytes of an output file go to.
fn place(path: &Path) -> io::Result<PathKind> {
    let descriptors = fs::canonicalize("/proc/self/fd").ok();
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let folder = folder_of(&path);
        if descriptors.is_some()
            && fs::canonicalize(folder).ok() == descriptors
            && let Some(number) = path.file_name().and_then(|name| name.to_str()?.parse().ok())
        {
            return Ok(PathKind::Descriptor { path, number });
        }
        let metadata = match fs::symlink_metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(PathKind::File { target: path, mode: None });
            }
            Err(error) => return Err(error),
        };
        let kind = metadata.file_type();
        if kind.is_symlink() {
            path = folder.join(fs::read_link(&path)?);
        } else if kind.is_dir() {
            return Err(io::Error::new(ErrorKind::IsADirectory, "it is a folder; name a file inside it"));
        } else if kind.is_file() {
            return Ok(PathKind::File { target: path, mode: Some(metadata.permissions().mode()) });
        } else {
            return Ok(PathKind::Special { path, is_pipe: kind.is_fifo() });
        }
    }
    Err(io::Error::other("its symbolic links go round in a circle"))
}

/// A file beside `target` under a temporary name; its permissions are `mode`, or those of any new file.
fn temporary(target: &Path, mode: Option<u32>) -> io::Result<NamedTempFile> {
    let file = tempfile::Builder::new()
        .prefix(".flashplan-")
        .suffix(".tmp")
        .permissions(fs::Permissions::from_mode(0o666))
        .tempfile_in(folder_of(target))
        .map_err(|error| io::Error::new(error.kind(), refusal(folder_of(target), &error)))?;
    if let Some(mode) = mode {
        file.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
    }
    Ok(file)
}

/// Why no file can be made in a folder, and what to do.
fn refusal(folder: &Path, error: &io::Error) -> String {
    let shown = folder.display();
    match error.kind() {
        _ if !folder.exists() => format!("there is no folder {shown}; make it, or name another"),
        _ if !folder.is_dir() => format!("{shown} is no folder; name another"),
        ErrorKind::PermissionDenied => {
            format!("you may not make files in {shown}; name a folder in which you may")
        }
        ErrorKind::ReadOnlyFilesystem => format!("{shown} is read-only; name a folder on another disk"),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            format!("there is no room in {shown}; make room, or name a folder on another disk")
        }
        _ => {
            // without the temporary file's name
            let said = error.to_string();
            let fact = said.split_once(" at path ").map_or(&*said, |(fact, _)| fact);
            format!("files cannot be made in {shown} ({fact}); name another folder")
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
