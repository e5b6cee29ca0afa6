//! A rotary embedding's frequencies, computed once from its description.

use kernels::{Rotation, fill_rotations, rope, rope_frequency, rope_halves};

use crate::model::config::{Pairing, Rope, RopeScaling};

/// The frequencies of a rotary embedding.
#[derive(Debug, Clone)]
pub struct Rotary {
    pairing: Pairing,
    /// Radians per position, for each pair.
    frequencies: Box<[f64]>,
    /// The factor of cosines and sines.
    magnitude: f64,
}

impl Rotary {
    /// The frequencies of a description, for a context of `context` tokens.
    pub fn new(rope: &Rope, context: usize) -> Self {
        let pairs = rope.width / 2;
        let long = rope.long.as_ref().filter(|long| context > long.original_context);
        let divisors = long.map_or(&rope.divisors, |long| &long.divisors);
        let frequency = |i: usize| {
            let divisor = divisors.get(i).map_or(1.0, |&divisor| f64::from(divisor));
            let own = rope_frequency(rope.base, i, pairs) / divisor;
            match rope.scaling {
                RopeScaling::None => own,
                RopeScaling::Linear { factor } => own / f64::from(factor),
                RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, exact } => {
                    let limits = yarn_limits(rope, original_context, beta_fast, beta_slow);
                    let [low, high] = if exact { limits } else { [limits[0].floor(), limits[1].ceil()] };
                    let [low, high] = [low.max(0.0), high.min(rope.width as f64 - 1.0)];
                    let stays = 1.0 - ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                    own * stays + own / f64::from(factor) * (1.0 - stays)
                }
            }
        };
        let frequencies = (0..pairs).map(frequency).collect();
        Self { pairing: rope.pairing, frequencies, magnitude: f64::from(rope.magnitude) }
    }

    /// Number of rotated pairs of a head.
    pub fn pairs(&self) -> usize {
        self.frequencies.len()
    }

    /// The rotations at a position, `[pairs]`.
    pub fn fill(&self, position: usize, out: &mut [Rotation]) {
        fill_rotations(&self.frequencies, self.magnitude, position, out);
    }

    /// Rotates heads: `[heads, head_width]`.
    pub fn rotate(&self, heads: &mut [f32], head_width: usize, rotations: &[Rotation]) {
        match self.pairing {
            Pairing::Adjacent => rope(heads, head_width, rotations),
            Pairing::Halves => rope_halves(heads, head_width, rotations),
        }
    }
}

/// The first pair that is scaled at all, and the first that is scaled fully: they turn `beta_fast` and
/// `beta_slow` times within the original context.
fn yarn_limits(rope: &Rope, original_context: usize, beta_fast: f32, beta_slow: f32) -> [f64; 2] {
    let width = rope.width as f64;
    let turns = |beta: f32| {
        let ratio = original_context as f64 / (f64::from(beta) * std::f64::consts::TAU);
        width * ratio.ln() / (2.0 * f64::from(rope.base).ln())
    };
    [turns(beta_fast), turns(beta_slow)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::LongContext;

    fn frequencies(scaling: RopeScaling, divisors: &[f32]) -> Vec<f64> {
        let plain = Rope::plain(Pairing::Halves, 8, 10_000.0);
        let rotary = Rotary::new(&Rope { scaling, divisors: divisors.to_vec(), ..plain }, 64);
        rotary.frequencies.to_vec()
    }

    #[track_caller]
    fn check(found: &[f64], expected: [f64; 4]) {
        let close = found.iter().zip(expected).all(|(f, e)| (f - e).abs() < 1e-9 * e);
        assert!(found.len() == 4 && close, "{found:?} {expected:?}");
    }

    #[test]
    fn frequencies_fall_by_the_base_and_scalings_divide_them() {
        check(&frequencies(RopeScaling::None, &[]), [1.0, 0.1, 0.01, 0.001]);
        check(&frequencies(RopeScaling::Linear { factor: 4.0 }, &[]), [0.25, 0.025, 0.0025, 0.00025]);
        check(&frequencies(RopeScaling::None, &[1.0, 1.0, 2.0, 8.0]), [1.0, 0.1, 0.005, 0.000_125]);
    }

    #[test]
    fn yarn_leaves_what_turns_often_and_divides_what_turns_seldom() {
        // within 1000 tokens the pairs turn 159, 16, 1.6 and 0.16 times: 32 turns are pair 0.7, one is pair 2.2
        let yarn = |exact| RopeScaling::Yarn {
            factor: 8.0,
            original_context: 1000,
            beta_fast: 32.0,
            beta_slow: 1.0,
            exact,
        };
        let found = frequencies(yarn(false), &[]);
        let between = |own: f64, scaled: f64| own * (1.0 - scaled) + own / 8.0 * scaled;
        // rounded outwards, the limits are 0 and 3
        check(&found, [1.0, between(0.1, 1.0 / 3.0), between(0.01, 2.0 / 3.0), 0.001 / 8.0]);
        // or exact
        let turns = |count: f64| 4.0 * (1000.0 / (count * std::f64::consts::TAU)).ln() / 10_000_f64.ln();
        let scaled = |pair: f64| (pair - turns(32.0)) / (turns(1.0) - turns(32.0));
        let found = frequencies(yarn(true), &[]);
        check(&found, [1.0, between(0.1, scaled(1.0)), between(0.01, scaled(2.0)), 0.001 / 8.0]);
    }

    #[test]
    fn a_long_context_has_divisors_of_its_own() {
        let long = Some(LongContext { original_context: 100, divisors: vec![4.0, 5.0] });
        let rope = Rope { long, divisors: vec![1.0, 2.0], ..Rope::plain(Pairing::Halves, 4, 100.0) };
        assert_eq!(*Rotary::new(&rope, 100).frequencies, [1.0, 0.1 / 2.0]);
        assert_eq!(*Rotary::new(&rope, 101).frequencies, [1.0 / 4.0, 0.1 / 5.0]);
    }

    #[test]
    fn positions_beyond_the_context_go_on() {
        let rotary = Rotary::new(&Rope::plain(Pairing::Adjacent, 2, 10_000.0), 8);
        let mut rotation = [Rotation::default()];
        rotary.fill(100_000, &mut rotation);
        assert_eq!(rotation[0].cos, 100_000_f64.cos() as f32);
    }
}
