//! SentencePiece's BPE from a `tokenizer.json`, which has merges instead of scores.
//!
//! The merges were made from scores: all cuts of each piece into two, pieces with the best score first. So a piece's score is the rank of its
//! merges, which lie together. For a file of this form, joining by score and by merges give the same tokens. Other files are refused.
//!
//! Source: `SentencePieceExtractor` of Hugging Face's transformers. Differs: from llama.cpp's converter, which gives all tokens of such a
//! file one score, so that pieces are joined from left to right.

use std::collections::HashMap;
use std::path::Path;
use std::slice;

use serde_json::Value;

use crate::error::{FolderError, quote};
use crate::tokenizer::{BYTE, NORMAL, SPACE, Token, TokenizerJson, UNKNOWN, UNUSED};

/// Bytes of a piece, at most: all its cuts are looked up, which is the square of them. The longest published have some hundred.
const PIECE_BYTES_MAX: usize = 1 << 10;

/// Gives tokens the scores and types that a model of SentencePiece has. Whether a space is put before a text.
pub(crate) fn score(json: &TokenizerJson, path: &Path, tokens: &mut [Token]) -> Result<bool, FolderError> {
    let refused =
        |what: String| FolderError::with_remedy(path, what, "put the model's tokenizer.model beside it");
    let prefixed = space_prefix(json).ok_or_else(|| {
        refused("a normaliser, or a cut of text into words, that SentencePiece's BPE has not".to_owned())
    })?;
    if let Some(long) = json.model.vocab.keys().find(|piece| piece.len() > PIECE_BYTES_MAX) {
        return Err(refused(format!("a piece of {} bytes ({})", long.len(), quote(long))));
    }
    let scores = scores(json).map_err(|piece| {
        refused(format!("an order of merges (at {}) that no scores of SentencePiece's give", quote(&piece)))
    })?;
    let unknown = json.model.unk_token.as_deref();
    for token in tokens {
        if Some(token.text.as_str()) == unknown {
            token.kind = UNKNOWN;
        } else if token.kind == UNUSED {
            token.score = -(scores.len() as f32);
        } else if token.kind == NORMAL && is_byte(&token.text) {
            token.kind = BYTE;
        } else if token.kind == NORMAL {
            token.score = match scores.get(token.text.as_str()) {
                Some(&score) => score,
                None if token.text.chars().nth(1).is_none() => -(scores.len() as f32), // never joined
                None => return Err(refused(format!("a piece that no merge makes ({})", quote(&token.text)))),
            };
        }
    }
    Ok(prefixed)
}

/// The score of each piece that merges make; `Err`: the piece at which they are not in the order of scores.
fn scores(json: &TokenizerJson) -> Result<HashMap<&str, f32>, String> {
    let vocabulary = &json.model.vocab;
    let mut scores: HashMap<&str, f32> = HashMap::new();
    let mut merges = json.model.merges.iter().map(|merge| merge.sides().unwrap_or_default()).peekable();
    while let Some((left, right)) = merges.next() {
        let joined = [left, right].concat();
        let Some((piece, _)) = vocabulary.get_key_value(&joined) else { return Err(joined) };
        let mut cuts = usize::from(vocabulary.contains_key(left) && vocabulary.contains_key(right));
        while let Some((left, right)) =
            merges.next_if(|(left, right)| piece.strip_prefix(left) == Some(right))
        {
            cuts += usize::from(vocabulary.contains_key(left) && vocabulary.contains_key(right));
        }
        // twice: its merges do not lie together
        if cuts != cuts_of(piece, vocabulary) || scores.insert(piece, -(scores.len() as f32)).is_some() {
            return Err(joined);
        }
    }
    Ok(scores)
}

/// The cuts of a piece into two pieces.
fn cuts_of(piece: &str, vocabulary: &HashMap<String, u32>) -> usize {
    let cuts = piece.char_indices().skip(1).map(|(at, _)| piece.split_at(at));
    cuts.filter(|(left, right)| vocabulary.contains_key(*left) && vocabulary.contains_key(*right)).count()
}

/// A text of a step.
fn text<'s>(step: &'s Value, key: &str) -> &'s str {
    step.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Whether a step looks for spaces.
fn is_of_spaces(step: &Value) -> bool {
    step.get("pattern").is_some_and(|pattern| text(pattern, "String") == " ")
}

/// Whether a space is put before a text; `None` where text is changed or cut otherwise than by SentencePiece.
pub(crate) fn space_prefix(json: &TokenizerJson) -> Option<bool> {
    let space = SPACE.to_string();
    let replaces = |step: &Value| {
        text(step, "type") == "Replace" && is_of_spaces(step) && text(step, "content") == space
    };
    let prepends = |step: &Value| text(step, "type") == "Prepend" && text(step, "prepend") == space;
    let given = |step: &'_ Option<Value>| step.clone().filter(|step| !step.is_null());
    let (normaliser, cut) = (given(&json.normalizer), given(&json.pre_tokenizer));
    let Some(normaliser) = normaliser else {
        let cut = cut?;
        // a piece of a unigram model is cut at spaces, of which it has none but its first letter
        let whole = json.model.scores.is_some() || cut.get("split").and_then(Value::as_bool) == Some(false);
        return match text(&cut, "prepend_scheme") {
            _ if text(&cut, "type") != "Metaspace" || text(&cut, "replacement") != space || !whole => None,
            "first" | "always" => Some(true),
            "never" => Some(false),
            _ => None,
        };
    };
    // cut at spaces, of which none is left
    let uncut = cut.is_none_or(|cut| text(&cut, "type") == "Split" && is_of_spaces(&cut));
    let steps = normaliser.get("normalizers").and_then(Value::as_array);
    match steps.map_or(slice::from_ref(&normaliser), Vec::as_slice) {
        [replace] if uncut && replaces(replace) => Some(false),
        [prepend, replace] if uncut && prepends(prepend) && replaces(replace) => Some(true),
        _ => None,
    }
}

/// Whether a piece is named as one of a byte.
pub(crate) fn is_byte(text: &str) -> bool {
    let digits = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
}
