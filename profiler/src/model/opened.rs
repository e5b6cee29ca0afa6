//! Opening a model's file or folder, and the names of its outputs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use flashplan::internals::model::gguf::model_name;
use flashplan::internals::model::source::SourceModel;
use kernels::Activation;

use super::ModelOptions;
use crate::ProfileError;

/// Opens the model, and returns its first file's path.
pub(super) fn open(options: &ModelOptions) -> anyhow::Result<(PathBuf, SourceModel<'static>)> {
    let path = model_file(&options.model)?;
    let mut source = SourceModel::open(&path).map_err(|error| anyhow!(error.of_file(&path)))?;
    if let Some(activation) = options.activation {
        source = with_activation(source, activation)?;
    }
    let path = source.gguf().files().next().map_or(path, |(first, ..)| first.to_owned());
    Ok((path, source))
}

/// The file, or the only GGUF file of the folder.
fn model_file(path: &Path) -> anyhow::Result<PathBuf> {
    if !path.is_dir() {
        let extension = path.extension().unwrap_or_default();
        if ["safetensors", "bin", "pth", "pt"].iter().any(|lone| extension == *lone) {
            let folder =
                path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            bail!(
                "{} has weights alone, without shapes and tokenizer: name its folder, with config.json and the tokenizer in it, such as {}; \
                 convert weights in .bin or .pth files to safetensors first",
                path.display(),
                folder.display()
            );
        }
        return Ok(path.to_owned());
    }
    let io = |source| ProfileError::Io { action: "list", path: path.to_owned(), source };
    let mut found = Vec::new();
    for entry in path.read_dir().map_err(io)? {
        let file = entry.map_err(io)?.path();
        if file.extension().is_some_and(|extension| extension == "gguf") {
            found.push(file);
        }
    }
    found.sort();
    // any file of a model in several leads to all
    let names: BTreeSet<_> = found.iter().map(|file| model_name(file)).collect();
    if names.len() == 1 && names.iter().all(Option::is_some) {
        found.truncate(1);
    }
    match found.as_slice() {
        [file] => Ok(file.clone()),
        [] => bail!(
            "{} is a folder without a .gguf file and without a config.json: name a GGUF file, or a folder as Hugging Face's hub has them",
            path.display()
        ),
        [first, ..] => bail!(
            "{} holds {} .gguf files; name one of them, for example {}",
            path.display(),
            found.len(),
            first.display()
        ),
    }
}

/// The model with another activation function than its file's.
///
/// # Errors
/// A model without gates.
pub(super) fn with_activation(
    source: SourceModel<'static>,
    activation: Activation,
) -> anyhow::Result<SourceModel<'static>> {
    let own = source.config().activation();
    if !own.is_gated() {
        bail!(
            "the networks of {} have no gates and compute {}: leave out --activation",
            source.config().architecture,
            own.name()
        );
    }
    Ok(source.with_activation(activation))
}

/// The given name, or the file's without extension and part number.
pub(super) fn name_of(options: &ModelOptions, path: &Path) -> anyhow::Result<String> {
    let name = match &options.name {
        Some(name) => name.clone(),
        None => model_name(path)
            .or_else(|| path.file_stem().map(|stem| stem.to_string_lossy().into_owned()))
            .unwrap_or_default(),
    };
    if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
        bail!("the name `{name}` cannot be a file's; give another with --name");
    }
    Ok(name)
}

/// The file name of the container, or of the index.
pub(super) fn container_file(name: &str, index: bool) -> String {
    format!("{name}.{}", if index { "index" } else { "bundle" })
}
