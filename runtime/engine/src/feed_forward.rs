//! A layer's feed-forward network, neuron by neuron.
//!
//! ```text
//! route     the router selects each row's experts and their weights, now or before the layer's attention
//! select    decode: the level selects slices with active neurons, mostly single neurons
//!           prefill: every slice of a routed expert
//! look up   split the requested neurons into cached and missing ones
//! fetch     read the missing ones, neighbours in one read; then prefetch for the next layer
//! values    h[i] = weight * f(gate_i x) * up_i x     (without gates gate_i is up_i, one product)
//!           threads take clusters: cached neurons first, then neurons whose reads complete
//! sum       y += h[i] * down_i                       threads share eight sums; pieces of down: rows of y (`pieces.rs`)
//! insert    put the read neurons into slots, evicting what the cache policy chooses, or drop them
//! ```
//!
//! Decode adds neurons to eight sums, chosen by rank, each in ascending order. Thread count, cache size,
//! cluster size and the order of reads therefore change no bit. Values need no order, so there is one
//! barrier, between values and sums. The barrier costs a microsecond a layer, and saves adding neurons whose
//! value is zero. Pinned neurons have the lowest ranks: all neurons before the first missing one are added
//! before reads are awaited.
//!
//! Several rows, of a batch or a draft, share one list. A neuron that any row requests is looked up, read and
//! inserted once, and computed for each row that requested it. For other rows its value is zero, and zeros
//! are never added, so a row has the same bits in any batch.
//!
//! Prompts are in `prompt.rs`.

use std::mem;
use std::ops::Range;

use plans::Plan;
use plans::engine::{SUMS, sum_words};
use plans::memory::Activations;

use crate::arena::{Align, Arena, ArenaError, Slab};
use crate::cache::Place;
use crate::fetch::{FetchError, Fetcher, Reads};
use crate::level::Level;
use crate::model::config::Role;
use crate::neurons::{Activity, LayerNeurons, NeuronError, Shape, Slots};
use crate::pool::Pool;
use crate::stage::{Stage, StageClock};
use crate::weights::Weights;
use kernels::{Activation, Form, Kernels};

mod ahead;
mod completed;
mod down;
mod list;
mod pieces;
mod prompt;
mod select;
mod values;

pub(crate) use ahead::Next;
use completed::{Checks, complete_parts, insert};
pub(crate) use down::Waiting;
use list::{List, Requests};
pub(crate) use prompt::Prompt;
pub(crate) use select::Routing;
use select::{Candidates, Ends, merged};
use values::Biases;

/// Why a network has no result.
#[derive(Debug, thiserror::Error)]
pub enum FeedForwardError {
    /// A read's bytes do not match their checksum.
    #[error(transparent)]
    Neuron(#[from] NeuronError),
    /// A read failed.
    #[error(transparent)]
    Fetch(#[from] FetchError),
}

/// The buffers of the steps above, and the cluster size.
#[derive(Debug)]
pub(crate) struct FeedForward {
    /// Neurons that a thread takes together.
    pub cluster_neurons: usize,
    /// `[2, chunk + 1, experts]`: logits, then weights; the last row is for look-ahead.
    pub router: Slab<f32>,
    /// `[routed neurons]`: ranks of candidates, expert after expert.
    pub selected: Slab<u32>,
    /// `[neurons of a layer]`: for each slice of the list, a bit for each row that requests it. Only where
    /// steps have several rows.
    pub requests: Slab<u32>,
    /// `[routed neurons]`: predictor scores; then computed values, `[neurons of a layer, rows]` for several
    /// rows.
    pub scores: Slab<f32>,
    /// Hidden layer of a low-rank predictor.
    pub hidden: Slab<f32>,
    /// The rows' inputs and the hidden layer, rounded to 8 bits.
    pub rounded: [Slab<f32>; 2],
    /// Sign bits of the input.
    pub signs: Slab<u64>,
    /// `[slices of a layer]`: requested slices, ascending. Their neurons follow each other.
    pub requested: Slab<u32>,
    /// The place of each requested slice.
    pub places: Vec<Place>,
    /// `[neurons of a layer]`: requested slices or neurons to compute next.
    pub order: Slab<u32>,
    /// `[cluster, chunk]` in prompts. When decoding: the gates of requested neurons, then their values,
    /// `[routed neurons]`, or `[rows, neurons of a layer]` for several rows.
    pub values: Slab<f32>,
    /// Partial sums: `[rows, SUMS, sum_words]` when decoding down rows; `[chunk * experts used, width]` in a
    /// mixture's prompt.
    pub sums: Slab<f32>,
    /// `[rows]`: active neurons to be added with the next window.
    pub waiting: Box<[Waiting]>,
    /// Rounded values, for pieces of down.
    pub values_rounded: Slab<f32>,
    /// Buffers that only a prompt needs.
    pub prompt: Prompt,
    /// Counts of neurons over all decode steps.
    pub activity: Activity,
    /// Bytes of rows that compute read from slots and buffers.
    pub rows_bytes: u64,
    /// Bytes of predictors or gate rows that selection read.
    pub selection_bytes: u64,
    /// Time of each stage.
    pub clock: StageClock,
}

/// The buffers whose size grows with the number of rows.
#[derive(Debug)]
pub(crate) struct NeuronRows {
    /// [`FeedForward::router`].
    pub router: Slab<f32>,
    /// [`FeedForward::values`].
    pub values: Slab<f32>,
    /// [`FeedForward::sums`].
    pub sums: Slab<f32>,
    /// Rows of a prompt by expert.
    pub members: Slab<u32>,
    /// The packed rows of each expert, in a mixture's prompt.
    pub gathered: Slab<f32>,
}

/// The engine's parts that a feed-forward network uses, besides its buffers.
#[derive(Debug)]
pub(crate) struct Network<'a> {
    /// Compute threads.
    pub pool: &'a Pool,
    /// The plan's instruction set.
    pub kernels: &'a dyn Kernels,
    /// The form of vectors for products.
    pub form: Form,
    /// The fixed region.
    pub weights: &'a Weights,
    /// The quality level.
    pub level: &'a Level,
    /// The parts of the layer's bundles.
    pub shape: &'a Shape,
    /// Hot and cold regions.
    pub slots: &'a mut Slots,
    /// Demand and prefetch reads.
    pub fetcher: &'a mut Fetcher,
    /// The activation of gates, or of up without gates.
    pub activation: Activation,
    /// Whether a prompt multiplies by a transposed down.
    pub transposes_down: bool,
    /// The router and its rows.
    pub routing: Routing<'a>,
    /// Values of a row.
    pub width: usize,
    /// By layer: ranks that are always requested.
    pub always_on: &'a [u32],
    /// The token's number; its neurons are not evicted.
    pub stamp: u32,
    /// Whether compute waits until all missing neurons are read.
    pub blocking: bool,
}

impl FeedForward {
    /// Takes a plan's activation buffers from the arena; `rows` are the buffers of one token's row.
    pub(crate) fn new(
        arena: &mut Arena,
        plan: &Plan,
        experts: usize,
        shape: &Shape,
        a: &Activations,
        rows: NeuronRows,
    ) -> Result<Self, ArenaError> {
        let NeuronRows { router, values, sums, members, gathered } = rows;
        let mut floats = |elements: u64| arena.take(elements as usize, Align::Line);
        let (waiting, hidden) = (floats(a.waiting)?, floats(a.predictor / 2)?);
        let values_rounded = floats(a.values_rounded)?;
        let rounded = [floats(a.rounded / 2)?, floats(a.rounded / 2)?];
        let scores = floats(a.candidates / 2)?;
        let mut ranks = |elements: u64| arena.take(elements as usize, Align::Line);
        let [mut selected, requested, order] =
            [ranks(a.candidates / 2)?, ranks(a.requested / 4)?, ranks(a.requested / 4)?];
        let front = if plan.decode_rows() > 1 { selected.len() - requested.len() } else { selected.len() };
        let requests = selected.split_off(front);
        Ok(Self {
            cluster_neurons: plan.decode.cluster_neurons as usize,
            router,
            selected,
            requests,
            scores,
            hidden,
            rounded,
            signs: arena.take(a.predictor as usize / 4, Align::Line)?,
            requested,
            places: vec![Place::Missing; a.requested as usize / 4],
            order,
            values,
            sums,
            waiting: Waiting::of_each(waiting, plan.decode_rows() as usize),
            values_rounded,
            prompt: Prompt::new(plan.prefill_cluster_neurons() as usize, experts, shape, members, gathered),
            activity: Activity::default(),
            rows_bytes: 0,
            selection_bytes: 0,
            clock: StageClock::default(),
        })
    }

    /// Swaps the buffers that depend on the number of rows.
    pub(crate) fn exchange(&mut self, rows: NeuronRows) -> NeuronRows {
        let (members, gathered) = self.prompt.exchange(rows.members, rows.gathered);
        NeuronRows {
            router: mem::replace(&mut self.router, rows.router),
            values: mem::replace(&mut self.values, rows.values),
            sums: mem::replace(&mut self.sums, rows.sums),
            members,
            gathered,
        }
    }

    /// Computes `out = ffn(x)`, sparse, for one row of each of some sequences or several of one. It covers
    /// the neurons that the level selects among each row's experts. Missing neurons are read and cached;
    /// layer `next`'s probable ones are prefetched. `meanwhile` runs once, while demand reads are in flight;
    /// it may use the buffer for rounded values.
    ///
    /// *Shapes*: `x: [rows, width]`, normalised; `out: [rows, width]`.
    ///
    /// # Errors
    /// If a read fails or its bytes do not match their checksum.
    pub(crate) fn decode(
        &mut self,
        n: &mut Network<'_>,
        layer: usize,
        neurons: &mut LayerNeurons,
        mut next: Option<Next<'_>>,
        meanwhile: &mut dyn FnMut(&mut Fetcher, &mut [f32]),
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), FeedForwardError> {
        let (before, rows) = (self.activity, x.len() / n.width);
        n.fetcher.poll();
        let count = if rows == 1 {
            self.request(n, layer, neurons, x)
        } else {
            self.request_for_each(n, layer, neurons, x)
        };
        neurons.cache.look_up(&self.requested[..count], n.stamp, &mut self.places[..count]);
        neurons.visit(&self.router[self.router.len() / 2..][..rows * neurons.experts_count()]);
        if n.shape.has_pieces() {
            out.fill(0.0);
        } else {
            self.sums[..rows * SUMS * sum_words(n.width)].fill(0.0);
            self.waiting.iter_mut().for_each(Waiting::forget);
        }
        self.clock.end(Stage::Select);

        n.fetcher.begin(Reads::InSteps);
        let mut start = 0;
        loop {
            let list = List { neurons, shape: n.shape, requested: &self.requested, places: &self.places };
            let submitted = n.fetcher.ahead(&list, count);
            if submitted == count
                && let Some(next) = next.take()
            {
                self.prefetch(n, &next);
                self.clock.end(Stage::LookAhead);
            }
            if start == count {
                if count == 0 {
                    meanwhile(n.fetcher, &mut self.rounded[0]);
                }
                if !n.shape.has_pieces() {
                    for (row, out) in out.chunks_exact_mut(n.width).enumerate() {
                        self.join_sums(n, row, out);
                    }
                }
                let weights = &self.router[self.router.len() / 2..][..rows * neurons.experts_count()];
                add_down_bias(n, layer, weights, out);
                self.rows_bytes += n.shape.rows_bytes(&self.activity.since(&before));
                return Ok(());
            }
            let end = n.fetcher.half();
            if n.blocking {
                n.fetcher.wait_below(end);
                self.clock.end(Stage::Demand);
            }
            self.compute_cached(n, layer, neurons, start..end, x);
            // add everything before the first missing neuron while reads are in flight
            let missing = self.places[start..end].iter().position(|&place| place == Place::Missing);
            let mut added = missing.map_or(end, |missing| start + missing);
            self.add(n, layer, neurons, start..added, count, out);
            if start == 0 {
                meanwhile(n.fetcher, &mut self.rounded[0]);
                self.clock.end(Stage::Attention);
            }
            while let Some(computed) = self.compute_completed(n, layer, neurons, start..end, added, x)? {
                self.keep(n, layer, neurons, added..computed);
                self.add(n, layer, neurons, added..computed, count, out);
                added = computed;
            }
            n.fetcher.poll();
            self.add(n, layer, neurons, added..end, count, out);
            self.keep(n, layer, neurons, added..end);
            n.fetcher.release(end);
            start = end;
        }
    }

    /// Lists the slices that a row requests, and their known gates; returns their number.
    fn request(&mut self, n: &mut Network<'_>, layer: usize, neurons: &LayerNeurons, x: &[f32]) -> usize {
        let ends = self.select_for(n, layer, neurons, x, 0);
        let count = ends.last();
        if ends.lists == 1 {
            self.requested[..count].copy_from_slice(&self.selected[..count]);
            self.values[..count].copy_from_slice(&self.scores[..count]);
        } else {
            let requested = self.requested.iter_mut().zip(self.values.iter_mut());
            merged(&self.selected, &self.scores, ends).zip(requested).for_each(
                |(selected, (requested, value))| {
                    (*requested, *value) = selected;
                },
            );
        }
        count
    }

    /// [`Self::request`] for several rows, with a bit for each row that requests a slice.
    fn request_for_each(
        &mut self,
        n: &mut Network<'_>,
        layer: usize,
        neurons: &LayerNeurons,
        x: &[f32],
    ) -> usize {
        let (slices, all) = (neurons.slices() as usize, neurons.count());
        let gates_known = n.level.kind().gates_resident();
        self.requests[..slices].fill(0);
        for (row, x) in x.chunks_exact(n.width).enumerate() {
            let ends = self.select_for(n, layer, neurons, x, row);
            for (slice, gate) in merged(&self.selected, &self.scores, ends) {
                self.requests[slice as usize] |= 1 << row;
                if gates_known {
                    self.values[row * all + slice as usize] = gate;
                }
            }
        }
        let mut count = 0;
        for slice in 0..slices {
            let by = self.requests[slice];
            if by == 0 {
                continue;
            }
            (self.requested[count], self.requests[count]) = (slice as u32, by);
            if gates_known {
                // a slice is one neuron here, and its new index is never above the old
                for row in 0..n.routing.rows.len() {
                    self.values[row * all + count] = self.values[row * all + slice];
                }
            }
            count += 1;
        }
        count
    }

    /// Selects a row's neurons by the level, and counts them.
    fn select_for(
        &mut self,
        n: &mut Network<'_>,
        layer: usize,
        neurons: &LayerNeurons,
        x: &[f32],
        row: usize,
    ) -> Ends {
        let ends = self.select(n, layer, neurons, Candidates::All, x, row);
        self.activity.routed += (ends.lists * neurons.list(0).len()) as u64;
        self.activity.requested += (ends.last() * neurons.slice()) as u64;
        ends
    }

    /// Adds the slices of `range` to each row; `count` slices are requested.
    fn add(
        &mut self,
        n: &mut Network<'_>,
        layer: usize,
        neurons: &LayerNeurons,
        range: Range<usize>,
        count: usize,
        out: &mut [f32],
    ) {
        let (slice, rows) = (neurons.slice(), out.len() / n.width);
        for (row, out) in out.chunks_exact_mut(n.width).enumerate() {
            if n.shape.has_pieces() {
                self.add_pieces(n, layer, neurons, (row, rows), range.clone(), out);
            } else {
                let range = range.start * slice..range.end * slice;
                self.add_down(n, layer, neurons, row, range, count * slice);
            }
        }
    }

    /// Inserts the slices of a range that were read.
    fn keep(&mut self, n: &mut Network<'_>, layer: usize, neurons: &mut LayerNeurons, range: Range<usize>) {
        let list = (&*self.requested, &mut *self.places, &mut *self.order);
        insert(n, layer, neurons, list, range, false);
        self.clock.end(Stage::Insert);
    }
}

/// Computes `out[row] += sum over its experts, ascending, of weight * down bias`, if the model has that bias.
///
/// *Shapes*: `weights: [rows, experts]`, `out: [rows, width]`.
fn add_down_bias(n: &Network<'_>, layer: usize, weights: &[f32], out: &mut [f32]) {
    let Some(bias) = n.weights.of_network(layer, Role::DownBias) else { return };
    let experts = bias.len() / n.width;
    for (weights, out) in weights.chunks_exact(experts).zip(out.chunks_exact_mut(n.width)) {
        for (&weight, bias) in
            weights.iter().zip(bias.chunks_exact(n.width)).filter(|(weight, _)| **weight != 0.0)
        {
            out.iter_mut().zip(bias).for_each(|(out, bias)| *out += weight * bias);
        }
    }
}
