//! The texts that a model is measured on: one to learn from, one that nothing has learnt from.
//!
//! Built in are four kinds (dialogue, code, mathematics, prose), because neurons that fire for one rest for another.

use std::path::Path;

use anyhow::Context as _;
use flashplan::internals::model::tokenizer::Tokenizer;

/// Share of a text given by the user that calibrates; the rest is held out.
const CALIBRATION_SHARE: f64 = 0.6;
/// Tokens of a window at most: longer ones cost attention and keep cores waiting for the last.
const WINDOW_TOKENS_MAX: usize = 512;
/// A window below this says too little about the next token.
const WINDOW_TOKENS_MIN: usize = 16;

/// Calibration and held-out texts.
#[derive(Debug, Clone)]
pub struct Texts {
    /// Learnt from: frequencies, predictors, thresholds.
    pub calibration: Vec<String>,
    /// Measured on.
    pub held_out: Vec<String>,
}

/// The text of one of the built-in files.
macro_rules! built_in {
    ($half:literal) => {
        [
            include_str!(concat!("../../../fixtures/texts/", $half, "/dialogue.txt")),
            include_str!(concat!("../../../fixtures/texts/", $half, "/code.txt")),
            include_str!(concat!("../../../fixtures/texts/", $half, "/mathematics.txt")),
            include_str!(concat!("../../../fixtures/texts/", $half, "/prose.txt")),
        ]
        .map(str::to_owned)
        .to_vec()
    };
}

impl Texts {
    /// The texts built in.
    pub fn built_in() -> Self {
        Self { calibration: built_in!("calibration"), held_out: built_in!("held-out") }
    }

    /// The first 60 % of a file to calibrate, the rest held out.
    ///
    /// # Errors
    /// When the file cannot be read or is no text.
    pub fn from_file(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the text {}; give a UTF-8 text file", path.display()))?;
        Ok(Self::split(&text))
    }

    fn split(text: &str) -> Self {
        let at = text.ceil_char_boundary((text.len() as f64 * CALIBRATION_SHARE) as usize);
        Self { calibration: vec![text[..at].to_owned()], held_out: vec![text[at..].to_owned()] }
    }
}

/// BLAKE3 of texts, one after another.
pub fn hash(texts: &[String]) -> String {
    let mut hasher = blake3::Hasher::new();
    for text in texts {
        hasher.update(text.as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

/// Texts as windows of tokens, each of which a model reads from position 0.
///
/// Windows of at most `tokens_max` tokens in all, an equal share of every text, so that every kind stays represented.
pub fn windows(tokenizer: &Tokenizer, texts: &[String], context: usize, tokens_max: usize) -> Vec<Vec<u32>> {
    let encoded: Vec<Vec<u32>> = texts.iter().map(|text| tokenizer.encode(text, false)).collect();
    let total: usize = encoded.iter().map(Vec::len).sum();
    let share = (tokens_max as f64 / total.max(1) as f64).min(1.0);
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    let length = context.min(WINDOW_TOKENS_MAX) - usize::from(bos.is_some());
    let mut windows = Vec::new();
    for tokens in &encoded {
        let kept = (tokens.len() as f64 * share) as usize;
        for window in tokens[..kept].chunks(length.max(1)) {
            if window.len() >= WINDOW_TOKENS_MIN.min(length) {
                windows.push(bos.into_iter().chain(window.iter().copied()).collect());
            }
        }
    }
    windows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_texts_are_of_four_kinds_and_share_nothing() {
        let texts = Texts::built_in();
        assert_eq!((texts.calibration.len(), texts.held_out.len()), (4, 4));
        assert_ne!(hash(&texts.calibration), hash(&texts.held_out));
    }

    #[test]
    fn a_given_text_is_split_between_characters() {
        let texts = Texts::split(&"ä".repeat(101));
        assert_eq!(texts.calibration[0].chars().count() + texts.held_out[0].chars().count(), 101);
        assert!(texts.calibration[0].len() > texts.held_out[0].len(), "60 % and 40 %");
    }
}
