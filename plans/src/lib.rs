//! The file contracts of flashplan, in the order they flow.
//!
//! ```text
//! profile --device.toml, model.toml--> plan --plan.toml--> run
//! ```
//!
//! | file | written by | read by |
//! |---|---|---|
//! | `device.toml` ([`Device`]) | `profile` | `plan` |
//! | `model.toml` ([`Model`]) | `profile` | `plan` |
//! | `plan.toml` ([`Plan`]) | `plan` | `run` |
//! | `calibration.toml` ([`Calibration`]) | `run --bench` | `plan` |
//! | `learned.toml` ([`Learned`]) | `run` | `plan`, `run` |
//!
//! This crate knows no solver, no kernel and no model file. It has the types, and reads and writes them. Planner and
//! runtime share the place of a neuron in the container ([`layout`]), the regions of a plan ([`memory`]) and the constants of the
//! engine ([`mod@engine`]). Every program writes its files with [`output_file`].
//!
//! A file of measured figures ends in their checksum ([`Integrity`]).
//!
//! Every key ends in its unit; a fraction is 0 to 1. Unknown keys are refused with the nearest known name, and invalid values with the
//! valid ones ([`mod@check`]). The same value always gives the same bytes.

pub mod backend;
pub mod calibration;
pub mod check;
mod checksum;
pub mod device;
pub mod engine;
pub mod error;
pub mod expectation;
pub mod file;
pub mod kv;
pub mod layout;
pub mod learned;
mod lines;
pub mod memory;
pub mod model;
pub mod names;
pub mod output_file;
pub mod overlap;
pub mod plan;
pub mod policy;
pub mod size;
pub mod terms;

pub use backend::Backend;
pub use calibration::Calibration;
pub use checksum::Integrity;
pub use device::Device;
pub use error::ContractError;
pub use kv::KvFormat;
pub use learned::Learned;
pub use model::Model;
pub use plan::Plan;
pub use policy::Policy;

/// The schema number that this version reads and writes.
pub const SCHEMA: u32 = 1;

/// The page of flash reads: offset, length and buffer alignment of direct I/O.
pub const PAGE_BYTES: u64 = 4096;
