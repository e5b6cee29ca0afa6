//! The expectation of a plan for some tokens: the terms of its cost model at their positions, the filling of the cache in all of
//! them. `plan` asks it of the run that its speed is for, `run` of the one that happened.
//!
//! A plan's constant, reads and hits hold for a warm cache. A run begins with empty slots, and misses more until they are filled: how
//! many more, for each length of a run, stands in the plan ([`crate::plan::Filling`]). Each is one read more and one hit less. Slots
//! of slices are filled by the prompt before a run, which reads every expert.
//!
//! Tokens differ. A profile tells how many neurons the median token misses, one in ten and one in a hundred, over those of the
//! mean one; the formula that prices the mean token prices these. What filling the slots costs falls on the first tokens. So the
//! run is drawn token by token, and its percentiles are read off. Keys and values are those of the mean position: of one run
//! they differ little. Nothing here knows the unrest of the machine, which measured times have on top.

use serde::Serialize;

use crate::Plan;
use crate::plan::{Filling, measured_run};
use crate::terms::{Factors, TokenSeconds};

/// Shares of the tokens at which a [`Distribution`] is told.
pub const QUANTILES: [f64; 3] = [0.5, 0.9, 0.99];
/// Tokens of a run that are drawn, where it has more.
const DRAWN_TOKENS: usize = 1000;

/// The interval around the speed that a plan from priors expects, as factors.
///
/// A judgement, not a bound. Recorded misses of Qwen3-30B-A3B and Gemma 4 26B-A4B differ by up to a fifth under tight limits.
/// gpt-oss-120b misses up to 2.8 times as often there, and 3.8 times under loose limits. Plans from full profiles err by up to 29 %.
pub const PRIOR_FACTORS: [f64; 2] = [0.6, 1.6];

/// The interval around a speed that a plan from priors expects.
pub fn with_priors(tokens_per_second: f64) -> [f64; 2] {
    PRIOR_FACTORS.map(|factor| factor * tokens_per_second)
}

/// How something is spread over tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Distribution {
    /// The mean.
    pub mean: f64,
    /// The median, which half of the tokens do not exceed.
    pub p50: f64,
    /// The 90th percentile, which nine in ten tokens do not exceed.
    pub p90: f64,
    /// The 99th percentile, which 99 in a hundred tokens do not exceed.
    pub p99: f64,
}

impl Distribution {
    /// The distribution of one value or more; `None` for none.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_unstable_by(f64::total_cmp);
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let [p50, p90, p99] = QUANTILES.map(|share| quantile(&values, share));
        Some(Self { mean, p50: p50?, p90: p90?, p99: p99? })
    }
}

/// The least of some ascending values that a share of them does not exceed: one that occurred; `None` of none.
pub fn quantile<T: Copy>(ascending: &[T], share: f64) -> Option<T> {
    let rank = (ascending.len() as f64 * share).ceil() as usize;
    ascending.get(rank.saturating_sub(1)).copied()
}

/// The most that a quantile of what is never below zero can be over its mean: that many tokens have as much at least.
pub(crate) fn over_mean_max(share: f64) -> f64 {
    (1.0 / (1.0 - share)).round()
}

/// Tokens that are decoded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stream {
    /// Number of tokens.
    pub tokens: usize,
    /// The sum of the tokens' positions.
    pub positions: f64,
    /// Times that the stream begins with empty slots.
    pub starts: usize,
    /// Whether each time a prompt comes first, which fills the slots of slices.
    pub prompted: bool,
    /// Neurons of the routed experts, all layers, for each token.
    pub routed_per_token: f64,
}

impl Stream {
    /// The stream for which a plan's speed is told, at a context of so many tokens.
    pub fn measured(context: u32, routed_per_token: f64) -> Self {
        let (prompt, generated) = measured_run(context);
        let (first, tokens) = (f64::from(prompt), f64::from(generated));
        let positions = tokens * (first + (tokens - 1.0) / 2.0);
        Self { tokens: generated as usize, positions, starts: 1, prompted: prompt > 0, routed_per_token }
    }
}

/// The expectation for a stream of tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expectation {
    /// Seconds of all tokens.
    pub seconds: f64,
    /// Mean speed over all tokens.
    pub tokens_per_second: f64,
    /// Bytes read from flash for a token.
    pub bytes_read_per_token: f64,
    /// Share of the neurons requested that are in memory.
    pub hit_fraction: f64,
    /// Seconds of a token; `None` where the plan knows mean tokens only.
    pub latency_seconds: Option<Distribution>,
    /// Neurons that a token misses, over those that the mean token requests; `None` where the plan knows mean tokens only.
    pub miss_fraction: Option<Distribution>,
}

/// The plan's expectation for a stream; `None` for an empty one.
pub fn of(plan: &Plan, stream: &Stream) -> Option<Expectation> {
    let e = &plan.expected;
    let token = TokenSeconds {
        constant: e.decode_seconds_constant,
        per_context_token: e.decode_seconds_per_context_token,
        cold_start: e.decode_cold_start_seconds,
    };
    let of_terms = |times: f64| Some(plan.terms.as_ref()?.decode(plan, &Factors::NONE, times).constant);
    // the parts are rounded, each for itself
    let off = of_terms(1.0).map_or(0.0, |constant| token.constant - constant);
    with(plan, stream, &token, |times| Some(of_terms(times)? + off))
}

/// The plan's expectation for a stream on a machine that is so many times as fast as it assumes; `None` for an empty stream,
/// and for a plan that does not know what its times are made of.
///
/// Reads and hits are those of [`of`]: what is missing does not depend on speed, and how much of it is prefetched hardly.
pub fn at(plan: &Plan, stream: &Stream, factors: &Factors) -> Option<Expectation> {
    let terms = plan.terms.as_ref()?;
    let token = |times: f64| terms.decode(plan, factors, times);
    with(plan, stream, &token(1.0), |times| Some(token(times).constant))
}

/// Seconds that the plan expects of a prompt of so many tokens on a machine that is so many times as fast as it assumes.
/// A plan that does not know what its times are made of knows that of one prompt at the assumed rates.
pub fn prompt_seconds(plan: &Plan, tokens: usize, factors: &Factors) -> Option<f64> {
    let (known, _) = measured_run(plan.context.tokens);
    if tokens == 0 {
        return None;
    }
    if tokens == known as usize && *factors == Factors::NONE {
        return Some(f64::from(known) / plan.expected.prefill_tokens_per_second);
    }
    let tokens = u32::try_from(tokens).ok()?;
    Some(plan.terms.as_ref()?.prompt_seconds(plan, tokens, factors))
}

/// Seconds from the start of the engine until it takes its first prompt, on a machine that is so many times as fast as the plan
/// assumes; `None` of a plan that does not know.
pub fn start_seconds(plan: &Plan, factors: &Factors) -> Option<f64> {
    Some(plan.terms.as_ref()?.start?.at(factors).seconds())
}

/// `constant(times)`: a token at position 0 with a warm cache that misses so many times what the mean one misses.
fn with(
    plan: &Plan,
    stream: &Stream,
    token: &TokenSeconds,
    constant: impl Fn(f64) -> Option<f64>,
) -> Option<Expectation> {
    if stream.tokens == 0 {
        return None;
    }
    let e = &plan.expected;
    let (tokens, starts) = (stream.tokens as f64, stream.starts.max(1) as f64);
    let requested = tokens * e.active_predicted_fraction * stream.routed_per_token;
    let length = tokens / starts;
    let filling = Filled::of(plan, stream, requested / tokens);
    let filled = (starts * filling.at(length)).min(e.hit_fraction * requested);
    let filled_fraction = if plan.slots() > 0.0 { filled / plan.slots() } else { 0.0 };
    let seconds = tokens * token.constant
        + stream.positions * token.per_context_token
        + token.cold_start * filled_fraction;
    let filled_bytes = filled * slot_read_bytes(plan);
    let found_later = if requested > 0.0 { filled / requested } else { 0.0 };
    let hit_fraction = (e.hit_fraction - found_later).clamp(0.0, 1.0);
    let drawn = Drawn {
        tokens: length,
        filling,
        requested: requested / tokens,
        context_seconds: stream.positions / tokens * token.per_context_token,
        slot_seconds: if plan.slots() > 0.0 { token.cold_start / plan.slots() } else { 0.0 },
    };
    let (latency, missing) = drawn.quantiles(plan, constant).unzip();
    let mean = |mean: f64, of: Option<Distribution>| of.map(|of| Distribution { mean, ..of });
    Some(Expectation {
        seconds,
        tokens_per_second: tokens / seconds,
        bytes_read_per_token: e.bytes_read_per_token + filled_bytes / tokens,
        hit_fraction,
        latency_seconds: mean(seconds / tokens, latency),
        miss_fraction: mean(1.0 - hit_fraction, missing),
    })
}

/// Neurons that a run misses since it begins with empty slots.
enum Filled<'p> {
    /// The prompt has filled them.
    Before,
    /// As the plan says.
    Told(&'p Filling),
    /// The plan does not say: all that a warm cache finds, so many for each token, until all slots are filled.
    Untold { found: f64, slots: f64 },
}

impl<'p> Filled<'p> {
    /// The misses of a stream that requests `requested` neurons a token.
    fn of(plan: &'p Plan, stream: &Stream, requested: f64) -> Self {
        if stream.prompted && plan.cache.slice_neurons > 1 {
            return Self::Before;
        }
        let untold = || Self::Untold { found: plan.expected.hit_fraction * requested, slots: plan.slots() };
        plan.filling.as_ref().map_or_else(untold, Self::Told)
    }

    /// Misses of the first `tokens` tokens.
    fn at(&self, tokens: f64) -> f64 {
        match self {
            Self::Before => 0.0,
            Self::Told(filling) => filling.at(tokens),
            Self::Untold { found, slots } => slots.min(found * tokens),
        }
    }
}

/// A run that begins with empty slots once, token by token.
struct Drawn<'p> {
    tokens: f64,
    filling: Filled<'p>,
    /// Neurons that a token requests.
    requested: f64,
    /// Keys and values of the mean position.
    context_seconds: f64,
    /// Seconds of reading a neuron into a slot.
    slot_seconds: f64,
}

impl Drawn<'_> {
    /// Percentiles of the seconds and misses of the tokens. Each token draws its warm misses evenly over the run; the first tokens also
    /// fill the slots.
    fn quantiles(
        &self,
        plan: &Plan,
        constant: impl Fn(f64) -> Option<f64>,
    ) -> Option<(Distribution, Distribution)> {
        /// Multiples of it lie evenly between whole numbers.
        const GOLDEN: f64 = 0.618_033_988_749_895;
        let (over_mean, hits) = (plan.expected.missing_over_mean()?, plan.expected.hit_fraction);
        let drawn = (self.tokens.ceil() as usize).clamp(1, DRAWN_TOKENS);
        let each = self.tokens / drawn as f64;
        let found = hits * self.requested;
        let token = |i: usize| {
            let (first, last) = (i as f64 * each, (i + 1) as f64 * each);
            let filled = ((self.filling.at(last) - self.filling.at(first)) / each).min(found);
            let times = of_share(over_mean, (GOLDEN * (i as f64 + 0.5)).fract());
            let seconds = constant(times)? + self.context_seconds + filled * self.slot_seconds;
            let found_later = if self.requested > 0.0 { filled / self.requested } else { 0.0 };
            Some((seconds, (1.0 - hits) * times + found_later))
        };
        let (seconds, missing) = (0..drawn).map(token).collect::<Option<_>>()?;
        Distribution::of(seconds).zip(Distribution::of(missing))
    }
}

/// The value that a share of the tokens does not exceed, of those at [`QUANTILES`]: on lines between them, and below the first as
/// far as the last lies above it.
fn of_share(values: [f64; QUANTILES.len()], share: f64) -> f64 {
    let [p50, _, p99] = values;
    let mut from = (0.0, (2.0 * p50 - p99).max(0.0));
    for to in QUANTILES.into_iter().zip(values) {
        if share <= to.0 {
            return from.1 + (to.1 - from.1) * (share - from.0) / (to.0 - from.0);
        }
        from = to;
    }
    p99
}

/// Bytes that are read to fill a slot of one neuron: its part of a read of its slice.
fn slot_read_bytes(plan: &Plan) -> f64 {
    if let Some(floor) = &plan.expected.floor {
        return floor.read_bytes as f64 / f64::from(plan.cache.slice_neurons);
    }
    if plan.slots() > 0.0 { plan.memory.cold_bytes as f64 / plan.slots() } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// 1000 neurons a token, of which 100 are requested and 80 found in a warm cache of 300 slots.
    fn plan() -> Plan {
        let path = Path::new("amd-epyc-2c-24g/oxide-dense/plan-20M.toml");
        let mut plan = crate::file::read::<Plan>(path).unwrap().value;
        plan.cache.cold_slots = vec![100, 200];
        plan.filling = None;
        let e = &mut plan.expected;
        (e.decode_seconds_constant, e.decode_seconds_per_context_token) = (0.1, 0.001);
        (e.decode_cold_start_seconds, e.active_predicted_fraction) = (3.0, 0.1);
        (e.hit_fraction, e.bytes_read_per_token) = (0.8, 20.0 * 4096.0);
        e.floor.as_mut().unwrap().read_bytes = 4096;
        plan
    }

    fn ran(tokens: usize, starts: usize) -> Stream {
        Stream { tokens, positions: 0.0, starts, prompted: true, routed_per_token: 1000.0 }
    }

    #[test]
    fn a_long_run_fills_every_slot_once() {
        let expected = of(&plan(), &ran(100, 1)).unwrap();
        assert!((expected.seconds - (100.0 * 0.1 + 3.0)).abs() < 1e-9);
        assert!((expected.bytes_read_per_token - (20.0 + 3.0) * 4096.0).abs() < 1e-6);
        assert!((expected.hit_fraction - (0.8 - 0.03)).abs() < 1e-9);
        // far more tokens: the plan's own figures
        let expected = of(&plan(), &ran(1_000_000, 1)).unwrap();
        assert!((expected.hit_fraction - 0.8).abs() < 1e-5);
        assert!((expected.tokens_per_second - 10.0).abs() < 1e-3);
    }

    #[test]
    fn a_prompt_fills_the_slots_of_slices() {
        let mut plan = plan();
        (plan.cache.slice_neurons, plan.expected.decode_cold_start_seconds) = (10, 0.0);
        let after = of(&plan, &ran(100, 1)).unwrap();
        assert_eq!((after.hit_fraction, after.bytes_read_per_token), (0.8, 20.0 * 4096.0));
        // a slot takes its part of its slice's read
        let alone = of(&plan, &Stream { prompted: false, ..ran(100, 1) }).unwrap();
        assert!((alone.bytes_read_per_token - (20.0 + 3.0 / 10.0) * 4096.0).abs() < 1e-6);
        assert!((alone.hit_fraction - (0.8 - 0.03)).abs() < 1e-9);
    }

    #[test]
    fn a_short_run_finds_nothing_and_pays_for_no_slot_that_it_does_not_fill() {
        let expected = of(&plan(), &ran(2, 1)).unwrap();
        assert!(expected.hit_fraction.abs() < 1e-9);
        // all 100 of each token are read
        assert!((expected.bytes_read_per_token - 100.0 * 4096.0).abs() < 1e-6);
        assert!((expected.seconds - (0.2 + 3.0 * 160.0 / 300.0)).abs() < 1e-9);
    }

    /// 200 of 300 slots are filled by what a warm cache would have had, 48 of them in the first token.
    fn filling() -> Filling {
        Filling { tokens: vec![1, 4, 10, 100], neurons: vec![48.0, 120.0, 180.0, 200.0] }
    }

    #[test]
    fn a_run_misses_more_as_long_as_slots_are_free() {
        let filling = filling();
        let of_run = [0.0, 0.5, 1.0, 2.5, 10.0, 55.0, 1e9].map(|tokens| filling.at(tokens));
        assert_eq!(of_run, [0.0, 24.0, 48.0, 84.0, 180.0, 190.0, 200.0]);
        let mut plan = plan();
        plan.filling = Some(filling);
        let expected = of(&plan, &ran(10, 1)).unwrap();
        assert!((expected.bytes_read_per_token - (20.0 + 18.0) * 4096.0).abs() < 1e-6);
        assert!((expected.hit_fraction - (0.8 - 0.18)).abs() < 1e-9);
        assert!((expected.seconds - (10.0 * 0.1 + 3.0 * 180.0 / 300.0)).abs() < 1e-9);
        // so many times from the beginning
        let thrice = of(&plan, &ran(30, 3)).unwrap();
        assert!((thrice.seconds - 3.0 * expected.seconds).abs() < 1e-9, "{thrice:?}");
        // the first token misses most: 20, and 48 more
        spread(&mut plan, [1.0, 1.0, 1.0]);
        let missing = of(&plan, &ran(50, 1)).unwrap().miss_fraction.unwrap();
        assert!((missing.p99 - 0.68).abs() < 1e-9, "{missing:?}");
    }

    #[test]
    fn speed_hits_and_reads_are_of_the_same_run() {
        for filling in [None, Some(filling())] {
            speed_hits_and_reads_agree(&Plan { filling, ..plan() });
        }
    }

    fn speed_hits_and_reads_agree(plan: &Plan) {
        let e = &plan.expected;
        for tokens in [1, 3, 10, 100, 1000] {
            let expected = of(plan, &ran(tokens, 1)).unwrap();
            let more_reads = (expected.bytes_read_per_token - e.bytes_read_per_token) / 4096.0;
            let less_hits = (e.hit_fraction - expected.hit_fraction) * 100.0;
            let more_seconds = (expected.seconds / tokens as f64 - 0.1) / (3.0 / 300.0);
            assert!((more_reads - less_hits).abs() < 1e-9, "{tokens}: {more_reads} {less_hits}");
            assert!((more_reads - more_seconds).abs() < 1e-9, "{tokens}: {more_reads} {more_seconds}");
        }
    }

    #[test]
    fn the_plans_own_speed_is_that_of_its_stream() {
        let path = Path::new("amd-epyc-2c-24g/oxide-dense/plan-20M.toml");
        let plan = crate::file::read::<Plan>(path).unwrap().value;
        // neurons enough for a run of this length to fill every slot
        let expected = of(&plan, &Stream::measured(plan.context.tokens, 1e9)).unwrap();
        let planned = plan.expected.decode_tokens_per_second;
        assert!((expected.tokens_per_second / planned - 1.0).abs() < 1e-4, "{expected:?} {planned}");
    }

    #[test]
    fn every_start_is_cold_and_positions_cost() {
        let (once, thrice) = (of(&plan(), &ran(100, 1)).unwrap(), of(&plan(), &ran(300, 3)).unwrap());
        assert!((once.tokens_per_second - thrice.tokens_per_second).abs() < 1e-9);
        assert!((once.hit_fraction - thrice.hit_fraction).abs() < 1e-9);
        let far = of(&plan(), &Stream { positions: 1000.0, ..ran(100, 1) }).unwrap();
        assert!((far.seconds - once.seconds - 1.0).abs() < 1e-9);
        assert_eq!(of(&plan(), &ran(0, 1)), None);
    }

    fn spread(plan: &mut Plan, [p50, p90, p99]: [f64; 3]) {
        let e = &mut plan.expected;
        (e.missing_p50_over_mean, e.missing_p90_over_mean, e.missing_p99_over_mean) =
            (Some(p50), Some(p90), Some(p99));
    }

    /// 20 of 100 are missing; the tenth of the tokens that misses most misses 1.5 times that.
    #[test]
    fn percentiles_are_what_the_formula_says_of_tokens_that_miss_so_much() {
        let mut plan = plan();
        plan.cache.cold_slots = vec![0, 0];
        spread(&mut plan, [0.9, 1.5, 2.0]);
        let run = of(&plan, &ran(1000, 1)).unwrap();
        let missing = run.miss_fraction.unwrap();
        let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 0.01, "{a} {b}");
        near(missing.p50, 0.9 * 0.2);
        near(missing.p90, 1.5 * 0.2);
        near(missing.p99, 2.0 * 0.2);
        assert_eq!(missing.mean, 1.0 - run.hit_fraction);
        let terms = plan.terms.as_ref().unwrap();
        let token = |times| terms.decode(&plan, &Factors::NONE, times).constant;
        let latency = run.latency_seconds.unwrap();
        near(latency.p99 - latency.p50, token(2.0) - token(0.9));
        assert_eq!(latency.mean, run.seconds / 1000.0);
        // reads take longer in a slow hour
        let slow = Factors { random_reads: 0.5, ..Factors::NONE };
        let hour = at(&plan, &ran(1000, 1), &slow).unwrap().latency_seconds.unwrap();
        near(hour.p99, terms.decode(&plan, &slow, 2.0).constant);
    }

    #[test]
    fn tokens_that_are_all_alike_have_one_percentile_but_for_those_that_fill_the_slots() {
        let mut plan = plan();
        spread(&mut plan, [1.0, 1.0, 1.0]);
        // 300 slots in eight tokens: a handful, one in a hundred of which is told by the 99th percentile alone
        plan.filling = Some(Filling { tokens: vec![1, 2, 4, 8], neurons: vec![75.0, 140.0, 210.0, 300.0] });
        let run = of(&plan, &ran(400, 1)).unwrap();
        let missing = run.miss_fraction.unwrap();
        assert!((missing.p50 - 0.2).abs() < 1e-9, "{missing:?}");
        assert!(missing.p90 < 0.21 && missing.p99 > 0.4, "{missing:?}");
        // a run so short fills slots all the time: nothing is found
        plan.filling = None;
        let short = of(&plan, &ran(2, 1)).unwrap().miss_fraction.unwrap();
        assert!((short.p50 - 1.0).abs() < 1e-9 && (short.mean - 1.0).abs() < 1e-9, "{short:?}");
        // and none of it where a prompt fills them
        plan.cache.slice_neurons = 10;
        let after = of(&plan, &ran(400, 1)).unwrap().miss_fraction.unwrap();
        assert!((after.p99 - 0.2).abs() < 1e-9, "{after:?}");
    }

    #[test]
    fn a_plan_of_mean_tokens_only_tells_no_percentiles() {
        let mut plan = plan();
        spread(&mut plan, [1.0, 1.0, 1.0]);
        plan.expected.missing_p90_over_mean = None;
        let run = of(&plan, &ran(100, 1)).unwrap();
        assert_eq!((run.latency_seconds, run.miss_fraction), (None, None));
        spread(&mut plan, [1.0, 1.0, 1.0]);
        plan.terms = None;
        assert_eq!(of(&plan, &ran(100, 1)).unwrap().latency_seconds, None);
    }

    #[test]
    fn a_percentile_is_a_value_that_occurred() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let expected = Distribution { mean: 50.5, p50: 50.0, p90: 90.0, p99: 99.0 };
        assert_eq!(Distribution::of(hundred), Some(expected));
        assert_eq!(Distribution::of(Vec::new()), None);
        let one = Distribution { mean: 7.0, p50: 7.0, p90: 7.0, p99: 7.0 };
        assert_eq!(Distribution::of(vec![7.0]), Some(one));
    }
}
