//! The runtime of flashplan: executes a plan, neuron by neuron.
//!
//! Modules in reading order.

pub mod format;
pub mod model;
