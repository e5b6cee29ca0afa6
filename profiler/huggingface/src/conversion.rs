//! A folder's model as a GGUF file: refused before anything is written, or written and believed after a check.

use std::fs::{self, OpenOptions};
use std::io::{self, BufWriter, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use flashplan::internals::model::gguf::Gguf;
use flashplan::internals::model::source::SourceModel;
use kernels::Format;
use tempfile::{NamedTempFile, TempPath};

use crate::config::Config;
use crate::error::{FolderError, Problems, quote};
use crate::families::{self, Family};
use crate::folder::{Folder, Opened, SMALL_MAX};
use crate::index::Weights;
use crate::keys::{ALIGNMENT, Keys};
use crate::recipe::{Content, Failure, Recipe};
use crate::tokenizer;

/// Bytes of the weights that are hashed at once.
const HASHED_AT_ONCE: u64 = 1 << 20;

/// The keys of the format that weights were quantised to, and of what that changed.
const QUANTISED: &str = "flashplan.quantised";
const CHANGE: &str = "flashplan.perplexity_change_fraction";

/// The key of the folder's hash, which identifies a file.
const MADE_OF: &str = "flashplan.folder";

/// A format that weights are quantised to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantisation {
    /// Half precision.
    F16,
    /// 8.5 bits a weight.
    Q8_0,
    /// 4.5 bits a weight.
    Q4_0,
    /// 4.5 bits a weight, with a minimum for each 32.
    Q4K,
}

impl Quantisation {
    /// The name, which is a part of file names, too.
    pub fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
            Self::Q4K => "q4_k",
        }
    }

    /// The format of a weight. Embedding and head lose most, and have at least 8 bits. Rows without whole blocks take the next finer format.
    fn format(self, recipe: &Recipe) -> Format {
        let wanted = match self {
            Self::F16 => Format::F16,
            Self::Q8_0 => Format::Q8_0,
            Self::Q4_0 | Self::Q4K if matches!(&*recipe.name, "token_embd.weight" | "output.weight") => {
                Format::Q8_0
            }
            Self::Q4_0 => Format::Q4_0,
            Self::Q4K => Format::Q4K,
        };
        let whole = |format: &Format| recipe.columns().is_multiple_of(format.block_values() as u64);
        [wanted, Format::Q8_0, Format::F16].into_iter().find(whole).unwrap_or(Format::F16)
    }
}

/// A model that can be written: everything is read and checked.
#[derive(Debug)]
pub struct Conversion {
    folder: PathBuf,
    weights: Weights,
    family: &'static Family,
    recipes: Vec<Recipe>,
    keys: Keys,
    header: Vec<u8>,
    /// Where each recipe's tensor lies in the file.
    places: Vec<u64>,
    bytes: u64,
    /// Sentences on the model that its user should know.
    pub remarks: Vec<String>,
}

/// The format that a file's weights were quantised to here, and the change of its perplexity as a fraction.
pub fn quantised<'g>(gguf: &'g Gguf<'_>) -> Option<(&'g str, f64)> {
    let name = gguf.text(QUANTISED).ok().flatten()?;
    Some((name, gguf.number(CHANGE).ok().flatten()?.into()))
}

/// The hash of the folder that a GGUF file was made of; `None`: it was not made here.
pub fn made_of(path: &Path) -> Option<String> {
    let gguf = Gguf::open(path).ok()?;
    gguf.text(MADE_OF).ok().flatten().map(str::to_owned)
}

impl Conversion {
    /// Reads a folder, and checks the header of its GGUF file with GGUF's own reader. That takes a small temporary file in `beside`.
    ///
    /// # Errors
    /// Any [`FolderError`]; all faults of the folder are reported together.
    pub fn new(path: &Path, quantisation: Option<Quantisation>, beside: &Path) -> Result<Self, FolderError> {
        const NAME: &str = "config.json";
        let folder = Folder::new(path);
        let bytes = folder.read(NAME, SMALL_MAX)?;
        let bytes = bytes.ok_or_else(|| FolderError::Lacks { path: path.to_owned(), what: NAME })?;
        let mut config = Config::read(&bytes, &folder.file(NAME))?;

        let mut problems = Problems::default();
        let family = problems.note(families::of(&config));
        if let Some(family) = family {
            family.complete(&mut config);
        }
        let mut keys = family.and_then(|family| problems.note(family.keys(&config)));
        let weights = problems.note(Weights::open(&folder));
        if let (Some(family), Some(weights), Some(keys)) = (family, &weights, &mut keys) {
            problems.note(family.add_keys_of(&config, weights, keys));
        }
        let told = families::remarks(family, &config, weights.as_ref());
        let mut remarks = problems.note(told).unwrap_or_default();
        let recipes = family.zip(weights.as_ref()).map(|(family, weights)| {
            let before = problems.count();
            let recipes = family.recipes(&config, weights, &mut problems);
            if problems.count() == before {
                problems.note(embeds_all(&config, &recipes));
            }
            recipes
        });
        let mut of_tokenizer = Keys::default();
        let before = problems.count();
        let told = problems.note(tokenizer::keys(&folder, &config, family, &mut of_tokenizer));
        remarks.extend(told.into_iter().flatten());
        let (Some(family), Some(mut keys), Some(weights), Some(recipes)) = (family, keys, weights, recipes)
        else {
            return Err(problems.finish().err().unwrap_or(FolderError::Stopped)); // what is missing was noted
        };
        if problems.count() == before {
            keys.extend(of_tokenizer);
        } else if let Ok(vocabulary) = config.size("vocab_size") {
            // for the reader, which asks the tokenizer for it otherwise
            keys.whole(&format!("{}.vocab_size", family.name), vocabulary as u32);
        }
        let name =
            path.canonicalize().ok().and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
        keys.text("general.name", &name.unwrap_or_else(|| "model".to_owned()));
        keys.whole("general.quantization_version", 2);
        let (folder, header, places) = (path.to_owned(), Vec::new(), Vec::new());
        let mut made = Self { folder, weights, family, recipes, keys, header, places, bytes: 0, remarks };
        if let Some(quantisation) = quantisation {
            made.quantise(quantisation);
        }
        made.lay_out();
        // of a model of which parts are refused, the reader would miss them
        if before == 0 {
            problems.note(made.check(beside));
        }
        problems.finish()?;
        Ok(made)
    }

    /// Has the weights in another format.
    fn quantise(&mut self, quantisation: Quantisation) {
        for recipe in &mut self.recipes {
            let is_weight = matches!(recipe.content, Content::Rows { .. })
                && !families::is_exact(&recipe.name, &recipe.shape)
                && !families::keeps_format(&recipe.name);
            if is_weight {
                recipe.format = quantisation.format(recipe);
            }
        }
        self.keys.text(QUANTISED, quantisation.name());
        self.keys.number(CHANGE, 0.0); // of which the bytes are exchanged when it is known
    }

    fn lay_out(&mut self) {
        let tensors: Vec<_> = self
            .recipes
            .iter()
            .map(|recipe| {
                let dims = recipe.shape.iter().rev().copied().collect();
                let kind = recipe.format.ggml_type().unwrap_or_default(); // all of them have a number
                (recipe.name.as_str(), dims, kind, recipe.bytes())
            })
            .collect();
        (self.header, self.places, self.bytes) = self.keys.header(&tensors);
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The formats of the weights, by falling number of bytes.
    pub fn formats(&self) -> Vec<Format> {
        let mut formats: Vec<(Format, u64)> = Vec::new();
        for recipe in &self.recipes {
            match formats.iter_mut().find(|(format, _)| *format == recipe.format) {
                Some((_, bytes)) => *bytes += recipe.bytes(),
                None => formats.push((recipe.format, recipe.bytes())),
            }
        }
        formats.sort_by_key(|&(_, bytes)| std::cmp::Reverse(bytes));
        formats.into_iter().map(|(format, _)| format).collect()
    }

    /// The architecture's name in GGUF.
    pub fn architecture(&self) -> &'static str {
        self.family.name
    }

    /// The hash of the folder's weights and of the file's keys, which identifies the file.
    ///
    /// # Errors
    /// The disk's, and [`FolderError::Stopped`].
    pub fn identify(&mut self, stop: &dyn Fn() -> bool) -> Result<String, FolderError> {
        let mut hasher = blake3::Hasher::new();
        let mut bytes = vec![0; HASHED_AT_ONCE as usize];
        for file in self.weights.files() {
            for place in (0..file.bytes).step_by(bytes.len()) {
                if stop() {
                    return Err(FolderError::Stopped);
                }
                let part = &mut bytes[..HASHED_AT_ONCE.min(file.bytes - place) as usize];
                file.read_at(place, part)?;
                hasher.update(part);
            }
        }
        hasher.update(&self.header);
        let hash = hasher.finalize().to_hex().to_string();
        self.keys.text(MADE_OF, &hash);
        self.lay_out();
        Ok(hash)
    }

    /// Has the reader of GGUF check the header, over a file of holes.
    fn check(&self, beside: &Path) -> Result<(), FolderError> {
        let mut file = temporary(&beside.join("model.gguf"))?;
        let path = file.path().to_owned();
        let failed = FolderError::io("write", &path);
        let mut write = || -> io::Result<()> {
            file.as_file().set_len(self.bytes)?;
            file.write_all(&self.header)?;
            file.flush()
        };
        write().map_err(failed)?;
        for (recipe, place) in self.recipes.iter().zip(&self.places) {
            if matches!(recipe.content, Content::Values(_)) {
                file.seek(SeekFrom::Start(*place)).map_err(FolderError::io("write", &path))?;
                self.written(recipe, &mut file, &|_| true, &path)?;
            }
        }
        self.believe(&path)
    }

    /// Writes a tensor's bytes.
    fn written(
        &self,
        recipe: &Recipe,
        to: &mut dyn io::Write,
        go_on: &dyn Fn(u64) -> bool,
        path: &Path,
    ) -> Result<(), FolderError> {
        recipe.write(&self.weights, to, go_on).map_err(|failure| match failure {
            Failure::Read(error) => error,
            Failure::Write(error) => FolderError::io("write", path)(error),
            Failure::NotFinite => {
                let fact = format!(
                    "a weight of {} is not finite, or too large for {}",
                    quote(&recipe.name),
                    recipe.format
                );
                FolderError::damaged(&self.folder, fact)
            }
        })
    }

    /// Has the reader of GGUF check a file.
    fn believe(&self, file: &Path) -> Result<(), FolderError> {
        let refused = |error| FolderError::Refused { path: self.folder.clone(), error: Box::new(error) };
        let source = SourceModel::open(file).map_err(refused)?;
        if !self.keys.has("tokenizer.ggml.model") {
            return Ok(()); // it is refused already
        }
        let tokenizer = source
            .tokenizer_data()
            .and_then(flashplan::internals::model::tokenizer::TokenizerData::into_tokenizer);
        tokenizer.map(drop).map_err(|error| refused(error.into()))
    }

    /// Writes the complete file under a temporary name beside `to`, and checks it with its reader. It is removed when dropped.
    ///
    /// `go_on` gets the bytes written so far, and returns whether to go on.
    ///
    /// # Errors
    /// The disk's, a weight that is not finite, a folder that changed meanwhile, and [`FolderError::Stopped`].
    pub fn write_aside(&self, to: &Path, go_on: &dyn Fn(u64) -> bool) -> Result<NamedTempFile, FolderError> {
        let temporary = temporary(to)?;
        let failed = |error| FolderError::io("write", to)(error);
        {
            let mut file = BufWriter::with_capacity(1 << 20, temporary.as_file());
            file.write_all(&self.header).map_err(failed)?;
            for (recipe, place) in self.recipes.iter().zip(&self.places) {
                self.written(recipe, &mut file, &|bytes| go_on(place + bytes), to)?;
                let bytes = recipe.bytes();
                let padding = bytes.next_multiple_of(ALIGNMENT) - bytes;
                file.write_all(&vec![0; padding as usize]).map_err(failed)?;
            }
            file.flush().map_err(failed)?;
        }
        self.weights.files().iter().try_for_each(Opened::is_unchanged)?;
        self.believe(temporary.path())?;
        Ok(temporary)
    }

    /// Writes the file, under another name until it is complete and its reader has accepted it.
    ///
    /// `go_on` gets the bytes written so far, and returns whether to go on. `judge` gets the complete file, and may return the change of
    /// perplexity against the folder, as a fraction. An existing file is replaced only with `replace`.
    ///
    /// # Errors
    /// As [`Conversion::write_aside`] and `judge`, and [`FolderError::Taken`].
    pub fn write(
        &mut self,
        to: &Path,
        replace: bool,
        go_on: &dyn Fn(u64) -> bool,
        judge: &mut dyn FnMut(&Path) -> Result<Option<f64>, FolderError>,
    ) -> Result<(), FolderError> {
        let failed = |error| FolderError::io("write", to)(error);
        let temporary = self.write_aside(to, go_on)?;
        if let Some(change) = judge(temporary.path())? {
            self.keys.number(CHANGE, change);
            self.lay_out();
            let mut file = temporary.as_file();
            file.seek(SeekFrom::Start(0)).and_then(|_| file.write_all(&self.header)).map_err(failed)?;
        }
        temporary.as_file().sync_all().map_err(failed)?;
        let named = if replace { temporary.persist(to) } else { temporary.persist_noclobber(to) };
        named.map(drop).map_err(|refused| match refused.error.kind() {
            io::ErrorKind::AlreadyExists => FolderError::Taken { path: to.to_owned() },
            _ => failed(refused.error),
        })
    }
}

/// A file that is gone when it is dropped. What an earlier start left behind that was killed goes first; no link is followed.
fn temporary(path: &Path) -> Result<NamedTempFile, FolderError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let part = path.with_file_name(format!(".{name}.part"));
    let new = || -> io::Result<NamedTempFile> {
        match fs::remove_file(&part) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&part)?;
        Ok(NamedTempFile::from_parts(file, TempPath::try_from_path(&part)?))
    };
    new().map_err(FolderError::io("write", &part))
}

/// Requires a row of the embedding for each token.
fn embeds_all(config: &Config, recipes: &[Recipe]) -> Result<(), FolderError> {
    let embedding = recipes.iter().find(|recipe| recipe.name == "token_embd.weight");
    let vocabulary = config.size("vocab_size")?;
    let fact = match embedding.map(|recipe| recipe.shape[0]) {
        Some(rows) if rows == vocabulary => return Ok(()),
        Some(rows) => format!("the vocabulary has {vocabulary} tokens, and the embedding has {rows} rows"),
        None => "the weights have no token embedding".to_owned(),
    };
    Err(FolderError::damaged(config.path(), fact))
}
