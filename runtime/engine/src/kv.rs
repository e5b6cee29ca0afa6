//! Keys and values of the tokens seen, in the plan's format, for the plan's context.
//!
//! ```text
//! [sequence][layer][key, value][kv head][position][head_width]
//! ```
//!
//! Where keys are also the values, they are stored once: `[key]` instead of both halves. Layers may have
//! heads of different shapes.
//!
//! A head's positions are contiguous, so attention reads each once, in order. In block formats a row is
//! rounded once, when stored. Attention reads only stored rows, even of a prompt's own chunk, so that no plan
//! changes a bit.

use std::ops::Range;

use plans::KvFormat;

use crate::arena::Slab;
use kernels::Format;
use kernels::{Matrix, quantise};

/// The kernels' format for a plan's format.
pub fn stored_in(format: KvFormat) -> Format {
    match format {
        KvFormat::F16 => Format::F16,
        KvFormat::F32 => Format::F32,
        KvFormat::Q8_0 => Format::Q8_0,
        KvFormat::Q4_0 => Format::Q4_0,
    }
}

/// The keys and values of all sequences.
#[derive(Debug)]
pub struct KeyValues {
    region: Slab<u8>,
    format: Format,
    layers: Box<[Layer]>,
    /// 2; or 1 where keys are also the values.
    halves: usize,
    /// Bytes of one position of a sequence, in all layers.
    position_bytes: usize,
    context: usize,
}

/// A layer's heads.
#[derive(Debug, Clone, Copy)]
struct Layer {
    kv_heads: usize,
    head_width: usize,
    head_bytes: usize,
    /// Bytes of one position of a sequence in earlier layers.
    before: usize,
}

impl Layer {
    /// Bytes of one position's keys, or values, over all heads.
    fn half_bytes(&self) -> usize {
        self.kv_heads * self.head_bytes
    }
}

/// A token's sequence and position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At {
    /// The sequence.
    pub sequence: usize,
    /// Tokens of the sequence before it.
    pub position: usize,
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
    /// Keys and values of `context` positions of each sequence, in `region`. `heads` has each layer's number
    /// of heads and their width. `region` must be as large as these and the number of sequences require.
    pub fn new(
        region: Slab<u8>,
        format: Format,
        heads: impl IntoIterator<Item = (usize, usize)>,
        context: usize,
    ) -> Self {
        let mut position_bytes = 0;
        let layer = |(kv_heads, head_width)| {
            let head_bytes = format.row_bytes(head_width);
            let layer = Layer { kv_heads, head_width, head_bytes, before: position_bytes };
            position_bytes += 2 * layer.half_bytes();
            layer
        };
        let layers = heads.into_iter().map(layer).collect();
        Self { region, format, layers, halves: 2, position_bytes, context }
    }

    /// Stores keys only, which are also the values: half of the region.
    #[must_use]
    pub fn of_keys(mut self) -> Self {
        self.layers.iter_mut().for_each(|layer| layer.before /= 2);
        Self { halves: 1, position_bytes: self.position_bytes / 2, ..self }
    }

    /// Positions of each sequence.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Bytes of the keys and values of `positions` positions in a layer.
    pub fn bytes(&self, layer: usize, positions: usize) -> u64 {
        (positions * self.halves * self.layers[layer].half_bytes()) as u64
    }

    /// Bytes of the keys and values of one position in all layers.
    pub fn bytes_per_token(&self) -> u64 {
        self.position_bytes as u64
    }

    /// Stores keys or values of one position of a sequence: `values` is `[kv_heads, head_width]`.
    pub fn store(&mut self, sequence: usize, layer: usize, half: Half, position: usize, values: &[f32]) {
        assert!(position < self.context, "position {position} of {}", self.context);
        let Layer { head_width, head_bytes, .. } = self.layers[layer];
        for (head, values) in values.chunks(head_width).enumerate() {
            let start = self.start(sequence, layer, half, head) + position * head_bytes;
            quantise(self.format, values, &mut self.region[start..][..head_bytes]);
        }
    }

    /// The first `positions` rows of one head of a sequence.
    pub fn head(
        &self,
        sequence: usize,
        layer: usize,
        half: Half,
        head: usize,
        positions: usize,
    ) -> Matrix<'_> {
        assert!(positions <= self.context, "{positions} positions of {}", self.context);
        let Layer { head_width, head_bytes, .. } = self.layers[layer];
        let bytes = &self.region[self.start(sequence, layer, half, head)..][..positions * head_bytes];
        Matrix { format: self.format, rows: positions, columns: head_width, bytes }
    }

    /// Copies bytes from offset `at` of the keys and values of `positions`, in the region's order without
    /// other positions: `[layer][key, value][kv head][positions][head_width]`.
    pub fn copy_out(&self, sequence: usize, positions: Range<usize>, at: usize, out: &mut [u8]) {
        for (run, place) in self.runs(sequence, positions, at, out.len()) {
            out[place].copy_from_slice(&self.region[run]);
        }
    }

    /// Restores bytes that [`KeyValues::copy_out`] copied.
    pub fn copy_in(&mut self, sequence: usize, positions: Range<usize>, at: usize, bytes: &[u8]) {
        for (run, place) in self.runs(sequence, positions, at, bytes.len()) {
            self.region[run].copy_from_slice(&bytes[place]);
        }
    }

    /// Copies the first `positions` of one sequence to another.
    pub fn share(&mut self, from: usize, to: usize, positions: usize) {
        assert!(positions <= self.context, "{positions} positions of {}", self.context);
        for layer in 0..self.layers.len() {
            let Layer { kv_heads, head_bytes, .. } = self.layers[layer];
            for head in 0..self.halves * kv_heads {
                // values follow the keys
                let [from, to] = [from, to].map(|sequence| self.start(sequence, layer, Half::Key, head));
                self.region.copy_within(from..from + positions * head_bytes, to);
            }
        }
    }

    /// The runs of the region with `bytes` bytes from offset `at` of these positions, and each run's place in
    /// the copy.
    fn runs(
        &self,
        sequence: usize,
        positions: Range<usize>,
        at: usize,
        bytes: usize,
    ) -> impl Iterator<Item = (Range<usize>, Range<usize>)> + use<> {
        let (layers, context, tokens) = (self.layers.clone(), self.context, positions.len());
        let first = sequence * context * self.position_bytes;
        let mut done = 0;
        std::iter::from_fn(move || {
            let at = at + done;
            let layer = layers.partition_point(|layer| layer.before * tokens <= at).checked_sub(1)?;
            let Layer { head_bytes, before, .. } = layers[layer];
            let (run, in_layer) = (tokens * head_bytes, at - before * tokens);
            let (head, within) = (in_layer / run, in_layer % run);
            let count = (run - within).min(bytes - done);
            let start =
                first + (before + head * head_bytes) * context + positions.start * head_bytes + within;
            let place = done;
            done += count;
            (count > 0).then_some((start..start + count, place..done))
        })
    }

    /// The index of a half in a layer; values that are keys share the keys' place.
    fn place(&self, half: Half) -> usize {
        (half as usize).min(self.halves - 1)
    }

    fn start(&self, sequence: usize, layer: usize, half: Half, head: usize) -> usize {
        let Layer { kv_heads, head_bytes, before, .. } = self.layers[layer];
        let head = self.place(half) * kv_heads + head;
        (sequence * self.position_bytes + before + head * head_bytes) * self.context
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::{Align, Arena};

    const SEQUENCES: usize = 2;
    const LAYERS: usize = 3;
    /// Heads of each layer, and their width.
    const HEADS: [(usize, usize); LAYERS] = [(3, 32), (1, 96), (3, 32)];
    const FORMATS: [Format; 3] = [Format::F16, Format::Q8_0, Format::Q4_0];
    const CONTEXT: usize = 7;

    /// Keys and values of a full context, all different; or zeros.
    fn filled(format: Format, factor: usize) -> KeyValues {
        let mut arena = Arena::new(1 << 16).unwrap();
        let of_layer = |(heads, width): (usize, usize)| 2 * heads * CONTEXT * format.row_bytes(width);
        let bytes = SEQUENCES * HEADS.map(of_layer).iter().sum::<usize>();
        let region = arena.take(bytes, Align::Page).unwrap();
        let mut kv = KeyValues::new(region, format, HEADS, CONTEXT);
        for (sequence, (layer, half, position)) in
            (0..SEQUENCES).flat_map(|at| halves().map(move |half| (at, half)))
        {
            let first = 1 + 100 * position + 30 * layer + 15 * half as usize + 1000 * sequence;
            let (heads, width) = HEADS[layer];
            let values: Vec<f32> =
                (first..).take(heads * width).map(|value| (factor * value) as f32).collect();
            kv.store(sequence, layer, half, position, &values);
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
        FORMATS.into_iter().for_each(copied);
    }

    fn copied(format: Format) {
        let (from, positions) = (filled(format, 1), 2..5);
        let row = |kv: &KeyValues, sequence, layer, half, head, at| {
            kv.head(sequence, layer, half, head, CONTEXT).row(at).bytes.to_vec()
        };
        let mut expected = Vec::new();
        for (layer, half) in halves().filter(|(.., at)| *at == 0).map(|(layer, half, _)| (layer, half)) {
            for head in 0..HEADS[layer].0 {
                expected.extend(positions.clone().flat_map(|at| row(&from, 1, layer, half, head, at)));
            }
        }
        for piece in [1, 5, 24, 100, expected.len()] {
            let (mut copied, mut to) = (vec![0; expected.len()], filled(format, 0));
            for (at, out) in (0..).step_by(piece).zip(copied.chunks_mut(piece)) {
                from.copy_out(1, positions.clone(), at, out);
                to.copy_in(1, positions.clone(), at, out);
            }
            assert_eq!(copied, expected, "{piece}");
            let nothing = filled(format, 0);
            for (layer, half, at) in halves() {
                let source = if positions.contains(&at) { &from } else { &nothing };
                for head in 0..HEADS[layer].0 {
                    assert_eq!(
                        row(&to, 1, layer, half, head, at),
                        row(source, 1, layer, half, head, at),
                        "{piece} {at}"
                    );
                    assert_eq!(
                        row(&to, 0, layer, half, head, at),
                        row(&nothing, 0, layer, half, head, at),
                        "{piece} {at}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_key_that_is_the_value_is_kept_once() {
        let both = filled(Format::F16, 1);
        let mut arena = Arena::new(1 << 16).unwrap();
        let of_layer = |(heads, width): (usize, usize)| heads * CONTEXT * Format::F16.row_bytes(width);
        let bytes = SEQUENCES * HEADS.map(of_layer).iter().sum::<usize>();
        let region = arena.take(bytes, Align::Page).unwrap();
        let mut kv = KeyValues::new(region, Format::F16, HEADS, CONTEXT).of_keys();
        let row = |kv: &KeyValues, sequence, layer, half, head, at| {
            kv.head(sequence, layer, half, head, CONTEXT).row(at).bytes.to_vec()
        };
        let keys = || halves().filter(|(_, half, _)| matches!(half, Half::Key));
        for (sequence, (layer, half, at)) in (0..SEQUENCES).flat_map(|s| keys().map(move |half| (s, half))) {
            let first = 1 + 100 * at + 30 * layer + 1000 * sequence;
            let (heads, width) = HEADS[layer];
            let values: Vec<f32> = (first..).take(heads * width).map(|value| value as f32).collect();
            kv.store(sequence, layer, half, at, &values);
        }
        kv.share(1, 0, 4);
        for (layer, half, at) in keys() {
            for head in 0..HEADS[layer].0 {
                for (sequence, of) in [(0, usize::from(at < 4)), (1, 1)] {
                    let expected = row(&both, of, layer, half, head, at);
                    assert_eq!(row(&kv, sequence, layer, Half::Key, head, at), expected);
                    assert_eq!(row(&kv, sequence, layer, Half::Value, head, at), expected);
                }
            }
        }
        assert_eq!(2 * kv.bytes(1, 3), both.bytes(1, 3));
        assert_eq!(2 * kv.bytes_per_token(), both.bytes_per_token());
    }

    #[test]
    fn a_beginning_is_shared_and_the_rest_stays() {
        for format in FORMATS {
            let (mut kv, before) = (filled(format, 1), filled(format, 1));
            kv.share(1, 0, 4);
            for (layer, half, at) in halves() {
                for head in 0..HEADS[layer].0 {
                    let row = |kv: &KeyValues, sequence| {
                        kv.head(sequence, layer, half, head, CONTEXT).row(at).bytes.to_vec()
                    };
                    assert_eq!(row(&kv, 0), row(&before, usize::from(at < 4)));
                    assert_eq!(row(&kv, 1), row(&before, 1));
                }
            }
        }
    }
}
