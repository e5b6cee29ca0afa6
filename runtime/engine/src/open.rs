//! The model that an engine runs, opened from a container or an index.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::container::Container;
use crate::error::{Error, Mismatch};
use crate::model::tokenizer::Tokenizer;
use crate::plan::{Plan, contract};

/// A model as `profile` wrote it: a container, or an index and the model's own file. It has the shapes, the
/// tokenizer, and the place of every weight.
///
/// Opening reads and checks the container's directory. Weights are read when an [`Engine`](crate::Engine)
/// starts.
#[derive(Debug)]
pub struct Model {
    pub(crate) container: Arc<Container>,
    tokenizer: Tokenizer,
}

impl Model {
    /// Opens the container or index at `path`. An index's model file is searched beside it, then where it was
    /// profiled.
    ///
    /// # Errors
    /// [`Error::Model`] if the container is unreadable or invalid, or if an index's model file is missing or
    /// another.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_with(path.as_ref(), None)
    }

    /// Opens a container or index; if `model_folder` is given, an index's model file is searched only there.
    fn open_with(path: &Path, model_folder: Option<&Path>) -> Result<Self, Error> {
        let mut container = Container::open_with(path, model_folder).map_err(Error::container)?;
        let tokenizer = Tokenizer::new(container.take_tokenizer())
            .map_err(|source| Error::tokenizer(container.path.clone(), source))?;
        Ok(Self { container: Arc::new(container), tokenizer })
    }

    /// Opens the container or index that `plan` names, searched beside the plan, in the current folder, and
    /// beside the profile.
    ///
    /// # Errors
    /// [`Error::NoModel`] if there is none; otherwise as [`Model::open`].
    pub fn open_for(plan: &Plan) -> Result<Self, Error> {
        Self::open_with(&named(plan)?, None)
    }

    /// Opens `plan`'s model at `path`: a container, an index, or the model's own GGUF file. A GGUF file needs
    /// the index that the plan names.
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

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }
}

/// The container or index that a model was opened from: its files, shapes and sections.
pub fn container(model: &Model) -> &Container {
    &model.container
}

/// The path of the container or index that a plan names.
fn named(plan: &Plan) -> Result<PathBuf, Error> {
    let name = contract(plan).target.container.as_str();
    if Path::new(name).file_name().is_none_or(|file| file != name) {
        let problem = format!("is `{name}`, which is not a file name");
        return Err(Mismatch::Key { key: "target.container", problem }.into());
    }
    let found = folders(plan).into_iter().map(|folder| folder.join(name)).find(|path| path.exists());
    found.ok_or_else(|| Error::NoModel { name: name.to_owned(), plan: plan.path().to_owned() })
}

/// Whether a file starts with a GGUF magic; false for an unreadable file, which fails when it is opened.
fn is_gguf(path: &Path) -> bool {
    let mut magic = [0; 4];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && (&magic == b"GGUF" || &magic == b"PWRI")
}

/// Folders that may have a plan's container. A relative profile folder counts from where `plan` was run, so
/// it is tried from the plan's folder and from the current one.
fn folders(plan: &Plan) -> Vec<PathBuf> {
    let beside = plan.path().parent().unwrap_or(Path::new("")).to_owned();
    let mut folders = vec![beside.clone(), PathBuf::new()];
    if let Some(profile) = &contract(plan).provenance.model_folder {
        folders.extend([PathBuf::from(profile), beside.join(profile)]);
    }
    folders
}
