//! A model described by its header alone: `profile --header`.
//!
//! Shapes, formats and bytes are all in the header, so a plan can be made before a model is downloaded. Of a model on the hub the
//! header is fetched by ranges, a few megabytes, into a file with a hole where the weights are.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use ::hub::{Hub, Kind, Name};
use flashplan::internals::container::{Contents, LevelSource, describe_index};
use flashplan::internals::model::gguf::TensorInfo;
use plans::model::LevelKind;
use tempfile::TempDir;

use super::instant::Found;
use super::order::NeuronOrder;
use super::{
    Context, MODEL, Menu, ModelOptions, Source, StoredLevel, Summary, Windows, anyhow, bail, container_file,
    levels_of, name_of, open, replaced,
};

/// Bytes that are fetched first; each further fetch doubles them.
const FIRST_BYTES: u64 = 1 << 20;
/// Longest header: ten times the longest vocabularies.
const HEADER_BYTES_MAX: u64 = 256 << 20;

/// Writes `model.toml` from a model's header. It is for `plan`: `run` needs an index, too.
///
/// # Errors
/// A fault of the header, a model that is not read in place, and the hub's errors.
pub fn describe(context: &Context, source: &Source, options: &ModelOptions) -> anyhow::Result<Summary> {
    let mut options = options.clone();
    let (_folder, from) = match source {
        Source::Path(_) => (None, String::new()),
        Source::Hub(name) => {
            let (folder, path) = fetched(context, name)?;
            options.model = path;
            (Some(folder), format!(" of {name}"))
        }
    };
    let (path, source) = open(&options)?;
    let tokenizer = source.tokenizer_data().map_err(|error| anyhow!("{}: {error}", path.display()))?;
    let name = name_of(&options, &path)?;
    let menu = Menu::dense(&source, None)?;
    if !menu.index {
        bail!(
            "{name} stores down by neurons, so that its container is known only when it was made: profile it without --header"
        );
    }
    let config = source.config();
    let order = NeuronOrder::as_stored(config.experts(), config.ffn_width());
    let orders = vec![order.sources; config.layers()];
    let level = LevelSource {
        name: "dense".to_owned(),
        kind: LevelKind::Dense,
        set: None,
        thresholds: None,
        always_on: vec![0; config.layers()],
    };
    let fingerprint = source.gguf().files().fold(blake3::Hasher::new(), |mut hasher, (_, start, file)| {
        let inside = |tensor: &&TensorInfo| (start..start + file.len()).contains(&(tensor.offset as usize));
        let first = source.gguf().tensors().iter().filter(inside).map(|tensor| tensor.offset as usize).min();
        hasher.update(&file[..first.map_or(file.len(), |first| first - start)]);
        hasher
    });
    let fingerprint = fingerprint.finalize().to_hex().to_string();
    let container_file = container_file(&name, true);
    // a profile that was measured stays
    replaced(context, &options, &source, &context.storage.join(&container_file), &fingerprint)?;
    let written = describe_index(Contents {
        name: &name,
        source_fingerprint: &fingerprint,
        source: &source,
        tokenizer,
        down_format: None,
        slice_neurons: menu.slice_neurons,
        orders: &orders,
        sets: &[],
        levels: std::slice::from_ref(&level),
    })?;
    let found = Found {
        name: &name,
        fingerprint: &fingerprint,
        source: &source,
        menu: &menu,
        container_file,
        written: &written,
        stored: vec![StoredLevel { resident_bytes: 0, always_on: level.always_on.clone() }],
        held_out: &Windows::default(),
        losses: Vec::new(),
        fired: Vec::new(),
        note: format!(
            "Priors in place of measurements: `profile --header` read the header{from} alone. The perplexity is not known, and stands as 1."
        ),
    };
    let model = found.with_priors()?;
    let model_toml = context.out.join(MODEL);
    plans::file::write(&model, &model_toml)?;
    Ok(Summary {
        name,
        model_toml,
        container: path,
        perplexity_dense: model.dense.perplexity,
        levels: levels_of(&model),
        kv_formats: Vec::new(),
    })
}

/// The headers of a model on the hub, each in a file that is as long as the hub's; the path of the first.
fn fetched(context: &Context, name: &Name) -> anyhow::Result<(TempDir, PathBuf)> {
    let hub = Hub::from_environment(|name| std::env::var(name).ok())?;
    let model = hub.find(name, &mut || context.stopped().is_ok())?;
    if model.choice.kind != Kind::Gguf {
        bail!(
            "{name} has no GGUF files, and the header of a folder says too little: profile it without --header"
        );
    }
    let folder = tempfile::tempdir_in(&context.out)?;
    let mut first = None;
    for file in &model.choice.files {
        let path = folder.path().join(Path::new(&file.path).file_name().unwrap_or_default());
        let hollow = File::create(&path)?;
        hollow.set_len(file.bytes)?;
        let (mut bytes, mut wanted) = (Vec::new(), FIRST_BYTES);
        loop {
            let wanted_bytes = wanted.min(file.bytes);
            bytes.extend(
                hub.read(&model, file, bytes.len() as u64..wanted_bytes, &mut || context.stopped().is_ok())?,
            );
            match header_bytes(&bytes) {
                Ok(Some(end)) => {
                    bytes.truncate(end.max(1));
                    break;
                }
                Ok(None) if wanted_bytes < file.bytes && wanted < HEADER_BYTES_MAX => wanted *= 2,
                _ => {
                    bail!("{} of {name} has no header of a GGUF file: choose another of its files", file.path)
                }
            }
        }
        platform::file::write_all_at(&hollow, &bytes, 0)?;
        first.get_or_insert(path);
    }
    let first = first.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    Ok((folder, first))
}

/// The length of a GGUF file's header, of the file's beginning; `None` if it goes on behind that.
///
/// # Errors
/// If the bytes begin no GGUF file.
fn header_bytes(bytes: &[u8]) -> anyhow::Result<Option<usize>> {
    let mut at = Reader { bytes, at: 0 };
    let magic = at.take(4);
    if magic.is_some_and(|magic| magic != b"GGUF" && magic != b"PWRI") {
        bail!("no GGUF file");
    }
    Ok(at.header())
}

/// The beginning of a file, and how far it was read.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Skips what follows the magic number; the position behind it.
    fn header(&mut self) -> Option<usize> {
        self.take(4)?; // version
        let (tensors, keys) = (self.number(8)?, self.number(8)?);
        for _ in 0..keys {
            self.text()?;
            let kind = self.number(4)?;
            self.value(kind)?;
        }
        for _ in 0..tensors {
            self.text()?;
            let dimensions = self.number(4)?;
            self.take(usize::try_from(dimensions).ok()?.checked_mul(8)?.checked_add(12)?)?;
        }
        Some(self.at)
    }

    fn value(&mut self, kind: u64) -> Option<()> {
        match kind {
            8 => self.text(),
            9 => {
                let (kind, count) = (self.number(4)?, self.number(8)?);
                match width(kind) {
                    Some(width) => self.take(usize::try_from(count).ok()?.checked_mul(width)?).map(drop),
                    None => (0..count).try_for_each(|_| self.value(kind)),
                }
            }
            _ => self.take(width(kind)?).map(drop),
        }
    }

    fn text(&mut self) -> Option<()> {
        let length = self.number(8)?;
        self.take(usize::try_from(length).ok()?).map(drop)
    }

    fn number(&mut self, bytes: usize) -> Option<u64> {
        let mut number = [0; 8];
        number[..bytes].copy_from_slice(self.take(bytes)?);
        Some(u64::from_le_bytes(number))
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(count)?)?;
        self.at += count;
        Some(taken)
    }
}

/// Bytes of a value of one of GGUF's types; `None` for texts, arrays and unknown ones.
fn width(kind: u64) -> Option<usize> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use flashplan::internals::model::source::SourceModel;

    use super::*;

    #[test]
    fn a_header_ends_before_the_first_weight() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/models/oxide-moe.gguf");
        let bytes = std::fs::read(&path).unwrap();
        let source = SourceModel::open(&path).unwrap();
        let first = source.gguf().tensors().iter().map(|tensor| tensor.offset as usize).min().unwrap();
        let end = header_bytes(&bytes).unwrap().unwrap();
        assert!((first - 31..=first).contains(&end), "{end} before {first}, with padding");
        for length in [0, 3, 4, 8, 100, end - 1] {
            assert_eq!(header_bytes(&bytes[..length]).unwrap(), None, "{length}");
        }
        assert_eq!(header_bytes(&bytes[..end]).unwrap(), Some(end));
        assert!(header_bytes(b"PK\x03\x04 and more").is_err());
    }
}
