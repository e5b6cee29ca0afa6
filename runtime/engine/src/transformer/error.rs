//! Why a transformer does not start or go on.

use std::path::PathBuf;

use crate::arena::ArenaError;
use crate::container::ContainerError;
use crate::embedding::EmbeddingError;
use crate::error::{Error, Mismatch};
use crate::feed_forward::FeedForwardError;
use crate::fetch::FetchError;
use crate::neurons::NeuronError;
use crate::pool::PoolError;

/// Why a transformer does not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum TransformerError {
    /// The container.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// Memory.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// Cores.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A neuron, or the table of a layer's neurons.
    #[error(transparent)]
    Neuron(#[from] NeuronError),
    /// A read.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// A row of the token embedding.
    #[error(transparent)]
    Embedding(#[from] EmbeddingError),
    /// The device could not be opened as the plan says.
    #[error("cannot open {path} for {how} reads: {source}; plan for the file system it is on")]
    Open {
        /// The container.
        path: PathBuf,
        /// `direct` or `buffered`.
        how: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The plan reads through `io_uring`, and the kernel or the container that this process is in does not let it.
    #[error(
        "io_uring is refused here: {source}; {}plan with a device profile made here",
        more_locked(source)
    )]
    Refused {
        /// The system's reason.
        source: std::io::Error,
    },
    /// A plan that this container or machine cannot follow.
    #[error("the plan's {key} {problem}; make the plan again with `plan`")]
    Plan {
        /// The plan's key.
        key: &'static str,
        /// The fault of the key's value.
        problem: String,
    },
    /// A token that does not exist.
    #[error("token {token} is not one of the model's {vocabulary}")]
    Token {
        /// The token.
        token: u32,
        /// Tokens that the model has.
        vocabulary: usize,
    },
    /// More tokens than the plan has room for.
    #[error(
        "position {position} is beyond the plan's context of {context} tokens; plan with a larger --context"
    )]
    Context {
        /// The position.
        position: usize,
        /// The plan's context.
        context: usize,
    },
    /// A stop was requested.
    #[error("stopped on request")]
    Stopped,
}

/// The first remedy where a ring has no memory: its pages are locked.
fn more_locked(refused: &std::io::Error) -> &'static str {
    match refused.kind() {
        std::io::ErrorKind::OutOfMemory => "raise the limit on locked memory (`ulimit -l`), or ",
        _ => "",
    }
}

impl From<FeedForwardError> for TransformerError {
    fn from(error: FeedForwardError) -> Self {
        match error {
            FeedForwardError::Neuron(error) => error.into(),
            FeedForwardError::Fetch(error) => error.into(),
        }
    }
}

/// The transformer's errors as an embedder sees them.
impl From<TransformerError> for Error {
    fn from(error: TransformerError) -> Self {
        match error {
            TransformerError::Plan { key, problem } => Mismatch::Key { key, problem }.into(),
            TransformerError::Pool(_)
            | TransformerError::Open { .. }
            | TransformerError::Refused { .. }
            | TransformerError::Neuron(NeuronError::Arena(_))
            | TransformerError::Arena(_) => Mismatch::Refused { source: Box::new(error) }.into(),
            TransformerError::Container(source) => Self::container(source),
            TransformerError::Neuron(NeuronError::Container(source)) => Self::container(source),
            TransformerError::Neuron(NeuronError::Order { ref path, .. }) => {
                Self::Model { path: path.clone(), source: Box::new(error) }
            }
            TransformerError::Fetch(_) | TransformerError::Embedding(_) | TransformerError::Neuron(_) => {
                Self::Read { source: Box::new(error) }
            }
            TransformerError::Token { token, vocabulary } => Self::Token { token, vocabulary },
            TransformerError::Context { position, context } => {
                Self::Context { tokens: position + 1, context }
            }
            TransformerError::Stopped => Self::Stopped,
        }
    }
}
