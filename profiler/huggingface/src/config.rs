//! `config.json`: keys that a family asks for, and keys that must not change anything.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::{FolderError, quote};

/// The largest whole number that is believed; GGUF has 32 bits for them.
const WHOLE_MAX: u64 = u32::MAX as u64;

/// The keys of a model.
#[derive(Debug)]
pub(crate) struct Config {
    path: PathBuf,
    keys: Map<String, Value>,
}

/// The rotary embedding's keys, of layers that see everything and of those with a window.
#[derive(Debug)]
pub(crate) struct RopeKeys {
    pub(crate) full: Map<String, Value>,
    pub(crate) sliding: Map<String, Value>,
}

impl Config {
    /// The keys of a file; keys of the text part precede keys of the whole model. Python's NaN and infinities, which JSON lacks, are null.
    pub(crate) fn read(bytes: &[u8], path: &Path) -> Result<Self, FolderError> {
        let mut keys: Map<String, Value> = serde_json::from_slice(&without_infinities(bytes))
            .map_err(|error| FolderError::Json { path: path.to_owned(), error })?;
        if let Some(Value::Object(text)) = keys.remove("text_config") {
            let architectures = keys.get("architectures").cloned();
            keys.extend(text);
            keys.extend(architectures.map(|value| ("architectures".to_owned(), value)));
        }
        Ok(Self { path: path.to_owned(), keys })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The name of the model's class.
    pub(crate) fn architecture(&self) -> Result<&str, FolderError> {
        let first = self.keys.get("architectures").and_then(|value| value.get(0)).and_then(Value::as_str);
        first
            .ok_or_else(|| FolderError::damaged(&self.path, "it names no architecture (key `architectures`)"))
    }

    /// Adds a key that is not there; one that is null stays so.
    pub(crate) fn add(&mut self, key: &str, value: u64) {
        self.keys.entry(key).or_insert_with(|| value.into());
    }

    /// Has a key under another name, where it is there and not null.
    pub(crate) fn rename(&mut self, from: &str, to: &str) {
        if let Some(value) = self.value(from).cloned() {
            self.keys.insert(to.to_owned(), value);
        }
    }

    /// The keys within a key that must be there.
    pub(crate) fn part(&self, key: &str) -> Result<Self, FolderError> {
        match self.value(key) {
            Some(Value::Object(keys)) => Ok(Self { path: self.path.clone(), keys: keys.clone() }),
            Some(_) => Err(self.mistyped(key, "an object")),
            None => Err(FolderError::damaged(&self.path, format!("key {} is missing", quote(key)))),
        }
    }

    /// A value that is not null.
    pub(crate) fn value(&self, key: &str) -> Option<&Value> {
        self.keys.get(key).filter(|value| !value.is_null())
    }

    /// Whether a key is there and null.
    pub(crate) fn is_null(&self, key: &str) -> bool {
        self.keys.get(key).is_some_and(Value::is_null)
    }

    fn mistyped(&self, key: &str, expected: &str) -> FolderError {
        FolderError::damaged(&self.path, format!("key {} is not {expected}", quote(key)))
    }

    /// A whole number, if it is there.
    pub(crate) fn whole(&self, key: &str) -> Result<Option<u64>, FolderError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let number = value.as_u64().filter(|&number| number <= WHOLE_MAX);
        number.map(Some).ok_or_else(|| self.mistyped(key, "a whole number of 0 or more"))
    }

    /// The whole number of the first of these keys that is there.
    pub(crate) fn whole_of(&self, keys: &[&str]) -> Result<Option<u64>, FolderError> {
        for key in keys {
            if let Some(found) = self.whole(key)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// A whole number that must be there.
    pub(crate) fn size(&self, key: &str) -> Result<u64, FolderError> {
        self.whole(key)?
            .ok_or_else(|| FolderError::damaged(&self.path, format!("key {} is missing", quote(key))))
    }

    /// A number, if it is there.
    pub(crate) fn number(&self, key: &str) -> Result<Option<f64>, FolderError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        value.as_f64().map(Some).ok_or_else(|| self.mistyped(key, "a number"))
    }

    /// Text, if it is there.
    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, FolderError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.mistyped(key, "text"))
    }

    /// A flag, if it is there.
    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, FolderError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.mistyped(key, "true or false"))
    }

    /// Requires a key to be absent, null, or this neutral value.
    pub(crate) fn neutral(&self, key: &str, neutral: &Value) -> Result<(), FolderError> {
        match self.value(key) {
            Some(value)
                if value != neutral && (value.as_f64().is_none() || value.as_f64() != neutral.as_f64()) =>
            {
                let shown: String = value.to_string().chars().take(40).collect();
                Err(FolderError::unsupported(&self.path, format!("key {} with {shown}", quote(key))))
            }
            _ => Ok(()),
        }
    }

    /// Names, if they are there.
    pub(crate) fn names(&self, key: &str) -> Result<Option<Vec<&str>>, FolderError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let names: Option<Vec<&str>> =
            value.as_array().and_then(|names| names.iter().map(Value::as_str).collect());
        names.map(Some).ok_or_else(|| self.mistyped(key, "an array of names"))
    }

    /// Whole numbers, if they are there.
    pub(crate) fn wholes(&self, key: &str) -> Result<Option<Vec<u64>>, FolderError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let wholes: Option<Vec<u64>> = value.as_array().and_then(|wholes| {
            wholes.iter().map(|whole| whole.as_u64().filter(|&whole| whole <= WHOLE_MAX)).collect()
        });
        wholes.map(Some).ok_or_else(|| self.mistyped(key, "an array of whole numbers of 0 or more"))
    }

    /// The type of each of so many layers, where the file says it.
    pub(crate) fn layer_types(&self, layers: u64) -> Result<Option<Vec<&str>>, FolderError> {
        self.names_of_layers("layer_types", layers)
    }

    /// A name for each of so many layers, where the file says it.
    pub(crate) fn names_of_layers(&self, key: &str, layers: u64) -> Result<Option<Vec<&str>>, FolderError> {
        match self.names(key) {
            Ok(None) => Ok(None),
            Ok(Some(names)) if names.len() as u64 == layers => Ok(Some(names)),
            _ => Err(self.mistyped(key, "a name for each layer")),
        }
    }

    /// The rotary embedding's keys, old and new: `rope_scaling` and `rope_theta`, or `rope_parameters`, perhaps by kind of layer.
    pub(crate) fn rope(&self) -> Result<RopeKeys, FolderError> {
        let (name, given) = match (self.value("rope_parameters"), self.value("rope_scaling")) {
            (Some(value), _) => ("rope_parameters", Some(value)),
            (None, value) => ("rope_scaling", value),
        };
        let mut full = match given {
            None => Map::new(),
            Some(Value::Object(keys)) => keys.clone(),
            Some(_) => return Err(self.mistyped(name, "an object")),
        };
        let part = |keys: &mut Map<String, Value>, kind: &str| match keys.remove(kind) {
            Some(Value::Object(keys)) => Ok(keys),
            None | Some(Value::Null) => Ok(Map::new()),
            Some(_) => Err(self.mistyped(name, "an object")),
        };
        let mut sliding = part(&mut full, "sliding_attention")?;
        if full.contains_key("full_attention") {
            full = part(&mut full, "full_attention")?;
        }
        let mirror = |keys: &mut Map<String, Value>, from: &str, to: &str| {
            if let (Some(value), false) = (self.value(from), keys.contains_key(to)) {
                keys.insert(to.to_owned(), value.clone());
            }
        };
        for key in ["rope_theta", "partial_rotary_factor", "original_max_position_embeddings"] {
            mirror(&mut full, key, key);
        }
        mirror(&mut sliding, "rope_local_base_freq", "rope_theta");
        for keys in [&mut full, &mut sliding] {
            if let (Some(kind), false) = (keys.get("type").cloned(), keys.contains_key("rope_type")) {
                keys.insert("rope_type".to_owned(), kind);
            }
        }
        Ok(RopeKeys { full, sliding })
    }

    /// The kind of scaling of the rotary embedding's keys.
    pub(crate) fn rope_kind<'k>(&self, keys: &'k Map<String, Value>) -> Result<&'k str, FolderError> {
        match keys.get("rope_type") {
            None | Some(Value::Null) => Ok("default"),
            Some(value) => value.as_str().ok_or_else(|| self.mistyped("rope_type", "text")),
        }
    }

    /// A number of the rotary embedding's keys.
    pub(crate) fn rope_number(
        &self,
        keys: &Map<String, Value>,
        key: &str,
    ) -> Result<Option<f64>, FolderError> {
        match keys.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or_else(|| self.mistyped(key, "a number")),
        }
    }

    /// Numbers of the rotary embedding's keys.
    pub(crate) fn rope_numbers(
        &self,
        keys: &Map<String, Value>,
        key: &str,
    ) -> Result<Option<Vec<f32>>, FolderError> {
        match keys.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                let all = value
                    .as_array()
                    .and_then(|all| all.iter().map(|it| it.as_f64().map(|it| it as f32)).collect());
                all.map(Some).ok_or_else(|| self.mistyped(key, "an array of numbers"))
            }
        }
    }
}

/// JSON with null for Python's NaN and infinities.
fn without_infinities(bytes: &[u8]) -> Cow<'_, [u8]> {
    const NONE: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
    let mut made: Option<Vec<u8>> = None;
    let (mut at, mut in_text) = (0, false);
    while let Some(&byte) = bytes.get(at) {
        let none = NONE.into_iter().find(|none| !in_text && bytes[at..].starts_with(none));
        let count = match (byte, none) {
            (_, Some(none)) => none.len(),
            (b'\\', None) if in_text => 2,
            _ => 1,
        };
        in_text ^= byte == b'"';
        let end = bytes.len().min(at + count);
        match (none, &mut made) {
            (Some(_), made) => made.get_or_insert_with(|| bytes[..at].to_vec()).extend(b"null"),
            (None, Some(made)) => made.extend(&bytes[at..end]),
            (None, None) => {}
        }
        at = end;
    }
    made.map_or(Cow::Borrowed(bytes), Cow::Owned)
}
