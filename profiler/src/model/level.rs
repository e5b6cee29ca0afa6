//! The menu of quality levels, and the predictors of an expert.

use flashplan::internals::container::{down_formats, has_down_rows, stored_down_format};
use flashplan::internals::model::config::{Config, Role};
use flashplan::internals::model::source::{Down, SourceModel};
use flashplan::internals::predictor::{Hidden, sign_bits};
use kernels::Format;
use kernels::{Matrix, dequantise, quantise};
use plans::model::LevelKind;

use super::Job;
use super::import::Shipped;
use super::observe::Samples;
use super::start::from_gate;
use super::threshold::{cut, sign_thresholds, threshold};
use super::train::{Effort, Trained, logits, train, validates};
use super::work::{FinishedParts, joined, numbers, pieces};
use crate::Context;

/// Target share, for each low-rank level, of the truly active neurons' addition; the most careful first.
const SHARES: [(f64, &str); 6] = [
    (0.99, "low-rank-99"),
    (0.98, "low-rank-98"),
    (0.97, "low-rank-97"),
    (0.95, "low-rank-95"),
    (0.93, "low-rank-93"),
    (0.90, "low-rank-90"),
];
/// Error of each level on gates, as a fraction of the residual stream, the most careful first. Names have it in thousandths.
const LEFT_OUT: [(f64, &str); 8] = [
    (0.003, "gate-threshold-3"),
    (0.005, "gate-threshold-5"),
    (0.008, "gate-threshold-8"),
    (0.012, "gate-threshold-12"),
    (0.018, "gate-threshold-18"),
    (0.027, "gate-threshold-27"),
    (0.040, "gate-threshold-40"),
    (0.060, "gate-threshold-60"),
];
/// Target recall of the sign level.
const SIGN_RECALL: f64 = 0.97;
/// Ranks are multiples of this.
const RANK_STEP: usize = 32;
/// Width of large models, whose predictors are linear with an eighth of the width as their rank, in 4 bits.
///
/// Published predictors have a quarter of the width and a `ReLU`, and predict no better. Training starts from the gate rows, because large
/// models leave little time for it.
const WIDE: usize = 2048;
/// Passes without a gain after which training ends.
const PATIENCE: usize = 3;
/// Minimum active (token, neuron) pairs of the validation slice; with fewer all tokens set the thresholds.
const PAIRS_MIN: usize = 200;
/// Samples whose logits are computed together.
const LOGIT_ROWS: usize = 256;
/// Share of the active neurons' addition at which a predictor of the file is compared with chance.
///
/// A predictor that requests more than [`OF_CHANCE`] of chance's neurons there is trained again.
const OF_WORTH: f64 = 0.95;
const OF_CHANCE: f64 = 0.9;
/// Maximum bytes of a slice, where the expert's neurons can be divided. Longer reads are hardly faster, and delay the first neuron.
const SLICE_BYTES: usize = 512 << 10;
/// Minimum bytes of a row of a piece of down, where the expert's neurons can be divided: two cache lines. A product with a shorter row
/// takes longer than its bytes.
const PIECE_ROW_BYTES: usize = 128;

/// A quality level before its measurement.
#[derive(Debug, Clone)]
pub struct Level {
    /// Unique name.
    pub name: String,
    /// Its method of selecting neurons.
    pub kind: LevelKind,
    /// The level's index among an expert's low-rank thresholds.
    pub cut: Option<usize>,
}

/// The predictors of an expert, neurons in order of rank; for levels on gates only thresholds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Predictors {
    /// Sign: the maximum differing bits of a requested neuron, `[neurons]`.
    pub differences: Vec<i32>,
    /// Hidden size of the low-rank predictor.
    pub rank: usize,
    /// `[rank, width]` in [`Menu::format`].
    pub fc1: Vec<u8>,
    /// `[neurons, rank]`.
    pub fc2: Vec<u8>,
    /// Thresholds of each low-rank level, or of each level on gates, `[neurons]`.
    pub thresholds: Vec<Vec<f32>>,
    /// Whether it was trained because the file's predictor was no better than chance.
    pub replaces: bool,
}

/// The menu of a model's levels.
#[derive(Debug)]
pub struct Menu {
    /// The levels, dense first.
    pub levels: Vec<Level>,
    /// Whether there are predictors.
    pub predicts: bool,
    /// Whether there are levels that skip neurons with a small gate.
    pub cuts_gates: bool,
    /// Storage of low-rank predictors.
    pub format: Format,
    /// Activation between the predictors' matrices.
    pub hidden: Hidden,
    /// Storage of down rows; `None`: slices have pieces of down as in the source.
    pub down: Option<Format>,
    /// Neurons of a slice: a part of an expert or layer, or all of it, where every level requests it whole; else 1.
    pub slice_neurons: usize,
    /// Whether the weights stay in the model's own file, with an index.
    pub index: bool,
    shipped: Option<Shipped>,
}

/// The place of the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weights {
    /// The model's own file, with an index.
    OwnFile,
    /// A container.
    Container,
}

impl Menu {
    /// The menu of a model, with quantised down rows stored as `down`.
    ///
    /// Without exact zeros predictors can skip nothing without loss. Down then stays as in the source unless `down` is given. Experts or
    /// layers are read whole, from the model's file or a container, as requested or as suits. A mixture with exact zeros that is
    /// read from its own file has whole experts only. With `cuts_gates` neurons are stored one by one, and levels skip neurons
    /// with a small gate.
    ///
    /// # Errors
    /// Predictors of another shape in the file, and gates that cannot be cut.
    pub fn new(
        source: &SourceModel<'_>,
        down: Option<Format>,
        asked: Option<Weights>,
        cuts_gates: bool,
    ) -> anyhow::Result<Self> {
        Self::of(source, down, asked, cuts_gates, false)
    }

    /// The level `dense` alone, which needs no calibration: weights are read in place, unless `asked` is a container or down is by neurons.
    ///
    /// # Errors
    /// None today.
    pub fn dense(source: &SourceModel<'_>, asked: Option<Weights>) -> anyhow::Result<Self> {
        Self::of(source, None, asked.or(Some(Weights::OwnFile)), false, true)
    }

    fn of(
        source: &SourceModel<'_>,
        down: Option<Format>,
        asked: Option<Weights>,
        cuts_gates: bool,
        dense_alone: bool,
    ) -> anyhow::Result<Self> {
        let config = source.config();
        if cuts_gates && !config.activation().always_fires() {
            anyhow::bail!(
                "many neurons of {} are exactly zero, and its levels leave out those: leave out --gate-levels",
                config.activation().name()
            );
        }
        if cuts_gates && source.part(config.block_of(0), Role::FfnPostNorm).is_some() {
            anyhow::bail!(
                "--gate-levels does not know the norm that this model has behind its feed-forward networks: leave it out"
            );
        }
        if cuts_gates && config.network().biases {
            anyhow::bail!(
                "--gate-levels does not know the biases that this model adds to its gates: leave it out"
            );
        }
        let level = |name: &str, kind, cut| Level { name: name.to_owned(), kind, cut };
        let mut levels = vec![level("dense", LevelKind::Dense, None)];
        // experts in the model's own file have no down rows
        let in_place = asked == Some(Weights::OwnFile)
            && config.experts() > 1
            && !cuts_gates
            && down.is_none()
            && !has_down_rows(source);
        let by_neurons = !in_place && !dense_alone && !config.network().biases;
        if !config.activation().fires(-1.0) && by_neurons {
            levels.push(level("exact-gate", LevelKind::ExactGate, None));
        }
        // predictors ignore biases of neurons
        let predicts = !config.activation().always_fires() && by_neurons;
        let shipped = if predicts { super::import::shipped(source)? } else { None };
        if predicts {
            levels.push(level("sign", LevelKind::Sign, None));
            let own = shipped.iter().filter(|shipped| shipped.own_threshold).map(|_| "low-rank-shipped");
            let names = own.chain(SHARES.map(|(_, name)| name));
            levels.extend(names.enumerate().map(|(i, name)| level(name, LevelKind::LowRank, Some(i))));
        }
        if cuts_gates {
            let named = LEFT_OUT.iter().enumerate();
            levels.extend(named.map(|(i, (_, name))| level(name, LevelKind::GateThreshold, Some(i))));
        }
        let blocks = |columns: usize| columns.is_multiple_of(Format::Q4_0.block_values());
        let whole = match &shipped {
            None => true,
            Some(shipped) => shipped.ranks.iter().flatten().all(|&rank| blocks(rank)),
        };
        let narrow = config.width < WIDE || !blocks(config.width) || !whole;
        let format = if narrow { Format::F16 } else { Format::Q4_0 };
        let linear = shipped.is_none() && config.width >= WIDE;
        let hidden = if linear { Hidden::Linear } else { Hidden::Relu };
        let everything = levels.len() == 1 && (config.activation().always_fires() || in_place || dense_alone);
        let pieces = everything && down.is_none() && !has_down_rows(source);
        let down = (!pieces).then(|| stored_down_format(source, down));
        let sliced = pieces || levels.len() == 1 && config.experts() > 1;
        // an expert's three reads are as fast as one; a layer's would be a single large read that overlaps with nothing
        let index = pieces
            && match asked {
                Some(weights) => weights == Weights::OwnFile,
                None => config.experts() > 1,
            };
        let slice_neurons = match (index, sliced) {
            (true, _) => config.ffn_width(),
            (false, true) => slice_neurons(source, down),
            (false, false) => 1,
        };
        Ok(Self { levels, predicts, cuts_gates, format, hidden, down, slice_neurons, index, shipped })
    }

    /// Whether the container's down rows are quantised again.
    pub fn requantises(&self, source: &SourceModel<'_>) -> bool {
        let Some(down) = self.down else { return false };
        (0..source.config().layers()).any(|layer| match source.ffn_down(layer, 0) {
            Down::Columns(w) => w.format.has_blocks(),
            Down::Rows(w) => down != w.format,
        })
    }

    /// Whether the engine's dense model differs from the source, by its down rows or by rounded vectors.
    pub fn differs(&self, source: &SourceModel<'_>) -> bool {
        let block = source.config().block_of(0);
        let before =
            (0..=block).flat_map(|at| source.config().parts(at).into_iter().map(move |part| (at, part)));
        let of_tokens = before.filter(|(_, part)| !part.role.is_plain() && part.role != Role::Router);
        let layer = [source.ffn_gate(0, 0), source.ffn_up(0, 0)].into_iter();
        let layer = layer.chain(of_tokens.filter_map(|(at, part)| source.part(at, part.role)));
        let head = source.output().unwrap_or_else(|| source.token_embedding());
        self.requantises(source) || layer.chain([head]).any(|w| w.format.has_blocks())
    }

    /// The activations of `model.toml`: vectors are rounded to 8 bits where weights are in blocks.
    pub fn activations(&self, source: &SourceModel<'_>) -> &'static str {
        let predictors = self.predicts && self.format.has_blocks();
        if predictors || self.differs(source) { "q8" } else { "f32" }
    }

    /// Whether every expert has thresholds.
    pub fn has_thresholds(&self) -> bool {
        self.predicts || self.cuts_gates
    }

    /// Whether the file has predictors.
    pub fn brings_predictors(&self) -> bool {
        self.shipped.is_some()
    }

    /// Whether predictors are trained.
    pub fn trains(&self) -> bool {
        self.predicts && self.shipped.is_none()
    }

    /// The predictor set in the container that a kind of level uses.
    pub fn set(kind: LevelKind) -> Option<usize> {
        match kind {
            LevelKind::Dense | LevelKind::ExactGate | LevelKind::GateThreshold => None,
            LevelKind::Sign => Some(0),
            LevelKind::LowRank => Some(1),
        }
    }

    /// Hidden sizes, `[layer][expert]`.
    pub fn rank(&self, config: &Config, layer: usize, expert: usize) -> usize {
        self.shipped.as_ref().map_or_else(|| rank(config), |shipped| shipped.ranks[layer][expert])
    }

    /// The predictors of an expert: finished ones, or new ones from its samples.
    ///
    /// # Errors
    /// [`crate::Stopped`], and predictors that cannot be written.
    pub fn predictors(
        &self,
        context: &Context,
        job: &Job,
        work: &FinishedParts,
        source: &SourceModel<'_>,
        layer: usize,
        expert: usize,
        samples: &Samples,
        order: &[(u32, u32)],
    ) -> anyhow::Result<Predictors> {
        if let Some(kept) = self.kept(work, layer, expert)? {
            return Ok(kept);
        }
        let config = source.config();
        if let Some(gates) = &samples.gates {
            let by_neuron = gates.thresholds(config.ffn_width(), &LEFT_OUT.map(|(error, _)| error));
            let of_ranks = |of: Vec<f32>| order.iter().map(|&(_, neuron)| of[neuron as usize]).collect();
            let made = Predictors {
                thresholds: by_neuron.into_iter().map(of_ranks).collect(),
                ..Predictors::default()
            };
            work.save(&file_name(layer, expert), &[&made.to_bytes()])?;
            return Ok(made);
        }
        let shipped =
            self.shipped.as_ref().map(|shipped| shipped.predictor(source, layer, expert)).transpose()?;
        let told = shipped.filter(|shipped| tells(shipped, self.hidden, samples));
        let replaces = self.shipped.is_some() && told.is_none();
        let trained = match told {
            Some(shipped) => shipped,
            None => {
                let seed = (layer * config.experts() + expert) as u64;
                let rank = self.rank(config, layer, expert);
                let effort =
                    Effort { rank, hidden: self.hidden, epochs: job.epochs, patience: PATIENCE, seed };
                // a linear predictor starts from the main directions of the gate rows
                let start = (self.hidden == Hidden::Linear && samples.real > 0)
                    .then(|| from_gate(source.ffn_gate(layer, expert), samples, effort.rank, seed));
                let trained = train(samples, effort, start, &|_| context.stopped().is_ok());
                trained.ok_or(crate::Stopped)?
            }
        };
        let own_threshold = self.shipped.as_ref().is_some_and(|shipped| shipped.own_threshold);
        let made =
            Predictors::new(self, own_threshold, replaces, source, layer, expert, samples, order, trained);
        work.save(&file_name(layer, expert), &[&made.to_bytes()])?;
        Ok(made)
    }

    /// The finished predictors of an expert, if there are any.
    ///
    /// # Errors
    /// Predictors that cannot be read.
    pub fn kept(
        &self,
        work: &FinishedParts,
        layer: usize,
        expert: usize,
    ) -> anyhow::Result<Option<Predictors>> {
        Ok(work.load(&file_name(layer, expert))?.as_deref().and_then(Predictors::from_bytes))
    }
}

/// The neurons of a slice.
fn slice_neurons(source: &SourceModel<'_>, down: Option<Format>) -> usize {
    let (width, neurons) = (source.config().width, source.config().ffn_width());
    let (mut bytes, mut block, mut row) = (0, 1, 1);
    for (layer, of_source) in down_formats(source).step_by(source.config().experts()).enumerate() {
        let matrices = if source.config().activation().is_gated() { 2 } else { 1 };
        let inputs = [source.ffn_gate(layer, 0).format, source.ffn_up(layer, 0).format];
        let inputs: usize = inputs[..matrices].iter().map(|format| format.row_bytes(width)).sum();
        let values = of_source.block_values();
        let piece = (width * of_source.block_bytes()).div_ceil(values);
        bytes = bytes.max(inputs + down.map_or(piece, |format| format.row_bytes(width)));
        if down.is_none() {
            block = block.max(values);
            row = row.max((PIECE_ROW_BYTES * values).div_ceil(of_source.block_bytes()));
        }
    }
    slice_of(neurons, bytes, block, row)
}

/// The largest divisor of `neurons`, in whole blocks, that takes at most [`SLICE_BYTES`]; or the smallest one.
///
/// A piece's row has at least `row` neurons: otherwise the smallest divisor with as many, or all neurons.
fn slice_of(neurons: usize, bytes: usize, block: usize, row: usize) -> usize {
    let whole = |part: &usize| neurons.is_multiple_of(*part) && part.is_multiple_of(block);
    let parts = || (2..=neurons).filter(whole);
    let small = parts().filter(|part| part * bytes <= SLICE_BYTES).max();
    let part = small.or_else(|| parts().min()).unwrap_or(1);
    if part >= row { part } else { parts().find(|&part| part >= row).unwrap_or(neurons) }
}

fn file_name(layer: usize, expert: usize) -> String {
    format!("predictors-{layer:04}-{expert:04}")
}

/// The hidden size: an eighth of the width of large models, half of it for narrow ones. The predictor stays well below the size of the
/// gate rows.
pub fn rank(config: &Config) -> usize {
    let (width, neurons) = (config.width, config.ffn_width());
    let by_width = if width >= WIDE { width / 8 } else { (width / 2).min(512) };
    let half_the_gate = width * neurons / (width + neurons) / 2;
    (by_width.min(half_the_gate) / RANK_STEP * RANK_STEP).max(RANK_STEP)
}

impl Predictors {
    /// Stores a trained predictor in order of rank, and sets thresholds with the stored matrices.
    fn new(
        menu: &Menu,
        own_threshold: bool,
        replaces: bool,
        source: &SourceModel<'_>,
        layer: usize,
        expert: usize,
        samples: &Samples,
        order: &[(u32, u32)],
        trained: Trained,
    ) -> Self {
        let (width, rank, neurons) = (samples.width, trained.rank, order.len());
        let ordered: Vec<f32> = order
            .iter()
            .flat_map(|&(_, neuron)| &trained.fc2[neuron as usize * rank..][..rank])
            .copied()
            .collect();
        let (fc1, fc1_stored) = stored(menu.format, &trained.fc1, width);
        let (fc2, fc2_stored) = stored(menu.format, &ordered, rank);
        let bias: Vec<f32> = order.iter().map(|&(_, neuron)| trained.bias[neuron as usize]).collect();
        let mut position = vec![0; neurons];
        order.iter().enumerate().for_each(|(i, &(_, neuron))| position[neuron as usize] = i);
        let scores = |counts: &dyn Fn(usize) -> bool| -> Vec<(f32, f32)> {
            let rows: Vec<usize> = (0..samples.rows()).filter(|&row| counts(row)).collect();
            let mut scores = Vec::new();
            for rows in rows.chunks(LOGIT_ROWS) {
                let inputs: Vec<f32> = rows.iter().flat_map(|&row| samples.input(row)).copied().collect();
                let logits = logits(width, rank, neurons, &fc1_stored, &fc2_stored, menu.hidden, &inputs);
                for (i, &row) in rows.iter().enumerate() {
                    let of_row = samples.worths(row).map(|(neuron, worth)| (position[neuron], worth));
                    scores.extend(of_row.map(|(p, worth)| (logits[p * rows.len() + i] + bias[p], worth)));
                }
            }
            scores
        };
        let mut found = scores(&|row| validates(samples, row));
        if found.len() < PAIRS_MIN {
            found = scores(&|_| true);
        }
        let mut of_share = |share| -> Vec<f32> {
            let cut = cut(&mut found, share);
            bias.iter().map(|&bias| threshold(cut, bias)).collect()
        };
        let own = own_threshold.then(|| if replaces { of_share(OF_WORTH) } else { vec![0.0; neurons] });
        let set = SHARES.map(|(share, _)| of_share(share));
        let differences = sign_differences(source.ffn_gate(layer, expert), samples, order);
        Self { differences, rank, fc1, fc2, thresholds: own.into_iter().chain(set).collect(), replaces }
    }

    fn to_bytes(&self) -> Vec<u8> {
        let rank = (self.rank as u64).to_le_bytes();
        let replaces = [u8::from(self.replaces)];
        let mut parts: Vec<&[u8]> =
            vec![&rank, &replaces, bytemuck::cast_slice(&self.differences), &self.fc1, &self.fc2];
        parts.extend(self.thresholds.iter().map(|thresholds| bytemuck::cast_slice(thresholds)));
        joined(&parts)
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let parts = pieces(bytes)?;
        let [rank, replaces, differences, fc1, fc2, thresholds @ ..] = &*parts else { return None };
        Some(Self {
            differences: numbers(differences),
            rank: u64::from_le_bytes((*rank).try_into().ok()?) as usize,
            fc1: fc1.to_vec(),
            fc2: fc2.to_vec(),
            thresholds: thresholds.iter().map(|t| numbers(t)).collect(),
            replaces: *replaces == [1],
        })
    }

    /// `[rank, width]` and `[neurons, rank]`.
    pub fn matrices(&self, format: Format, width: usize) -> [Matrix<'_>; 2] {
        let neurons = self.differences.len();
        [
            Matrix { format, rows: self.rank, columns: width, bytes: &self.fc1 },
            Matrix { format, rows: neurons, columns: self.rank, bytes: &self.fc2 },
        ]
    }
}

/// Whether a predictor without bias is clearly better than chance.
///
/// Chance needs as large a share of the neurons as the share of the active neurons' addition that it finds.
fn tells(predictor: &Trained, hidden: Hidden, samples: &Samples) -> bool {
    let (width, neurons) = (samples.width, samples.active.columns());
    let mut rows: Vec<usize> = (0..samples.rows()).filter(|&row| validates(samples, row)).collect();
    if rows.is_empty() {
        rows.extend(0..samples.rows());
    }
    let rows: Vec<usize> = rows.iter().copied().step_by(rows.len().div_ceil(LOGIT_ROWS).max(1)).collect();
    let inputs: Vec<f32> = rows.iter().flat_map(|&row| samples.input(row)).copied().collect();
    let scores = logits(width, predictor.rank, neurons, &predictor.fc1, &predictor.fc2, hidden, &inputs);
    let score = |neuron: usize, i: usize| scores[neuron * rows.len() + i];
    let of_row = |(i, &row): (usize, &usize)| {
        samples.worths(row).map(move |(n, worth)| (i, n, worth)).collect::<Vec<_>>()
    };
    let mut pairs: Vec<(f32, f32)> = rows
        .iter()
        .enumerate()
        .flat_map(of_row)
        .map(|(i, neuron, worth)| (score(neuron, i), worth))
        .collect();
    if pairs.len() < PAIRS_MIN {
        return true; // too little is known to say no
    }
    let cut = cut(&mut pairs, OF_WORTH);
    let requested = scores.iter().filter(|&&score| score >= cut).count();
    (requested as f64) < OF_CHANCE * OF_WORTH * scores.len() as f64
}

/// Rows of values in a format, and their rounded values.
fn stored(format: Format, values: &[f32], columns: usize) -> (Vec<u8>, Vec<f32>) {
    let row_bytes = format.row_bytes(columns);
    let mut bytes = vec![0; values.len() / columns * row_bytes];
    let mut back = vec![0.0; values.len()];
    for ((values, bytes), back) in
        values.chunks(columns).zip(bytes.chunks_mut(row_bytes)).zip(back.chunks_mut(columns))
    {
        quantise(format, values, bytes);
        dequantise(format, bytes, back);
    }
    (bytes, back)
}

/// Sign bits of an expert's gate rows, in order of rank: `[neurons, words]`.
pub fn signs(gate: Matrix<'_>, order: &[(u32, u32)]) -> Vec<u64> {
    let words = gate.columns.div_ceil(64);
    let mut rows = vec![0; order.len() * words];
    let mut values = vec![0.0; gate.columns];
    for (bits, &(_, neuron)) in rows.chunks_mut(words).zip(order) {
        dequantise(gate.format, gate.row(neuron as usize).bytes, &mut values);
        sign_bits(&values, bits);
    }
    rows
}

/// Sign bits of inputs: `[rows, words]`.
pub fn input_signs(inputs: &[f32], width: usize) -> Vec<u64> {
    let words = width.div_ceil(64);
    let mut bits = vec![0; inputs.len() / width * words];
    for (bits, x) in bits.chunks_mut(words).zip(inputs.chunks(width)) {
        sign_bits(x, bits);
    }
    bits
}

/// The sign level's thresholds, in order of rank.
fn sign_differences(gate: Matrix<'_>, samples: &Samples, order: &[(u32, u32)]) -> Vec<i32> {
    let words = gate.columns.div_ceil(64);
    let (rows, inputs) = (signs(gate, order), input_signs(&samples.inputs, samples.width));
    let mut position = vec![0; order.len()];
    order.iter().enumerate().for_each(|(i, &(_, neuron))| position[neuron as usize] = i);
    let differences = |token: usize, neuron: usize| -> u32 {
        let (x, row) = (&inputs[token * words..][..words], &rows[position[neuron] * words..][..words]);
        x.iter().zip(row).map(|(a, b)| (a ^ b).count_ones()).sum()
    };
    let most = sign_thresholds(&samples.active, samples.real, SIGN_RECALL, &differences);
    order.iter().map(|&(_, neuron)| most[neuron as usize]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_a_part_of_an_expert_of_at_most_half_a_mebibyte() {
        // Qwen3's shape in Q4_0, gpt-oss's in MXFP4, an expert that fits, one without a part that fits
        assert_eq!(slice_of(768, 3 * 1152, 1, 1), 128);
        assert_eq!(slice_of(2880, 3 * 1530, 1, 1), 96);
        assert_eq!(slice_of(96, 768, 1, 1), 96);
        assert_eq!(slice_of(15, SLICE_BYTES, 1, 1), 3);
    }

    #[test]
    fn a_slice_with_a_piece_of_down_is_whole_blocks_and_its_rows_are_not_short() {
        // Qwen3's shape in Q4_0 and Q4_K, gpt-oss's in MXFP4, Mistral's in Q4_0, SmolLM2's in Q4_1
        assert_eq!(slice_of(768, 3 * 1152, 32, 228), 256);
        assert_eq!(slice_of(768, 3 * 1152, 256, 228), 256);
        assert_eq!(slice_of(2880, 3 * 1530, 32, 241), 288);
        assert_eq!(slice_of(14336, 3 * 2304, 32, 228), 256);
        assert_eq!(slice_of(1536, 3 * 360, 32, 205), 384);
        // an expert of fewer neurons than a row should have
        assert_eq!(slice_of(96, 768, 32, 228), 96);
        assert_eq!(slice_of(96, SLICE_BYTES, 32, 1), 32);
    }
}
