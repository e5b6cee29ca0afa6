//! Bytes on their way to the device: two buffers in turn, so that the host fills one while the device copies
//! from the other.

use crate::device::{Buffer, Device};
use crate::error::GpuError;

/// Bytes of a piece: large beside the time of a submission, small beside a matrix.
pub(crate) const PIECE_BYTES: u64 = 4 << 20;

/// The two buffers.
#[derive(Debug)]
pub(crate) struct Stream {
    places: [Place; 2],
    /// The place that is filled next.
    next: usize,
}

#[derive(Debug)]
struct Place {
    buffer: Buffer,
    /// The last submission that copies from the buffer.
    last: Option<wgpu::SubmissionIndex>,
}

impl Stream {
    /// Takes the buffers.
    ///
    /// # Errors
    /// If the limit or the device has no memory left.
    pub(crate) fn new(device: &Device) -> Result<Self, GpuError> {
        let usage = wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC;
        let place = || Ok::<_, GpuError>(Place { buffer: device.buffer(PIECE_BYTES, usage)?, last: None });
        Ok(Self { places: [place()?, place()?], next: 0 })
    }

    /// Copies bytes to the front of a buffer, and zeros behind them. The last pieces may still be on their way
    /// when it returns; later submissions come after them.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn send(&mut self, device: &Device, bytes: &[u8], to: &Buffer) -> Result<(), GpuError> {
        let (all, piece) = (to.handle.size() as usize, PIECE_BYTES as usize);
        for start in (0..all).step_by(piece) {
            let count = piece.min(all - start);
            let bytes = bytes.get(start..).unwrap_or_default();
            let bytes = &bytes[..count.min(bytes.len())];
            let place = &mut self.places[self.next];
            device.write_after(&place.buffer, place.last.take(), count as u64, |mut to| {
                to.slice(..bytes.len()).copy_from_slice(bytes);
                to.slice(bytes.len()..).fill(0);
            })?;
            let mut commands = device.commands();
            commands.copy_buffer_to_buffer(&place.buffer.handle, 0, &to.handle, start as u64, count as u64);
            place.last = Some(device.submit(commands)?);
            self.next = 1 - self.next;
        }
        Ok(())
    }
}
