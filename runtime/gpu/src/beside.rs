//! Products that run while the caller computes: one submission for all matrices that meet the same vectors.

use kernels::{Matrix, ProductUnit, UnitError};

use crate::adapter::Adapter;
use crate::error::GpuError;
use crate::shader::Kernel;
use crate::unit::{Limits, Resident, Unit, WORKGROUPS_MAX, copy};

/// Products that a unit computes. The unit is free again when they are finished or dropped.
#[derive(Debug)]
#[must_use = "products that nobody receives are lost"]
pub struct Pending<'a> {
    unit: &'a mut Unit,
    rows: usize,
    count: usize,
}

impl Pending<'_> {
    /// Waits for the products, and copies them to `out: [count, rows]`.
    ///
    /// # Errors
    /// If the length is another one, or the device fails.
    pub fn finish(self, out: &mut [f32]) -> Result<(), GpuError> {
        let Self { unit, rows, count } = self;
        unit.receive_at(count, &[rows], out, rows, &[0])
    }
}

impl Unit {
    /// Begins [`Unit::dots`] for up to eight vectors. The caller may compute until it calls
    /// [`Pending::finish`].
    ///
    /// # Errors
    /// As [`Unit::dots`]; and if the buffers do not hold the vectors and their outputs together.
    pub fn begin_dots(&mut self, w: &Resident, x: &[f32]) -> Result<Pending<'_>, GpuError> {
        let count = self.begin(&[w], Kernel::for_few(x.len() / w.columns()), x)?;
        Ok(Pending { unit: self, rows: w.rows(), count })
    }

    /// Begins [`Unit::products`], likewise.
    ///
    /// # Errors
    /// As [`Unit::begin_dots`].
    pub fn begin_products(&mut self, w: &Resident, x: &[f32]) -> Result<Pending<'_>, GpuError> {
        let count = self.begin(&[w], Kernel::Many, x)?;
        Ok(Pending { unit: self, rows: w.rows(), count })
    }

    /// Submits the products of matrices with the same vectors, side by side in the outputs. Returns the number
    /// of vectors.
    fn begin(&mut self, matrices: &[&Resident], kernel: Kernel, x: &[f32]) -> Result<usize, GpuError> {
        let Some(first) = matrices.first() else { return Ok(0) };
        let (columns, count) = (first.columns(), x.len() / first.columns());
        let all_rows = matrices.iter().map(|w| w.rows()).sum::<usize>();
        matrices.iter().try_for_each(|w| self.own(w))?;
        if x.len() != count * columns || matrices.iter().any(|w| w.columns() != columns) {
            let outputs = count.saturating_mul(all_rows);
            return Err(GpuError::Vectors { inputs: x.len(), outputs, rows: all_rows, columns });
        }
        let tile = kernel.tile();
        let held = self.together(first, all_rows);
        let most = held.min(if kernel == Kernel::Many { usize::MAX } else { tile[1] });
        if count > most || matrices.iter().any(|w| w.rows() > WORKGROUPS_MAX * tile[0]) {
            return Err(GpuError::TooMany { count, most, rows: all_rows });
        }
        if count == 0 {
            return Ok(0);
        }
        let kernels = matrices.iter().map(|w| self.pipeline(w.shape.format, kernel));
        let kernels = kernels.collect::<Result<Vec<_>, _>>()?;
        let sent_bytes = self.stage(first, x)?;
        let mut commands = self.device.commands();
        copy(&mut commands, &self.upload, &self.vectors, 0, sent_bytes);
        let mut at = 0;
        for (w, kernel) in matrices.iter().zip(&kernels) {
            self.dispatch(&mut commands, w, kernel, tile, count, 0..w.rows(), [all_rows, at]);
            at += w.rows();
        }
        copy(&mut commands, &self.outputs, &self.download, 0, (4 * count * all_rows) as u64);
        self.device.submit(commands)?;
        Ok(count)
    }

    /// Waits for the products of matrices with `rows`, and copies each one's to its first column of `out: [count,
    /// stride]`.
    fn receive_at(
        &mut self,
        count: usize,
        rows: &[usize],
        out: &mut [f32],
        stride: usize,
        firsts: &[usize],
    ) -> Result<(), GpuError> {
        let all_rows = rows.iter().sum::<usize>();
        let fits =
            |(first, rows): (&usize, &usize)| first.checked_add(*rows).is_some_and(|end| end <= stride);
        if Some(out.len()) != count.checked_mul(stride)
            || rows.len() != firsts.len()
            || !firsts.iter().zip(rows).all(fits)
        {
            return Err(GpuError::Outputs { outputs: out.len(), count, rows: all_rows });
        }
        if count == 0 {
            return Ok(());
        }
        self.device.read(&self.download, (4 * count * all_rows) as u64, |bytes| {
            for (mut bytes, out) in bytes.chunks_exact(4 * all_rows).zip(out.chunks_exact_mut(stride)) {
                for (&rows, &first) in rows.iter().zip(firsts) {
                    let (of_matrix, rest) = bytes.split_at(4 * rows);
                    bytemuck::cast_slice_mut(&mut out[first..first + rows]).copy_from_slice(of_matrix);
                    bytes = rest;
                }
            }
        })
    }
}

/// A unit with the matrices that an engine has given it.
#[derive(Debug)]
pub struct Beside {
    name: String,
    unit: Unit,
    matrices: Vec<Resident>,
    /// The rows of each matrix that was begun, and the number of vectors.
    begun: Option<(Vec<usize>, usize)>,
}

impl Beside {
    /// Opens an adapter for an engine.
    ///
    /// # Errors
    /// As [`Unit::open`]; and if a shader cannot bind `transfer_bytes`, which the caller counts on.
    pub fn open(adapter: &Adapter, limits: Limits) -> Result<Self, GpuError> {
        if limits.transfer_bytes > adapter.binding_bytes {
            return Err(GpuError::Lacks {
                adapter: adapter.name.clone(),
                what: "bytes in a binding",
                has: adapter.binding_bytes,
                needed: limits.transfer_bytes,
            });
        }
        let (name, unit) = (adapter.identity(), Unit::open(adapter, limits)?);
        Ok(Self { name, unit, matrices: Vec::new(), begun: None })
    }
}

impl ProductUnit for Beside {
    fn name(&self) -> &str {
        &self.name
    }

    fn load(&mut self, w: Matrix<'_>) -> Result<usize, UnitError> {
        self.matrices.push(self.unit.load(&w)?);
        Ok(self.matrices.len() - 1)
    }

    fn begin(&mut self, matrices: &[usize], x: &[f32]) -> Result<(), UnitError> {
        self.begun = None;
        let matrices: Vec<&Resident> = matrices.iter().map(|&matrix| &self.matrices[matrix]).collect();
        let count = self.unit.begin(&matrices, Kernel::Many, x)?;
        self.begun = Some((matrices.iter().map(|w| w.rows()).collect(), count));
        Ok(())
    }

    fn finish(&mut self, out: &mut [f32], stride: usize, firsts: &[usize]) -> Result<(), UnitError> {
        let (rows, count) = self.begun.take().unwrap_or_default();
        Ok(self.unit.receive_at(count, &rows, out, stride, firsts)?)
    }

    fn held_bytes(&self) -> u64 {
        self.unit.held_bytes()
    }
}
