//! The buffers that are the larger the more rows pass a layer together, of both stages.
//!
//! ```text
//! cold region, decode    [layer 0: slots | layer 1: slots | ...                  ]     one row's buffers lie elsewhere
//!              prefill   [layer 0: slots | ...    | residual | normed | ... of a chunk ]     the layers beneath have no slots
//! ```
//!
//! A prompt is computed dense and leaves the cache as it is, so that it can do without slots. What its rows take is lent by
//! the end of the region as a prompt begins, and given back at the first token after it; the neurons that were there are
//! forgotten.

use plans::memory;

use crate::arena::{Align, Arena, ArenaError, LINE_BYTES, Slab};
use crate::feed_forward::NeuronRows;

/// The engine's buffers for some rows.
#[derive(Debug)]
pub(super) struct Rows {
    pub(super) residual: Slab<f32>,
    pub(super) normed: Slab<f32>,
    pub(super) block_output: Slab<f32>,
    pub(super) projections: Slab<f32>,
    pub(super) attended: Slab<f32>,
    /// Cosines and sines of the rows' positions.
    pub(super) rotations: Slab<f32>,
    pub(super) of_neurons: NeuronRows,
}

impl Rows {
    /// A region of their own.
    pub(super) fn take(arena: &mut Arena, sizes: &memory::Rows) -> Result<Self, ArenaError> {
        let lines = LINE_BYTES as u64 / 4;
        let words: u64 = sizes.elements().iter().map(|elements| elements.next_multiple_of(lines)).sum();
        Ok(Self::cut(arena.take(words as usize, Align::Line)?, sizes))
    }

    /// Cut from `words`, each on a cache line; what is left over is kept with the last.
    pub(super) fn cut(words: Slab<f32>, sizes: &memory::Rows) -> Self {
        let mut rest = words;
        let next = |elements: u64| {
            let after = rest.split_off((elements as usize).next_multiple_of(LINE_BYTES / 4));
            std::mem::replace(&mut rest, after)
        };
        let [
            residual,
            normed,
            block_output,
            projections,
            attended,
            rotations,
            router,
            values,
            sums,
            members,
            gathered,
        ] = sizes.elements().map(next);
        let gathered = gathered.join(rest);
        Self {
            residual,
            normed,
            block_output,
            projections,
            attended,
            rotations,
            of_neurons: NeuronRows { router, values, sums, members: members.cast(), gathered },
        }
    }

    /// The memory that the rows were cut from.
    pub(super) fn whole(self) -> Slab<f32> {
        let Self { residual, normed, block_output, projections, attended, rotations, of_neurons } = self;
        let NeuronRows { router, values, sums, members, gathered } = of_neurons;
        [
            normed,
            block_output,
            projections,
            attended,
            rotations,
            router,
            values,
            sums,
            members.cast(),
            gathered,
        ]
        .into_iter()
        .fold(residual, Slab::join)
    }
}
