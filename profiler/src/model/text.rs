//! Calibration and held-out texts.
//!
//! The built-in texts are of four kinds (dialogue, code, mathematics, prose), because different neurons fire for each.

use std::ops::Range;
use std::path::Path;

use anyhow::Context as _;
use flashplan::internals::model::tokenizer::Tokenizer;

/// Calibration share of the user's text; the rest is held out.
const CALIBRATION_SHARE: f64 = 0.6;
/// Maximum tokens of a window: longer ones cost attention, and cores wait for the last.
pub(super) const WINDOW_TOKENS_MAX: usize = 512;
/// Minimum tokens of a window: a shorter one hardly predicts the next token.
const WINDOW_TOKENS_MIN: usize = 16;
/// Minimum windows of all texts, so that few tokens come from many places, ...
const WINDOWS_MIN: usize = 16;
/// ... as long as a window keeps this many tokens.
const SPREAD_TOKENS_MIN: usize = 64;

/// Calibration and held-out texts.
#[derive(Debug, Clone)]
pub struct Texts {
    /// For frequencies, predictors and thresholds.
    pub calibration: Vec<String>,
    /// For levels and losses.
    pub held_out: Vec<String>,
}

/// The text of one of the built-in files.
macro_rules! built_in {
    ($half:literal) => {
        [
            include_str!(concat!("../../texts/", $half, "/dialogue.txt")),
            include_str!(concat!("../../texts/", $half, "/code.txt")),
            include_str!(concat!("../../texts/", $half, "/mathematics.txt")),
            include_str!(concat!("../../texts/", $half, "/prose.txt")),
        ]
        .map(str::to_owned)
        .to_vec()
    };
}

impl Texts {
    /// The built-in texts.
    pub fn built_in() -> Self {
        Self { calibration: built_in!("calibration"), held_out: built_in!("held-out") }
    }

    /// The first 60 % of a file to calibrate, the rest held out.
    ///
    /// # Errors
    /// A file that cannot be read or is no text.
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

/// Texts as windows of tokens, each read from position 0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Windows {
    /// The tokens of each window.
    pub tokens: Vec<Vec<u32>>,
    /// The text that each window is from.
    pub text_of: Vec<usize>,
}

impl Windows {
    /// Windows of at most `tokens_max` tokens in all, an equal share of every text, spread over all of it.
    pub fn new(tokenizer: &Tokenizer, texts: &[String], context: usize, tokens_max: usize) -> Self {
        let encoded: Vec<Vec<u32>> = texts.iter().map(|text| tokenizer.encode(text, false)).collect();
        let total: usize = encoded.iter().map(Vec::len).sum();
        let share = (tokens_max as f64 / total.max(1) as f64).min(1.0);
        let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
        let longest = (context.min(WINDOW_TOKENS_MAX) - usize::from(bos.is_some())).max(1);
        let least = WINDOWS_MIN.div_ceil(texts.len().max(1));
        let mut windows = Self::default();
        for (text, tokens) in encoded.iter().enumerate() {
            let kept = (tokens.len() as f64 * share) as usize;
            if kept < WINDOW_TOKENS_MIN.min(longest) {
                continue;
            }
            for range in spread(tokens.len(), kept, longest, least) {
                windows.tokens.push(bos.into_iter().chain(tokens[range].iter().copied()).collect());
                windows.text_of.push(text);
            }
        }
        windows
    }

    /// Some of the windows, in order, with about `tokens_max` tokens: the same share of every text, spread over it, and at least one.
    pub fn some(&self, tokens_max: usize) -> Vec<usize> {
        let share = (tokens_max as f64 / self.count().max(1) as f64).min(1.0);
        let mut some = Vec::new();
        for of_text in self.text_of.chunk_by(|a, b| a == b) {
            let first = self.text_of.partition_point(|text| *text < of_text[0]);
            let kept = ((of_text.len() as f64 * share).round() as usize).max(1);
            some.extend((0..kept).map(|i| first + i * of_text.len() / kept));
        }
        some
    }

    /// Predicted tokens of each window: all but its first.
    pub fn predicted(&self) -> impl Iterator<Item = usize> {
        self.tokens.iter().map(|window| window.len().saturating_sub(1))
    }

    /// Perplexity from the negative log likelihoods of the windows; further entries of `losses` are of other text.
    pub fn perplexity(&self, losses: &[f64]) -> f64 {
        let (predicted, losses) = (self.predicted().sum::<usize>(), &losses[..self.tokens.len()]);
        (losses.iter().sum::<f64>() / predicted.max(1) as f64).exp()
    }

    /// Tokens of all windows.
    pub fn count(&self) -> usize {
        self.tokens.iter().map(Vec::len).sum()
    }
}

/// Windows with `kept` of `tokens` tokens, at most `longest` each: the middles of equal stretches of the text.
///
/// There are at least `least` windows, unless they would become too short.
fn spread(tokens: usize, kept: usize, longest: usize, least: usize) -> impl Iterator<Item = Range<usize>> {
    let count = kept.div_ceil(longest).max(least.min(kept / SPREAD_TOKENS_MIN)).max(1);
    let stretch = move |of: usize, i: usize| of * (i + 1) / count - of * i / count;
    (0..count).map(move |i| {
        let all = stretch(tokens, i);
        let part = stretch(kept, i).min(all);
        let start = tokens * i / count + (all - part) / 2;
        start..start + part
    })
}

#[cfg(test)]
mod tests {
    use flashplan::internals::model::source::SourceModel;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_built_in_texts_are_of_four_kinds_and_share_nothing() {
        let texts = Texts::built_in();
        assert_eq!((texts.calibration.len(), texts.held_out.len()), (4, 4));
        assert_ne!(hash(&texts.calibration), hash(&texts.held_out));
    }

    #[test]
    fn some_windows_are_of_every_text_and_from_all_of_it() {
        let windows = Windows { tokens: vec![vec![0; 100]; 9], text_of: vec![0, 0, 0, 0, 0, 0, 1, 1, 3] };
        assert_eq!(windows.some(900), (0..9).collect::<Vec<_>>());
        assert_eq!(windows.some(2000), (0..9).collect::<Vec<_>>());
        assert_eq!(windows.some(450), [0, 2, 4, 6, 8]);
        assert_eq!(windows.some(1), [0, 6, 8]);
    }

    #[test]
    fn a_given_text_is_split_between_characters() {
        let texts = Texts::split(&"ä".repeat(101));
        assert_eq!(texts.calibration[0].chars().count() + texts.held_out[0].chars().count(), 101);
        assert!(texts.calibration[0].len() > texts.held_out[0].len(), "60 % and 40 %");
    }

    proptest! {
        #[test]
        fn windows_lie_in_order_in_every_part_of_a_text(
            tokens in 16usize..20_000,
            share in 0.01f64..=1.0,
            longest in 32usize..512,
            least in 1usize..17,
        ) {
            let kept = ((tokens as f64 * share) as usize).max(16);
            let windows: Vec<_> = spread(tokens, kept, longest, least).collect();
            let sum = windows.iter().map(ExactSizeIterator::len).sum::<usize>();
            prop_assert!(sum <= kept && sum + windows.len() > kept, "{} of {}", sum, kept);
            prop_assert!(kept < tokens || sum == tokens, "all of it");
            prop_assert!(windows.iter().all(|window| (1..=longest).contains(&window.len())));
            prop_assert!(windows.is_sorted_by(|a, b| a.end <= b.start));
            prop_assert!(windows.last().is_some_and(|last| last.end <= tokens));
            // no gap is wider than two of what is between neighbours on average
            let gap = 2 * ((tokens - kept) / windows.len() + 2);
            let edges = windows.iter().flat_map(|w| [w.start, w.end]).collect::<Vec<_>>();
            let edges = [&[0][..], &edges, &[tokens]].concat();
            prop_assert!(edges.chunks(2).all(|pair| pair[1] - pair[0] <= gap), "{:?}", windows);
            // few tokens are many windows
            prop_assert!(windows.len() >= least.min(kept / SPREAD_TOKENS_MIN));
        }
    }

    #[test]
    fn a_sixth_of_the_built_in_texts_is_of_every_kind_and_every_quarter_of_it() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/models/oxide-dense.gguf");
        let source = SourceModel::open(Path::new(path)).unwrap();
        let tokenizer = source.tokenizer_data().unwrap().into_tokenizer().unwrap();
        let texts = Texts::built_in().held_out;
        let whole: Vec<Vec<u32>> = texts.iter().map(|text| tokenizer.encode(text, false)).collect();
        let count: usize = whole.iter().map(Vec::len).sum();
        let of = |tokens| Windows::new(&tokenizer, &texts, source.config().context, tokens);
        let quick = of(count / 6);
        assert!(quick.tokens.len() >= WINDOWS_MIN && quick.count() <= count / 6 + quick.tokens.len());
        assert_eq!(quick, of(count / 6), "the same twice");
        for (text, whole) in whole.iter().enumerate() {
            let windows = quick.tokens.iter().zip(&quick.text_of).filter(|&(_, &of)| of == text);
            let bos = bos(&tokenizer);
            let quarters = windows.map(|(window, _)| {
                let at = whole.windows(window.len() - bos).position(|part| *part == window[bos..]);
                4 * at.expect("of this text") / whole.len()
            });
            let mut quarters: Vec<usize> = quarters.collect();
            quarters.dedup();
            assert_eq!(quarters, [0, 1, 2, 3], "text {text}");
        }
        let full = of(count);
        let joined: Vec<u32> = full.tokens.iter().flat_map(|w| &w[bos(&tokenizer)..]).copied().collect();
        assert_eq!(joined, whole.concat(), "a full profile reads everything");
    }

    fn bos(tokenizer: &Tokenizer) -> usize {
        usize::from(tokenizer.adds_bos())
    }
}
