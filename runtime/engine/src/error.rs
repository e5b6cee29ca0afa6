//! All errors of the public API, as one type.

use std::path::PathBuf;

use crate::container::ContainerError;
use crate::model::tokenizer::TokenizerError;

/// The cause below an [`Error`]: a value that `source()` leads to.
type Cause = Box<dyn std::error::Error + Send + Sync>;

/// An error of opening a model, starting an engine or computing a token.
///
/// Each variant displays the fact and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The container cannot be read, or is invalid.
    #[error("{source}")]
    Model {
        /// The container.
        path: PathBuf,
        /// The reason.
        source: Cause,
    },
    /// The plan's container is in none of the folders searched.
    #[error(
        "{name} is neither beside {}, nor in the current folder, nor beside the model's profile; name it with --model, or make it with `profile --model`",
        plan.display()
    )]
    NoModel {
        /// The container's file name, as the plan has it.
        name: String,
        /// The plan.
        plan: PathBuf,
    },
    /// The plan cannot be read, or a key has an invalid value.
    #[error("{source}")]
    Plan {
        /// The plan.
        path: PathBuf,
        /// The reason.
        source: Cause,
    },
    /// The plan is for another machine, model, container or schema.
    #[error("the plan does not fit: {0}")]
    DoesNotFit(#[from] Mismatch),
    /// Facts about the machine cannot be read.
    #[error("{source}")]
    Machine {
        /// The system's error.
        source: Cause,
    },
    /// A read failed, or its bytes do not match their checksum.
    #[error("{source}")]
    Read {
        /// The read, and the reason.
        source: Cause,
    },
    /// A unit beside the cores has no memory left, or failed. No token came of the step.
    #[error("{source}")]
    Unit {
        /// The unit's words.
        source: Cause,
    },
    /// A token that the vocabulary does not have.
    #[error(
        "token {token} is not one of the model's {vocabulary}, which are numbered from 0; give tokens of its own tokenizer"
    )]
    Token {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocabulary: usize,
    },
    /// More tokens than the plan's context.
    #[error("{tokens} tokens do not fit the plan's context of {context}; plan with a larger --context")]
    Context {
        /// Tokens of the sequence with the new ones.
        tokens: usize,
        /// The plan's context.
        context: usize,
    },
    /// Positions beyond the end of the sequence.
    #[error("keys and values of {requested} tokens were requested, and the sequence has {position}")]
    Sequence {
        /// End of the requested positions.
        requested: usize,
        /// Length of the sequence.
        position: usize,
    },
    /// Positions of a recurrent sequence that do not end at its last prompt, where its state is kept.
    #[error(
        "this model has a recurrent state, which is kept only for the end of the last prompt; share all tokens of the prompt, or prefill them again"
    )]
    Recurrent,
    /// Sequences that cannot form a step.
    #[error("{problem}; the plan has {sequences}, numbered from 0, and `plan --slots` makes room for more")]
    Sequences {
        /// The problem.
        problem: String,
        /// Sequences of the plan.
        sequences: usize,
    },
    /// More tokens in a step than the plan allows.
    #[error(
        "{rows} tokens do not fit one step, since the plan has room for {most}; give fewer, or plan with a larger --speculate"
    )]
    Rows {
        /// Tokens given.
        rows: usize,
        /// Tokens allowed.
        most: usize,
    },
    /// A prompt without tokens.
    #[error("a prompt needs one token at least")]
    EmptyPrompt,
    /// A generation without logits of the sequence's last token.
    #[error("there are no logits to continue from; prefill a prompt or decode a token first")]
    NoLogits,
    /// A sampling option with an invalid value.
    #[error("{name} is {value}; it is {range}")]
    Sampling {
        /// The option.
        name: &'static str,
        /// The value given.
        value: f32,
        /// The valid values.
        range: &'static str,
    },
    /// A [`StopHandle`](crate::StopHandle) of the engine or of the sequence was used.
    #[error("stopped on request")]
    Stopped,
}

/// How a plan differs from its model or machine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Mismatch {
    /// A schema that this version cannot read.
    #[error("{source}")]
    Schema {
        /// The message of the file's reader.
        source: Cause,
    },
    /// Another model.
    #[error(
        "it was made for the model {planned} ({planned_fingerprint}), and {} holds {found} ({found_fingerprint}); plan for this model",
        path.display()
    )]
    Model {
        /// The model's name in the plan.
        planned: String,
        /// The start of its fingerprint.
        planned_fingerprint: String,
        /// The container.
        path: PathBuf,
        /// The model's name in the container.
        found: String,
        /// The start of its fingerprint.
        found_fingerprint: String,
    },
    /// Another container of the same model.
    #[error(
        "it was made for the container {planned}, and {} is {found}, made from the same model in another profile; plan with its model.toml",
        path.display()
    )]
    Container {
        /// The start of the planned container's fingerprint.
        planned: String,
        /// The container.
        path: PathBuf,
        /// The start of its fingerprint.
        found: String,
    },
    /// Another machine.
    #[error(
        "it was made for {what} `{planned}` ({device}), and this machine has `{found}`; profile and plan here"
    )]
    Machine {
        /// The part of the machine.
        what: &'static str,
        /// The planned part.
        planned: String,
        /// The plan's name for its machine.
        device: String,
        /// The part found.
        found: String,
    },
    /// Another adapter than the plan's, whose sums have other bits.
    #[error("it was made for the GPU `{planned}`, and this machine has `{found}`; profile and plan here")]
    Adapter {
        /// The adapter's name in the plan.
        planned: String,
        /// The name found.
        found: String,
    },
    /// A unit that the engine does not compute on.
    #[error(
        "it gives {share_percent:.0} % of {stage} to the {unit}, and here the CPU computes them alone; plan with --without units"
    )]
    Unit {
        /// The stage.
        stage: &'static str,
        /// The unit's name.
        unit: String,
        /// The unit's share of the stage's products.
        share_percent: f64,
    },
    /// Less free memory than the plan needs.
    #[error(
        "it takes {needed_bytes} bytes of memory, and {available_bytes} are available now; close other programs or plan with a lower --mem"
    )]
    Memory {
        /// Bytes that the plan needs.
        needed_bytes: u64,
        /// Bytes available now.
        available_bytes: u64,
    },
    /// A control group with a limit below the plan's.
    #[error(
        "it takes {needed_bytes} bytes of memory, and this process's control group allows {limit_bytes}; plan with a lower --mem"
    )]
    ControlGroup {
        /// Bytes that the plan needs.
        needed_bytes: u64,
        /// The group's limit.
        limit_bytes: u64,
    },
    /// A key that this container or machine does not support.
    #[error("the plan's {key} {problem}; make the plan again with `plan`")]
    Key {
        /// The key.
        key: &'static str,
        /// The problem of its value.
        problem: String,
    },
    /// Memory, cores or reads that the system refuses.
    #[error("{source}")]
    Refused {
        /// The system's error.
        source: Cause,
    },
}

impl Error {
    /// An error of opening a container.
    pub(crate) fn container(source: ContainerError) -> Self {
        Self::Model { path: source.path().to_owned(), source: Box::new(source) }
    }

    /// An error for several tokens of one recurrent sequence in a step: its state cannot be cut between them.
    pub(crate) fn several_of_recurrent(sequence: usize, sequences: usize) -> Self {
        let problem = format!(
            "sequence {sequence} is named twice, and a recurrent state is not cut between its tokens"
        );
        Self::Sequences { problem, sequences }
    }

    pub(crate) fn tokenizer(path: PathBuf, source: TokenizerError) -> Self {
        Self::Model { path, source: Box::new(source) }
    }
}
