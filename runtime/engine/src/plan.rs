//! A plan, read and checked: every decision that the engine executes.

use std::path::{Path, PathBuf};

use crate::error::{Error, Mismatch};

/// A plan as `plan` wrote it; every key is checked.
#[derive(Debug, Clone)]
pub struct Plan {
    plan: plans::Plan,
    path: PathBuf,
}

impl Plan {
    /// Reads the plan at `path`.
    ///
    /// # Errors
    /// [`Error::Plan`] with file, line and key if the file cannot be read or a value is invalid;
    /// [`Mismatch::Schema`] if it has another schema.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let plan = plans::file::read(path).map_err(|source| refused(source, path))?;
        Ok(Self { plan: plan.value, path: path.to_owned() })
    }

    /// Parses the text of a plan. [`Model::open_for`](crate::Model::open_for) searches its container in the
    /// current folder.
    ///
    /// # Errors
    /// As [`Plan::read`].
    pub fn parse(text: &str) -> Result<Self, Error> {
        let path = Path::new("plan.toml");
        let plan = plans::file::parse(text, path).map_err(|source| refused(source, path))?;
        Ok(Self { plan, path: path.to_owned() })
    }

    /// The plan's file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Tokens of the context, prompt included.
    pub fn context_tokens(&self) -> usize {
        self.plan.context.tokens as usize
    }
}

/// The error for a plan that cannot be read.
fn refused(source: plans::ContractError, path: &Path) -> Error {
    match source {
        source @ plans::ContractError::Schema { .. } => Mismatch::Schema { source: Box::new(source) }.into(),
        source => Error::Plan { path: path.to_owned(), source: Box::new(source) },
    }
}

/// All keys of a plan, as in its file.
pub fn contract(plan: &Plan) -> &plans::Plan {
    &plan.plan
}
