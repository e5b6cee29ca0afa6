//! The tokenizer's keys.
//!
//! Byte-level BPE comes from `tokenizer.json`. SentencePiece's BPE and unigram models come from `tokenizer.model`, or else from
//! `tokenizer.json`. Gemma 4 has a BPE with spaces as a letter.
//!
//! Source: `get_vocab_base` and `_create_vocab_sentencepiece` of llama.cpp's converter.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use flashplan::internals::model::tokenizer::{PublishedRule, TokenizerData, TokenizerKind};
use serde::Deserialize;
use serde_json::Value;

use crate::config::Config;
use crate::error::{FolderError, quote};
use crate::families::Family;
use crate::folder::{Folder, LARGE_MAX};
use crate::keys::Keys;
use crate::merged;
use crate::pre_tokenizer;
use crate::sentencepiece;
use crate::spaced;
use crate::special::{self, TokenizerConfig};
use crate::unigram;

/// Tokens of a vocabulary, at most.
const TOKENS_MAX: u64 = 1 << 22;

/// GGUF's numbers of the types of tokens.
pub(crate) const NORMAL: i32 = 1;
pub(crate) const UNKNOWN: i32 = 2;
pub(crate) const CONTROL: i32 = 3;
pub(crate) const USER_DEFINED: i32 = 4;
pub(crate) const UNUSED: i32 = 5;
pub(crate) const BYTE: i32 = 6;

/// The space of SentencePiece.
pub(crate) const SPACE: char = '\u{2581}';

/// A token of the GGUF file.
#[derive(Debug, Clone)]
pub(crate) struct Token {
    pub(crate) text: String,
    pub(crate) score: f32,
    pub(crate) kind: i32,
}

impl Token {
    fn padding(id: u64, score: f32) -> Self {
        Self { text: format!("[PAD{id}]"), score, kind: UNUSED }
    }
}

/// `tokenizer.json`, as far as it is read.
#[derive(Debug, Deserialize)]
pub(crate) struct TokenizerJson {
    #[serde(default)]
    pub(crate) added_tokens: Vec<AddedToken>,
    pub(crate) normalizer: Option<Value>,
    pub(crate) pre_tokenizer: Option<Value>,
    pub(crate) post_processor: Option<Value>,
    pub(crate) model: Model,
}

/// A token that was added to the vocabulary.
#[derive(Debug, Deserialize)]
pub(crate) struct AddedToken {
    pub(crate) id: u32,
    pub(crate) content: String,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    pub(crate) lstrip: bool,
    #[serde(default)]
    pub(crate) rstrip: bool,
}

/// The vocabulary and its merges.
#[derive(Debug, Deserialize)]
pub(crate) struct Model {
    #[serde(default)]
    pub(crate) ignore_merges: bool,
    #[serde(default)]
    pub(crate) byte_fallback: bool,
    pub(crate) unk_token: Option<String>,
    pub(crate) continuing_subword_prefix: Option<String>,
    pub(crate) end_of_word_suffix: Option<String>,
    pub(crate) vocab: HashMap<String, u32>,
    #[serde(default)]
    pub(crate) merges: Vec<Merge>,
    /// Score of each token of a unigram model.
    #[serde(skip)]
    pub(crate) scores: Option<Vec<f32>>,
}

/// A pair that is joined, as text or as two.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Merge {
    Text(String),
    Pair(String, String),
}

impl Merge {
    /// Left and right.
    pub(crate) fn sides(&self) -> Option<(&str, &str)> {
        match self {
            Self::Text(text) => text.split_once(' '),
            Self::Pair(left, right) => Some((left, right)),
        }
    }
}

/// The kind of a tokenizer's model.
#[derive(Deserialize)]
struct Kind {
    model: KindOfModel,
}

#[derive(Deserialize)]
struct KindOfModel {
    #[serde(rename = "type")]
    kind: Option<String>,
}

impl TokenizerJson {
    pub(crate) fn read(bytes: &[u8], path: &Path) -> Result<Self, FolderError> {
        let json = |error| FolderError::Json { path: path.to_owned(), error };
        let kind = serde_json::from_slice::<Kind>(bytes)
            .map_err(json)?
            .model
            .kind
            .unwrap_or_else(|| "BPE".to_owned());
        match &*kind {
            "BPE" => serde_json::from_slice(bytes).map_err(json),
            "Unigram" => unigram::read(bytes, path),
            _ => Err(FolderError::convertible(path, format!("tokenizer {}", quote(&kind)))),
        }
    }
}

/// Reads the bytes of any `tokenizer.json`, for fuzzing: makes a tokenizer or refuses.
pub(crate) fn read_any(bytes: &[u8], path: &Path) -> Result<(), FolderError> {
    let json = TokenizerJson::read(bytes, path)?;
    let size = json.model.vocab.len() + json.added_tokens.len();
    let mut tokens = tokens(&json, path, size as u64, None)?;
    if json.model.scores.is_some() {
        return unigram::score(&json, path, &mut tokens).map(drop);
    }
    if json.model.byte_fallback {
        drop(spaced::tokens(&json, path, size as u64, None));
        return merged::score(&json, path, &mut tokens).map(drop);
    }
    let rule = pre_tokenizer::rule(&json, path)?;
    name(&rule, &tokens, &merges(&json.model.merges));
    Ok(())
}

/// Writes the tokenizer's keys; remarks on it. The family may be missing, to say of another one's folder what is wrong besides.
pub(crate) fn keys(
    folder: &Folder,
    config: &Config,
    family: Option<&Family>,
    keys: &mut Keys,
) -> Result<Vec<String>, FolderError> {
    let named = |name: &str| folder.file(name);
    let space_prefix = family.and_then(|family| family.space_prefix);
    let told =
        |prefix: bool| (!prefix || family.is_some_and(|family| family.tells_space_prefix)).then_some(prefix);
    let tokenizer_config = folder.read("tokenizer_config.json", LARGE_MAX)?;
    let tokenizer_config = tokenizer_config
        .map(|bytes| TokenizerConfig::read(&bytes, &named("tokenizer_config.json")))
        .transpose()?;
    let size = config.size("vocab_size")?;
    if !(1..=TOKENS_MAX).contains(&size) {
        return Err(FolderError::damaged(
            config.path(),
            format!("a vocabulary of {size} tokens is outside 1 to {TOKENS_MAX}"),
        ));
    }
    let roles = family.map_or(&[][..], |family| family.roles);
    let json = folder.read("tokenizer.json", LARGE_MAX)?;
    let json_path = named("tokenizer.json");
    if family.is_some_and(|family| family.spaced) {
        let bytes = json
            .ok_or_else(|| FolderError::Lacks { path: folder.path().to_owned(), what: "tokenizer.json" })?;
        let json = TokenizerJson::read(&bytes, &json_path)?;
        drop(bytes);
        let own = tokenizer_config.as_ref();
        let tokens = spaced::tokens(&json, &json_path, size, own)?;
        spaced::keys(&json, &tokens, keys);
        let remarks = special::keys(folder, config, Some(&json), own, &tokens, roles, keys)?;
        keys.flag("tokenizer.ggml.add_bos_token", true);
        return Ok(remarks);
    }
    if let Some(bytes) = folder.read("tokenizer.model", LARGE_MAX)? {
        let model = sentencepiece::Model::read(&bytes, &named("tokenizer.model"))?;
        let json = json.map(|bytes| TokenizerJson::read(&bytes, &json_path)).transpose()?;
        let tokens = pieces(&model, size, folder, family, tokenizer_config.as_ref(), json.as_ref())?;
        let own = tokenizer_config.as_ref().and_then(|config| config.add_prefix_space);
        let space_prefix = space_prefix.or(own).or(told(model.space_prefix));
        if model.unigram {
            unigram::keys(&tokens, space_prefix.unwrap_or(true), model.removes_spaces, keys);
        } else {
            sentencepiece_keys(&tokens, space_prefix, keys);
        }
        let own = tokenizer_config.as_ref();
        let remarks = special::keys(folder, config, json.as_ref(), own, &tokens, roles, keys)?;
        if model.unigram {
            unigram::add_bos(keys);
        }
        return Ok(remarks);
    }
    let Some(bytes) = json else {
        return Err(FolderError::Lacks {
            path: folder.path().to_owned(),
            what: "tokenizer.json and no tokenizer.model",
        });
    };
    let json = TokenizerJson::read(&bytes, &json_path)?;
    drop(bytes);
    let (own, path) = (tokenizer_config.as_ref(), json_path.as_path());
    if json.model.scores.is_some() {
        let mut tokens = tokens(&json, path, size, own)?;
        let prefixed = unigram::score(&json, path, &mut tokens)?;
        unigram::keys(&tokens, space_prefix.unwrap_or(prefixed), false, keys);
        let remarks = special::keys(folder, config, Some(&json), own, &tokens, roles, keys)?;
        unigram::add_bos(keys);
        return Ok(remarks);
    }
    if json.model.byte_fallback {
        let mut tokens = tokens(&json, path, size, own)?;
        let prefixed = merged::score(&json, path, &mut tokens)?;
        let space_prefix = space_prefix.or(told(prefixed));
        sentencepiece_keys(&tokens, space_prefix, keys);
        return special::keys(folder, config, Some(&json), own, &tokens, roles, keys);
    }
    let tokens = byte_level(&json, path, size, family, own, keys)?;
    special::keys(folder, config, Some(&json), own, &tokens, roles, keys)
}

/// The keys of SentencePiece's BPE.
fn sentencepiece_keys(tokens: &[Token], space_prefix: Option<bool>, keys: &mut Keys) {
    keys.text("tokenizer.ggml.model", "llama");
    keys.text("tokenizer.ggml.pre", "default");
    keys.texts("tokenizer.ggml.tokens", tokens.iter().map(|token| token.text.as_str()));
    keys.numbers("tokenizer.ggml.scores", &tokens.iter().map(|token| token.score).collect::<Vec<_>>());
    keys.wholes("tokenizer.ggml.token_type", &tokens.iter().map(|token| token.kind).collect::<Vec<_>>());
    if let Some(space_prefix) = space_prefix {
        keys.flag("tokenizer.ggml.add_space_prefix", space_prefix);
    }
}

/// The keys of byte-level BPE; its tokens.
fn byte_level(
    json: &TokenizerJson,
    path: &Path,
    size: u64,
    family: Option<&Family>,
    tokenizer_config: Option<&TokenizerConfig>,
    keys: &mut Keys,
) -> Result<Vec<Token>, FolderError> {
    let model = &json.model;
    for (key, text) in [
        ("continuing_subword_prefix", &model.continuing_subword_prefix),
        ("end_of_word_suffix", &model.end_of_word_suffix),
    ] {
        if text.as_ref().is_some_and(|text| !text.is_empty()) {
            return Err(FolderError::convertible(path, format!("key `{key}`")));
        }
    }
    let rule = pre_tokenizer::rule(json, path)?;
    let tokens = tokens(json, path, size, tokenizer_config)?;
    let merges = merges(&model.merges);
    let pre = name(&rule, &tokens, &merges).ok_or_else(|| {
        let cuts = if rule.cuts.is_empty() {
            "no expression".to_owned()
        } else {
            rule.cuts.iter().map(|cut| quote(cut)).collect::<Vec<_>>().join(", ")
        };
        let (nfc, whole) = (
            if rule.nfc { ", text in NFC" } else { "" },
            if rule.whole_words { ", words taken whole" } else { "" },
        );
        FolderError::convertible(path, format!("cutting text into words by {cuts}{nfc}{whole}"))
    })?;
    let pre = match family.and_then(|family| family.alike) {
        Some((found, own)) if found == pre => own,
        _ => pre,
    };
    keys.text("tokenizer.ggml.model", "gpt2");
    keys.text("tokenizer.ggml.pre", pre);
    keys.texts("tokenizer.ggml.tokens", tokens.iter().map(|token| token.text.as_str()));
    keys.wholes("tokenizer.ggml.token_type", &tokens.iter().map(|token| token.kind).collect::<Vec<_>>());
    keys.texts("tokenizer.ggml.merges", merges.iter().map(String::as_str));
    Ok(tokens)
}

/// The rule's name. Whether words that are tokens are taken whole may differ where every token is what its merges make of it.
fn name(rule: &PublishedRule, tokens: &[Token], merges: &[String]) -> Option<&'static str> {
    if let Some(name) = rule.name() {
        return Some(name);
    }
    let other = PublishedRule { whole_words: !rule.whole_words, ..rule.clone() }.name()?;
    let data = TokenizerData {
        kind: TokenizerKind::ByteLevel,
        tokens: tokens.iter().map(|token| token.text.clone()).collect(),
        types: tokens.iter().map(|token| token.kind as u8).collect(), // one of six
        merges: merges.to_vec(),
        pre: other.to_owned(),
        ..TokenizerData::default()
    };
    data.merges_make_every_token().then_some(other)
}

/// Merges as GGUF writes them, with a space between left and right: a space within is written as a letter.
pub(crate) fn merges(merges: &[Merge]) -> Vec<String> {
    let spaced = |text: &str| text.replace(' ', "\u{120}");
    let text = |merge: &Merge| match merge {
        Merge::Text(text) => text.clone(),
        Merge::Pair(left, right) => format!("{} {}", spaced(left), spaced(right)),
    };
    merges.iter().map(text).collect()
}

/// The tokens of a vocabulary of so many.
pub(crate) fn tokens(
    json: &TokenizerJson,
    path: &Path,
    size: u64,
    tokenizer_config: Option<&TokenizerConfig>,
) -> Result<Vec<Token>, FolderError> {
    let mut tokens: Vec<Token> = (0..size).map(|id| Token::padding(id, 0.0)).collect();
    let of_id = |id: u32, text: &str| {
        let fact = || {
            FolderError::damaged(
                path,
                format!("token {} has id {id}, and there are {size} tokens", quote(text)),
            )
        };
        usize::try_from(id).ok().filter(|&id| (id as u64) < size).ok_or_else(fact)
    };
    for (text, &id) in &json.model.vocab {
        let token = &mut tokens[of_id(id, text)?];
        if token.kind != UNUSED {
            return Err(FolderError::damaged(
                path,
                format!("tokens {} and {} have one id, {id}", quote(text), quote(&token.text)),
            ));
        }
        *token = Token { text: text.clone(), score: 0.0, kind: NORMAL };
    }
    let named: BTreeSet<&str> = tokenizer_config.iter().flat_map(|config| config.named()).collect();
    let decoder = tokenizer_config.map(|config| &config.added_tokens_decoder);
    for added in &json.added_tokens {
        let place = of_id(added.id, &added.content)?;
        let again =
            decoder.and_then(|decoder| decoder.get(&added.id.to_string())).is_some_and(|token| token.special);
        let special = added.special || again || named.contains(added.content.as_str());
        tokens[place] = added_token(&added.content, special, 0.0);
    }
    for (id, added) in decoder.into_iter().flatten() {
        let Some(token) = id.parse().ok().and_then(|id: usize| tokens.get_mut(id)) else { continue };
        if token.kind == UNUSED {
            *token =
                added_token(&added.content, added.special || named.contains(added.content.as_str()), 0.0);
        }
    }
    Ok(tokens)
}

/// A token that was added: one that steers the model, or text that is never cut.
fn added_token(text: &str, special: bool, score: f32) -> Token {
    if special || looks_special(text) {
        return Token { text: text.to_owned(), score, kind: CONTROL };
    }
    Token { text: text.replace(SPACE, " "), score, kind: USER_DEFINED }
}

/// Whether a token steers the model by the look of it: some are not marked as special.
fn looks_special(text: &str) -> bool {
    let within = |first: &str, last: &str| text.starts_with(first) && text.ends_with(last);
    ["<pad>", "<mask>", "<2mass>", "[@BOS@]"].contains(&text)
        || within("<|", "|>")
        || within("<\u{ff5c}", "\u{ff5c}>")
        || within("<unused", ">")
}

/// The tokens of a SentencePiece model, added ones included.
fn pieces(
    model: &sentencepiece::Model,
    size: u64,
    folder: &Folder,
    family: Option<&Family>,
    tokenizer_config: Option<&TokenizerConfig>,
    json: Option<&TokenizerJson>,
) -> Result<Vec<Token>, FolderError> {
    const ADDED: f32 = -1000.0;
    let mut tokens: Vec<Token> = (0..size).map(|id| Token::padding(id, -10_000.0)).collect();
    for (token, piece) in tokens.iter_mut().zip(&model.pieces) {
        let kind = if piece.kind == USER_DEFINED { NORMAL } else { piece.kind };
        *token = Token { text: piece.text.clone(), score: piece.score, kind };
    }
    if let Some(bytes) = folder.read("added_tokens.json", LARGE_MAX)? {
        let path = folder.file("added_tokens.json");
        let added: HashMap<String, u64> =
            serde_json::from_slice(&bytes).map_err(|error| FolderError::Json { path, error })?;
        for (text, id) in added {
            if let Some(token) = usize::try_from(id).ok().and_then(|id| tokens.get_mut(id)) {
                *token = Token { text, score: ADDED, kind: USER_DEFINED };
            }
        }
    }
    let typed = family.is_some_and(|family| family.typed_tokens);
    let added = |text: &str, special: bool| match (typed, special) {
        (false, _) => added_token(text, special, ADDED),
        (true, special) => {
            Token { text: text.to_owned(), score: ADDED, kind: if special { CONTROL } else { USER_DEFINED } }
        }
    };
    for (id, token) in tokenizer_config.iter().flat_map(|config| &config.added_tokens_decoder) {
        if let Some(place) = id.parse().ok().and_then(|id: usize| tokens.get_mut(id)) {
            *place = added(&token.content, token.special);
        }
    }
    for token in json.into_iter().flat_map(|json| &json.added_tokens) {
        if let Some(place) = tokens.get_mut(token.id as usize).filter(|place| typed || place.kind == UNUSED) {
            *place = added(&token.content, token.special);
        }
    }
    Ok(tokens)
}
