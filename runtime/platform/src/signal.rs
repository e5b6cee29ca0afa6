//! Requests to end, and what else a system tells a process.

pub use crate::system::signal::{
    PassedOn, become_program, end_at_bus_error, flag_termination, of_exit, survive_the_file_size_limit,
};
