//! Tokenizers: text to tokens and back, as the model was trained.
//!
//! There are four kinds:
//!
//! * `spm`: SentencePiece's BPE, which joins the pair with the best score;
//! * `bpe`: byte-level BPE, which cuts text into words (`pre`) and joins the pair with the lowest rank;
//! * Gemma 4's, which joins characters by rank, with spaces as `▁`;
//! * `unigram`: SentencePiece's unigram model, which finds the most likely pieces.
//!
//! The first three share one loop (`merge`). Plain text never becomes a control token (`special`): a prompt
//! that spells `</s>` is text.

use std::collections::HashMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

pub use self::recommended::Recommended;
use self::special::Literals;
use super::gguf::{Array, Gguf, KeyError, Value};
use crate::sampler::Sampling;

mod merge;

mod bpe;
mod error;
mod pre;
mod recommended;
mod special;
mod spm;
mod strips;
mod unigram;

#[cfg(test)]
mod tests;

pub use error::TokenizerError;
pub use pre::{PublishedRule, rules};
pub use special::ends_by_its_text;
pub use strips::Strips;

/// The most tokens of a vocabulary.
const TOKENS_MAX: usize = 1 << 22;

/// The text of the unknown token, as in SentencePiece.
const UNKNOWN_TEXT: &str = " \u{2047} ";

/// How text becomes tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TokenizerKind {
    #[default]
    /// SentencePiece's BPE by scores, with bytes for unknown characters; `llama` in GGUF.
    #[serde(rename = "llama")]
    SentencePiece,
    /// BPE over bytes by merges; `gpt2` in GGUF.
    #[serde(rename = "gpt2")]
    ByteLevel,
    /// BPE over characters by merges, spaces as `▁`, with bytes for unknown characters; `gemma4` in GGUF.
    #[serde(rename = "gemma4")]
    Spaced,
    /// SentencePiece's unigram model, with bytes or an unknown token for unknown characters; `t5` in GGUF.
    #[serde(rename = "t5")]
    Unigram,
}

/// A tokenizer as in a file, unchecked: from a GGUF file or a container.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenizerData {
    /// How text becomes tokens.
    pub kind: TokenizerKind,
    /// The tokens by id, as GGUF writes them: spaces as `▁`, or bytes as GPT-2's letters.
    pub tokens: Vec<String>,
    /// [`TokenizerKind::SentencePiece`]: each token's score; higher ones are joined earlier.
    /// [`TokenizerKind::Unigram`]: the logarithm of its probability.
    pub scores: Vec<f32>,
    /// GGUF's type number of each token, 1 to 6.
    pub types: Vec<u8>,
    /// Kinds with merges: pairs to be joined, in order, a space between left and right.
    pub merges: Vec<String>,
    /// [`TokenizerKind::ByteLevel`]: the name of the pre-tokenizer; empty if the file names none.
    pub pre: String,
    /// The token that begins a text.
    pub bos: Option<u32>,
    /// The token that ends a text.
    pub eos: Option<u32>,
    /// The token that ends a turn of a dialogue.
    pub eot: Option<u32>,
    /// The token for unknown characters.
    pub unknown: Option<u32>,
    /// Whether the model expects `bos` before a text.
    pub add_bos: bool,
    /// Whether the model expects `eos` after a text.
    pub add_eos: bool,
    /// Kinds with scores: whether a space is put before a text.
    pub add_space_prefix: bool,
    /// [`TokenizerKind::Unigram`]: whether repeated spaces become one, and spaces at the ends of a text none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removes_spaces: bool,
    /// Tokens that take the spaces beside them.
    #[serde(default, skip_serializing_if = "Strips::is_empty")]
    pub strips: Strips,
    /// The Jinja template that renders a conversation as text, if the file has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_template: Option<String>,
    /// Sampling that the model's maker recommends, if the file has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recommended: Option<Recommended>,
}

impl TokenizerKind {
    /// Whether its tokens have scores.
    fn has_scores(self) -> bool {
        matches!(self, Self::SentencePiece | Self::Unigram)
    }
}

impl TokenizerData {
    /// Bytes of memory planned for cutting text into words, besides the vocabulary.
    pub fn words_bytes(&self) -> u64 {
        if self.kind == TokenizerKind::ByteLevel { pre::rule_bytes(&self.pre) } else { 0 }
    }

    /// Reads the tokenizer of a GGUF file.
    ///
    /// # Errors
    /// If keys are missing, mistyped or unsupported.
    pub fn from_gguf(gguf: &Gguf<'_>) -> Result<Self, TokenizerError> {
        let missing = |key: &str| KeyError::Missing { key: key.to_owned() };
        let model_key = "tokenizer.ggml.model";
        let kind = match gguf.text(model_key)?.ok_or_else(|| missing(model_key))? {
            "llama" => TokenizerKind::SentencePiece,
            "gpt2" => TokenizerKind::ByteLevel,
            "gemma4" => TokenizerKind::Spaced,
            "t5" => TokenizerKind::Unigram,
            found => {
                return Err(TokenizerError::Kind { found: found.to_owned() });
            }
        };
        let texts = |key: &str| -> Result<Vec<String>, KeyError> {
            gguf.texts(key)?.map(<[String]>::to_vec).ok_or_else(|| missing(key))
        };
        let tokens = texts("tokenizer.ggml.tokens")?;
        let types = types(gguf)?;
        let (mut scores, mut merges, mut pre) = (Vec::new(), Vec::new(), String::new());
        let mut removes_spaces = false;
        match kind {
            TokenizerKind::SentencePiece | TokenizerKind::Unigram => {
                removes_spaces = check_normalisation(gguf, kind)?;
                let key = "tokenizer.ggml.scores";
                let found = gguf.typed(key, "an array of single-precision numbers", |value| match value {
                    Value::Array(Array::F32(scores)) => Some(scores.clone()),
                    _ => None,
                })?;
                scores = found.ok_or_else(|| missing(key))?;
            }
            TokenizerKind::ByteLevel => {
                merges = texts("tokenizer.ggml.merges")?;
                gguf.text("tokenizer.ggml.pre")?.unwrap_or_default().clone_into(&mut pre);
            }
            TokenizerKind::Spaced => merges = texts("tokenizer.ggml.merges")?,
        }
        let id = |name: &str| -> Result<Option<u32>, KeyError> {
            let found = gguf.unsigned(&format!("tokenizer.ggml.{name}_token_id"))?;
            Ok(found.map(|id| u32::try_from(id).unwrap_or(u32::MAX)))
        };
        // defaults of SentencePiece's files
        let usual = |id: u32| {
            let control = types.get(id as usize).and_then(|&kind| TokenType::from_number(kind))
                == Some(TokenType::Control);
            Some(id).filter(|_| kind == TokenizerKind::SentencePiece && control)
        };
        let bos = id("bos")?.or_else(|| usual(1));
        let eos = id("eos")?.or_else(|| usual(2));
        let add_bos = match kind {
            TokenizerKind::Spaced => bos.is_some(), // early files say no, and mean yes
            _ => {
                let by_default = kind == TokenizerKind::SentencePiece
                    || kind == TokenizerKind::ByteLevel && pre::begins_with_bos(&pre);
                gguf.boolean("tokenizer.ggml.add_bos_token")?.unwrap_or(by_default && bos.is_some())
            }
        };
        Ok(Self {
            kind,
            bos,
            eos,
            eot: id("eot")?.or_else(|| special::end_of_turn(&tokens, &types)),
            unknown: id("unknown")?.or_else(|| {
                types
                    .iter()
                    .position(|&kind| TokenType::from_number(kind) == Some(TokenType::Unknown))
                    .map(|id| id as u32)
            }),
            add_bos,
            add_eos: gguf
                .boolean("tokenizer.ggml.add_eos_token")?
                .unwrap_or(kind == TokenizerKind::Unigram && eos.is_some()),
            add_space_prefix: kind.has_scores()
                && gguf
                    .boolean("tokenizer.ggml.add_space_prefix")?
                    .unwrap_or(kind == TokenizerKind::SentencePiece),
            removes_spaces,
            strips: Strips::from_gguf(gguf, &tokens, &types)?,
            chat_template: gguf.text("tokenizer.chat_template")?.map(str::to_owned),
            recommended: Recommended::from_gguf(gguf)?,
            tokens,
            scores,
            types,
            merges,
            pre,
        })
    }

    /// Checks this data and makes a tokenizer of it.
    ///
    /// # Errors
    /// [`TokenizerError`] if lists have different lengths, ids are out of range, or some text would have no
    /// tokens.
    pub fn into_tokenizer(self) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::new(self)
    }

    /// Whether the merges make every token of a byte-level vocabulary from its letters. If so, using words
    /// that are tokens directly changes nothing.
    pub fn merges_make_every_token(self) -> bool {
        let Ok(Tokenizer { vocabulary, model: Model::ByteLevel(model), .. }) = Tokenizer::new(self) else {
            return false;
        };
        let mut pieces = (0..).zip(&vocabulary.tokens).zip(&vocabulary.types);
        pieces.all(|((id, text), kind)| *kind != TokenType::Normal || model.makes(text, id))
    }

    /// A remark on an assumption about something that the file does not say.
    pub fn remark(&self) -> Option<String> {
        (self.kind == TokenizerKind::ByteLevel && self.pre.is_empty()).then(|| {
            "the file names no pre-tokenizer (key `tokenizer.ggml.pre`), and text is cut by the rule `default`, as llama.cpp \
             does: a model made with another sees other tokens than it learned; convert it again with a current converter"
                .to_owned()
        })
    }
}

/// The types of tokens, stored as one of two integer types.
fn types(gguf: &Gguf<'_>) -> Result<Vec<u8>, TokenizerError> {
    let key = "tokenizer.ggml.token_type";
    let found: Option<Vec<i64>> = gguf.typed(key, "an array of 32-bit integers", |value| match value {
        Value::Array(Array::I32(types)) => Some(types.iter().map(|&kind| kind.into()).collect()),
        Value::Array(Array::U32(types)) => Some(types.iter().map(|&kind| kind.into()).collect()),
        _ => None,
    })?;
    let found = found.ok_or_else(|| KeyError::Missing { key: key.to_owned() })?;
    let number =
        |(token, found): (usize, i64)| u8::try_from(found).map_err(|_| TokenizerError::Type { token, found });
    found.into_iter().enumerate().map(number).collect()
}

/// Refuses normalisation of text that llama's files never use; returns whether a unigram model removes
/// spaces.
fn check_normalisation(gguf: &Gguf<'_>, kind: TokenizerKind) -> Result<bool, TokenizerError> {
    let key = "tokenizer.ggml.remove_extra_whitespaces";
    let removes_spaces = gguf.boolean(key)? == Some(true);
    if removes_spaces && kind != TokenizerKind::Unigram {
        return Err(TokenizerError::Normalisation { key });
    }
    let key = "tokenizer.ggml.precompiled_charsmap";
    match gguf.value(key) {
        None => Ok(removes_spaces),
        Some(Value::Array(Array::U8(map))) if map.is_empty() => Ok(removes_spaces),
        Some(Value::Array(Array::I8(map))) if map.is_empty() => Ok(removes_spaces),
        Some(_) => Err(TokenizerError::Normalisation { key }),
    }
}

/// Checks that scores, which are compared and added, are finite.
fn scores_are_finite(scores: &[f32]) -> Result<(), TokenizerError> {
    match scores.iter().enumerate().find(|(_, score)| !score.is_finite()) {
        Some((token, &found)) => Err(TokenizerError::Score { token, found }),
        None => Ok(()),
    }
}

/// The use of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenType {
    /// A piece of text.
    Normal,
    /// Stands for unknown characters.
    Unknown,
    /// Controls the model; not text.
    Control,
    /// A piece of text that is never cut.
    UserDefined,
    /// An intermediate step of joining, cut up again in the end.
    Unused,
    /// A byte.
    Byte,
}

impl TokenType {
    fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

/// The tokens, and those among them that plain text can become.
#[derive(Debug)]
struct Vocabulary {
    tokens: Vec<String>,
    types: Vec<TokenType>,
    /// The ids of text pieces, sorted by text: a hash table would double the memory.
    sorted: Vec<u32>,
}

impl Vocabulary {
    fn new(tokens: Vec<String>, types: Vec<TokenType>) -> Self {
        let is_text = |id: &u32| {
            matches!(types[*id as usize], TokenType::Normal | TokenType::UserDefined | TokenType::Unused)
        };
        let mut sorted: Vec<u32> = (0..tokens.len() as u32).filter(is_text).collect();
        sorted.sort_by(|&a, &b| tokens[a as usize].cmp(&tokens[b as usize])); // stable: the lowest id comes first
        Self { tokens, types, sorted }
    }

    /// The ids of text pieces by text, for many look-ups; agrees with [`Vocabulary::find`].
    fn ids(&self) -> HashMap<&str, u32> {
        let text = |&id: &u32| (self.tokens[id as usize].as_str(), id);
        self.sorted.iter().rev().map(text).collect() // of equals the lowest id comes last, and stays
    }

    /// Every piece that a text starts with, shortest first: its bytes, and its id.
    fn beginnings(&self, text: &str) -> impl Iterator<Item = (usize, u32)> {
        let mut pieces = self.sorted.as_slice(); // those that begin as the text does, up to a byte
        let piece = |id: u32| self.tokens[id as usize].as_bytes();
        text.bytes()
            .enumerate()
            .map_while(move |(at, byte)| {
                let from = pieces.partition_point(|&id| piece(id).get(at).is_none_or(|&found| found < byte));
                pieces = &pieces[from..];
                let to = pieces.partition_point(|&id| piece(id).get(at).is_some_and(|&found| found == byte));
                pieces = &pieces[..to];
                let first = *pieces.first()?;
                Some((piece(first).len() == at + 1).then_some((at + 1, first)))
            })
            .flatten()
    }

    /// The piece with exactly this text.
    fn find(&self, text: &str) -> Option<u32> {
        let place = self.sorted.partition_point(|&id| self.tokens[id as usize].as_str() < text);
        self.sorted.get(place).copied().filter(|&id| self.tokens[id as usize] == text)
    }
}

/// The token of each byte, or the unknown token.
fn byte_tokens(
    mut of_byte: impl FnMut(u8) -> Option<u32>,
    unknown: Option<u32>,
) -> Result<[u32; 256], TokenizerError> {
    let mut tokens = [0; 256];
    for byte in 0..=u8::MAX {
        tokens[usize::from(byte)] = of_byte(byte).or(unknown).ok_or(TokenizerError::NoFallback { byte })?;
    }
    Ok(tokens)
}

/// The tables of a kind of tokenizer.
#[derive(Debug)]
enum Model {
    SentencePiece(spm::SentencePiece),
    ByteLevel(bpe::ByteLevel),
    Spaced(bpe::Spaced),
    Unigram(unigram::Unigram),
}

/// A checked tokenizer.
#[derive(Debug)]
pub struct Tokenizer {
    vocabulary: Vocabulary,
    model: Model,
    literals: Literals,
    bos: Option<u32>,
    eos: Option<u32>,
    /// The tokens that end a generation.
    ends: Vec<u32>,
    add_bos: bool,
    add_eos: bool,
    strips: Strips,
    chat_template: Option<String>,
    recommended: Option<Recommended>,
}

impl Tokenizer {
    /// Checks a tokenizer and prepares it.
    ///
    /// # Errors
    /// [`TokenizerError`] if lists have different lengths, ids are out of range, or some text would have no
    /// tokens.
    pub(crate) fn new(data: TokenizerData) -> Result<Self, TokenizerError> {
        let count = data.tokens.len();
        if !(1..=TOKENS_MAX).contains(&count) {
            return Err(TokenizerError::Vocabulary { found: count });
        }
        let check_length = |what, found| match found {
            found if found == count => Ok(()),
            _ => Err(TokenizerError::Length { what, found, tokens: count }),
        };
        check_length("token types", data.types.len())?;
        if data.kind.has_scores() {
            check_length("scores", data.scores.len())?;
        }
        let strips = data.strips.before.iter().chain(&data.strips.after);
        if let Some(&found) = strips.into_iter().find(|&&id| id as usize >= count) {
            return Err(TokenizerError::Id { what: "space-taking", found, tokens: count });
        }
        for (what, id) in
            [("beginning", data.bos), ("end", data.eos), ("end-of-turn", data.eot), ("unknown", data.unknown)]
        {
            if let Some(found) = id.filter(|&id| id as usize >= count) {
                return Err(TokenizerError::Id { what, found, tokens: count });
            }
        }
        for (what, wanted, id) in [("beginning", data.add_bos, data.bos), ("end", data.add_eos, data.eos)] {
            if wanted && id.is_none() {
                return Err(TokenizerError::NoId { what });
            }
        }
        let type_of = |(token, &number): (usize, &u8)| {
            TokenType::from_number(number).ok_or(TokenizerError::Type { token, found: number.into() })
        };
        let mut types = data.types.iter().enumerate().map(type_of).collect::<Result<Vec<_>, _>>()?;
        let ends = special::ends(&data.tokens, &mut types, data.eos, data.eot);

        let vocabulary = Vocabulary::new(data.tokens, types);
        let literals = Literals::new(&vocabulary, data.kind)?;
        let model = match data.kind {
            TokenizerKind::SentencePiece => Model::SentencePiece(spm::SentencePiece::new(
                &vocabulary,
                data.scores,
                data.unknown,
                data.add_space_prefix,
            )?),
            TokenizerKind::ByteLevel => {
                Model::ByteLevel(bpe::ByteLevel::new(&vocabulary, &data.merges, &data.pre, data.unknown)?)
            }
            TokenizerKind::Spaced => {
                Model::Spaced(bpe::Spaced::new(&vocabulary, &data.merges, data.unknown)?)
            }
            TokenizerKind::Unigram => Model::Unigram(unigram::Unigram::new(
                &vocabulary,
                data.scores,
                data.unknown,
                data.add_space_prefix,
                data.removes_spaces,
            )?),
        };
        let TokenizerData { bos, eos, add_bos, add_eos, strips, chat_template, recommended, .. } = data;
        Ok(Self {
            vocabulary,
            model,
            literals,
            bos,
            eos,
            ends,
            add_bos,
            add_eos,
            strips,
            chat_template,
            recommended,
        })
    }

    /// Number of tokens.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary.tokens.len()
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Whether a token ends the model's output.
    pub fn is_end(&self, token: u32) -> bool {
        self.ends.contains(&token)
    }

    /// Whether the model expects the beginning token before a text.
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether the model expects the end token after a text.
    pub fn adds_eos(&self) -> bool {
        self.add_eos
    }

    /// The Jinja template that renders a conversation as text, if the model has one.
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    /// Sampling that the model's maker recommends, if the file has it. Options that it leaves open have their defaults.
    pub fn recommended_sampling(&self) -> Option<Sampling> {
        self.recommended.map(Recommended::sampling)
    }

    /// The name of a special token that plain text never becomes: a control token such as `<|im_end|>`, or
    /// the unknown token. `None` for all others.
    pub fn special(&self, token: u32) -> Option<&str> {
        let kind = self.vocabulary.types.get(token as usize)?;
        let special = matches!(kind, TokenType::Control | TokenType::Unknown);
        special.then(|| self.vocabulary.tokens[token as usize].as_str())
    }

    /// Encodes plain text, with the beginning token in front if `add_bos` (and if there is one).
    pub fn encode(&self, text: &str, add_bos: bool) -> Vec<u32> {
        self.encode_text(text, add_bos, true, |text, from| self.literals.find(text, from, false))
    }

    /// Encodes plain text that continues other text: no space is put before it.
    pub fn encode_rest(&self, text: &str) -> Vec<u32> {
        self.encode_text(text, false, false, |text, from| self.literals.find(text, from, false))
    }

    /// Upper bound of the bytes of memory that [`Tokenizer::encode`] takes for a text, its tokens included.
    /// Small in comparison to a text with words of usual length.
    pub fn encode_bytes(&self, text: &str) -> usize {
        let longest = match &self.model {
            Model::SentencePiece(model) => model.longest(text),
            Model::ByteLevel(model) => model.longest(text),
            Model::Spaced(_) => text.split('\n').map(str::len).max().unwrap_or(0),
            Model::Unigram(_) => text.len(),
        };
        // a space takes three bytes, and each byte may become a token in a growing list
        let of_text = 3 + 3 * size_of::<u32>();
        of_text.saturating_mul(text.len()).saturating_add(merge::SYMBOL_BYTES.saturating_mul(longest))
    }

    /// Encodes a rendered chat template with its special tokens. The ascending byte ranges in `plain` came
    /// from people. Nothing in them, even in part, becomes a control token or marks a turn, whatever its type
    /// in the file. Text is joined across the borders of the ranges.
    ///
    /// Outside such a range, a stranger's text could end the turn and speak as somebody else.
    pub fn encode_rendered(&self, text: &str, plain: &[Range<usize>]) -> Vec<u32> {
        let said = |found: &Range<usize>| {
            let before = plain.partition_point(|range| range.end <= found.start);
            plain.get(before).is_some_and(|range| range.start < found.end)
        };
        let is_text = |token: u32| {
            let Vocabulary { tokens, types, .. } = &self.vocabulary;
            types[token as usize] == TokenType::UserDefined && !special::is_mark(&tokens[token as usize])
        };
        self.encode_text(text, false, true, |text, mut from| {
            loop {
                let (found, token) = self.literals.find(text, from, true)?;
                if is_text(token) || !said(&found) {
                    return Some((found, token));
                }
                // what plain text has at the same place, else whatever begins later
                match self.literals.find(text, from, false) {
                    Some((plain, token)) if plain.start == found.start && is_text(token) => {
                        return Some((plain, token));
                    }
                    _ => from = text.ceil_char_boundary(found.start + 1),
                }
            }
        })
    }

    /// Encodes a text; `find` returns the first literal from a byte on, and `begins` says whether the text
    /// continues nothing.
    fn encode_text(
        &self,
        text: &str,
        add_bos: bool,
        mut begins: bool,
        find: impl Fn(&str, usize) -> Option<(Range<usize>, u32)>,
    ) -> Vec<u32> {
        let mut tokens = Vec::new();
        tokens.extend(self.bos.filter(|_| add_bos));
        let mut at = 0;
        while at < text.len() {
            let found = find(text, at);
            let end = found.as_ref().map_or(text.len(), |(range, token)| {
                let strips = self.strips.before.contains(token);
                if strips { at + text[at..range.start].trim_end().len() } else { range.start }
            });
            if end > at {
                let (vocabulary, text) = (&self.vocabulary, &text[at..end]);
                match &self.model {
                    Model::SentencePiece(model) => model.encode(vocabulary, text, begins, &mut tokens),
                    Model::ByteLevel(model) => model.encode(vocabulary, text, &mut tokens),
                    Model::Spaced(model) => model.encode(vocabulary, text, &mut tokens),
                    Model::Unigram(model) => model.encode(vocabulary, text, begins, &mut tokens),
                }
                begins = false;
            }
            at = end;
            if let Some((range, token)) = found {
                tokens.push(token);
                let after = &text[range.end..];
                let strips = self.strips.after.contains(&token);
                at = text.len() - if strips { after.trim_start().len() } else { after.len() };
                begins = true; // after a literal, text begins anew, as in llama.cpp
            }
        }
        tokens
    }

    /// Decodes tokens from the start of a text; invalid UTF-8 becomes U+FFFD.
    pub fn decode(&self, tokens: &[u32]) -> String {
        let mut decoder = self.stream_from_beginning();
        let mut text: String = tokens.iter().map(|&token| decoder.push(token)).collect();
        text.push_str(&decoder.finish());
        text
    }

    /// The bytes of a single token, possibly part of a character; the name of a control token. `None` beyond
    /// the vocabulary.
    pub fn piece(&self, token: u32) -> Option<Vec<u8>> {
        let text = self.vocabulary.tokens.get(token as usize)?;
        let mut bytes = Vec::new();
        match (&self.model, self.vocabulary.types[token as usize]) {
            (_, TokenType::Control | TokenType::Unknown) => bytes.extend_from_slice(text.as_bytes()),
            (Model::SentencePiece(_) | Model::Spaced(_) | Model::Unigram(_), kind) => {
                spm::decode(text, kind, &mut bytes);
            }
            (Model::ByteLevel(model), kind) => model.decode(text, kind, &mut bytes),
        }
        Some(bytes)
    }

    /// Decodes token by token from the start of a text.
    pub(crate) fn stream_from_beginning(&self) -> TextStream<'_> {
        TextStream { tokenizer: self, pending: Vec::new(), begins: true }
    }

    /// Decodes token by token after a prompt; a first space is kept.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream { begins: false, ..self.stream_from_beginning() }
    }
}

/// Decodes tokens as they arrive, holding back bytes until they form a character.
#[derive(Debug)]
pub struct TextStream<'t> {
    tokenizer: &'t Tokenizer,
    /// The start of a character: at most three bytes.
    pending: Vec<u8>,
    /// Whether no text has been returned, so that a space put before the text must be removed.
    begins: bool,
}

impl TextStream<'_> {
    /// The text that a token completes; empty for a control token.
    pub fn push(&mut self, token: u32) -> String {
        let vocabulary = &self.tokenizer.vocabulary;
        let place = token as usize;
        let (Some(text), Some(&kind)) = (vocabulary.tokens.get(place), vocabulary.types.get(place)) else {
            self.pending.extend_from_slice("\u{fffd}".as_bytes());
            return self.complete();
        };
        match kind {
            TokenType::Control => return String::new(),
            TokenType::Unknown => self.pending.extend_from_slice(UNKNOWN_TEXT.as_bytes()),
            _ => match &self.tokenizer.model {
                Model::SentencePiece(model) => model.decode(text, kind, self.begins, &mut self.pending),
                Model::ByteLevel(model) => model.decode(text, kind, &mut self.pending),
                Model::Spaced(_) => spm::decode(text, kind, &mut self.pending),
                Model::Unigram(model) => model.decode(text, kind, self.begins, &mut self.pending),
            },
        }
        self.begins = false;
        self.complete()
    }

    /// The text of the bytes still held back.
    pub fn finish(mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }

    /// Takes all text but an incomplete character at the end.
    fn complete(&mut self) -> String {
        let mut text = String::new();
        let mut held = Vec::new();
        let mut chunks = self.pending.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            match chunk.invalid() {
                [] => {}
                bytes if chunks.peek().is_none() && is_beginning(bytes) => held = bytes.to_vec(),
                _ => text.push('\u{fffd}'),
            }
        }
        self.pending = held;
        text
    }
}

/// Whether bytes are the start of a character.
fn is_beginning(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
}
