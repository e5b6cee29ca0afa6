//! The fixed region, always in memory: tensors by role.
//!
//! ```text
//! fixed region = [ fixed section of the container | predictors or gate rows of the quality level ]
//! ```
//!
//! [`Level`](crate::level::Level) owns the second half.

use crate::arena::Slab;
use crate::container::{Container, ContainerError, TensorEntry};
use crate::embedding::{EmbeddingError, EmbeddingRows, RowTable};
use crate::flash::{self, Files};
use crate::model::config::{Role, TensorShape};
use kernels::Format;
use kernels::{Kernels, Matrix, Row, repack};

/// The place of a matrix in a region.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tensor {
    /// Storage.
    pub format: Format,
    /// Rows.
    pub rows: usize,
    /// Values of a row.
    pub columns: usize,
    /// First byte in the region.
    pub offset: usize,
}

impl Tensor {
    /// Size of the matrix in bytes.
    pub(crate) fn bytes(self) -> usize {
        self.rows * self.format.row_bytes(self.columns)
    }

    /// Rearranges the values for the kernels, in place.
    #[must_use]
    pub(crate) fn stored_for(self, kernels: &dyn Kernels, region: &mut [u8]) -> Self {
        let format = kernels.stored(self.format, self.columns);
        repack(self.format, format, &mut region[self.offset..][..self.bytes()]);
        Self { format, ..self }
    }

    /// The matrix.
    pub(crate) fn of<'a>(&self, region: &'a [u8]) -> Matrix<'a> {
        Matrix {
            format: self.format,
            rows: self.rows,
            columns: self.columns,
            bytes: &region[self.offset..][..self.bytes()],
        }
    }
}

/// The fixed section in memory.
#[derive(Debug)]
pub(crate) struct Weights {
    region: Slab<u8>,
    embedding: Embedding,
    /// Rows of the per-layer embedding, if the model has one.
    per_layer: Option<RowTable>,
    output: Tensor,
    output_norm: Tensor,
    blocks: Vec<BlockTensors>,
    /// The block of each layer.
    layers: Box<[usize]>,
}

/// The place of the token embedding's rows: in memory, or in the file.
#[derive(Debug)]
enum Embedding {
    /// The rows are in the fixed region.
    Here(Tensor),
    /// Rows stay in the file until they are used.
    InFile(Box<EmbeddingRows>),
}

/// One block's tensors, by role.
type BlockTensors = [Option<Tensor>; Role::COUNT];

impl Weights {
    /// The whole region.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.region
    }

    /// Reads the fixed section into `region`, which is as long as the section. Pages of the embedding that
    /// `rows` leaves in the file pass through `scratch` instead. Matrices are rearranged for the kernels. The
    /// per-layer embedding stays in the file.
    ///
    /// # Errors
    /// If the section cannot be read, its hash does not match, or a tensor is missing.
    pub(crate) fn load(
        container: &Container,
        kernels: &dyn Kernels,
        files: &Files,
        mut rows: Option<EmbeddingRows>,
        per_layer: Option<RowTable>,
        scratch: &mut [u8],
        mut region: Slab<u8>,
    ) -> Result<Self, ContainerError> {
        let left = rows.as_ref().map_or(0, EmbeddingRows::left_bytes);
        match &mut rows {
            None => container.read_fixed(files, scratch, 0, |_| (), &mut region)?,
            Some(rows) => {
                let see = |bytes: &[u8]| rows.see(bytes);
                container.read_fixed(files, scratch, left, see, &mut region)?;
                rows.see(&region);
            }
        }
        let invalid = |name: &str, what: &str| ContainerError::Invalid {
            path: container.path.clone(),
            problem: format!("the tensor {name} {what}"),
        };
        let mut tensor = |name: &str| {
            let entry = container.tensor(name).ok_or_else(|| invalid(name, "is missing"))?;
            let &TensorEntry { format, rows, columns, offset, .. } = entry;
            let offset = offset.checked_sub(left).ok_or_else(|| invalid(name, "lies in the embedding"))?;
            let tensor = Tensor { format, rows, columns, offset: offset as usize };
            Ok::<_, ContainerError>(tensor.stored_for(kernels, &mut region))
        };
        let config = &container.directory.config;
        let layers = (0..config.layers()).map(|layer| config.block_of(layer)).collect();
        let blocks = (0..config.blocks.len())
            .map(|block| {
                let mut tensors: BlockTensors = [None; Role::COUNT];
                for TensorShape { role, .. } in config.parts(block) {
                    tensors[role as usize] = Some(tensor(&format!("blk.{block}.{}", role.name()))?);
                }
                Ok(tensors)
            })
            .collect::<Result<_, ContainerError>>()?;
        let embedding = match rows {
            Some(rows) => Embedding::InFile(Box::new(rows)),
            None => Embedding::Here(tensor("token_embd.weight")?),
        };
        let output = match embedding {
            Embedding::Here(embedding) if container.tensor("output.weight").is_none() => embedding,
            _ => tensor("output.weight")?,
        };
        let output_norm = tensor("output_norm.weight")?;
        Ok(Self { embedding, per_layer, output, output_norm, blocks, layers, region })
    }

    /// The embedding of a token: `[width]`.
    ///
    /// # Errors
    /// If the row is read from the file and the read fails, or its bytes differ from those at start.
    ///
    /// # Panics
    /// If there is no such token.
    pub(crate) fn embed(&mut self, token: u32) -> Result<Row<'_>, EmbeddingError> {
        match &mut self.embedding {
            Embedding::Here(embedding) => Ok(embedding.of(&self.region).row(token as usize)),
            Embedding::InFile(rows) => rows.table().read(token),
        }
    }

    /// A row of the table whose rows stay in the file.
    ///
    /// # Errors
    /// If the read fails, or the bytes do not match their checksum.
    ///
    /// # Panics
    /// If the model has no such table, or the table no such row.
    pub(crate) fn table_row(&mut self, row: u32) -> Result<Row<'_>, EmbeddingError> {
        let Some(table) = &mut self.per_layer else { panic!("a model without a table of rows") };
        table.read(row)
    }

    /// Counts of embedding rows read, and their pages.
    pub(crate) fn embedding_reads(&self) -> flash::FlashCounters {
        let of_tokens = match &self.embedding {
            Embedding::Here(_) => flash::FlashCounters::default(),
            Embedding::InFile(rows) => rows.counters(),
        };
        let per_layer = self.per_layer.as_ref().map(RowTable::counters).unwrap_or_default();
        flash::FlashCounters {
            reads: of_tokens.reads + per_layer.reads,
            bytes: of_tokens.bytes + per_layer.bytes,
            ..of_tokens
        }
    }

    /// Bytes that every token reads: everything but the embedding, which is included if it is the head, too.
    pub(crate) fn bytes_per_token(&self) -> u64 {
        let tensors = self.blocks.iter().flatten().flatten();
        let blocks: usize = tensors.map(|tensor| tensor.bytes()).sum();
        (blocks + self.output_norm.bytes() + self.output.bytes()) as u64
    }

    /// The head `[vocabulary, width]`; the embedding if they are tied.
    pub(crate) fn output(&self) -> Matrix<'_> {
        self.output.of(&self.region)
    }

    /// `[width]`.
    pub(crate) fn output_norm(&self) -> &[f32] {
        self.vector(self.output_norm)
    }

    /// A matrix of a block.
    ///
    /// # Panics
    /// If the model has no tensor of this role.
    pub(crate) fn matrix(&self, block: usize, role: Role) -> Matrix<'_> {
        let Some(tensor) = self.blocks[block][role as usize] else { panic!("block {block} has no {role:?}") };
        tensor.of(&self.region)
    }

    /// A vector of a block, or consecutive rows of values; `None` if the model has none of this role.
    pub(crate) fn values(&self, block: usize, role: Role) -> Option<&[f32]> {
        self.blocks[block][role as usize].map(|tensor| self.vector(tensor))
    }

    /// [`Weights::values`] for the block of a layer.
    pub(crate) fn of_network(&self, layer: usize, role: Role) -> Option<&[f32]> {
        self.values(self.layers[layer], role)
    }

    /// A layer's router, `[experts, width]`; `None` in a dense model.
    pub(crate) fn router(&self, layer: usize) -> Option<Matrix<'_>> {
        self.blocks[self.layers[layer]][Role::Router as usize].map(|router| router.of(&self.region))
    }

    /// The values of an `F32` tensor, on a cache line.
    fn vector(&self, tensor: Tensor) -> &[f32] {
        bytemuck::cast_slice(tensor.of(&self.region).bytes)
    }
}
