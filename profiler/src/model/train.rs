//! Training of low-rank predictors: `fc2 . h(fc1 . x) + bias` with [`Hidden`] `h`, one for each expert of each layer.
//!
//! A neuron's logit learns the logarithm of the neuron's expected addition to the output ([`super::observe::Worths`]). Requests then
//! begin with the neurons that the output would miss most. A requested neuron costs one, a skipped neuron its worth. The loss
//! `ln(1 + e^z) + worth ln(1 + e^-z)`, summed over tokens, is least at `e^z = E[worth | x]`. Compared with predicting whether a neuron
//! fires, the trained fixtures request 25 to 40 % fewer neurons at the same perplexity.
//!
//! `AdamW` runs on minibatches with a short warm-up and a cosine decay. The state with the least loss on a validation slice is kept. The
//! bias is not stored: thresholds include it.
//!
//! *Source*: the form is PowerInfer's; its training is not published in detail, so this one is ours.

use rayon::prelude::*;

use flashplan::internals::predictor::Hidden;

use super::matrix::{Use, product};
use super::observe::Samples;

/// Tokens of a minibatch.
const BATCH: usize = 128;
/// Consecutive tokens on one side of the split, so that validation tokens are not neighbours of training tokens.
const BLOCK: usize = 64;
/// One block in this many validates.
const VALIDATION_BLOCKS: usize = 6;
/// Values of a thread's piece.
const PIECE_VALUES: usize = 1 << 14;
/// Largest step of `AdamW`.
const RATE: f32 = 3e-3;
/// Share of the learning rate for training that starts from a good predictor.
const STARTED_SHARE: f32 = 0.03;
/// Decay of the weights, times the rate.
const DECAY: f32 = 0.05;
/// Assumed sum of the additions of a neuron that was never active.
const NEVER_SEEN: f32 = 2.0;
/// `AdamW`'s decay of the moments.
const MOMENTS: [f32; 2] = [0.9, 0.99];

/// A trained predictor.
#[derive(Debug, Clone, PartialEq)]
pub struct Trained {
    /// Hidden size.
    pub rank: usize,
    /// `[rank, width]`.
    pub fc1: Vec<f32>,
    /// `[neurons, rank]`.
    pub fc2: Vec<f32>,
    /// `[neurons]`, added to the logits.
    pub bias: Vec<f32>,
    /// Mean loss of a neuron and token on the validation slice.
    pub validation_loss: f64,
}

/// The length of training.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Hidden size.
    pub rank: usize,
    /// Activation between the matrices.
    pub hidden: Hidden,
    /// Maximum passes over the training slice.
    pub epochs: usize,
    /// Passes without a better validation loss after which training ends.
    pub patience: usize,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// Whether a token validates and sets thresholds, instead of training; only real text does.
pub fn validates(samples: &Samples, row: usize) -> bool {
    row < samples.real && (row / BLOCK) % VALIDATION_BLOCKS == VALIDATION_BLOCKS - 1
}

/// Trains on the tokens of `samples` that do not [`validates`]; `None` if `go_on` returned false.
///
/// Training begins at `start` with small steps, or at random numbers. `go_on` gets the number of passes after each.
pub fn train(
    samples: &Samples,
    effort: Effort,
    start: Option<Trained>,
    go_on: &dyn Fn(usize) -> bool,
) -> Option<Trained> {
    let (width, neurons, rank) = (samples.width, samples.active.columns(), effort.rank);
    let (mut training, mut validation) = (Vec::new(), Vec::new());
    for row in 0..samples.rows() {
        if validates(samples, row) { validation.push(row) } else { training.push(row) }
    }
    if validation.is_empty() {
        validation.clone_from(&training);
    }

    let mut random = Random(effort.seed);
    let size = (mean_square(&samples.inputs) as f32).sqrt().max(1e-6);
    let begun = start.is_some();
    let mut net = match start {
        Some(start) => Net {
            width,
            rank,
            hidden: effort.hidden,
            neurons,
            fc1: Parameters::new(start.fc1),
            fc2: Parameters::new(start.fc2),
            bias: Parameters::new(start.bias),
        },
        None => Net {
            width,
            rank,
            hidden: effort.hidden,
            neurons,
            fc1: Parameters::random(rank * width, (2.0 / width as f32).sqrt() / size, &mut random),
            fc2: Parameters::random(neurons * rank, (1.0 / rank as f32).sqrt() * 0.5, &mut random),
            bias: Parameters::new(prior(samples, &training)),
        },
    };
    let steps = effort.epochs * training.len().div_ceil(BATCH);
    let mut step = 0;
    let mut best: Option<Trained> = None;
    let mut waited = 0;
    let mut work = Minibatch::default();
    if begun {
        let loss = net.loss(samples, &validation, &mut work);
        best = Some(net.trained(loss));
    }
    let slower = if begun { STARTED_SHARE } else { 1.0 };
    for epoch in 0..effort.epochs {
        random.shuffle(&mut training);
        for rows in training.chunks(BATCH) {
            step += 1;
            net.gradients(samples, rows, &mut work);
            net.step(&work, slower * rate(step, steps), step);
        }
        let loss = net.loss(samples, &validation, &mut work);
        if best.as_ref().is_none_or(|best| loss < best.validation_loss) {
            best = Some(net.trained(loss));
            waited = 0;
        } else {
            waited += 1;
        }
        if !go_on(epoch + 1) {
            return None;
        }
        if waited >= effort.patience {
            break;
        }
    }
    best.or_else(|| Some(net.trained(f64::NAN)))
}

/// The logits without bias of some tokens: `[neurons, rows]`.
pub fn logits(
    width: usize,
    rank: usize,
    neurons: usize,
    fc1: &[f32],
    fc2: &[f32],
    between: Hidden,
    inputs: &[f32],
) -> Vec<f32> {
    let rows = inputs.len() / width;
    let mut hidden = vec![0.0; rank * rows];
    product((rank, width, rows), fc1, Use::Plain, inputs, Use::Transposed, &mut hidden);
    hidden.iter_mut().for_each(|h| *h = between.apply(*h));
    let mut out = vec![0.0; neurons * rows];
    product((neurons, rank, rows), fc2, Use::Plain, &hidden, Use::Plain, &mut out);
    out
}

/// The learning rate: it rises over the first 5 % of the steps, then falls to zero along a cosine.
fn rate(step: usize, steps: usize) -> f32 {
    let done = step as f32 / steps.max(1) as f32;
    RATE * (done / 0.05).min(1.0) * (0.5 + 0.5 * (done.min(1.0) * std::f32::consts::PI).cos())
}

/// The initial bias: the logarithm of each neuron's mean addition.
fn prior(samples: &Samples, rows: &[usize]) -> Vec<f32> {
    let tokens = rows.len().max(1) as f32;
    let sums = samples.worth_sums(rows.iter().copied());
    sums.iter().map(|sum| ((sum + NEVER_SEEN) / tokens).ln()).collect()
}

/// `ln(1 + e^z)`.
fn softplus(z: f32) -> f32 {
    z.max(0.0) + exp(-z.abs()).ln_1p()
}

fn mean_square(x: &[f32]) -> f64 {
    x.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / x.len().max(1) as f64
}

/// Values with `AdamW`'s two moments.
struct Parameters {
    values: Vec<f32>,
    first: Vec<f32>,
    second: Vec<f32>,
}

impl Parameters {
    fn new(values: Vec<f32>) -> Self {
        let zeros = vec![0.0; values.len()];
        Self { first: zeros.clone(), second: zeros, values }
    }

    fn random(count: usize, deviation: f32, random: &mut Random) -> Self {
        Self::new((0..count).map(|_| random.normal() * deviation).collect())
    }

    fn step(&mut self, gradient: &[f32], rate: f32, decay: f32, step: usize) {
        let [b1, b2] = MOMENTS;
        let (c1, c2) = (1.0 - b1.powi(step as i32), 1.0 - b2.powi(step as i32));
        let (firsts, seconds) =
            (self.first.par_chunks_mut(PIECE_VALUES), self.second.par_chunks_mut(PIECE_VALUES));
        let pieces = self.values.par_chunks_mut(PIECE_VALUES).zip(firsts).zip(seconds);
        pieces.zip(gradient.par_chunks(PIECE_VALUES)).for_each(|(((values, firsts), seconds), gradient)| {
            for (((value, m), v), &g) in values.iter_mut().zip(firsts).zip(seconds).zip(gradient) {
                *m = b1 * *m + (1.0 - b1) * g;
                *v = b2 * *v + (1.0 - b2) * g * g;
                *value -= rate * ((*m / c1) / ((*v / c2).sqrt() + 1e-8) + decay * *value);
            }
        });
    }
}

struct Net {
    width: usize,
    rank: usize,
    hidden: Hidden,
    neurons: usize,
    fc1: Parameters,
    fc2: Parameters,
    bias: Parameters,
}

/// Buffers of a minibatch, kept between steps.
#[derive(Default)]
struct Minibatch {
    /// `[rows, width]`.
    inputs: Vec<f32>,
    /// `[rank, rows]`.
    hidden: Vec<f32>,
    /// `[neurons, rows]`: logits, then their gradients.
    logits: Vec<f32>,
    /// `[rank, rows]`.
    hidden_gradient: Vec<f32>,
    fc1: Vec<f32>,
    fc2: Vec<f32>,
    bias: Vec<f32>,
}

impl Net {
    /// Inputs, hidden layer and logits of `rows` into `work`.
    fn forward(&self, samples: &Samples, rows: &[usize], work: &mut Minibatch) {
        work.inputs.clear();
        for &row in rows {
            work.inputs.extend_from_slice(samples.input(row));
        }
        work.hidden.resize(self.rank * rows.len(), 0.0);
        let shape = (self.rank, self.width, rows.len());
        product(shape, &self.fc1.values, Use::Plain, &work.inputs, Use::Transposed, &mut work.hidden);
        work.hidden.iter_mut().for_each(|h| *h = self.hidden.apply(*h));
        work.logits.resize(self.neurons * rows.len(), 0.0);
        let shape = (self.neurons, self.rank, rows.len());
        product(shape, &self.fc2.values, Use::Plain, &work.hidden, Use::Plain, &mut work.logits);
        for (logits, bias) in work.logits.chunks_mut(rows.len()).zip(&self.bias.values) {
            logits.iter_mut().for_each(|logit| *logit += bias);
        }
    }

    /// The gradients of the mean loss of `rows` into `work`.
    fn gradients(&self, samples: &Samples, rows: &[usize], work: &mut Minibatch) {
        self.forward(samples, rows, work);
        let count = rows.len();
        let scale = 1.0 / count as f32;
        work.logits.par_chunks_mut(PIECE_VALUES).for_each(|logits| {
            logits.iter_mut().for_each(|logit| *logit = scale / (1.0 + exp(-*logit)));
        });
        for (i, row) in rows.iter().enumerate() {
            for (neuron, worth) in samples.worths(*row) {
                let gradient = &mut work.logits[neuron * count + i];
                *gradient += worth * (*gradient - scale);
            }
        }
        work.bias.clear();
        work.bias.extend(work.logits.chunks(count).map(|row| row.iter().sum::<f32>()));
        work.fc2.resize(self.neurons * self.rank, 0.0);
        let shape = (self.neurons, count, self.rank);
        product(shape, &work.logits, Use::Plain, &work.hidden, Use::Transposed, &mut work.fc2);
        work.hidden_gradient.resize(self.rank * count, 0.0);
        let shape = (self.rank, self.neurons, count);
        product(
            shape,
            &self.fc2.values,
            Use::Transposed,
            &work.logits,
            Use::Plain,
            &mut work.hidden_gradient,
        );
        if self.hidden == Hidden::Relu {
            for (d, &h) in work.hidden_gradient.iter_mut().zip(&work.hidden) {
                *d = if h > 0.0 { *d } else { 0.0 };
            }
        }
        work.fc1.resize(self.rank * self.width, 0.0);
        let shape = (self.rank, count, self.width);
        product(shape, &work.hidden_gradient, Use::Plain, &work.inputs, Use::Plain, &mut work.fc1);
    }

    fn step(&mut self, work: &Minibatch, rate: f32, step: usize) {
        self.fc1.step(&work.fc1, rate, DECAY, step);
        self.fc2.step(&work.fc2, rate, DECAY, step);
        self.bias.step(&work.bias, rate, 0.0, step);
    }

    /// Mean loss of a neuron and token.
    fn loss(&self, samples: &Samples, rows: &[usize], work: &mut Minibatch) -> f64 {
        let mut sum = 0.0;
        for rows in rows.chunks(BATCH) {
            self.forward(samples, rows, work);
            sum += (work.logits.par_chunks(rows.len()))
                .map(|of_neuron| f64::from(of_neuron.iter().map(|&z| softplus(z)).sum::<f32>()))
                .collect::<Vec<f64>>()
                .iter()
                .sum::<f64>();
            for (i, row) in rows.iter().enumerate() {
                let left_out =
                    |(neuron, worth): (usize, f32)| worth * softplus(-work.logits[neuron * rows.len() + i]);
                sum += f64::from(samples.worths(*row).map(left_out).sum::<f32>());
            }
        }
        sum / (rows.len() * self.neurons).max(1) as f64
    }

    fn trained(&self, validation_loss: f64) -> Trained {
        Trained {
            rank: self.rank,
            fc1: self.fc1.values.clone(),
            fc2: self.fc2.values.clone(),
            bias: self.bias.values.clone(),
            validation_loss,
        }
    }
}

/// `e^x` to six digits without branches, which the compiler can vectorise.
fn exp(x: f32) -> f32 {
    /// Adding and subtracting it rounds to a whole number; in between, the lower bits have that number.
    const ROUND: f32 = 12_582_912.0;
    let x = x.clamp(-80.0, 80.0) * std::f32::consts::LOG2_E;
    let rounded = x + ROUND;
    let f = (x - (rounded - ROUND)) * std::f32::consts::LN_2;
    let power = rounded.to_bits().wrapping_sub(ROUND.to_bits());
    let series =
        1.0 + f * (1.0 + f * (0.5 + f * (1.0 / 6.0 + f * (1.0 / 24.0 + f * (1.0 / 120.0 + f / 720.0)))));
    f32::from_bits(power.wrapping_add(127) << 23) * series
}

/// `SplitMix64`, which gives equal numbers on every machine.
pub(super) struct Random(pub(super) u64);

impl Random {
    /// The next 64 bits.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform from 0 to 1.
    pub(super) fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Nearly normal: twelve uniform numbers added.
    pub(super) fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.uniform()).sum::<f32>() - 6.0
    }

    fn shuffle(&mut self, items: &mut [usize]) {
        for i in (1..items.len()).rev() {
            items.swap(i, (self.next() % (i as u64 + 1)) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::observe::{Bits, Worths};
    use super::super::threshold::cut;
    use super::*;

    #[test]
    fn the_exponential_is_right_to_six_digits() {
        for i in -7900..7900 {
            let x = i as f32 / 100.0;
            assert!((exp(x) / x.exp() - 1.0).abs() < 1e-5, "{x}: {} {}", exp(x), x.exp());
        }
    }

    /// Neurons that fire where a hidden direction is positive, with additions in proportion: a predictor of that rank can learn them.
    fn planted(rows: usize, width: usize, neurons: usize) -> Samples {
        let mut random = Random(7);
        let mut normal = |count: usize| -> Vec<f32> { (0..count).map(|_| random.normal()).collect() };
        let (directions, inputs) = (normal(neurons * width), normal(rows * width));
        let gate = |row: usize, neuron: usize| -> f32 {
            let pairs = directions[neuron * width..][..width].iter().zip(&inputs[row * width..]);
            pairs.map(|(a, b)| a * b).sum::<f32>() - 0.8 * (width as f32).sqrt()
        };
        let mut active = Bits::new(neurons);
        (0..rows).for_each(|row| active.push(1, |_| true, |neuron, _| gate(row, neuron) > 0.0));
        let (worths, gate_counts) = (Worths::of(&active, gate), active.counts(rows));
        Samples { width, real: rows, inputs, active, worths, gate_counts, ..Samples::default() }
    }

    #[test]
    fn it_learns_which_neurons_to_request_of_a_planted_problem() {
        learns(Hidden::Relu, 32);
        learns(Hidden::Linear, 8);
    }

    /// Checks that 90 % of the worth take hardly more neurons than with perfect knowledge.
    fn learns(hidden: Hidden, rank: usize) {
        let (rows, width, neurons) = (3000, 8, 24);
        let samples = planted(rows, width, neurons);
        let effort = Effort { rank, hidden, epochs: 40, patience: 40, seed: 1 };
        let trained = train(&samples, effort, None, &|_| true).unwrap();
        let logits = logits(width, rank, neurons, &trained.fc1, &trained.fc2, hidden, &samples.inputs);
        let judged: Vec<usize> = (0..rows).filter(|&row| validates(&samples, row)).collect();
        let score = |row: usize, neuron: usize| logits[neuron * rows + row] + trained.bias[neuron];
        let of_row = |&row: &usize| samples.worths(row).map(move |(neuron, worth)| (row, neuron, worth));
        let worths: Vec<_> = judged.iter().flat_map(of_row).collect();
        let mut known: Vec<(f32, f32)> = worths.iter().map(|&(.., worth)| (worth, worth)).collect();
        let least = cut(&mut known, 0.9);
        let least = known.iter().filter(|&&(worth, _)| worth >= least).count();
        let cut =
            cut(&mut worths.iter().map(|&(row, n, worth)| (score(row, n), worth)).collect::<Vec<_>>(), 0.9);
        let all = judged.iter().flat_map(|&row| (0..neurons).map(move |neuron| (row, neuron)));
        let requested = all.filter(|&(row, neuron)| score(row, neuron) >= cut).count();
        assert!(requested * 10 < least * 12, "{requested}, {least}; loss {}", trained.validation_loss);
    }

    #[test]
    fn training_ends_when_told_and_is_the_same_every_time() {
        let samples = planted(300, 8, 24);
        let effort = Effort { rank: 4, hidden: Hidden::Relu, epochs: 3, patience: 3, seed: 1 };
        assert!(train(&samples, effort, None, &|_| false).is_none());
        assert_eq!(train(&samples, effort, None, &|_| true), train(&samples, effort, None, &|_| true));
    }
}
