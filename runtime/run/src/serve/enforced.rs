//! Constraints on an answer while it is written: on all of it, or on the calls in it.

use flashplan::{Sampler, Tokenizer};

use super::super::reasoning::Parts;
use super::grammar::Grammar;

/// The constraint on each token before it is chosen.
pub(super) enum Enforced {
    /// A grammar of the whole answer, but for what the model says to itself.
    Answer(Grammar),
    /// A grammar of calls, from what begins them to their end; text before and after is free.
    Calls { from_the_opening: Grammar, now: Now, is_strict: bool },
}

/// Where an answer is.
pub(super) enum Now {
    Text,
    Calls(Box<Grammar>),
    /// Calls that no grammar is held against: they began otherwise than templates write it.
    Free,
}

impl Enforced {
    /// A constraint on calls alone. Unless it is strict, calls that the grammar cannot continue go on without it.
    pub(super) fn calls(grammar: Grammar, is_strict: bool) -> Self {
        Self::Calls { from_the_opening: grammar, now: Now::Text, is_strict }
    }

    /// A copy of the constraint at its beginning, for another answer.
    pub(super) fn anew(&self) -> Self {
        match self {
            Self::Answer(grammar) => Self::Answer(grammar.anew()),
            Self::Calls { from_the_opening, is_strict, .. } => {
                Self::calls(from_the_opening.anew(), *is_strict)
            }
        }
    }

    /// Chooses the next token of an answer; `None` if nothing may follow. `opened` is the text after the opening of its calls, if calls
    /// have begun.
    ///
    /// # Errors
    /// A sentence, if no token of the vocabulary goes on with it, or it costs more than the limits.
    pub(super) fn choose(
        &mut self,
        sampler: &mut Sampler,
        logits: &[f32],
        tokenizer: &Tokenizer,
        parts: Option<&Parts>,
        opened: Option<&str>,
    ) -> Result<Option<u32>, String> {
        let (from_the_opening, now, is_strict) = match self {
            Self::Answer(grammar) => return grammar.choose(sampler, logits, tokenizer, parts),
            Self::Calls { from_the_opening, now, is_strict } => (from_the_opening, now, *is_strict),
        };
        match (&now, opened) {
            (_, None) => *now = Now::Text,
            (Now::Text, Some(text)) => {
                let mut grammar = from_the_opening.anew();
                *now = if grammar.goes_on_with(text) { Now::Calls(Box::new(grammar)) } else { Now::Free };
            }
            (Now::Calls(_) | Now::Free, Some(_)) => {}
        }
        let Now::Calls(grammar) = now else { return Ok(Some(sampler.sample(logits))) };
        match grammar.choose(sampler, logits, tokenizer, None) {
            Err(_) if !is_strict => {
                *now = Now::Free;
                Ok(Some(sampler.sample(logits)))
            }
            chosen => chosen,
        }
    }
}
