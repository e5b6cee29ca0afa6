//! The keys of one architecture, requested by its reader or known to be harmless.

use std::cell::RefCell;
use std::collections::BTreeSet;

use kernels::{Activation, Format, dequantise};

use super::super::config::ConfigError;
use super::super::gguf::{Array, Gguf, KeyError, Value, quote};
use super::shapes::LAYERS_MAX;

/// The keys of a file, and the problems found so far.
#[derive(Debug)]
pub(super) struct Keys<'g> {
    gguf: &'g Gguf<'g>,
    pub(super) architecture: &'g str,
    /// The keys that the reader has requested.
    asked: RefCell<BTreeSet<String>>,
    problems: RefCell<Vec<ConfigError>>,
}

/// The meaning of a key that no reader requests.
enum Meaning {
    /// Does not change the mathematics.
    Harmless,
    /// Changes nothing with this value.
    Neutral(Value),
}

fn meaning(key: &str) -> Option<Meaning> {
    Some(match key {
        // the layout of q and k in every llama's GGUF file; the context before scaling, in files without
        // scaling
        "tensor_data_layout" | "rope.scaling.original_context_length" | "rope.scaling.finetuned" => {
            Meaning::Harmless
        }
        "vocab_size" => Meaning::Harmless,
        "rope.scaling.type" => Meaning::Neutral(Value::String("none".to_owned())),
        "rope.scaling.factor"
        | "rope.scaling.attn_factor"
        | "rope.scale_linear"
        | "expert_weights_scale"
        | "logit_scale"
        | "residual_scale"
        | "embedding_scale" => Meaning::Neutral(Value::Float(1.0)),
        "attn_logit_softcapping"
        | "final_logit_softcapping"
        | "attention.clamp_kqv"
        | "attention.max_alibi_bias" => Meaning::Neutral(Value::Float(0.0)),
        "use_parallel_residual" => Meaning::Neutral(Value::Boolean(false)),
        "attention.causal" | "expert_weights_norm" => Meaning::Neutral(Value::Boolean(true)),
        "nextn_predict_layers"
        | "expert_shared_count"
        | "expert_shared_feed_forward_length"
        | "expert_group_count"
        | "expert_group_used_count"
        | "leading_dense_block_count"
        | "attention.sliding_window" => Meaning::Neutral(Value::Integer(0)),
        "expert_gating_func" | "interleave_moe_layer_step" => Meaning::Neutral(Value::Integer(1)), // softmax; every layer
        _ => return None,
    })
}

/// A value, for a message.
fn shown(value: &Value) -> String {
    match value {
        Value::Integer(value) => value.to_string(),
        Value::Float(value) => value.to_string(),
        Value::Boolean(value) => value.to_string(),
        Value::String(value) => quote(value).to_string(),
        Value::Array(_) => "an array".to_owned(),
    }
}

/// The value of a required key.
pub(super) fn required<T>(key: &str, value: Option<T>) -> Result<T, KeyError> {
    value.ok_or_else(|| KeyError::Missing { key: key.to_owned() })
}

impl<'g> Keys<'g> {
    /// The keys of `architecture`.
    pub(super) fn new(gguf: &'g Gguf<'g>, architecture: &'g str) -> Self {
        Self { gguf, architecture, asked: RefCell::default(), problems: RefCell::default() }
    }

    /// All problems: those noted, and unrequested keys that may change the mathematics.
    pub(super) fn finish(self) -> Vec<ConfigError> {
        let (asked, mut problems) = (self.asked.into_inner(), self.problems.into_inner());
        for (key, value) in self.gguf.keys() {
            let own = key.strip_prefix(self.architecture).and_then(|key| key.strip_prefix('.'));
            let Some(own) = own.filter(|own| !asked.contains(*own)) else { continue };
            match meaning(own) {
                None => problems.push(ConfigError::UnknownKey { key: key.to_owned() }),
                Some(Meaning::Harmless) => {}
                Some(Meaning::Neutral(neutral)) if *value == neutral => {}
                Some(Meaning::Neutral(neutral)) => {
                    let (key, found, neutral) = (key.to_owned(), shown(value), shown(&neutral));
                    problems.push(ConfigError::Unsupported { key, found, neutral });
                }
            }
        }
        problems
    }

    /// Notes a problem.
    pub(super) fn refuse(&self, problem: ConfigError) {
        self.problems.borrow_mut().push(problem);
    }

    /// Notes an unsupported value of a key.
    pub(super) fn refuse_value(&self, key: &str, implemented: &str) {
        let key = self.name(key);
        let found = self.gguf.value(&key).map_or_else(|| "missing".to_owned(), shown);
        self.refuse(ConfigError::Unsupported { key, found, neutral: implemented.to_owned() });
    }

    /// Marks a key as irrelevant in this architecture.
    pub(super) fn ignore(&self, key: &str) {
        self.asked.borrow_mut().insert(key.to_owned());
    }

    /// Whether the file has a tensor.
    pub(super) fn has_tensor(&self, name: &str) -> bool {
        self.gguf.tensor(name).is_some()
    }

    /// Rows of a matrix; `None` if the file lacks it.
    pub(super) fn rows(&self, name: &str) -> Option<usize> {
        self.gguf.tensor(name).map(|tensor| usize::try_from(tensor.dims[1]).unwrap_or(usize::MAX))
    }

    /// Number of tensors in the file.
    pub(super) fn tensors(&self) -> usize {
        self.gguf.tensors().len()
    }

    /// The values of a vector in the file; `None` if it is absent or in blocks.
    pub(super) fn vector(&self, name: &str) -> Option<Vec<f32>> {
        let tensor = self.gguf.tensor(name)?;
        let format = tensor.kind.format().filter(|format| !format.has_blocks())?;
        let bytes = self.gguf.tensor_bytes(tensor);
        let mut values = vec![0.0; bytes.len() / format.row_bytes(1)];
        dequantise(format, bytes, &mut values);
        debug_assert!(format != Format::F32 || values.len() * 4 == bytes.len(), "four bytes each");
        Some(values)
    }

    /// Whether the magic is `PowerInfer`'s.
    pub(super) fn is_powerinfer(&self) -> bool {
        self.gguf.powerinfer()
    }

    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    /// The value of a key if present; notes a problem if it has the wrong type.
    fn value<T>(&self, key: &str, get: impl FnOnce(&str) -> Result<Option<T>, KeyError>) -> Option<T> {
        self.asked.borrow_mut().insert(key.to_owned());
        get(&self.name(key)).unwrap_or_else(|error| {
            self.refuse(error.into());
            None
        })
    }

    /// The value of a required key; if missing, notes a problem and returns `instead`.
    fn needed<T>(&self, key: &str, value: Option<T>, instead: T) -> T {
        let noted = |problem: &ConfigError| matches!(problem, ConfigError::Key(error) if error.key() == self.name(key));
        if value.is_none() && !self.problems.borrow().iter().any(noted) {
            self.refuse(KeyError::Missing { key: self.name(key) }.into());
        }
        value.unwrap_or(instead)
    }

    /// An integer; an array must repeat one number for all layers.
    pub(super) fn whole(&self, key: &str) -> Option<usize> {
        let name = self.name(key);
        if let Some(Value::Array(array)) = self.gguf.value(&name)
            && let Some(values) = whole_numbers(array)
        {
            self.ignore(key);
            let first = values.first().copied();
            if values.iter().any(|value| Some(*value) != first) {
                self.refuse_value(key, "one number for all layers");
            }
            return first.map(|first| usize::try_from(first).unwrap_or(usize::MAX));
        }
        let value = self.value(key, |key| self.gguf.unsigned(key));
        value.map(|value| usize::try_from(value).unwrap_or(usize::MAX))
    }

    /// An integer for each layer; a single number counts for all.
    pub(super) fn whole_of_layers(&self, key: &str, layers: usize) -> Vec<usize> {
        if let Some(Value::Array(array)) = self.gguf.value(&self.name(key))
            && let Some(values) = whole_numbers(array)
        {
            self.ignore(key);
            if values.len() < layers {
                self.refuse_value(key, "a number for each layer");
            }
            return values.into_iter().map(|value| usize::try_from(value).unwrap_or(usize::MAX)).collect();
        }
        vec![self.size(key); layers.min(LAYERS_MAX)]
    }

    /// A required integer.
    pub(super) fn size(&self, key: &str) -> usize {
        self.needed(key, self.whole(key), 1)
    }

    /// A number.
    pub(super) fn number(&self, key: &str) -> Option<f32> {
        self.value(key, |key| self.gguf.number(key))
    }

    /// A required number.
    pub(super) fn required_number(&self, key: &str) -> f32 {
        self.needed(key, self.number(key), 1.0)
    }

    /// A number; `None` if zero, which means none in files.
    pub(super) fn number_or_none(&self, key: &str) -> Option<f32> {
        self.number(key).filter(|&number| number != 0.0)
    }

    /// Integers of 0 or more, `least` of them or more; none if the key is absent.
    pub(super) fn wholes(&self, key: &str, least: usize) -> Option<Vec<u64>> {
        let value = self.gguf.value(&self.name(key))?;
        self.ignore(key);
        let numbers = match value {
            Value::Array(array) => whole_numbers(array),
            _ => None,
        };
        let numbers: Option<Vec<u64>> =
            numbers.and_then(|numbers| numbers.into_iter().map(|number| number.try_into().ok()).collect());
        let numbers = numbers.filter(|numbers| numbers.len() >= least);
        if numbers.is_none() {
            self.refuse_value(key, &format!("an array of {least} integers of 0 or more"));
        }
        numbers
    }

    /// A number for each layer; none if the key is absent.
    pub(super) fn numbers_of_layers(&self, key: &str, layers: usize) -> Option<Vec<f32>> {
        let value = self.gguf.value(&self.name(key))?;
        self.ignore(key);
        match value {
            Value::Array(Array::F32(numbers)) if numbers.len() >= layers => {
                return Some(numbers[..layers].to_vec());
            }
            _ => self.refuse_value(key, "a number for each layer"),
        }
        None
    }

    /// A text.
    pub(super) fn text(&self, key: &str) -> Option<&'g str> {
        let gguf = self.gguf;
        self.asked.borrow_mut().insert(key.to_owned());
        gguf.text(&self.name(key)).unwrap_or_else(|error| {
            self.refuse(error.into());
            None
        })
    }

    /// A flag under flashplan's own prefix, for properties that GGUF has no key for.
    pub(super) fn own_flag(&self, key: &str) -> Option<bool> {
        self.gguf.boolean(&format!("flashplan.{key}")).unwrap_or_else(|error| {
            self.refuse(error.into());
            None
        })
    }

    /// A flag.
    pub(super) fn flag(&self, key: &str) -> Option<bool> {
        self.value(key, |key| self.gguf.boolean(key))
    }

    /// The layers that a pattern marks: an array of flags, or a period that marks all layers but each last
    /// one. `period` is the default.
    pub(super) fn pattern(&self, key: &str, layers: usize, period: usize) -> Vec<bool> {
        let name = self.name(key);
        if let Some(Value::Array(array)) = self.gguf.value(&name) {
            self.ignore(key);
            let flags = match array {
                Array::Boolean(flags) => Some(flags.clone()),
                other => whole_numbers(other).map(|numbers| numbers.iter().map(|&n| n != 0).collect()),
            };
            if let Some(flags) = flags.filter(|flags| flags.len() >= layers) {
                return flags[..layers].to_vec();
            }
            self.refuse_value(key, "a flag for each layer");
        }
        let period = self.whole_of_file(key).unwrap_or(period);
        (0..layers).map(|layer| period == 0 || layer % period < period - 1).collect()
    }

    fn whole_of_file(&self, key: &str) -> Option<usize> {
        if matches!(self.gguf.value(&self.name(key)), Some(Value::Array(_))) { None } else { self.whole(key) }
    }

    /// The tokenizer's number of tokens; without a tokenizer, the key's.
    pub(super) fn vocabulary(&self) -> usize {
        let tokens = self.gguf.texts("tokenizer.ggml.tokens").unwrap_or_else(|error| {
            self.refuse(error.into());
            None
        });
        let Some(tokens) = tokens else { return self.size("vocab_size") };
        let said = self.whole("vocab_size").unwrap_or(tokens.len());
        if said != tokens.len() {
            let rule = format!("the tokenizer has {} tokens", tokens.len());
            self.refuse(ConfigError::Contradiction { what: "the vocabulary", found: said as u64, rule });
        }
        said
    }

    /// The activation: flashplan's own key, because GGUF has none, otherwise the architecture's.
    pub(super) fn activation(&self, usual: Activation) -> Activation {
        let own = self.gguf.text("flashplan.activation").unwrap_or_else(|error| {
            self.refuse(error.into());
            None
        });
        match own {
            None => usual,
            Some(found) if !usual.is_gated() => {
                self.refuse(ConfigError::Unsupported {
                    key: "flashplan.activation".to_owned(),
                    found: found.to_owned(),
                    neutral: format!("{}, of a network without gates,", usual.name()),
                });
                usual
            }
            Some("relu") => Activation::Relu,
            Some("silu") => Activation::Silu,
            Some("drelu") => Activation::Drelu,
            Some(found) => {
                self.refuse(ConfigError::Activation { found: found.to_owned() });
                usual
            }
        }
    }
}

/// The elements of an array of integers.
fn whole_numbers(array: &Array) -> Option<Vec<i128>> {
    fn all<T: Copy + Into<i128>>(values: &[T]) -> Option<Vec<i128>> {
        Some(values.iter().map(|&value| value.into()).collect())
    }
    match array {
        Array::U8(values) => all(values),
        Array::I8(values) => all(values),
        Array::U16(values) => all(values),
        Array::I16(values) => all(values),
        Array::U32(values) => all(values),
        Array::I32(values) => all(values),
        Array::U64(values) => all(values),
        Array::I64(values) => all(values),
        Array::F32(_) | Array::F64(_) | Array::Boolean(_) | Array::String(_) | Array::Array(_) => None,
    }
}
