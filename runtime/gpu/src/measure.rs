//! Times of a unit, for programs that describe a device. Each call is one sample; callers repeat and take
//! medians.

use std::time::{Duration, Instant};

use crate::error::GpuError;
use crate::shader::Kernel;
use crate::unit::{Resident, Unit, WORKGROUPS_MAX, copy};

/// A byte that makes a common number as a float, too: subnormal ones would be slow.
const FILL: u8 = 0x3f;

impl Unit {
    /// Time of a submission without work, until the host knows that it is done.
    ///
    /// # Errors
    /// If the device fails.
    pub fn time_round_trip(&mut self) -> Result<Duration, GpuError> {
        let start = Instant::now();
        self.device.submit(self.device.commands())?;
        self.device.wait()?;
        Ok(start.elapsed())
    }

    /// Time to bring `transfer_bytes` from the host's memory to the device's, with the copy to the buffer
    /// between them.
    ///
    /// # Errors
    /// If the device fails.
    pub fn time_up(&mut self, bytes: &mut Vec<u8>) -> Result<Duration, GpuError> {
        let count = self.transfer_bytes();
        bytes.resize(count as usize, FILL);
        let start = Instant::now();
        self.device.write(&self.upload, count, |mut to| to.copy_from_slice(bytes))?;
        let mut commands = self.device.commands();
        copy(&mut commands, &self.upload, &self.vectors, 0, count);
        self.device.submit(commands)?;
        self.device.wait()?;
        Ok(start.elapsed())
    }

    /// Time to bring `transfer_bytes` from the device's memory to the host's, likewise.
    ///
    /// # Errors
    /// If the device fails.
    pub fn time_down(&mut self, bytes: &mut Vec<u8>) -> Result<Duration, GpuError> {
        let count = self.transfer_bytes();
        bytes.resize(count as usize, FILL);
        let start = Instant::now();
        let mut commands = self.device.commands();
        copy(&mut commands, &self.outputs, &self.download, 0, count);
        self.device.submit(commands)?;
        self.device.read(&self.download, count, |from| bytes.copy_from_slice(from))?;
        Ok(start.elapsed())
    }

    /// Time of a matrix's products, `repeats` times in one submission, with vectors and outputs that stay on
    /// the device. Up to eight vectors are multiplied as by [`Unit::dots`], more as by [`Unit::products`].
    /// Compiles the kernel first.
    ///
    /// # Errors
    /// If the buffers do not hold the vectors and their outputs together, or the device fails.
    pub fn time_products(
        &mut self,
        w: &Resident,
        count: usize,
        repeats: usize,
    ) -> Result<Duration, GpuError> {
        let kernel = if count <= 8 { Kernel::for_few(count) } else { Kernel::Many };
        self.own(w)?;
        let pipeline = self.pipeline(w.shape.format, kernel)?;
        let longest = w.rows().max(w.shape.eights() as usize * 8);
        let needed = count.checked_mul(4 * longest);
        if count == 0 || needed.is_none_or(|bytes| bytes as u64 > self.transfer_bytes()) {
            return Err(GpuError::VectorTooLong { columns: longest, buffer_bytes: self.transfer_bytes() });
        }
        let mut commands = self.device.commands();
        let (rows, window) = (w.rows(), WORKGROUPS_MAX * kernel.tile()[0]);
        for start in (0..repeats).flat_map(|_| (0..rows).step_by(window)) {
            let window = start..rows.min(start + window);
            let place = [window.len(), 0];
            self.dispatch(&mut commands, w, &pipeline, kernel.tile(), count, window, place);
        }
        self.device.wait()?;
        let start = Instant::now();
        self.device.submit(commands)?;
        self.device.wait()?;
        Ok(start.elapsed())
    }
}
