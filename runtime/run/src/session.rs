//! Sequences of tokens with a clock: every step's time and counters are kept. What names no sequence works on the first.
//!
//! A step brings one token, unless the plan has drafts. A draft continues the text from its own past, and is decoded with the known token.
//! Each token is drawn from its own row of logits, and these equal the logits without drafts. If the drawn token differs from the draft,
//! the rest of the draft is forgotten. No text changes.

use std::ops::Range;
use std::time::{Duration, Instant};

use flashplan::internals::draft::draft;
use flashplan::internals::engine::{BatchExt as _, EngineExt as _, container};
use flashplan::internals::fetch::Replay;
use flashplan::internals::machine::{CpuTimes, footprint};
use flashplan::internals::pooling::Pooling;
use flashplan::{Batch, Counters, Engine, Error, Model, Tokenizer};
use plans::Plan;
use plans::engine::ROWS_MAX;
use plans::size::show;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::current::CurrentRates;
use super::{Failure, failure};

/// A step of decoding: a token, and the drafted tokens that were kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    /// Position of the first token.
    pub(super) position: usize,
    /// Tokens that it brought so far.
    pub(super) tokens: usize,
    /// Tokens that were drafted and decoded with the first.
    pub(super) drafted: usize,
    pub(super) time: Duration,
    pub(super) counters: Counters,
}

/// Tokens that passed in one step, whose logits are there: a token and its draft.
#[derive(Debug, Default)]
struct LastStep {
    tokens: Vec<u32>,
    /// So many of them the text has.
    taken: usize,
}

impl LastStep {
    /// Tokens that the sequence has and the text does not.
    fn ahead(&self) -> usize {
        self.tokens.len() - self.taken
    }

    /// Takes the next token of the draft if it is this one; whether it is.
    fn take(&mut self, token: u32) -> bool {
        let right = self.tokens.get(self.taken) == Some(&token);
        self.taken += usize::from(right);
        right
    }
}

/// A running plan.
#[derive(Debug)]
pub(super) struct RunningPlan<'engine> {
    pub(super) plan: &'engine Plan,
    pub(super) model: &'engine Model,
    batch: Batch,
    pub(super) start_time: Duration,
    /// Current rates, if they were measured.
    pub(super) current: Option<CurrentRates>,
    /// Processor times when the session began.
    pub(super) started: Option<CpuTimes>,
    /// Prompt tokens and the time they took.
    pub(super) prefilled: (usize, Duration),
    pub(super) steps: Vec<Step>,
    /// Hash of the logits after every decoded token of the sequence.
    logits: u64,
    /// The last step of the first sequence.
    last: LastStep,
    /// Whether steps had drafts, or would have had.
    pub(super) drafts: bool,
}

impl<'engine> RunningPlan<'engine> {
    /// A started engine, the time that its start took, and current rates if they were measured.
    pub(super) fn new(
        engine: &Engine,
        plan: &'engine Plan,
        model: &'engine Model,
        start_time: Duration,
        current: Option<CurrentRates>,
    ) -> Result<Self, Failure> {
        Ok(Self {
            plan,
            model,
            batch: engine.batch()?,
            start_time,
            current,
            started: CpuTimes::now(),
            prefilled: (0, Duration::ZERO),
            steps: Vec::with_capacity(plan.context.tokens as usize),
            logits: 0,
            last: LastStep::default(),
            drafts: false,
        })
    }

    /// XXH3 of the logits after every decoded token of the sequence, hexadecimal. Each is seeded with the one before. Plans with equal
    /// quality keys have the same.
    pub(super) fn logits_hash(&self) -> String {
        format!("{:016x}", self.logits)
    }

    /// Text to tokens and back.
    pub(super) fn tokenizer(&self) -> &'engine Tokenizer {
        self.model.tokenizer()
    }

    /// Totals since start.
    pub(super) fn counters(&self) -> Counters {
        self.batch.engine().counters()
    }

    /// Why the memory of the run may be paged out; `None`: it is locked.
    pub(super) fn unlocked(&self) -> Option<&str> {
        self.batch.engine().unlocked()
    }

    /// How flash is read.
    pub(super) fn flash(&self) -> &str {
        self.batch.engine().reads()
    }

    /// Positions of the plan's context.
    pub(super) fn context(&self) -> usize {
        self.plan.context.tokens as usize
    }

    /// Bytes of the keys and values of one token.
    pub(super) fn kv_bytes_per_token(&self) -> usize {
        self.batch.engine().kv_bytes_per_token()
    }

    /// Tokens of the vocabulary.
    pub(super) fn vocabulary(&self) -> usize {
        self.batch.engine().vocabulary()
    }

    /// Tokens of context that the model was made for.
    pub(super) fn context_max(&self) -> usize {
        container(self.model).directory.config.context
    }

    /// Empties the cache of neurons that come and go.
    pub(super) fn clear_cache(&mut self) {
        self.batch.engine().clear_cache();
    }

    /// Measures the rates of this moment.
    pub(super) fn probe(&mut self) -> CurrentRates {
        CurrentRates::new(self.batch.engine().probe(), self.plan)
    }

    /// Records what is read from now on.
    pub(super) fn record_reads(&mut self) {
        self.batch.engine().record_reads();
    }

    /// The recorded reads once more, with nothing beside them.
    pub(super) fn replay_reads(&mut self) -> Result<Option<Replay>, Failure> {
        Ok(self.batch.engine().replay_reads(self.plan.read.depth as usize)?)
    }

    /// A new sequence without any tokens yet.
    pub(super) fn reset(&mut self) -> Result<(), Failure> {
        self.logits = 0;
        self.forget(0, 0).map(drop)
    }

    /// A new sequence: prefill of its first tokens; the logits after the last.
    pub(super) fn prefill(&mut self, tokens: &[u32]) -> Result<&[f32], Failure> {
        self.reset()?;
        let clock = Instant::now();
        let logits = self.batch.prefill(0, tokens)?;
        self.prefilled.0 += tokens.len();
        self.prefilled.1 += clock.elapsed();
        Ok(logits)
    }

    /// Forgets all counts and times: they begin here.
    pub(super) fn begin(&mut self) {
        self.steps.clear();
        (self.prefilled, self.logits) = ((0, Duration::ZERO), 0);
    }

    /// Tokens that may be drafted for a step, at most.
    pub(super) fn draft_tokens(&self) -> usize {
        self.plan.draft_tokens() as usize
    }

    /// Rows that a step has room for, of all sequences.
    pub(super) fn step_rows(&self) -> usize {
        self.batch.engine().step_rows()
    }

    /// Forgets what was decoded of a draft beyond the text.
    fn settle(&mut self) -> Result<(), Error> {
        let position = self.position(0);
        self.last.tokens.clear();
        self.last.taken = 0;
        self.batch.rewind(0, position)
    }

    /// How many sequences there are.
    pub(super) fn sequences(&self) -> usize {
        self.batch.positions().len()
    }

    /// Goes on with a sequence by the prefill of tokens; the logits after the last, and the time it took.
    pub(super) fn read(&mut self, sequence: usize, tokens: &[u32]) -> Result<(&[f32], Duration), Failure> {
        self.settle()?;
        let clock = Instant::now();
        let logits = self.batch.prefill(sequence, tokens)?;
        Ok((logits, clock.elapsed()))
    }

    /// Goes on with a sequence by the prefill of tokens whose hidden states are wanted and whose logits are not; the time it took.
    pub(super) fn read_hidden(
        &mut self,
        sequence: usize,
        tokens: &[u32],
        mut each: impl FnMut(&[f32]),
    ) -> Result<Duration, Failure> {
        self.settle()?;
        let clock = Instant::now();
        self.batch.prefill_hidden(sequence, tokens, |_, hidden| each(hidden))?;
        Ok(clock.elapsed())
    }

    /// How hidden states become an embedding, and its numbers.
    pub(super) fn pooling(&self) -> (Pooling, usize) {
        (self.batch.engine().pooling(), self.batch.engine().width())
    }

    /// Tokens of some sequences through decode together; their logits are [`RunningPlan::row`] by row. Its time and counters.
    pub(super) fn decode_each(&mut self, tokens: &[(usize, u32)]) -> Result<(Duration, Counters), Failure> {
        self.settle()?;
        let (before, clock) = (self.counters(), Instant::now());
        self.batch.decode(tokens)?;
        Ok((clock.elapsed(), self.counters().since(&before)))
    }

    /// The logits of a row of the last decode. After a prefill, the first row has the prefill's logits.
    pub(super) fn row(&self, row: usize) -> &[f32] {
        let vocabulary = self.vocabulary();
        &self.batch.logits()[row * vocabulary..][..vocabulary]
    }

    /// Keeps the first `kept` tokens of a sequence, or as many fewer as its state can go back to: how many.
    pub(super) fn forget(&mut self, sequence: usize, kept: usize) -> Result<usize, Failure> {
        self.settle()?;
        self.batch.rewind(sequence, kept)?;
        Ok(self.position(sequence))
    }

    /// Lets a sequence begin with the first tokens of another one, or with as many fewer as that one could go back to: how many.
    pub(super) fn share(&mut self, from: usize, to: usize, tokens: usize) -> Result<usize, Failure> {
        self.settle()?;
        self.batch.share(from, to, tokens)?;
        Ok(self.position(to))
    }

    /// How many tokens [`RunningPlan::forget`] would keep of so many.
    pub(super) fn kept_of(&self, sequence: usize, tokens: usize) -> usize {
        self.batch.rewound(sequence, tokens).unwrap_or(0)
    }

    /// Tokens that a sequence has.
    pub(super) fn position(&self, sequence: usize) -> usize {
        self.batch.positions()[sequence] - if sequence == 0 { self.last.ahead() } else { 0 }
    }

    /// Whether sequences are more than their keys and values.
    /// Bytes of a sequence's recurrent state; 0 where there is none.
    pub(super) fn state_bytes(&self) -> usize {
        self.batch.engine().state_bytes()
    }

    /// Tokens behind which a sequence's recurrent state is kept: the end of its last prompt.
    pub(super) fn state_at(&self, sequence: usize) -> usize {
        self.batch.state_at(sequence)
    }

    /// The keys and values of some of a sequence's tokens, piece after piece.
    pub(super) fn keys_and_values<E: From<Error>>(
        &mut self,
        sequence: usize,
        tokens: Range<usize>,
        each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.settle()?;
        self.batch.keys_and_values(sequence, tokens, each)
    }

    /// Gives a sequence so many tokens more, by their keys and values.
    pub(super) fn restore<E: From<Error>>(
        &mut self,
        sequence: usize,
        tokens: usize,
        each: impl FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.settle()?;
        self.batch.restore(sequence, tokens, each)
    }

    /// The logits of the last prefill, or after the last token that was decoded.
    pub(super) fn last_logits(&self) -> &[f32] {
        self.row(self.last.taken.saturating_sub(1))
    }

    /// Dense logits after every token of a new sequence.
    pub(super) fn prefill_each(
        &mut self,
        tokens: &[u32],
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), Failure> {
        self.reset()?;
        Ok(self.batch.prefill_each(0, tokens, each)?)
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
        self.step(&[token], token, 0)
    }

    /// Decodes the last token of a text in the first sequence, which holds the others, unless it was drafted. Returns the logits after it.
    /// A draft is decoded with it, as far as the plan and the context have room.
    pub(super) fn go_on(&mut self, text: &[u32]) -> Result<&[f32], Failure> {
        let Some(&token) = text.last() else { return Ok(self.last_logits()) };
        self.drafts |= self.draft_tokens() > 0;
        if !self.last.take(token) {
            return self.step(text, token, self.draft_tokens());
        }
        if let Some(step) = self.steps.last_mut() {
            step.tokens += 1;
        }
        Ok(self.heard())
    }

    /// Decodes a token, the last of `text`, in the first sequence, with a draft of at most `most` tokens after it.
    fn step(&mut self, text: &[u32], token: u32, most: usize) -> Result<&[f32], Failure> {
        self.settle()?;
        let position = self.position(0);
        let most = most.min(self.context().saturating_sub(position + 1));
        let (before, clock) = (self.counters(), Instant::now());
        let (mut rows, mut count) = ([(0, token); ROWS_MAX], 1);
        for drafted in draft(text, most) {
            rows[count].1 = drafted;
            count += 1;
        }
        self.batch.decode(&rows[..count])?;
        let time = clock.elapsed();
        self.last.tokens.extend(rows[..count].iter().map(|&(_, token)| token));
        self.last.taken = 1;
        let counters = self.counters().since(&before);
        self.steps.push(Step { position, tokens: 1, drafted: count - 1, time, counters });
        Ok(self.heard())
    }

    /// The logits after the last token, which are counted.
    fn heard(&mut self) -> &[f32] {
        self.logits = xxh3_64_with_seed(bytemuck::cast_slice(self.last_logits()), self.logits);
        self.last_logits()
    }
}
