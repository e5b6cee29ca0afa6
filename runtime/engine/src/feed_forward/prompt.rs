//! A prompt's rows through a feed-forward network: each expert takes its rows together.
//!
//! ```text
//! group   the rows of each expert, ascending, expert after expert; packed in that order
//! for each cluster of neurons, from first to last, expert by expert:
//!     h    = f(gate x) * up x     [neurons, rows]   threads take batches of an expert's neurons
//!     sum += h down               [rows, width]     threads share rows
//! join    out[row] = sum over its experts of weight * sum[expert, row]
//! ```
//!
//! If every neuron fires (`SiLU`, say) and vectors may be rounded, values are rounded too. Down rows are
//! multiplied transposed ([`kernels::Down::add_transposed`]). That takes 32 neurons at a time, by rank, so
//! clusters are whole blocks of 32.
//!
//! If slices hold pieces of down, clusters are whole slices. Each slice's values are packed again and
//! multiplied by its piece; threads share the piece's rows, and sums are added slice by slice.
//!
//! A row has a sum for each of its experts. The expert's neurons are added in ascending rank, then the
//! experts in ascending order. Clusters, chunks, threads and other rows therefore change no bit. A model
//! without experts is one expert of weight 1 for every row; its sums are the output.

use std::mem;
use std::ops::Range;

use plans::engine::{COMPLETED_CLUSTER, TRANSPOSED, TRANSPOSED_WORDS};

use super::{
    Biases, Checks, FeedForward, FeedForwardError, List, Network, add_down_bias, complete_parts, insert,
};
use crate::arena::Slab;
use crate::fetch::{Due, Fetcher, Reads};
use crate::neurons::{Bundle, LayerNeurons, NeuronError, Shape, Slots};
use crate::pool::Pool;
use crate::products::{ROWS, Tile, VECTORS, add_products, form_for, pack_in_place};
use kernels::{Form, LANES, Packed, Row, TRANSPOSED_COLUMNS, pack_some, pack_transposed};

/// Neurons whose down rows are added together.
const DOWN_ROWS: usize = 256;

/// The most neurons multiplied transposed together.
const TRANSPOSED_ROWS: usize = 512;

/// Buffers and lists of a prompt, besides the decode buffers.
#[derive(Debug)]
pub(crate) struct Prompt {
    /// Neurons of a cluster, where all rows use them; clusters are larger where experts have fewer rows.
    cluster_neurons: usize,
    groups: Groups,
    /// `[chunk * experts used, width]`, of mixtures: the packed rows of each expert.
    gathered: Slab<f32>,
    batches: Batches,
}

impl Prompt {
    /// Empty lists, with buffers for rows by expert (`members: [chunk * experts used]`) and their packed
    /// values.
    pub(crate) fn new(
        cluster_neurons: usize,
        experts: usize,
        shape: &Shape,
        members: Slab<u32>,
        gathered: Slab<f32>,
    ) -> Self {
        let slice = if shape.has_pieces() { shape.slice() } else { 1 };
        let cluster_neurons = cluster_neurons.max(slice) / slice * slice;
        let slices = if slice > 1 { (cluster_neurons * experts).div_ceil(slice) } else { 0 };
        // an expert's last batch may be short, and clusters grow where experts have few rows
        let pieces = (cluster_neurons * experts).div_ceil(ROWS) + experts;
        Self {
            cluster_neurons,
            groups: Groups { members, starts: vec![0; experts + 1], word_ends: Vec::with_capacity(experts) },
            gathered,
            batches: Batches {
                neuron_ends: vec![0; experts],
                neurons: Vec::with_capacity(pieces),
                value_ends: Vec::with_capacity(pieces),
                slices: Vec::with_capacity(slices),
                slice_ends: Vec::with_capacity(slices),
            },
        }
    }

    /// Swaps the buffers for rows by expert and for their packed values.
    pub(super) fn exchange(&mut self, members: Slab<u32>, gathered: Slab<f32>) -> (Slab<u32>, Slab<f32>) {
        (mem::replace(&mut self.groups.members, members), mem::replace(&mut self.gathered, gathered))
    }
}

impl FeedForward {
    /// Computes `out = ffn(x)`, dense, for a prompt's rows: over every neuron of each row's experts. Cold
    /// neurons in the cache are used and stay. Slices count as requested by each row; they fill free slots in
    /// layers whose slots no prompt buffer overlaps.
    ///
    /// *Shapes*: `x: [rows, width]`, normalised, packed in place; `out: [rows, width]`.
    ///
    /// # Errors
    /// As [`FeedForward::decode`].
    pub(crate) fn prefill(
        &mut self,
        n: &mut Network<'_>,
        layer: usize,
        neurons: &mut LayerNeurons,
        x: &mut [f32],
        out: &mut [f32],
    ) -> Result<(), FeedForwardError> {
        let (rows, experts, width) = (x.len() / n.width, neurons.experts_count(), n.width);
        let Self { prompt, router, requested, places, order, values, sums, .. } = self;
        let weights = &router[router.len() / 2..][..rows * experts];
        let Prompt { cluster_neurons, groups, gathered, batches } = prompt;
        groups.form(weights);
        let slices = groups.request_everything(neurons, requested);
        neurons.cache.find(&requested[..slices], &mut places[..slices]);
        if neurons.slice() > 1 {
            neurons.count_uses(weights);
        }
        let (slice, count) = (neurons.slice(), slices * neurons.slice());

        let form = form_for(n.form, n.shape.dot_formats());
        let (words, sums): (&[f32], _) = if experts == 1 {
            pack_in_place(n.pool, form, width, x, out);
            (x, &mut [][..])
        } else {
            groups.pack(n.pool, form, width, x, gathered);
            (gathered, &mut sums[..groups.count() * width])
        };
        let groups = &*groups;
        let input = |expert: usize| {
            let range = groups.range(expert);
            Packed::new(form, width, range.len(), &words[range.start * form.vector_words(width)..])
        };
        out.fill(0.0);
        sums.fill(0.0);

        let transposed = n.transposes_down;
        let most = if transposed {
            transposed_rows(*cluster_neurons, values.len() / rows)
        } else {
            *cluster_neurons
        };
        n.fetcher.begin(Reads::Together);
        let mut start = 0;
        while start < count {
            let list = List { neurons, shape: n.shape, requested, places };
            let least = if transposed { (start + TRANSPOSED).min(count) } else { start };
            let submitted = n.fetcher.ahead_to(&list, slices, least.div_ceil(slice)) * slice;
            // half a cluster is worth computing while other reads are in flight
            let room = most * rows;
            let worth = groups.fitting(&list, start..count, room / 2);
            let fitting = groups.fitting(&list, start..submitted, room);
            // reads are of slices; a cluster may end within one
            let worth = ((worth - start) / slice).max(1);
            let reached = n.fetcher.reach(start / slice, worth, fitting.div_ceil(slice));
            let mut end = (reached * slice).min(fitting);
            if transposed && end < count {
                end = (end / TRANSPOSED * TRANSPOSED).max(least);
            }
            if n.shape.has_pieces() {
                end = (end / slice * slice).max(start + slice);
            }
            loop {
                let completed = n.fetcher.next_completed(&list, end.div_ceil(slice), order)?;
                if completed == 0 {
                    break;
                }
                check(n, &list, &order[..completed])?;
            }
            batches.form(groups, &list, start..end, order);
            if n.shape.has_pieces() {
                batches.form_slices(groups, slice);
            }
            let list = List { neurons, shape: n.shape, requested, places };
            let cluster = Cluster { list, layer, groups, batches, order: &order[..end - start] };
            cluster.compute_values(n, input, values);
            if transposed {
                cluster.add_transposed(n, rows, values, out);
            } else if n.shape.has_pieces() {
                cluster.add_pieces(n, values, if experts == 1 { out } else { sums });
            } else {
                cluster.add_down(n, values, if experts == 1 { out } else { sums });
            }
            if slice > 1 && n.slots.holds(layer) {
                let list = (&**requested, &mut **places, &mut **order);
                insert(n, layer, neurons, list, start / slice..end / slice, true);
            }
            n.fetcher.release(end / slice);
            start = end;
        }
        if transposed {
            transpose_back(n.pool, rows, out, x);
        }
        if experts > 1 {
            groups.join(n.pool, weights, sums, width, out);
        }
        add_down_bias(n, layer, weights, out);
        Ok(())
    }
}

/// Neurons of a cluster whose values and their rounded copy fit in `room` values: whole blocks.
fn transposed_rows(cluster_neurons: usize, room: usize) -> usize {
    (room / TRANSPOSED_WORDS * TRANSPOSED)
        .min(cluster_neurons.next_multiple_of(TRANSPOSED))
        .min(TRANSPOSED_ROWS)
}

/// Transposes `[width, rows]` to `[rows, width]`, in place.
fn transpose_back(pool: &Pool, rows: usize, out: &mut [f32], spare: &mut [f32]) {
    let width = out.len() / rows;
    let transposed = &*out;
    pool.split_rows(spare, width, |first, spare| {
        for (column, transposed) in transposed.chunks_exact(rows).enumerate() {
            for (row, spare) in (first..).zip(spare.chunks_exact_mut(width)) {
                spare[column] = transposed[row];
            }
        }
    });
    out.copy_from_slice(spare);
}

/// The rows of a prompt by expert. A row paired with one of its experts is a *member*.
#[derive(Debug)]
struct Groups {
    /// Rows of each expert, ascending, expert after expert.
    members: Slab<u32>,
    /// First member of each expert, and the end of the last: `[experts + 1]`.
    starts: Vec<usize>,
    /// End of each expert's packed words: `[experts]`.
    word_ends: Vec<usize>,
}

impl Groups {
    /// Lists the members: nonzero weights of `weights: [rows, experts]`.
    fn form(&mut self, weights: &[f32]) {
        let experts = self.starts.len() - 1;
        let mut count = 0;
        for expert in 0..experts {
            for (row, weights) in (0..).zip(weights.chunks_exact(experts)) {
                if weights[expert] != 0.0 {
                    self.members[count] = row;
                    count += 1;
                }
            }
            self.starts[expert + 1] = count;
        }
    }

    /// An expert's members.
    fn range(&self, expert: usize) -> Range<usize> {
        self.starts[expert]..self.starts[expert + 1]
    }

    /// All members.
    fn count(&self) -> usize {
        self.starts[self.starts.len() - 1]
    }

    /// Lists every slice of the experts that have members; returns their number.
    fn request_everything(&self, neurons: &LayerNeurons, requested: &mut [u32]) -> usize {
        let mut count = 0;
        for slice in 0..neurons.slices() {
            if !self.range(neurons.expert(slice * neurons.slice() as u32)).is_empty() {
                requested[count] = slice;
                count += 1;
            }
        }
        count
    }

    /// The longest range from `range.start`, at least one neuron, with at most `room` values: one for each
    /// neuron and member of its expert.
    fn fitting(&self, list: &List<'_>, range: Range<usize>, room: usize) -> usize {
        let (start, mut values) = (range.start, 0);
        let over = |&index: &usize| {
            values += self.range(list.expert(index)).len();
            values > room && index > start
        };
        range.clone().find(over).unwrap_or(range.end)
    }

    /// Packs the members' inputs by expert.
    fn pack(&mut self, pool: &Pool, form: Form, width: usize, x: &[f32], words: &mut [f32]) {
        let vector = form.vector_words(width);
        self.word_ends.clear();
        self.word_ends.extend(self.starts[1..].iter().map(|end| end * vector));
        pool.share_pieces(
            words,
            &self.word_ends,
            || (),
            |expert, words| {
                let rows = &self.members[self.range(expert)];
                pack_some(form, width, |member| &x[rows[member] as usize * width..][..width], words);
            },
        );
    }

    /// Computes `out[row] += sum over its experts, ascending, of weight * sums[member]`.
    fn join(&self, pool: &Pool, weights: &[f32], sums: &[f32], width: usize, out: &mut [f32]) {
        let experts = self.starts.len() - 1;
        pool.split_rows(out, width, |first, out| {
            let end = first + out.len() / width;
            for expert in 0..experts {
                let range = self.range(expert);
                let rows = &self.members[range.clone()];
                let from = rows.partition_point(|&row| (row as usize) < first);
                for (&row, sum) in
                    rows[from..].iter().zip(sums[(range.start + from) * width..].chunks_exact(width))
                {
                    let row = row as usize;
                    if row >= end {
                        break;
                    }
                    let weight = weights[row * experts + expert];
                    let out = &mut out[(row - first) * width..][..width];
                    out.iter_mut().zip(sum).for_each(|(out, sum)| *out += weight * sum);
                }
            }
        });
    }
}

/// A cluster's neurons, cut into batches of one thread.
#[derive(Debug)]
struct Batches {
    /// End of each expert's neurons in the cluster's order: `[experts]`.
    neuron_ends: Vec<usize>,
    /// Each batch's expert and neurons, at most [`ROWS`].
    neurons: Vec<(usize, Range<usize>)>,
    /// End of each batch's values, `[neurons, members]`.
    value_ends: Vec<usize>,
    /// For slices with pieces of down: each one's expert, and its first neuron's place in the order.
    slices: Vec<(usize, usize)>,
    /// End of each slice's values.
    slice_ends: Vec<usize>,
}

impl Batches {
    /// Groups the neurons of `range` by expert, ascending: writes their indices to `order`.
    fn form(&mut self, groups: &Groups, list: &List<'_>, range: Range<usize>, order: &mut [u32]) {
        self.neuron_ends.fill(0);
        for index in range.clone() {
            self.neuron_ends[list.expert(index)] += 1;
        }
        let mut start = 0;
        for end in &mut self.neuron_ends {
            (start, *end) = (start + *end, start);
        }
        for index in range {
            let end = &mut self.neuron_ends[list.expert(index)];
            order[*end] = index as u32;
            *end += 1;
        }
        self.neurons.clear();
        self.value_ends.clear();
        let (mut start, mut values) = (0, 0);
        for (expert, &end) in self.neuron_ends.iter().enumerate() {
            while start < end {
                let neurons = start..end.min(start + ROWS);
                start = neurons.end;
                values += neurons.len() * groups.range(expert).len();
                self.neurons.push((expert, neurons));
                self.value_ends.push(values);
            }
        }
    }
}

impl Batches {
    /// Lists the slices of [`Batches::form`]'s neurons; all are whole.
    fn form_slices(&mut self, groups: &Groups, slice: usize) {
        self.slices.clear();
        self.slice_ends.clear();
        let (mut start, mut values) = (0, 0);
        for (expert, &end) in self.neuron_ends.iter().enumerate() {
            for first in (start..end).step_by(slice) {
                values += slice * groups.range(expert).len();
                self.slices.push((expert, first));
                self.slice_ends.push(values);
            }
            start = end;
        }
    }
}

/// Neurons in memory that are computed together.
struct Cluster<'a> {
    list: List<'a>,
    layer: usize,
    groups: &'a Groups,
    batches: &'a Batches,
    /// Indices into the list, by expert.
    order: &'a [u32],
}

impl Cluster<'_> {
    /// Computes `values = f(gate x) * up x`, or `f(up x)` without gates, batch by batch `[neurons, members]`.
    /// Each weight is unpacked once for all members of its expert.
    fn compute_values<'x>(
        &self,
        n: &mut Network<'_>,
        input: impl Fn(usize) -> Packed<'x> + Sync,
        values: &mut [f32],
    ) {
        let (kernels, activation, level) = (n.kernels, n.activation, n.level);
        let (shape, biases) = (n.shape, Biases::of(n.weights, self.layer));
        let (bundle, mut due) = self.bundles(n.slots, n.fetcher);
        let gated = shape.is_gated();
        n.pool.share_pieces(
            values,
            &self.batches.value_ends,
            || due.go_on(),
            |batch, values| {
                let (expert, ref neurons) = self.batches.neurons[batch];
                let (x, neurons) = (input(expert), &self.order[neurons.clone()]);
                let gate = |index: u32| {
                    if level.kind().gates_resident() {
                        let rank = self.list.rank(index as usize);
                        level.gate(self.layer, expert).row(self.list.neurons.index_in_expert(rank))
                    } else {
                        shape.gate(bundle(index))
                    }
                };
                let (mut gates, mut ups) = ([gate(neurons[0]); ROWS], [shape.up(bundle(neurons[0])); ROWS]);
                for (i, &index) in neurons.iter().enumerate().skip(1) {
                    (gates[i], ups[i]) = (gate(index), shape.up(bundle(index)));
                }
                let (gates, all_ups) = (&gates[..neurons.len()], ups);
                for vector in (0..x.count).step_by(VECTORS) {
                    let part = x.part(vector, VECTORS.min(x.count - vector));
                    let [mut gate_tile, mut up_tile]: [Tile; 2] = [[0.0; _]; 2];
                    let [gate_tile, up_tile] =
                        [&mut gate_tile, &mut up_tile].map(|tile| &mut tile[..neurons.len() * part.count]);
                    kernels.products(gates, part, gate_tile);
                    if !gated {
                        for (i, ups) in gate_tile.chunks_exact(part.count).enumerate() {
                            kernels.activate(activation, ups, ups, &mut values[i * x.count + vector..]);
                        }
                        continue;
                    }
                    if let Some(Biases { gate, .. }) = biases {
                        self.add_bias(gate, neurons, gate_tile, part.count);
                    }
                    // up is not needed for neurons that fire for no member
                    let mut fire = [0; ROWS];
                    let mut count = 0;
                    for (i, gates) in gate_tile.chunks_exact(part.count).enumerate() {
                        if gates.iter().any(|gate| activation.fires(*gate)) {
                            (fire[count], ups[count]) = (i, all_ups[i]);
                            count += 1;
                        }
                    }
                    kernels.products(&ups[..count], part, &mut up_tile[..count * part.count]);
                    if let Some(Biases { up, .. }) = biases {
                        let mut firing = [0; ROWS];
                        firing.iter_mut().zip(&fire[..count]).for_each(|(index, &i)| *index = neurons[i]);
                        self.add_bias(up, &firing[..count], up_tile, part.count);
                    }
                    values
                        .chunks_exact_mut(x.count)
                        .for_each(|values| values[vector..][..part.count].fill(0.0));
                    for (&i, ups) in fire[..count].iter().zip(up_tile.chunks_exact(part.count)) {
                        let (gates, values) =
                            (&gate_tile[i * part.count..], &mut values[i * x.count + vector..]);
                        kernels.activate(activation, gates, ups, values);
                    }
                }
            },
        );
    }

    /// Adds its bias to the products of each neuron, `[neurons, vectors]`.
    fn add_bias(&self, bias: &[f32], neurons: &[u32], products: &mut [f32], vectors: usize) {
        for (products, &index) in products.chunks_exact_mut(vectors).zip(neurons) {
            let bias = bias[self.list.rank(index as usize) as usize];
            products.iter_mut().for_each(|product| *product += bias);
        }
    }

    /// Computes `sums[member] += sum over its expert's neurons of values * down`.
    fn add_down(&self, n: &mut Network<'_>, values: &[f32], sums: &mut [f32]) {
        let (kernels, width, shape) = (n.kernels, n.width, n.shape);
        let (bundle, mut due) = self.bundles(n.slots, n.fetcher);
        due.go_on();
        n.pool.split_rows(sums, width, |first, sums| {
            let here = first..first + sums.len() / width;
            let (mut neurons, mut values) = (self.order, values);
            let mut start = 0;
            for (expert, &end) in self.batches.neuron_ends.iter().enumerate() {
                let (of_expert, of_others) = neurons.split_at(end - start);
                let members = self.groups.range(expert);
                let (of_neurons, of_other_neurons) = values.split_at(of_expert.len() * members.len());
                (neurons, values, start) = (of_others, of_other_neurons, end);
                let own = members.start.max(here.start)..members.end.min(here.end);
                if own.is_empty() {
                    continue;
                }
                let sums = &mut sums[(own.start - first) * width..(own.end - first) * width];
                let own = own.start - members.start..own.end - members.start;
                let values = of_neurons.chunks(DOWN_ROWS * members.len());
                for (neurons, values) in of_expert.chunks(DOWN_ROWS).zip(values) {
                    let down = |index: u32| -> Row<'_> { shape.down(bundle(index)) };
                    let mut downs = [down(neurons[0]); DOWN_ROWS];
                    for (row, &index) in downs.iter_mut().zip(neurons).skip(1) {
                        *row = down(index);
                    }
                    kernels.add_products(values, members.len(), own.clone(), &downs[..neurons.len()], sums);
                }
            }
        });
    }

    /// [`Self::add_down`] for pieces of down: packs the values of each slice, and multiplies them by its
    /// piece.
    fn add_pieces(&self, n: &mut Network<'_>, values: &mut [f32], sums: &mut [f32]) {
        let (kernels, shape, width, slice) = (n.kernels, n.shape, n.width, self.list.neurons.slice());
        let form = form_for(n.form, [shape.down_format()]);
        let Batches { slices, slice_ends, .. } = self.batches;
        let (all, ends) = (slice_ends.last().copied().unwrap_or(0), |at: usize| slice_ends[at]);
        let start = |at: usize| at.checked_sub(1).map_or(0, ends);
        let (values, words) = values.split_at_mut(all);
        let values = &*values;
        let count = |at: usize| self.groups.range(slices[at].0).len();
        n.pool.share_pieces(
            words,
            slice_ends,
            || (),
            |at, words| {
                let words = &mut words[..count(at) * form.vector_words(slice)];
                pack_transposed(form, &values[start(at)..ends(at)], count(at), 0, words);
            },
        );
        let (words, slots) = (&*words, n.slots.layer(self.layer));
        let (completed, mut due) = n.fetcher.completed_and_due();
        n.pool.share_columns(
            sums,
            width,
            ROWS,
            || due.go_on(),
            |sums| {
                for (at, &(expert, first)) in slices.iter().enumerate() {
                    let piece = self.list.piece(slots, Some(completed), self.order[first] as usize / slice);
                    let x = Packed::new(form, slice, count(at), &words[start(at)..]);
                    add_products(kernels, |row| piece.row(row), x, self.groups.range(expert).start, sums);
                }
            },
        );
    }

    /// [`Self::add_down`] for rounded values of a model without experts, transposed: `sums: [width, rows]`.
    fn add_transposed(&self, n: &mut Network<'_>, rows: usize, values: &mut [f32], sums: &mut [f32]) {
        let (kernels, shape) = (n.kernels, n.shape);
        let (bundle, mut due) = self.bundles(n.slots, n.fetcher);
        let (values, words) = values.split_at_mut(self.order.len() * rows);
        let (values, columns) = (&*values, self.order.len().next_multiple_of(TRANSPOSED));
        let vector = Form::Q8.vector_words(columns);
        let words = &mut words[..rows * vector];
        n.pool.split_mut(words, LANES * vector, |start, words| {
            pack_transposed(Form::Q8, values, rows, start / vector, words);
        });
        let x = Packed::new(Form::Q8, columns, rows, words);
        let down = |index: u32| -> Row<'_> { shape.down(bundle(index)) };
        let mut downs = [down(self.order[0]); TRANSPOSED_ROWS];
        for (row, &index) in downs.iter_mut().zip(self.order).skip(1) {
            *row = down(index);
        }
        let downs = &downs[..self.order.len()];
        n.pool.share_mut(
            sums,
            TRANSPOSED_COLUMNS * rows,
            || due.go_on(),
            |start, sums| kernels.down().add_transposed(downs, start / rows, x, sums),
        );
    }

    /// The rows of the list's neurons, in memory or in completed reads, and the reads due meanwhile.
    fn bundles<'b>(
        &'b self,
        slots: &'b Slots,
        fetcher: &'b mut Fetcher,
    ) -> (impl Fn(u32) -> Bundle<'b> + Sync, Due<'b>) {
        let (slots, (completed, due)) = (slots.layer(self.layer), fetcher.completed_and_due());
        (move |index| self.list.bundle(slots, Some(completed), index as usize), due)
    }
}

/// Verifies completed slices, on all threads.
fn check(n: &mut Network<'_>, list: &List<'_>, slices: &[u32]) -> Result<(), NeuronError> {
    if list.shape.is_apart() {
        return complete_parts(n, list, slices);
    }
    let (checks, completed) = (Checks::default(), n.fetcher.completed());
    let neurons = slices.len() * list.neurons.slice();
    n.pool.claim(
        neurons.div_ceil(COMPLETED_CLUSTER),
        || (),
        |cluster| {
            let first = cluster * COMPLETED_CLUSTER;
            for at in first..neurons.min(first + COMPLETED_CLUSTER) {
                checks.check(list, completed, list.at(slices, at));
            }
        },
    );
    checks.finish(list, n.fetcher)
}
