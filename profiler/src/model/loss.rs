//! The loss of a quality level, and its upper bound on other text.
//!
//! The level and the dense model read the same windows of held-out text. Their negative log likelihoods are compared window by window, so
//! the difficulty of a window cancels.
//!
//! ```text
//! d     = sum rise_k / sum tokens_k                                the perplexity changes by exp(d) - 1
//! s^2   = K / (K - 1) * sum (rise_k - d tokens_k)^2 / (sum tokens_k)^2     variance of d, over K units
//! upper = d + t(0.95, K - 1) s                                     of windows: Student's t, one-sided
//! upper = d + t(0.95, K - 1) s sqrt(K + 1)                         of texts: the loss of one more of them
//! ```
//!
//! Source: W. G. Cochran, Sampling Techniques (3rd ed.), chapters 6 (ratio of two sums) and 9A (clusters). One more draw differs from the
//! mean of K by the variance `K s^2` of a draw and the variance `s^2` of the mean.
//!
//! **Units.** Windows of one text are similar: a level that loses on code loses on the next page of code, too. As independent units they
//! would promise too much, and a user has one text, not the mean of four. So there are two bounds: texts as units bound the loss of one more
//! text, windows as units bound the mean. The wider one holds. A single text only has windows, and its bound is of the mean over such
//! text. A single window has no bound.
//!
//! Text of another kind may lose more. A model trained on one kind of text predicts the held-out texts badly, and loses less on them than on
//! its own kind. So a level is also bounded by text that the model generated ([`Loss::bounded_by`]), each piece a text.

use distrs::StudentsT;

/// Share of profiles, with other texts of these kinds, whose bound is above the loss.
const CONFIDENCE: f64 = 0.95;

/// A window that the level and the dense model have read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Window {
    /// Number of the window's text.
    pub text: usize,
    /// Predicted tokens.
    pub tokens: usize,
    /// Negative log likelihood of the window, the level's minus the dense model's.
    pub rise: f64,
}

/// The loss of a level as changes of perplexity, fractions of the dense one.
#[derive(Debug, Clone, PartialEq)]
pub struct Loss {
    /// Over all windows.
    pub change: f64,
    /// Upper bound for one more text like these, with 95 % confidence; `None` for fewer than two windows.
    pub upper: Option<f64>,
    /// Over the windows of each text.
    pub of_texts: Vec<f64>,
}

impl Loss {
    /// The loss over these windows.
    pub fn of(windows: &[Window]) -> Self {
        let mut numbers: Vec<usize> = windows.iter().map(|window| window.text).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let units: Vec<Unit> = windows.iter().map(Unit::of).collect();
        let text = |&text: &usize| windows.iter().filter(|w| w.text == text).map(Unit::of).sum();
        let texts: Vec<Unit> = numbers.iter().map(text).collect();
        // the mean of windows, and one more text
        let one_more = (texts.len() as f64 + 1.0).sqrt();
        let upper = [upper(&units, 1.0), upper(&texts, one_more)].into_iter().flatten().reduce(f64::max);
        Self {
            change: units.iter().copied().sum::<Unit>().mean().exp_m1(),
            upper: upper.map(f64::exp_m1),
            of_texts: texts.iter().map(|text| text.mean().exp_m1()).collect(),
        }
    }
}

impl Loss {
    /// This loss, also bounded by the loss on text that the model generated: the larger bound holds.
    ///
    /// The texts are not pooled, because a few more texts of one kind would hide the other kind in the mean.
    #[must_use]
    pub fn bounded_by(mut self, own: &[Window]) -> Self {
        let own = Self::of(own);
        if let (Some(upper), Some(own)) = (&mut self.upper, own.upper) {
            // NaN stays, and is refused when it is written
            *upper = if own <= *upper { *upper } else { own };
        }
        self
    }
}

/// Tokens of a statistical unit, and their rise.
#[derive(Debug, Clone, Copy)]
struct Unit {
    tokens: f64,
    rise: f64,
}

impl Unit {
    fn of(window: &Window) -> Self {
        Self { tokens: window.tokens as f64, rise: window.rise }
    }

    /// The rise of a token; 0 without tokens.
    fn mean(self) -> f64 {
        self.rise / self.tokens.max(1.0)
    }
}

impl std::iter::Sum for Unit {
    fn sum<I: Iterator<Item = Self>>(units: I) -> Self {
        units.fold(Self { tokens: 0.0, rise: 0.0 }, |sum, unit| Self {
            tokens: sum.tokens + unit.tokens,
            rise: sum.rise + unit.rise,
        })
    }
}

/// The upper bound of the mean rise of a token, its deviation multiplied by `times`.
fn upper(units: &[Unit], times: f64) -> Option<f64> {
    let free = units.len().checked_sub(1).filter(|&free| free > 0)? as f64;
    let all: Unit = units.iter().copied().sum();
    let squares: f64 = units.iter().map(|unit| (unit.rise - all.mean() * unit.tokens).powi(2)).sum();
    let deviation = ((free + 1.0) / free * squares).sqrt() / all.tokens.max(1.0);
    Some(all.mean() + StudentsT::ppf(CONFIDENCE, free) * times * deviation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt as _, SeedableRng as _};

    /// A number of mean 0 and deviation 1.
    fn normal(random: &mut StdRng) -> f64 {
        let [u, v]: [f64; 2] = [random.random_range(f64::MIN_POSITIVE..1.0), random.random()];
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }

    /// A number of mean 0 and deviation 1 with a long tail on the side of large losses: one text in many is hard.
    fn skewed(random: &mut StdRng) -> f64 {
        -random.random_range(f64::MIN_POSITIVE..1.0).ln() - 1.0
    }

    /// Windows with random losses about `mean`, with these deviations between texts and between windows.
    fn windows(
        random: &mut StdRng,
        number: fn(&mut StdRng) -> f64,
        (mean, of_texts, of_tokens): (f64, f64, f64),
        (texts, each): (usize, usize),
    ) -> Vec<Window> {
        let mut all = Vec::new();
        for text in 0..texts {
            let own = mean + of_texts * number(random);
            for _ in 0..each {
                let tokens = random.random_range(60..120);
                let noise = of_tokens * (tokens as f64).sqrt() * number(random);
                all.push(Window { text, tokens, rise: own * tokens as f64 + noise });
            }
        }
        all
    }

    /// Percentage of profiles whose bound holds for the mean, and for one more text of the same length.
    fn covered(number: fn(&mut StdRng) -> f64, spread: (f64, f64), shape: (usize, usize)) -> [f64; 2] {
        const PROFILES: usize = 4000;
        let (mean, (of_texts, of_tokens)) = (0.008, spread);
        let mut random = StdRng::seed_from_u64(7);
        let mut held = [0; 2];
        for _ in 0..PROFILES {
            let read = windows(&mut random, number, (mean, of_texts, of_tokens), shape);
            let upper = Loss::of(&read).upper.expect("several windows");
            let more = Loss::of(&windows(&mut random, number, (mean, of_texts, of_tokens), (1, shape.1)));
            held[0] += usize::from(upper >= mean.exp_m1());
            held[1] += usize::from(upper >= more.change);
        }
        held.map(|held| held as f64 / PROFILES as f64)
    }

    #[test]
    fn the_bound_is_above_the_loss_of_one_more_text_in_95_profiles_of_100() {
        // texts that differ much, little and not at all; four kinds and more; few windows and many
        for shape in [(2, 3), (4, 1), (4, 4), (4, 12), (8, 3), (20, 2)] {
            for spread in [(0.01, 0.02), (0.003, 0.1), (0.0, 0.1), (0.01, 0.0)] {
                let [mean, more] = covered(normal, spread, shape);
                assert!(mean >= 0.95 && (0.93..0.99).contains(&more), "{shape:?} {spread:?}: {mean} {more}");
            }
        }
        // one text: its windows are the units, and the bound is of the mean
        let [mean, _] = covered(normal, (0.0, 0.1), (1, 6));
        assert!((0.93..0.97).contains(&mean), "{mean}");
    }

    #[test]
    fn windows_alone_would_promise_too_much_and_texts_do_not() {
        let mut random = StdRng::seed_from_u64(3);
        let (mut alone, mut together) = (0, 0);
        for _ in 0..2000 {
            let windows = windows(&mut random, normal, (0.008, 0.01, 0.02), (4, 12));
            let as_texts = Loss::of(&windows).upper.expect("several windows");
            let same: Vec<Window> = windows.iter().map(|&window| Window { text: 0, ..window }).collect();
            alone += usize::from(Loss::of(&same).upper.expect("several windows") >= 0.008_f64.exp_m1());
            together += usize::from(as_texts >= 0.008_f64.exp_m1());
        }
        assert!(alone < 1600 && together >= 1900, "{alone} and {together} of 2000");
    }

    #[test]
    fn less_text_makes_a_wider_bound() {
        let mut random = StdRng::seed_from_u64(5);
        let mut width = |each| {
            let profiles = (0..500).map(|_| {
                let of = Loss::of(&windows(&mut random, normal, (0.008, 0.001, 0.1), (4, each)));
                of.upper.expect("several windows") - of.change
            });
            profiles.sum::<f64>()
        };
        let [sixth, all] = [4, 24].map(&mut width);
        assert!((1.8..3.2).contains(&(sixth / all)), "the root of 6: {sixth} {all}");
    }

    #[test]
    fn a_long_tail_costs_some_of_the_coverage_and_not_more() {
        let [mean, more] = covered(skewed, (0.003, 0.03), (4, 4));
        assert!(mean >= 0.93 && more >= 0.88, "{mean} {more}");
    }

    #[test]
    fn a_bound_that_was_computed_by_hand() {
        let window = |text, rise| Window { text, tokens: 100, rise };
        // means by text 0.01 and 0.03: d = 0.02, s = 0.01, and t of one degree of freedom is 6.3138; one more of two texts
        let of = Loss::of(&[window(0, 1.0), window(1, 3.0)]);
        assert!((of.change - 0.02_f64.exp_m1()).abs() < 1e-12);
        assert!(
            (of.upper.expect("two") - (0.02 + 6.313_752 * 0.01 * 3f64.sqrt()).exp_m1()).abs() < 1e-6,
            "{of:?}"
        );
        assert_eq!(of.of_texts, [0.01_f64.exp_m1(), 0.03_f64.exp_m1()]);
        // texts that agree to the bit leave the windows: rises of 0, 2, 0, 2, s = 0.01 / sqrt 3
        let of = Loss::of(&[window(0, 0.0), window(0, 2.0), window(1, 0.0), window(1, 2.0)]);
        let expected = 0.01 + 2.353_363 * 0.01 / 3f64.sqrt();
        assert!((of.upper.expect("four") - expected.exp_m1()).abs() < 1e-6, "{of:?}");
    }

    #[test]
    fn one_window_has_no_bound_and_equal_models_lose_nothing() {
        let window = |text, rise| Window { text, tokens: 50, rise };
        assert_eq!(Loss::of(&[window(0, 1.0)]).upper, None);
        assert_eq!(Loss::of(&[]), Loss { change: 0.0, upper: None, of_texts: Vec::new() });
        let same = Loss::of(&[window(2, 0.0), window(2, 0.0), window(5, 0.0)]);
        assert_eq!(same, Loss { change: 0.0, upper: Some(0.0), of_texts: vec![0.0; 2] });
    }

    #[test]
    fn what_the_model_wrote_itself_widens_a_bound_and_changes_nothing_else() {
        let window = |text, rise| Window { text, tokens: 100, rise };
        let read = [window(0, 1.0), window(1, 3.0), window(2, 2.0)];
        let of = Loss::of(&read);
        let harder = [window(0, 7.0), window(1, 9.0)];
        let bounded = of.clone().bounded_by(&harder);
        assert_eq!((bounded.change, &bounded.of_texts), (of.change, &of.of_texts));
        assert_eq!(bounded.upper, Loss::of(&harder).upper);
        assert_eq!(of.clone().bounded_by(&[window(0, -1.0), window(1, -1.0)]), of);
        assert_eq!(of.clone().bounded_by(&[]), of);
    }
}
