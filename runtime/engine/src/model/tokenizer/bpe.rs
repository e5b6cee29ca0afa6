//! Byte-level BPE: cuts text into words, then joins each word's bytes in the order of the merges.
//!
//! Vocabularies write bytes as letters (GPT-2's table: a space is `Ġ`), so every text has tokens. Gemma 4
//! merges characters instead, with spaces as `▁` and lines for words: [`Spaced`].
//!
//! Source: GPT-2's `encoder.py`; Gemma 4's `tokenizer.json`.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::merge::{Symbol, merge};
use super::pre::PreTokenizer;
use super::{TokenType, TokenizerError, Vocabulary, byte_tokens, spm};

/// The merges of token pairs: rank (lowest first) and resulting token.
type Merges = HashMap<(u32, u32), (u32, u32)>;

/// The merges by token ids.
fn ranked(vocabulary: &Vocabulary, merges: &[String]) -> Result<Merges, TokenizerError> {
    let mut ranks = HashMap::with_capacity(merges.len());
    let ids = vocabulary.ids(); // a table for as long as this takes: large vocabularies have half a million merges
    let mut joined = String::new();
    for (rank, text) in (0..).zip(merges) {
        let mut pair = || {
            let (left, right) = split(text)?;
            joined.clear();
            joined.extend([left, right]);
            Some((*ids.get(left)?, *ids.get(right)?, *ids.get(joined.as_str())?))
        };
        let (left, right, joined) =
            pair().ok_or_else(|| TokenizerError::Merge { index: rank as usize, text: text.clone() })?;
        ranks.entry((left, right)).or_insert((rank, joined));
    }
    Ok(ranks)
}

/// Joins symbols by the merges.
fn join(merges: &Merges, symbols: Vec<Symbol>) -> Vec<Symbol> {
    merge(symbols, |left, right| {
        let &(rank, token) = merges.get(&(left.token?, right.token?))?;
        Some((Reverse(rank), token))
    })
}

/// Byte-level BPE: a pre-tokenizer and merges.
#[derive(Debug)]
pub(super) struct ByteLevel {
    pre: &'static PreTokenizer,
    /// The token of each byte. Bytes without a token are left out, as by other implementations: Falcon's
    /// vocabulary lacks some control characters.
    bytes: Vec<Option<u32>>,
    merges: Merges,
}

impl ByteLevel {
    pub(super) fn new(
        vocabulary: &Vocabulary,
        merges: &[String],
        pre: &str,
        unknown: Option<u32>,
    ) -> Result<Self, TokenizerError> {
        let pre = PreTokenizer::named(pre).ok_or_else(|| TokenizerError::Pre { found: pre.to_owned() })?;
        let of_byte = |byte| vocabulary.find(letter(byte).encode_utf8(&mut [0; 4])).or(unknown);
        let bytes: Vec<Option<u32>> = (0..=u8::MAX).map(of_byte).collect();
        if let Some(byte) = (b'!'..=b'~').find(|&byte| bytes[usize::from(byte)].is_none()) {
            return Err(TokenizerError::NoFallback { byte });
        }
        Ok(Self { merges: ranked(vocabulary, merges)?, pre, bytes })
    }

    /// Encodes a stretch of text.
    pub(super) fn encode(&self, vocabulary: &Vocabulary, text: &str, tokens: &mut Vec<u32>) {
        self.pre.words(text, &mut |word| {
            if self.pre.whole_words
                && let Some(token) = vocabulary.find(&word.bytes().map(letter).collect::<String>())
            {
                tokens.push(token);
                return;
            }
            let symbols =
                word.bytes().enumerate().map(|(at, byte)| Symbol::new(at, 1, self.bytes[usize::from(byte)]));
            tokens.extend(join(&self.merges, symbols.collect()).iter().filter_map(|symbol| symbol.token));
        });
    }

    /// Upper bound of the bytes joined at once in a text.
    pub(super) fn longest(&self, text: &str) -> usize {
        self.pre.longest(text)
    }

    /// Whether the merges make this token from its letters.
    pub(super) fn makes(&self, text: &str, token: u32) -> bool {
        let Some(bytes) = text.chars().map(byte).collect::<Option<Vec<u8>>>() else { return false };
        let symbol = |(start, byte): (usize, &u8)| Symbol::new(start, 1, self.bytes[usize::from(*byte)]);
        let joined = join(&self.merges, bytes.iter().enumerate().map(symbol).collect());
        matches!(joined.as_slice(), [Symbol { token: Some(only), .. }] if *only == token)
    }

    /// The bytes of a token.
    pub(super) fn decode(&self, text: &str, kind: TokenType, bytes: &mut Vec<u8>) {
        if kind == TokenType::UserDefined {
            bytes.extend_from_slice(text.as_bytes()); // written as it is, not as letters
            return;
        }
        for character in text.chars() {
            match byte(character) {
                Some(byte) => bytes.push(byte),
                None => bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
    }
}

/// BPE by merges of characters within lines, with bytes for unknown characters.
#[derive(Debug)]
pub(super) struct Spaced {
    merges: Merges,
    bytes: [u32; 256],
}

impl Spaced {
    pub(super) fn new(
        vocabulary: &Vocabulary,
        merges: &[String],
        unknown: Option<u32>,
    ) -> Result<Self, TokenizerError> {
        let bytes = spm::bytes(vocabulary)?;
        let of_byte =
            |byte| bytes.get(&byte).copied().or_else(|| vocabulary.find(&format!("<0x{byte:02X}>")));
        Ok(Self { merges: ranked(vocabulary, merges)?, bytes: byte_tokens(of_byte, unknown)? })
    }

    /// Encodes a stretch of text.
    pub(super) fn encode(&self, vocabulary: &Vocabulary, text: &str, tokens: &mut Vec<u32>) {
        let spaced = text.replace(' ', spm::SPACE.encode_utf8(&mut [0; 4]));
        let mut rest = spaced.as_str();
        while !rest.is_empty() {
            let breaks = rest.starts_with('\n');
            let end = rest.find(|character| (character == '\n') != breaks).unwrap_or(rest.len());
            let (line, others) = rest.split_at(end);
            rest = others;
            if breaks && let Some(token) = vocabulary.find(line) {
                tokens.push(token);
                continue;
            }
            let symbols = line.char_indices().map(|(start, character)| {
                let bytes = character.len_utf8();
                Symbol::new(start, bytes, vocabulary.find(&line[start..start + bytes]))
            });
            for symbol in join(&self.merges, symbols.collect()) {
                match symbol.token {
                    Some(token) => tokens.push(token),
                    None => tokens.extend(
                        line[symbol.start()..symbol.end()].bytes().map(|byte| self.bytes[usize::from(byte)]),
                    ),
                }
            }
        }
    }
}

/// The two sides of a merge; the left has at least one letter.
fn split(merge: &str) -> Option<(&str, &str)> {
    let first = merge.chars().next()?.len_utf8();
    let space = merge[first..].find(' ')? + first;
    Some((&merge[..space], &merge[space + 1..]))
}

/// Whether GPT-2's table writes a byte as the character of the same number.
const fn is_itself(byte: u8) -> bool {
    matches!(byte, 33..=126 | 161..=172 | 174..=255)
}

/// GPT-2's table: the other bytes, in order, written as characters from 256 on.
const OTHERS: [u8; 68] = {
    let mut others = [0; 68];
    let (mut byte, mut count) = (0_u8, 0);
    loop {
        if !is_itself(byte) {
            others[count] = byte;
            count += 1;
        }
        if byte == u8::MAX {
            break;
        }
        byte += 1;
    }
    assert!(count == others.len(), "256 bytes less 188 that are themselves");
    others
};

/// The letter for a byte.
fn letter(byte: u8) -> char {
    if is_itself(byte) {
        return char::from(byte);
    }
    let place = OTHERS.iter().position(|&other| other == byte).unwrap_or(0); // every byte is one or the other
    char::from_u32(256 + place as u32).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The byte of a letter.
fn byte(letter: char) -> Option<u8> {
    match u32::from(letter) {
        code @ 0..256 => u8::try_from(code).ok().filter(|&byte| is_itself(byte)),
        code => OTHERS.get((code - 256) as usize).copied(),
    }
}

#[cfg(test)]
pub(super) fn letter_of(byte: u8) -> char {
    letter(byte)
}
