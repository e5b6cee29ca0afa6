//! Keeps messages from becoming special tokens, whatever a template does with them.
//!
//! A special token is found by its text, and that text has two ends: `<|im_end|>` begins with `<` and ends with `>`. In
//! messages the characters of such ends are replaced by stand-ins: characters for private use that neither the template nor
//! any message has. The template moves, trims and cuts them like any others. In the text that comes out they are put back, and
//! where they stood is known: no special token may touch these places. The text is otherwise the one that the template would
//! have made of the bare messages, and so are its tokens.

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;

use flashplan::Tokenizer;

/// Ends of the marks that some files have as pieces of text.
const MARKS: [char; 4] = ['<', '>', '[', ']'];

/// The characters at the ends of special tokens.
#[derive(Debug, Clone)]
pub(super) struct Guard(BTreeSet<char>);

/// Each of these characters with its stand-in, both ascending: a vocabulary may have many.
#[derive(Debug, Default)]
pub(super) struct StandIns(Vec<(char, char)>);

impl Guard {
    /// The guard of a model's special tokens.
    pub(super) fn new(tokenizer: &Tokenizer) -> Self {
        let tokens = 0..u32::try_from(tokenizer.vocabulary()).unwrap_or(u32::MAX);
        let named = tokens.filter_map(|token| tokenizer.special(token)).flat_map(ends);
        Self(named.chain(MARKS).collect())
    }

    /// Stand-ins that none of these texts has.
    pub(super) fn stand_ins<'t>(&self, texts: impl Iterator<Item = &'t str>) -> StandIns {
        let private = || ('\u{e000}'..='\u{f8ff}').chain('\u{f0000}'..='\u{ffffd}');
        let taken: HashSet<char> = texts.flat_map(str::chars).filter(|&c| c >= '\u{e000}').collect();
        StandIns(self.0.iter().copied().zip(private().filter(|c| !taken.contains(c))).collect())
    }
}

/// The first and the last character; letters, digits and spaces only if both are such. A template may look
/// for those in messages.
fn ends(token: &str) -> impl Iterator<Item = char> {
    let mark = |c: &char| !c.is_alphanumeric() && !c.is_whitespace();
    let (first, last) = (token.chars().next(), token.chars().next_back());
    let marks = first.into_iter().chain(last).filter(mark);
    let none = marks.clone().next().is_none();
    marks.chain(first.filter(|_| none))
}

impl StandIns {
    /// A message's text as the template gets it, with stand-ins.
    pub(super) fn put(&self, said: &str) -> String {
        let stand_in =
            |c| self.0.binary_search_by_key(&c, |&(end, _)| end).map_or(c, |place| self.0[place].1);
        said.chars().map(stand_in).collect()
    }

    /// A text of the model as the template gets it: these tags of its own stay, and the rest has stand-ins.
    pub(super) fn put_around(&self, said: &str, tags: &[&str]) -> String {
        let (mut put, mut rest) = (String::with_capacity(said.len()), said);
        let first = |rest: &str| tags.iter().filter_map(|&tag| Some((rest.find(tag)?, tag))).min();
        while let Some((at, tag)) = first(rest) {
            put += &self.put(&rest[..at]);
            put += tag;
            rest = &rest[at + tag.len()..];
        }
        put + &self.put(rest)
    }

    /// The character that a stand-in stands for.
    pub(super) fn original(&self, c: char) -> Option<char> {
        let place = self.0.binary_search_by_key(&c, |&(_, stand_in)| stand_in).ok()?;
        Some(self.0[place].0)
    }

    /// The text that the template made with the characters themselves, and the bytes where they were said, ascending.
    pub(super) fn put_back(&self, rendered: &str) -> (String, Vec<Range<usize>>) {
        let (mut text, mut said) = (String::with_capacity(rendered.len()), Vec::<Range<usize>>::new());
        for c in rendered.chars() {
            let Some(end) = self.original(c) else {
                text.push(c);
                continue;
            };
            let start = text.len();
            text.push(end);
            match said.last_mut() {
                Some(before) if before.end == start => before.end = text.len(),
                _ => said.push(start..text.len()),
            }
        }
        (text, said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_a_token_are_its_marks_or_else_its_first_character() {
        let of = |token| ends(token).collect::<String>();
        assert_eq!(
            [of("<|im_end|>"), of("[INST]"), of("<s>"), of("PAD"), of("_a"), of("")],
            ["<>", "[]", "<>", "P", "_", ""]
        );
    }

    #[test]
    fn a_models_own_tags_stay_and_all_else_has_stand_ins() {
        let stand_ins = Guard("<>".chars().collect()).stand_ins(std::iter::empty());
        let put = stand_ins.put_around("<think>a < b</think><x></think>", &["<think>", "</think>"]);
        assert_eq!(put, "<think>a \u{e000} b</think>\u{e000}x\u{e001}</think>");
        assert_eq!(stand_ins.put_around("<think>", &[]), stand_ins.put("<think>"));
    }

    #[test]
    fn stand_ins_are_characters_that_nobody_said_and_come_back_as_what_they_stand_for() {
        let guard = Guard("<>".chars().collect());
        let said = "\u{e000}a <b>> \u{e002}";
        let stand_ins = guard.stand_ins(["{{ x }}", said].into_iter());
        let put = stand_ins.put(said);
        assert_eq!(put, "\u{e000}a \u{e001}b\u{e003}\u{e003} \u{e002}");
        let (text, ranges) = stand_ins.put_back(&format!("<s>{}</s>", put.trim_end_matches('\u{e002}')));
        assert_eq!(text, "<s>\u{e000}a <b>> </s>");
        let marked: Vec<&str> = ranges.iter().map(|range| &text[range.clone()]).collect();
        assert_eq!(marked, ["<", ">>"]);
    }
}
