//! A container or an index, opened: the model that an engine runs.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::container::Container;
use crate::error::{Error, Mismatch};
use crate::model::tokenizer::Tokenizer;
use crate::plan::{Plan, contract};

/// A model in its container, or in its own file with an index beside it, as `profile` wrote them: shapes, tokenizer, and where every
/// weight lies.
///
/// Opening reads the container's directory and checks it. Weights are read when an [`Engine`](crate::Engine) starts.
#[derive(Debug)]
pub struct Model {
    pub(crate) container: Arc<Container>,
    tokenizer: Tokenizer,
}

impl Model {
    /// Opens the container or the index at `path`; an index's model is beside it, or where it was profiled.
    ///
    /// # Errors
    /// [`Error::Model`] if it cannot be read, or is not what a container must be, or an index's model is not the one that it is of.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_with(path.as_ref(), None)
    }

    /// Opens a container, or an index whose model is looked for in `model_folder` alone, if that is given.
    fn open_with(path: &Path, model_folder: Option<&Path>) -> Result<Self, Error> {
        let mut container = Container::open_with(path, model_folder).map_err(Error::container)?;
        let tokenizer = Tokenizer::new(container.take_tokenizer())
            .map_err(|source| Error::tokenizer(container.path.clone(), source))?;
        Ok(Self { container: Arc::new(container), tokenizer })
    }

    /// Opens the container or the index that `plan` names: beside the plan, in the current folder, or beside the profile that the plan was
    /// made from.
    ///
    /// # Errors
    /// [`Error::NoModel`] if there is none, else as [`Model::open`].
    pub fn open_for(plan: &Plan) -> Result<Self, Error> {
        Self::open_with(&named(plan)?, None)
    }

    /// Opens the model that `plan` is for at `path`: a container, an index, or the model's own file, which the index that the plan
    /// names is of.
    ///
    /// # Errors
    /// As [`Model::open_for`].
    pub fn open_for_at(plan: &Plan, path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        if !is_gguf(path) {
            return Self::open(path);
        }
        let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
        Self::open_with(&named(plan)?, Some(folder))
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        &self.container.directory.name
    }

    /// Text to tokens and back.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }
}

/// The container or index that a model was opened from: its files, shapes and sections.
pub fn container(model: &Model) -> &Container {
    &model.container
}

/// The container or index that a plan names, where it is found.
fn named(plan: &Plan) -> Result<PathBuf, Error> {
    let name = contract(plan).target.container.as_str();
    if Path::new(name).file_name().is_none_or(|file| file != name) {
        let problem = format!("is `{name}`, which is not a file name");
        return Err(Mismatch::Key { key: "target.container", problem }.into());
    }
    let found = folders(plan).into_iter().map(|folder| folder.join(name)).find(|path| path.exists());
    found.ok_or_else(|| Error::NoModel { name: name.to_owned(), plan: plan.path().to_owned() })
}

/// Whether a file begins as GGUF does; one that cannot be read is told of when it is opened.
fn is_gguf(path: &Path) -> bool {
    let mut magic = [0; 4];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && (&magic == b"GGUF" || &magic == b"PWRI")
}

/// Where a plan's container may be. The profile's folder is as `plan` was given it: from the folder where that was, which may
/// be the plan's or the current one.
fn folders(plan: &Plan) -> Vec<PathBuf> {
    let beside = plan.path().parent().unwrap_or(Path::new("")).to_owned();
    let mut folders = vec![beside.clone(), PathBuf::new()];
    if let Some(profile) = &contract(plan).provenance.model_folder {
        folders.extend([PathBuf::from(profile), beside.join(profile)]);
    }
    folders
}
