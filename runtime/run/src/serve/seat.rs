//! A sequence, what it holds, and the answer that it is at.

use std::sync::Arc;
use std::time::{Duration, Instant};
use std::vec::IntoIter;

use flashplan::{Sampler, Tokenizer};

use super::super::ended::Ended;
use super::super::held::Held;
use super::super::reasoning::Parts;
use super::super::sessions::Keeping;
use super::super::turn::{Answered, Writing};
use super::super::{Failure, failure};
use super::budget::Budget;
use super::calls::Calls;
use super::embeddings::Embedding;
use super::enforced::Enforced;
use super::likelihood::Likelihood;
use super::prepared::Prepared;
use super::stops::Stops;
use super::teller::Teller;
use super::{Job, Told, Usage};

/// One of the plan's sequences.
pub(super) struct Seat<'t> {
    pub(super) held: Held,
    /// When it was taken last, by number of answers.
    pub(super) taken: u64,
    pub(super) answering: Option<Answering<'t>>,
    /// How far what it holds has been put on disk, where that is still to be done.
    pub(super) keeping: Option<Keeping>,
}

/// The state of a sequence slot, for a prompt.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    /// Tokens at the beginning that are the same.
    pub(super) same: usize,
    /// All that it holds.
    held: usize,
    /// When it was taken last, by number of answers.
    taken: u64,
    free: bool,
}

/// Chooses a free sequence slot for a prompt, and the slot to copy a longer prefix from. The slot with the longest common prefix is reused
/// if the prompt continues all of its tokens, or if no other is free. Otherwise the least recently used free slot is chosen. Among equal
/// prefixes a free slot counts as longest, then the most recently used one, so it keeps its tokens.
pub(super) fn choose(seats: &[Found]) -> (usize, Option<usize>) {
    let of = |at: &usize| seats[*at];
    let all = || 0..seats.len();
    let most = all().max_by_key(|at| (of(at).same, of(at).free, of(at).taken)).unwrap_or(0);
    let other = all().filter(|at| *at != most && of(at).free).min_by_key(|at| of(at).taken);
    let goes_on = seats[most].free && seats[most].same == seats[most].held;
    match other {
        Some(other) if !goes_on => (other, (seats[most].same > seats[other].same).then_some(most)),
        _ => (most, None),
    }
}

impl Seat<'_> {
    /// An unused sequence slot.
    pub(super) fn new(context: usize) -> Self {
        Self { held: Held::new(context), taken: 0, answering: None, keeping: None }
    }

    /// Whether its answer is being written.
    pub(super) fn writes(&self) -> bool {
        self.answering.as_ref().is_some_and(|answering| answering.choice.is_some())
    }

    /// The token of its answer that is chosen and not decoded yet.
    pub(super) fn next(&self) -> Option<u32> {
        Some(self.answering.as_ref()?.choice.as_ref()?.next)
    }

    /// The state of the slot for a prompt. `kept_of` says how many of the common tokens can be kept.
    pub(super) fn found(&self, prompt: &[u32], kept_of: impl Fn(usize) -> usize) -> Found {
        // the last token is prefilled in any case, for its logits
        let prompt = &prompt[..prompt.len().saturating_sub(1)];
        let (same, held) = (kept_of(self.held.same(prompt)), self.held.len());
        Found { same, held, taken: self.taken, free: self.answering.is_none() }
    }
}

/// An answer on its way.
pub(super) struct Answering<'t> {
    pub(super) job: Job,
    pub(super) prepared: Prepared,
    /// Among all answers.
    pub(super) number: u64,
    pub(super) began: Instant,
    pub(super) work: AnswerFigures,
    /// Where the prompt is a text to be embedded: what is there of its vector, and the texts after it.
    pub(super) embedding: Option<Embedding>,
    /// The logits after the prompt, for the choices after the first.
    pub(super) after: Vec<f32>,
    /// Choices of the prompts before.
    pub(super) answered: usize,
    /// The choice that is being written; none while the prompt is read.
    pub(super) choice: Option<AnswerChoice<'t>>,
}

/// Counts and times of an answer.
#[derive(Default)]
pub(super) struct AnswerFigures {
    pub(super) usage: Usage,
    /// Until the first token or vector.
    pub(super) first: Duration,
    /// Tokens decoded, and the time of their steps, which other answers may have shared.
    pub(super) decoded: (usize, Duration),
    /// Whether it was given to its end, or why it broke off.
    pub(super) done: bool,
    pub(super) broken: Option<String>,
}

/// One of an answer's choices.
pub(super) struct AnswerChoice<'t> {
    pub(super) index: usize,
    writing: Writing<'t>,
    sampler: Sampler,
    enforced: Option<Enforced>,
    teller: Teller,
    /// Tokens of the prompt that the answer repeats.
    echo: IntoIter<u32>,
    /// Whether the next of them is the first token that the model sees.
    begins: bool,
    /// Chosen and told, and not decoded yet.
    pub(super) next: u32,
}

impl<'t> Answering<'t> {
    /// Whether its client is still there.
    pub(super) fn is_wanted(&self) -> bool {
        !self.job.told.is_closed()
    }

    /// Begins a choice, with a seed of its own. `call` makes ids of calls that no other server has. Text beyond the expected length is
    /// charged to `answers`.
    ///
    /// # Errors
    /// What is wrong with how it draws, which was looked at before.
    pub(super) fn begin(
        &self,
        index: usize,
        tokenizer: &'t Tokenizer,
        call: u64,
        answers: &Arc<Budget>,
    ) -> Result<AnswerChoice<'t>, Failure> {
        let (prepared, request) = (&self.prepared, &self.job.request);
        let mut sampling = prepared.sampling.clone();
        sampling.seed = sampling.seed.wrapping_add(index as u64);
        let mut sampler = Sampler::new(sampling)?;
        prepared.prompt.iter().for_each(|&token| sampler.saw(token));
        let teller = Teller {
            told: self.job.told.clone(),
            choice: index,
            room: prepared.text_room,
            answers: Arc::clone(answers),
            joined: None,
            chosen: Vec::new(),
            stops: Stops::new(request.options.stop.clone()),
            calls: prepared.calls.clone(),
            parallel: request.tools.as_ref().is_none_or(|tools| tools.parallel && !tools.must_call()),
            number: call.wrapping_add(self.number),
            called: 0,
            stopped: false,
            full: false,
        };
        Ok(AnswerChoice {
            index,
            writing: Writing::new(tokenizer, prepared.turn),
            sampler,
            enforced: prepared.enforced.as_ref().map(|(enforced, _)| enforced.anew()),
            teller,
            echo: Vec::new().into_iter(),
            begins: false,
            next: 0,
        }
        .repeating(prepared))
    }
}

impl AnswerChoice<'_> {
    /// Sets up the repetition of the prompt: the prefilled tokens at once, the rest token by token.
    fn repeating(mut self, prepared: &Prepared) -> Self {
        let (read, rest) = prepared.prompt.split_at(prepared.read);
        let teller = &mut self.teller;
        for &token in read.iter().filter(|_| prepared.echo) {
            self.writing.echo(token, &mut |part, text| teller.show(part, text));
        }
        self.echo = Vec::from(rest).into_iter();
        self.begins = prepared.read == 0;
        self
    }

    /// Repeats a token of the prompt; whether there was one.
    fn repeat(&mut self, logits: &[f32], top: Option<usize>, tokenizer: &Tokenizer) -> bool {
        let Some(token) = self.echo.next() else { return false };
        let begins = std::mem::take(&mut self.begins);
        let likelihood = |top| {
            if begins {
                Likelihood::first(token, tokenizer)
            } else {
                Likelihood::of(logits, token, top, tokenizer)
            }
        };
        let teller = &mut self.teller;
        teller.chosen.extend(top.map(likelihood));
        self.writing.echo(token, &mut |part, text| teller.show(part, text));
        self.next = token;
        true
    }

    /// Chooses a token by its logits and sends its text. Returns why the choice is over, or `None` if `next` is to be decoded. `top`
    /// likelihoods are sent with it.
    ///
    /// # Errors
    /// The grammar's limits, which are one client's affair.
    pub(super) fn go_on(
        &mut self,
        logits: &[f32],
        top: Option<usize>,
        room: bool,
        tokenizer: &Tokenizer,
    ) -> Result<Option<Ended>, Failure> {
        if self.repeat(logits, top, tokenizer) {
            return Ok(None);
        }
        if self.writing.is_full() {
            return Ok(Some(Ended::Length));
        }
        let ordained = self.writing.ordained();
        let parts: Option<&Parts> = self.writing.parts();
        let opened = self.teller.calls.as_ref().and_then(Calls::opened);
        let token = match (ordained, &mut self.enforced) {
            (Some(token), _) => Some(token),
            (None, Some(enforced)) => {
                enforced.choose(&mut self.sampler, logits, tokenizer, parts, opened).map_err(failure)?
            }
            (None, None) => Some(self.sampler.sample(logits)),
        };
        if let Some(token) = token
            && let Some(top) = top
            && !tokenizer.is_end(token)
            && tokenizer.special(token).is_none()
        {
            self.teller.chosen.push(Likelihood::of(logits, token, top, tokenizer));
        }
        let teller = &mut self.teller;
        match self.writing.take(token, room, &mut |part, text| teller.show(part, text)) {
            std::ops::ControlFlow::Continue(token) => {
                self.next = token;
                Ok(None)
            }
            std::ops::ControlFlow::Break(ended) => Ok(Some(ended)),
        }
    }

    /// Tells what was held back and that the choice is over, unless it broke off. Returns its tokens, and whether the next may follow.
    pub(super) fn end(self, ended: Ended) -> (Answered, bool) {
        let Self { index, writing, mut teller, .. } = self;
        let answered = writing.finish(ended, &mut |part, text| teller.show(part, text));
        if !teller.stopped && !teller.full {
            teller.finish();
        }
        teller.end();
        let ended = match (teller.stopped, teller.full) {
            (true, _) => Ended::EndOfText,
            (false, true) => Ended::Length,
            (false, false) => ended,
        };
        if ended == Ended::Interrupt {
            return (answered, false);
        }
        let (cut, stop) = (ended != Ended::EndOfText, teller.stops.found().map(str::to_owned));
        // a client that hung up is told nothing
        teller.told.send(Told::Choice { choice: index, cut, stop }).ok();
        (answered, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(same: usize, held: usize, taken: u64, free: bool) -> Found {
        Found { same, held, taken, free }
    }

    #[test]
    fn a_prompt_goes_on_where_it_was_and_a_new_one_takes_the_seat_that_nobody_wanted_for_longest() {
        // all empty at first
        assert_eq!(choose(&[found(0, 0, 0, true); 3]).1, None);
        // the second has all of it
        assert_eq!(choose(&[found(2, 9, 5, true), found(6, 6, 1, true)]), (1, None));
        // nothing is the same, or only what all begin with: the oldest goes, whichever stands last
        assert_eq!(choose(&[found(0, 9, 5, true), found(0, 8, 1, true)]), (1, None));
        assert_eq!(choose(&[found(0, 9, 1, true), found(0, 8, 5, true)]), (0, None));
        assert_eq!(choose(&[found(3, 9, 5, true), found(3, 8, 1, true), found(3, 7, 4, true)]), (1, None));
        // a prefix of another slot is copied, even from a busy one
        assert_eq!(choose(&[found(4, 9, 5, true), found(0, 8, 1, true)]), (1, Some(0)));
        assert_eq!(choose(&[found(4, 4, 5, false), found(0, 8, 1, true)]), (1, Some(0)));
        assert_eq!(choose(&[found(4, 9, 5, true), found(0, 8, 1, false)]), (0, None));
    }
}
