//! Buffers whose size grows with the number of rows, of both phases.
//!
//! ```text
//! cold region, decode    [layer 0: slots | layer 1: slots | ...                  ]     buffers of one row are elsewhere
//!              prefill   [layer 0: slots | ...    | residual | normed | ... of a chunk ]     overlapped layers lose their slots
//! ```
//!
//! A prompt is computed dense and changes no cold slot, so it can do without some. Its rows borrow the end of
//! the cold region when a prompt starts, and return it at the first token after. Neurons in borrowed slots
//! are dropped.

use plans::memory;

use crate::arena::{Align, Arena, ArenaError, LINE_BYTES, Slab};
use crate::feed_forward::NeuronRows;

/// The buffers of a block for some rows.
#[derive(Debug)]
pub(super) struct Buffers {
    pub(super) residual: Slab<f32>,
    pub(super) normed: Slab<f32>,
    pub(super) block_output: Slab<f32>,
    pub(super) projections: Slab<f32>,
    pub(super) attended: Slab<f32>,
    /// Cosines and sines of the rows' positions.
    pub(super) rotations: Slab<f32>,
    /// Embeddings, `[rows, width]`, then per-layer embeddings, `[rows, blocks, own width]`, or rows of n-grams; empty
    /// without them.
    pub(super) own_inputs: Slab<f32>,
    /// Residual streams, `[rows, streams, width]`; empty where there is one.
    pub(super) streams: Slab<f32>,
    /// Blocks of positions that attention has chosen and their scores, `[rows, 2, blocks]`; empty where it sees all.
    pub(super) chosen: Slab<f32>,
}

/// All buffers of the engine for some rows.
#[derive(Debug)]
pub(super) struct Rows {
    pub(super) buffers: Buffers,
    pub(super) of_neurons: NeuronRows,
}

/// Buffer space of a prompt's rows.
#[derive(Debug)]
pub(super) struct PromptRoom {
    /// Tokens of a chunk.
    pub(super) chunk: usize,
    /// Sizes of a chunk's buffers in the cold region.
    pub(super) sizes: memory::Rows,
    /// The decode buffers while a prompt's are in use.
    pub(super) of_decode: Option<Rows>,
}

impl Rows {
    /// Takes a region of their own from the arena.
    pub(super) fn take(arena: &mut Arena, sizes: &memory::Rows) -> Result<Self, ArenaError> {
        let lines = LINE_BYTES as u64 / 4;
        let words: u64 = sizes.elements().iter().map(|elements| elements.next_multiple_of(lines)).sum();
        Ok(Self::cut(arena.take(words as usize, Align::Line)?, sizes))
    }

    /// Cuts the buffers from `words`, each on a cache line; the last one keeps the rest.
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
            own_inputs,
            streams,
            chosen,
            router,
            values,
            sums,
            members,
            gathered,
        ] = sizes.elements().map(next);
        let gathered = gathered.join(rest);
        Self {
            buffers: Buffers {
                residual,
                normed,
                block_output,
                projections,
                attended,
                rotations,
                own_inputs,
                streams,
                chosen,
            },
            of_neurons: NeuronRows { router, values, sums, members: members.cast(), gathered },
        }
    }

    /// The memory that the buffers were cut from.
    pub(super) fn whole(self) -> Slab<f32> {
        let Self { buffers, of_neurons } = self;
        let Buffers {
            residual,
            normed,
            block_output,
            projections,
            attended,
            rotations,
            own_inputs,
            streams,
            chosen,
        } = buffers;
        let NeuronRows { router, values, sums, members, gathered } = of_neurons;
        [
            normed,
            block_output,
            projections,
            attended,
            rotations,
            own_inputs,
            streams,
            chosen,
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
