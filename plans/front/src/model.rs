//! The model that the user names, and whether its file is still the one that was profiled.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, bail};
use hub::Name;
use plans::output_file::OutputKind;
use serde::{Deserialize, Serialize};

use crate::machine::slug;

/// A model as it is named on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Model {
    /// A file or folder, its path absolute.
    Path(PathBuf),
    /// A model of the hub.
    Hub(Name),
}

/// The model of a folder, as `source.toml` has it: to find it again, and to see that its file changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SourceFile {
    /// The model as `profile --model` takes it.
    pub(crate) model: String,
    /// Length of the file, in bytes; absent for a folder or a model of the hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    /// Time of the file's last change, in seconds since 1970; absent for a folder or a model of the hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    modified_seconds: Option<i64>,
}

/// The kind of `source.toml`.
const SOURCE: OutputKind =
    OutputKind { name: "a note on a model", is_one: |head| head.starts_with(b"model = ") };

impl Model {
    /// The model of a text: one of the hub if it begins with `hf:`, else a path.
    ///
    /// # Errors
    /// A name that is none, and a path where nothing is.
    pub(crate) fn named(text: &OsStr) -> anyhow::Result<Self> {
        if let Some(name) = text.to_str().filter(|text| text.starts_with(Name::PREFIX)) {
            return Ok(Self::Hub(name.parse()?));
        }
        let path = Path::new(text);
        match path.canonicalize() {
            Ok(path) => Ok(Self::Path(path)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let shown = path.display();
                let hub =
                    text.to_str().filter(|text| format!("{}{text}", Name::PREFIX).parse::<Name>().is_ok());
                let hub = hub.map_or_else(String::new, |text| {
                    format!(", or hf:{text} for a model of Hugging Face's hub")
                });
                bail!("there is no file or folder {shown}; name a GGUF file, a folder{hub}")
            }
            Err(error) => Err(error).with_context(|| format!("cannot open {}", path.display())),
        }
    }

    /// The text that `profile --model` takes.
    pub(crate) fn argument(&self) -> String {
        match self {
            Self::Path(path) => path.display().to_string(),
            Self::Hub(name) => {
                let quantisation = name.quantisation.iter().map(|it| format!(":{it}")).collect::<String>();
                format!("{}{name}{quantisation}", Name::PREFIX)
            }
        }
    }

    /// The name of the model's folder. Files of one name in different folders have different ones.
    pub(crate) fn folder_name(&self) -> String {
        match self {
            Self::Hub(name) => {
                let quantisation = name.quantisation.as_deref().unwrap_or_default();
                slug(&format!("{} {} {quantisation}", name.owner, name.repository))
            }
            Self::Path(path) => {
                let stem = if path.is_dir() { path.file_name() } else { path.file_stem() };
                let hash = blake3::hash(path.as_os_str().as_encoded_bytes()).to_hex();
                slug(&format!("{} {}", stem.unwrap_or_default().to_string_lossy(), &hash[..6]))
            }
        }
    }

    /// The folder of the model's file, or where the hub's files come to lie.
    pub(crate) fn directory(&self) -> PathBuf {
        match self {
            Self::Path(path) if path.is_dir() => path.clone(),
            Self::Path(path) => path.parent().unwrap_or(Path::new("/")).to_owned(),
            Self::Hub(_) => {
                let variable = |name: &str| std::env::var(name).ok();
                let cache = hub::Hub::from_environment(variable).ok();
                let cache = cache.map_or_else(|| PathBuf::from("/"), |hub| hub.folder().to_owned());
                cache.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("/")).to_owned()
            }
        }
    }

    /// The model's file as it is now.
    pub(crate) fn source(&self) -> SourceFile {
        let metadata = match self {
            Self::Path(path) => fs::metadata(path).ok().filter(fs::Metadata::is_file),
            Self::Hub(_) => None,
        };
        SourceFile {
            model: self.argument(),
            bytes: metadata.as_ref().map(fs::Metadata::len),
            modified_seconds: metadata.as_ref().and_then(modified_seconds),
        }
    }
}

/// The time of a file's last change, in seconds since 1970.
fn modified_seconds(metadata: &fs::Metadata) -> Option<i64> {
    let modified = metadata.modified().ok()?;
    Some(match modified.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => after.as_secs() as i64,
        Err(before) => -(before.duration().as_secs_f64().ceil() as i64),
    })
}

impl SourceFile {
    /// Name of the file.
    pub(crate) const NAME: &str = "source.toml";

    /// Reads the note of a model's folder; `None` where there is none that can be read.
    pub(crate) fn read(folder: &Path) -> Option<Self> {
        toml::from_str(&fs::read_to_string(folder.join(Self::NAME)).ok()?).ok()
    }

    /// Writes it.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn write(&self, folder: &Path) -> anyhow::Result<()> {
        let path = folder.join(Self::NAME);
        Ok(plans::file::write_bytes(&path, SOURCE, toml::to_string(self)?.as_bytes())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_of_the_hub_is_named_as_profile_takes_it() {
        let model = Model::named(OsStr::new("hf:Qwen/Qwen3-4B-GGUF:Q4_K_M")).expect("a name");
        assert_eq!(model.argument(), "hf:Qwen/Qwen3-4B-GGUF:Q4_K_M");
        assert_eq!(model.folder_name(), "qwen-qwen3-4b-gguf-q4_k_m");
    }

    #[test]
    fn a_missing_file_may_be_a_model_of_the_hub() {
        let refused = |text: &str| Model::named(OsStr::new(text)).expect_err("refused").to_string();
        assert!(refused("Qwen/Qwen3-4B").ends_with("or hf:Qwen/Qwen3-4B for a model of Hugging Face's hub"));
        assert!(refused("nowhere.gguf").ends_with("name a GGUF file, a folder"));
        assert!(refused("hf:nothing").contains("hf:OWNER/REPO"));
    }

    #[test]
    fn files_of_one_name_have_folders_of_their_own() {
        let name = |path: &str| Model::Path(path.into()).folder_name();
        assert_ne!(name("/a/model.gguf"), name("/b/model.gguf"));
        assert!(name("/a/model.gguf").starts_with("model-"));
    }
}
