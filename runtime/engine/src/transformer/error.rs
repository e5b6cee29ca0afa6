//! Errors of starting or running a transformer.

use std::path::PathBuf;

use crate::arena::ArenaError;
use crate::container::ContainerError;
use crate::embedding::EmbeddingError;
use crate::error::{Error, Mismatch};
use crate::feed_forward::FeedForwardError;
use crate::fetch::FetchError;
use crate::neurons::NeuronError;
use crate::pool::PoolError;

/// Why a transformer does not start, or a call fails.
#[derive(Debug, thiserror::Error)]
pub enum TransformerError {
    /// An error of the container.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// An error of memory.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// An error of cores or threads.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// An error of a neuron or of the neuron tables.
    #[error(transparent)]
    Neuron(#[from] NeuronError),
    /// An error of a read.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// An error of an embedding row.
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
    /// The plan uses `io_uring`, which the kernel or this process's sandbox refuses.
    #[error(
        "io_uring is refused here: {source}; {}plan with a device profile made here",
        more_locked(source)
    )]
    Refused {
        /// The system's reason.
        source: std::io::Error,
    },
    /// A unit beside the cores has no memory left, or failed.
    #[error("{source}")]
    Unit {
        /// The unit's words.
        source: kernels::UnitError,
    },
    /// A key that this container or machine does not support.
    #[error("the plan's {key} {problem}; make the plan again with `plan`")]
    Plan {
        /// The plan's key.
        key: &'static str,
        /// The problem of its value.
        problem: String,
    },
    /// An invalid token.
    #[error("token {token} is not one of the model's {vocabulary}")]
    Token {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocabulary: usize,
    },
    /// A position beyond the plan's context.
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

/// The first remedy if a ring has no memory, because its pages are locked.
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

/// Converts the transformer's errors for embedders.
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
            TransformerError::Unit { source } => Self::Unit { source },
            TransformerError::Stopped => Self::Stopped,
        }
    }
}
