//! SentencePiece's unigram model out of a `tokenizer.json`, and its keys.
//!
//! Source: `set_vocab` of llama.cpp's converter for T5, which writes the same keys of a `tokenizer.model`, and Hugging Face's `tokenizers`.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::error::{FolderError, quote};
use crate::keys::Keys;
use crate::merged::{is_byte, space_prefix};
use crate::tokenizer::{AddedToken, BYTE, Model, NORMAL, SPACE, Token, TokenizerJson, UNKNOWN, UNUSED};

/// `tokenizer.json` of a unigram model.
#[derive(Deserialize)]
struct UnigramJson {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    model: UnigramModel,
}

/// Pieces with their scores, in the order of their ids.
#[derive(Deserialize)]
struct UnigramModel {
    unk_id: Option<usize>,
    #[serde(default)]
    byte_fallback: bool,
    vocab: Vec<(String, f64)>,
}

/// A unigram model, with its scores beside the vocabulary.
pub(crate) fn read(bytes: &[u8], path: &Path) -> Result<TokenizerJson, FolderError> {
    let json: UnigramJson =
        serde_json::from_slice(bytes).map_err(|error| FolderError::Json { path: path.to_owned(), error })?;
    let UnigramJson { added_tokens, normalizer, pre_tokenizer, post_processor, model } = json;
    let unk_token = model.unk_id.and_then(|id| model.vocab.get(id)).map(|(text, _)| text.clone());
    let scores = model.vocab.iter().map(|(_, score)| *score as f32).collect();
    let mut vocab = HashMap::with_capacity(model.vocab.len());
    for (id, (text, _)) in (0..).zip(model.vocab) {
        if let Some(other) = vocab.insert(text.clone(), id) {
            let fact = format!("token {} has two ids, {other} and {id}", quote(&text));
            return Err(FolderError::damaged(path, fact));
        }
    }
    let model = Model {
        ignore_merges: false,
        byte_fallback: model.byte_fallback,
        unk_token,
        continuing_subword_prefix: None,
        end_of_word_suffix: None,
        vocab,
        merges: Vec::new(),
        scores: Some(scores),
    };
    Ok(TokenizerJson { added_tokens, normalizer, pre_tokenizer, post_processor, model })
}

/// Gives tokens their scores and types. Whether a space is put before a text.
pub(crate) fn score(json: &TokenizerJson, path: &Path, tokens: &mut [Token]) -> Result<bool, FolderError> {
    let refused =
        |what: String| FolderError::with_remedy(path, what, "put the model's tokenizer.model beside it");
    let prefixed = space_prefix(json).ok_or_else(|| {
        refused(
            "a normaliser, or a cut of text into words, other than that spaces become a letter".to_owned(),
        )
    })?;
    let scores = json.model.scores.as_deref().unwrap_or_default();
    let unknown = json.model.unk_token.as_deref();
    for (token, score) in tokens.iter_mut().zip(scores) {
        token.score = *score;
        if Some(token.text.as_str()) == unknown {
            token.kind = UNKNOWN;
        } else if token.kind == NORMAL && json.model.byte_fallback && is_byte(&token.text) {
            token.kind = BYTE;
        } else if token.kind == NORMAL && token.text.chars().skip(1).any(|letter| letter == SPACE) {
            return Err(refused(format!("a piece with a space within ({})", quote(&token.text))));
        }
    }
    if unknown.is_none() && !tokens.iter().any(|token| token.kind == BYTE) {
        return Err(refused("no token for what is unknown, and none for bytes".to_owned()));
    }
    tokens
        .iter_mut()
        .skip(scores.len())
        .filter(|token| token.kind == UNUSED)
        .for_each(|token| token.score = -1e4);
    Ok(prefixed)
}

/// The keys of a unigram model.
pub(crate) fn keys(tokens: &[Token], space_prefix: bool, removes_spaces: bool, keys: &mut Keys) {
    keys.text("tokenizer.ggml.model", "t5");
    keys.text("tokenizer.ggml.pre", "default");
    keys.texts("tokenizer.ggml.tokens", tokens.iter().map(|token| token.text.as_str()));
    keys.numbers("tokenizer.ggml.scores", &tokens.iter().map(|token| token.score).collect::<Vec<_>>());
    keys.wholes("tokenizer.ggml.token_type", &tokens.iter().map(|token| token.kind).collect::<Vec<_>>());
    keys.flag("tokenizer.ggml.add_space_prefix", space_prefix);
    keys.flag("tokenizer.ggml.remove_extra_whitespaces", removes_spaces);
}

/// Writes the default tokens around a text: one before it, if there is one, and none after it.
///
/// They are the default of transformers for these architectures, and not for T5.
pub(crate) fn add_bos(keys: &mut Keys) {
    let begins = keys.has("tokenizer.ggml.bos_token_id");
    for (key, add) in [("tokenizer.ggml.add_bos_token", begins), ("tokenizer.ggml.add_eos_token", false)] {
        if !keys.has(key) {
            keys.flag(key, add);
        }
    }
}
