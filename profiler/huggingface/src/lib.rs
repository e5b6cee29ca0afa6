//! Conversion of folders from Hugging Face's hub to GGUF files.
//!
//! A folder has `config.json`, weights in `*.safetensors` (with an index where there are several), and a tokenizer: `tokenizer.json` or
//! `tokenizer.model`. `tokenizer_config.json`, `generation_config.json` and a chat template may lie beside them. All of it becomes one
//! GGUF file, and no other crate knows where the model came from:
//!
//! ```text
//! folder     files of a folder by their names, each bounded; nothing outside it is opened
//! safetensors, index     weights: where each tensor lies, checked, and read
//! config     config.json: keys that are used, and keys that must not change anything
//! families   an architecture as data: its keys, and which tensors become which
//! recipe     a tensor of the GGUF file as rows of tensors of the folder
//! tokenizer, sentencepiece, merged, spaced, unigram, pre_tokenizer, special     the tokenizer's keys
//! keys       a GGUF header being put together
//! conversion     the whole: refused before a byte is written; or written, checked by GGUF's reader, and renamed
//! ```
//!
//! Folders are not trusted. Sizes are compared with the files before use, names stay inside the folder, and unknown parts are refused by
//! name.
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
mod spaced;
mod special;
mod tokenizer;
mod unigram;

pub use conversion::{Conversion, Quantisation, made_of, quantised};
pub use error::{FolderError, Several};
pub use families::architectures;
pub use folder::is_folder;

#[cfg(test)]
mod tests;

/// Reads bytes as files of a folder, for fuzzing: each is read or refused, without a panic.
///
/// With `every` it tries every kind and architecture, else only the ones that the bytes name: a text without a kind's keys is refused
/// anyway.
#[doc(hidden)]
pub fn read_any(bytes: &[u8], every: bool) {
    let path = std::path::Path::new("file");
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    let names = ["\"weight_map\"", "\"model\"", "_token", "\"architectures\""];
    let named = names.map(|name| text.contains(name));
    let any = every || named == [false; 4];
    let [index, tokenizer, tokenizer_config, config] = named.map(|named| named || any);
    if index {
        drop(index::read(bytes, path));
    }
    drop(sentencepiece::Model::read(bytes, path));
    if tokenizer {
        drop(tokenizer::read_any(bytes, path));
    }
    if tokenizer_config {
        drop(special::TokenizerConfig::read(bytes, path));
    }
    let read_at = |place: u64, into: &mut [u8]| {
        into.copy_from_slice(&bytes[place as usize..][..into.len()]); // compared with the file's length before
        Ok(())
    };
    drop(safetensors::Header::read(bytes.len() as u64, path, &read_at));
    // of a file whose data is left out
    if let Some((length, rest)) = bytes.split_first_chunk()
        && let Some(header) = rest.get(..u64::from_le_bytes(*length) as usize)
        && let Ok(header) = safetensors::Header::of(header, None, path)
    {
        let named = String::from_utf8_lossy(rest);
        families::recipes_of_any(&index::Weights::described(header), path, if every { "" } else { &named });
    }
    if config
        && let Ok(mut config) = config::Config::read(bytes, path)
        && let Ok(family) = families::of(&config)
    {
        family.complete(&mut config);
        drop(family.keys(&config));
        drop(family.recipes(&config, &index::Weights::default(), &mut error::Problems::default()));
    }
}
