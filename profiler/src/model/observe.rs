//! What every feed-forward network was given on the calibration text, and which of its neurons fired.

use runtime::kernels::Activation;
use runtime::reference::Observer;

/// Whether a neuron counts as truly active.
///
/// dReLU: gate and up above zero. `ReLU`: gate above zero, for up counts with either sign. `SiLU` is never zero; the
/// same signs as dReLU's are counted, as a figure to compare.
pub fn active(activation: Activation, gate: f32, up: f32) -> bool {
    match activation {
        Activation::Relu => gate > 0.0,
        Activation::Drelu | Activation::Silu => gate > 0.0 && up > 0.0,
    }
}

/// Rows of bits, one row a token, one bit a neuron.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bits {
    columns: usize,
    words: Vec<u64>,
}

impl Bits {
    /// No rows yet.
    pub fn new(columns: usize) -> Self {
        Self { columns, words: Vec::new() }
    }

    fn row_words(&self) -> usize {
        self.columns.div_ceil(64)
    }

    /// Bits of a row.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.words.len().checked_div(self.row_words()).unwrap_or(0)
    }

    /// Adds a row.
    pub fn push(&mut self, bits: impl Iterator<Item = bool>) {
        let start = self.words.len();
        self.words.resize(start + self.row_words(), 0);
        for (i, bit) in bits.enumerate() {
            self.words[start + i / 64] |= u64::from(bit) << (i % 64);
        }
    }

    /// The bit of a token and a neuron.
    pub fn get(&self, row: usize, column: usize) -> bool {
        self.words[row * self.row_words() + column / 64] >> (column % 64) & 1 == 1
    }

    /// The set bits of a row, ascending.
    pub fn ones(&self, row: usize) -> impl Iterator<Item = usize> {
        let words = &self.words[row * self.row_words()..][..self.row_words()];
        words.iter().enumerate().flat_map(|(i, &word)| {
            std::iter::successors((word != 0).then_some(word), |w| Some(w & (w - 1)).filter(|&w| w != 0))
                .map(move |w| i * 64 + w.trailing_zeros() as usize)
        })
    }

    /// How often each bit is set.
    pub fn counts(&self) -> Vec<u32> {
        let mut counts = vec![0; self.columns];
        for row in 0..self.rows() {
            for column in self.ones(row) {
                counts[column] += 1;
            }
        }
        counts
    }

    /// Rows of `other` after these.
    pub fn append(&mut self, other: &mut Self) {
        self.words.append(&mut other.words);
    }
}

/// What one expert of one layer saw.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    /// Values of an input.
    pub width: usize,
    /// The first so many rows come from real text, the others from text that the model wrote.
    pub real: usize,
    /// `[rows, width]`: the normalised inputs of the tokens that were routed here.
    pub inputs: Vec<f32>,
    /// `[rows, neurons]`: truly active.
    pub active: Bits,
    /// Per neuron: how often its gate was above zero.
    pub gate_counts: Vec<u32>,
}

impl Samples {
    fn new(width: usize, neurons: usize) -> Self {
        Self { width, real: 0, inputs: Vec::new(), active: Bits::new(neurons), gate_counts: vec![0; neurons] }
    }

    /// Tokens seen.
    pub fn rows(&self) -> usize {
        self.active.rows()
    }

    /// The input of a token.
    pub fn input(&self, row: usize) -> &[f32] {
        &self.inputs[row * self.width..][..self.width]
    }

    fn append(&mut self, other: &mut Self) {
        assert!(self.real == self.rows() || other.real == 0, "real text comes first");
        self.real += other.real;
        self.inputs.append(&mut other.inputs);
        self.active.append(&mut other.active);
        for (a, b) in self.gate_counts.iter_mut().zip(&other.gate_counts) {
            *a += b;
        }
    }
}

/// Collects [`Samples`] for every expert of every layer.
#[derive(Debug, Clone)]
pub struct Collector {
    activation: Activation,
    real: bool,
    /// `[layer][expert]`.
    pub samples: Vec<Vec<Samples>>,
    /// Tokens of all windows.
    pub tokens: usize,
}

impl Collector {
    /// Nothing seen yet; what will be is `real` text or the model's own.
    pub fn new(config: &runtime::model::config::Config, real: bool) -> Self {
        let layer = vec![Samples::new(config.width, config.ffn_width); config.experts];
        Self { activation: config.activation, real, samples: vec![layer; config.layers], tokens: 0 }
    }

    /// What another has seen, after what this one has.
    pub fn append(&mut self, mut other: Self) {
        for (a, b) in self.samples.iter_mut().flatten().zip(other.samples.iter_mut().flatten()) {
            a.append(b);
        }
        self.tokens += other.tokens;
    }
}

impl Observer for Collector {
    fn feed_forward(&mut self, layer: usize, expert: usize, input: &[f32], gate: &[f32], up: &[f32]) {
        let activation = self.activation;
        let samples = &mut self.samples[layer][expert];
        samples.real += usize::from(self.real);
        samples.inputs.extend_from_slice(input);
        samples.active.push(gate.iter().zip(up).map(|(&g, &u)| active(activation, g, u)));
        for (count, &g) in samples.gate_counts.iter_mut().zip(gate) {
            *count += u32::from(g > 0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_come_back_as_they_went_in() {
        let mut bits = Bits::new(70);
        bits.push((0..70).map(|i| i % 7 == 0));
        bits.push((0..70).map(|i| i == 69));
        assert_eq!(bits.rows(), 2);
        assert_eq!(bits.ones(0).collect::<Vec<_>>(), (0..70).step_by(7).collect::<Vec<_>>());
        assert_eq!(bits.ones(1).collect::<Vec<_>>(), [69]);
        assert!(bits.get(0, 63) && !bits.get(0, 64) && bits.get(1, 69));
        assert_eq!(bits.counts().iter().sum::<u32>(), 11);
    }

    #[test]
    fn a_negative_up_silences_a_drelu_and_not_a_relu() {
        assert!(active(Activation::Relu, 1.0, -1.0) && !active(Activation::Drelu, 1.0, -1.0));
        assert!(!active(Activation::Relu, -1.0, 1.0) && active(Activation::Drelu, 1.0, 1.0));
    }
}
