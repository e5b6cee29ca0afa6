//! Refusals and faults of a unit, each a sentence with its remedy.

use std::time::Duration;

use kernels::Format;

/// A refusal or a fault of a [`Unit`](crate::Unit).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// The adapter lacks something that the kernels need.
    #[error(
        "the GPU {adapter} has {has} {what}, and {needed} are needed: choose another one, or plan without it"
    )]
    Lacks {
        /// The name of the adapter.
        adapter: String,
        /// The limit.
        what: &'static str,
        /// Its value.
        has: u64,
        /// The least value that would do.
        needed: u64,
    },
    /// The driver did not open the device.
    #[error("the driver does not open the GPU {adapter}: {reason}")]
    NotOpened {
        /// The name of the adapter.
        adapter: String,
        /// The words of the driver.
        reason: String,
    },
    /// An allocation would exceed the unit's own limit.
    #[error(
        "{wanted_bytes} bytes more do not fit the GPU's limit of {limit_bytes} bytes, of which {held_bytes} are \
         held: raise the limit, or keep less there"
    )]
    OverLimit {
        /// Bytes of the allocation, with the block of memory that it may need.
        wanted_bytes: u64,
        /// Bytes that the unit holds.
        held_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// The device has no memory left, although the limit allows the allocation.
    #[error(
        "the GPU has no {wanted_bytes} bytes left, although its limit allows them: lower the limit, or close what else uses it"
    )]
    OutOfMemory {
        /// Bytes of the allocation.
        wanted_bytes: u64,
    },
    /// The sizes of a matrix contradict each other.
    #[error("{bytes} bytes are no {format} matrix of {rows} rows and {columns} columns")]
    Shape {
        /// Storage format of the values.
        format: Format,
        /// Rows.
        rows: usize,
        /// Values of a row.
        columns: usize,
        /// Bytes that came.
        bytes: usize,
    },
    /// A row exceeds what a shader can bind.
    #[error(
        "a row of {row_bytes} bytes exceeds the {binding_bytes} bytes that a shader of this GPU can bind: plan without the GPU"
    )]
    RowTooLong {
        /// Bytes of a row, and of the padding behind it.
        row_bytes: u64,
        /// Largest binding.
        binding_bytes: u64,
    },
    /// A vector exceeds the unit's buffers.
    #[error(
        "a vector of {columns} values exceeds the unit's buffer of {buffer_bytes} bytes: raise `transfer_bytes`"
    )]
    VectorTooLong {
        /// Values of a vector.
        columns: usize,
        /// Bytes of the buffer.
        buffer_bytes: u64,
    },
    /// Vectors or outputs do not fit the matrix.
    #[error("{inputs} inputs and {outputs} outputs do not fit a matrix of {rows} rows and {columns} columns")]
    Vectors {
        /// Numbers of all vectors.
        inputs: usize,
        /// Numbers of all outputs.
        outputs: usize,
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        columns: usize,
    },
    /// More vectors, or rows, than one submission takes.
    #[error(
        "{count} vectors times {rows} rows are no single submission, which takes {most} vectors: pass fewer at once"
    )]
    TooMany {
        /// Vectors.
        count: usize,
        /// The most vectors.
        most: usize,
        /// Rows of the matrix.
        rows: usize,
    },
    /// Outputs do not fit the products that were begun.
    #[error("{outputs} outputs do not fit {count} vectors times {rows} rows")]
    Outputs {
        /// Numbers of all outputs.
        outputs: usize,
        /// Vectors.
        count: usize,
        /// Rows of the matrix.
        rows: usize,
    },
    /// The matrix belongs to another unit.
    #[error("the matrix lies in the memory of another unit")]
    Foreign,
    /// The device is gone. Every later call fails with the same words.
    #[error("the GPU was lost ({reason}): start again, or plan without it")]
    Lost {
        /// The words of the driver.
        reason: String,
    },
    /// The device did not finish in time. Every later call fails with the same words.
    #[error("the GPU did not answer within {patience:?}: start again, or plan without it")]
    Silent {
        /// The time that it was given.
        patience: Duration,
    },
    /// The driver refused a command that should be valid.
    #[error("the GPU's driver refused a command: {reason}")]
    Refused {
        /// The words of the driver.
        reason: String,
    },
}
