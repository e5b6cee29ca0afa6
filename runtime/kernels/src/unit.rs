//! A unit beside the processor, which multiplies matrices in a memory of its own.

use std::fmt;

use crate::Matrix;

/// An error of a unit: a sentence with the remedy.
pub type UnitError = Box<dyn std::error::Error + Send + Sync>;

/// Products of resident matrices and many vectors.
///
/// The order of each sum does not depend on other rows, vectors or matrices: a vector has the same bits in any
/// batch. After an error nothing is begun; later calls may fail again.
pub trait ProductUnit: fmt::Debug + Send {
    /// Name, driver and subgroup size of the adapter: units with equal names compute equal bits.
    fn name(&self) -> &str;

    /// Copies a matrix to the unit's memory. Matrices are numbered from 0.
    ///
    /// # Errors
    /// If the unit has no memory left, cannot hold such a matrix, or fails.
    fn load(&mut self, w: Matrix<'_>) -> Result<usize, UnitError>;

    /// Begins the products of some matrices with each vector. The unit keeps a copy of the vectors.
    ///
    /// *Shapes*: `x: [count, columns]`; all matrices have `columns`.
    ///
    /// # Errors
    /// If the sizes disagree, the buffers do not hold vectors or products, or the unit fails.
    fn begin(&mut self, matrices: &[usize], x: &[f32]) -> Result<(), UnitError>;

    /// Waits for the products that were begun: `out[t * stride + firsts[i]..][..rows] = w[i] x[t]`.
    ///
    /// # Errors
    /// If nothing was begun, `out` has no such places, or the unit fails.
    fn finish(&mut self, out: &mut [f32], stride: usize, firsts: &[usize]) -> Result<(), UnitError>;

    /// Bytes that the unit holds of its memory.
    fn held_bytes(&self) -> u64;
}
