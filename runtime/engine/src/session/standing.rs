//! Tokens that a sequence has, and those to which it can go back.

use crate::error::Error;

/// Where a sequence stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) position: usize,
    /// Of a model with recurrent state: the tokens at the end of the last prompt, whose state is kept. The beginning needs none.
    pub(crate) kept: usize,
}

impl Standing {
    /// After a prompt that ends here.
    pub(crate) fn prefilled(position: usize) -> Self {
        Self { position, kept: position }
    }

    /// Where a sequence stands that forgets what comes after `position`: there, or before it where the state is kept.
    pub(crate) fn back(self, position: usize, recurrent: bool) -> Self {
        match self {
            _ if position >= self.position => self,
            _ if !recurrent => Self { position, ..self },
            Self { kept, .. } if kept <= position => Self { position: kept, ..self },
            _ => Self::default(),
        }
    }

    /// After work that failed with an error: where it was, or, if the work may have changed the state, where that is kept.
    pub(crate) fn failed(self, error: &Error, recurrent: bool) -> Self {
        let refused = matches!(error, Error::EmptyPrompt | Error::Token { .. } | Error::Context { .. });
        if recurrent && !refused { Self { position: self.kept, ..self } } else { self }
    }
}
