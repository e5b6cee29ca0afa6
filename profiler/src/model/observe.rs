//! Observations on the calibration text: inputs of each feed-forward network, its active neurons, and their additions.

use kernels::Activation;
use rayon::prelude::*;

use super::batch::Expert;
use super::gates::Gates;

/// Maximum weight of a neuron of a token in training.
const WORTH_MAX: f32 = 400.0;

/// Whether a neuron counts as truly active.
///
/// dReLU: gate and up above zero. `ReLU`: gate above zero, with up of either sign. Without gates: up above zero. `SiLU` is never zero, and
/// counts like dReLU for comparison. For levels on gates, samples have neurons that add more than the root mean square.
pub fn active(activation: Activation, gate: f32, up: f32) -> bool {
    match activation {
        Activation::Relu | Activation::ReluSquared => gate > 0.0,
        Activation::Drelu | Activation::Silu | Activation::Gelu | Activation::SwigluOai => {
            gate > 0.0 && up > 0.0
        }
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

    /// Adds a row for each of `tokens` tokens that `keeps` accepts; `bit(column, token)` has its bits.
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

    /// Number of times that each bit is set in the first `rows` rows.
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

/// Observations of one expert of one layer.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    /// Values of an input.
    pub width: usize,
    /// Number of first rows from real text; the others are from generated text.
    pub real: usize,
    /// `[rows, width]`: normalised inputs of the tokens routed to the expert.
    pub inputs: Vec<f32>,
    /// `[rows, neurons]`: truly active.
    pub active: Bits,
    /// The worths of truly active neurons.
    pub worths: Worths,
    /// Per neuron: tokens of real text with a gate above zero.
    pub gate_counts: Vec<u32>,
    /// Per neuron: sum of its gate on these tokens.
    pub gate_sums: Vec<f32>,
    /// For levels on gates: gates and additions on some tokens of real text.
    pub gates: Option<Gates>,
}

/// The worth of truly active neurons: the size of a neuron's addition to the output, which is its value times its row of down.
///
/// The unit is a twentieth of the root mean square over the token's active neurons, so tokens count equally. Training separates values
/// around one best, and most worths are small. With the root mean square itself the trained fixtures requested up to a seventh more.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Worths {
    /// Worths in the order of [`Bits::ones`], row after row.
    values: Vec<f32>,
    /// The end of each row's values.
    ends: Vec<usize>,
}

impl Worths {
    /// Adds a row from the sizes of its active neurons' additions.
    fn push(&mut self, sizes: impl Iterator<Item = f32>) {
        let start = self.values.len();
        self.values.extend(sizes);
        let row = &mut self.values[start..];
        let mean = row.iter().map(|size| size * size).sum::<f32>() / row.len().max(1) as f32;
        let unit = (0.05 * mean.sqrt()).max(f32::MIN_POSITIVE);
        row.iter_mut().for_each(|size| *size = (*size / unit).min(WORTH_MAX));
        self.ends.push(self.values.len());
    }

    /// The worths of active neurons whose additions have these sizes.
    #[cfg(test)]
    pub fn of(active: &Bits, size: impl Fn(usize, usize) -> f32) -> Self {
        let mut worths = Self::default();
        (0..active.rows()).for_each(|row| worths.push(active.ones(row).map(|neuron| size(row, neuron))));
        worths
    }

    fn row(&self, row: usize) -> &[f32] {
        let start = row.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.values[start..self.ends[row]]
    }
}

impl Samples {
    /// An empty observation.
    pub fn new(width: usize, neurons: usize) -> Self {
        Self {
            width,
            active: Bits::new(neurons),
            gate_counts: vec![0; neurons],
            gate_sums: vec![0.0; neurons],
            ..Self::default()
        }
    }

    /// Observed tokens.
    pub fn rows(&self) -> usize {
        self.active.rows()
    }

    /// The input of a token.
    pub fn input(&self, row: usize) -> &[f32] {
        &self.inputs[row * self.width..][..self.width]
    }

    /// The truly active neurons of a token, ascending, with their worths.
    pub fn worths(&self, row: usize) -> impl Iterator<Item = (usize, f32)> {
        self.active.ones(row).zip(self.worths.row(row).iter().copied())
    }

    /// Sums of each neuron's worth over some tokens.
    pub fn worth_sums(&self, rows: impl Iterator<Item = usize>) -> Vec<f32> {
        let mut sums = vec![0.0; self.active.columns()];
        rows.flat_map(|row| self.worths(row)).for_each(|(neuron, worth)| sums[neuron] += worth);
        sums
    }

    /// Adds an expert's tokens whose row in the stream is `heard`. The first `real` rows of the stream are real text; `down_sizes` has the
    /// sizes of the expert's down rows.
    pub fn hear(
        &mut self,
        activation: Activation,
        seen: &Expert<'_>,
        down_sizes: &[f32],
        heard: &[bool],
        real: usize,
    ) {
        let (tokens, first) = (seen.rows.len(), self.rows());
        let kept = |token: usize| heard[seen.rows[token]];
        let at = |column: usize, token: usize| column * tokens + token;
        if let Some(gates) = &mut self.gates {
            let added = |neuron: usize, token: usize| {
                let at = at(neuron, token);
                activation.apply(seen.gate[at], seen.up[at]).abs() * down_sizes[neuron]
            };
            let neurons = down_sizes.len();
            let mean_squares: Vec<f32> = (0..tokens)
                .into_par_iter()
                .map(|token| {
                    (0..neurons).map(|neuron| added(neuron, token).powi(2)).sum::<f32>() / neurons as f32
                })
                .collect();
            for token in (0..tokens).filter(|&token| kept(token)) {
                let of_gate = |neuron| activation.of_gate(seen.gate[at(neuron, token)]).abs();
                gates.hear(
                    seen.rows[token],
                    (0..neurons).map(|neuron| (of_gate(neuron), added(neuron, token))),
                );
            }
            // neurons that add most of the output
            self.active
                .push(tokens, kept, |neuron, token| added(neuron, token).powi(2) > mean_squares[token]);
        } else {
            self.active.push(tokens, kept, |neuron, token| {
                active(activation, seen.gate[at(neuron, token)], seen.up[at(neuron, token)])
            });
        }
        for (row, token) in (first..).zip((0..tokens).filter(|&token| kept(token))) {
            let size = |neuron: usize| {
                let at = at(neuron, token);
                activation.apply(seen.gate[at], seen.up[at]).abs() * down_sizes[neuron]
            };
            self.worths.push(self.active.ones(row).map(size));
            self.inputs.extend_from_slice(&seen.input[token * self.width..][..self.width]);
            self.real += usize::from(seen.rows[token] < real);
        }
        let of_gates = self.gate_counts.par_iter_mut().zip(&mut self.gate_sums);
        of_gates.zip(seen.gate.par_chunks(tokens)).for_each(|((count, sum), gate)| {
            let open = |&(t, &gate): &(usize, &f32)| gate > 0.0 && kept(t) && seen.rows[t] < real;
            for (_, gate) in gate.iter().enumerate().filter(open) {
                *count += 1;
                *sum += gate;
            }
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
    fn worths_are_what_active_neurons_add_over_their_root_mean_square_of_a_token() {
        // three tokens of three neurons, the second token not heard
        let mut gate = [3.0, 1.0, -1.0, 0.5, 2.0, 4.0, -2.0, 1.0, 1.0];
        let up = [2.0, 1.0, 1.0, 8.0, 1.0, 1.0, 1.0, 1.0, 3.0];
        let input = [0.0; 6];
        let seen = Expert { expert: 0, rows: &[0, 1, 2], input: &input, gate: &mut gate, up: &up };
        let mut samples = Samples::new(2, 3);
        samples.hear(Activation::Drelu, &seen, &[1.0, 2.0, 10.0], &[true, false, true], 2);
        // 3 * 2 * 1 and 0.5 * 8 * 2; 4 * 1 * 2 and 1 * 3 * 10
        for (row, sizes) in [(0, [(0, 6.0), (1, 8.0)]), (1, [(1, 8.0), (2, 30.0)])] {
            let unit =
                0.05 * (sizes.map(|(_, size): (usize, f32)| size * size).iter().sum::<f32>() / 2.0).sqrt();
            let expected = sizes.map(|(neuron, size)| (neuron, size / unit));
            assert_eq!(samples.worths(row).collect::<Vec<_>>(), expected, "row {row}");
        }
        // only the first token is real text
        assert_eq!((&*samples.gate_counts, &*samples.gate_sums), (&[1, 1, 0][..], &[3.0, 0.5, 0.0][..]));
    }

    #[test]
    fn a_negative_up_silences_a_drelu_and_not_a_relu() {
        assert!(active(Activation::Relu, 1.0, -1.0) && !active(Activation::Drelu, 1.0, -1.0));
        assert!(!active(Activation::Relu, -1.0, 1.0) && active(Activation::Drelu, 1.0, 1.0));
    }
}
