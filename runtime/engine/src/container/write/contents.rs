//! The parts of a container, as the writer takes them.

use std::io;

use plans::model::LevelKind;

use crate::container::{Checksums, Directory};
use crate::model::source::SourceModel;
use crate::model::tokenizer::TokenizerData;
use crate::predictor::Hidden;
use kernels::Format;

/// The parts of a container.
#[derive(Debug)]
pub struct Contents<'a> {
    /// The model's name.
    pub name: &'a str,
    /// The model file's fingerprint.
    pub source_fingerprint: &'a str,
    /// The model.
    pub source: &'a SourceModel<'a>,
    /// Tokenizer of the model.
    pub tokenizer: TokenizerData,
    /// Format of down rows that have blocks; rows without keep their format. `None`: slices have pieces of the source's down.
    pub down_format: Option<Format>,
    /// Neurons of a slice, which are read, inserted and evicted together; 1 for single neurons.
    pub slice_neurons: usize,
    /// Per layer, the source index `expert * ffn_width + neuron` of each rank: a permutation.
    pub orders: &'a [Vec<u32>],
    /// Predictor sets.
    pub sets: &'a [SetSource<'a>],
    /// Quality levels.
    pub levels: &'a [LevelSource],
}

/// The matrices of a predictor for one expert of one layer; neurons in order of rank.
#[derive(Debug, Clone)]
pub enum PredictorSource {
    /// Sign bits of the gate rows, `[neurons, words]`.
    Sign(Vec<u64>),
    /// `fc1: [rank, width]`, `fc2: [neurons, rank]`, row-major, in the set's format.
    LowRank {
        /// Hidden size.
        rank: usize,
        /// First matrix.
        fc1: Vec<u8>,
        /// Second matrix.
        fc2: Vec<u8>,
    },
}

/// A source of predictors, one at a time, because all predictors of a large model take too much memory.
pub trait PredictorSources: std::fmt::Debug {
    /// The predictor of an expert of a layer.
    ///
    /// # Errors
    /// When it cannot be read.
    fn predictor(&self, layer: usize, expert: usize) -> io::Result<PredictorSource>;
}

/// `[layer][expert]`.
impl PredictorSources for Vec<Vec<PredictorSource>> {
    fn predictor(&self, layer: usize, expert: usize) -> io::Result<PredictorSource> {
        Ok(self[layer][expert].clone())
    }
}

/// A predictor set to be stored.
#[derive(Debug, Clone, Copy)]
pub struct SetSource<'a> {
    /// Unique name.
    pub name: &'a str,
    /// Sign or low rank.
    pub kind: LevelKind,
    /// Storage of the low-rank matrices.
    pub format: Format,
    /// Between the low-rank matrices.
    pub hidden: Hidden,
    /// One for every expert of every layer.
    pub predictors: &'a dyn PredictorSources,
}

/// A quality level to be stored.
#[derive(Debug, Clone)]
pub struct LevelSource {
    /// Unique name.
    pub name: String,
    /// How the level selects neurons.
    pub kind: LevelKind,
    /// Index of the level's predictor set.
    pub set: Option<usize>,
    /// `[layer][expert][neuron]`. Low rank: thresholds of the logit. Gate threshold: of the activated gate's size. Sign: the largest number
    /// of differing bits.
    pub thresholds: Option<Vec<Vec<Vec<f32>>>>,
    /// Per layer: the number of first ranks that are always computed.
    pub always_on: Vec<u32>,
}

/// A finished container on disk.
#[derive(Debug, Clone)]
pub struct Written {
    /// The directory as written.
    pub directory: Directory,
    /// BLAKE3 of the directory, 32 hexadecimal digits.
    pub fingerprint: String,
    /// Bytes of the file.
    pub bytes: u64,
}

/// The layers that an unfinished container has, so that a restart does not write them again.
pub trait WrittenLayers {
    /// The checksums of a layer's bundles, if an earlier start wrote it.
    ///
    /// # Errors
    /// When they cannot be read.
    fn load(&self, layer: usize) -> io::Result<Option<Vec<Checksums>>>;

    /// Records a layer, written now or by an earlier start.
    ///
    /// # Errors
    /// When they cannot be kept.
    fn save(&mut self, layer: usize, checksums: &[Checksums]) -> io::Result<()>;

    /// Whether the source deletes a recorded layer, so that the written bytes must be read again first.
    fn gives_back(&self) -> bool {
        false
    }

    /// Whether the source no longer has this layer: it is in the unfinished container or nowhere.
    fn given_back(&self, _layer: usize) -> bool {
        false
    }
}

/// No record.
impl WrittenLayers for () {
    fn load(&self, _: usize) -> io::Result<Option<Vec<Checksums>>> {
        Ok(None)
    }

    fn save(&mut self, _: usize, _: &[Checksums]) -> io::Result<()> {
        Ok(())
    }
}
