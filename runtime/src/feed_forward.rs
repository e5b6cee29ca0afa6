//! A feed-forward network, neuron by neuron: the life of a neuron.
//!
//! ```text
//! route     the router names each row's experts and their weights
//! predict   decode: the level names active neurons; prefill: every neuron of an expert in use
//! look up   which of them are in memory
//! fetch     the others are read ahead, in order, while earlier clusters are computed
//! cluster   h[i] = weight * f(gate_i x) * up_i x        threads share the cluster's neurons
//!           y   += h[i] * down_i                        threads share the columns (or rows) of y
//! admit     what was read takes the place of what was not used for longest
//! ```
//!
//! Neurons are summed in ascending position, one after another, whoever computes them and wherever they come from:
//! thread count, cache size, cluster size and the order of reads change no bit of the result. (`design.md` section 3
//! asks for that; the paper's clusters run in any order.)

use std::ops::Range;

use plans::layout::Span;

use crate::arena::Slab;
use crate::cache::Place;
use crate::engine::EngineError;
use crate::fetch::{Fetcher, Wanted};
use crate::kernels::{Activation, Form, Kernels, Packed, Row};
use crate::level::Level;
use crate::moe;
use crate::neurons::{LayerNeurons, Shape, Slots};
use crate::pool::Pool;
use crate::predictor::sign_bits;
use crate::products::{self, Tile, form_for, pack_in_place};
use crate::weights::Weights;

/// Columns that one thread takes at least: whole blocks, and cache lines of `f32`.
const COLUMNS: usize = 32;
/// Rows of a matrix, or neurons of a predictor, that one thread takes at least.
const ROWS: usize = 16;

/// Which neurons are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Rows one by one: those that the quality level names, and what was read is cached.
    Decode,
    /// All rows together: every neuron of the experts in use; the cache is used, and left as it is.
    Prefill,
}

/// What has been asked for and computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Activity {
    /// Neurons of the routed experts, over tokens and layers.
    pub routed: u64,
    /// Those asked for.
    pub asked: u64,
    /// Those whose value was not zero.
    pub active: u64,
}

/// The buffers of the path above, and the cluster size.
#[derive(Debug)]
pub struct FeedForward {
    /// Active neurons computed together.
    pub cluster_neurons: usize,
    /// `[2, chunk, experts]`: logits, then weights.
    pub router: Slab<f32>,
    /// `[routed neurons]`: candidates' positions, expert after expert.
    pub named: Slab<u32>,
    /// `[routed neurons]`: predictor scores.
    pub scores: Slab<f32>,
    /// Hidden layer of a low-rank predictor.
    pub hidden: Slab<f32>,
    /// Sign bits of the input.
    pub signs: Slab<u64>,
    /// `[neurons of a layer]`: positions asked for, ascending.
    pub asked: Slab<u32>,
    /// Where each of them is.
    pub places: Vec<Place>,
    /// `[cluster, chunk]`, and when decoding the gates of what was asked for, `[routed neurons]`.
    pub values: Slab<f32>,
    /// What decode has done.
    pub activity: Activity,
}

/// What the path works on besides its buffers.
#[derive(Debug)]
pub struct Network<'a> {
    /// Compute threads.
    pub pool: &'a Pool,
    /// The plan's instruction set.
    pub kernels: &'a dyn Kernels,
    /// How the vectors of a prompt meet blocks of weights.
    pub form: Form,
    /// The fixed region.
    pub weights: &'a Weights,
    /// The quality level.
    pub level: &'a Level,
    /// How bundles are cut.
    pub shape: &'a Shape,
    /// Hot and cold regions.
    pub slots: &'a mut Slots,
    /// Reads ahead.
    pub fetcher: &'a mut Fetcher,
    /// Between gate and up.
    pub activation: Activation,
    /// Experts of a token.
    pub experts_used: usize,
    /// Values of a row.
    pub width: usize,
    /// Per layer: positions that are asked for in any case.
    pub always_on: &'a [u32],
    /// The token's number: what it uses is not replaced.
    pub stamp: u32,
}

impl FeedForward {
    /// `out = ffn(x)` for rows of normalised input.
    ///
    /// *Shapes*: `x: [rows, width]`, which prefill packs where it lies, `out: [rows, width]`; one row when decoding.
    ///
    /// # Errors
    /// If a read fails or brings other bytes than were written.
    pub fn run(
        &mut self,
        n: &mut Network<'_>,
        stage: Stage,
        layer: usize,
        neurons: &mut LayerNeurons,
        x: &mut [f32],
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let rows = x.len() / n.width;
        self.route(n, layer, x);
        let count = match stage {
            Stage::Decode => self.predict(n, layer, neurons, x),
            Stage::Prefill => self.ask_for_everything(neurons, rows),
        };
        let (asked, places) = (&self.asked[..count], &mut self.places[..count]);
        match stage {
            Stage::Decode => neurons.cache.look_up(asked, n.stamp, places),
            Stage::Prefill => neurons.cache.find(asked, places),
        }
        let input = if stage == Stage::Prefill && neurons.experts_count() == 1 {
            let form = form_for(n.form, n.shape.dot_formats());
            Input::Prompt(pack_in_place(n.pool, form, n.width, x, out))
        } else {
            Input::Rows(x)
        };
        out.fill(0.0);

        n.fetcher.begin();
        let mut start = 0;
        while start < count {
            let mut missing = Missing {
                layer,
                neurons,
                shape: n.shape,
                slots: n.slots,
                asked: &self.asked[..count],
                places: &mut self.places[..count],
                admit: (stage == Stage::Decode).then_some(n.stamp),
            };
            let submitted = n.fetcher.ahead(&missing, count);
            // half a cluster is worth computing while the rest is still on its way
            let most = (start + self.cluster_neurons).min(submitted);
            let end = n.fetcher.reach(start, self.cluster_neurons.div_ceil(2), most);
            n.fetcher.land(&mut missing, end)?;
            match input {
                Input::Prompt(x) => self.compute_prompt(n, layer, neurons, start..end, x, out),
                Input::Rows(x) => self.compute(n, stage, layer, neurons, start, end, x, out),
            }
            n.fetcher.release(end);
            start = end;
        }
        Ok(())
    }

    /// `router[chunk..]`: each row's weight of each expert, zero where it is not routed.
    fn route(&mut self, n: &Network<'_>, layer: usize, x: &[f32]) {
        let Some(router) = n.weights.router(layer) else {
            self.router.fill(1.0);
            return;
        };
        let experts = router.rows;
        let half = self.router.len() / 2;
        let (logits, weights) = self.router.split_at_mut(half);
        let mut chosen = [(0, 0.0); EXPERTS_USED_MAX];
        let chosen = &mut chosen[..n.experts_used];
        for (row, x) in x.chunks_exact(n.width).enumerate() {
            let logits = &mut logits[row * experts..][..experts];
            crate::kernels::matrix_vector(n.kernels, router, 0..experts, x, logits);
            moe::route_into(logits, chosen);
            let weights = &mut weights[row * experts..][..experts];
            weights.fill(0.0);
            for &mut (expert, weight) in chosen.iter_mut() {
                weights[expert] = weight;
            }
        }
    }

    /// Asks for the neurons that the level names for one row; says how many.
    fn predict(&mut self, n: &Network<'_>, layer: usize, neurons: &LayerNeurons, x: &[f32]) -> usize {
        let weights = self.router.len() / 2;
        let width = neurons.list(0).len();
        if n.level.kind() == plans::model::LevelKind::Sign {
            sign_bits(x, &mut self.signs[..x.len().div_ceil(64)]);
        }
        // each expert's candidates, one list after another
        let mut ends = [0; EXPERTS_USED_MAX + 1];
        let mut used = 0;
        let experts = neurons.count() / width;
        for expert in (0..experts).filter(|&expert| self.router[weights + expert] != 0.0) {
            let start = ends[used];
            let scores = &mut self.scores[start..][..width];
            match n.level.predictor(layer, expert) {
                None => scores.fill(1.0),
                Some(predictor) => {
                    let hidden = &mut self.hidden[..predictor.hidden()];
                    if !hidden.is_empty() {
                        n.pool
                            .split_mut(hidden, ROWS, |start, part| predictor.hide(n.kernels, x, start, part));
                    }
                    let (hidden, signs) =
                        (&self.hidden[..predictor.hidden()], &self.signs[..x.len().div_ceil(64)]);
                    n.pool.split_mut(scores, ROWS, |start, part| {
                        predictor.score(n.kernels, x, hidden, signs, start, part);
                    });
                }
            }
            let mut end = start;
            for (i, &position) in neurons.list(expert).iter().enumerate() {
                let score = self.scores[start + i];
                if score > 0.0 || position < n.always_on[layer] {
                    self.named[end] = position;
                    self.scores[end] = score;
                    end += 1;
                }
            }
            used += 1;
            ends[used] = end;
        }
        let count = self.merge(&ends[..=used]);
        self.activity.routed += (used * width) as u64;
        self.activity.asked += count as u64;
        count
    }

    /// Merges the experts' lists into one of ascending positions, each with its score.
    fn merge(&mut self, ends: &[usize]) -> usize {
        let mut heads = [0; EXPERTS_USED_MAX];
        let lists = ends.len() - 1;
        heads[..lists].copy_from_slice(&ends[..lists]);
        let count = ends[lists];
        for i in 0..count {
            let mut best = usize::MAX;
            for list in 0..lists {
                let head = heads[list];
                if head < ends[list + 1] && (best == usize::MAX || self.named[head] < self.named[heads[best]])
                {
                    best = list;
                }
            }
            self.asked[i] = self.named[heads[best]];
            self.values[i] = self.scores[heads[best]];
            heads[best] += 1;
        }
        count
    }

    /// Asks for every neuron of the experts that any row is routed to.
    fn ask_for_everything(&mut self, neurons: &LayerNeurons, rows: usize) -> usize {
        let experts = neurons.count() / neurons.list(0).len();
        let weights = &self.router[self.router.len() / 2..][..rows * experts];
        let mut count = 0;
        for position in 0..neurons.count() as u32 {
            let expert = neurons.expert(position);
            if weights[expert..].iter().step_by(experts).any(|&weight| weight != 0.0) {
                self.asked[count] = position;
                count += 1;
            }
        }
        count
    }

    /// As [`FeedForward::compute`] for a prompt: each weight is unpacked once for all rows.
    fn compute_prompt(
        &mut self,
        n: &Network<'_>,
        layer: usize,
        neurons: &LayerNeurons,
        range: Range<usize>,
        x: Packed<'_>,
        out: &mut [f32],
    ) {
        let (start, rows) = (range.start, x.count);
        let (asked, places) = (&self.asked, &self.places);
        let (slots, landed) = (&*n.slots, n.fetcher.landed());
        let (kernels, shape, activation) = (n.kernels, n.shape, n.activation);
        let (level, width) = (n.level, n.width);
        let slot = |index: usize| {
            slots
                .bytes(layer, places[index])
                .unwrap_or_else(|| landed.bytes(index, neurons.span(shape, shape.part, asked[index])))
        };
        let gate = |index: usize| match level.kind() {
            plans::model::LevelKind::ExactGate => level.gate(layer, 0).row(neurons.rank(asked[index])),
            _ => shape.gate(slot(index)),
        };
        let values = &mut self.values[..range.len() * rows];
        n.pool.split_rows(values, rows, |first, values| {
            for (batch, values) in values.chunks_mut(products::ROWS * rows).enumerate() {
                let first = start + first + batch * products::ROWS;
                let count = values.len() / rows;
                let mut gates = [gate(first); products::ROWS];
                let mut ups = [shape.up(slot(first)); products::ROWS];
                for i in 1..count {
                    (gates[i], ups[i]) = (gate(first + i), shape.up(slot(first + i)));
                }
                for vector in (0..rows).step_by(products::VECTORS) {
                    let part = x.part(vector, products::VECTORS.min(rows - vector));
                    let [mut gate_tile, mut up_tile]: [Tile; 2] = [[0.0; _]; 2];
                    let [gate_tile, up_tile] =
                        [&mut gate_tile, &mut up_tile].map(|tile| &mut tile[..count * part.count]);
                    kernels.products(&gates[..count], part, gate_tile);
                    kernels.products(&ups[..count], part, up_tile);
                    for (i, values) in values.chunks_exact_mut(rows).enumerate() {
                        let tile = i * part.count..(i + 1) * part.count;
                        let pairs = gate_tile[tile.clone()].iter().zip(&up_tile[tile]);
                        for (value, (gate, up)) in values[vector..].iter_mut().zip(pairs) {
                            *value = activation.apply(*gate, *up);
                        }
                    }
                }
            }
        });
        let values = &*values;
        n.pool.split_rows(out, width, |first, out| {
            let vectors = first..first + out.len() / width;
            for (batch, values) in values.chunks(DOWN_ROWS * rows).enumerate() {
                let (first, count) = (start + batch * DOWN_ROWS, values.len() / rows);
                let down = |index: usize| -> Row<'_> { shape.down(slot(index), 0, width) };
                let mut downs = [down(first); DOWN_ROWS];
                for i in 1..count {
                    downs[i] = down(first + i);
                }
                kernels.add_products(values, rows, vectors.clone(), &downs[..count], out);
            }
        });
    }

    /// Adds the neurons `asked[start..end]`, all of them in memory, to `out`.
    fn compute(
        &mut self,
        n: &Network<'_>,
        stage: Stage,
        layer: usize,
        neurons: &LayerNeurons,
        start: usize,
        end: usize,
        x: &[f32],
        out: &mut [f32],
    ) {
        let rows = x.len() / n.width;
        let experts = neurons.count() / neurons.list(0).len();
        let weights = &self.router[self.router.len() / 2..][..rows * experts];
        let (asked, places) = (&self.asked, &self.places);
        let (slots, landed) = (&*n.slots, n.fetcher.landed());
        let (kernels, shape, level, width) = (n.kernels, n.shape, n.level, n.width);
        let activation = n.activation;
        let slot = |index: usize| {
            slots
                .bytes(layer, places[index])
                .unwrap_or_else(|| landed.bytes(index, neurons.span(shape, shape.part, asked[index])))
        };
        // an exact gate has been computed when it was asked for, and lies where the value goes
        let gates_resident = level.kind() == plans::model::LevelKind::ExactGate;
        let gates_known = gates_resident && stage == Stage::Decode;

        let values = match stage {
            Stage::Decode => &mut self.values[start..end],
            Stage::Prefill => &mut self.values[..(end - start) * rows],
        };
        n.pool.split_rows(values, rows, |first, values| {
            for (i, values) in values.chunks_exact_mut(rows).enumerate() {
                let index = start + first + i;
                let expert = neurons.expert(asked[index]);
                // while a row is computed, the same row of the next bundle is on its way to the cache
                let (bundle, next) = (slot(index), slot((index + 1).min(end - 1)));
                let gate_row = if gates_known {
                    None
                } else if gates_resident {
                    Some(level.gate(layer, expert).row(neurons.rank(asked[index])))
                } else {
                    Some(shape.gate(bundle).before(shape.gate(next).bytes))
                };
                let up_row = shape.up(bundle).before(shape.up(next).bytes);
                for (row, value) in values.iter_mut().enumerate() {
                    let weight = weights[row * experts + expert];
                    let x = &x[row * width..][..width];
                    *value = if weight == 0.0 {
                        0.0
                    } else {
                        let gate = gate_row.map_or(*value, |gate| kernels.dot(gate, x));
                        if activation.fires(gate) {
                            weight * activation.apply(gate, kernels.dot(up_row, x))
                        } else {
                            0.0
                        }
                    };
                }
            }
        });
        let values = &*values;
        if stage == Stage::Decode {
            self.activity.active += values.iter().filter(|&&value| value != 0.0).count() as u64;
        }
        let add = |row: usize, column: usize, out: &mut [f32]| {
            let of_row = values.iter().skip(row).step_by(rows).enumerate();
            let mut active = of_row.filter(|(_, value)| **value != 0.0).peekable();
            while let Some((i, value)) = active.next() {
                let down = |i: usize| shape.down(slot(start + i), column, out.len());
                let next = active.peek().map_or(i, |&(next, _)| next);
                kernels.axpy(*value, down(i).before(down(next).bytes), out);
            }
        };
        if rows == 1 {
            n.pool.split_mut(out, COLUMNS, |column, out| add(0, column, out));
        } else {
            n.pool.split_rows(out, width, |first, out| {
                for (i, out) in out.chunks_exact_mut(width).enumerate() {
                    add(first + i, 0, out);
                }
            });
        }
    }
}

/// What enters a network.
#[derive(Clone, Copy)]
enum Input<'a> {
    /// `[rows, width]`.
    Rows(&'a [f32]),
    /// The same, packed: every neuron meets every row, since there is one expert.
    Prompt(Packed<'a>),
}

/// Neurons whose rows of down are added together.
const DOWN_ROWS: usize = 64;

/// Experts that one token may visit: more than any model has.
pub const EXPERTS_USED_MAX: usize = 64;

/// The neurons asked for that are not in memory.
struct Missing<'a> {
    layer: usize,
    neurons: &'a mut LayerNeurons,
    shape: &'a Shape,
    slots: &'a mut Slots,
    asked: &'a [u32],
    places: &'a mut [Place],
    /// The token that may give them slots.
    admit: Option<u32>,
}

impl Wanted for Missing<'_> {
    type Error = EngineError;

    fn span(&self, index: usize) -> Option<Span> {
        (self.places[index] == Place::Missing)
            .then(|| self.neurons.span(self.shape, self.shape.part, self.asked[index]))
    }

    fn accept(&mut self, index: usize, bytes: &[u8]) -> Result<bool, EngineError> {
        let position = self.asked[index];
        self.neurons.verify(self.shape, self.shape.part, position, bytes)?;
        let Some(slot) = self.admit.and_then(|stamp| self.neurons.cache.admit(position, stamp)) else {
            return Ok(true);
        };
        self.places[index] = Place::Cold(slot);
        self.slots.fill(self.layer, Place::Cold(slot), bytes);
        Ok(false)
    }
}
