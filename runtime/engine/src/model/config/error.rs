//! Errors of a model's description.

use thiserror::Error;

use super::super::architectures;
use super::super::gguf::{KeyError, quote};

/// Known architectures whose name has the same first word, as the end of a clause.
fn relatives(found: &str) -> String {
    let family = |name: &'static str| name.split(|letter: char| !letter.is_ascii_alphabetic()).next();
    let own = found.split(|letter: char| !letter.is_ascii_alphabetic()).next().filter(|own| !own.is_empty());
    let alike: Vec<&str> = architectures().filter(|name| family(name) == own).collect();
    match alike.as_slice() {
        [] => String::new(),
        [one] => format!(", though its relative {one} is"),
        [others @ .., last] => format!(", though its relatives {} and {last} are", others.join(", ")),
    }
}

/// Why a model's description is refused.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ConfigError {
    /// A key is missing or has the wrong type.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// An unknown architecture.
    #[error(
        "architecture {} is not supported{}: give a model of {}",
        quote(found),
        relatives(found),
        architectures::names()
    )]
    Architecture {
        /// The architecture found.
        found: String,
    },
    /// A file that belongs to a model but is not one.
    #[error("the file is {what}: {remedy}")]
    NoModel {
        /// The purpose of the file.
        what: &'static str,
        /// The file to use instead.
        remedy: &'static str,
    },
    /// An unsupported kind of model.
    #[error("{what} is not implemented: give another model")]
    NotImplemented {
        /// The kind.
        what: &'static str,
    },
    /// An unknown activation.
    #[error("flashplan.activation is {}: it can be relu, silu or drelu", quote(found))]
    Activation {
        /// The value found.
        found: String,
    },
    /// A known key with an unsupported value.
    #[error("key `{key}` is {found}, and only {neutral} is implemented: give a model without it")]
    Unsupported {
        /// The key.
        key: String,
        /// The key's value.
        found: String,
        /// The supported values.
        neutral: String,
    },
    /// An unknown key of the architecture.
    #[error("key {} is unknown and may change the results: give a model without it", quote(key))]
    UnknownKey {
        /// The key.
        key: String,
    },
    /// Layers that differ where all must be equal.
    #[error(
        "the {what} of layer {layer} differs from an earlier layer's, which is not implemented: give a model whose layers are equal"
    )]
    Differs {
        /// The part that differs.
        what: &'static str,
        /// The first block that differs.
        layer: usize,
    },
    /// A size that is zero or implausible.
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
    /// An unusable constant.
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
