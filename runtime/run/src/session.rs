//! An engine with a tokenizer and a clock: every token's time and counters are kept.

use std::rc::Rc;
use std::time::{Duration, Instant};

use plans::Plan;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::fit::Fitting;
use super::{Failure, Stop, failure};
use flashplan::arena::LockError;
use flashplan::engine::{Counters, Engine, Token};
use flashplan::fetch::Alone;
use flashplan::machine::CpuTimes;
use flashplan::model::tokenizer::Tokenizer;

/// One decoded token.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) position: usize,
    pub(super) time: Duration,
    pub(super) counters: Counters,
}

/// A running plan.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) plan: Plan,
    pub(super) tokenizer: Rc<Tokenizer>,
    pub(super) model: String,
    pub(super) stop: Stop,
    engine: Engine,
    pub(super) start_time: Duration,
    /// Whose the processors' time was until then.
    pub(super) started: Option<CpuTimes>,
    /// Prompt tokens and the time they took.
    pub(super) prefilled: (usize, Duration),
    pub(super) steps: Vec<Step>,
    /// The engine's totals after its last work.
    counters: Counters,
    /// Of the logits after every decoded token of the text.
    logits: u64,
}

impl Session {
    /// Takes the plan's memory and fills it.
    pub(super) fn start(fitting: Fitting, stop: Stop) -> Result<Self, Failure> {
        let Fitting { plan, container } = fitting;
        let clock = Instant::now();
        let engine = Engine::start(&container, &plan)?;
        let start_time = clock.elapsed();
        let directory = container.directory;
        let tokenizer = Rc::new(Tokenizer::new(directory.tokenizer).map_err(failure)?);
        let steps = Vec::with_capacity(plan.context.tokens as usize);
        Ok(Self {
            plan,
            tokenizer,
            model: directory.name,
            stop,
            engine,
            start_time,
            started: CpuTimes::now(),
            prefilled: (0, Duration::ZERO),
            steps,
            counters: Counters::default(),
            logits: 0,
        })
    }

    /// XXH3 of the logits after every decoded token of the text at hand, each seeded with the one before, hexadecimal: the
    /// same for all plans with equal quality keys.
    pub(super) fn logits_hash(&self) -> String {
        format!("{:016x}", self.logits)
    }

    /// Totals since start.
    pub(super) fn counters(&self) -> Counters {
        self.counters
    }

    /// Why the memory of the run may be paged out; `None`: it is locked.
    pub(super) fn unlocked(&self) -> Option<&LockError> {
        self.engine.lock().as_ref().err()
    }

    /// How flash is read.
    pub(super) fn flash(&self) -> String {
        self.engine.flash()
    }

    /// Positions that the model was made for.
    pub(super) fn context_max(&self) -> usize {
        self.engine.config().context
    }

    /// Positions there are.
    pub(super) fn context(&self) -> usize {
        self.engine.context()
    }

    /// Tokens there are.
    pub(super) fn vocabulary(&self) -> usize {
        self.engine.config().vocabulary
    }

    /// Empties the cache of neurons that come and go.
    pub(super) fn forget_cold(&mut self) {
        self.engine.forget_cold();
    }

    /// Remembers what is read from now on.
    pub(super) fn remember_reads(&mut self) {
        self.engine.remember_reads();
    }

    /// What is remembered once more, with nothing else to do.
    pub(super) fn read_again(&mut self) -> Result<Option<Alone>, Failure> {
        Ok(self.engine.read_again(self.plan.read.depth as usize)?)
    }

    /// A new text: prefill of its first tokens; the logits after the last.
    pub(super) fn prefill(&mut self, tokens: &[u32]) -> Result<&[f32], Failure> {
        self.stop.check()?;
        let clock = Instant::now();
        self.engine.prefill(&rows(tokens, 0), None)?;
        self.prefilled.0 += tokens.len();
        self.prefilled.1 += clock.elapsed();
        self.counters = self.engine.counters();
        self.logits = 0;
        self.stop.check()?;
        Ok(self.engine.logits())
    }

    /// Dense logits after every token of a new text.
    pub(super) fn prefill_each(
        &mut self,
        tokens: &[u32],
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), Failure> {
        self.stop.check()?;
        self.engine.prefill(&rows(tokens, 0), Some(each))?;
        self.counters = self.engine.counters();
        Ok(())
    }

    /// One token through decode; the logits after it.
    pub(super) fn decode(&mut self, token: u32, position: usize) -> Result<&[f32], Failure> {
        self.stop.check()?;
        let clock = Instant::now();
        self.engine.decode(&rows(&[token], position))?;
        let (time, counters) = (clock.elapsed(), self.engine.counters());
        self.steps.push(Step { position, time, counters: counters.since(&self.counters) });
        self.counters = counters;
        self.logits = xxh3_64_with_seed(bytemuck::cast_slice(self.engine.logits()), self.logits);
        Ok(self.engine.logits())
    }
}

/// Tokens from `position` on, of the one sequence there is.
fn rows(tokens: &[u32], position: usize) -> Vec<Token> {
    (position..).zip(tokens).map(|(position, &token)| Token { token, sequence: 0, position }).collect()
}
