//! Added tokens that take the spaces beside them, as `lstrip` and `rstrip` of Hugging Face's tokenizers say.

use serde::{Deserialize, Serialize};

use super::super::gguf::{Array, Gguf, KeyError, Value};
use super::TokenType;

/// Tokens that take the spaces beside them when a text is cut.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Strips {
    /// Ids of tokens that take the spaces before them.
    pub before: Vec<u32>,
    /// Ids of tokens that take the spaces after them.
    pub after: Vec<u32>,
}

impl Strips {
    /// The keys of a GGUF file that list these tokens. Only files that were made of a folder have them.
    pub const KEYS: [&str; 2] = ["flashplan.tokenizer.strips_before", "flashplan.tokenizer.strips_after"];

    /// Whether no token takes spaces.
    pub fn is_empty(&self) -> bool {
        self.before.is_empty() && self.after.is_empty()
    }

    /// The tokens that a file lists, or else the known ones of the model.
    pub(super) fn from_gguf(gguf: &Gguf<'_>, tokens: &[String], types: &[u8]) -> Result<Self, KeyError> {
        let ids = |key: &str| {
            let found = gguf.typed(key, "an array of 32-bit integers", |value| match value {
                Value::Array(Array::I32(ids)) => Some(ids.iter().map(|&id| id as u32).collect()),
                _ => None,
            })?;
            Ok(found.unwrap_or_default())
        };
        let [before, after] = Self::KEYS;
        let listed = Self { before: ids(before)?, after: ids(after)? };
        if !listed.is_empty() {
            return Ok(listed);
        }
        let text = |key: &str| Ok(gguf.text(key)?.unwrap_or_default().to_owned());
        Ok(known(&text("general.name")?, &text("general.architecture")?, tokens, types))
    }
}

/// The tokens that take spaces, of models whose files do not list them.
///
/// llama.cpp knows Phi 3 by the model's name. The tokens of Phi 4 are as in Hugging Face's tokenizer.
pub(super) fn known(name: &str, architecture: &str, tokens: &[String], types: &[u8]) -> Strips {
    const PLAIN: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];
    let of = |taken: &dyn Fn(&str, Option<TokenType>) -> bool| -> Vec<u32> {
        let all = (0..).zip(tokens).zip(types);
        all.filter(|((_, text), kind)| taken(text, TokenType::from_number(**kind)))
            .map(|((id, _), _)| id)
            .collect()
    };
    let name = name.to_lowercase();
    if ["phi-3", "phi3"].iter().any(|known| name.contains(known)) {
        let special = [TokenType::Control, TokenType::UserDefined, TokenType::Unknown];
        let taken = |text: &str, kind: Option<TokenType>| {
            kind.is_some_and(|kind| special.contains(&kind)) && !PLAIN.contains(&text)
        };
        return Strips { before: Vec::new(), after: of(&taken) };
    }
    if architecture == "phi3" && tokens.iter().any(|text| text == "<|im_sep|>") {
        let all = of(&|_, kind| kind == Some(TokenType::Control));
        return Strips { before: all.clone(), after: all };
    }
    Strips::default()
}
