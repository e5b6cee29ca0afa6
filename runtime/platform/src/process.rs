//! Memory and time of a process.

pub use crate::error::MachineError;
pub use crate::system::process::{
    bytes_fetched, cpu_time, footprint, forget_read_ahead, full_pipe, is_writable, keep_small,
    kernel_stack_bytes, sleeps,
};
pub use crate::types::Footprint;
