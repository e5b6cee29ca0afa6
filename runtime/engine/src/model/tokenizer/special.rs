//! Special tokens: literals found in text before it is cut, and ends of the model's output.
//!
//! Files name one or two ends by id; others are known only by their text. The list of texts and its two
//! exceptions are llama.cpp's (`llama-vocab.cpp`).

use std::ops::Range;

use aho_corasick::{AhoCorasick, AhoCorasickKind, Input, MatchKind};

use super::{TokenType, TokenizerError, TokenizerKind, Vocabulary, spm};

/// Texts of tokens that end a generation.
const ENDS: [&str; 29] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<end_of_utterance>",
    "<turn|>",
    "<|tool_response>",
    "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>",
    "[e~[",
    "<|eot|>",
    "<|fim_pad|>",
    "<fim_pad>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<reponame>",
    "<|file_sep|>",
];

/// Ends of a turn, the most likely first.
const TURN_ENDS: [&str; 9] = [
    "<|return|>",
    "<|eot_id|>",
    "<|im_end|>",
    "<end_of_turn>",
    "<turn|>",
    "<|end|>",
    "<|eot|>",
    "[EOT]",
    "<end_of_utterance>",
];

/// Limit on the bytes of literals that become a table, of a kilobyte a byte. Real files have a few thousand
/// bytes.
const TABLE_BYTES_MAX: usize = 1 << 14;

/// Whether a text marks a turn or reasoning. Files also have such tokens as plain pieces, for example
/// `<|im_start|>` added to a SentencePiece model.
pub(super) fn is_mark(text: &str) -> bool {
    const OTHERS: [&str; 8] = [
        "<start_of_turn>",
        "<end_of_turn>",
        "[INST]",
        "[/INST]",
        "<think>",
        "</think>",
        "[THINK]",
        "[/THINK]",
    ];
    text.starts_with("<|") && text.ends_with("|>") || OTHERS.contains(&text)
}

/// The tokens that end a generation by their text; the file may name others.
///
/// In vocabularies of the harmony format, `<|end|>` ends a message but not the turn; with Gemma 4's tokens,
/// `</s>` is text.
fn known_ends<'t>(tokens: impl Iterator<Item = &'t str>) -> Vec<(u32, &'static str)> {
    let known = |(id, text): (u32, &str)| ENDS.iter().find(|&&end| end == text).map(|&end| (id, end));
    let mut found: Vec<_> = (0..).zip(tokens).filter_map(known).collect();
    let has = |text: &str| found.iter().any(|&(_, end)| end == text);
    let call = has("<|call|>") || has("<|calls|>");
    let messages = call && (has("<|return|>") || has("<|flush|>"));
    let gemma4 = has("<|tool_response>");
    found.retain(|&(_, end)| !(messages && end == "<|end|>" || gemma4 && end == "</s>"));
    found
}

/// Whether a token ends a generation by its text alone, whatever the file says.
pub fn ends_by_its_text(text: &str) -> bool {
    ENDS.contains(&text)
}

/// Whether a token's type in the file makes it special.
fn steers(number: u8) -> bool {
    matches!(TokenType::from_number(number), Some(TokenType::Control | TokenType::UserDefined))
}

/// The token that ends a turn, for a file that does not name it.
pub(super) fn end_of_turn(tokens: &[String], types: &[u8]) -> Option<u32> {
    let ends = known_ends(tokens.iter().map(String::as_str));
    let named = |text: &&str| {
        let it = ends
            .iter()
            .find(|&&(id, end)| end == *text && types.get(id as usize).copied().is_some_and(steers))?;
        Some(it.0)
    };
    TURN_ENDS.iter().find_map(named)
}

/// The tokens that end a generation, named by the file or known by text.
///
/// A token known by its text is never text, whatever its type in the file.
pub(super) fn ends(
    tokens: &[String],
    types: &mut [TokenType],
    eos: Option<u32>,
    eot: Option<u32>,
) -> Vec<u32> {
    let known = known_ends(tokens.iter().map(String::as_str));
    // the end of a message that the file names as the end of a turn
    let excepted =
        |id: u32| ENDS.contains(&tokens[id as usize].as_str()) && !known.iter().any(|&(end, _)| end == id);
    let mut ends: Vec<u32> = eos.into_iter().chain(eot.filter(|&id| !excepted(id))).collect();
    for (id, _) in known {
        let kind = &mut types[id as usize];
        if !matches!(*kind, TokenType::Byte | TokenType::Unknown) {
            *kind = TokenType::Control;
        }
        if *kind == TokenType::Control && !ends.contains(&id) {
            ends.push(id);
        }
    }
    ends
}

/// The tokens that are found before text is cut: control tokens, and pieces that are never cut.
#[derive(Debug)]
pub(super) struct Literals {
    /// Literals of all text.
    plain: Finder,
    /// Literals where special tokens are requested, too.
    all: Finder,
}

#[derive(Debug)]
struct Finder {
    texts: AhoCorasick,
    tokens: Vec<u32>,
}

impl Literals {
    pub(super) fn new(vocabulary: &Vocabulary, kind: TokenizerKind) -> Result<Self, TokenizerError> {
        let finder = |plain: bool| -> Result<Finder, TokenizerError> {
            let wanted = |kind: TokenType| match kind {
                TokenType::UserDefined => true,
                TokenType::Control | TokenType::Unknown => !plain,
                TokenType::Normal | TokenType::Unused | TokenType::Byte => false,
            };
            let literals = (0_u32..).zip(&vocabulary.tokens).zip(&vocabulary.types);
            let (tokens, texts): (Vec<u32>, Vec<String>) = literals
                .filter(|((_, text), kind)| wanted(**kind) && !text.is_empty())
                .map(|((token, text), _)| match kind {
                    TokenizerKind::SentencePiece | TokenizerKind::Unigram => {
                        (token, text.replace(spm::SPACE, " "))
                    }
                    TokenizerKind::ByteLevel | TokenizerKind::Spaced => (token, text.clone()),
                })
                .unzip();
            // a table over all bytes is fastest, but too large for long literals
            let long = texts.iter().map(String::len).sum::<usize>() > TABLE_BYTES_MAX;
            let kind = long.then_some(AhoCorasickKind::ContiguousNFA);
            let texts = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).kind(kind).build(texts);
            Ok(Finder { texts: texts.map_err(|_| TokenizerError::Literals { found: tokens.len() })?, tokens })
        };
        Ok(Self { plain: finder(true)?, all: finder(false)? })
    }

    /// The first literal of a text from byte `from`, the longest in a tie: its range and its token.
    pub(super) fn find(&self, text: &str, from: usize, parse_special: bool) -> Option<(Range<usize>, u32)> {
        let finder = if parse_special { &self.all } else { &self.plain };
        let found = finder.texts.find(Input::new(text).range(from..))?;
        Some((found.range(), finder.tokens[found.pattern().as_usize()]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_literals_take_a_multiple_of_their_bytes() {
        for length in [10, 1000, 100_000] {
            let letters = (0..length).map(|i: usize| char::from(b'!' + (i * i % 89) as u8));
            let tokens = vec!["a".to_owned(), letters.collect()];
            let types = vec![TokenType::Normal, TokenType::UserDefined];
            let literals = Literals::new(&Vocabulary::new(tokens, types), TokenizerKind::ByteLevel).unwrap();
            let memory = [&literals.plain, &literals.all].map(|finder| finder.texts.memory_usage());
            let of_each = if length > TABLE_BYTES_MAX { 64 } else { 1 << 10 };
            assert!(
                memory.iter().all(|&bytes| bytes < (1 << 14) + of_each * length),
                "{memory:?} for {length}"
            );
        }
    }
}
