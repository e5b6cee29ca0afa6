//! A container, opened: the model that an engine runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::container::Container;
use crate::error::{Error, Mismatch};
use crate::model::tokenizer::Tokenizer;
use crate::plan::Plan;
use crate::routes::Routing;

/// A model in its container, as `profile` wrote it: shapes, tokenizer, and where every weight lies.
///
/// Opening reads the container's directory and checks it. Weights are read when an [`Engine`](crate::Engine) starts.
#[derive(Debug)]
pub struct Model {
    pub(crate) container: Arc<Container>,
    tokenizer: Tokenizer,
}

impl Model {
    /// Opens the container at `path`.
    ///
    /// # Errors
    /// [`Error::Model`] if it cannot be read, or is not what a container must be.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let mut container = Container::open(path.as_ref()).map_err(Error::container)?;
        let tokenizer = Tokenizer::new(container.take_tokenizer())
            .map_err(|source| Error::tokenizer(container.path.clone(), source))?;
        Ok(Self { container: Arc::new(container), tokenizer })
    }

    /// Opens the container that `plan` names: beside the plan, in the current folder, or beside the profile that the plan was
    /// made from.
    ///
    /// # Errors
    /// [`Error::NoModel`] if there is none, else as [`Model::open`].
    pub fn open_for(plan: &Plan) -> Result<Self, Error> {
        let name = plan.container();
        if Path::new(name).file_name().is_none_or(|file| file != name) {
            let problem = format!("is `{name}`, which is not a file name");
            return Err(Mismatch::Key { key: "target.container", problem }.into());
        }
        let found = folders(plan).into_iter().map(|folder| folder.join(name)).find(|path| path.exists());
        Self::open(
            found.ok_or_else(|| Error::NoModel { name: name.to_owned(), plan: plan.path().to_owned() })?,
        )
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        &self.container.directory.name
    }

    /// The container's file.
    pub fn path(&self) -> &Path {
        &self.container.path
    }

    /// Text to tokens and back.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Tokens of the vocabulary: the length of a row of logits.
    pub fn vocabulary(&self) -> usize {
        self.container.directory.config.vocabulary
    }

    /// How tokens are routed to experts; `None` where there are none.
    pub fn routing(&self) -> Option<Routing> {
        Routing::of(&self.container.directory.config)
    }

    /// Tokens of context that the model was made for.
    pub fn context_max(&self) -> usize {
        self.container.directory.config.context
    }
}

/// Where a plan's container may be. The profile's folder is as `plan` was given it: from the folder where that was, which may
/// be the plan's or the current one.
fn folders(plan: &Plan) -> Vec<PathBuf> {
    let beside = plan.path().parent().unwrap_or(Path::new("")).to_owned();
    let mut folders = vec![beside.clone(), PathBuf::new()];
    if let Some(profile) = &plan.contract().provenance.model_folder {
        folders.extend([PathBuf::from(profile), beside.join(profile)]);
    }
    folders
}
