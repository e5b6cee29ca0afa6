//! Sampling: from logits to the most likely token, or to one drawn after the usual cuts.
//!
//! ```text
//! repeat penalty -> frequency and presence penalties -> bias -> top k -> temperature -> softmax -> top p -> min p -> draw
//! ```

use std::cmp::Ordering;
use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::error::Error;

/// Sampling options. The default is greedy: always the most likely token.
///
/// Later versions may add options: start with the default and set what differs.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Sampling {
    /// Randomness: 0 takes the most likely token, 1 draws as the model says
    pub temperature: f32,
    /// Draw among the K most likely tokens; 0: all
    pub top_k: usize,
    /// Draw among the most likely tokens that together have this probability
    pub top_p: f32,
    /// Leave out tokens less likely than this share of the most likely one
    pub min_p: f32,
    /// Divide the scores of the last 64 tokens by this; 1: off
    pub repeat_penalty: f32,
    /// Take this from the scores of tokens that were chosen before; 0: off
    pub presence_penalty: f32,
    /// Take this from a token's score for each time that it was chosen before; 0: off
    pub frequency_penalty: f32,
    /// Added to the scores of these tokens, which the vocabulary has
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the draws
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

impl Sampling {
    /// Checks that every option is valid.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let refuse = |name, value, range| Err(Error::Sampling { name, value, range });
        for (name, value) in [("top-p", self.top_p), ("min-p", self.min_p)] {
            if !(0.0..=1.0).contains(&value) {
                return refuse(name, value, "a probability, 0 to 1");
            }
        }
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return refuse("temp", self.temperature, "0 or more");
        }
        if !(self.repeat_penalty > 0.0 && self.repeat_penalty.is_finite()) {
            return refuse("repeat-penalty", self.repeat_penalty, "above 0, and 1 is off");
        }
        for (name, value) in
            [("presence-penalty", self.presence_penalty), ("frequency-penalty", self.frequency_penalty)]
        {
            if !value.is_finite() {
                return refuse(name, value, "a number, and 0 is off");
            }
        }
        for &(_, value) in &self.logit_bias {
            if !value.is_finite() {
                return refuse("logit-bias", value, "a number, and 0 is off");
            }
        }
        Ok(())
    }
}

/// Number of tokens that the repeat penalty covers.
const PENALISED: usize = 64;

/// Chooses tokens; the same seed and logits give the same tokens.
#[derive(Debug)]
pub struct Sampler {
    sampling: Sampling,
    random: StdRng,
    recent: Vec<u32>,
    /// How often each token was chosen.
    chosen: BTreeMap<u32, u32>,
    candidates: Vec<(u32, f32)>,
}

impl Sampler {
    /// A sampler without history.
    ///
    /// # Errors
    /// [`Error::Sampling`] for an invalid option.
    pub fn new(sampling: Sampling) -> Result<Self, Error> {
        sampling.check()?;
        let random = StdRng::seed_from_u64(sampling.seed);
        Ok(Self { sampling, random, recent: Vec::new(), chosen: BTreeMap::new(), candidates: Vec::new() })
    }

    /// Records a token of the prompt for the repeat penalty.
    pub fn saw(&mut self, token: u32) {
        if self.recent.len() == PENALISED {
            self.recent.remove(0);
        }
        self.recent.push(token);
    }

    /// Chooses the next token. A token whose logit is negative infinity is never chosen while there is
    /// another.
    ///
    /// *Shapes*: `logits: [vocabulary]`.
    pub fn sample(&mut self, logits: &[f32]) -> u32 {
        self.sample_among(logits, |_| true).unwrap_or(0)
    }

    /// Chooses the next token among `allowed` ones; `None` if there is none. `allowed` is called only for
    /// likely tokens. The cuts apply to all tokens, and the draw is among what they leave. If no allowed
    /// token is left, the most likely allowed one is chosen.
    ///
    /// *Shapes*: `logits: [vocabulary]`.
    pub fn sample_among(&mut self, logits: &[f32], mut allowed: impl FnMut(u32) -> bool) -> Option<u32> {
        self.score(logits);
        let first = if self.sampling.temperature == 0.0 {
            most_likely(&self.candidates)
        } else {
            cut(&mut self.candidates, &self.sampling);
            self.draw()
        };
        let mut token = Some(first).filter(|&token| allowed(token));
        if token.is_none() && self.sampling.temperature != 0.0 {
            self.candidates.retain(|&(token, _)| allowed(token));
            token = (!self.candidates.is_empty()).then(|| self.draw());
        }
        if token.is_none() {
            self.score(logits);
            token = likeliest(&mut self.candidates, allowed);
        }
        let token = token?;
        self.saw(token);
        *self.chosen.entry(token).or_default() += 1;
        Some(token)
    }

    /// Lists all tokens with their scores, after penalties and bias.
    fn score(&mut self, logits: &[f32]) {
        self.candidates.clear();
        self.candidates.extend((0..).zip(logits.iter().copied()));
        self.penalise();
    }

    /// Draws a candidate by probability; probabilities may sum to less than 1.
    fn draw(&mut self) -> u32 {
        let total: f32 = self.candidates.iter().map(|&(_, p)| p).sum();
        let mut left = self.random.random::<f32>() * total;
        let drawn = self.candidates.iter().find(|&&(_, p)| {
            left -= p;
            left < 0.0
        });
        drawn.or(self.candidates.last()).map_or(0, |&(token, _)| token)
    }

    /// Applies penalties and biases to the scores.
    fn penalise(&mut self) {
        let Sampling { repeat_penalty, presence_penalty, frequency_penalty, .. } = self.sampling;
        let mut change = |token: u32, new: &dyn Fn(f32) -> f32| {
            if let Some((_, logit)) = self.candidates.get_mut(token as usize) {
                *logit = new(*logit);
            }
        };
        if repeat_penalty != 1.0 {
            for (i, &token) in self.recent.iter().enumerate() {
                if !self.recent[..i].contains(&token) {
                    change(token, &|x| if x > 0.0 { x / repeat_penalty } else { x * repeat_penalty });
                }
            }
        }
        if presence_penalty != 0.0 || frequency_penalty != 0.0 {
            for (&token, &times) in &self.chosen {
                change(token, &|x| x - presence_penalty - frequency_penalty * times as f32);
            }
        }
        for &(token, bias) in &self.sampling.logit_bias {
            change(token, &|x| x + bias);
        }
    }
}

/// The most likely token; the lowest number in a tie.
fn most_likely(candidates: &[(u32, f32)]) -> u32 {
    let mut best = (0, f32::NEG_INFINITY);
    for &(token, logit) in candidates {
        if logit > best.1 {
            best = (token, logit);
        }
    }
    best.0
}

/// The order of candidates: most likely first; the lowest number in a tie.
fn by_likelihood(a: &(u32, f32), b: &(u32, f32)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// Candidates that are sorted first to find an allowed one; usually one of them is.
const LIKELY: usize = 64;

/// The most likely allowed token.
fn likeliest(candidates: &mut [(u32, f32)], mut allowed: impl FnMut(u32) -> bool) -> Option<u32> {
    let middle = LIKELY.min(candidates.len());
    if middle < candidates.len() {
        candidates.select_nth_unstable_by(middle, by_likelihood);
    }
    let (likely, others) = candidates.split_at_mut(middle);
    [likely, others].into_iter().find_map(|part| {
        part.sort_unstable_by(by_likelihood);
        let found = part.iter().find(|&&(token, logit)| logit > f32::NEG_INFINITY && allowed(token));
        found.map(|&(token, _)| token)
    })
}

/// Keeps the likely tokens, most likely first, with their probabilities; at least one.
fn cut(candidates: &mut Vec<(u32, f32)>, sampling: &Sampling) {
    if sampling.top_k > 0 && sampling.top_k < candidates.len() {
        candidates.select_nth_unstable_by(sampling.top_k - 1, by_likelihood);
        candidates.truncate(sampling.top_k);
    }
    candidates.sort_unstable_by(by_likelihood);
    let max = candidates.first().map_or(0.0, |&(_, logit)| logit);
    let mut sum = 0.0;
    for (_, p) in candidates.iter_mut() {
        *p = ((*p - max) / sampling.temperature).exp();
        sum += *p;
    }
    let (mut seen, likeliest) = (0.0, 1.0 / sum);
    let mut keep = 0;
    for (_, p) in candidates.iter_mut() {
        *p /= sum;
        let enough = seen >= sampling.top_p || *p < sampling.min_p * likeliest || *p == 0.0;
        if keep > 0 && enough {
            break;
        }
        seen += *p;
        keep += 1;
    }
    candidates.truncate(keep);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampling(temperature: f32) -> Sampling {
        Sampling { temperature, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 1, ..Sampling::default() }
    }

    #[test]
    fn greedy_takes_the_first_of_the_highest() {
        let mut sampler = Sampler::new(sampling(0.0)).unwrap();
        assert_eq!(sampler.sample(&[0.0, 3.0, 3.0, -1.0]), 1);
    }

    #[test]
    fn draws_follow_the_probabilities_and_the_seed() {
        let logits = [0.0, 2.0_f32.ln(), 5.0_f32.ln(), f32::NEG_INFINITY];
        let draw = |seed| {
            let mut sampler = Sampler::new(Sampling { seed, ..sampling(1.0) }).unwrap();
            (0..4000).map(|_| sampler.sample(&logits)).collect::<Vec<_>>()
        };
        let drawn = draw(7);
        let share = |token| drawn.iter().filter(|&&t| t == token).count() as f32 / 4000.0;
        for (token, expected) in [(0, 0.125), (1, 0.25), (2, 0.625), (3, 0.0)] {
            assert!((share(token) - expected).abs() < 0.03, "{token}: {}", share(token));
        }
        assert_eq!(drawn, draw(7));
        assert_ne!(drawn, draw(8));
    }

    #[test]
    fn each_cut_leaves_what_it_should() {
        let left = |change: &dyn Fn(&mut Sampling)| {
            let mut sampling = sampling(1.0);
            change(&mut sampling);
            let mut candidates: Vec<(u32, f32)> = (0..).zip([0.1_f32, 0.4, 0.2, 0.3].map(f32::ln)).collect();
            cut(&mut candidates, &sampling);
            candidates.iter().map(|c| c.0).collect::<Vec<_>>()
        };
        assert_eq!(left(&|_| {}), [1, 3, 2, 0]);
        assert_eq!(left(&|s| s.top_k = 2), [1, 3]);
        assert_eq!(left(&|s| s.top_p = 0.6), [1, 3]);
        assert_eq!(left(&|s| s.top_p = 0.0), [1], "one is always left");
        assert_eq!(left(&|s| s.min_p = 0.45), [1, 3, 2]);
        assert_eq!(left(&|s| s.temperature = 0.5), [1, 3, 2, 0], "the order stays");
    }

    #[test]
    fn a_penalty_turns_away_from_what_was_said() {
        let mut sampler = Sampler::new(Sampling { repeat_penalty: 2.0, ..sampling(0.0) }).unwrap();
        assert_eq!(sampler.sample(&[1.0, 1.5, -1.0]), 1);
        assert_eq!(sampler.sample(&[1.0, 1.5, -1.0]), 0);
        sampler.saw(2);
        assert_eq!(sampler.sample(&[-5.0, -5.0, -2.0]), 2, "-4 after the penalty is still the highest");
    }
    /// Compares each token's score with the documented one: `logit - presence - frequency * times`, plus the
    /// bias.
    #[test]
    fn what_was_chosen_is_penalised_by_presence_and_by_number_and_the_prompt_is_not() {
        let logits = [2.0_f32, 1.0, 0.5, -1.0];
        let penalties = Sampling { presence_penalty: 0.4, frequency_penalty: 0.7, ..sampling(0.0) };
        let penalties = Sampling { logit_bias: vec![(3, 1.9), (9, 50.0)], ..penalties };
        let mut sampler = Sampler::new(penalties).unwrap();
        (0..3).for_each(|_| sampler.saw(0));
        let mut times = [0; 4];
        for _ in 0..20 {
            let score = |token: usize| {
                let presence = if times[token] > 0 { 0.4 } else { 0.0 };
                logits[token] - presence - 0.7 * times[token] as f32 + if token == 3 { 1.9 } else { 0.0 }
            };
            let best = (0..4).max_by(|&a, &b| score(a).total_cmp(&score(b))).unwrap();
            assert_eq!(sampler.sample(&logits), best as u32, "after {times:?}");
            times[best] += 1;
        }
        assert!(times.iter().all(|&times| times > 0), "{times:?}");
    }

    /// Drawing among allowed tokens has the same distribution as with all others impossible.
    #[test]
    fn the_draw_among_allowed_tokens_has_their_probabilities() {
        let logits: Vec<f32> = (0..500).map(|token| ((token * 7919) % 500) as f32 / 100.0).collect();
        let allowed = |token: u32| token % 3 == 1;
        let masked: Vec<f32> =
            (0..).zip(&logits).map(|(t, &x)| if allowed(t) { x } else { f32::NEG_INFINITY }).collect();
        let counts = |logits: &[f32], all: bool| {
            let mut sampler = Sampler::new(sampling(0.7)).unwrap();
            let mut counts = vec![0_i32; 500];
            for _ in 0..20_000 {
                counts[sampler.sample_among(logits, |token| all || allowed(token)).unwrap() as usize] += 1;
            }
            counts
        };
        let (among, beside) = (counts(&logits, false), counts(&masked, true));
        for (token, (a, b)) in among.into_iter().zip(beside).enumerate() {
            assert!((a - b).abs() < 20 + (a + b) / 8, "{token}: {a} {b}");
            assert!(a == 0 || allowed(token as u32), "{token}");
        }
    }

    #[test]
    fn where_the_cuts_leave_nothing_that_is_allowed_it_is_the_likeliest_that_is() {
        let logits: Vec<f32> = (0..300).map(|token| -(token as f32)).collect();
        for temperature in [0.0, 1.0] {
            let cut = Sampling { top_k: 5, ..sampling(temperature) };
            for least in [2, 40, 90, 250] {
                let mut sampler = Sampler::new(cut.clone()).unwrap();
                let mut asked = 0;
                let token = sampler.sample_among(&logits, |token| {
                    asked += 1;
                    token >= least
                });
                assert!(temperature > 0.0 && least == 2 || token == Some(least), "{token:?} {least}");
                assert!(asked <= 8 + least, "{asked}");
            }
            let mut sampler = Sampler::new(cut.clone()).unwrap();
            assert_eq!(sampler.sample_among(&logits, |_| false), None);
        }
    }

    #[test]
    fn what_is_impossible_is_never_drawn() {
        let mut logits = [f32::NEG_INFINITY; 50];
        (logits[7], logits[31]) = (-3.0, 2.0);
        let bias: Vec<(u32, f32)> = (0..50).map(|token| (token, 100.0)).collect();
        for temperature in [0.0, 1.0, 100.0] {
            let all = Sampling { logit_bias: bias.clone(), repeat_penalty: 1.5, ..sampling(temperature) };
            let mut sampler = Sampler::new(all).unwrap();
            for _ in 0..2000 {
                assert!(matches!(sampler.sample(&logits), 7 | 31));
            }
        }
    }

    #[test]
    fn a_number_that_means_nothing_is_refused_by_its_name() {
        for (wrong, name) in [
            (Sampling { presence_penalty: f32::NAN, ..sampling(0.0) }, "presence-penalty"),
            (Sampling { frequency_penalty: f32::INFINITY, ..sampling(0.0) }, "frequency-penalty"),
            (Sampling { logit_bias: vec![(1, f32::NEG_INFINITY)], ..sampling(0.0) }, "logit-bias"),
        ] {
            let error = Sampler::new(wrong).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
