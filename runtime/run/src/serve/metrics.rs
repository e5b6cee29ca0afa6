//! Metrics for the operator at `/metrics`, in Prometheus' text format.

use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use flashplan::internals::counters::{Stage, StageTimes};
use flashplan::internals::machine::footprint;
use plans::Plan;

use super::super::session::RunningPlan;
use super::super::{Failure, failure};
use super::Usage;

/// Counters and gauges of a server.
#[derive(Debug)]
pub(super) struct Metrics {
    planned_tokens_per_second: f64,
    planned_hit_fraction: f64,
    limit_bytes: u64,
    context_tokens: u32,
    numbers: Mutex<Numbers>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Numbers {
    requests: u64,
    refused: u64,
    waiting: u64,
    prompt_tokens: u64,
    cached_tokens: u64,
    answer_tokens: u64,
    decoded_tokens: u64,
    decode_steps: u64,
    drafted_tokens: u64,
    kept_tokens: u64,
    decode_seconds: f64,
    first_token_seconds: f64,
    read_beside_seconds: f64,
    answered_beside_seconds: f64,
    requested_neurons: u64,
    missing_neurons: u64,
    read_bytes: u64,
    peak_bytes: u64,
    stages: StageTimes,
}

impl Metrics {
    /// Nothing has happened yet.
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            planned_tokens_per_second: plan.expected.decode_tokens_per_second,
            planned_hit_fraction: plan.expected.hit_fraction,
            limit_bytes: plan.memory.limit_bytes,
            context_tokens: plan.context.tokens,
            numbers: Mutex::default(),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Numbers)) {
        change(&mut self.numbers.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// A request came into the queue.
    pub(super) fn asked(&self) {
        self.change(|numbers| numbers.requests += 1);
    }

    /// So many wait in it now.
    pub(super) fn waiting(&self, requests: usize) {
        self.change(|numbers| numbers.waiting = requests as u64);
    }

    /// A request was refused.
    pub(super) fn refused(&self) {
        self.change(|numbers| numbers.refused += 1);
    }

    /// Counts drafted tokens that were verified, and the ones that were kept.
    pub(super) fn drafted(&self, drafted: usize, kept: usize) {
        self.change(|numbers| {
            numbers.drafted_tokens += drafted as u64;
            numbers.kept_tokens += kept as u64;
            numbers.decoded_tokens += kept as u64;
        });
    }

    /// So many tokens were decoded together in such a time, drafts left out.
    pub(super) fn decoded(&self, tokens: usize, time: Duration, stages: &StageTimes) {
        self.change(|numbers| {
            numbers.decoded_tokens += tokens as u64;
            numbers.decode_steps += 1;
            numbers.decode_seconds += time.as_secs_f64();
            numbers.stages.add(stages);
        });
    }

    /// Counts the time that active answers waited for another prompt, and the time they decoded after it.
    pub(super) fn shared(&self, read: Duration, answered: Duration) {
        self.change(|numbers| {
            numbers.read_beside_seconds += read.as_secs_f64();
            numbers.answered_beside_seconds += answered.as_secs_f64();
        });
    }

    /// An answer was given, its first token after such a time.
    pub(super) fn answered(&self, usage: Usage, first: Duration) {
        self.change(|numbers| {
            numbers.prompt_tokens += usage.prompt as u64;
            numbers.cached_tokens += usage.cached as u64;
            numbers.answer_tokens += usage.answer as u64;
            numbers.first_token_seconds += first.as_secs_f64();
        });
    }

    /// The state after it.
    ///
    /// # Errors
    /// If the system does not say how much memory this process holds.
    pub(super) fn done(&self, session: &RunningPlan<'_>) -> Result<(), Failure> {
        let peak_bytes = footprint(None).map_err(failure)?.peak_bytes();
        let counters = session.counters();
        self.change(|numbers| {
            numbers.read_bytes = counters.read_bytes;
            numbers.peak_bytes = peak_bytes;
            numbers.requested_neurons = counters.looked_up;
            numbers.missing_neurons = counters.missing;
        });
        Ok(())
    }

    /// All of them.
    pub(super) fn text(&self) -> String {
        let n = *self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        let metric = |text: &mut String, name: &str, kind: &str, help: &str, value: f64| {
            // text takes everything
            let _ = write!(
                text,
                "# HELP flashplan_{name} {help}\n# TYPE flashplan_{name} {kind}\nflashplan_{name} {value}\n"
            );
        };
        for (name, help, value) in [
            ("requests_total", "Requests that were queued.", n.requests as f64),
            ("refused_total", "Requests that were refused.", n.refused as f64),
            ("prompt_tokens_total", "Tokens of prompts.", n.prompt_tokens as f64),
            (
                "prompt_tokens_cached_total",
                "Tokens of prompts that the context held already.",
                n.cached_tokens as f64,
            ),
            ("answer_tokens_total", "Tokens of answers.", n.answer_tokens as f64),
            ("decoded_tokens_total", "Tokens decoded.", n.decoded_tokens as f64),
            (
                "decode_steps_total",
                "Steps of decoding, of a token of each answer and drafts.",
                n.decode_steps as f64,
            ),
            ("decode_seconds_total", "Seconds of decoding.", n.decode_seconds),
            (
                "drafted_tokens_total",
                "Tokens drafted from the text itself and verified.",
                n.drafted_tokens as f64,
            ),
            ("kept_tokens_total", "Tokens of drafts that were kept.", n.kept_tokens as f64),
            (
                "first_token_seconds_total",
                "Seconds to the first token, over all answers.",
                n.first_token_seconds,
            ),
            (
                "prompt_wait_seconds_total",
                "Seconds that answers under way waited for prompts of others.",
                n.read_beside_seconds,
            ),
            (
                "prompt_share_seconds_total",
                "Seconds that they had after each piece of such a prompt.",
                n.answered_beside_seconds,
            ),
            ("neurons_requested_total", "Neurons requested by decoding.", n.requested_neurons as f64),
            (
                "neurons_missing_total",
                "Neurons requested by decoding that were not in memory.",
                n.missing_neurons as f64,
            ),
            ("read_bytes_total", "Bytes read from flash.", n.read_bytes as f64),
        ] {
            metric(&mut text, name, "counter", help, value);
        }
        let stages = "stage_seconds_total";
        let _ = write!(
            text,
            "# HELP flashplan_{stages} Seconds of decoding by stage.\n# TYPE flashplan_{stages} counter\n"
        );
        for stage in Stage::ALL {
            let (name, seconds) = (stage.name(), n.stages.of(stage).as_secs_f64());
            let _ = writeln!(text, "flashplan_{stages}{{stage=\"{name}\"}} {seconds}");
        }
        for (name, help, value) in [
            ("queue_requests", "Requests that wait.", n.waiting as f64),
            ("memory_peak_bytes", "The most that the process has held.", n.peak_bytes as f64),
            ("memory_limit_bytes", "The most that it may hold, by the plan.", self.limit_bytes as f64),
            (
                "context_tokens",
                "Tokens of a context, prompt and answer together.",
                f64::from(self.context_tokens),
            ),
            ("planned_tokens_per_second", "Decoding speed, by the plan.", self.planned_tokens_per_second),
            (
                "planned_hit_fraction",
                "Share of neurons found in memory, by the plan.",
                self.planned_hit_fraction,
            ),
        ] {
            metric(&mut text, name, "gauge", help, value);
        }
        text
    }
}
