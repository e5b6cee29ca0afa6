//! Measures a machine and a model, with the runtime's own kernels and reads.
//!
//! ```text
//! profile --device.toml, model.toml, MODEL.bundle (and csv for people)--> plan, run
//! ```
//!
//! It has two independent halves, [`device`] and [`model`]. Both take a [`Context`]: where to write, whether to be quick, how to show
//! progress and when to stop.

pub mod check;
pub mod cli;
pub mod error;
pub mod folder;
pub mod outputs;
pub mod progress;
pub mod truncated;
pub mod turn;

pub mod device;
pub mod model;

pub use error::{ProfileError, Stopped};
pub use progress::Context;
pub use turn::Turn;
