//! Keys and values of the tokens seen, in the plan's format and within its context.
//!
//! ```text
//! [layer][key, value][kv head][position][head_width]
//! ```
//!
//! A head's positions stand together, so that attention reads each once, in order.

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

    fn start(&self, layer: usize, half: Half, head: usize) -> usize {
        ((layer * 2 + half as usize) * self.kv_heads + head) * self.context * self.head_bytes
    }
}
