//! Down rows of a token's active neurons: `out = sum of values * down`.
//!
//! ```text
//! rank   0 ........ run ........ 2 run ....      8 run ....
//! sum        0          1            2               0 ....           each in ascending rank, in one thread at a time
//! ```
//!
//! [`ADDED`] active rows of the same run are added together. Where their factors are rounded under one scale,
//! the grouping changes results, so ranks alone decide it. An incomplete group whose run goes on waits for
//! the next window of the list. Its rows are copied, because their read buffers are reused.

use std::array;
use std::mem;
use std::ops::Range;

use plans::engine::{ADDED, SHARING, SUMS, run_neurons, sum_words};

use super::{FeedForward, List, Network};
use crate::arena::Slab;
use crate::cache::Place;
use crate::neurons::LayerNeurons;
use crate::pool::ALONE;
use crate::stage::Stage;
use kernels::{self, Row};

/// The least columns of a thread: whole blocks, cache lines of `f32`, and columns that share a word of a sum.
const COLUMNS: usize = SHARING;

/// Active neurons to be added with the next window.
#[derive(Debug)]
pub(crate) struct Waiting {
    count: usize,
    indices: [u32; ADDED],
    /// `[ADDED]` rows of nibbles.
    rows: Slab<f32>,
}

impl Waiting {
    /// Empty lists for `count` rows, which share the buffer `rows`.
    pub(crate) fn of_each(mut rows: Slab<f32>, count: usize) -> Box<[Self]> {
        let each = rows.len() / count;
        let of_one = |left: usize| {
            let after = rows.split_off(if left == 0 { rows.len() } else { each });
            Self { count: 0, indices: [0; ADDED], rows: mem::replace(&mut rows, after) }
        };
        (0..count).rev().map(of_one).collect()
    }

    /// Empties the list.
    pub(crate) fn forget(&mut self) {
        self.count = 0;
    }

    /// Indices of the waiting neurons.
    fn indices(&self) -> &[u32] {
        &self.indices[..self.count]
    }

    /// The down row of a waiting neuron.
    fn row(&self, index: u32, bytes: usize) -> Option<&[u8]> {
        let slot = self.indices().iter().position(|&waits| waits == index)?;
        bytemuck::cast_slice(&self.rows[..]).get(slot * bytes..(slot + 1) * bytes)
    }
}

impl FeedForward {
    /// Adds a row's active neurons of `range`, a window of the `count` requested neurons.
    pub(super) fn add_down(
        &mut self,
        n: &mut Network<'_>,
        layer: usize,
        neurons: &LayerNeurons,
        row: usize,
        range: Range<usize>,
        count: usize,
    ) {
        if range.is_empty() {
            return;
        }
        let (run_bits, format, width) =
            (run_neurons(neurons.count()).ilog2(), n.shape.down_format(), n.width);
        let list = List { neurons, shape: n.shape, requested: &self.requested, places: &self.places };
        let run_at = |index: u32| list.rank(index as usize) as usize >> run_bits;
        let (waiting, values) = (&self.waiting[row], &self.values[row * neurons.count()..]);

        // by sum, in ascending order: waiting neurons, all of one run, come before the window
        let runs = || list.runs(range.clone(), run_bits);
        let mut starts = [0; SUMS + 1];
        for (run, indices) in runs() {
            starts[run % SUMS + 1] += values[indices].iter().filter(|&&value| value != 0.0).count();
        }
        let waits = waiting.indices();
        let of_waiting = waits.first().map_or(0, |&index| run_at(index) % SUMS);
        starts[of_waiting + 1] += waits.len();
        for sum in 0..SUMS {
            starts[sum + 1] += starts[sum];
        }
        let mut ends = starts;
        self.order[starts[of_waiting]..][..waits.len()].copy_from_slice(waits);
        ends[of_waiting] += waits.len();
        let rows = starts[SUMS];
        for (run, indices) in runs() {
            let (first, end) = (indices.start as u32, &mut ends[run % SUMS]);
            for (index, _) in (first..).zip(&values[indices]).filter(|(_, value)| **value != 0.0) {
                self.order[*end] = index;
                *end += 1;
            }
        }
        self.activity.active += (rows - waiting.count) as u64;

        // an incomplete group of a run that goes on
        let mut held = 0..0;
        if range.end < count && kernels::rounds_factors(n.form, format) {
            let last = run_at(range.end as u32 - 1);
            if run_at(range.end as u32) == last {
                let own = starts[last % SUMS]..ends[last % SUMS];
                let before = self.order[own.clone()].partition_point(|&index| run_at(index) < last);
                held = own.end - (own.len() - before) % ADDED..own.end;
                ends[last % SUMS] = held.start;
            }
        }

        let (order, row_bytes) = (&self.order[..rows], format.row_bytes(width));
        let (slots, shape) = (n.slots.layer(layer), n.shape);
        // reads go on unless rows are still in read buffers
        let kept = list.places[list.slices(&range)].iter().all(|&place| place != Place::Missing);
        let fetcher = &mut *n.fetcher;
        let (mut fetcher, completed) =
            if kept { (Some(fetcher), None) } else { (None, Some(fetcher.completed())) };
        let (kernels, form) = (n.kernels, n.form);
        let down = |index: u32| -> &[u8] {
            let waited = if (index as usize) < range.start { waiting.row(index, row_bytes) } else { None };
            waited.unwrap_or_else(|| shape.down(list.bundle(slots, completed, index as usize)).bytes)
        };
        let downs = |group: &[u32]| -> [&[u8]; ADDED] {
            array::from_fn(|k| group.get(k).map_or(&[][..], |&index| down(index)))
        };
        let words = sum_words(width);
        let add = |first: usize, sums: &mut [f32]| {
            for (sum, out) in (first / words..).zip(sums.chunks_exact_mut(words)) {
                let of_runs = order[starts[sum]..ends[sum]].chunk_by(|&a, &b| run_at(a) == run_at(b));
                let mut groups = of_runs.flat_map(|run| run.chunks(ADDED)).peekable();
                let mut next = groups.peek().map_or([&[][..]; ADDED], |group| downs(group));
                while let Some(group) = groups.next() {
                    let these = next;
                    next = groups.peek().map_or(these, |group| downs(group));
                    let rows: [_; ADDED] = array::from_fn(|k| Row::new(format, these[k]).before(next[k]));
                    let factors: [_; ADDED] =
                        array::from_fn(|k| group.get(k).map_or(0.0, |&index| values[index as usize]));
                    let (factors, rows) = (&factors[..group.len()], &rows[..group.len()]);
                    kernels.down().add_rows(form, factors, rows, out);
                }
            }
        };
        // work that one thread finishes before another wakes up stays on one thread
        let sums = &mut self.sums[row * SUMS * words..][..SUMS * words];
        let grain = if rows * width < ALONE { sums.len() } else { words };
        n.pool.share_mut(sums, grain, || fetcher.iter_mut().for_each(|fetcher| fetcher.poll()), add);

        let waiting = &mut self.waiting[row];
        let places: &mut [u8] = bytemuck::cast_slice_mut(&mut waiting.rows[..]);
        waiting.count = held.len();
        for ((&index, waits), place) in
            self.order[held].iter().zip(&mut waiting.indices).zip(places.chunks_exact_mut(row_bytes))
        {
            // neurons that waited before are still first, with their rows in place
            if index as usize >= range.start {
                place.copy_from_slice(shape.down(list.bundle(slots, completed, index as usize)).bytes);
            }
            *waits = index;
        }
        self.clock.end(Stage::Down);
    }

    /// Joins a row's partial sums into its output.
    pub(super) fn join_sums(&mut self, n: &Network<'_>, row: usize, out: &mut [f32]) {
        let (width, words) = (n.width, sum_words(n.width));
        let (sums, kernels, form, format) =
            (&self.sums[row * SUMS * words..][..SUMS * words], n.kernels, n.form, n.shape.down_format());
        let grain = if sums.len() < ALONE { width } else { COLUMNS };
        n.pool.split_mut(out, grain, |column, out| {
            for (column, out) in (column..).step_by(COLUMNS).zip(out.chunks_mut(COLUMNS)) {
                let mut shared = 0.0;
                out.fill(0.0);
                for sum in sums.chunks_exact(words) {
                    shared += sum[width + column / COLUMNS];
                    out.iter_mut().zip(&sum[column..]).for_each(|(out, sum)| *out += sum);
                }
                kernels.down().values(form, format, &[shared], out);
            }
        });
        self.clock.end(Stage::Down);
    }
}
