//! SentencePiece's BPE: join the pair whose piece has the best score; bytes for characters without a piece.
//!
//! Source: sentencepiece, `bpe_model.cc`, with llama's settings (no normalisation, spaces written as `▁`).

use std::collections::HashMap;

use super::merge::{Symbol, merge};
use super::{TokenType, TokenizerError, Vocabulary, byte_tokens, scores_are_finite};

/// The character that stands for a space in pieces.
pub(super) const SPACE: char = '\u{2581}';

/// A score, in the order of numbers; it is never NaN.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Score(f32);

impl Eq for Score {}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// The scores, and the tokens of the bytes.
#[derive(Debug)]
pub(super) struct SentencePiece {
    scores: Vec<Score>,
    bytes: [u32; 256],
    add_space_prefix: bool,
}

impl SentencePiece {
    pub(super) fn new(
        vocabulary: &Vocabulary,
        scores: Vec<f32>,
        unknown: Option<u32>,
        add_space_prefix: bool,
    ) -> Result<Self, TokenizerError> {
        scores_are_finite(&scores)?;
        let bytes = bytes(vocabulary)?;
        Ok(Self {
            scores: scores.into_iter().map(|score| Score(score + 0.0)).collect(), // -0.0 and 0.0 are one score
            bytes: byte_tokens(|byte| bytes.get(&byte).copied(), unknown)?,
            add_space_prefix,
        })
    }

    /// The tokens of a stretch of text; `begins` where a space is to be put before it.
    pub(super) fn encode(&self, vocabulary: &Vocabulary, text: &str, begins: bool, tokens: &mut Vec<u32>) {
        let spaced = spaced(text, begins && self.add_space_prefix);

        let symbols = spaced.char_indices().map(|(start, character)| {
            let bytes = character.len_utf8();
            Symbol { start, bytes, token: vocabulary.find(&spaced[start..start + bytes]) }
        });
        // how an unused piece was joined, to cut it up again
        let mut cuts: HashMap<u32, usize> = HashMap::new();
        let joined = merge(symbols.collect(), |left, right| {
            let token = vocabulary.find(&spaced[left.start..right.end()])?;
            if vocabulary.types[token as usize] == TokenType::Unused {
                cuts.insert(token, left.bytes);
            }
            Some((self.scores[token as usize], token))
        });
        let mut rest: Vec<Symbol> = Vec::new();
        for symbol in joined {
            rest.push(symbol);
            while let Some(Symbol { start, bytes, token }) = rest.pop() {
                match token {
                    None => tokens.extend(
                        spaced[start..start + bytes].bytes().map(|byte| self.bytes[usize::from(byte)]),
                    ),
                    Some(token) => match cuts.get(&token) {
                        None => tokens.push(token),
                        Some(&cut) => {
                            let piece = |start: usize, bytes: usize| Symbol {
                                start,
                                bytes,
                                token: vocabulary.find(&spaced[start..start + bytes]),
                            };
                            rest.push(piece(start + cut, bytes - cut));
                            rest.push(piece(start, cut));
                        }
                    },
                }
            }
        }
    }

    /// The bytes of a token; `begins` where the space put before a text is to be taken away.
    pub(super) fn decode(&self, text: &str, kind: TokenType, begins: bool, bytes: &mut Vec<u8>) {
        decode_at(text, kind, begins && self.add_space_prefix, bytes);
    }
}

/// A text as pieces have it, with a space before it where that is wanted.
pub(super) fn spaced(text: &str, prefixed: bool) -> String {
    let mut spaced = String::with_capacity(text.len() + 3);
    if prefixed {
        spaced.push(SPACE);
    }
    spaced.extend(text.chars().map(|character| if character == ' ' { SPACE } else { character }));
    spaced
}

/// The bytes of a piece, without the space before it where that was put there.
pub(super) fn decode_at(text: &str, kind: TokenType, prefixed: bool, bytes: &mut Vec<u8>) {
    let text = text.strip_prefix(SPACE).filter(|_| prefixed).unwrap_or(text);
    decode(text, kind, bytes);
}

/// The bytes of a piece.
pub(super) fn decode(text: &str, kind: TokenType, bytes: &mut Vec<u8>) {
    match byte(text).filter(|_| kind == TokenType::Byte) {
        Some(byte) => bytes.push(byte),
        None => bytes.extend_from_slice(text.replace(SPACE, " ").as_bytes()),
    }
}

/// The tokens that stand for bytes.
pub(super) fn bytes(vocabulary: &Vocabulary) -> Result<HashMap<u8, u32>, TokenizerError> {
    let mut bytes = HashMap::new();
    for (id, (text, &kind)) in (0_u32..).zip(vocabulary.tokens.iter().zip(&vocabulary.types)) {
        if kind == TokenType::Byte {
            let byte =
                byte(text).ok_or_else(|| TokenizerError::Byte { token: id as usize, text: text.clone() })?;
            bytes.entry(byte).or_insert(id);
        }
    }
    Ok(bytes)
}

/// The byte that a piece such as `<0x0A>` stands for.
fn byte(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}
