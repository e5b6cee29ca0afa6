//! Folders as Hugging Face's hub has them, made into GGUF files.
//!
//! A folder has `config.json`, weights in `*.safetensors` (with an index where there are several), and a tokenizer as
//! `tokenizer.json` or `tokenizer.model`, with `tokenizer_config.json`, `generation_config.json` and a chat template beside it. All of
//! it becomes one GGUF file, and nothing after this crate knows where the model came from:
//!
//! ```text
//! folder     files of a folder by their names, each bounded; nothing outside it is opened
//! safetensors, index     weights: where each tensor lies, checked, and mapped
//! config     config.json: keys that are asked for, and keys that must not change anything
//! families   an architecture as data: its keys, and which tensors become which
//! recipe     a tensor of the GGUF file as rows of tensors of the folder
//! tokenizer, sentencepiece, merged, pre_tokenizer, special     the tokenizer's keys
//! keys       a GGUF header being put together
//! conversion     all of it: refused before anything is written, or written, checked by the reader of GGUF, and renamed
//! ```
//!
//! A folder is a stranger's. No size in it is believed before it is compared with the files, no name leaves it, and what is not
//! understood is refused by name.
//!
//! Source: llama.cpp's `convert_hf_to_gguf.py` and `gguf-py`, whose names of keys and tensors and whose order of rows these are.

mod config;
mod conversion;
mod error;
mod families;
mod folder;
mod index;
mod keys;
mod merged;
mod pre_tokenizer;
mod recipe;
mod safetensors;
mod sentencepiece;
mod special;
mod tokenizer;

pub use conversion::{Conversion, Quantisation, made_of, quantised};
pub use error::FolderError;
pub use folder::is_folder;

#[cfg(test)]
mod tests;

/// What holds for the bytes of any file of a folder, for fuzzing: each is read or refused, without a panic.
#[doc(hidden)]
pub fn read_any(bytes: &[u8]) {
    let path = std::path::Path::new("file");
    drop(safetensors::Header::read(bytes, path));
    drop(index::read(bytes, path));
    drop(sentencepiece::Model::read(bytes, path));
    drop(config::Config::read(bytes, path).and_then(|config| families::of(&config).map(|_| ())));
    drop(
        tokenizer::TokenizerJson::read(bytes, path).map(|json| pre_tokenizer::rule(&json, path).map(|_| ())),
    );
    drop(special::TokenizerConfig::read(bytes, path));
}
