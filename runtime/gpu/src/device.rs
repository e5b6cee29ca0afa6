//! An open device: memory under a limit, transfers, and the faults of its driver.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::adapter::Adapter;
use crate::error::GpuError;

/// The allocator's smallest block of memory. Buffers share blocks, and a larger one has its own.
pub(crate) const BLOCK_BYTES: u64 = 4 << 20;
/// Bytes of a [task](crate::unit), which travel with the commands.
pub(crate) const TASK_BYTES: u32 = 32;
/// Threads of the largest workgroup.
const WORKGROUP_THREADS: u64 = 256;
/// Memory of a workgroup: two tiles.
const WORKGROUP_BYTES: u64 = 16 << 10;

/// An open device.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) handle: wgpu::Device,
    queue: wgpu::Queue,
    faults: Arc<Mutex<Faults>>,
    ledger: Arc<Ledger>,
    limit_bytes: u64,
    patience: Duration,
}

/// Faults that the driver has reported.
#[derive(Debug, Default)]
struct Faults {
    /// The device is gone, for this reason.
    gone: Option<GpuError>,
    /// The last command failed.
    command: Option<Fault>,
}

#[derive(Debug)]
enum Fault {
    OutOfMemory,
    Refused(String),
}

/// Bytes of all buffers.
#[derive(Debug, Default)]
struct Ledger {
    used: AtomicU64,
    peak: AtomicU64,
}

/// A buffer of the device; its bytes are free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Buffer {
    pub(crate) handle: wgpu::Buffer,
    ledger: Arc<Ledger>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.handle.destroy();
        self.ledger.used.fetch_sub(self.handle.size(), Ordering::Relaxed);
    }
}

impl Device {
    /// Opens an adapter's device, with bindings of at most `binding_bytes`.
    ///
    /// # Errors
    /// If the adapter lacks what the kernels need, or its driver refuses.
    pub(crate) fn open(
        adapter: &Adapter,
        binding_bytes: u64,
        limit_bytes: u64,
        patience: Duration,
    ) -> Result<Self, GpuError> {
        let limits = adapter.handle.limits();
        let has_immediates = adapter.handle.features().contains(wgpu::Features::IMMEDIATES);
        for (what, has, needed) in [
            (
                "bytes of data beside commands",
                if has_immediates { u64::from(limits.max_immediate_size) } else { 0 },
                u64::from(TASK_BYTES),
            ),
            ("threads a workgroup", limits.max_compute_invocations_per_workgroup.into(), WORKGROUP_THREADS),
            (
                "bytes of memory a workgroup",
                limits.max_compute_workgroup_storage_size.into(),
                WORKGROUP_BYTES,
            ),
        ] {
            if has < needed {
                return Err(GpuError::Lacks { adapter: adapter.name.clone(), what, has, needed });
            }
        }
        let subgroups = adapter.handle.features() & wgpu::Features::SUBGROUP;
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("flashplan"),
            required_features: wgpu::Features::IMMEDIATES | subgroups,
            required_limits: wgpu::Limits {
                max_storage_buffer_binding_size: binding_bytes.min(adapter.binding_bytes) / 4 * 4,
                max_buffer_size: adapter.buffer_bytes,
                max_immediate_size: TASK_BYTES,
                ..wgpu::Limits::downlevel_defaults()
            },
            // small blocks, so that what is reserved is close to what is used
            memory_hints: wgpu::MemoryHints::Manual {
                suballocated_device_memory_block_size: BLOCK_BYTES..BLOCK_BYTES,
            },
            ..wgpu::DeviceDescriptor::default()
        };
        let opened = pollster::block_on(adapter.handle.request_device(&descriptor));
        let (handle, queue) = opened.map_err(|error| GpuError::NotOpened {
            adapter: adapter.name.clone(),
            reason: error.to_string(),
        })?;
        let faults = Arc::<Mutex<Faults>>::default();
        let of_commands = faults.clone();
        handle.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            let fault = match &error {
                wgpu::Error::OutOfMemory { .. } => Fault::OutOfMemory,
                _ => Fault::Refused(in_a_line(&error.to_string())),
            };
            let mut faults = of_commands.lock().unwrap_or_else(PoisonError::into_inner);
            faults.command.get_or_insert(fault);
        }));
        let of_device = faults.clone();
        handle.set_device_lost_callback(move |_, reason| {
            let mut faults = of_device.lock().unwrap_or_else(PoisonError::into_inner);
            faults.gone.get_or_insert(GpuError::Lost { reason: in_a_line(&reason) });
        });
        Ok(Self { handle, queue, faults, ledger: Arc::default(), limit_bytes, patience })
    }

    /// Bytes held: the sum over all buffers, or the larger sum of blocks that the driver's allocator has
    /// reserved.
    pub(crate) fn held_bytes(&self) -> u64 {
        let reserved =
            self.handle.generate_allocator_report().map_or(0, |report| report.total_reserved_bytes);
        reserved.max(self.ledger.used.load(Ordering::Relaxed))
    }

    /// The most bytes that were held.
    pub(crate) fn peak_bytes(&self) -> u64 {
        self.ledger.peak.load(Ordering::Relaxed)
    }

    /// Makes a buffer. It is refused before it is allocated, if it may exceed the limit with the block that
    /// the allocator may take for it.
    ///
    /// # Errors
    /// If the limit or the device has no memory left.
    pub(crate) fn buffer(&self, bytes: u64, usage: wgpu::BufferUsages) -> Result<Buffer, GpuError> {
        // returns what dropped buffers have held
        self.polled(wgpu::PollType::Poll)?;
        let (held_bytes, limit_bytes) = (self.held_bytes(), self.limit_bytes);
        let wanted_bytes = bytes.max(BLOCK_BYTES);
        if held_bytes.checked_add(wanted_bytes).is_none_or(|all| all > limit_bytes) {
            return Err(GpuError::OverLimit { wanted_bytes, held_bytes, limit_bytes });
        }
        let descriptor =
            wgpu::BufferDescriptor { label: None, size: bytes, usage, mapped_at_creation: false };
        self.ledger.used.fetch_add(bytes, Ordering::Relaxed);
        let buffer = Buffer { handle: self.handle.create_buffer(&descriptor), ledger: self.ledger.clone() };
        self.check(bytes)?;
        self.ledger.peak.fetch_max(self.held_bytes(), Ordering::Relaxed);
        Ok(buffer)
    }

    /// Commands to submit, none so far.
    pub(crate) fn commands(&self) -> wgpu::CommandEncoder {
        self.handle.create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
    }

    /// Submits commands.
    ///
    /// # Errors
    /// If the device is lost, or its driver refuses them.
    pub(crate) fn submit(&self, commands: wgpu::CommandEncoder) -> Result<wgpu::SubmissionIndex, GpuError> {
        let index = self.queue.submit([commands.finish()]);
        self.check(0).map(|()| index)
    }

    /// Waits until everything submitted is done, and mappings have been made.
    ///
    /// # Errors
    /// If the device is lost or does not answer in time.
    pub(crate) fn wait(&self) -> Result<(), GpuError> {
        self.polled(wgpu::PollType::Wait { submission_index: None, timeout: Some(self.patience) })
    }

    fn polled(&self, how: wgpu::PollType) -> Result<(), GpuError> {
        self.check(0)?;
        // `wgpu` panics where a driver loses the device while it is waited for
        let fault = match catch_unwind(AssertUnwindSafe(|| self.handle.poll(how))) {
            Ok(Ok(_)) => return self.check(0),
            Ok(Err(wgpu::PollError::Timeout)) => GpuError::Silent { patience: self.patience },
            Ok(Err(error)) => GpuError::Refused { reason: in_a_line(&error.to_string()) },
            Err(panic) => GpuError::Lost { reason: words_of(panic.as_ref()) },
        };
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        Err(faults.gone.get_or_insert(fault).clone())
    }

    /// The fault that the driver has reported since the last call, if there is one.
    pub(crate) fn check(&self, wanted_bytes: u64) -> Result<(), GpuError> {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let command = faults.command.take();
        if let Some(gone) = &faults.gone {
            return Err(gone.clone());
        }
        match command {
            None => Ok(()),
            Some(Fault::OutOfMemory) => Err(GpuError::OutOfMemory { wanted_bytes }),
            Some(Fault::Refused(reason)) => Err(GpuError::Refused { reason }),
        }
    }

    /// Waits until everything is done, and passes the first bytes of a buffer to `write`.
    ///
    /// # Errors
    /// If the device is lost.
    pub(crate) fn write(
        &self,
        buffer: &Buffer,
        bytes: u64,
        write: impl FnOnce(wgpu::WriteOnly<'_, [u8]>),
    ) -> Result<(), GpuError> {
        let slice = buffer.handle.slice(..bytes);
        slice.map_async(wgpu::MapMode::Write, |_| ());
        self.wait()?;
        self.fill(buffer, bytes, write)
    }

    /// [`Device::write`] that waits no longer than for the last submission that uses the buffer.
    ///
    /// # Errors
    /// If the device is lost or does not answer in time.
    pub(crate) fn write_after(
        &self,
        buffer: &Buffer,
        last: Option<wgpu::SubmissionIndex>,
        bytes: u64,
        write: impl FnOnce(wgpu::WriteOnly<'_, [u8]>),
    ) -> Result<(), GpuError> {
        buffer.handle.slice(..bytes).map_async(wgpu::MapMode::Write, |_| ());
        let timeout = Some(self.patience);
        self.polled(match last {
            Some(_) => wgpu::PollType::Wait { submission_index: last, timeout },
            None => wgpu::PollType::Poll,
        })?;
        self.fill(buffer, bytes, write)
    }

    /// Passes the mapped bytes of a buffer to `write`.
    fn fill(
        &self,
        buffer: &Buffer,
        bytes: u64,
        write: impl FnOnce(wgpu::WriteOnly<'_, [u8]>),
    ) -> Result<(), GpuError> {
        let slice = buffer.handle.slice(..bytes);
        let mut view = slice.get_mapped_range_mut().map_err(|error| self.unmapped(&error))?;
        write(view.slice(..));
        drop(view);
        buffer.handle.unmap();
        self.check(0)
    }

    /// Waits, and passes the first bytes of a buffer to `read`.
    ///
    /// # Errors
    /// If the device is lost or does not answer in time.
    pub(crate) fn read(&self, buffer: &Buffer, bytes: u64, read: impl FnOnce(&[u8])) -> Result<(), GpuError> {
        let slice = buffer.handle.slice(..bytes);
        slice.map_async(wgpu::MapMode::Read, |_| ());
        self.wait()?;
        let view = slice.get_mapped_range().map_err(|error| self.unmapped(&error))?;
        read(&view);
        drop(view);
        buffer.handle.unmap();
        self.check(0)
    }

    /// Why a buffer could not be mapped.
    fn unmapped(&self, error: &wgpu::MapRangeError) -> GpuError {
        self.check(0).err().unwrap_or_else(|| GpuError::Refused { reason: in_a_line(&error.to_string()) })
    }
}

/// The words of a driver, which may have many lines.
fn in_a_line(words: &str) -> String {
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The words of a panic.
fn words_of(panic: &(dyn Any + Send)) -> String {
    let words = panic.downcast_ref::<String>().map(String::as_str);
    in_a_line(words.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("its driver failed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_driver_are_a_line() {
        let panic = catch_unwind(|| panic!("Error in {}:\n  lost\n", "Device::poll")).expect_err("a panic");
        assert_eq!(words_of(panic.as_ref()), "Error in Device::poll: lost", "a message with arguments");
        let panic = catch_unwind(|| panic!("lost")).expect_err("a panic");
        assert_eq!(words_of(panic.as_ref()), "lost", "a message without");
        assert_eq!(words_of(&7_u32), "its driver failed", "no message");
    }
}
