//! A folder's model as a GGUF file: refused before anything is written, or written and believed after a check.

use std::fs::Permissions;
use std::io::{self, BufWriter, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use flashplan::internals::model::gguf::Gguf;
use flashplan::internals::model::source::SourceModel;
use kernels::Format;
use tempfile::NamedTempFile;

use crate::config::Config;
use crate::error::{FolderError, quote};
use crate::families::{self, Family};
use crate::folder::{Folder, SMALL_MAX};
use crate::index::Weights;
use crate::keys::{ALIGNMENT, Keys};
use crate::recipe::{Content, Recipe};
use crate::tokenizer;

/// Bytes of the weights between two looks at whether to stop.
const HASHED_AT_ONCE: usize = 256 << 20;

/// The keys of the format that weights were quantised to, and of what that changed.
const QUANTISED: &str = "flashplan.quantised";
const CHANGE: &str = "flashplan.perplexity_change_fraction";

/// The key of the folder's hash, by which a file is known again.
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

    /// The format of a weight: embedding and head, which lose most, have no fewer than 8 bits, and rows that are not whole blocks
    /// take the next finer format.
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
    /// What the user should know of the model.
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
    /// Reads a folder, and has the reader of GGUF files check the file that would be made of it, beside which there must be room for
    /// a small file that is gone again.
    ///
    /// # Errors
    /// Everything that [`FolderError`] names.
    pub fn new(path: &Path, quantisation: Option<Quantisation>, beside: &Path) -> Result<Self, FolderError> {
        let folder = Folder::new(path);
        const NAME: &str = "config.json";
        let bytes = folder.read(NAME, SMALL_MAX)?;
        let bytes = bytes.ok_or_else(|| FolderError::Lacks { path: path.to_owned(), what: NAME })?;
        let mut config = Config::read(&bytes, &folder.file(NAME))?;
        let family = families::of(&config)?;
        family.complete(&mut config);
        let mut keys = family.keys(&config)?;
        let weights = Weights::open(&folder)?;
        let mut recipes = family.recipes(&config, &weights)?;
        let embedding =
            recipes.iter().find(|recipe| recipe.name == "token_embd.weight").map(|recipe| recipe.shape[0]);
        let vocabulary = config.size("vocab_size")?;
        if embedding != Some(vocabulary) {
            let fact = match embedding {
                None => "the weights have no token embedding".to_owned(),
                Some(rows) => {
                    format!("the vocabulary has {vocabulary} tokens, and the embedding has {rows} rows")
                }
            };
            return Err(FolderError::damaged(config.path(), fact));
        }
        let remarks = tokenizer::keys(&folder, &config, family, &mut keys)?;
        if let Some(quantisation) = quantisation {
            for recipe in &mut recipes {
                let is_weight = matches!(recipe.content, Content::Rows { .. })
                    && !families::is_exact(&recipe.name, &recipe.shape);
                if is_weight {
                    recipe.format = quantisation.format(recipe);
                }
            }
            keys.text(QUANTISED, quantisation.name());
            keys.number(CHANGE, 0.0); // of which the bytes are exchanged when it is known
        }
        let name =
            path.canonicalize().ok().and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
        keys.text("general.name", &name.unwrap_or_else(|| "model".to_owned()));
        keys.whole("general.quantization_version", 2);
        let (folder, header, places) = (path.to_owned(), Vec::new(), Vec::new());
        let mut made = Self { folder, weights, family, recipes, keys, header, places, bytes: 0, remarks };
        made.lay_out();
        made.check(beside)?;
        Ok(made)
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

    /// The formats of the weights, those of most bytes first.
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

    /// The hash of the folder's weights and of all that the file says beside them, by which the file is known again.
    ///
    /// # Errors
    /// [`FolderError::Stopped`].
    pub fn identify(&mut self, stop: &dyn Fn() -> bool) -> Result<String, FolderError> {
        let mut hasher = blake3::Hasher::new();
        for file in self.weights.files() {
            for bytes in file.chunks(HASHED_AT_ONCE) {
                if stop() {
                    return Err(FolderError::Stopped);
                }
                hasher.update(bytes);
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
        let mut file = self.temporary(beside)?;
        let path = file.path().to_owned();
        let mut write = || -> io::Result<()> {
            file.as_file().set_len(self.bytes)?;
            file.write_all(&self.header)?;
            for (recipe, place) in self.recipes.iter().zip(&self.places) {
                if matches!(recipe.content, Content::Values(_)) {
                    file.seek(SeekFrom::Start(*place))?;
                    recipe.write(&self.weights, &mut file, &|_| true)?;
                }
            }
            file.flush()
        };
        write().map_err(FolderError::io("write", &path))?;
        self.believe(&path)
    }

    fn temporary(&self, beside: &Path) -> Result<NamedTempFile, FolderError> {
        let mode = Permissions::from_mode(0o666); // less what the user's mask takes, as of any other file
        tempfile::Builder::new()
            .prefix(".")
            .suffix(".gguf.part")
            .permissions(mode)
            .tempfile_in(beside)
            .map_err(FolderError::io("write into", beside))
    }

    /// Has the reader of GGUF check a file.
    fn believe(&self, file: &Path) -> Result<(), FolderError> {
        let refused = |error| FolderError::Refused { path: self.folder.clone(), error: Box::new(error) };
        let source = SourceModel::open(file).map_err(refused)?;
        let tokenizer = source
            .tokenizer_data()
            .and_then(flashplan::internals::model::tokenizer::TokenizerData::into_tokenizer);
        tokenizer.map(drop).map_err(|error| refused(error.into()))
    }

    /// Writes the file, under another name until it is complete and its reader has accepted it. `go_on` is told the bytes written so far;
    /// `judge` is shown the complete file, and may say by what fraction its perplexity differs from the folder's.
    ///
    /// # Errors
    /// Those of the disk, a weight that is not finite, those of `judge`, and [`FolderError::Stopped`].
    pub fn write(
        &mut self,
        to: &Path,
        go_on: &dyn Fn(u64) -> bool,
        judge: &mut dyn FnMut(&Path) -> Result<Option<f64>, FolderError>,
    ) -> Result<(), FolderError> {
        let beside = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let temporary = self.temporary(beside)?;
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::Interrupted => FolderError::Stopped,
            _ => FolderError::io("write", to)(error),
        };
        {
            let mut file = BufWriter::with_capacity(1 << 20, temporary.as_file());
            file.write_all(&self.header).map_err(failed)?;
            for (recipe, place) in self.recipes.iter().zip(&self.places) {
                let of_tensor = |bytes| go_on(place + bytes);
                if recipe.write(&self.weights, &mut file, &of_tensor).map_err(failed)?.is_none() {
                    let fact = format!(
                        "a weight of {} is not finite, or too large for {}",
                        quote(&recipe.name),
                        recipe.format
                    );
                    return Err(FolderError::damaged(&self.folder, fact));
                }
                let bytes = recipe.bytes();
                let padding = bytes.next_multiple_of(ALIGNMENT) - bytes;
                file.write_all(&vec![0; padding as usize]).map_err(failed)?;
            }
            file.flush().map_err(failed)?;
        }
        self.believe(temporary.path())?;
        if let Some(change) = judge(temporary.path())? {
            self.keys.number(CHANGE, change);
            self.lay_out();
            let mut file = temporary.as_file();
            file.seek(SeekFrom::Start(0)).and_then(|_| file.write_all(&self.header)).map_err(failed)?;
        }
        temporary.as_file().sync_all().map_err(failed)?;
        temporary.persist(to).map_err(|error| failed(error.error))?;
        Ok(())
    }
}
