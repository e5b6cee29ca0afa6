//! Adds neurons to a layer's output where slices hold pieces of down, as the model's file has them.
//!
//! ```text
//! for each slice, ascending:     out[row] += piece[row] . h        [width, slice] x [slice]      threads share rows
//! ```
//!
//! A piece is a matrix with a short row for each output value. Every product is of one slice, and a row's
//! products are added by ascending slice. Threads, cache and read order therefore change no bit. If the plan
//! rounds vectors to 8 bits, a slice's values are rounded too, 32 neighbours under one scale.

use std::ops::Range;

use super::{FeedForward, List, Network, Requests};
use crate::cache::Place;
use crate::neurons::LayerNeurons;
use crate::pool::ALONE;
use crate::stage::Stage;
use kernels::{Form, Input, Rounded};

/// Rows multiplied together before they are added.
const ROWS: usize = 128;

impl FeedForward {
    /// Adds the slices of `range` that a row requested to `out`, the row's output.
    pub(super) fn add_pieces(
        &mut self,
        n: &mut Network<'_>,
        layer: usize,
        neurons: &LayerNeurons,
        (row, rows): (usize, usize),
        range: Range<usize>,
        out: &mut [f32],
    ) {
        if range.is_empty() {
            return;
        }
        let (slice, shape) = (neurons.slice(), n.shape);
        let list = List { neurons, shape, requested: &self.requested, places: &self.places };
        let requests = Requests::of(&self.requests, rows);
        let own = || range.clone().filter(|&index| requests.by(index, row));
        let all = &self.values[row * neurons.count()..];
        let values = |index: usize| &all[index * slice..][..slice];
        let active = |index| values(index).iter().filter(|&&value| value != 0.0).count() as u64;
        self.activity.active += own().map(active).sum::<u64>();
        let words = (n.form == Form::Q8 && shape.down_format().has_blocks()).then(|| Rounded::words(slice));
        if let Some(words) = words {
            for (index, rounded) in own().zip(self.values_rounded.chunks_exact_mut(words)) {
                Rounded::new(values(index), rounded);
            }
        }

        // reads go on unless pieces are still in read buffers
        let kept = list.places[range.clone()].iter().all(|&place| place != Place::Missing);
        let fetcher = &mut *n.fetcher;
        let (mut fetcher, completed) =
            if kept { (Some(fetcher), None) } else { (None, Some(fetcher.completed())) };
        let (slots, kernels, rounded) = (n.slots.layer(layer), n.kernels, &self.values_rounded);
        let add = |start: usize, out: &mut [f32]| {
            let mut products = [0.0; ROWS];
            for (at, index) in own().enumerate() {
                let words = words.map(|words| &rounded[at * words..][..words]);
                let x = Input::made(values(index), words);
                let piece = list.piece(slots, completed, index);
                for (row, out) in (start..).step_by(ROWS).zip(out.chunks_mut(ROWS)) {
                    let products = &mut products[..out.len()];
                    x.rows(kernels, piece, row, products);
                    out.iter_mut().zip(products).for_each(|(out, product)| *out += *product);
                }
            }
        };
        // long runs of each piece, since processors prefetch; work that one thread finishes before another
        // wakes up stays on one
        let (width, threads) = (out.len(), n.pool.threads());
        let alone = width * range.len() * slice < ALONE;
        let grain = if alone { width } else { (width / (2 * threads)).max(ROWS) };
        n.pool.share_mut(out, grain, || fetcher.iter_mut().for_each(|fetcher| fetcher.poll()), add);
        self.clock.end(Stage::Down);
    }
}
