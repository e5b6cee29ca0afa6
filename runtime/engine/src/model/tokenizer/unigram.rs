//! SentencePiece's unigram model: finds the pieces of a text with the greatest sum of scores, which are log
//! probabilities.
//!
//! From left to right, keeps the best path to each place (Viterbi): its sum, and the start of its last piece.
//! A character that is no piece by itself is unknown and scores ten less than the worst piece. It becomes its
//! bytes or, together with its neighbours, one unknown token.
//!
//! Source: sentencepiece, `unigram_model.cc` (`EncodeOptimized`), in single precision, with ties to the
//! earlier start. Differences: pieces that are never cut are found earlier, and text after them starts as if
//! at the beginning. So does llama.cpp (`llm_tokenizer_ugm`), which makes no bytes of unknown characters. A
//! map of characters (`precompiled_charsmap`) is refused.

use super::spm::{self, SPACE};
use super::{TokenType, TokenizerError, Vocabulary, byte_tokens, scores_are_finite};

/// How much less than the worst piece an unknown character scores.
const UNKNOWN_PENALTY: f32 = 10.0;

/// The scores, and the handling of unknown characters.
#[derive(Debug)]
pub(super) struct Unigram {
    scores: Vec<f32>,
    unknown_score: f32,
    unknown: Unknown,
    add_space_prefix: bool,
    removes_spaces: bool,
}

/// The tokens of an unknown character.
#[derive(Debug)]
enum Unknown {
    /// The tokens of its bytes.
    Bytes(Box<[u32; 256]>),
    /// One token for it and its unknown neighbours.
    Token(u32),
}

/// The best path to a place in a text.
#[derive(Debug, Clone, Copy)]
struct Best {
    sum: f32,
    /// The start of its last piece.
    start: usize,
    /// Its last piece; `None` for an unknown character.
    token: Option<u32>,
}

impl Unigram {
    pub(super) fn new(
        vocabulary: &Vocabulary,
        scores: Vec<f32>,
        unknown: Option<u32>,
        add_space_prefix: bool,
        removes_spaces: bool,
    ) -> Result<Self, TokenizerError> {
        scores_are_finite(&scores)?;
        let bytes = spm::bytes(vocabulary)?;
        let unknown = match unknown {
            Some(token) if bytes.is_empty() => Unknown::Token(token),
            _ => Unknown::Bytes(Box::new(byte_tokens(|byte| bytes.get(&byte).copied(), unknown)?)),
        };
        let of_pieces = scores.iter().zip(&vocabulary.types).filter(|(_, kind)| **kind == TokenType::Normal);
        let worst = of_pieces.map(|(score, _)| *score).reduce(f32::min).unwrap_or(0.0);
        Ok(Self { unknown_score: worst - UNKNOWN_PENALTY, scores, unknown, add_space_prefix, removes_spaces })
    }

    /// Encodes a stretch of text; `begins` if a space is to be put before it.
    pub(super) fn encode(&self, vocabulary: &Vocabulary, text: &str, begins: bool, tokens: &mut Vec<u32>) {
        let spaced = self.spaced(text, begins);
        let mut best: Vec<Option<Best>> = vec![None; spaced.len() + 1];
        let improve = |known: &mut Option<Best>, way: Best| {
            if known.is_none_or(|known| way.sum > known.sum) {
                *known = Some(way);
            }
        };
        for (start, character) in spaced.char_indices() {
            let sum = best[start].map_or(0.0, |best| best.sum); // every place is reached, by unknown characters if not else
            let mut is_piece = false;
            for (bytes, token) in vocabulary.beginnings(&spaced[start..]) {
                if vocabulary.types[token as usize] == TokenType::Normal {
                    let way = Best { sum: self.scores[token as usize] + sum, start, token: Some(token) };
                    improve(&mut best[start + bytes], way);
                    is_piece |= bytes == character.len_utf8();
                }
            }
            if !is_piece {
                let way = Best { sum: self.unknown_score + sum, start, token: None };
                improve(&mut best[start + character.len_utf8()], way);
            }
        }
        let mut way = Vec::new();
        let mut end = spaced.len();
        while let Some(last) = best[end].filter(|_| end > 0) {
            way.push((last.start..end, last.token));
            end = last.start;
        }
        let mut after_unknown = false;
        for (range, token) in way.into_iter().rev() {
            match (&self.unknown, token) {
                (_, Some(token)) => tokens.push(token),
                (Unknown::Bytes(of), None) => {
                    tokens.extend(spaced[range].bytes().map(|byte| of[usize::from(byte)]));
                }
                (Unknown::Token(_), None) if after_unknown => {}
                (Unknown::Token(unknown), None) => tokens.push(*unknown),
            }
            after_unknown = token.is_none();
        }
    }

    /// The text with spaces as its pieces have them.
    fn spaced(&self, text: &str, begins: bool) -> String {
        let prefixed = begins && self.add_space_prefix;
        if !self.removes_spaces {
            return spm::spaced(text, prefixed);
        }
        let words: Vec<&str> = text.split(' ').filter(|word| !word.is_empty()).collect();
        let continues = !begins && text.starts_with(' ') || prefixed;
        let mut spaced = String::with_capacity(text.len() + 3);
        for (number, word) in words.into_iter().enumerate() {
            if number > 0 || continues {
                spaced.push(SPACE);
            }
            spaced.push_str(word);
        }
        spaced.truncate(spaced.trim_end_matches(SPACE).len()); // the text's own, too
        spaced
    }

    /// Decodes a token; `begins` if the space put before a text is to be removed.
    pub(super) fn decode(&self, text: &str, kind: TokenType, begins: bool, bytes: &mut Vec<u8>) {
        spm::decode_at(text, kind, begins && self.add_space_prefix, bytes);
    }
}
