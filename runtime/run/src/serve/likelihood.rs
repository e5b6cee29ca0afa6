//! How likely the model holds a token, by its own logits: before penalties, bias, temperature and cuts.

use flashplan::Tokenizer;

/// Logarithm that stands for an impossible token: JSON has no infinity.
const LEAST: f64 = -9999.0;

/// A token's bytes and log probability (natural logarithm), and the likeliest tokens at its position. The first token of a text has no
/// probability: no token precedes it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Likelihood {
    pub(super) token: Vec<u8>,
    pub(super) logprob: Option<f64>,
    /// Likeliest first.
    pub(super) top: Vec<(Vec<u8>, f64)>,
}

impl Likelihood {
    /// The likelihood of a token under these logits, and of the `top` likeliest tokens. *Shapes*: `logits: [vocabulary]`.
    pub(super) fn of(logits: &[f32], token: u32, top: usize, tokenizer: &Tokenizer) -> Self {
        let (chosen, best) = among(logits, token, top);
        let piece = |(token, logprob)| (tokenizer.piece(token).unwrap_or_default(), logprob);
        Self {
            token: piece((token, chosen)).0,
            logprob: Some(chosen),
            top: best.into_iter().map(piece).collect(),
        }
    }

    /// The first token of a text, which has no probability.
    pub(super) fn first(token: u32, tokenizer: &Tokenizer) -> Self {
        Self { token: tokenizer.piece(token).unwrap_or_default(), logprob: None, top: Vec::new() }
    }
}

/// The logarithm of a token's probability, and the `top` highest, each with its token.
fn among(logits: &[f32], token: u32, top: usize) -> (f64, Vec<(u32, f64)>) {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - max).exp()).sum();
    let logprob = |logit: f32| (f64::from(logit - max) - sum.ln()).max(LEAST);
    let mut best: Vec<(u32, f32)> = Vec::with_capacity(top + 1);
    for (token, &logit) in (0..).zip(logits) {
        if best.len() < top || best.last().is_some_and(|&(_, least)| logit > least) {
            let place = best.partition_point(|&(_, other)| other >= logit);
            best.insert(place, (token, logit));
            best.truncate(top);
        }
    }
    let best = best.into_iter().map(|(token, logit)| (token, logprob(logit))).collect();
    (logits.get(token as usize).map_or(LEAST, |&logit| logprob(logit)), best)
}

/// Characters of a text whose bytes come in pieces that may cut them.
#[derive(Debug, Clone, Default)]
pub(super) struct Characters {
    whole: usize,
    /// The beginning of one.
    cut: Vec<u8>,
}

impl Characters {
    /// Adds bytes, and returns the count of whole characters before them.
    pub(super) fn then(&mut self, bytes: &[u8]) -> usize {
        let before = self.whole;
        self.cut.extend_from_slice(bytes);
        let mut cut = Vec::new();
        for chunk in self.cut.utf8_chunks() {
            self.whole += chunk.valid().chars().count();
            match std::str::from_utf8(chunk.invalid()) {
                Err(error) if error.error_len().is_none() => cut = chunk.invalid().to_vec(),
                Err(_) => self.whole += 1,
                Ok(_) => {}
            }
        }
        self.cut = cut;
        before
    }
}

/// Bytes as text; a broken character becomes U+FFFD.
pub(super) fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_the_softmax_and_the_first_of_a_sorted_list(
            logits in prop::collection::vec(-30.0_f32..30.0, 1..60),
            token in 0_usize..60,
            top in 0_usize..8,
        ) {
            let token = token % logits.len();
            let (chosen, best) = among(&logits, token as u32, top);
            let total: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
            let expected = |logit: f32| (f64::from(logit).exp() / total).ln();
            prop_assert!((chosen - expected(logits[token])).abs() < 1e-4);
            let mut sorted: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
            sorted.sort_by(|a, b| b.1.total_cmp(&a.1));
            sorted.truncate(top);
            prop_assert_eq!(best.len(), sorted.len());
            for (found, sorted) in best.iter().zip(sorted) {
                prop_assert_eq!(found.0, sorted.0);
                prop_assert!((found.1 - expected(sorted.1)).abs() < 1e-4);
            }
        }
    }

    #[test]
    fn a_character_that_comes_in_pieces_is_one() {
        let mut characters = Characters::default();
        let pieces: [&[u8]; 6] = [b"a", b"\xf0\x9f", b"\xa6\x80", b"b\xff", b"c\xc3", b"\xa9"];
        assert_eq!(pieces.map(|piece| characters.then(piece)), [0, 1, 1, 2, 4, 5]);
        assert_eq!(characters.then(b""), 6);
    }

    #[test]
    fn what_cannot_be_is_a_number_all_the_same() {
        let (chosen, best) = among(&[0.0, f32::NEG_INFINITY], 1, 2);
        assert_eq!((chosen, &best[..]), (LEAST, &[(0, 0.0), (1, LEAST)][..]));
    }
}
