//! `--consume-model`: a model that is deleted while its container is written, for disks that cannot hold both.
//!
//! Most of a model is its layers' feed-forward matrices. As soon as the container has a layer, on disk and with its checksums, the layer's
//! bytes in the model's file become a hole. The file itself goes at the end, so a killed profile resumes. A model with holes has other
//! bytes: a note beside it, `<model>.consumed`, has its fingerprint and prevents any other use.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use flashplan::internals::model::gguf::TensorInfo;
use flashplan::internals::model::source::SourceModel;
use plans::output_file::OutputKind;
use platform::file::{name_count, punch_hole};
use serde::{Deserialize, Serialize};

use crate::ProfileError;

/// A model's fingerprint and size before it was consumed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    /// BLAKE3 of all its bytes.
    fingerprint: String,
    bytes: u64,
    /// BLAKE3 of the bytes before the tensors, which stay.
    head: String,
}

/// The note as an output file.
const NOTE: OutputKind = OutputKind {
    name: "a note of --consume-model",
    is_one: |text| serde_json::from_slice::<Note>(text).is_ok(),
};

/// A model whose bytes are freed.
#[derive(Debug)]
pub struct Consumption {
    /// The named file, beside which the note is.
    model: PathBuf,
    /// Each of the model's files, with the bytes of all files before it.
    files: Vec<(PathBuf, usize, File)>,
}

fn note_path(model: &Path) -> PathBuf {
    let mut name = model.file_name().unwrap_or_default().to_owned();
    name.push(".consumed");
    model.with_file_name(name)
}

/// BLAKE3 of the bytes before the tensors of each file.
fn head(source: &SourceModel<'_>) -> String {
    let gguf = source.gguf();
    let mut hasher = blake3::Hasher::new();
    for (_, start, bytes) in gguf.files() {
        let of_file = |tensor: &&TensorInfo| (start..start + bytes.len()).contains(&(tensor.offset as usize));
        let first = gguf.tensors().iter().filter(of_file).map(|tensor| tensor.offset as usize).min();
        hasher.update(&bytes[..first.map_or(bytes.len(), |first| first - start)]);
    }
    hasher.finalize().to_hex().to_string()
}

/// The fingerprint of a partly consumed model; `None` if it is complete.
///
/// # Errors
/// A note about another file, and one that cannot be read.
pub fn noted_fingerprint(model: &Path, source: &SourceModel<'_>) -> anyhow::Result<Option<String>> {
    let path = note_path(model);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => bail!(ProfileError::Io { action: "read", path, source }),
    };
    let note: Option<Note> = serde_json::from_slice(&text).ok();
    match note {
        Some(note) if note.bytes == source.gguf().file_bytes() as u64 && note.head == head(source) => {
            Ok(Some(note.fingerprint))
        }
        _ => bail!(
            "{} is not about {}; if that is a whole model, remove the note",
            path.display(),
            model.display()
        ),
    }
}

/// Checks that the model can be consumed: each of its files has one name, on a file system with holes.
///
/// # Errors
/// The first file that cannot be consumed, with the remedy.
pub fn check(model: &Path, source: &SourceModel<'_>) -> anyhow::Result<()> {
    source.gguf().files().try_for_each(|(path, ..)| check_names(path))?;
    let folder = model.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    let punched = tempfile::tempfile_in(folder).and_then(|mut file| {
        file.write_all(&[1; 1 << 14])?;
        punch_hole(&file, 0, 1 << 14)
    });
    punched.map_err(|error| {
        anyhow!(
            "{} cannot be consumed: its folder does not take bytes back out of a file ({error}); leave \
             --consume-model away",
            model.display()
        )
    })
}

/// Refuses a file with another name, which would show the holes, too.
fn check_names(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    let unreadable = |source| ProfileError::Io { action: "read", path: path.to_owned(), source };
    if fs::symlink_metadata(path).map_err(unreadable)?.is_symlink() {
        bail!(
            "{shown} is a link, and the file that it names would be left with holes: put that file itself into the folder, or leave \
             --consume-model away"
        );
    }
    let names = name_count(path).map_err(unreadable)?;
    if names > 1 {
        bail!(
            "{shown} has {names} names (hard links), and all of them would be left with holes: copy it to a file of its own, remove its \
             other names, or leave --consume-model away"
        );
    }
    Ok(())
}

impl Consumption {
    /// Begins to consume the model: writes the note to the disk.
    ///
    /// # Errors
    /// A model that cannot be written to or has another name, and a note that cannot be written.
    pub fn begin(model: &Path, source: &SourceModel<'_>, fingerprint: &str) -> anyhow::Result<Self> {
        let io = |action, path: &Path, source| ProfileError::Io { action, path: path.to_owned(), source };
        let open = |(path, start, _): (&Path, usize, &[u8])| {
            // a second name may have appeared during the measurement
            check_names(path)?;
            let file = File::options().write(true).open(path).map_err(|e| io("write to", path, e))?;
            Ok((path.to_owned(), start, file))
        };
        let files = source.gguf().files().map(open).collect::<anyhow::Result<Vec<_>>>()?;
        let note = Note {
            fingerprint: fingerprint.to_owned(),
            bytes: source.gguf().file_bytes() as u64,
            head: head(source),
        };
        plans::file::write_bytes(&note_path(model), NOTE, &serde_json::to_vec_pretty(&note)?)
            .context("the model was left as it is")?;
        Ok(Self { model: model.to_owned(), files })
    }

    /// Frees the feed-forward matrices of a layer, which are not read again.
    ///
    /// # Errors
    /// The file system's.
    pub fn layer(&self, source: &SourceModel<'_>, layer: usize) -> io::Result<()> {
        for range in source.feed_forward_ranges(layer) {
            let after = self.files.partition_point(|&(_, start, _)| start <= range.start);
            let (_, start, file) = &self.files[after.saturating_sub(1)];
            punch_hole(file, (range.start - start) as u64, range.len() as u64)?;
        }
        Ok(())
    }

    /// Removes the rest of the model, then the note.
    ///
    /// # Errors
    /// The system's.
    pub fn finish(self) -> Result<(), ProfileError> {
        let files = self.files.into_iter().map(|(path, ..)| path);
        for path in files.chain([note_path(&self.model)]) {
            fs::remove_file(&path).map_err(|source| ProfileError::Io { action: "remove", path, source })?;
        }
        Ok(())
    }
}
