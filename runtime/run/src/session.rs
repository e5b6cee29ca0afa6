//! A sequence of tokens with a clock: every token's time and counters are kept.

use std::ops::Range;
use std::time::{Duration, Instant};

use flashplan::internals::machine::{CpuTimes, footprint};
use flashplan::{Counters, Engine, Error, Model, Replay, Tokenizer};
use plans::Plan;
use plans::size::show;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::hour::Hour;
use super::{Failure, failure};

/// One decoded token.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) position: usize,
    pub(super) time: Duration,
    pub(super) counters: Counters,
}

/// A running plan.
#[derive(Debug)]
pub(super) struct Session<'engine> {
    pub(super) plan: &'engine Plan,
    pub(super) model: &'engine Model,
    sequence: flashplan::Session<'engine>,
    pub(super) start_time: Duration,
    /// What this hour gives, if that was measured.
    pub(super) hour: Option<Hour>,
    /// Whose the processors' time was until then.
    pub(super) started: Option<CpuTimes>,
    /// Prompt tokens and the time they took.
    pub(super) prefilled: (usize, Duration),
    pub(super) steps: Vec<Step>,
    /// Of the logits after every decoded token of the sequence.
    logits: u64,
}

impl<'engine> Session<'engine> {
    /// An engine that took `start_time` to start, in an `hour` that was looked into or not.
    pub(super) fn new(
        engine: &'engine mut Engine,
        plan: &'engine Plan,
        model: &'engine Model,
        start_time: Duration,
        hour: Option<Hour>,
    ) -> Self {
        Self {
            plan,
            model,
            sequence: engine.session(),
            start_time,
            hour,
            started: CpuTimes::now(),
            prefilled: (0, Duration::ZERO),
            steps: Vec::with_capacity(plan.context.tokens as usize),
            logits: 0,
        }
    }

    /// XXH3 of the logits after every decoded token of the sequence, each seeded with the one before, hexadecimal: plans with
    /// equal quality keys have the same.
    pub(super) fn logits_hash(&self) -> String {
        format!("{:016x}", self.logits)
    }

    /// Text to tokens and back.
    pub(super) fn tokenizer(&self) -> &'engine Tokenizer {
        self.model.tokenizer()
    }

    /// Totals since start.
    pub(super) fn counters(&self) -> Counters {
        *self.sequence.counters()
    }

    /// Why the memory of the run may be paged out; `None`: it is locked.
    pub(super) fn unlocked(&self) -> Option<&str> {
        self.sequence.engine().unlocked()
    }

    /// How flash is read.
    pub(super) fn flash(&self) -> &str {
        self.sequence.engine().reads()
    }

    /// Positions of the plan's context.
    pub(super) fn context(&self) -> usize {
        self.sequence.engine().context()
    }

    /// Bytes of the keys and values of one token.
    pub(super) fn kv_bytes_per_token(&self) -> usize {
        self.sequence.engine().kv_bytes_per_token()
    }

    /// Tokens of the vocabulary.
    pub(super) fn vocabulary(&self) -> usize {
        self.model.vocabulary()
    }

    /// Empties the cache of neurons that come and go.
    pub(super) fn clear_cache(&mut self) {
        self.sequence.clear_cache();
    }

    /// Records what is read from now on.
    pub(super) fn record_reads(&mut self) {
        self.sequence.record_reads();
    }

    /// The recorded reads once more, with nothing beside them.
    pub(super) fn replay_reads(&mut self) -> Result<Option<Replay>, Failure> {
        Ok(self.sequence.replay_reads(self.plan.read.depth as usize)?)
    }

    /// A new sequence without any tokens yet.
    pub(super) fn reset(&mut self) {
        self.sequence.reset();
        self.logits = 0;
    }

    /// A new sequence: prefill of its first tokens; the logits after the last.
    pub(super) fn prefill(&mut self, tokens: &[u32]) -> Result<&[f32], Failure> {
        self.reset();
        let clock = Instant::now();
        let logits = self.sequence.prefill(tokens)?;
        self.prefilled.0 += tokens.len();
        self.prefilled.1 += clock.elapsed();
        Ok(logits)
    }

    /// Keeps the first `kept` tokens of the sequence. What is counted and timed is counted from here.
    pub(super) fn rewind(&mut self, kept: usize) {
        self.steps.clear();
        (self.prefilled, self.logits) = ((0, Duration::ZERO), 0);
        self.sequence.rewind(kept);
    }

    /// The keys and values of some of the sequence's tokens, piece after piece.
    pub(super) fn keys_and_values<E: From<Error>>(
        &mut self,
        tokens: Range<usize>,
        each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.sequence.keys_and_values(tokens, each)
    }

    /// So many tokens more, by their keys and values.
    pub(super) fn restore<E: From<Error>>(
        &mut self,
        tokens: usize,
        each: impl FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.sequence.restore(tokens, each)
    }

    /// The logits of the last prefill or decode.
    pub(super) fn last_logits(&self) -> &[f32] {
        self.sequence.logits()
    }

    /// Goes on after the first `kept` tokens of the sequence with the prefill of others; the logits after the last. What is
    /// counted and timed is counted from here.
    pub(super) fn go_on(&mut self, kept: usize, tokens: &[u32]) -> Result<&[f32], Failure> {
        self.rewind(kept);
        let clock = Instant::now();
        let logits = self.sequence.prefill(tokens)?;
        self.prefilled = (tokens.len(), clock.elapsed());
        Ok(logits)
    }

    /// Dense logits after every token of a new sequence.
    pub(super) fn prefill_each(
        &mut self,
        tokens: &[u32],
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), Failure> {
        self.reset();
        Ok(self.sequence.prefill_each(tokens, each)?)
    }

    /// The ceiling holds for a conversation and a server as for any run; where it did not, that is said.
    pub(super) fn warn_of_memory(&self) -> Result<(), Failure> {
        let (peak, limit) = (footprint(None).map_err(failure)?.peak_bytes(), self.plan.memory.limit_bytes);
        if peak > limit {
            let over = show(peak - limit);
            terminal::say(format_args!("warning: the process held {over} more than the plan's limit"));
        }
        Ok(())
    }

    /// One token through decode; the logits after it.
    pub(super) fn decode(&mut self, token: u32) -> Result<&[f32], Failure> {
        let (position, before) = (self.sequence.position(), self.counters());
        let clock = Instant::now();
        self.sequence.decode(token)?;
        let time = clock.elapsed();
        self.steps.push(Step { position, time, counters: self.counters().since(&before) });
        let logits = self.sequence.logits();
        self.logits = xxh3_64_with_seed(bytemuck::cast_slice(logits), self.logits);
        Ok(logits)
    }
}
