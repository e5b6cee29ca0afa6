//! Tokens that begin and end texts, whether they are put there, and the template of conversations.
//!
//! Source: `SpecialVocab` of llama.cpp's `gguf-py`, in whose order files are asked.

use std::collections::BTreeMap;
use std::path::Path;

use flashplan::internals::model::tokenizer::Strips;
use serde::Deserialize;
use serde_json::Value;

use crate::config::Config;
use crate::error::FolderError;
use crate::folder::{Folder, SMALL_MAX};
use crate::keys::Keys;
use crate::tokenizer::{Token, TokenizerJson};

/// A token as `tokenizer_config.json` names it.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum Named {
    Text(String),
    Token {
        content: String,
    },
    /// Something else, which is left out.
    Other(serde::de::IgnoredAny),
}

impl Named {
    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Token { content: text } => Some(text),
            Self::Other(_) => None,
        }
    }
}

/// A token that was added to the vocabulary.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct AddedToken {
    pub(crate) content: String,
    #[serde(default)]
    pub(crate) special: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
}

/// A template, or several by name.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum Templates {
    One(String),
    Several(Vec<Template>),
}

/// One of several templates.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Template {
    name: String,
    template: String,
}

/// `tokenizer_config.json`.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct TokenizerConfig {
    pub(crate) add_prefix_space: Option<bool>,
    #[serde(default)]
    pub(crate) added_tokens_decoder: BTreeMap<String, AddedToken>,
    add_bos_token: Option<bool>,
    add_eos_token: Option<bool>,
    bos_token: Option<Named>,
    eos_token: Option<Named>,
    unk_token: Option<Named>,
    sep_token: Option<Named>,
    pad_token: Option<Named>,
    cls_token: Option<Named>,
    mask_token: Option<Named>,
    chat_template: Option<Templates>,
}

impl TokenizerConfig {
    pub(crate) fn read(bytes: &[u8], path: &Path) -> Result<Self, FolderError> {
        serde_json::from_slice(bytes).map_err(|error| FolderError::Json { path: path.to_owned(), error })
    }

    /// Tokens that are special because they are named here.
    pub(crate) fn named(&self) -> impl Iterator<Item = &str> {
        let all = [
            &self.bos_token,
            &self.eos_token,
            &self.unk_token,
            &self.sep_token,
            &self.pad_token,
            &self.cls_token,
            &self.mask_token,
        ];
        all.into_iter().flatten().filter_map(Named::text)
    }
}

/// The tokens of these roles, in llama.cpp's order, with their names in GGUF.
const ROLES: [(&str, &str); 9] = [
    ("bos", "bos"),
    ("eos", "eos"),
    ("unk", "unknown"),
    ("sep", "seperator"),
    ("pad", "padding"),
    ("cls", "cls"),
    ("mask", "mask"),
    ("eot", "eot"),
    ("eom", "eom"),
];

/// Lists the tokens that take the spaces beside them, where there are any. llama.cpp's converter has no keys for them.
fn strips(json: Option<&TokenizerJson>, tokenizer_config: Option<&TokenizerConfig>, keys: &mut Keys) {
    let taking: Vec<(i32, [bool; 2])> = match json {
        Some(json) => {
            json.added_tokens.iter().map(|token| (token.id as i32, [token.lstrip, token.rstrip])).collect()
        }
        None => {
            let all = tokenizer_config.into_iter().flat_map(|config| &config.added_tokens_decoder);
            let one =
                |(id, token): (&String, &AddedToken)| Some((id.parse().ok()?, [token.lstrip, token.rstrip]));
            all.filter_map(one).collect()
        }
    };
    for (side, key) in Strips::KEYS.into_iter().enumerate() {
        let ids: Vec<i32> = taking.iter().filter(|(_, strips)| strips[side]).map(|(id, _)| *id).collect();
        if !ids.is_empty() {
            keys.wholes(key, &ids);
        }
    }
}

/// Writes the ids of special tokens, whether they are added to a text, and the template; returns remarks on facts without a GGUF key.
///
/// The architecture knows some special tokens by their text.
pub(crate) fn keys(
    folder: &Folder,
    config: &Config,
    json: Option<&TokenizerJson>,
    tokenizer_config: Option<&TokenizerConfig>,
    tokens: &[Token],
    roles: &[(&'static str, &str)],
    keys: &mut Keys,
) -> Result<Vec<String>, FolderError> {
    strips(json, tokenizer_config, keys);
    let named = |role: &str| {
        let config = tokenizer_config?;
        let token = match role {
            "bos" => &config.bos_token,
            "eos" => &config.eos_token,
            "unk" => &config.unk_token,
            "sep" => &config.sep_token,
            "pad" => &config.pad_token,
            "cls" => &config.cls_token,
            "mask" => &config.mask_token,
            _ => &None,
        };
        token.as_ref().and_then(Named::text).map(str::to_owned)
    };
    let mut texts: BTreeMap<&str, String> =
        ROLES.iter().filter_map(|&(role, _)| Some((role, named(role)?))).collect();
    let mut added: BTreeMap<&str, bool> = BTreeMap::new();
    if let Some(json) = json {
        processors(json.post_processor.as_ref(), tokenizer_config.is_some(), &mut texts, &mut added);
    }
    if let Some(own) = tokenizer_config {
        for (role, add) in [("bos", own.add_bos_token), ("eos", own.add_eos_token)] {
            if let Some(add) = add {
                added.entry(role).or_insert(add); // what the tokenizer itself does counts for more
            }
        }
    }
    let mut ids: BTreeMap<&str, u64> = BTreeMap::new();
    if tokenizer_config.is_some() {
        for (role, text) in &texts {
            let found = json.and_then(|json| json.added_tokens.iter().find(|token| token.content == *text));
            if let Some(token) = found {
                ids.insert(role, token.id.into());
            }
        }
    }
    for (role, _) in ROLES {
        let key = format!("{role}_token_id");
        if let Some(id) = config.value(&key).and_then(Value::as_u64) {
            ids.entry(role).or_insert(id);
        }
    }
    for &(role, text) in roles {
        let found = json.and_then(|json| json.added_tokens.iter().find(|token| token.content == text));
        if let Some(token) = found {
            ids.entry(role).or_insert(token.id.into());
        }
    }
    let ends = ends(folder, config)?;
    if let Some(&first) = ends.first() {
        ids.entry("eos").or_insert(first);
    }
    let mut remarks = Vec::new();
    let known = |id: &u64| {
        let text = usize::try_from(*id).ok().and_then(|id| tokens.get(id)).map(|token| token.text.as_str());
        text.is_some_and(flashplan::internals::model::tokenizer::ends_by_its_text)
    };
    let eos = ids.get("eos").copied();
    let eom = ids.get("eom").copied();
    for id in ends.into_iter().filter(|id| eos != Some(*id) && eom != Some(*id) && !known(id)) {
        if *ids.entry("eot").or_insert(id) != id {
            remarks.push(format!("token {id} ends a generation by generation_config.json, and GGUF has no key for a third such token"));
        }
    }
    for (role, name) in ROLES {
        if let Some(&id) = ids.get(role).filter(|&&id| id < tokens.len() as u64) {
            keys.whole(&format!("tokenizer.ggml.{name}_token_id"), id as u32);
        }
    }
    for (role, add) in added {
        keys.flag(&format!("tokenizer.ggml.add_{role}_token"), add);
    }
    template(folder, tokenizer_config, keys)?;
    Ok(remarks)
}

/// Tokens that a tokenizer puts around a text.
fn processors<'t>(
    processor: Option<&Value>,
    has_config: bool,
    texts: &mut BTreeMap<&'t str, String>,
    added: &mut BTreeMap<&'t str, bool>,
) {
    let Some(processor) = processor.filter(|processor| processor.is_object()) else { return };
    let several = processor.get("processors").and_then(Value::as_array);
    let one = [processor.clone()];
    for processor in several.map_or(&one[..], Vec::as_slice) {
        match processor.get("type").and_then(Value::as_str) {
            Some("ByteLevel") => {
                added.entry("bos").or_insert(false);
                added.entry("eos").or_insert(false);
            }
            Some("RobertaProcessing") => {
                added.insert("bos", true);
                added.insert("eos", true);
            }
            Some("TemplateProcessing") => {
                let single =
                    processor.get("single").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
                if single.len() < 2 {
                    continue;
                }
                let special =
                    |part: Option<&Value>| Some(part?.get("SpecialToken")?.get("id")?.as_str()?.to_owned());
                if let Some(first) = special(single.first()) {
                    if !has_config {
                        texts.insert("bos", first.clone());
                    }
                    let bos = texts.entry("bos").or_insert_with(|| first.clone()).clone();
                    let begins = first == bos || texts.get("cls") == Some(&first);
                    added.insert("bos", begins);
                }
                if let Some(last) = special(single.last()) {
                    match texts.insert("eos", last.clone()) {
                        Some(eos) if eos != last && has_config => drop(texts.insert("eot", eos)),
                        _ => {}
                    }
                    added.insert("eos", true);
                }
            }
            _ => {}
        }
    }
}

/// Tokens that end a generation, at most; published models have a handful.
const ENDS_MAX: usize = 64;

/// The tokens that end a generation: one, or several of `generation_config.json`.
fn ends(folder: &Folder, config: &Config) -> Result<Vec<u64>, FolderError> {
    const NAME: &str = "generation_config.json";
    let mut found: Vec<u64> = Vec::new();
    let mut take = |value: Option<&Value>| match value {
        Some(Value::Array(ids)) => found.extend(ids.iter().filter_map(Value::as_u64)),
        Some(value) => found.extend(value.as_u64()),
        None => {}
    };
    take(config.value("eos_token_id"));
    if let Some(bytes) = folder.read(NAME, SMALL_MAX)? {
        let json: Value = serde_json::from_slice(&bytes)
            .map_err(|error| FolderError::Json { path: folder.file(NAME), error })?;
        take(json.get("eos_token_id"));
    }
    if found.len() > ENDS_MAX {
        let fact = format!("with {NAME} it names {} tokens that end a generation", found.len());
        return Err(FolderError::damaged(config.path(), fact));
    }
    let mut ids: Vec<u64> = Vec::new();
    found.into_iter().for_each(|id| {
        if !ids.contains(&id) {
            ids.push(id);
        }
    });
    Ok(ids)
}

/// The template of conversations: of the tokenizer's configuration, or in a file of its own.
fn template(
    folder: &Folder,
    tokenizer_config: Option<&TokenizerConfig>,
    keys: &mut Keys,
) -> Result<(), FolderError> {
    const KEY: &str = "tokenizer.chat_template";
    match tokenizer_config.and_then(|config| config.chat_template.as_ref()) {
        Some(Templates::One(text)) => keys.text(KEY, text),
        Some(Templates::Several(several)) => {
            let usual = several.iter().find(|template| template.name == "default").or(several.first());
            if let Some(usual) = usual {
                keys.text(KEY, &usual.template);
            }
        }
        None => {
            const NAME: &str = "chat_template.jinja";
            if let Some(bytes) = folder.read(NAME, SMALL_MAX)? {
                let text = String::from_utf8(bytes)
                    .map_err(|_| FolderError::damaged(&folder.file(NAME), "it is not UTF-8"))?;
                keys.text(KEY, &text);
            } else if let Some(bytes) = folder.read("chat_template.json", SMALL_MAX)? {
                let json: Value = serde_json::from_slice(&bytes)
                    .map_err(|error| FolderError::Json { path: folder.file("chat_template.json"), error })?;
                if let Some(text) = json.get("chat_template").and_then(Value::as_str) {
                    keys.text(KEY, text);
                }
            }
        }
    }
    Ok(())
}
