//! Output files: never half written, and never in place of another file.
//!
//! | what stands at the path | what happens |
//! |---|---|
//! | nothing, an empty file, or one of the output's kind | the bytes go to a temporary file beside it, which is renamed when it is complete; an existing file's permissions stay |
//! | any other file, such as a model, or an input of the same command | refused |
//! | a symbolic link | its target is treated so, and the link stays |
//! | a device, a pipe or a socket | the bytes are written to it; nothing is renamed |
//! | `/dev/stdout`, `/dev/stderr`, `/dev/fd/N` | the bytes go to that descriptor, whatever it is |
//! | a folder | refused |

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufWriter, ErrorKind, Read as _, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use platform::{file as files, page_cache};

/// Links that are followed before a path counts as a circle; the system's own number.
const LINKS_MAX: usize = 40;

/// Written bytes after which they are flushed to the disk and leave the page cache.
const CACHED_BYTES_MAX: usize = 256 << 10;

/// Bytes at the beginning of an existing file that show its kind.
const HEAD_BYTES: u64 = 64 << 10;

/// A kind of output file. An existing file is replaced only by another of its own kind.
#[derive(Debug, Clone, Copy)]
pub struct OutputKind {
    /// Name of the kind, with an article.
    pub name: &'static str,
    /// Whether a file that begins with these bytes, the first 64 KiB of it at most, is one.
    pub is_one: fn(&[u8]) -> bool,
}

impl OutputKind {
    /// A picture, as `plotters` draws it.
    pub const PICTURE: Self = Self {
        name: "a picture of ours",
        is_one: |head| {
            let line = head.split(|&byte| byte == b'\n').next().unwrap_or_default();
            line.starts_with(b"<svg width=\"") && line.ends_with(b" xmlns=\"http://www.w3.org/2000/svg\">")
        },
    };
    /// A model file.
    pub const GGUF: Self = Self { name: "a GGUF file", is_one: |head| head.starts_with(b"GGUF") };
}

/// Files that a command reads, each with a name for people. No output may replace them.
pub type InputFiles<'a> = &'a [(&'a str, &'a Path)];

/// An output file being written. Dropped before [`OutputFile::finish`], no file is left or changed.
#[derive(Debug)]
pub struct OutputFile {
    kind: Kind,
    /// Bytes since pages left the page cache.
    cached_bytes: usize,
}

#[derive(Debug)]
enum Kind {
    /// A temporary file, the name that it will get, and the kind of file that it may replace there.
    Renamed { file: BufWriter<NamedTempFile>, target: PathBuf, replaces: OutputKind },
    /// Something that takes bytes at once, such as a pipe.
    Direct { file: BufWriter<File>, is_file: bool },
}

/// The kind of thing at a path, links followed.
#[derive(Debug, PartialEq, Eq)]
enum PathKind {
    /// A regular file by this name, with these permissions; or none yet.
    File { target: PathBuf, permissions: Option<Permissions> },
    /// A device, pipe or socket.
    Special { path: PathBuf, is_pipe: bool },
    /// An open descriptor of this process.
    Descriptor { path: PathBuf, number: u32 },
}

impl OutputFile {
    /// Begins an output file. On a pipe it waits for a reader.
    ///
    /// # Errors
    /// The system's, without the temporary name; and a folder or a file of another kind at this path.
    pub fn create(path: &Path, kind: OutputKind) -> io::Result<Self> {
        let direct = |file: File| {
            let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
            Self::of(Kind::Direct { file: BufWriter::new(file), is_file })
        };
        match place(path)? {
            PathKind::File { target, permissions } => {
                replaceable(&target, kind, &[])?;
                let file = BufWriter::new(temporary(&target, permissions)?);
                Ok(Self::of(Kind::Renamed { file, target, replaces: kind }))
            }
            PathKind::Special { path, .. } => OpenOptions::new().write(true).open(path).map(direct),
            PathKind::Descriptor { number: 1, .. } => {
                io::stdout().flush()?;
                Ok(direct(files::standard_output()?))
            }
            PathKind::Descriptor { number: 2, .. } => Ok(direct(files::standard_error()?)),
            PathKind::Descriptor { path, .. } => OpenOptions::new().append(true).open(path).map(direct),
        }
    }

    fn of(kind: Kind) -> Self {
        Self { kind, cached_bytes: 0 }
    }

    /// Flushes the bytes written so far, and drops them from the page cache.
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

    /// The underlying file, for other means of writing from its beginning; `None` for a pipe and the like.
    ///
    /// All bytes must be written before [`OutputFile::finish`].
    pub fn as_file(&self) -> Option<&File> {
        match &self.kind {
            Kind::Renamed { file, .. } => Some(file.get_ref().as_file()),
            Kind::Direct { .. } => None,
        }
    }

    /// Ends the file: all bytes are on the disk, and a file has its name.
    ///
    /// # Errors
    /// The system's, and a file of another kind that appeared at this path meanwhile; the temporary file is gone then.
    pub fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        match self.kind {
            Kind::Renamed { file, target, replaces } => {
                let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
                file.as_file().sync_all()?;
                page_cache::forget(file.as_file());
                replaceable(&target, replaces, &[])?;
                file.persist(target).map_err(|error| error.error)?;
                Ok(())
            }
            Kind::Direct { file, is_file } => {
                if is_file {
                    file.get_ref().sync_all()
                } else {
                    Ok(())
                }
            }
        }
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match &mut self.kind {
            Kind::Renamed { file, .. } => file.write(bytes),
            Kind::Direct { file, .. } => file.write(bytes),
        };
        let written = written.map_err(explained)?;
        self.cached_bytes += written;
        if self.cached_bytes >= CACHED_BYTES_MAX {
            self.uncache().map_err(explained)?;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = match &mut self.kind {
            Kind::Renamed { file, .. } => file.flush(),
            Kind::Direct { file, .. } => file.flush(),
        };
        flushed.map_err(explained)
    }
}

/// An error of writing, with a remedy where the system's message has none.
fn explained(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::FileTooLarge => {
            let why =
                "it is larger than the limit on the size of files (`ulimit -f`) allows; raise the limit";
            io::Error::new(error.kind(), why)
        }
        _ => error,
    }
}

/// Writes a whole output file.
///
/// # Errors
/// As [`OutputFile::create`] and [`OutputFile::finish`].
pub fn write(path: &Path, kind: OutputKind, bytes: &[u8]) -> io::Result<()> {
    let mut file = OutputFile::create(path, kind)?;
    file.write_all(bytes)?;
    file.finish()
}

/// Checks, before the work, that an output file can be written by a command with these inputs.
///
/// It changes nothing and waits for no pipe.
///
/// # Errors
/// As [`OutputFile::create`]; and an input at this path.
pub fn writable(path: &Path, kind: OutputKind, inputs: InputFiles<'_>) -> io::Result<()> {
    match place(path)? {
        PathKind::File { target, permissions } => {
            replaceable(&target, kind, inputs)?;
            temporary(&target, permissions).map(drop)
        }
        PathKind::Special { is_pipe: true, .. } | PathKind::Descriptor { .. } => Ok(()),
        PathKind::Special { path, .. } => OpenOptions::new().write(true).open(path).map(drop),
    }
}

/// Whether the path is a device, a pipe, a socket or a descriptor, beside which no other file can stand.
pub fn is_special(path: &Path) -> bool {
    matches!(place(path), Ok(PathKind::Special { .. } | PathKind::Descriptor { .. }))
}

/// Moves a complete file to the name `to`, with the checks of an output file.
///
/// # Errors
/// As [`OutputFile::create`]; `from` is still there then.
pub fn deliver(from: &Path, to: &Path, kind: OutputKind) -> io::Result<()> {
    if let PathKind::File { target, permissions } = place(to)? {
        replaceable(&target, kind, &[])?;
        if let Some(permissions) = permissions {
            fs::set_permissions(from, permissions)?;
        }
        match fs::rename(from, target) {
            // a link led to another disk
            Err(error) if error.kind() == ErrorKind::CrossesDevices => {}
            done => return done,
        }
    }
    let mut file = OutputFile::create(to, kind)?;
    io::copy(&mut File::open(from)?, &mut file)?;
    file.finish()?;
    fs::remove_file(from)
}

/// Follows links to the place where an output file's bytes go.
fn place(path: &Path) -> io::Result<PathKind> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let folder = folder_of(&path);
        if let Some(number) = files::descriptor(&path) {
            return Ok(PathKind::Descriptor { path, number });
        }
        let metadata = match fs::symlink_metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(PathKind::File { target: path, permissions: None });
            }
            Err(error) => return Err(error),
        };
        let kind = metadata.file_type();
        if kind.is_symlink() {
            path = folder.join(fs::read_link(&path)?);
        } else if kind.is_dir() {
            return Err(io::Error::new(ErrorKind::IsADirectory, "it is a folder; name a file inside it"));
        } else if kind.is_file() {
            return Ok(PathKind::File { target: path, permissions: Some(metadata.permissions()) });
        } else {
            return Ok(PathKind::Special { path, is_pipe: files::is_pipe(kind) });
        }
    }
    Err(io::Error::other("its symbolic links go round in a circle"))
}

/// Refuses a target that this output must not replace: an input, or a file of another kind.
fn replaceable(target: &Path, kind: OutputKind, inputs: InputFiles<'_>) -> io::Result<()> {
    let refused = |why: String| Err(io::Error::new(ErrorKind::AlreadyExists, why));
    if let Some((name, _)) = inputs.iter().find(|(_, input)| same_file(target, input)) {
        return refused(format!("it is {name}; name another file"));
    }
    let mut head = Vec::new();
    match page_cache::open(target) {
        Ok(file) => {
            (&file).take(HEAD_BYTES).read_to_end(&mut head)?;
            page_cache::forget(&file);
        }
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if head.is_empty() || (kind.is_one)(&head) {
        return Ok(());
    }
    refused(format!(
        "the file that is there is not {}, and would be lost; name another file, or remove that one",
        kind.name
    ))
}

/// Whether two paths lead to one file, under whatever names. The file need not exist: links to it are followed.
fn same_file(a: &Path, b: &Path) -> bool {
    match (files::path_id(a), files::path_id(b)) {
        (Ok(a), Ok(b)) => a == b,
        (Err(_), Err(_)) => {
            let whole = |path: &Path| {
                let PathKind::File { target, .. } = place(path).ok()? else { return None };
                Some((folder_of(&target).canonicalize().ok()?, target.file_name()?.to_owned()))
            };
            whole(a).is_some_and(|a| whole(b) == Some(a))
        }
        _ => false,
    }
}

/// A file beside `target` under a temporary name, with these permissions or the default ones.
fn temporary(target: &Path, permissions: Option<Permissions>) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".flashplan-").suffix(".tmp");
    if let Some(shared) = files::new_file_permissions() {
        builder.permissions(shared);
    }
    let file = builder
        .tempfile_in(folder_of(target))
        .map_err(|error| io::Error::new(error.kind(), refusal(folder_of(target), &error)))?;
    if let Some(permissions) = permissions {
        file.as_file().set_permissions(permissions)?;
    }
    Ok(file)
}

/// Why no file can be created in a folder, and what to do.
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
