//! Byte-level BPE: cut text into words, then join the bytes of each word in the order of the merges.
//!
//! Bytes are written as letters in the vocabulary (GPT-2's table: a space is `Ġ`), so every text has tokens.
//!
//! The rules that cut words end in `\s+(?!\S)|\s+`: of the spaces before a word, the last belongs to the word. The
//! look-ahead is done here by hand, since an engine without it never backtracks, whatever the text.
//!
//! Source: GPT-2's `encoder.py`; the rules of Llama 3 and Qwen 2 are those of their `tokenizer.json`.

use std::cmp::Reverse;
use std::collections::HashMap;

use fancy_regex::Regex;

use super::merge::{Symbol, merge};
use super::{TokenType, TokenizerError, Vocabulary, byte_tokens};

/// A rule by which text is cut into words.
struct Rule {
    /// The names of it in GGUF.
    names: &'static [&'static str],
    /// The expression, its end `\s+(?!\S)|\s+` written as `\s+`.
    expression: &'static str,
    /// Whether spaces that end in a line break have a branch of their own, so that no space of theirs is given back.
    line_breaks: bool,
    /// Whether a word that is a token is taken whole, without looking at the merges.
    whole_words: bool,
    /// Whether the models of this rule expect a beginning token where the file does not say.
    bos: bool,
}

/// The rules known. A file without a rule is taken for GPT-2's, which is what such files were made with.
const RULES: [Rule; 3] = [
    Rule {
        names: &["gpt-2", "default"],
        expression: r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+",
        line_breaks: false,
        whole_words: false,
        bos: false,
    },
    Rule {
        names: &["llama-bpe", "llama3", "llama-v3"],
        expression: r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
        line_breaks: true,
        whole_words: true,
        bos: true,
    },
    Rule {
        names: &["qwen2"],
        expression: r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
        line_breaks: true,
        whole_words: false,
        bos: false,
    },
];

fn rule(name: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.names.contains(&name))
}

/// The names of all rules, for messages.
pub(super) fn rule_names() -> String {
    RULES.iter().flat_map(|rule| rule.names).copied().collect::<Vec<_>>().join(", ")
}

/// Whether models of a rule expect a beginning token where the file does not say.
pub(super) fn begins_with_bos(name: &str) -> bool {
    rule(name).is_some_and(|rule| rule.bos)
}

/// Cuts text into words.
#[derive(Debug)]
struct Words {
    expression: Regex,
    line_breaks: bool,
}

impl Words {
    /// The words of a text, back to back and without a gap.
    fn cut<'t>(&self, text: &'t str) -> impl Iterator<Item = &'t str> {
        let mut start = 0;
        std::iter::from_fn(move || {
            let rest = &text[start..];
            let length = match self.expression.find(rest) {
                Ok(Some(found)) if found.start() == 0 => self.give_back(rest, found.end()),
                Ok(Some(found)) => found.start(), // what no branch matches is a word; the rules leave nothing out
                Ok(None) | Err(_) => rest.len(),
            };
            start += length;
            (length > 0).then_some(&rest[..length])
        })
    }

    /// The end of a match: before the last of several spaces, if a word follows.
    fn give_back(&self, rest: &str, end: usize) -> usize {
        let found = &rest[..end];
        let line = self.line_breaks && found.ends_with(['\r', '\n']);
        match found.char_indices().next_back() {
            Some((last, _)) if last > 0 && end < rest.len() && !line && found.chars().all(is_space) => last,
            _ => end,
        }
    }
}

/// Whether `\s` matches a character.
fn is_space(character: char) -> bool {
    character.is_whitespace()
}

/// The merges and the rule.
#[derive(Debug)]
pub(super) struct ByteLevel {
    words: Words,
    whole_words: bool,
    bytes: [u32; 256],
    /// The merges of two tokens: the rank (the lowest first) and the token that they become.
    merges: HashMap<(u32, u32), (u32, u32)>,
}

impl ByteLevel {
    pub(super) fn new(
        vocabulary: &Vocabulary,
        merges: &[String],
        pre: &str,
        unknown: Option<u32>,
    ) -> Result<Self, TokenizerError> {
        let unknown_rule = || TokenizerError::Pre { found: pre.to_owned() };
        let rule = rule(pre).ok_or_else(unknown_rule)?;
        let expression = Regex::new(rule.expression).map_err(|_| unknown_rule())?; // a test compiles every rule
        let mut ranks = HashMap::with_capacity(merges.len());
        for (rank, text) in (0..).zip(merges) {
            let ids = || {
                let (left, right) = split(text)?;
                let joined = [left, right].concat();
                Some((vocabulary.find(left)?, vocabulary.find(right)?, vocabulary.find(&joined)?))
            };
            let (left, right, joined) =
                ids().ok_or_else(|| TokenizerError::Merge { index: rank as usize, text: text.clone() })?;
            ranks.entry((left, right)).or_insert((rank, joined));
        }
        Ok(Self {
            words: Words { expression, line_breaks: rule.line_breaks },
            whole_words: rule.whole_words,
            bytes: byte_tokens(|byte| vocabulary.find(letter(byte).encode_utf8(&mut [0; 4])), unknown)?,
            merges: ranks,
        })
    }

    /// The tokens of a stretch of text.
    pub(super) fn encode(&self, vocabulary: &Vocabulary, text: &str, tokens: &mut Vec<u32>) {
        for word in self.words.cut(text) {
            if self.whole_words
                && let Some(token) = vocabulary.find(&word.bytes().map(letter).collect::<String>())
            {
                tokens.push(token);
                continue;
            }
            let symbols = word.bytes().enumerate().map(|(start, byte)| Symbol {
                start,
                bytes: 1,
                token: Some(self.bytes[usize::from(byte)]),
            });
            let joined = merge(symbols.collect(), |left, right| {
                let &(rank, token) = self.merges.get(&(left.token?, right.token?))?;
                Some((Reverse(rank), token))
            });
            tokens.extend(joined.iter().filter_map(|symbol| symbol.token));
        }
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

/// The two sides of a merge; the left one has at least one letter.
fn split(merge: &str) -> Option<(&str, &str)> {
    let first = merge.chars().next()?.len_utf8();
    let space = merge[first..].find(' ')? + first;
    Some((&merge[..space], &merge[space + 1..]))
}

/// Whether GPT-2's table writes a byte as the character of the same number.
const fn is_itself(byte: u8) -> bool {
    matches!(byte, 33..=126 | 161..=172 | 174..=255)
}

/// GPT-2's table: the bytes that are not themselves, in their order, and so numbered from 256.
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

/// The letter that writes a byte.
fn letter(byte: u8) -> char {
    if is_itself(byte) {
        return char::from(byte);
    }
    let place = OTHERS.iter().position(|&other| other == byte).unwrap_or(0); // every byte is one or the other
    char::from_u32(256 + place as u32).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The byte that a letter writes.
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

/// Compare the words of every rule with those of the published expression, look-ahead included.
#[cfg(test)]
pub(super) fn check_cut(text: &str) {
    use std::sync::LazyLock;

    static RULES_AND_PUBLISHED: LazyLock<Vec<(Words, Regex)>> = LazyLock::new(|| {
        let both = |rule: &Rule| {
            let published = Regex::new(&format!(r"{}(?!\S)|\s+", rule.expression)).expect("an expression");
            let expression = Regex::new(rule.expression).expect("an expression");
            (Words { expression, line_breaks: rule.line_breaks }, published)
        };
        RULES.iter().map(both).collect()
    });
    for (words, published) in &*RULES_AND_PUBLISHED {
        let found = published.find_iter(text).map(|found| found.expect("a short text").as_str());
        assert_eq!(words.cut(text).collect::<Vec<_>>(), found.collect::<Vec<_>>(), "{text:?}");
    }
}
