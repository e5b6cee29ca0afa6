//! A loaded quality level: selects each layer's active neurons before their rows are read.

use plans::model::LevelKind;

use crate::arena::Slab;
use crate::container::{Container, ContainerError, LevelEntry};
use crate::flash::Files;
use crate::predictor::{Hidden, Predictor};
use crate::weights::Tensor;
use kernels::{Activation, Format, Kernels, Matrix};

/// A loaded quality level.
#[derive(Debug)]
pub(crate) struct Level {
    kind: LevelKind,
    experts: usize,
    ffn_width: usize,
    width: usize,
    /// Predictor matrices, or all gate rows by layer, expert and ascending rank.
    region: Slab<u8>,
    /// First byte of the thresholds in `region`.
    thresholds: usize,
    activation: Activation,
    /// With resident gates: each layer's format of gate rows, and their first byte in `region`.
    gates: Vec<(Format, usize)>,
    /// Low rank: `fc1` and `fc2` of `[layer * experts + expert]`.
    low_rank: Vec<(Tensor, Tensor)>,
    hidden: Hidden,
    /// Sign: first byte of the sign bits of `[layer * experts + expert]`.
    signs: Vec<usize>,
}

impl Level {
    /// Reads a level into `region` of [`Container::level_resident_bytes`] bytes. The caller copies gate rows
    /// while it streams the neurons; see [`Level::gate_row_mut`].
    ///
    /// # Errors
    /// If a section cannot be read or its hash does not match.
    pub(crate) fn load(
        container: &Container,
        kernels: &dyn Kernels,
        entry: &LevelEntry,
        files: &Files,
        region: Slab<u8>,
    ) -> Result<Self, ContainerError> {
        let d = &container.directory;
        let neurons = container.neurons();
        let gates = (0..d.config.layers()).scan(0, |end, layer| {
            let (format, start) = (d.stored(layer).gate_format, *end);
            *end += neurons * format.row_bytes(d.config.width);
            Some((format, start))
        });
        let mut level = Self {
            kind: entry.kind,
            experts: d.config.experts(),
            ffn_width: d.config.ffn_width(),
            width: d.config.width,
            thresholds: 0,
            activation: d.config.activation(),
            gates: gates.collect(),
            low_rank: Vec::new(),
            hidden: Hidden::default(),
            signs: Vec::new(),
            region,
        };
        if let (Some(set), Some(thresholds)) = (entry.set, &entry.thresholds) {
            let set = &d.sets[set];
            let (matrices, rest) = level.region.split_at_mut(set.section.bytes as usize);
            container.read_section(files, &set.section, "predictors", matrices)?;
            container.read_section(files, thresholds, "thresholds", rest)?;
            level.thresholds = matrices.len();
            level.hidden = set.hidden;
            for (offsets, ranks) in set.offsets.iter().zip(&set.ranks) {
                for (&offset, &rank) in offsets.iter().zip(ranks) {
                    let fc1 = Tensor {
                        format: set.format,
                        rows: rank,
                        columns: level.width,
                        offset: offset as usize,
                    };
                    match set.kind {
                        LevelKind::LowRank => {
                            let bytes = rank * set.format.row_bytes(level.width);
                            let offset = fc1.offset + bytes.next_multiple_of(crate::arena::LINE_BYTES);
                            let fc2 =
                                Tensor { format: set.format, rows: level.ffn_width, columns: rank, offset };
                            let stored =
                                |tensor: Tensor, region: &mut [u8]| tensor.stored_for(kernels, region);
                            level.low_rank.push((stored(fc1, matrices), stored(fc2, matrices)));
                        }
                        _ => level.signs.push(offset as usize),
                    }
                }
            }
        }
        if let (None, Some(thresholds)) = (entry.set, &entry.thresholds) {
            level.thresholds = level.region.len() - thresholds.bytes as usize;
            let (_, rest) = level.region.split_at_mut(level.thresholds);
            container.read_section(files, thresholds, "thresholds", rest)?;
        }
        Ok(level)
    }

    /// How the level selects neurons.
    pub(crate) fn kind(&self) -> LevelKind {
        self.kind
    }

    /// The predictor of an expert; `None` at a dense level.
    pub(crate) fn predictor(&self, layer: usize, expert: usize) -> Option<Predictor<'_>> {
        let index = layer * self.experts + expert;
        Some(match self.kind {
            LevelKind::Dense => return None,
            LevelKind::ExactGate => Predictor::ExactGate { gate: self.gate(layer, expert) },
            LevelKind::GateThreshold => Predictor::GateThreshold {
                gate: self.gate(layer, expert),
                activation: self.activation,
                thresholds: bytemuck::cast_slice(self.thresholds(index)),
            },
            LevelKind::Sign => {
                let words = self.width.div_ceil(64);
                let bytes = &self.region[self.signs[index]..][..self.ffn_width * words * 8];
                Predictor::Sign {
                    signs: bytemuck::cast_slice(bytes),
                    differences_max: bytemuck::cast_slice(self.thresholds(index)),
                }
            }
            LevelKind::LowRank => {
                let (fc1, fc2) = self.low_rank[index];
                Predictor::LowRank {
                    fc1: fc1.of(&self.region),
                    fc2: fc2.of(&self.region),
                    hidden: self.hidden,
                    thresholds: bytemuck::cast_slice(self.thresholds(index)),
                }
            }
        })
    }

    /// The resident gate rows of an expert, by ascending rank.
    ///
    /// # Panics
    /// If gates are not resident at this level.
    pub(crate) fn gate(&self, layer: usize, expert: usize) -> Matrix<'_> {
        assert!(self.kind.gates_resident(), "gate rows are resident");
        let (format, start) = self.gates[layer];
        let row = format.row_bytes(self.width);
        let start = start + expert * self.ffn_width * row;
        Matrix {
            format,
            rows: self.ffn_width,
            columns: self.width,
            bytes: &self.region[start..][..self.ffn_width * row],
        }
    }

    /// The bytes of the resident gate row of the `index`-th neuron of an expert.
    ///
    /// # Panics
    /// If gates are not resident at this level.
    pub(crate) fn gate_row_mut(&mut self, layer: usize, expert: usize, index: usize) -> &mut [u8] {
        assert!(self.kind.gates_resident(), "gate rows are resident");
        let (format, start) = self.gates[layer];
        let row = format.row_bytes(self.width);
        let start = start + (expert * self.ffn_width + index) * row;
        &mut self.region[start..][..row]
    }

    fn thresholds(&self, index: usize) -> &[u8] {
        &self.region[self.thresholds + index * self.ffn_width * 4..][..self.ffn_width * 4]
    }
}
