//! Models as they come: GGUF files, what they say of themselves, their tensors and their tokenizer.
//!
//! Modules in reading order. Everything here ends where the runtime's own container begins: it is used to convert a
//! model, to profile it and to check the arithmetic, and holds no weights of its own.

pub mod gguf;

mod architectures;
pub mod config;
pub mod source;
pub mod tokenizer;

pub use architectures::architectures;

#[cfg(test)]
pub(crate) mod writer;
