//! What every feed-forward network was given on the calibration text, and which of its neurons fired.

use rayon::prelude::*;
use runtime::kernels::Activation;

use super::batch::Expert;

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

    /// Adds a row for each of `tokens` tokens that `keeps`; `bit(column, token)` says what is set.
    pub fn push(
        &mut self,
        tokens: usize,
        keeps: impl Fn(usize) -> bool,
        bit: impl Fn(usize, usize) -> bool + Sync,
    ) {
        let of_words: Vec<Vec<u64>> = (0..self.row_words())
            .into_par_iter()
            .map(|word| {
                let mut out = vec![0; tokens];
                for column in 64 * word..self.columns.min(64 * (word + 1)) {
                    for (token, out) in out.iter_mut().enumerate() {
                        *out |= u64::from(bit(column, token)) << (column % 64);
                    }
                }
                out
            })
            .collect();
        for token in (0..tokens).filter(|&token| keeps(token)) {
            self.words.extend(of_words.iter().map(|words| words[token]));
        }
    }

    /// Set bits of a row.
    pub fn count(&self, row: usize) -> u32 {
        self.row(row).iter().map(|word| word.count_ones()).sum()
    }

    /// Bits set in row `row` here and in row `other_row` there.
    pub fn count_common(&self, row: usize, other: &Self, other_row: usize) -> u32 {
        self.row(row).iter().zip(other.row(other_row)).map(|(a, b)| (a & b).count_ones()).sum()
    }

    fn row(&self, row: usize) -> &[u64] {
        &self.words[row * self.row_words()..][..self.row_words()]
    }

    /// The bit of a token and a neuron.
    pub fn get(&self, row: usize, column: usize) -> bool {
        self.words[row * self.row_words() + column / 64] >> (column % 64) & 1 == 1
    }

    /// The set bits of a row, ascending.
    pub fn ones(&self, row: usize) -> impl Iterator<Item = usize> {
        self.row(row).iter().enumerate().flat_map(|(i, &word)| {
            std::iter::successors((word != 0).then_some(word), |w| Some(w & (w - 1)).filter(|&w| w != 0))
                .map(move |w| i * 64 + w.trailing_zeros() as usize)
        })
    }

    /// How often each bit is set in the first `rows` rows.
    pub fn counts(&self, rows: usize) -> Vec<u32> {
        let mut counts = vec![0; self.columns];
        for row in 0..rows {
            for column in self.ones(row) {
                counts[column] += 1;
            }
        }
        counts
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
    /// Per neuron: on how many tokens of real text its gate was above zero.
    pub gate_counts: Vec<u32>,
}

impl Samples {
    /// Nothing seen yet.
    pub fn new(width: usize, neurons: usize) -> Self {
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

    /// Adds what the expert makes of its tokens: those whose row in the stream is `heard`. The first `real` rows of the
    /// stream are real text.
    pub fn hear(&mut self, activation: Activation, seen: &Expert<'_>, heard: &[bool], real: usize) {
        let tokens = seen.rows.len();
        let kept = |token: usize| heard[seen.rows[token]];
        let at = |column: usize, token: usize| column * tokens + token;
        self.active.push(tokens, kept, |neuron, token| {
            active(activation, seen.gate[at(neuron, token)], seen.up[at(neuron, token)])
        });
        for token in (0..tokens).filter(|&token| kept(token)) {
            self.inputs.extend_from_slice(&seen.input[token * self.width..][..self.width]);
            self.real += usize::from(seen.rows[token] < real);
        }
        self.gate_counts.par_iter_mut().zip(seen.gate.par_chunks(tokens)).for_each(|(count, gate)| {
            *count += gate
                .iter()
                .enumerate()
                .filter(|&(t, &gate)| gate > 0.0 && kept(t) && seen.rows[t] < real)
                .count() as u32;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_come_back_as_they_went_in() {
        let mut bits = Bits::new(70);
        bits.push(3, |token| token != 1, |column, token| [column % 7 == 0, true, column == 69][token]);
        assert_eq!(bits.rows(), 2);
        assert_eq!(bits.ones(0).collect::<Vec<_>>(), (0..70).step_by(7).collect::<Vec<_>>());
        assert_eq!(bits.ones(1).collect::<Vec<_>>(), [69]);
        assert!(bits.get(0, 63) && !bits.get(0, 64) && bits.get(1, 69));
        assert_eq!(bits.counts(2).iter().sum::<u32>(), 11);
        assert_eq!([bits.count(0), bits.count(1), bits.count_common(0, &bits, 1)], [10, 1, 0]);
    }

    #[test]
    fn a_negative_up_silences_a_drelu_and_not_a_relu() {
        assert!(active(Activation::Relu, 1.0, -1.0) && !active(Activation::Drelu, 1.0, -1.0));
        assert!(!active(Activation::Relu, -1.0, 1.0) && active(Activation::Drelu, 1.0, 1.0));
    }
}
