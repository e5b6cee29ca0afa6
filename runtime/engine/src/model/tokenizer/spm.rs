//! SentencePiece's BPE: joins the pair whose piece has the best score; characters without a piece become
//! bytes.
//!
//! Source: sentencepiece, `bpe_model.cc`, with llama's settings (no normalisation, spaces written as `▁`).

use std::collections::HashMap;

use super::merge::{Symbol, merge};
use super::{TokenType, TokenizerError, Vocabulary, byte_tokens, scores_are_finite};

/// The character that stands for a space in pieces.
pub(super) const SPACE: char = '\u{2581}';

/// A score, ordered as a number; never NaN.
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

/// The scores, and the tokens of bytes.
#[derive(Debug)]
pub(super) struct SentencePiece {
    scores: Vec<Score>,
    bytes: [u32; 256],
    add_space_prefix: bool,
    /// Whether words can be joined one by one.
    pub(super) by_words: bool,
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
            by_words: no_piece_spans_words(vocabulary),
        })
    }

    /// Upper bound of the characters joined at once in a text.
    pub(super) fn longest(&self, text: &str) -> usize {
        if self.by_words { longest_word(text) } else { 1 + text.len() }
    }

    /// Encodes a stretch of text; `begins` if a space is to be put before it.
    pub(super) fn encode(&self, vocabulary: &Vocabulary, text: &str, begins: bool, tokens: &mut Vec<u32>) {
        let spaced = spaced(text, begins && self.add_space_prefix);
        if self.by_words {
            words(&spaced).for_each(|word| self.encode_spaced(vocabulary, word, tokens));
        } else {
            self.encode_spaced(vocabulary, &spaced, tokens);
        }
    }

    /// Encodes text whose spaces are [`SPACE`].
    fn encode_spaced(&self, vocabulary: &Vocabulary, spaced: &str, tokens: &mut Vec<u32>) {
        let piece = |start: usize, bytes: usize| {
            Symbol::new(start, bytes, vocabulary.find(&spaced[start..start + bytes]))
        };
        let symbols = spaced.char_indices().map(|(start, character)| piece(start, character.len_utf8()));
        // how each unused piece was joined, to cut it up again
        let mut cuts: HashMap<u32, usize> = HashMap::new();
        let joined = merge(symbols.collect(), |left, right| {
            let token = vocabulary.find(&spaced[left.start()..right.end()])?;
            if vocabulary.types[token as usize] == TokenType::Unused {
                cuts.insert(token, left.bytes());
            }
            Some((self.scores[token as usize], token))
        });
        let mut rest: Vec<Symbol> = Vec::new();
        for symbol in joined {
            rest.push(symbol);
            while let Some(symbol) = rest.pop() {
                let (start, bytes) = (symbol.start(), symbol.bytes());
                match symbol.token {
                    None => tokens.extend(
                        spaced[start..start + bytes].bytes().map(|byte| self.bytes[usize::from(byte)]),
                    ),
                    Some(token) => match cuts.get(&token) {
                        None => tokens.push(token),
                        Some(&cut) => {
                            rest.push(piece(start + cut, bytes - cut));
                            rest.push(piece(start, cut));
                        }
                    },
                }
            }
        }
    }

    /// Decodes a token; `begins` if the space put before a text is to be removed.
    pub(super) fn decode(&self, text: &str, kind: TokenType, begins: bool, bytes: &mut Vec<u8>) {
        decode_at(text, kind, begins && self.add_space_prefix, bytes);
    }
}

/// Whether no piece continues after a space, as in nearly all vocabularies. Words can then be joined one by
/// one, in the memory of one word. An unused piece that can be joined in several ways also prevents that. It
/// is cut up as it was joined last, anywhere in the text.
fn no_piece_spans_words(vocabulary: &Vocabulary) -> bool {
    vocabulary.sorted.iter().all(|&id| {
        let text = vocabulary.tokens[id as usize].as_str();
        let is_piece = |part: &str| vocabulary.find(part).is_some();
        let ways = || {
            text.char_indices().filter(|&(at, _)| at > 0 && is_piece(&text[..at]) && is_piece(&text[at..]))
        };
        let is_unused = vocabulary.types[id as usize] == TokenType::Unused;
        words(text).count() == 1 && (!is_unused || ways().count() < 2)
    })
}

/// The words of a text, each with the spaces before it; spaces at the end form a word.
fn words(spaced: &str) -> impl Iterator<Item = &str> {
    let mut rest = spaced;
    std::iter::from_fn(move || {
        let begins = rest.len() - rest.trim_start_matches(SPACE).len();
        let end = rest[begins..].find(SPACE).map_or(rest.len(), |end| begins + end);
        let (word, others) = rest.split_at(end);
        rest = others;
        (!word.is_empty()).then_some(word)
    })
}

/// Characters of a text's longest word, with the spaces before it and the one that may be put before the
/// text.
fn longest_word(text: &str) -> usize {
    let (mut longest, mut word, mut in_word) = (0, 1, false);
    for character in text.chars() {
        let is_space = matches!(character, ' ' | SPACE);
        if is_space && in_word {
            (longest, word) = (longest.max(word), 0);
        }
        in_word = !is_space;
        word += 1;
    }
    longest.max(word)
}

/// A text with spaces as pieces have them, and a space before it if `prefixed`.
pub(super) fn spaced(text: &str, prefixed: bool) -> String {
    let mut spaced = String::with_capacity(text.len() + 3);
    if prefixed {
        spaced.push(SPACE);
    }
    spaced.extend(text.chars().map(|character| if character == ' ' { SPACE } else { character }));
    spaced
}

/// Decodes a piece, without the space before it if `prefixed`.
pub(super) fn decode_at(text: &str, kind: TokenType, prefixed: bool, bytes: &mut Vec<u8>) {
    let text = text.strip_prefix(SPACE).filter(|_| prefixed).unwrap_or(text);
    decode(text, kind, bytes);
}

/// Decodes a piece.
pub(super) fn decode(text: &str, kind: TokenType, bytes: &mut Vec<u8>) {
    match byte(text).filter(|_| kind == TokenType::Byte) {
        Some(byte) => bytes.push(byte),
        None => bytes.extend_from_slice(text.replace(SPACE, " ").as_bytes()),
    }
}

/// The tokens of bytes.
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

/// The byte of a piece such as `<0x0A>`.
fn byte(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}
