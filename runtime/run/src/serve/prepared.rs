//! A request made ready for the engine.

use std::vec::IntoIter;

use flashplan::Sampling;

use super::super::turn::Turn;
use super::budget::Charge;
use super::calls::Calls;
use super::embeddings::Embedding;
use super::enforced::Enforced;

/// A request made ready for the engine.
pub(super) struct Prepared {
    /// The prompt at hand, and those after it.
    pub(super) prompt: Vec<u32>,
    pub(super) rest: IntoIter<Vec<u32>>,
    /// Whether the answer repeats the prompt.
    pub(super) echo: bool,
    /// Prompt tokens to prefill: all, or none if the likelihood of each is reported. In that case they are decoded, so likelihoods equal
    /// `--score`'s to the bit.
    pub(super) read: usize,
    pub(super) tells_prompt: bool,
    /// Options without effect.
    pub(super) ignored: Vec<String>,
    pub(super) turn: Turn,
    /// Sampling of the first choice; each one after it has the next seed.
    pub(super) sampling: Sampling,
    /// The constraint on each choice, and the charge for its memory.
    pub(super) enforced: Option<(Enforced, Charge)>,
    /// Bytes of text that the answer's charge has room for, in each choice.
    pub(super) text_room: usize,
    /// The reader that tells calls of tools from text, where there are any tools.
    pub(super) calls: Option<Calls>,
    /// Embeddings after the prompt's own, where the request wants vectors instead of text.
    pub(super) embedding: Option<Embedding>,
}

impl Prepared {
    /// Tokens of all prompts.
    pub(super) fn tokens(&self) -> usize {
        self.prompt.len() + self.rest.as_slice().iter().map(Vec::len).sum::<usize>()
    }

    /// Goes on with the next prompt, if there is one.
    pub(super) fn next(&mut self) -> bool {
        let Some(prompt) = self.rest.next() else { return false };
        self.read = if self.tells_prompt { 0 } else { prompt.len() };
        self.prompt = prompt;
        true
    }
}

/// How an answer calls tools.
#[derive(Default)]
pub(super) struct Calling {
    pub(super) enforced: Option<(Enforced, Charge)>,
    pub(super) calls: Option<Calls>,
    pub(super) marks: Option<&'static [&'static str]>,
    /// Whether the prompt has begun a call.
    pub(super) is_forced: bool,
}
