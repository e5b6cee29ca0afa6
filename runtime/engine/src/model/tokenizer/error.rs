//! Why a tokenizer is refused.

use thiserror::Error;

use super::super::gguf::{KeyError, quote};
use super::{TOKENS_MAX, pre};

/// An error of a tokenizer.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum TokenizerError {
    /// A key is missing or has the wrong type.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// An unsupported kind of tokenizer.
    #[error(
        "tokenizer {} is not implemented: give a model with tokenizer.ggml.model llama, gpt2, gemma4 or t5",
        quote(found)
    )]
    Kind {
        /// The kind found.
        found: String,
    },
    /// An unsupported pre-tokenizer.
    #[error(
        "pre-tokenizer {} is not implemented, and another would give other tokens: give a model with one of {}",
        quote(found),
        pre::names()
    )]
    Pre {
        /// The pre-tokenizer's name.
        found: String,
    },
    /// An unsupported normalisation of text.
    #[error("key `{key}` requires a text normalisation that is not implemented: give a model without it")]
    Normalisation {
        /// The key.
        key: &'static str,
    },
    /// No tokens, or too many.
    #[error("the vocabulary has {found} tokens, outside 1 to {TOKENS_MAX}: convert the model again")]
    Vocabulary {
        /// Tokens found.
        found: usize,
    },
    /// A list with another length than the vocabulary.
    #[error("there are {found} {what} for {tokens} tokens: convert the model again")]
    Length {
        /// The contents of the list.
        what: &'static str,
        /// Entries found.
        found: usize,
        /// Tokens of the vocabulary.
        tokens: usize,
    },
    /// An unknown type of token.
    #[error("token {token} has type {found}, and there are 1 to 6: convert the model again")]
    Type {
        /// The token.
        token: usize,
        /// The type found.
        found: i64,
    },
    /// A score that is not finite.
    #[error(
        "token {token} has score {found}, which is not a number that can be compared: convert the model again"
    )]
    Score {
        /// The token.
        token: usize,
        /// The score found.
        found: f32,
    },
    /// A byte token that does not name a byte.
    #[error(
        "token {token}, {}, should name a byte as <0x00> to <0xFF>: convert the model again",
        quote(text)
    )]
    Byte {
        /// The token.
        token: usize,
        /// The token's text.
        text: String,
    },
    /// An id beyond the vocabulary.
    #[error("the {what} token is {found}, and there are {tokens} tokens: convert the model again")]
    Id {
        /// The token's role.
        what: &'static str,
        /// The id found.
        found: u32,
        /// Tokens of the vocabulary.
        tokens: usize,
    },
    /// A required token that does not exist.
    #[error("the model expects a {what} token and names none: convert the model again")]
    NoId {
        /// The token's role.
        what: &'static str,
    },
    /// A merge that does not join two tokens into a third.
    #[error(
        "merge {index}, {}, does not join two tokens of the vocabulary into a third: convert the model again",
        quote(text)
    )]
    Merge {
        /// The merge's index in the list.
        index: usize,
        /// The token's text.
        text: String,
    },
    /// A byte without a token.
    #[error(
        "the vocabulary has no token for byte {byte:#04x} and no unknown token: some text cannot be encoded, convert the model again"
    )]
    NoFallback {
        /// The first such byte.
        byte: u8,
    },
    /// Too many special tokens to search for in text.
    #[error(
        "{found} tokens would have to be searched for in text, which is too many: convert the model again"
    )]
    Literals {
        /// Number of such tokens.
        found: usize,
    },
}
