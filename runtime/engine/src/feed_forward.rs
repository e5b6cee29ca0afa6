//! A feed-forward network, neuron by neuron: the life of a neuron.
//!
//! ```text
//! route     the router names each row's experts and their weights, now or before the layer's attention
//! name      decode: the level names slices of active neurons, mostly of one each; prefill: every slice of an expert in use
//! look up   which of them are in memory
//! fetch     the others are read, close neighbours together; then those that the next layer will probably request
//! values    h[i] = weight * f(gate_i x) * up_i x        (without gates gate_i is up_i, one product) threads take clusters: first what is in memory, then what completes
//! sum       y   += h[i] * down_i                        threads share eight sums; of pieces of down, rows of y (`pieces.rs`)
//! insert     what was read takes the place of what the cache's policy would rather miss, or none
//! ```
//!
//! Decode adds neurons to eight sums, chosen by rank, each in ascending order. So thread count, cache size, cluster size and the
//! order of reads change no bit of the result. Values need no order, so there is one barrier between values and sums. It costs a
//! microsecond a layer, and saves the addition of neurons whose value is zero. Pinned neurons have the lowest ranks: everything
//! before the first missing neuron is added up before reads are awaited.
//!
//! Several rows, of a batch or a draft, share one list: a neuron that any row requests is looked up, read and inserted once, and
//! computed for each row that requested it. For other rows its value is zero, and zeros are never added, so a row has the same
//! bits in any batch.
//!
//! A prompt is `prompt.rs`.

use std::array;
use std::mem;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use plans::Plan;
use plans::engine::{COMPLETED_CLUSTER, ROWS_MAX, SUMS, sum_words};
use plans::layout::{PARTS, Part, Span};
use plans::memory::Activations;
use plans::model::LevelKind;

use crate::arena::{Align, Arena, ArenaError, Slab};
use crate::cache::Place;
use crate::fetch::{Arrived, Completed, FetchError, Fetcher, Reads, Wanted};
use crate::level::Level;
use crate::model::config::{Role, RouterInput};
use crate::neurons::{Activity, Bundle, LayerNeurons, LayerSlots, NeuronError, Shape, Slots};
use crate::pool::Pool;
use crate::products::Inputs;
use crate::stage::{Stage, StageClock};
use crate::weights::Weights;
use kernels::{Activation, Form, Input, Kernels, Matrix, Row};

mod down;
mod pieces;
mod prompt;
mod select;

pub(crate) use down::Waiting;
pub(crate) use prompt::Prompt;
pub(crate) use select::Routing;
use select::{Candidates, Ends, merged};

/// Why a block has no result.
#[derive(Debug, thiserror::Error)]
pub enum FeedForwardError {
    /// A read brought other bytes than were written.
    #[error(transparent)]
    Neuron(#[from] NeuronError),
    /// A read failed.
    #[error(transparent)]
    Fetch(#[from] FetchError),
}

/// The buffers of the path above, and the cluster size.
#[derive(Debug)]
pub(crate) struct FeedForward {
    /// Neurons that a thread takes together.
    pub cluster_neurons: usize,
    /// `[2, chunk + 1, experts]`: logits, then weights; the last row is for looking ahead.
    pub router: Slab<f32>,
    /// `[routed neurons]`: candidates' ranks, expert after expert. Of several rows, at the end: who requests each slice.
    pub selected: Slab<u32>,
    /// `[routed neurons]`: predictor scores; then values as they are computed, of several rows `[neurons of a layer, rows]`.
    pub scores: Slab<f32>,
    /// Hidden layer of a low-rank predictor.
    pub hidden: Slab<f32>,
    /// The rows' inputs and the hidden layer, rounded to 8 bits.
    pub rounded: [Slab<f32>; 2],
    /// Sign bits of the input.
    pub signs: Slab<u64>,
    /// `[slices of a layer]`: those requested, ascending. The neurons requested are theirs, one after another.
    pub requested: Slab<u32>,
    /// Where each requested slice is.
    pub places: Vec<Place>,
    /// `[neurons of a layer]`: slices, or neurons, among the requested that are computed next.
    pub order: Slab<u32>,
    /// `[cluster, chunk]`, and when decoding the gates of what was requested, then its values, `[routed neurons]`, of several
    /// rows `[rows, neurons of a layer]`.
    pub values: Slab<f32>,
    /// Partial sums: `[rows, SUMS, sum_words]` when decoding, unless there are pieces of down; of a mixture's prompt `[chunk * experts used, width]`.
    pub sums: Slab<f32>,
    /// `[rows]`: active neurons that are added with the next window's.
    pub waiting: Box<[Waiting]>,
    /// Of pieces of down, the values that they meet, rounded.
    pub values_rounded: Slab<f32>,
    /// Buffers that only a prompt needs.
    pub prompt: Prompt,
    /// Counts of neurons, by decode since the start.
    pub activity: Activity,
    /// Bytes of rows that computing them took from slots and buffers.
    pub rows_bytes: u64,
    /// Bytes of predictors, or of gate rows, that selecting neurons took.
    pub selection_bytes: u64,
    /// Time of each stage.
    pub clock: StageClock,
}

/// Those of the buffers that are the larger the more rows there are.
#[derive(Debug)]
pub(crate) struct NeuronRows {
    /// [`FeedForward::router`].
    pub router: Slab<f32>,
    /// [`FeedForward::values`].
    pub values: Slab<f32>,
    /// [`FeedForward::sums`].
    pub sums: Slab<f32>,
    /// Rows of a prompt, by expert.
    pub members: Slab<u32>,
    /// Of a mixture's prompt: the rows of each expert, packed.
    pub gathered: Slab<f32>,
}

/// The parts of the engine that the path works on besides its buffers.
#[derive(Debug)]
pub(crate) struct Network<'a> {
    /// Compute threads.
    pub pool: &'a Pool,
    /// The plan's instruction set.
    pub kernels: &'a dyn Kernels,
    /// How vectors meet blocks of weights.
    pub form: Form,
    /// The fixed region.
    pub weights: &'a Weights,
    /// The quality level.
    pub level: &'a Level,
    /// How the layer's bundles are cut.
    pub shape: &'a Shape,
    /// Hot and cold regions.
    pub slots: &'a mut Slots,
    /// Reads ahead.
    pub fetcher: &'a mut Fetcher,
    /// Between gate and up, or of up alone.
    pub activation: Activation,
    /// Whether a prompt's down is met transposed.
    pub transposes_down: bool,
    /// The choice of experts.
    pub routing: Routing<'a>,
    /// Values of a row.
    pub width: usize,
    /// Per layer: ranks that are requested in any case.
    pub always_on: &'a [u32],
    /// Number of the token: a neuron that it uses is not replaced.
    pub stamp: u32,
    /// Nothing is computed before all that is missing has completed.
    pub blocking: bool,
}

impl FeedForward {
    /// The buffers that a plan's activations are made of; `rows` are those of one token's row.
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
        let [selected, requested, order] =
            [ranks(a.candidates / 2)?, ranks(a.requested / 4)?, ranks(a.requested / 4)?];
        Ok(Self {
            cluster_neurons: plan.decode.cluster_neurons as usize,
            router,
            selected,
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

    /// Takes these in place of those it has.
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

    /// One row of each of some sequences or several that follow each other, sparse: `out = ffn(x)`, over the neurons that the level names of the
    /// experts that they were routed to. What was read is cached; what layer `next` will probably request is read ahead. What is to be
    /// done `meanwhile` is done once, when what is missing is being read; it may take the buffer for rounded values.
    ///
    /// *Shapes*: `x: [rows, width]`, normalised; `out: [rows, width]`.
    ///
    /// # Errors
    /// If a read fails or brings other bytes than were written.
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
            // neurons: what stands before the first that is missing, most of all, is added up while that is read
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

    /// The slices that a row requests, and what is known of their gates: how many there are.
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

    /// [`Self::request`] of several rows, and which of them request each slice.
    fn request_for_each(
        &mut self,
        n: &mut Network<'_>,
        layer: usize,
        neurons: &LayerNeurons,
        x: &[f32],
    ) -> usize {
        let (slices, all) = (neurons.slices() as usize, neurons.count());
        let gates_known = n.level.kind().gates_resident();
        let requests = self.selected.len() - slices;
        self.selected[requests..].fill(0);
        for (row, x) in x.chunks_exact(n.width).enumerate() {
            let ends = self.select_for(n, layer, neurons, x, row);
            let (selected, requests) = self.selected.split_at_mut(requests);
            for (slice, gate) in merged(selected, &self.scores, ends) {
                requests[slice as usize] |= 1 << row;
                if gates_known {
                    self.values[row * all + slice as usize] = gate;
                }
            }
        }
        let mut count = 0;
        for slice in 0..slices {
            let by = self.selected[requests + slice];
            if by == 0 {
                continue;
            }
            (self.requested[count], self.selected[requests + count]) = (slice as u32, by);
            if gates_known {
                // a slice is a neuron here, and never comes before its place in the list
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

    /// Adds to each row what slices of `range` are worth, of `count` that are requested.
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

    /// Reads ahead what the next layer would request if its input were what `next` says. The stream changes little from
    /// layer to layer, so that most of it is right. The neurons that are rarely used are not considered: there are many, and
    /// few reads among them.
    fn prefetch(&mut self, n: &mut Network<'_>, next: &Next<'_>) {
        let row = self.router.len() / (2 * next.neurons.experts_count()) - 1;
        let input = n.routing.router.map_or(RouterInput::Experts, |router| router.input);
        let x = if input == RouterInput::Experts { next.x } else { next.stream };
        let recorded =
            n.routing.routes.and_then(|routes| routes.ahead(n.routing.rows[0].position, next.layer));
        self.route_row(&n.routing, next.layer, x, row, recorded);
        let ends = self.select(n, next.layer, next.neurons, Candidates::Missing, next.x, row);
        let span = |slice| next.neurons.slice_span(next.shape, next.shape.part, slice);
        let probable = merged(&self.selected, &self.scores, ends);
        let certain = n.level.kind() == LevelKind::Dense && next.neurons.experts_count() == 1;
        let sure = |score: f32| if certain { f32::INFINITY } else { score.abs() };
        n.fetcher.prefetch(probable.map(|(slice, score)| (span(slice), sure(score))));
    }

    /// Reads ahead what a layer is certain to request of the experts that a row has been routed to, before the layer's input is
    /// known: all that is not in memory. The level is one that selects whole experts.
    pub(crate) fn prefetch_routed(&mut self, fetcher: &mut Fetcher, shape: &Shape, neurons: &LayerNeurons) {
        let (experts, half) = (neurons.experts_count(), self.router.len() / 2);
        let mut ends = Ends::default();
        for expert in (0..experts).filter(|&expert| self.router[half + expert] != 0.0) {
            let mut end = ends.last();
            for slice in neurons.slices_of(expert).filter(|&slice| neurons.cache.is_missing(slice)) {
                (self.selected[end], self.scores[end]) = (slice, f32::INFINITY);
                end += 1;
            }
            ends.push(end);
        }
        let span = |slice| neurons.slice_span(shape, shape.part, slice);
        let certain = merged(&self.selected, &self.scores, ends);
        fetcher.prefetch(certain.map(|(slice, score)| (span(slice), score)));
        fetcher.poll();
    }

    /// `values = weight * f(gate x) * up x` of each row that has requested them, of those slices of a range that are in memory; reads are started and
    /// found done meanwhile.
    fn compute_cached(
        &mut self,
        n: &mut Network<'_>,
        layer: usize,
        neurons: &LayerNeurons,
        range: Range<usize>,
        x: &[f32],
    ) {
        let list = List { neurons, shape: n.shape, requested: &self.requested, places: &self.places };
        let mut count = 0;
        for index in range.filter(|&index| list.places[index] != Place::Missing) {
            self.order[count] = index as u32;
            count += 1;
        }
        let neuron = Neuron::new(n, layer, list, &self.router, &mut self.rounded[0], x);
        let (slice, rows, all) = (neurons.slice(), neuron.rows, neurons.count());
        let requests = Requests::of(&self.selected, neurons, rows);
        let (order, results, values) =
            (&self.order[..count], &mut self.scores[..count * slice * rows], &self.values);
        let (slots, fetcher, fired) = (n.slots.layer(layer), &mut *n.fetcher, AtomicU64::new(0));
        let slot = |index: usize| list.in_slot(slots, index).unwrap_or_default();
        let matrices = slots.inputs(n.shape).filter(|_| n.activation.always_fires());
        let compute = |first: usize, results: &mut [f32]| {
            let (first, here) = (first / rows, results.len() / rows);
            let (mut fires, mut done) = (0, 0);
            while done < here {
                // neurons that lie one after another are rows of a matrix
                if let Some(matrices) = matrices
                    && let Some(run) = list.in_order(order, first + done, here - done)
                {
                    let results = &mut results[done * rows..(done + run.count) * rows];
                    let index = list.at(order, first + done);
                    fires += neuron.values_in_order(requests, matrices[run.region], run.slot, index, results);
                    done += run.count;
                    continue;
                }
                // while a row is computed, the same row of the next bundle is on its way to the cache
                let at = first + done;
                let (index, next) = (list.at(order, at), list.at(order, (at + 1).min(count * slice - 1)));
                for (row, result) in results[done * rows..][..rows].iter_mut().enumerate() {
                    let gate = neuron.gates_known.then(|| values[row * all + index]);
                    *result = if requests.by(index / slice, row) {
                        neuron.value(row, gate, slot(index), slot(next), index, &mut fires)
                    } else {
                        0.0
                    };
                }
                done += 1;
            }
            fired.fetch_add(fires, Ordering::Relaxed);
        };
        n.pool.share_mut(results, self.cluster_neurons * rows, || fetcher.poll(), compute);
        scatter(order, slice, results, &mut self.values, all);
        self.activity.fired += fired.into_inner();
        self.clock.end(Stage::GateUp);
    }

    /// Gives slots to those of a range that were read.
    fn keep(&mut self, n: &mut Network<'_>, layer: usize, neurons: &mut LayerNeurons, range: Range<usize>) {
        let list = (&*self.requested, &mut *self.places, &mut *self.order);
        insert(n, layer, neurons, list, range, false);
        self.clock.end(Stage::Insert);
    }

    /// The values of slices that were missing, as they complete: where the gate comes first, it decides about the rest. `None` when
    /// all have; large ones are worth leaving where others are awaited, with the index up to which all have, above `added`.
    fn compute_completed(
        &mut self,
        n: &mut Network<'_>,
        layer: usize,
        neurons: &LayerNeurons,
        range: Range<usize>,
        added: usize,
        x: &[f32],
    ) -> Result<Option<usize>, FeedForwardError> {
        let list = List { neurons, shape: n.shape, requested: &self.requested, places: &self.places };
        let neuron = Neuron::new(n, layer, list, &self.router, &mut self.rounded[0], x);
        let (slice, rows, all) = (neurons.slice(), neuron.rows, neurons.count());
        let (requests, fired) = (Requests::of(&self.selected, neurons, rows), AtomicU64::new(0));
        let mut computed = None;
        loop {
            let Some(count) = n.fetcher.completed_by_now(&list, range.end, &mut self.order)? else {
                computed = Some(n.fetcher.given_below(range.end))
                    .filter(|&computed| n.shape.has_pieces() && computed > added);
                if computed.is_some() {
                    break;
                }
                n.fetcher.wait();
                continue;
            };
            if count == 0 {
                break;
            }
            let (order, results) = (&self.order[..count], &mut self.scores[..count * slice * rows]);
            if n.shape.is_apart() {
                complete_parts(n, &list, order)?;
            }
            let (completed, mut due) = n.fetcher.completed_and_due();
            let (values, checks) = (&self.values, Checks::default());
            let compute = |first: usize, results: &mut [f32]| {
                let mut fires = 0;
                for (at, results) in (first / rows..).zip(results.chunks_exact_mut(rows)) {
                    let index = list.at(order, at);
                    if !list.shape.is_apart() {
                        checks.check(&list, completed, index);
                    }
                    let arrived = list.arrived(completed, index);
                    for (row, result) in results.iter_mut().enumerate() {
                        *result = 0.0;
                        if !requests.by(index / slice, row) {
                            continue;
                        }
                        if arrived == Arrived::Gate {
                            *result = neuron.gate_that_fires(row, list.gate(completed, index), index);
                            continue;
                        }
                        let known = neuron.gates_known || arrived == Arrived::Rest;
                        let gate = known.then(|| values[row * all + index]);
                        let bundle = list.read(completed, index);
                        *result = neuron.value(row, gate, bundle, bundle, index, &mut fires);
                    }
                }
                fired.fetch_add(fires, Ordering::Relaxed);
            };
            n.pool.share_mut(results, COMPLETED_CLUSTER * rows, || due.go_on(), compute);
            scatter(order, slice, results, &mut self.values, all);
            checks.finish(&list, n.fetcher)?;
            // what is given out for its gate is a slice of one neuron
            for index in self.order[..count].iter().map(|&index| index as usize) {
                let fires = (0..rows).any(|row| self.values[row * all + index] != 0.0);
                if n.fetcher.completed().arrived(index) == Arrived::Gate && fires {
                    n.fetcher.go_on(index);
                }
            }
            if n.blocking {
                n.fetcher.wait_below(range.end);
            }
        }
        self.activity.fired += fired.into_inner();
        self.clock.end(Stage::Demand);
        Ok(computed)
    }
}

/// Slices whose parts lie apart have completed: each part is compared with its checksum, and its rows are put into the order that
/// the kernels want, where that is another, by all threads.
fn complete_parts(n: &mut Network<'_>, list: &List<'_>, slices: &[u32]) -> Result<(), NeuronError> {
    let failed = Mutex::new(None);
    let (completed, mut due) = n.fetcher.completed_and_due();
    n.pool.claim(
        PARTS * slices.len(),
        || due.go_on(),
        |at| {
            let (slice, part) = (slices[at / PARTS] as usize, at % PARTS);
            let (number, bytes) = (list.requested[slice], list.slice_bytes(completed, slice));
            let start = list.neurons.starts(list.shape, number)[part];
            let bytes = &bytes[start..][..list.shape.parts_bytes()[part]];
            if let Err(error) = list.neurons.verify_part(number, part, bytes) {
                *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
        },
    );
    if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        n.fetcher.abandon();
        return Err(error);
    }
    for &slice in slices {
        let number = list.requested[slice as usize];
        let span = list.neurons.slice_span(list.shape, list.shape.part, number);
        let starts = list.neurons.starts(list.shape, number);
        for part in (0..PARTS).filter(|&part| list.shape.is_repacked(part)) {
            let bytes = n.fetcher.completed_mut(slice as usize, span);
            let rows = &mut bytes[starts[part]..][..list.shape.parts_bytes()[part]];
            n.pool.split_rows(rows, list.shape.part_row_bytes(part), |_, rows| list.shape.repack(part, rows));
        }
    }
    Ok(())
}

/// Gives a slot to each slice of a range that was read and is worth one; with `free` to those that find a free one.
fn insert(
    n: &mut Network<'_>,
    layer: usize,
    neurons: &mut LayerNeurons,
    (requested, places, order): (&[u32], &mut [Place], &mut [u32]),
    range: Range<usize>,
    free: bool,
) {
    let mut count = 0;
    for index in range {
        let (slice, place) = (requested[index], &mut places[index]);
        if *place == Place::Missing
            && n.fetcher.completed().arrived(index) != Arrived::Gate
            && (!free || neurons.cache.used() < neurons.cache.slots())
            && let Some(slot) = neurons.cache.insert(slice, n.stamp)
        {
            *place = Place::Cold(slot);
            order[count] = index as u32;
            count += 1;
        }
    }
    if count == 0 {
        return;
    }
    let list = List { neurons, shape: n.shape, requested, places };
    let (order, completed) = (&order[..count], n.fetcher.completed());
    let slice = neurons.slice();
    let inserted = order.iter().filter_map(|&index| match list.places[index as usize] {
        Place::Cold(slot) => {
            let first = index as usize * slice;
            Some((slot, move |neuron| list.read(completed, first + neuron)))
        }
        Place::Hot(_) | Place::Missing => None,
    });
    n.slots.fill_cold(n.pool, layer, inserted);
}

/// The inputs of a neuron's value besides its rows.
struct Neuron<'a> {
    list: List<'a>,
    /// Of each row, the last one's repeated.
    x: [Input<'a>; ROWS_MAX],
    rows: usize,
    kernels: &'a dyn Kernels,
    shape: &'a Shape,
    activation: Activation,
    /// `[rows, experts]`.
    weights: &'a [f32],
    /// A gate that is resident has been computed when it was requested, and lies where the value goes.
    gates_known: bool,
    /// Biases of gate and up, by rank.
    biases: Option<Biases<'a>>,
}

impl<'a> Neuron<'a> {
    fn new(
        n: &Network<'a>,
        layer: usize,
        list: List<'a>,
        router: &'a [f32],
        rounded: &'a mut [f32],
        x: &'a [f32],
    ) -> Self {
        let x = Inputs::new(x, n.width, n.form, rounded);
        Self {
            list,
            x: array::from_fn(|row| x.row(row.min(x.count() - 1))),
            rows: x.count(),
            kernels: n.kernels,
            shape: n.shape,
            activation: n.activation,
            weights: &router[router.len() / 2..],
            gates_known: n.level.kind().gates_resident(),
            biases: Biases::of(n.weights, layer),
        }
    }

    /// `gate x` of a row; 0 if it does not fire.
    fn gate_that_fires(&self, row: usize, gate: Row<'_>, index: usize) -> f32 {
        let gate = self.biased(self.x[row].dot(self.kernels, gate), index, |biases| biases.gate);
        if self.activation.fires(gate) { gate } else { 0.0 }
    }

    /// The values of neurons from `index` on that lie one after another in a matrix of gate and up rows, from `slot` on, to the
    /// bit of [`Neuron::value`]; how many there are.
    ///
    /// *Shapes*: `values: [neurons, rows]`.
    fn values_in_order(
        &self,
        requests: Requests<'_>,
        matrix: Matrix<'_>,
        slot: usize,
        index: usize,
        values: &mut [f32],
    ) -> u64 {
        let (mut products, rows, slice) = ([0.0; 2 * TOGETHER], self.rows, self.list.neurons.slice());
        let mut count = 0;
        for (at, values) in (0..).step_by(TOGETHER).zip(values.chunks_mut(TOGETHER * rows)) {
            let here = values.len() / rows;
            let products = &mut products[..2 * here];
            for row in 0..rows {
                if (0..here).any(|neuron| requests.by((index + at + neuron) / slice, row)) {
                    self.x[row].rows(self.kernels, matrix, 2 * (slot + at), products);
                }
                for (neuron, [gate, up]) in products.as_chunks().0.iter().enumerate() {
                    let (value, index) = (&mut values[neuron * rows + row], index + at + neuron);
                    if !requests.by(index / slice, row) {
                        *value = 0.0;
                        continue;
                    }
                    let gate = self.biased(*gate, index, |biases| biases.gate);
                    let up = self.biased(*up, index, |biases| biases.up);
                    *value = self.weight(row, index) * self.activation.apply(gate, up);
                    count += 1;
                }
            }
        }
        count
    }

    /// How a row's router weighs the expert of a neuron.
    fn weight(&self, row: usize, index: usize) -> f32 {
        self.weights[row * self.list.neurons.experts_count() + self.list.expert(index)]
    }

    /// `weight * f(gate x) * up x` of a row, where the gate may be known already; without gates `weight * f(up x)`, where up is what
    /// stands in the gate's place.
    fn value(
        &self,
        row: usize,
        gate: Option<f32>,
        bundle: Bundle<'_>,
        next: Bundle<'_>,
        index: usize,
        fires: &mut u64,
    ) -> f32 {
        let (shape, x) = (self.shape, self.x[row]);
        let dot = |row: Row<'_>, next: Row<'_>| x.dot(self.kernels, row.before(next.bytes));
        let gate = gate.unwrap_or_else(|| {
            self.biased(dot(shape.gate(bundle), shape.gate(next)), index, |biases| biases.gate)
        });
        if !self.activation.fires(gate) {
            return 0.0;
        }
        *fires += 1;
        if !shape.is_gated() {
            return self.weight(row, index) * self.activation.apply(gate, gate);
        }
        let up = self.biased(dot(shape.up(bundle), shape.up(next)), index, |biases| biases.up);
        self.weight(row, index) * self.activation.apply(gate, up)
    }

    /// A product, and the bias of its neuron.
    fn biased(&self, product: f32, index: usize, of: impl Fn(Biases<'a>) -> &'a [f32]) -> f32 {
        match self.biases {
            None => product,
            Some(biases) => product + of(biases)[self.list.rank(index) as usize],
        }
    }
}

/// Biases of the gate and the up of each neuron of a layer, by rank.
#[derive(Debug, Clone, Copy)]
struct Biases<'a> {
    gate: &'a [f32],
    up: &'a [f32],
}

impl<'a> Biases<'a> {
    /// A layer's; none where the description has none.
    fn of(weights: &'a Weights, layer: usize) -> Option<Self> {
        let (gate, up) =
            (weights.of_network(layer, Role::GateBias)?, weights.of_network(layer, Role::UpBias)?);
        Some(Self { gate, up })
    }
}

/// `out[row] += sum over its experts, ascending, of weight * down bias`, where the description has one.
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

/// The layer after the one at hand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Next<'a> {
    /// Number of the layer.
    pub layer: usize,
    /// Neurons of the layer.
    pub neurons: &'a LayerNeurons,
    /// How the layer's bundles are cut.
    pub shape: &'a Shape,
    /// Input that the layer is taken to have, normalised: `[width]`.
    pub x: &'a [f32],
    /// The residual stream that it is taken to have: `[width]`.
    pub stream: &'a [f32],
}

/// Neurons whose rows meet the input together where they lie in order.
const TOGETHER: usize = 32;

/// The first damaged bundle that threads have found, as an index into the list.
struct Checks(AtomicUsize);

impl Default for Checks {
    fn default() -> Self {
        Self(AtomicUsize::new(usize::MAX))
    }
}

impl Checks {
    /// Checks one.
    fn check(&self, list: &List<'_>, completed: Completed<'_>, index: usize) {
        if list.check(completed, index).is_err() {
            self.0.fetch_min(index, Ordering::Relaxed);
        }
    }

    /// The first that is damaged, by name; nothing is in flight then, and the list is gone.
    fn finish(self, list: &List<'_>, fetcher: &mut Fetcher) -> Result<(), NeuronError> {
        match self.0.into_inner() {
            usize::MAX => Ok(()),
            index => {
                let refused = list.check(fetcher.completed(), index);
                fetcher.abandon();
                refused
            }
        }
    }
}

/// `values[row][order[i]] = results[i][row]`, a slice at a time.
///
/// *Shapes*: `results: [slices, slice, rows]`, `values: [rows, all]`.
fn scatter(order: &[u32], slice: usize, results: &[f32], values: &mut [f32], all: usize) {
    let rows = results.len() / (order.len() * slice).max(1);
    if rows == 1 {
        for (&index, results) in order.iter().zip(results.chunks_exact(slice)) {
            values[index as usize * slice..][..slice].copy_from_slice(results);
        }
        return;
    }
    for (&index, results) in order.iter().zip(results.chunks_exact(slice * rows.max(1))) {
        for (neuron, results) in (index as usize * slice..).zip(results.chunks_exact(rows)) {
            results.iter().enumerate().for_each(|(row, result)| values[row * all + neuron] = *result);
        }
    }
}

/// Who has requested which slice of a list: a bit for each row; one row by itself has requested all.
#[derive(Debug, Clone, Copy)]
struct Requests<'a>(Option<&'a [u32]>);

impl<'a> Requests<'a> {
    /// The requests as they lie at the end of the ranks selected.
    fn of(selected: &'a [u32], neurons: &LayerNeurons, rows: usize) -> Self {
        Self((rows > 1).then(|| &selected[selected.len() - neurons.slices() as usize..]))
    }

    /// Whether this row has requested the slice at an index of the list.
    #[inline]
    fn by(&self, index: usize, row: usize) -> bool {
        self.0.is_none_or(|requests| requests[index] >> row & 1 == 1)
    }
}

/// Neurons that lie one after another in a region of slots.
struct InOrder {
    /// 0 for the pinned ones, 1 for the others.
    region: usize,
    /// The first one's slot, of one neuron.
    slot: usize,
    count: usize,
}

/// The slices requested, of which some are not in memory, and their neurons one after another: where a slice is one neuron
/// they have the same indices.
#[derive(Clone, Copy)]
struct List<'a> {
    neurons: &'a LayerNeurons,
    shape: &'a Shape,
    requested: &'a [u32],
    places: &'a [Place],
}

impl<'a> List<'a> {
    /// The slice of a neuron, and its place in it.
    #[inline]
    fn split(&self, index: usize) -> (usize, usize) {
        match self.neurons.slice() {
            1 => (index, 0),
            slice => (index / slice, index % slice),
        }
    }

    /// The slices of a range of neurons.
    fn slices(&self, range: &Range<usize>) -> Range<usize> {
        let slice = self.neurons.slice();
        range.start / slice..range.end.div_ceil(slice)
    }

    /// The neuron at a place among those of some slices.
    #[inline]
    fn at(&self, order: &[u32], at: usize) -> usize {
        let (slice, neuron) = self.split(at);
        order[slice] as usize * self.neurons.slice() + neuron
    }

    /// The rank of a neuron.
    #[inline]
    fn rank(&self, index: usize) -> u32 {
        let (slice, neuron) = self.split(index);
        self.requested[slice] * self.neurons.slice() as u32 + neuron as u32
    }

    /// The bytes of a neuron where it completed.
    fn bytes(&self, completed: Completed<'a>, index: usize) -> &'a [u8] {
        let span = self.neurons.span(self.shape, self.shape.part, self.rank(index));
        completed.bytes(self.split(index).0, span)
    }

    /// The bytes of a slice where it completed.
    fn slice_bytes(&self, completed: Completed<'a>, slice: usize) -> &'a [u8] {
        let span = self.neurons.slice_span(self.shape, self.shape.part, self.requested[slice]);
        completed.bytes(slice, span)
    }

    /// The rows of a neuron where it completed.
    fn read(&self, completed: Completed<'a>, index: usize) -> Bundle<'a> {
        if !self.shape.has_pieces() {
            return self.shape.cut(self.bytes(completed, index));
        }
        let (slice, neuron) = self.split(index);
        let starts = self.neurons.starts(self.shape, self.requested[slice]);
        self.shape.of_slice(self.slice_bytes(completed, slice), starts, neuron)
    }

    /// The piece of down of a slice, in memory or where it completed.
    fn piece(&self, slots: LayerSlots<'a>, completed: Option<Completed<'a>>, slice: usize) -> Matrix<'a> {
        let [.., down] = self.neurons.starts(self.shape, self.requested[slice]);
        let read = || completed.map(|completed| &self.slice_bytes(completed, slice)[down..]);
        self.shape.piece(slots.downs(self.places[slice]).or_else(read).unwrap_or_default())
    }

    /// Gate row of a neuron, which may be all that has completed.
    fn gate(&self, completed: Completed<'a>, index: usize) -> Row<'a> {
        let span = self.neurons.span(self.shape, Part::Whole, self.rank(index));
        let span = Span { bytes: self.shape.layout.gate_bytes, ..span };
        Row::new(self.shape.gate_format(), completed.bytes(self.split(index).0, span))
    }

    /// The part of a neuron that has completed.
    fn arrived(&self, completed: Completed<'_>, index: usize) -> Arrived {
        completed.arrived(self.split(index).0)
    }

    /// The rows of a neuron that is in memory.
    fn in_slot(&self, slots: LayerSlots<'a>, index: usize) -> Option<Bundle<'a>> {
        let (slice, neuron) = self.split(index);
        slots.bundle(self.places[slice], neuron)
    }

    /// The rows of a neuron, in memory or where they completed.
    fn bundle(&self, slots: LayerSlots<'a>, completed: Option<Completed<'a>>, index: usize) -> Bundle<'a> {
        let read = || completed.map(|completed| self.read(completed, index));
        self.in_slot(slots, index).or_else(read).unwrap_or_default()
    }

    /// Those from place `at` on among the neurons of some slices, at most so many, that lie one after another in memory.
    fn in_order(&self, order: &[u32], at: usize, most: usize) -> Option<InOrder> {
        let (slice, (first, neuron)) = (self.neurons.slice(), self.split(at));
        let place = |at: usize| self.places[order[at] as usize];
        let (region, slot, slices) = match place(first) {
            Place::Hot(slot) => {
                // pinned are the first slices, and slices ascend
                let wanted = (neuron + most).div_ceil(slice).min(order.len() - first);
                let follows = |&after: &usize| place(first + after) == Place::Hot(slot + after as u32);
                (0, slot, 1 + (1..wanted).take_while(follows).count())
            }
            Place::Cold(slot) if slice > 1 => (1, slot, 1),
            Place::Cold(_) | Place::Missing => return None,
        };
        let count = (slices * slice - neuron).min(most);
        Some(InOrder { region, slot: slot as usize * slice + neuron, count })
    }

    /// Neighbours of `range`, of which `2^bits` at most stand together: the number of their run, and who they are.
    fn runs(&self, range: Range<usize>, bits: u32) -> impl Iterator<Item = (usize, Range<usize>)> {
        let (slice, requested) = (self.neurons.slice(), self.requested);
        let (list, mut start) = (*self, range.start);
        std::iter::from_fn(move || {
            let first = start;
            let run = (first < range.end).then(|| list.rank(first) >> bits)?;
            // the first slice that is not wholly before the run's end, and its neurons that are
            let end = ((run as usize) + 1) << bits;
            let slices = &requested[..range.end.div_ceil(slice)];
            let after = slices.partition_point(|&other| (other as usize + 1) * slice <= end);
            let part = slices.get(after).map_or(0, |&other| end.saturating_sub(other as usize * slice));
            start = (after * slice + part).min(range.end);
            Some((run as usize, first..start))
        })
    }

    /// The expert of a neuron.
    fn expert(&self, index: usize) -> usize {
        self.neurons.expert(self.rank(index))
    }

    /// Whether what has completed is what was written.
    fn check(&self, completed: Completed<'_>, index: usize) -> Result<(), NeuronError> {
        let rank = self.rank(index);
        match self.arrived(completed, index) {
            Arrived::Whole if self.shape.has_pieces() => {
                let slice = self.slice_bytes(completed, self.split(index).0);
                self.neurons.verify_share(self.shape, rank, slice)
            }
            Arrived::Whole => {
                let bytes = self.bytes(completed, index);
                self.neurons.verify(self.shape, self.shape.part, rank, bytes)
            }
            Arrived::Gate => self.neurons.verify_gate(self.shape, rank, self.gate(completed, index).bytes),
            Arrived::Rest => {
                let span = self.neurons.span(self.shape, Part::UpDown, rank);
                let bytes = completed.bytes(self.split(index).0, span);
                self.neurons.verify(self.shape, Part::UpDown, rank, bytes)
            }
        }
    }
}

impl Wanted for List<'_> {
    fn span(&self, index: usize) -> Option<Span> {
        (self.places[index] == Place::Missing)
            .then(|| self.neurons.slice_span(self.shape, self.shape.part, self.requested[index]))
    }
}
