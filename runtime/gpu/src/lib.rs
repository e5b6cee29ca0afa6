//! A compute unit with memory of its own: stored weights times vectors on a GPU.
//!
//! In reading order:
//!
//! * `adapter` lists the GPUs that a driver answers for;
//! * `unit` is the narrow door: a [`Unit`] opens one of them under a limit of memory, takes matrices as they lie
//!   in the file, and multiplies them with vectors;
//! * `beside` is that unit for an engine, whose cores compute meanwhile;
//! * `shape` checks sizes and cuts a matrix into parts that a binding can hold;
//! * `shader` generates the text of a kernel from the description of one block of its format;
//! * `stream` brings matrices to the device;
//! * `device` has the memory under its limit, mappings, and faults of the driver;
//! * `measure` times all of it, for programs that describe a device.
//!
//! The scalar kernels of the crate `kernels` define the results. Nothing here knows of layers, plans or files:
//! callers loop. Only this crate links `wgpu`; `docs/internals.md` says why `wgpu`, and what was measured.

mod adapter;
mod beside;
mod device;
mod error;
mod measure;
mod shader;
mod shape;
mod stream;
mod unit;

#[cfg(test)]
mod tests;

pub use adapter::{Adapter, Kind, adapters, listed};
pub use beside::{Beside, Pending};
pub use error::GpuError;
pub use unit::{Limits, Resident, Unit};
