//! A plan, read and checked: every decision that an engine follows.

use std::path::{Path, PathBuf};

use crate::error::{Error, Mismatch};

/// A plan as `plan` wrote it. Every key has been checked for a value that means something.
#[derive(Debug, Clone)]
pub struct Plan {
    plan: plans::Plan,
    path: PathBuf,
}

impl Plan {
    /// Reads the plan at `path`.
    ///
    /// # Errors
    /// [`Error::Plan`] if it cannot be read or a value means nothing, with file, line and key; [`Mismatch::Schema`] if it has
    /// another schema.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let plan = plans::file::read(path).map_err(|source| refused(source, path))?;
        Ok(Self { plan: plan.value, path: path.to_owned() })
    }

    /// Reads a plan from the text of its file. [`Model::open_for`](crate::Model::open_for) looks for its container in the current folder.
    ///
    /// # Errors
    /// Those of [`Plan::read`].
    pub fn parse(text: &str) -> Result<Self, Error> {
        let path = Path::new("plan.toml");
        let plan = plans::file::parse(text, path).map_err(|source| refused(source, path))?;
        Ok(Self { plan, path: path.to_owned() })
    }

    /// The plan's file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Tokens that fit the context, the prompt included.
    pub fn context_tokens(&self) -> usize {
        self.plan.context.tokens as usize
    }
}

/// Why a plan is not read.
fn refused(source: plans::ContractError, path: &Path) -> Error {
    match source {
        source @ plans::ContractError::Schema { .. } => Mismatch::Schema { source: Box::new(source) }.into(),
        source => Error::Plan { path: path.to_owned(), source: Box::new(source) },
    }
}

/// Every key of a plan, as its file has it.
pub fn contract(plan: &Plan) -> &plans::Plan {
    &plan.plan
}
