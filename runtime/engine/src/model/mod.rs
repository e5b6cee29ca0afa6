//! Source models: GGUF files, their metadata, tensors and tokenizers.
//!
//! Modules in reading order. They serve to convert a model, to profile it and to check arithmetic; the engine
//! runs from its own container. No weights are held here.

pub mod gguf;

mod architectures;
pub mod config;
pub mod source;
pub mod tokenizer;

pub use architectures::architectures;

#[cfg(test)]
pub(crate) mod writer;
