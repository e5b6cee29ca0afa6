//! Every quality level measured on held-out text, with all layers at the level.
//!
//! A level that changes the residual stream has a stream of its own. The input of a layer comes from the level's earlier layers, and true
//! activity is judged on that stream. The exact gate only skips zeros, and shares the dense level's stream.

use std::collections::BTreeMap;
use std::ops::Range;

use flashplan::internals::model::source::SourceModel;
use flashplan::internals::recording::{Recording, Routes};
use kernels::Kernels;
use plans::Policy;
use plans::engine::PREFETCH_ONE_IN;
use plans::expectation::{QUANTILES, quantile};
use plans::file::significant;
use plans::model::LevelKind;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::batch::{Expert, Layer, row_sizes, times_rounded};
use super::level::{Menu, Predictors, input_signs, signs};
use super::look_ahead::{self, Prefetched};
use super::matrix::Use;
use super::missing::{Missing, compared};
use super::observe::{Bits, active};
use super::order::NeuronOrder;
use super::reuse::{Miniature, Surfaces, Trace, surfaces};
use super::table::{self, thousandths};

/// First tokens of a text that cache curves leave out.
///
/// They request more neurons, and other ones, than a run decodes after a prompt. Under 2380 MiB a generated Mistral 7B misses 7.4 %
/// at positions 2 to 5, 5.8 % at 6 to 9, and about 5 % later.
pub(super) const EARLY: usize = 16;

/// A level in one layer: counts of (token, neuron) pairs, and derived figures.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Neurons of the routed experts.
    pub routed: u64,
    /// Truly active.
    pub truly: u64,
    /// Gate above zero.
    pub gate: u64,
    /// Requested.
    pub requested: u64,
    /// Requested and truly active.
    pub requested_truly: u64,
    /// Requested and gate above zero.
    pub requested_gate: u64,
    /// (token, expert) pairs with truly active neurons.
    pub adding: u64,
    /// Added fraction of each token and layer with truly active neurons, summed.
    pub added: f64,
    /// Truly active neurons of a token: mean, median, 90th and 99th percentile.
    pub truly_of_token: [f64; 4],
    /// Requested neurons of a token: mean, median, 90th and 99th percentile.
    pub requested_of_token: [f64; 4],
    /// Miss rates by policy, `[share][cached]`, see [`super::reuse`]. Only `lru` where every neuron is requested, and not in slices.
    pub misses: BTreeMap<Policy, Vec<Vec<f64>>>,
    /// Reads of a missing neuron if neighbours share one, under the last policy: policies differ little.
    pub runs: Vec<Vec<f64>>,
    /// Reads of a missing neuron if reads go over gaps, narrow and wide.
    pub runs_over_gaps: [Vec<Vec<f64>>; 2],
    /// Missing neurons of tokens, under the last policy.
    pub missing: Missing,
    /// Neurons that the layer before prefetches; none in the first layer.
    pub ahead: Prefetched,
}

/// The levels of each stream: `[stream]`, indices of levels.
pub fn streams(menu: &Menu) -> Vec<Vec<usize>> {
    let mut streams: Vec<Vec<usize>> = Vec::new();
    for (i, level) in menu.levels.iter().enumerate() {
        match (level.kind, streams.first_mut()) {
            (LevelKind::ExactGate, Some(dense)) => dense.push(i),
            _ => streams.push(vec![i]),
        }
    }
    streams
}

/// A level's selections in a layer, token by token of its stream.
#[derive(Debug, Clone, Default)]
struct Tally {
    figures: Figures,
    truly: Vec<u32>,
    requested: Vec<u32>,
    /// Requested replayed neurons of each traced token: none for an early one, and all for a batch.
    positions: Vec<Vec<u32>>,
    /// Requested neurons of each window before the current batch.
    traced: Vec<usize>,
    /// For each token of [`look_ahead::tokens`], the requested neurons, and the ones that the layer before predicts.
    looked_at: [Vec<Vec<u32>>; 2],
}

/// Selects neurons as the levels do in one layer, and counts.
#[derive(Debug)]
pub struct Listener<'a> {
    source: &'a SourceModel<'a>,
    layer: usize,
    kernels: &'a dyn Kernels,
    menu: &'a Menu,
    streams: &'a [Vec<usize>],
    /// (rank, neuron) of each expert's neurons.
    experts: &'a [Vec<(u32, u32)>],
    /// The predictors of each expert, or their thresholds on gates; empty where every level requests every neuron.
    predictors: &'a [Predictors],
    /// Sign bits of each expert's gate rows.
    signs: Vec<Vec<u64>>,
    /// Tokens of a stream; uncounted tokens come last.
    stream_tokens: usize,
    /// Sizes of each expert's down rows, in the source's order.
    down_sizes: Vec<Vec<f32>>,
    always_on: u32,
    /// Whether each token of a stream is among the first of its window.
    early: Vec<bool>,
    /// Window of each token of a stream.
    window_of: Vec<usize>,
    windows: usize,
    /// Maximum requested neurons of a window in the trace.
    trace_max: usize,
    /// The replayed ranks.
    miniature: Miniature,
    /// For each token of a stream, its index in [`look_ahead::tokens`].
    looked_at: Vec<Option<usize>>,
    tallies: Vec<Tally>,
    last_expert: Option<usize>,
}

impl<'a> Listener<'a> {
    /// An evaluation without data yet.
    ///
    /// `windows` has the counted tokens of each window of a stream. Further tokens up to `stream_tokens` go through the levels, but do not
    /// count. The cache curves of a level come from about `trace_requested_max` requested neurons.
    pub fn new(
        source: &'a SourceModel<'a>,
        layer: usize,
        menu: &'a Menu,
        streams: &'a [Vec<usize>],
        order: &NeuronOrder,
        experts: &'a [Vec<(u32, u32)>],
        predictors: &'a [Predictors],
        windows: &[usize],
        stream_tokens: usize,
        trace_requested_max: usize,
    ) -> Self {
        let tokens = windows.iter().sum();
        let mut looked_at = vec![None; tokens];
        let tokens_looked_at = look_ahead::tokens(windows);
        tokens_looked_at.iter().enumerate().for_each(|(i, &token)| looked_at[token] = Some(i));
        let none = vec![Vec::new(); tokens_looked_at.len()];
        let tally = Tally {
            looked_at: [none.clone(), none],
            truly: vec![0; tokens],
            requested: vec![0; tokens],
            positions: vec![Vec::new(); tokens],
            traced: vec![0; windows.len()],
            ..Tally::default()
        };
        // thresholds on gates need no signs
        let predicting = if menu.predicts { predictors } else { &[] };
        let signs = predicting.par_iter().zip(experts).enumerate();
        Self {
            source,
            layer,
            kernels: kernels::best(),
            menu,
            streams,
            experts,
            predictors,
            signs: signs.map(|(e, (_, order))| signs_of(source, layer, e, order)).collect(),
            stream_tokens,
            down_sizes: (0..experts.len()).map(|e| row_sizes(source.ffn_down(layer, e))).collect(),
            always_on: order.hot(),
            early: early(windows),
            window_of: windows.iter().enumerate().flat_map(|(i, &n)| std::iter::repeat_n(i, n)).collect(),
            windows: windows.len(),
            trace_max: trace_requested_max / windows.len().max(1),
            miniature: Miniature::of(experts.iter().map(Vec::len).sum(), menu.slice_neurons),
            looked_at,
            tallies: vec![tally; menu.levels.len()],
            last_expert: None,
        }
    }

    /// Counts the neurons of an expert that the levels request, and keeps only these. Neurons are in order of rank.
    pub fn hear(&mut self, seen: Expert<'_>) {
        if self.last_expert.is_some_and(|last| seen.expert <= last) {
            self.end_batch();
        }
        self.last_expert = Some(seen.expert);
        let activation = self.source.config().activation();
        let (tokens, count) = (self.stream_tokens, seen.rows.len());
        let (gate, up) = (&*seen.gate, seen.up);
        let mut masks = Vec::new();
        let mut start = 0;
        while start < count {
            let stream = seen.rows[start] / tokens;
            let end = seen.rows.partition_point(|row| row / tokens <= stream);
            let len = end - start;
            let input = &seen.input[start * self.width()..end * self.width()];
            let leader = self.streams[stream][0];
            let mask = match self.menu.levels[leader].kind {
                LevelKind::GateThreshold => {
                    let of_neuron = |p: usize| &gate[p * count + start..p * count + end];
                    Some(self.gate_mask(leader, seen.expert, of_neuron))
                }
                _ => self.mask(leader, seen.expert, input),
            };
            let bits = |bit: &(dyn Fn(usize, usize) -> bool + Sync)| {
                let mut bits = Bits::new(self.experts[seen.expert].len());
                bits.push(len, |_| true, bit);
                bits
            };
            let at = |position: usize, token: usize| position * count + start + token;
            // levels on gates skip neurons that fire, so all count
            let every = self.menu.cuts_gates;
            let truly = bits(&|p, t| every || active(activation, gate[at(p, t)], up[at(p, t)]));
            let positive = bits(&|p, t| gate[at(p, t)] > 0.0);
            let size = |p: usize, t: usize| {
                let down = self.down_sizes[seen.expert][self.experts[seen.expert][p].1 as usize];
                f64::from(activation.apply(gate[at(p, t)], up[at(p, t)]).abs() * down)
            };
            let all: Vec<f64> = (0..len).map(|row| truly.ones(row).map(|p| size(p, row)).sum()).collect();
            for &level in &self.streams[stream] {
                let requested = match (self.menu.levels[level].kind, &mask) {
                    (LevelKind::ExactGate, _) => bits(&|p, t| activation.fires(gate[at(p, t)])),
                    (_, None) => bits(&|_, _| true),
                    (_, Some(mask)) => bits(&|p, t| mask[p * len + t]),
                };
                let tally = &mut self.tallies[level];
                for row in 0..len {
                    let token = seen.rows[start + row] - stream * tokens;
                    if token >= self.window_of.len() {
                        continue;
                    }
                    let figures = &mut tally.figures;
                    figures.routed += requested.columns() as u64;
                    figures.truly += u64::from(truly.count(row));
                    figures.gate += u64::from(positive.count(row));
                    figures.requested += u64::from(requested.count(row));
                    figures.requested_truly += u64::from(requested.count_common(row, &truly, row));
                    figures.requested_gate += u64::from(requested.count_common(row, &positive, row));
                    if all[row] > 0.0 {
                        let found = truly.ones(row).filter(|&p| requested.get(row, p)).map(|p| size(p, row));
                        figures.adding += 1;
                        figures.added += found.sum::<f64>() / all[row];
                    }
                    tally.truly[token] += truly.count(row);
                    tally.requested[token] += requested.count(row);
                    if let Some(at) = self.looked_at[token] {
                        let order = &self.experts[seen.expert];
                        tally.looked_at[0][at].extend(requested.ones(row).map(|p| order[p].0));
                    }
                    if !self.early[token] && tally.traced[self.window_of[token]] < self.trace_max {
                        let order = &self.experts[seen.expert];
                        let replayed = requested.ones(row).filter_map(|p| self.miniature.place(order[p].0));
                        tally.positions[token].extend(replayed);
                    }
                }
            }
            masks.push((start..end, mask));
            start = end;
        }
        seen.gate.par_chunks_mut(count).zip(up.par_chunks(count)).enumerate().for_each(
            |(position, (gate, up))| {
                for (range, mask) in &masks {
                    let mask = mask.as_ref().map(|mask| &mask[position * range.len()..][..range.len()]);
                    for (i, (gate, up)) in gate[range.clone()].iter_mut().zip(&up[range.clone()]).enumerate()
                    {
                        let requested = mask.is_none_or(|mask| mask[i]);
                        *gate = if requested { activation.apply(*gate, *up) } else { 0.0 };
                    }
                }
            },
        );
    }

    fn width(&self) -> usize {
        self.source.config().width
    }

    /// Counts the neurons that the levels would request with the stream of the layer before, for the tokens of [`look_ahead`].
    ///
    /// `rows: [streams, tokens, width]`.
    pub fn look_ahead(&mut self, layer: &Layer<'_>, rows: &[f32]) {
        let width = self.width();
        let of_stream = rows.len() / self.streams.len();
        for (stream, rows) in rows.chunks_exact(of_stream.max(1)).enumerate() {
            let normed = layer.normed(rows);
            let routed = layer.routed(rows);
            for expert in 0..self.experts.len() {
                let own = |(token, routed): (usize, &Vec<(usize, f32)>)| {
                    routed.iter().any(|&(e, _)| e == expert).then_some(token)
                };
                let tokens: Vec<usize> = routed.iter().enumerate().filter_map(own).collect();
                let input: Vec<f32> =
                    tokens.iter().flat_map(|token| &normed[token * width..][..width]).copied().collect();
                if tokens.is_empty() {
                    continue;
                }
                for &level in &self.streams[stream] {
                    let mask = match self.menu.levels[level].kind {
                        LevelKind::ExactGate | LevelKind::GateThreshold => {
                            let (gates, count) = (layer.gates(expert, &input), tokens.len());
                            Some(self.gate_mask(level, expert, |p| &gates[p * count..][..count]))
                        }
                        _ => self.mask(level, expert, &input),
                    };
                    let guessed = &mut self.tallies[level].looked_at[1];
                    for (p, &(rank, _)) in self.experts[expert].iter().enumerate() {
                        for (i, &token) in tokens.iter().enumerate() {
                            if mask.as_ref().is_none_or(|mask| mask[p * tokens.len() + i]) {
                                guessed[token].push(rank);
                            }
                        }
                    }
                }
            }
        }
    }

    /// The selection of a level on gates, `[neurons, tokens]`, from the gates of each neuron by its position.
    fn gate_mask<'g>(
        &self,
        level: usize,
        expert: usize,
        gates: impl Fn(usize) -> &'g [f32] + Sync,
    ) -> Vec<bool> {
        let activation = self.source.config().activation();
        let cut = self.menu.levels[level].cut.map(|cut| &self.predictors[expert].thresholds[cut]);
        let of_neuron = |p: usize| {
            let least = cut.map(|thresholds| thresholds[p]);
            gates(p).iter().map(move |&gate| match least {
                Some(least) => activation.of_gate(gate).abs() >= least,
                None => activation.fires(gate),
            })
        };
        (0..self.experts[expert].len()).into_par_iter().flat_map_iter(of_neuron).collect()
    }

    /// The selection of a level, `[neurons, tokens]`; `None` where all counted neurons are requested, or gates decide.
    fn mask(&self, level: usize, expert: usize, input: &[f32]) -> Option<Vec<bool>> {
        let level = &self.menu.levels[level];
        let c = self.source.config();
        let order = &self.experts[expert];
        let tokens = input.len() / c.width;
        let mut mask = vec![false; order.len() * tokens];
        match level.kind {
            LevelKind::Dense | LevelKind::ExactGate | LevelKind::GateThreshold => return None,
            LevelKind::Sign => {
                let words = c.width.div_ceil(64);
                let inputs = input_signs(input, c.width);
                let (rows, most) = (&self.signs[expert], &self.predictors[expert].differences);
                mask.par_chunks_mut(tokens).enumerate().for_each(|(p, mask)| {
                    let row = &rows[p * words..][..words];
                    for (requested, input) in mask.iter_mut().zip(inputs.chunks(words)) {
                        let differences = i64::from(self.kernels.sign_mismatch(row, input));
                        *requested = order[p].0 < self.always_on || differences <= i64::from(most[p]);
                    }
                });
            }
            LevelKind::LowRank => {
                let predictors = &self.predictors[expert];
                let [fc1, fc2] = predictors.matrices(self.menu.format, c.width);
                let mut hidden = times_rounded(fc1, None, input, Use::Transposed);
                hidden.iter_mut().for_each(|h| *h = self.menu.hidden.apply(*h));
                let scores = times_rounded(fc2, None, &hidden, Use::Plain);
                let thresholds = level.cut.map(|cut| &predictors.thresholds[cut])?;
                mask.par_chunks_mut(tokens).zip(scores.par_chunks(tokens)).enumerate().for_each(
                    |(p, (mask, scores))| {
                        for (requested, &score) in mask.iter_mut().zip(scores) {
                            *requested = order[p].0 < self.always_on || score >= thresholds[p];
                        }
                    },
                );
            }
        }
        Some(mask)
    }

    fn end_batch(&mut self) {
        for tally in &mut self.tallies {
            tally.traced.fill(0);
            for (positions, &window) in tally.positions.iter().zip(&self.window_of) {
                tally.traced[window] += positions.len();
            }
        }
    }

    /// The figures of each level. With a recording the misses are of its experts.
    pub fn figures(self, recording: Option<&Recording>) -> Vec<Figures> {
        let axes = table::axes();
        let neurons = self.miniature.neurons();
        let (early, window_of) = (&self.early, &self.window_of);
        let (windows, trace_max) = (self.windows, self.trace_max);
        let (miniature, sliced) = (self.miniature, self.menu.slice_neurons > 1);
        let slices =
            |expert: &Vec<(u32, u32)>| expert.iter().filter_map(|&(rank, _)| miniature.slice(rank)).collect();
        let experts: Vec<Vec<u32>> = self.experts.iter().map(slices).collect();
        let considered = if sliced { 1 } else { PREFETCH_ONE_IN };
        self.tallies
            .into_par_iter()
            .zip(&self.menu.levels)
            .map(|(tally, level)| {
                let Tally { mut figures, truly, requested, positions, looked_at, .. } = tally;
                let [asked, guessed] = looked_at.map(|ranks| {
                    let ranks = ranks.into_iter();
                    let slices = ranks.map(|ranks| {
                        let mut slices: Vec<u32> =
                            ranks.into_iter().filter_map(|rank| miniature.slice(rank)).collect();
                        slices.sort_unstable();
                        slices
                    });
                    slices.collect::<Vec<_>>()
                });
                let [asked, guessed] = recording.map_or([asked, guessed], |recording| {
                    let known = self.layer > 0 && recording.routes.are_known_ahead();
                    let of = |of: Of| {
                        if known {
                            visited(recording, of, self.layer, &experts, generated(recording))
                        } else {
                            Vec::new()
                        }
                    };
                    [of(Routes::experts), of(Routes::ahead)]
                });
                if guessed.iter().any(|guessed| !guessed.is_empty()) {
                    figures.ahead = look_ahead::replayed(&asked, &guessed, &experts, considered);
                }
                figures.truly_of_token = summary(&truly);
                figures.requested_of_token = summary(&requested);
                let trace = match recording {
                    Some(recording) => routed(recording, self.layer, &experts),
                    None => traced(positions, early, window_of, windows, trace_max),
                };
                let choice = level.kind != LevelKind::Dense || sliced && experts.len() > 1;
                let policies = if choice { &Policy::ALL } else { &Policy::ALL[..1] };
                for &policy in policies {
                    let (shares, cached) = (&axes.pinned_share_fraction, &axes.cached_fraction);
                    let Surfaces {
                        mut miss_fraction,
                        mut runs_fraction,
                        mut runs_over_gaps_fraction,
                        missing,
                    } = surfaces(&trace, policy, neurons, shares, cached);
                    miss_fraction.iter_mut().flatten().for_each(|miss| *miss = significant(*miss));
                    figures.misses.insert(policy, miss_fraction);
                    figures.missing = missing;
                    if sliced {
                        // the reads of an expert's slices follow from its shape
                        continue;
                    }
                    for runs in runs_over_gaps_fraction.iter_mut().chain([&mut runs_fraction]) {
                        runs.iter_mut().flatten().for_each(|runs| *runs = thousandths(*runs));
                    }
                    (figures.runs, figures.runs_over_gaps) = (runs_fraction, runs_over_gaps_fraction);
                }
                figures
            })
            .collect()
    }
}

fn signs_of(source: &SourceModel<'_>, layer: usize, expert: usize, order: &[(u32, u32)]) -> Vec<u64> {
    signs(source.ffn_gate(layer, expert), order)
}

/// Whether each token of the windows is among the first [`EARLY`], or in the first half of a short window.
fn early(windows: &[usize]) -> Vec<bool> {
    windows.iter().flat_map(|&tokens| (0..tokens).map(move |token| token < EARLY.min(tokens / 2))).collect()
}

/// The requests of each window's tokens after the early ones, up to `max` neurons.
///
/// A token's requests are in ascending rank, as the engine merges the experts'.
fn traced(
    positions: Vec<Vec<u32>>,
    early: &[bool],
    window_of: &[usize],
    windows: usize,
    max: usize,
) -> Trace {
    let mut trace = Trace::default();
    let mut requested = vec![0; windows];
    for (token, (mut positions, &window)) in positions.into_iter().zip(window_of).enumerate() {
        if !early[token] && requested[window] < max {
            positions.sort_unstable();
            requested[window] += positions.len();
            trace.ask(positions.into_iter());
            trace.end_token(compared(token, window_of.len()));
        }
    }
    trace
}

/// Requests of a recording's prompt and generated tokens in a layer: the slices, from `experts`, of the visited experts.
pub fn routed(recording: &Recording, layer: usize, experts: &[Vec<u32>]) -> Trace {
    let mut trace = Trace::default();
    for slices in visited(recording, Routes::experts, layer, experts, 0..recording.prompt) {
        trace.ask(slices.into_iter());
        trace.end_token(None);
    }
    trace.end_prompt();
    let tokens = visited(recording, Routes::experts, layer, experts, generated(recording));
    let count = tokens.len();
    for (token, slices) in tokens.into_iter().enumerate() {
        trace.ask(slices.into_iter());
        trace.end_token(compared(token, count));
    }
    trace
}

/// A recording's tokens after its prompt.
fn generated(recording: &Recording) -> Range<usize> {
    recording.prompt..recording.routes.tokens()
}

/// Experts of a token in a layer, by its position.
type Of = fn(&Routes, usize, usize) -> Option<&[u16]>;

/// The slices of the experts of some recorded tokens, ascending.
fn visited(
    recording: &Recording,
    of: Of,
    layer: usize,
    experts: &[Vec<u32>],
    tokens: Range<usize>,
) -> Vec<Vec<u32>> {
    let slices = |token| {
        let visited = of(&recording.routes, token, layer).unwrap_or_default();
        let mut slices: Vec<u32> =
            visited.iter().flat_map(|&expert| &experts[usize::from(expert)]).copied().collect();
        slices.sort_unstable();
        slices
    };
    tokens.map(slices).collect()
}

/// Mean, median, 90th and 99th percentile; 0 for none.
fn summary(values: &[u32]) -> [f64; 4] {
    let mut ascending = values.to_vec();
    ascending.sort_unstable();
    let [p50, p90, p99] = QUANTILES.map(|share| f64::from(quantile(&ascending, share).unwrap_or(0)));
    [significant(mean(values)), p50, p90, p99]
}

/// The mean; 0 for none.
fn mean(values: &[u32]) -> f64 {
    values.iter().map(|&value| f64::from(value)).sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_a_value_that_occurred() {
        let values: Vec<u32> = (1..=100).rev().collect();
        assert_eq!(summary(&values), [50.5, 50.0, 90.0, 99.0]);
        assert_eq!((summary(&[]), mean(&[1, 2])), ([0.0; 4], 1.5));
    }

    #[test]
    fn a_trace_ends_when_its_window_has_requested_enough() {
        let positions = vec![vec![8], vec![9, 7], vec![6], vec![3, 1], vec![2], vec![5], vec![4, 0]];
        // three tokens of six are early, and none of one
        let trace = traced(positions, &early(&[6, 1]), &[0, 0, 0, 0, 0, 0, 1], 2, 3);
        assert_eq!(trace.tokens().collect::<Vec<_>>(), [&[1, 3][..], &[2], &[0, 4]]);
    }
}
