//! SentencePiece's unigram model: of all ways to cut a text into pieces the one whose scores, which are logarithms of probabilities, have
//! the greatest sum.
//!
//! From left to right the best way to each place is kept (Viterbi): its sum, and where its last piece begins. A character that is
//! no piece by itself is unknown, at ten less than the worst score; in the end it becomes its bytes, or, with its neighbours, one
//! unknown token.
//!
//! Source: sentencepiece, `unigram_model.cc` (`EncodeOptimized`), in single precision and with ties to the earlier beginning as there.
//! Differs: pieces that are never cut are found before text gets here, and text after them begins anew, as in llama.cpp
//! (`llm_tokenizer_ugm`), which in turn makes no bytes of what is unknown. A map of characters (`precompiled_charsmap`) is refused.

use super::spm::{self, SPACE};
use super::{TokenType, TokenizerError, Vocabulary, byte_tokens, scores_are_finite};

/// What an unknown character has less than the worst piece.
const UNKNOWN_PENALTY: f32 = 10.0;

/// The scores, and what becomes of characters without a piece.
#[derive(Debug)]
pub(super) struct Unigram {
    scores: Vec<f32>,
    unknown_score: f32,
    unknown: Unknown,
    add_space_prefix: bool,
    removes_spaces: bool,
}

/// The tokens of a character without a piece.
#[derive(Debug)]
enum Unknown {
    /// Those of its bytes.
    Bytes(Box<[u32; 256]>),
    /// One for it and for all unknown ones beside it.
    Token(u32),
}

/// The best way to a place in a text.
#[derive(Debug, Clone, Copy)]
struct Best {
    sum: f32,
    /// Where its last piece begins.
    start: usize,
    /// That piece; `None`: a character without one.
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

    /// The tokens of a stretch of text; `begins` where a space is to be put before it.
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

    /// The text as its pieces have it.
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

    /// The bytes of a token; `begins` where the space put before a text is to be taken away.
    pub(super) fn decode(&self, text: &str, kind: TokenType, begins: bool, bytes: &mut Vec<u8>) {
        spm::decode_at(text, kind, begins && self.add_space_prefix, bytes);
    }
}
