//! GGUF's name of a `tokenizer.json`'s pre-tokenizer, which cuts text into words.
//!
//! llama.cpp's converter cuts a long text and looks up the hash of the tokens. So a new vocabulary with a known rule has no name. This module compares the rule itself: its expressions, NFC normalisation, and whether words that are tokens stay whole. Equal
//! rules cut every text in the same way.

use std::path::Path;

use flashplan::internals::model::tokenizer::PublishedRule;
use serde_json::Value;

use crate::error::{FolderError, quote};
use crate::tokenizer::TokenizerJson;

/// GPT-2's expression, which a `ByteLevel` step cuts by where it says so.
const BYTE_LEVEL: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Steps within steps, at most.
const DEPTH_MAX: usize = 8;

/// The rule of a tokenizer.
pub(crate) fn rule(json: &TokenizerJson, path: &Path) -> Result<PublishedRule, FolderError> {
    let mut rule = PublishedRule { cuts: Vec::new(), nfc: false, whole_words: json.model.ignore_merges };
    normaliser(json.normalizer.as_ref(), &mut rule, path, 0)?;
    steps(json.pre_tokenizer.as_ref(), &mut rule, path, 0)?;
    Ok(rule)
}

fn kind(step: &Value) -> &str {
    step.get("type").and_then(Value::as_str).unwrap_or("without a type")
}

fn normaliser(
    step: Option<&Value>,
    rule: &mut PublishedRule,
    path: &Path,
    depth: usize,
) -> Result<(), FolderError> {
    let Some(step) = step.filter(|step| !step.is_null()) else { return Ok(()) };
    match (kind(step), step.get("normalizers").and_then(Value::as_array)) {
        ("NFC", _) => {
            rule.nfc = true;
            Ok(())
        }
        ("Sequence", Some(steps)) if depth < DEPTH_MAX => {
            steps.iter().try_for_each(|step| normaliser(Some(step), rule, path, depth + 1))
        }
        (other, _) => Err(FolderError::convertible(path, format!("normaliser {}", quote(other)))),
    }
}

fn steps(
    step: Option<&Value>,
    rule: &mut PublishedRule,
    path: &Path,
    depth: usize,
) -> Result<(), FolderError> {
    let Some(step) = step.filter(|step| !step.is_null()) else { return Ok(()) };
    let flag = |key: &str, usual: bool| step.get(key).and_then(Value::as_bool).unwrap_or(usual);
    let refused = |what: String| Err(FolderError::convertible(path, what));
    match kind(step) {
        "Sequence" if depth < DEPTH_MAX => {
            let inner =
                step.get("pretokenizers").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            inner.iter().try_for_each(|step| steps(Some(step), rule, path, depth + 1))
        }
        "ByteLevel" if flag("add_prefix_space", true) => {
            refused("a space before text (key `add_prefix_space` of step `ByteLevel`)".to_owned())
        }
        "ByteLevel" => {
            if flag("use_regex", true) {
                rule.cuts.push(BYTE_LEVEL.to_owned());
            }
            Ok(())
        }
        "Digits" if flag("individual_digits", false) => {
            rule.cuts.push(r"\p{N}".to_owned());
            Ok(())
        }
        "Split" => {
            let expression =
                step.get("pattern").and_then(|pattern| pattern.get("Regex")).and_then(Value::as_str);
            let behavior = step.get("behavior").and_then(Value::as_str).unwrap_or_default();
            match (expression, behavior, flag("invert", false)) {
                // an expression whose last branch is `\s+` leaves nothing between its matches but what none of these rules leaves
                (Some(expression), "Isolated", false) | (Some(expression), "Removed", true) => {
                    rule.cuts.push(expression.to_owned());
                    Ok(())
                }
                _ => refused("a step `Split` that does not keep all text".to_owned()),
            }
        }
        other => refused(format!("step {} of cutting text into words", quote(other))),
    }
}
