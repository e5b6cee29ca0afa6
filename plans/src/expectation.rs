//! The expectation of a plan for some tokens: the terms of its cost model at their positions, the filling of the cache in all of
//! them. `plan` asks it of the run that its speed is for, `run` of the one that happened.
//!
//! A plan's constant, reads and hits hold for a warm cache; what filling the slots costs stands beside them, once. A run begins
//! with empty slots. Each slot that is filled is one neuron that a warm cache would have had: one read more, and one hit
//! less. No more slots are filled than a warm cache has hits, so that a short run fills only a part of them. Slots of slices are
//! filled by the prompt before a run, which reads every expert.

use crate::Plan;
use crate::plan::measured_run;
use crate::terms::{Factors, TokenSeconds};

/// Tokens that are decoded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stream {
    /// How many.
    pub tokens: usize,
    /// The sum of their positions.
    pub positions: f64,
    /// How many times they begin with empty slots.
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

/// Expected of those tokens together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expectation {
    /// The time of all of them.
    pub seconds: f64,
    /// Their speed.
    pub tokens_per_second: f64,
    /// Bytes read from flash for each.
    pub bytes_read_per_token: f64,
    /// Share of the neurons requested that are in memory.
    pub hit_fraction: f64,
}

/// The plan's expectation for a stream; `None` for an empty one.
pub fn of(plan: &Plan, stream: &Stream) -> Option<Expectation> {
    let e = &plan.expected;
    let token = TokenSeconds {
        constant: e.decode_seconds_constant,
        per_context_token: e.decode_seconds_per_context_token,
        cold_start: e.decode_cold_start_seconds,
    };
    with(plan, stream, &token)
}

/// The plan's expectation for a stream on a machine that is so many times as fast as it assumes; `None` for an empty stream,
/// and for a plan that does not know what its times are made of.
///
/// Reads and hits are those of [`of`]: what is missing does not depend on speed, and how much of it is prefetched hardly.
pub fn at(plan: &Plan, stream: &Stream, factors: &Factors) -> Option<Expectation> {
    with(plan, stream, &plan.terms.as_ref()?.decode(plan, factors))
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

fn with(plan: &Plan, stream: &Stream, token: &TokenSeconds) -> Option<Expectation> {
    if stream.tokens == 0 {
        return None;
    }
    let e = &plan.expected;
    let (tokens, starts) = (stream.tokens as f64, stream.starts.max(1) as f64);
    let requested = tokens * e.active_predicted_fraction * stream.routed_per_token;
    let slots: f64 = plan.cache.cold_slots.iter().map(|&slots| f64::from(slots)).sum();
    let filled_before = stream.prompted && plan.cache.slice_neurons > 1;
    let slots = if filled_before { 0.0 } else { starts * slots };
    let filled = slots.min(e.hit_fraction * requested);
    let filled_fraction = if slots > 0.0 { filled / slots } else { 0.0 };
    let seconds = tokens * token.constant
        + stream.positions * token.per_context_token
        + starts * token.cold_start * filled_fraction;
    let filled_bytes = filled * slot_read_bytes(plan);
    let found_later = if requested > 0.0 { filled / requested } else { 0.0 };
    Some(Expectation {
        seconds,
        tokens_per_second: tokens / seconds,
        bytes_read_per_token: e.bytes_read_per_token + filled_bytes / tokens,
        hit_fraction: (e.hit_fraction - found_later).clamp(0.0, 1.0),
    })
}

/// Bytes that are read to fill a slot of one neuron: its part of a read of its slice.
fn slot_read_bytes(plan: &Plan) -> f64 {
    if let Some(floor) = &plan.expected.floor {
        return floor.read_bytes as f64 / f64::from(plan.cache.slice_neurons);
    }
    let slots: f64 = plan.cache.cold_slots.iter().map(|&slots| f64::from(slots)).sum();
    if slots > 0.0 { plan.memory.cold_bytes as f64 / slots } else { 0.0 }
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

    #[test]
    fn speed_hits_and_reads_are_of_the_same_run() {
        let plan = plan();
        let e = &plan.expected;
        for tokens in [1, 3, 10, 100, 1000] {
            let expected = of(&plan, &ran(tokens, 1)).unwrap();
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
}
