//! Gemma 4's BPE: merges of characters, spaces as a letter, and bytes for characters without a token.
//!
//! Source: `Gemma4Model.set_vocab` of llama.cpp's converter. Differs: added tokens that steer the model are control tokens whether or
//! not a configuration names their role.

use std::path::Path;

use crate::error::FolderError;
use crate::keys::Keys;
use crate::merged::{self, is_byte};
use crate::special::TokenizerConfig;
use crate::tokenizer::{self, BYTE, CONTROL, NORMAL, Token, TokenizerJson, USER_DEFINED};

/// Score of all tokens.
const SCORE: f32 = -1000.0;

/// Tokens of calls and of reasoning, which are text for a reader of the answer.
const VISIBLE: [&str; 7] = [
    "<|channel>",
    "<channel|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    "<|\"|>",
];

/// The tokens of a vocabulary of so many, if text is cut and joined as this kind does.
pub(crate) fn tokens(
    json: &TokenizerJson,
    path: &Path,
    size: u64,
    tokenizer_config: Option<&TokenizerConfig>,
) -> Result<Vec<Token>, FolderError> {
    let refused = |what: String| Err(FolderError::convertible(path, what));
    if !json.model.byte_fallback || json.model.ignore_merges || json.model.scores.is_some() {
        return refused("a vocabulary without bytes, or whose words are taken whole,".to_owned());
    }
    if merged::space_prefix(json) != Some(false) {
        return refused(
            "a normaliser, or a cut of text into words, that does other than make spaces a letter".to_owned(),
        );
    }
    let mut tokens = tokenizer::tokens(json, path, size, tokenizer_config)?;
    for token in &mut tokens {
        token.score = SCORE;
        if token.kind == NORMAL && is_byte(&token.text) {
            token.kind = BYTE;
        } else if token.kind == CONTROL && VISIBLE.contains(&token.text.as_str()) {
            token.kind = USER_DEFINED;
        }
    }
    Ok(tokens)
}

/// The keys of the vocabulary.
pub(crate) fn keys(json: &TokenizerJson, tokens: &[Token], keys: &mut Keys) {
    let merges = tokenizer::merges(&json.model.merges);
    keys.text("tokenizer.ggml.model", "gemma4");
    keys.texts("tokenizer.ggml.tokens", tokens.iter().map(|token| token.text.as_str()));
    keys.numbers("tokenizer.ggml.scores", &tokens.iter().map(|token| token.score).collect::<Vec<_>>());
    keys.wholes("tokenizer.ggml.token_type", &tokens.iter().map(|token| token.kind).collect::<Vec<_>>());
    keys.texts("tokenizer.ggml.merges", merges.iter().map(String::as_str));
    keys.flag("tokenizer.ggml.add_space_prefix", false);
}
