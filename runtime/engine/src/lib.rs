//! The runtime of flashplan: executes a plan, neuron by neuron.
//!
//! Modules in reading order.

pub mod model;

pub mod moe;
pub mod predictor;
pub mod reference;

pub mod container;

pub mod arena;
pub mod flash;
pub mod machine;
pub mod pool;

pub mod cache;
pub mod fetch;
pub mod level;
pub mod neurons;
pub mod weights;

pub mod attention;
pub mod embedding;
pub mod feed_forward;
pub mod kv;
pub mod products;
pub mod stage;

pub mod engine;
