//! Why a model's description is refused.

use thiserror::Error;

use super::super::architectures;
use super::super::gguf::{KeyError, quote};

/// The known architectures with the same first word in their name, as the end of a clause.
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
    /// An architecture that is not read here.
    #[error(
        "architecture {} is not known here{}: give a model of {}",
        quote(found),
        relatives(found),
        architectures::names()
    )]
    Architecture {
        /// The architecture found.
        found: String,
    },
    /// A file that belongs to a model and is none.
    #[error("the file is {what}: {remedy}")]
    NoModel {
        /// The file's purpose.
        what: &'static str,
        /// The file to give in its place.
        remedy: &'static str,
    },
    /// A model of a kind that is not implemented.
    #[error("{what} is not implemented: give another model")]
    NotImplemented {
        /// The kind.
        what: &'static str,
    },
    /// An activation that does not exist.
    #[error("flashplan.activation is {}: it can be relu, silu or drelu", quote(found))]
    Activation {
        /// The value found.
        found: String,
    },
    /// A known key whose value changes the mathematics in a way that is not implemented.
    #[error("key `{key}` is {found}, and only {neutral} is implemented: give a model without it")]
    Unsupported {
        /// The key.
        key: String,
        /// The key's value.
        found: String,
        /// The values that are implemented.
        neutral: String,
    },
    /// A key of the architecture that is not known.
    #[error("key {} is not known here and may change the mathematics: give a model without it", quote(key))]
    UnknownKey {
        /// The key.
        key: String,
    },
    /// Blocks that differ where all must be alike.
    #[error(
        "the {what} of layer {layer} differs from that of a layer before, which is not implemented: give a model whose layers are alike"
    )]
    Differs {
        /// The part that differs.
        what: &'static str,
        /// The first block that differs.
        layer: usize,
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
