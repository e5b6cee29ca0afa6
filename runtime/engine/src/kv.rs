//! Keys and values of the tokens seen, in the plan's format and within its context.
//!
//! ```text
//! [layer][key, value][kv head][position][head_width]
//! ```
//!
//! A head's positions stand together, so that attention reads each once, in order.

use std::ops::Range;

use crate::arena::Slab;
use kernels::Format;
use kernels::{Matrix, quantise};

/// The keys and values of one sequence.
#[derive(Debug)]
pub struct KeyValues {
    region: Slab<u8>,
    format: Format,
    kv_heads: usize,
    head_bytes: usize,
    head_width: usize,
    context: usize,
}

/// Keys or values.
#[derive(Debug, Clone, Copy)]
pub enum Half {
    /// Keys.
    Key = 0,
    /// Values.
    Value = 1,
}

impl KeyValues {
    /// Room for `context` positions in `region`, whose size follows from the other arguments and the layers.
    pub fn new(region: Slab<u8>, format: Format, kv_heads: usize, head_width: usize, context: usize) -> Self {
        Self { region, format, kv_heads, head_bytes: format.row_bytes(head_width), head_width, context }
    }

    /// Positions there is room for.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Bytes of the keys and values of so many positions in one layer.
    pub fn bytes(&self, positions: usize) -> u64 {
        (2 * self.kv_heads * positions * self.head_bytes) as u64
    }

    /// Stores one position: `values` is `[kv_heads, head_width]`.
    pub fn store(&mut self, layer: usize, half: Half, position: usize, values: &[f32]) {
        assert!(position < self.context, "position {position} of {}", self.context);
        for (head, values) in values.chunks(self.head_width).enumerate() {
            let start = self.start(layer, half, head) + position * self.head_bytes;
            quantise(self.format, values, &mut self.region[start..][..self.head_bytes]);
        }
    }

    /// The first `positions` rows of one head.
    pub fn head(&self, layer: usize, half: Half, head: usize, positions: usize) -> Matrix<'_> {
        assert!(positions <= self.context, "{positions} positions of {}", self.context);
        let bytes = &self.region[self.start(layer, half, head)..][..positions * self.head_bytes];
        Matrix { format: self.format, rows: positions, columns: self.head_width, bytes }
    }

    /// Bytes from `at` on of the keys and values of `positions`, in the region's order without the positions beside them:
    /// `[layer][key, value][kv head][positions][head_width]`.
    pub fn copy_out(&self, positions: Range<usize>, at: usize, out: &mut [u8]) {
        for (run, place) in self.runs(positions, at, out.len()) {
            out[place].copy_from_slice(&self.region[run]);
        }
    }

    /// Puts back what [`KeyValues::copy_out`] gave.
    pub fn copy_in(&mut self, positions: Range<usize>, at: usize, bytes: &[u8]) {
        for (run, place) in self.runs(positions, at, bytes.len()) {
            self.region[run].copy_from_slice(&bytes[place]);
        }
    }

    /// Where `bytes` bytes from `at` on of these positions lie in the region, run after run, and where in what is copied.
    fn runs(
        &self,
        positions: Range<usize>,
        at: usize,
        bytes: usize,
    ) -> impl Iterator<Item = (Range<usize>, Range<usize>)> + use<> {
        let (head, first) = (self.context * self.head_bytes, positions.start * self.head_bytes);
        let run = positions.len() * self.head_bytes;
        let mut done = 0;
        std::iter::from_fn(move || {
            let (heads, within) = ((at + done) / run, (at + done) % run);
            let count = (run - within).min(bytes - done);
            let (start, place) = (heads * head + first + within, done);
            done += count;
            (count > 0).then_some((start..start + count, place..done))
        })
    }

    fn start(&self, layer: usize, half: Half, head: usize) -> usize {
        ((layer * 2 + half as usize) * self.kv_heads + head) * self.context * self.head_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::{Align, Arena};

    const LAYERS: usize = 2;
    const HEADS: usize = 3;
    const WIDTH: usize = 4;
    const CONTEXT: usize = 7;

    /// Keys and values of a full context, each number another; or nothing but zeros.
    fn filled(factor: usize) -> KeyValues {
        let mut arena = Arena::new(1 << 16).unwrap();
        let region = arena.take(LAYERS * 2 * HEADS * CONTEXT * WIDTH * 2, Align::Page).unwrap();
        let mut kv = KeyValues::new(region, Format::F16, HEADS, WIDTH, CONTEXT);
        for (layer, half, position) in halves() {
            let first = 1 + 100 * position + 30 * layer + 15 * half as usize;
            let values: Vec<f32> =
                (first..).take(HEADS * WIDTH).map(|value| (factor * value) as f32).collect();
            kv.store(layer, half, position, &values);
        }
        kv
    }

    fn halves() -> impl Iterator<Item = (usize, Half, usize)> {
        let of_layer = |layer| [Half::Key, Half::Value].map(|half| (layer, half));
        let all = (0..LAYERS).flat_map(of_layer);
        all.flat_map(|(layer, half)| (0..CONTEXT).map(move |position| (layer, half, position)))
    }

    #[test]
    fn positions_are_copied_head_by_head_in_pieces_of_any_size() {
        let (from, positions) = (filled(1), 2..5);
        let row = |kv: &KeyValues, layer, half, head, at| {
            kv.head(layer, half, head, CONTEXT).row(at).bytes.to_vec()
        };
        let mut expected = Vec::new();
        for (layer, half) in halves().filter(|(.., at)| *at == 0).map(|(layer, half, _)| (layer, half)) {
            for head in 0..HEADS {
                expected.extend(positions.clone().flat_map(|at| row(&from, layer, half, head, at)));
            }
        }
        for piece in [1, 5, 24, 100, expected.len()] {
            let (mut copied, mut to) = (vec![0; expected.len()], filled(0));
            for (at, out) in (0..).step_by(piece).zip(copied.chunks_mut(piece)) {
                from.copy_out(positions.clone(), at, out);
                to.copy_in(positions.clone(), at, out);
            }
            assert_eq!(copied, expected, "{piece}");
            let nothing = filled(0);
            for (layer, half, at) in halves() {
                let source = if positions.contains(&at) { &from } else { &nothing };
                for head in 0..HEADS {
                    assert_eq!(
                        row(&to, layer, half, head, at),
                        row(source, layer, half, head, at),
                        "{piece} {at}"
                    );
                }
            }
        }
    }
}
