//! Everything that can go wrong, as one type.

use std::path::PathBuf;

use crate::container::ContainerError;
use crate::model::tokenizer::TokenizerError;

/// The cause below an [`Error`]: a value that `source()` leads to.
type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a model does not open, an engine does not start, or a token does not come.
///
/// Each variant's text is a sentence with the fact and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The container cannot be read or believed.
    #[error("{source}")]
    Model {
        /// The container.
        path: PathBuf,
        /// The reason.
        source: Cause,
    },
    /// There is no container where the plan's is looked for.
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
    /// The plan cannot be read, or a key has a value that means nothing.
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
    /// The machine cannot be looked at.
    #[error("{source}")]
    Machine {
        /// The system's answer.
        source: Cause,
    },
    /// A read failed, or brought other bytes than were written.
    #[error("{source}")]
    Read {
        /// Which, and why.
        source: Cause,
    },
    /// A token that the model does not have.
    #[error(
        "token {token} is not one of the model's {vocabulary}, which are numbered from 0; give tokens of its own tokenizer"
    )]
    Token {
        /// The token.
        token: u32,
        /// Tokens that the model has.
        vocabulary: usize,
    },
    /// More tokens than the plan has room for.
    #[error("{tokens} tokens do not fit the plan's context of {context}; plan with a larger --context")]
    Context {
        /// Tokens that the sequence would have.
        tokens: usize,
        /// The plan's context.
        context: usize,
    },
    /// Tokens beyond those of the sequence.
    #[error("keys and values of {requested} tokens were requested, and the sequence has {position}")]
    Sequence {
        /// The end of the tokens that were requested.
        requested: usize,
        /// Tokens of the sequence.
        position: usize,
    },
    /// Tokens of a sequence with recurrent state that are not all up to the end of its last prompt, where its state is kept.
    #[error(
        "this model keeps a recurrent state, which stands behind the last prompt and is not cut; take all of its tokens, or prefill them again"
    )]
    Recurrent,
    /// Sequences that cannot go on together.
    #[error("{problem}; the plan has {sequences}, numbered from 0, and `plan --slots` makes room for more")]
    Sequences {
        /// The fault.
        problem: String,
        /// Sequences that there is room for.
        sequences: usize,
    },
    /// More tokens than pass through the model together.
    #[error(
        "{rows} tokens do not pass together, for the plan has room for {most}; give fewer, or plan with a larger --speculate"
    )]
    Rows {
        /// Tokens that were given.
        rows: usize,
        /// Tokens that there is room for.
        most: usize,
    },
    /// A prompt without tokens.
    #[error("a prompt needs one token at least")]
    EmptyPrompt,
    /// A sampling option that means nothing.
    #[error("{name} is {value}; it is {range}")]
    Sampling {
        /// The option.
        name: &'static str,
        /// The value that was given.
        value: f32,
        /// The values that mean something.
        range: &'static str,
    },
    /// A [`StopHandle`](crate::StopHandle) of the engine or of the sequence was used.
    #[error("stopped on request")]
    Stopped,
}

/// How a plan and what it is to run on differ.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Mismatch {
    /// A schema that this version does not read.
    #[error("{source}")]
    Schema {
        /// The contract's sentence.
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
        /// Which part of the machine.
        what: &'static str,
        /// The plan's.
        planned: String,
        /// The plan's name for its machine.
        device: String,
        /// This machine's.
        found: String,
    },
    /// A unit that the engine does not compute on.
    #[error(
        "it gives {share_percent:.0} % of {stage} to the {unit}, and this version computes on the CPU alone; plan with --without units"
    )]
    Unit {
        /// Which stage.
        stage: &'static str,
        /// The unit's name.
        unit: String,
        /// The unit's share of the stage's products.
        share_percent: f64,
    },
    /// Less memory than the plan takes.
    #[error(
        "it takes {needed_bytes} bytes of memory, and {available_bytes} are available now; close other programs or plan with a lower --mem"
    )]
    Memory {
        /// Bytes that the plan takes.
        needed_bytes: u64,
        /// Bytes that can be taken now.
        available_bytes: u64,
    },
    /// A control group that allows less memory than the plan takes.
    #[error(
        "it takes {needed_bytes} bytes of memory, and this process's control group allows {limit_bytes}; plan with a lower --mem"
    )]
    ControlGroup {
        /// Bytes that the plan takes.
        needed_bytes: u64,
        /// The group's limit.
        limit_bytes: u64,
    },
    /// A key that this container or machine cannot follow.
    #[error("the plan's {key} {problem}; make the plan again with `plan`")]
    Key {
        /// The key.
        key: &'static str,
        /// The fault of its value.
        problem: String,
    },
    /// Memory, cores or reads that the system refuses.
    #[error("{source}")]
    Refused {
        /// The system's answer.
        source: Cause,
    },
}

impl Error {
    /// A container that cannot be read or believed.
    pub(crate) fn container(source: ContainerError) -> Self {
        Self::Model { path: source.path().to_owned(), source: Box::new(source) }
    }

    /// Several tokens in one step of a sequence whose state cannot be cut between them.
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
