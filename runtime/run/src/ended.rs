//! Why a generation ended.

use serde::Serialize;

/// Why no token followed the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Ended {
    /// The model ended its text.
    EndOfText,
    /// The text has as many tokens as `-n` allows.
    Length,
    /// No position of the plan's context is left.
    ContextFull,
    /// Ctrl-C, or another signal that asks to end.
    Interrupt,
}

impl Ended {
    /// End of the sentence that begins with "The text ended after so many tokens".
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::EndOfText => ": the model ended it",
            Self::Length => ", the limit of -n",
            Self::ContextFull => ": the context is full; plan with a larger --context for more",
            Self::Interrupt => ": it was interrupted",
        }
    }
}
