//! Neuron values: `weight * f(gate x) * up x`, first for neurons in memory, then for completed reads.

use std::array;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use plans::engine::{COMPLETED_CLUSTER, ROWS_MAX};

use super::completed::{Checks, complete_parts};
use super::list::{List, Requests};
use super::{FeedForward, FeedForwardError, Network};
use crate::cache::Place;
use crate::fetch::Arrived;
use crate::model::config::Role;
use crate::neurons::{Bundle, LayerNeurons, Shape};
use crate::products::Inputs;
use crate::stage::Stage;
use crate::weights::Weights;
use kernels::{Activation, Input, Kernels, Matrix, Row};

/// Neurons in consecutive slots that are multiplied together.
const TOGETHER: usize = 32;

impl FeedForward {
    /// Computes `values = weight * f(gate x) * up x` for the slices of a range that are in memory, for each
    /// row that requested them. Issues reads and polls completions meanwhile.
    pub(super) fn compute_cached(
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
        let requests = Requests::of(&self.requests, rows);
        let (order, results, values) =
            (&self.order[..count], &mut self.scores[..count * slice * rows], &self.values);
        let (slots, fetcher, fired) = (n.slots.layer(layer), &mut *n.fetcher, AtomicU64::new(0));
        let slot = |index: usize| list.in_slot(slots, index).unwrap_or_default();
        let matrices = slots.inputs(n.shape).filter(|_| n.activation.always_fires());
        let compute = |first: usize, results: &mut [f32]| {
            let (first, here) = (first / rows, results.len() / rows);
            let (mut fires, mut done) = (0, 0);
            while done < here {
                // neurons in consecutive slots are rows of a matrix
                if let Some(matrices) = matrices
                    && let Some(run) = list.in_order(order, first + done, here - done)
                {
                    let results = &mut results[done * rows..(done + run.count) * rows];
                    let index = list.at(order, first + done);
                    fires += neuron.values_in_order(requests, matrices[run.region], run.slot, index, results);
                    done += run.count;
                    continue;
                }
                // prefetch the next bundle's row while this one is computed
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

    /// Computes the values of missing slices as their reads complete. Where the gate is read first, it
    /// decides whether the rest is read. `None` when all are computed. Large slices return earlier, where
    /// reads are awaited, with the index below which all are computed; it is above `added`.
    pub(super) fn compute_completed(
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
        let (requests, fired) = (Requests::of(&self.requests, rows), AtomicU64::new(0));
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
            // only slices of one neuron read their gates first
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

/// The inputs of a neuron's value, besides its rows.
struct Neuron<'a> {
    list: List<'a>,
    /// The input of each row; the last one repeats.
    x: [Input<'a>; ROWS_MAX],
    rows: usize,
    kernels: &'a dyn Kernels,
    shape: &'a Shape,
    activation: Activation,
    /// `[rows, experts]`.
    weights: &'a [f32],
    /// Whether resident gates were computed on request; they are stored where the value goes.
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

    /// Computes `gate x` of a row; 0 if it does not fire.
    fn gate_that_fires(&self, row: usize, gate: Row<'_>, index: usize) -> f32 {
        let gate = self.biased(self.x[row].dot(self.kernels, gate), index, |biases| biases.gate);
        if self.activation.fires(gate) { gate } else { 0.0 }
    }

    /// Computes the values of neurons from `index` on in consecutive `slot`s of a matrix of gate and up rows,
    /// with the same bits as [`Neuron::value`]. Returns how many fire.
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

    /// The router's weight of a neuron's expert, for a row.
    fn weight(&self, row: usize, index: usize) -> f32 {
        self.weights[row * self.list.neurons.experts_count() + self.list.expert(index)]
    }

    /// Computes `weight * f(gate x) * up x` for a row; `gate` may be known already. Without gates `weight *
    /// f(up x)`, with the up row in the gate's place.
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

    /// Adds a neuron's bias to a product, if there are biases.
    fn biased(&self, product: f32, index: usize, of: impl Fn(Biases<'a>) -> &'a [f32]) -> f32 {
        match self.biases {
            None => product,
            Some(biases) => product + of(biases)[self.list.rank(index) as usize],
        }
    }
}

/// Biases of the gate and the up of each neuron of a layer, by rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct Biases<'a> {
    pub(super) gate: &'a [f32],
    pub(super) up: &'a [f32],
}

impl<'a> Biases<'a> {
    /// A layer's biases; `None` if the model has none.
    pub(super) fn of(weights: &'a Weights, layer: usize) -> Option<Self> {
        let (gate, up) =
            (weights.of_network(layer, Role::GateBias)?, weights.of_network(layer, Role::UpBias)?);
        Some(Self { gate, up })
    }
}

/// Scatters results: `values[row][order[i]] = results[i][row]`, slice by slice.
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
