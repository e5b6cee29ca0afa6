//! The flash container `<model>.bundle`: all that `run` needs besides a plan.
//!
//! It is independent of device and instruction set. [`write`](fn@write) makes it from a source model,
//! [`Container::open`] opens it. Sizes are checked before they are used, and every part has a checksum.
//!
//! ```text
//! byte 0                8         12            16           24          32      40       72     80
//! +---------------------+---------+-------------+------------+-----------+-------+--------+------+-----------+
//! | magic "flashpln"    | version | byte order  | directory  | directory | file  | BLAKE3 | XXH3 | zeros to  |
//! |                     | u32     | 0x01020304  | offset u64 | bytes u64 | bytes | of dir | 0-71 | byte 4096 |
//! +---------------------+---------+-------------+------------+-----------+-------+--------+------+-----------+
//! page 1  fixed part      tensors in load order, each on 64 bytes: one sequential read
//!         per-layer rows  of per-layer embeddings, one for each token, or of n-grams; then checksums u32[rows]
//!         predictor sets  one section each: matrices of every layer and expert
//!         thresholds      one section for each level that has them
//!         neuron tables   per layer: source index of each rank u32[neurons], checksums of each bundle u32[neurons][2]
//!         layers          by rank: bundles [gate | up | down^T], without gates [up | down^T], or slices with pieces
//!                         of down; see plans::layout
//!         directory       JSON: shapes, tokenizer, offsets, BLAKE3 of every section except the bundles
//! ```
//!
//! Every section starts on a page. All numbers are little-endian. A neuron's *rank* is its place in its
//! layer's order, hot neurons first. Its *source index* is `expert * ffn_width + neuron`.
//!
//! An *index* is a container without weights; it names their places in the model's own files (`index.rs`).
//!
//! A bundle has two checksums, low halves of XXH3: one over its gate row, one over its up and down rows. Both
//! are seeded with layer and rank, so a bundle read from the wrong place fails. Two checksums let a reader
//! verify the gate alone, or up and down alone. Where slices hold pieces of down, one is over gate and up,
//! the other over the neuron's share of the piece.

mod check;
mod index;
mod read;
mod write;

use plans::layout::BundleLayout;
use plans::model::{Architecture, Heads, LevelKind, PerLayer};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::model::config::{Attention, Config};
use crate::model::tokenizer::TokenizerData;
use crate::predictor::Hidden;
use kernels::Format;

pub use index::{Part, PartSum, SliceSums, Source, SourceFile, parts_in_files};
pub(crate) use index::{SLICE_WORDS, part_checksum};
pub use read::{Container, ContainerError};
pub use write::{
    Contents, LevelSource, OUTPUT, PredictorSource, PredictorSources, SetSource, Written, WrittenLayers,
    describe_index, down_formats, has_down_rows, requantised_down, stored_down_format, write, write_index,
};

/// The first eight bytes.
pub const MAGIC: [u8; 8] = *b"flashpln";
/// The version of the format.
pub const VERSION: u32 = 3;
/// Reads as another number on a machine of the other byte order.
const BYTE_ORDER: u32 = 0x0102_0304;
/// Bytes of the header that its checksum covers.
const HEADER_CHECKED: usize = 72;
/// Tensors start on cache lines.
pub(crate) const TENSOR_ALIGN: u64 = 64;

/// The container's table of contents.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Directory {
    /// The model's name.
    pub name: String,
    /// BLAKE3 of the source file.
    pub source_fingerprint: String,
    /// The model's description.
    pub config: Config,
    /// Text to tokens and back.
    pub tokenizer: TokenizerData,
    /// Storage of the gate rows, in the first layer.
    pub gate_format: Format,
    /// Storage of the up rows, likewise.
    pub up_format: Format,
    /// Storage of the transposed down rows, likewise.
    pub down_format: Format,
    /// A bundle's shape, likewise.
    pub bundle: BundleLayout,
    /// Whether down is transposed, one row a neuron; true if absent. Otherwise slices hold pieces of down as
    /// the source has them.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub down_transposed: bool,
    /// Storage of each layer's neurons, where layers differ; if absent, all are as the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<Stored>,
    /// The fixed part.
    pub fixed: Section,
    /// Tensors of the fixed part; offsets count from its start.
    pub tensors: Vec<TensorEntry>,
    /// The per-layer embedding, or the table of n-grams; absent if the model has neither.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_layer_rows: Option<RowsEntry>,
    /// Predictor sets.
    pub sets: Vec<SetEntry>,
    /// Quality levels.
    pub levels: Vec<LevelEntry>,
    /// Neuron tables.
    pub tables: Section,
    /// First byte of each layer's bundles; none in an index.
    pub layer_offsets: Vec<u64>,
    /// Places in the model's own files, in an index; absent in a container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
}

/// The value of `down_transposed` if absent.
fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_yes(so: &bool) -> bool {
    *so
}

/// Storage of a layer's neurons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stored {
    /// Format of the gate rows; without gates, of the up rows.
    pub gate_format: Format,
    /// Format of the up rows.
    pub up_format: Format,
    /// Format of down.
    pub down_format: Format,
    /// A bundle's shape.
    pub bundle: BundleLayout,
}

impl Stored {
    /// Storage of a model's neurons in slices, with down rows or pieces of down; `None` where these are not
    /// whole blocks.
    fn new(
        [gate, up, down]: [Format; 3],
        config: &Config,
        slice_neurons: usize,
        transposed: bool,
    ) -> Option<Self> {
        let (width, gated) = (config.width, config.activation().is_gated());
        let down_columns = if transposed { width } else { slice_neurons };
        let whole = |format: Format, columns: usize| columns.is_multiple_of(format.block_values());
        let slices = slice_neurons > usize::from(!transposed);
        if !whole(gate, width) || !whole(up, width) || !whole(down, down_columns) || !slices {
            return None;
        }
        let down_bytes = if transposed {
            down.row_bytes(width)
        } else {
            (width * down.row_bytes(slice_neurons)).div_ceil(slice_neurons)
        };
        let [gate_bytes, up_bytes, down_bytes] =
            [gate.row_bytes(width), if gated { up.row_bytes(width) } else { 0 }, down_bytes]
                .map(|bytes| bytes as u64);
        let bundle = BundleLayout::in_slices(gate_bytes, up_bytes, down_bytes, slice_neurons as u64);
        Some(Self { gate_format: gate, up_format: up, down_format: down, bundle })
    }

    /// The formats and layout of the model's own file.
    fn apart(self) -> Self {
        Self { bundle: self.bundle.apart(), ..self }
    }
}

impl Directory {
    /// Storage of a layer's neurons.
    pub fn stored(&self, layer: usize) -> Stored {
        let Self { gate_format, up_format, down_format, bundle, .. } = *self;
        self.layers.get(layer).copied().unwrap_or(Stored { gate_format, up_format, down_format, bundle })
    }

    /// The bundles' shape; the mean shape where layers differ.
    pub fn mean_bundle(&self) -> BundleLayout {
        let own: Vec<BundleLayout> = self.layers.iter().map(|layer| layer.bundle).collect();
        BundleLayout::mean(&own).unwrap_or(self.bundle)
    }

    /// The format of most layers; the first in a tie.
    fn most(&self, of: fn(&Stored) -> Format) -> Format {
        let all: Vec<Format> = (0..self.config.layers()).map(|layer| of(&self.stored(layer))).collect();
        let count = |format: &Format| all.iter().filter(|other| *other == format).count();
        all.iter().rev().copied().max_by_key(count).unwrap_or(self.gate_format)
    }

    /// The shapes, as in `model.toml`.
    pub fn architecture(&self) -> Architecture {
        let c = &self.config;
        let mut other_heads = head_shapes(c.storing());
        let indexers = c.indexers().map(|(_, indexer)| Attention::plain(indexer.heads, 1, indexer.width));
        other_heads.extend(head_shapes(indexers.collect::<Vec<_>>().iter()));
        // a model without attention is refused elsewhere
        let heads = if other_heads.is_empty() { Heads::default() } else { other_heads.remove(0) };
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Architecture {
            family: c.architecture.clone(),
            activation: c.activation().name().to_owned(),
            layers: count(c.layers()),
            width: count(c.width),
            neurons_per_expert: count(c.ffn_width()),
            experts: count(c.experts()),
            experts_used: count(c.experts_used()),
            heads: heads.heads,
            kv_heads: heads.kv_heads,
            head_width: heads.head_width,
            gated_attention: c.attentions().any(|attention| attention.gate),
            kv_layers: Some(count(c.kept_heads().count())).filter(|&layers| layers as usize != c.layers()),
            shared_neurons: count(c.resident_neurons()),
            rotary_embeddings: count(c.ropes.len().max(1)),
            vocabulary: count(c.vocabulary),
            context: count(c.context),
            weight_format: self.most(|stored| stored.gate_format).to_string(),
            down_format: self.most(|stored| stored.down_format).to_string(),
            down_transposed: self.down_transposed,
            other_heads,
            sharing_heads: head_shapes(c.attentions().filter(|attention| attention.shares.is_some())),
            per_layer: self.per_layer_rows.as_ref().map(|rows| {
                let (_, columns, reads) = c.row_table().unwrap_or_default();
                PerLayer {
                    width: count(c.per_layer_width.unwrap_or(columns)),
                    row_values: count(columns.saturating_mul(reads)),
                    row_bytes: rows.table.format.row_bytes(rows.table.columns) as u64,
                    rows: Some(rows.table.rows as u64).filter(|&rows| rows != c.vocabulary as u64),
                    reads: count(reads),
                }
            }),
            streams: c.stream_sizes(),
            chosen_blocks: count(c.indexers().map(|(_, indexer)| indexer.blocks).max().unwrap_or(0)),
            recurrent: c.recurrent(),
            latent: c.latent(),
        }
    }
}

/// The head shapes of these layers in order of their first layer, each with its number of layers.
fn head_shapes<'a>(attentions: impl Iterator<Item = &'a Attention>) -> Vec<Heads> {
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let mut shapes: Vec<Heads> = Vec::new();
    for a in attentions {
        let [heads, kv_heads, head_width] = [a.heads, a.kv_heads, a.head_width].map(count);
        let own = |other: &&mut Heads| {
            (other.heads, other.kv_heads, other.head_width) == (heads, kv_heads, head_width)
        };
        match shapes.iter_mut().find(own) {
            Some(shape) => shape.layers += 1,
            None => shapes.push(Heads { layers: 1, heads, kv_heads, head_width }),
        }
    }
    shapes
}

/// A part of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Section {
    /// First byte, on a page.
    pub offset: u64,
    /// Length, whole pages.
    pub bytes: u64,
    /// BLAKE3 of the section's bytes, hexadecimal.
    pub hash: String,
}

/// A table of rows that stay in the file until they are used, with a checksum for each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowsEntry {
    /// The table; its offset counts from the start of the file, or for an index over the model's own files.
    pub table: TensorEntry,
    /// Low halves of XXH3 of each row, `u32[rows]`.
    pub checksums: Section,
}

/// A matrix (or a vector, of one row) inside a section.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorEntry {
    /// The GGUF name, e.g. `blk.0.attn_q.weight`.
    pub name: String,
    /// Storage format.
    pub format: Format,
    /// Rows.
    pub rows: usize,
    /// Values of a row.
    pub columns: usize,
    /// First byte, from the section's start.
    pub offset: u64,
}

impl TensorEntry {
    /// Bytes of all rows; `None` on overflow or if a row is not whole blocks.
    pub fn bytes(&self) -> Option<u64> {
        if !self.columns.is_multiple_of(self.format.block_values()) {
            return None;
        }
        let row = (self.columns / self.format.block_values()).checked_mul(self.format.block_bytes())?;
        u64::try_from(self.rows.checked_mul(row)?).ok()
    }
}

/// The matrices of a predictor, all layers and experts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetEntry {
    /// Unique name.
    pub name: String,
    /// [`LevelKind::Sign`] or [`LevelKind::LowRank`].
    pub kind: LevelKind,
    /// The section of the matrices.
    pub section: Section,
    /// Sign: the words of the sign bits, offset only. Low rank: the hidden layer's size. `[layer][expert]`.
    pub ranks: Vec<Vec<usize>>,
    /// Storage of `fc1` and `fc2`; without meaning for signs.
    pub format: Format,
    /// The function of the hidden layer; `ReLU` if absent.
    #[serde(default)]
    pub hidden: Hidden,
    /// First byte of each expert's matrices, from the section's start: `fc1`, then `fc2` on the next cache line, or the
    /// sign bits. `[layer][expert]`.
    pub offsets: Vec<Vec<u64>>,
}

/// A quality level.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LevelEntry {
    /// Unique name.
    pub name: String,
    /// How the level selects neurons.
    pub kind: LevelKind,
    /// Index of the level's predictor set.
    pub set: Option<usize>,
    /// Per layer and neuron in order of expert, then rank within the expert: `f32` thresholds or `i32` differences.
    pub thresholds: Option<Section>,
    /// By layer: this many first ranks are always computed.
    pub always_on: Vec<u32>,
}

/// Checksum of a gate row.
pub fn gate_checksum(layer: usize, rank: usize, gate: &[u8]) -> u32 {
    xxh3_64_with_seed(gate, seed(layer, rank)) as u32
}

/// Checksum of an up row and the down row that follows it.
pub fn up_down_checksum(layer: usize, rank: usize, up_down: &[u8]) -> u32 {
    xxh3_64_with_seed(up_down, !seed(layer, rank)) as u32
}

/// Checksums of a bundle: of its gate row, and of its up and down rows.
pub type Checksums = [u32; 2];
/// Words of `u32` per neuron in the tables: its source index and its checksums.
pub(crate) const TABLE_WORDS: usize = 1 + size_of::<Checksums>() / size_of::<u32>();

/// Checksums of the neurons of a slice with a piece of down: each neuron's inputs, and its share of the
/// piece.
fn slice_checksums(layer: usize, first: usize, slice: &[u8], bundle: &BundleLayout) -> Vec<Checksums> {
    let (inputs, down) = ((bundle.gate_bytes + bundle.up_bytes) as usize, bundle.down_bytes as usize);
    let (all_inputs, piece) = slice.split_at(bundle.slice_neurons as usize * inputs);
    (first..)
        .zip(all_inputs.chunks_exact(inputs).zip(piece.chunks_exact(down)))
        .map(|(rank, (inputs, share))| {
            [gate_checksum(layer, rank, inputs), up_down_checksum(layer, rank, share)]
        })
        .collect()
}

/// Checksums of a whole bundle.
pub fn bundle_checksums(layer: usize, rank: usize, bundle: &[u8], gate_bytes: usize) -> Checksums {
    let (gate, up_down) = bundle.split_at(gate_bytes);
    [gate_checksum(layer, rank, gate), up_down_checksum(layer, rank, up_down)]
}

fn seed(layer: usize, rank: usize) -> u64 {
    (layer as u64) << 32 | rank as u64
}
