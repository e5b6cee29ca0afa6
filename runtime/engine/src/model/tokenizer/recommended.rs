//! Sampling that the maker of a model recommends.

use serde::{Deserialize, Serialize};

use super::super::gguf::{Gguf, KeyError, Value};
use crate::sampler::Sampling;

/// The `general.sampling.*` keys of a GGUF file, as far as [`Sampling`] has them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recommended {
    /// `temp`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    /// `top_k`; 0: all
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    /// `top_p`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f32>,
    /// `min_p`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f32>,
    /// `penalty_repeat`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeat_penalty: Option<f32>,
}

impl Recommended {
    /// Reads a file's recommendation. One outside of an option's range is none.
    ///
    /// # Errors
    /// If a value has another type.
    pub(super) fn from_gguf(gguf: &Gguf<'_>) -> Result<Option<Self>, KeyError> {
        let number = |key: &str| gguf.number(&format!("general.sampling.{key}"));
        let top_k = gguf.typed("general.sampling.top_k", "a whole number", |value| match value {
            // a negative one is none, as llama.cpp reads it
            Value::Integer(value) => Some(u32::try_from((*value).max(0)).unwrap_or(0)),
            _ => None,
        })?;
        let found = Self {
            temperature: number("temp")?,
            top_k,
            top_p: number("top_p")?,
            min_p: number("min_p")?,
            repeat_penalty: number("penalty_repeat")?,
        };
        Ok(Some(found).filter(|found| *found != Self::default() && found.sampling().check().is_ok()))
    }

    /// The recommendation, and defaults for what it leaves open.
    pub(super) fn sampling(self) -> Sampling {
        let usual = Sampling::default();
        Sampling {
            temperature: self.temperature.unwrap_or(usual.temperature),
            top_k: self.top_k.map_or(usual.top_k, |most| most as usize),
            top_p: self.top_p.unwrap_or(usual.top_p),
            min_p: self.min_p.unwrap_or(usual.min_p),
            repeat_penalty: self.repeat_penalty.unwrap_or(usual.repeat_penalty),
            ..usual
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::writer::Writer;
    use super::*;

    fn read(file: Writer) -> Option<Sampling> {
        let bytes = file.bytes();
        Recommended::from_gguf(&Gguf::parse(&bytes).unwrap()).unwrap().map(Recommended::sampling)
    }

    #[test]
    fn a_recommendation_is_read_and_an_impossible_one_is_none() {
        assert_eq!(read(Writer::new()), None);
        let file = || Writer::new().f32("general.sampling.temp", 0.6).f32("general.sampling.top_p", 0.9);
        let mut expected = Sampling::default();
        (expected.temperature, expected.top_p) = (0.6, 0.9);
        assert_eq!(read(file()), Some(expected.clone()));
        expected.top_k = 20;
        assert_eq!(read(file().u32("general.sampling.top_k", 20)), Some(expected.clone()));
        // -1: all
        expected.top_k = 0;
        let all = file().raw(b"general.sampling.top_k", 5, &(-1_i32).to_le_bytes());
        assert_eq!(read(all), Some(expected));
        assert_eq!(read(file().f32("general.sampling.min_p", 7.0)), None);
    }
}
