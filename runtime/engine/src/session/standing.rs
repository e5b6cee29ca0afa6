//! The length of a sequence, and how far it can go back.

use crate::error::Error;

/// The position of a sequence.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) position: usize,
    /// With recurrent state: the end of the last prompt, where the state is kept. The start needs none.
    pub(crate) kept: usize,
}

impl Standing {
    /// The standing after a prompt that ends at `position`.
    pub(crate) fn prefilled(position: usize) -> Self {
        Self { position, kept: position }
    }

    /// The standing after forgetting everything from `position` on: there, or further back where the state is
    /// kept.
    pub(crate) fn back(self, position: usize, recurrent: bool) -> Self {
        match self {
            _ if position >= self.position => self,
            _ if !recurrent => Self { position, ..self },
            Self { kept, .. } if kept <= position => Self { position: kept, ..self },
            _ => Self::default(),
        }
    }

    /// The standing after failed work: unchanged, or where the state is kept if the work may have changed it.
    pub(crate) fn failed(self, error: &Error, recurrent: bool) -> Self {
        let refused = matches!(error, Error::EmptyPrompt | Error::Token { .. } | Error::Context { .. });
        if recurrent && !refused { Self { position: self.kept, ..self } } else { self }
    }
}
