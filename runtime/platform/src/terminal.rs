//! The terminal at standard input.

pub use crate::system::terminal::Settings;
