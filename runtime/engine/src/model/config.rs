//! The sizes and constants of a model, from the keys of its GGUF file.
//!
//! A key that changes the mathematics and is not implemented is refused by name, and so is a key that is not known:
//! a model read almost right writes almost sense, and nobody sees why.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::gguf::{Gguf, KeyError, Value, quote};
use kernels::Activation;

/// Experts that one token may visit: more than any model has.
pub(crate) const EXPERTS_USED_MAX: usize = 64;

/// The architectures that are read here.
pub const ARCHITECTURES: [&str; 2] = ["llama", "bamboo"];

/// The sizes and constants of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The architecture's name in GGUF, one of [`ARCHITECTURES`].
    pub architecture: String,
    /// Tokens that exist; rows of the token embedding.
    pub vocabulary: usize,
    /// Values of the residual stream (`d_model`).
    pub width: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads of a layer.
    pub heads: usize,
    /// Key and value heads of a layer; `heads / kv_heads` query heads share one.
    pub kv_heads: usize,
    /// Values of one head, equal for queries, keys and values.
    pub head_width: usize,
    /// Neurons of a layer's feed-forward network, or of one expert.
    pub ffn_width: usize,
    /// Experts of a layer; 1 for a dense model.
    pub experts: usize,
    /// Experts a token is routed to; 1 for a dense model.
    pub experts_used: usize,
    /// Tokens of context the model was trained for.
    pub context: usize,
    /// The base of the rotary position's frequencies.
    pub rope_base: f32,
    /// Values of each head that are rotated; even, and the first ones of the head.
    pub rope_width: usize,
    /// The number that `RMSNorm` adds to the mean square.
    pub norm_epsilon: f32,
    /// The function between gate and up.
    pub activation: Activation,
}

/// Why a model's configuration is refused.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ConfigError {
    /// A key is missing or has the wrong type.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// An architecture that is not read here.
    #[error("architecture {} is not known here: give a model of {}", quote(found), ARCHITECTURES.join(" or "))]
    Architecture {
        /// The architecture found.
        found: String,
    },
    /// An activation that does not exist.
    #[error("flashplan.activation is {}: it can be relu, silu or drelu", quote(found))]
    Activation {
        /// The value found.
        found: String,
    },
    /// One part of several.
    #[error("the file is one of {parts} parts of a model: join them with llama-gguf-split --merge")]
    Split {
        /// The number of parts.
        parts: u64,
    },
    /// A known key whose value changes the mathematics in a way that is not implemented.
    #[error("key `{key}` is {found}, and only {neutral} is implemented: give a model without it")]
    Unsupported {
        /// The key.
        key: String,
        /// The key's value.
        found: String,
        /// The value that changes nothing.
        neutral: String,
    },
    /// A sliding window that is smaller than the context.
    #[error(
        "the model attends only to the last {window} of {context} tokens (`{key}`), which is not implemented: give a model without a sliding window"
    )]
    SlidingWindow {
        /// The key.
        key: String,
        /// Tokens a token attends to.
        window: u64,
        /// Tokens of context.
        context: usize,
    },
    /// A key of the architecture that is not known.
    #[error("key {} is not known here and may change the mathematics: give a model without it", quote(key))]
    UnknownKey {
        /// The key.
        key: String,
    },
    /// A size that is zero or absurd.
    #[error("{what} is {found}, outside 1 to {max}: the file is damaged, fetch it again")]
    Size {
        /// The size's name.
        what: &'static str,
        /// The value found.
        found: u64,
        /// The largest accepted.
        max: u64,
    },
    /// Two numbers that contradict each other.
    #[error("{what} is {found}, but {rule}: the file is damaged, fetch it again")]
    Contradiction {
        /// The number's name.
        what: &'static str,
        /// The value found.
        found: u64,
        /// The rule that it breaks, with the other number.
        rule: String,
    },
    /// A constant that is not usable.
    #[error(
        "{what} is {found}, and should be a positive finite number{limit}: the file is damaged, fetch it again"
    )]
    Constant {
        /// The constant's name.
        what: &'static str,
        /// The value found.
        found: f32,
        /// A further limit, as the end of a clause.
        limit: &'static str,
    },
}

/// The meaning of a key of the architecture's own name space.
enum Meaning {
    /// Read below.
    Read,
    /// Does not change the mathematics.
    Harmless,
    /// Changes nothing as long as its value is this.
    Neutral(Value),
}

/// The keys known, without the architecture before them.
fn meaning(key: &str) -> Option<Meaning> {
    Some(match key {
        "vocab_size"
        | "embedding_length"
        | "block_count"
        | "attention.head_count"
        | "attention.head_count_kv"
        | "attention.key_length"
        | "attention.value_length"
        | "feed_forward_length"
        | "expert_feed_forward_length"
        | "expert_count"
        | "expert_used_count"
        | "context_length"
        | "rope.freq_base"
        | "rope.dimension_count"
        | "attention.layer_norm_rms_epsilon"
        | "attention.sliding_window" => Meaning::Read,
        // the layout of q and k that every llama in GGUF has; the context before scaling, without a scaling
        "tensor_data_layout" | "rope.scaling.original_context_length" | "rope.scaling.finetuned" => {
            Meaning::Harmless
        }
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
        "expert_shared_count" | "expert_group_count" | "leading_dense_block_count" => {
            Meaning::Neutral(Value::Integer(0))
        }
        "expert_gating_func" | "interleave_moe_layer_step" => Meaning::Neutral(Value::Integer(1)), // softmax; every layer
        _ => return None,
    })
}

/// A value as text for a message.
fn shown(value: &Value) -> String {
    match value {
        Value::Integer(value) => value.to_string(),
        Value::Float(value) => value.to_string(),
        Value::Boolean(value) => value.to_string(),
        Value::String(value) => quote(value),
        Value::Array(_) => "an array".to_owned(),
    }
}

impl Config {
    /// The configuration a file describes.
    ///
    /// # Errors
    /// Keys missing, mistyped, contradictory or not implemented.
    pub fn from_gguf(gguf: &Gguf<'_>) -> Result<Self, ConfigError> {
        match gguf.unsigned("split.count")? {
            None | Some(0 | 1) => {}
            Some(parts) => return Err(ConfigError::Split { parts }),
        }
        let architecture = required("general.architecture", gguf.text("general.architecture")?)?;
        if !ARCHITECTURES.contains(&architecture) {
            return Err(ConfigError::Architecture { found: architecture.to_owned() });
        }
        let keys = Keys { gguf, architecture };
        keys.check_known()?;

        let width = keys.size("embedding_length")?;
        let heads = keys.size("attention.head_count")?;
        let head_width = keys.size_or("attention.key_length", width.checked_div(heads).unwrap_or(0))?;
        let value_width = keys.size_or("attention.value_length", head_width)?;
        if value_width != head_width {
            return Err(ConfigError::Unsupported {
                key: keys.name("attention.value_length"),
                found: value_width.to_string(),
                neutral: format!("{head_width}, as for keys,"),
            });
        }
        let experts = keys.size_or("expert_count", 1)?.max(1);
        let dense_ffn_width = keys.size_or("feed_forward_length", 0)?;
        let ffn_width = if experts > 1 {
            keys.size_or("expert_feed_forward_length", dense_ffn_width)?
        } else {
            dense_ffn_width
        };
        if ffn_width == 0 {
            keys.size("feed_forward_length")?; // missing, unless it is zero
        }
        let config = Self {
            architecture: architecture.to_owned(),
            vocabulary: keys.vocabulary()?,
            width,
            layers: keys.size("block_count")?,
            heads,
            kv_heads: keys.size_or("attention.head_count_kv", heads)?,
            head_width,
            ffn_width,
            experts,
            experts_used: if experts > 1 { keys.size("expert_used_count")? } else { 1 },
            context: keys.size("context_length")?,
            rope_base: gguf.number(&keys.name("rope.freq_base"))?.unwrap_or(10_000.0),
            rope_width: keys.size_or("rope.dimension_count", head_width)?,
            norm_epsilon: {
                let key = keys.name("attention.layer_norm_rms_epsilon");
                required(&key, gguf.number(&key)?)?
            },
            activation: activation(gguf, architecture)?,
        };
        config.check()?;
        let key = keys.name("attention.sliding_window");
        match gguf.unsigned(&key)? {
            Some(window) if window > 0 && window < config.context as u64 => {
                Err(ConfigError::SlidingWindow { key, window, context: config.context })
            }
            _ => Ok(config),
        }
    }

    /// Check that the numbers are usable and agree with each other, wherever they come from.
    ///
    /// # Errors
    /// [`ConfigError::Architecture`], [`ConfigError::Size`], [`ConfigError::Contradiction`] or
    /// [`ConfigError::Constant`].
    pub fn check(&self) -> Result<(), ConfigError> {
        if !ARCHITECTURES.contains(&self.architecture.as_str()) {
            return Err(ConfigError::Architecture { found: self.architecture.clone() });
        }
        // the products of any three of these fit 64 bits
        for (what, found, max) in [
            ("the vocabulary", self.vocabulary, 1 << 22),
            ("the width of the model", self.width, 1 << 18),
            ("the number of layers", self.layers, 1 << 12),
            ("the number of heads", self.heads, 1 << 12),
            ("the number of key and value heads", self.kv_heads, 1 << 12),
            ("the width of a head", self.head_width, 1 << 14),
            ("the number of neurons", self.ffn_width, 1 << 22),
            ("the number of experts", self.experts, 1 << 12),
            ("the number of experts used", self.experts_used, EXPERTS_USED_MAX),
            ("the context", self.context, 1 << 26),
            ("the rotated width of a head", self.rope_width, 1 << 14),
        ] {
            if !(1..=max).contains(&found) {
                return Err(ConfigError::Size { what, found: found as u64, max: max as u64 });
            }
        }
        let contradiction =
            |what, found: usize, rule| Err(ConfigError::Contradiction { what, found: found as u64, rule });
        if !self.heads.is_multiple_of(self.kv_heads) {
            let rule = format!("it must divide the number of heads, {}", self.heads);
            return contradiction("the number of key and value heads", self.kv_heads, rule);
        }
        if self.experts_used > self.experts {
            return contradiction(
                "the number of experts used",
                self.experts_used,
                format!("there are {}", self.experts),
            );
        }
        if self.rope_width > self.head_width || !self.rope_width.is_multiple_of(2) {
            let rule = format!("it must be even and at most the width of a head, {}", self.head_width);
            return contradiction("the rotated width of a head", self.rope_width, rule);
        }
        if !(self.rope_base.is_finite() && self.rope_base > 0.0) {
            return Err(ConfigError::Constant { what: "the rotary base", found: self.rope_base, limit: "" });
        }
        if !(self.norm_epsilon > 0.0 && self.norm_epsilon < 1.0) {
            let (what, limit) = ("the epsilon of the norms", " below 1");
            return Err(ConfigError::Constant { what, found: self.norm_epsilon, limit });
        }
        Ok(())
    }

    /// Values of all key heads of a token, and of all its value heads.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_width
    }

    /// Values of all query heads of a token.
    pub fn query_width(&self) -> usize {
        self.heads * self.head_width
    }
}

/// The activation, which GGUF has no key for.
///
/// Our own key wins; else `PowerInfer`'s magic makes a `llama` a `ReLU` model, and `bamboo` is dReLU by either magic.
fn activation(gguf: &Gguf<'_>, architecture: &str) -> Result<Activation, ConfigError> {
    match (gguf.text("flashplan.activation")?, architecture) {
        (Some("relu"), _) => Ok(Activation::Relu),
        (Some("silu"), _) => Ok(Activation::Silu),
        (Some("drelu"), _) => Ok(Activation::Drelu),
        (Some(found), _) => Err(ConfigError::Activation { found: found.to_owned() }),
        (None, "bamboo") => Ok(Activation::Drelu),
        (None, _) if gguf.powerinfer() => Ok(Activation::Relu),
        (None, _) => Ok(Activation::Silu),
    }
}

fn required<T>(key: &str, value: Option<T>) -> Result<T, KeyError> {
    value.ok_or_else(|| KeyError::Missing { key: key.to_owned() })
}

/// The keys of one architecture.
struct Keys<'g> {
    gguf: &'g Gguf<'g>,
    architecture: &'g str,
}

impl Keys<'_> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    fn size_or(&self, key: &str, default: usize) -> Result<usize, KeyError> {
        let value = self.gguf.unsigned(&self.name(key))?;
        Ok(value.map_or(default, |value| usize::try_from(value).unwrap_or(usize::MAX)))
    }

    fn size(&self, key: &str) -> Result<usize, KeyError> {
        let key = self.name(key);
        let value = required(&key, self.gguf.unsigned(&key)?)?;
        Ok(usize::try_from(value).unwrap_or(usize::MAX))
    }

    /// The tokens of the tokenizer; without one, what the key says.
    fn vocabulary(&self) -> Result<usize, ConfigError> {
        let Some(tokens) = self.gguf.texts("tokenizer.ggml.tokens")? else {
            return Ok(self.size("vocab_size")?);
        };
        let said = self.size_or("vocab_size", tokens.len())?;
        if said != tokens.len() {
            let rule = format!("the tokenizer has {} tokens", tokens.len());
            return Err(ConfigError::Contradiction { what: "the vocabulary", found: said as u64, rule });
        }
        Ok(said)
    }

    /// Check that every key of the architecture is one that is understood.
    fn check_known(&self) -> Result<(), ConfigError> {
        for (key, value) in self.gguf.keys() {
            let Some(own) = key.strip_prefix(self.architecture).and_then(|key| key.strip_prefix('.')) else {
                continue;
            };
            match meaning(own) {
                None => {
                    return Err(ConfigError::UnknownKey { key: key.to_owned() });
                }
                Some(Meaning::Read | Meaning::Harmless) => {}
                Some(Meaning::Neutral(neutral)) if *value == neutral => {}
                Some(Meaning::Neutral(neutral)) => {
                    let (key, found, neutral) = (key.to_owned(), shown(value), shown(&neutral));
                    return Err(ConfigError::Unsupported { key, found, neutral });
                }
            }
        }
        Ok(())
    }
}
