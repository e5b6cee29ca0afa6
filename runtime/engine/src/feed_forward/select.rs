//! Selection of a row's neurons: the router selects experts, the quality level selects neurons inside them.
//!
//! ```text
//! for each expert that the row is routed to:
//!     candidates   all of its neurons; with look-ahead, the most used ones that are not in memory
//!     scores       from the level's predictor
//!     selected     candidates whose score passes the predictor's threshold, and the always-on neurons
//! ```
//!
//! Without a predictor every slice of an expert is selected; its score is the expert's weight.

use kernels::{self, Form, Input, Kernels, rms_norm};
use plans::engine::PREFETCH_ONE_IN;
use plans::model::LevelKind;

use super::{FeedForward, Network};
use crate::kv::At;
use crate::model::config::{EXPERTS_USED_MAX, Role, Router, RouterInput};
use crate::moe;
use crate::neurons::LayerNeurons;
use crate::predictor::{Predictor, sign_bits};
use crate::routes::Routes;
use crate::weights::Weights;

/// The neurons to select from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Candidates {
    /// All neurons of the layer.
    All,
    /// The most used neurons among those not in memory.
    Missing,
}

/// The inputs of routing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Routing<'a> {
    /// The plan's instruction set.
    pub kernels: &'a dyn Kernels,
    /// The fixed region.
    pub weights: &'a Weights,
    /// The router; `None` for a dense model.
    pub router: Option<&'a Router>,
    /// Added to the mean square by norms.
    pub epsilon: f32,
    /// `[rows]`: sequence and position of each row.
    pub rows: &'a [At],
    /// Recorded experts, which replace the router's choice.
    pub routes: Option<&'a Routes>,
}

impl FeedForward {
    /// Routes a layer's rows, for [`FeedForward::decode`] and [`FeedForward::prefill`].
    ///
    /// *Shapes*: `x: [rows, width]`, the router's input before its own norm.
    pub(crate) fn route(&mut self, routing: &Routing<'_>, layer: usize, x: &[f32]) {
        for (row, x) in x.chunks_exact(x.len() / routing.rows.len()).enumerate() {
            let experts = routing.routes.and_then(|routes| routes.experts(routing.rows[row].position, layer));
            self.route_row(routing, layer, x, row, experts);
        }
    }

    /// Writes each expert's weight for a row to `router`; zero means not routed. `recorded` experts replace
    /// the router's choice.
    pub(super) fn route_row(
        &mut self,
        n: &Routing<'_>,
        layer: usize,
        x: &[f32],
        row: usize,
        recorded: Option<&[u16]>,
    ) {
        let half = self.router.len() / 2;
        let Some((router, described)) = n.weights.router(layer).zip(n.router) else {
            self.router[half + row] = 1.0;
            return;
        };
        let spare = &mut self.rounded[1][..x.len()];
        let x = match n.weights.of_network(layer, Role::RouterNorm) {
            Some(weight) => {
                rms_norm(x, weight, n.epsilon, spare);
                &*spare
            }
            None => x,
        };
        let experts = router.rows;
        let (logits, weights) = self.router.split_at_mut(half);
        let [logits, weights] = [logits, weights].map(|part| &mut part[row * experts..][..experts]);
        let mut chosen = [(0, 0.0); EXPERTS_USED_MAX];
        let chosen = &mut chosen[..described.experts_used];
        n.kernels.rows(router, 0, x, logits);
        if described.input == RouterInput::Normed {
            let root = (x.len() as f32).sqrt();
            logits.iter_mut().for_each(|logit| *logit /= root);
        }
        if let Some(bias) = n.weights.of_network(layer, Role::RouterBias) {
            logits.iter_mut().zip(bias).for_each(|(logit, bias)| *logit += bias);
        }
        let selection_bias = n.weights.of_network(layer, Role::SelectionBias);
        match recorded {
            Some(experts) => moe::weigh_into(logits, described, selection_bias, experts, chosen),
            None => moe::route_into(logits, described, selection_bias, chosen),
        }
        moe::scale(chosen, n.weights.of_network(layer, Role::ExpertScales));
        weights.fill(0.0);
        for &mut (expert, weight) in chosen.iter_mut() {
            weights[expert] = weight;
        }
    }

    /// Writes the slices that the level selects for a row, and their scores, to `selected` and `scores`: a
    /// list for each of the row's experts. With a predictor, a slice is a neuron.
    pub(super) fn select(
        &mut self,
        n: &mut Network<'_>,
        layer: usize,
        neurons: &LayerNeurons,
        of: Candidates,
        x: &[f32],
        row: usize,
    ) -> Ends {
        let experts = neurons.experts_count();
        let weights = self.router.len() / 2 + row * experts;
        let words = x.len().div_ceil(64);
        if n.level.kind() == LevelKind::Sign {
            sign_bits(x, &mut self.signs[..words]);
        }
        let [of_input, of_hidden] = &mut self.rounded;
        let (round, mut ends) = (n.form == Form::Q8, Ends::default());
        let input = Input::new(x, round, of_input);
        for expert in (0..experts).filter(|&expert| self.router[weights + expert] != 0.0) {
            let (start, list) = (ends.last(), neurons.list(expert));
            let (selected, scores) = (&mut self.selected[start..], &mut self.scores[start..]);
            let Some(predictor) = n.level.predictor(layer, expert) else {
                let count = every(neurons, expert, of, selected);
                scores[..count].fill(self.router[weights + expert]);
                ends.push(start + count);
                continue;
            };
            let count = match of {
                Candidates::All => list.len(),
                Candidates::Missing => missing(neurons, list, selected),
            };
            let scores = &mut scores[..count];
            if of == Candidates::All {
                self.selection_bytes += predictor.bytes();
            }
            let hidden = &mut self.hidden[..predictor.hidden()];
            if !hidden.is_empty() {
                let hide = |start, part: &mut [f32]| predictor.hide(n.kernels, input, start, part);
                n.pool.share_rows(hidden, || n.fetcher.poll(), hide);
            }
            let hidden = Input::new(hidden, round, of_hidden);
            let seen = Seen { input, hidden, signs: &self.signs[..words] };
            let indices = (of == Candidates::Missing).then_some(&selected[..count]);
            score(n, &predictor, seen, indices, scores);
            ends.push(start + keep(&predictor, list, of, n.always_on[layer], selected, scores));
        }
        ends
    }
}

/// The inputs of a predictor.
#[derive(Clone, Copy)]
struct Seen<'a> {
    input: Input<'a>,
    hidden: Input<'a>,
    signs: &'a [u64],
}

/// Lists every slice of an expert, or the missing ones; returns their number. Of missing single neurons, only
/// the most used.
fn every(neurons: &LayerNeurons, expert: usize, of: Candidates, selected: &mut [u32]) -> usize {
    let single = neurons.slice() == 1 && of == Candidates::Missing;
    let most = if single { neurons.list(expert).len() / PREFETCH_ONE_IN } else { usize::MAX };
    let wanted = |slice: &u32| of == Candidates::All || neurons.cache.is_missing(*slice);
    let slices = neurons.slices_of(expert).filter(wanted).take(most);
    let mut count = 0;
    for (selected, slice) in selected.iter_mut().zip(slices) {
        *selected = slice;
        count += 1;
    }
    count
}

/// Lists the most used missing neurons of an expert, as indices in its list; returns their number.
fn missing(neurons: &LayerNeurons, list: &[u32], indices: &mut [u32]) -> usize {
    let hot = list.partition_point(|&rank| rank < neurons.cache.hot());
    let (mut count, most) = (0, list.len() / PREFETCH_ONE_IN);
    // misses are unpredictable for the processor, too: write every neuron, and advance past the missing ones
    for (i, &rank) in (hot as u32..).zip(&list[hot..]) {
        indices[count] = i;
        count += usize::from(neurons.cache.is_missing(rank));
        if count == most {
            break;
        }
    }
    count
}

/// Scores an expert's neurons, or the neurons at `indices`; neighbours are scored together.
fn score(
    n: &mut Network<'_>,
    predictor: &Predictor<'_>,
    seen: Seen<'_>,
    indices: Option<&[u32]>,
    scores: &mut [f32],
) {
    let (kernels, Seen { input, hidden, signs }) = (n.kernels, seen);
    let of_part = |first: usize, mut scores: &mut [f32]| {
        let Some(indices) = indices else {
            return predictor.scores(kernels, input, hidden, signs, first, scores);
        };
        let indices = &indices[first..][..scores.len()];
        for neighbours in indices.chunk_by(|&index, &next| index + 1 == next) {
            let (of_these, rest) = scores.split_at_mut(neighbours.len());
            predictor.scores(kernels, input, hidden, signs, neighbours[0] as usize, of_these);
            scores = rest;
        }
    };
    n.pool.share_rows(scores, || n.fetcher.poll(), of_part);
}

/// Moves the ranks and scores of selected candidates to the front; returns their number.
fn keep(
    predictor: &Predictor<'_>,
    list: &[u32],
    of: Candidates,
    always_on: u32,
    selected: &mut [u32],
    scores: &mut [f32],
) -> usize {
    let mut count = 0;
    for i in 0..scores.len() {
        let index = if of == Candidates::All { i } else { selected[i] as usize };
        let (rank, score) = (list[index], scores[i]);
        (selected[count], scores[count]) = (rank, score);
        count += usize::from(predictor.selects(score) || rank < always_on);
    }
    count
}

/// The ends of the lists of a row's experts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ends {
    ends: [usize; EXPERTS_USED_MAX + 1],
    /// Number of lists.
    pub(super) lists: usize,
}

impl Default for Ends {
    fn default() -> Self {
        Self { ends: [0; EXPERTS_USED_MAX + 1], lists: 0 }
    }
}

impl Ends {
    /// The end of the last list.
    pub(super) fn last(&self) -> usize {
        self.ends[self.lists]
    }

    pub(super) fn push(&mut self, end: usize) {
        self.lists += 1;
        self.ends[self.lists] = end;
    }
}

/// Merges the ascending lists into one, each rank with its score.
pub(super) fn merged<'a>(
    selected: &'a [u32],
    scores: &'a [f32],
    ends: Ends,
) -> impl Iterator<Item = (u32, f32)> + 'a {
    let mut heads = ends.ends;
    (0..ends.last()).map(move |_| {
        let mut best = usize::MAX;
        for list in 0..ends.lists {
            let head = heads[list];
            if head < ends.ends[list + 1] && (best == usize::MAX || selected[head] < selected[heads[best]]) {
                best = list;
            }
        }
        let head = heads[best];
        heads[best] += 1;
        (selected[head], scores[head])
    })
}
