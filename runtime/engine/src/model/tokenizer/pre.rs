//! Pre-tokenizers of byte-level BPE by their GGUF names: they cut text into words before any joining.
//!
//! A rule has one or more steps. Each step cuts every piece left by the earlier steps: every match of its
//! expression becomes a piece, as does the text between two matches.
//!
//! Most rules end in `\s+(?!\S)|\s+`: the last of the spaces before a word belongs to the word. That
//! look-ahead is implemented by hand, because an expression without it never backtracks.
//!
//! Source: the models' `tokenizer.json`, whose expressions llama.cpp's `llama-vocab.cpp` quotes and names.
//! llama.cpp approximates some: its `tekken` and `gpt-4o` know case only in ASCII, and no combining marks.
//! There, Hindi and mixed-case Cyrillic are cut differently from training. Rules of models that normalise
//! text to NFC do so here.

use std::sync::OnceLock;

use fancy_regex::{Regex, RegexBuilder};
use unicode_normalization::{IsNormalized, UnicodeNormalization as _, is_nfc_quick};

/// A cut of every piece.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// Matches, and the text between them.
    Matches(&'static str),
    /// Matches, and the text between them, of an expression that ends in `\s+(?!\S)|\s+`, written as `\s+`
    /// here.
    Words(&'static str),
}

/// A pre-tokenizer.
#[derive(Debug)]
struct Rule {
    /// The rule's names in GGUF.
    names: &'static [&'static str],
    steps: &'static [Step],
    /// Whether a word that is a token is used without merging.
    whole_words: bool,
    /// Whether models of this rule expect a beginning token by default.
    bos: bool,
    /// Whether text is normalised to NFC first.
    nfc: bool,
}

const GPT2: Step = Step::Words(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+");
const DIGIT: Step = Step::Matches(r"\p{N}");
const THREE_DIGITS: Step = Step::Matches("[0-9][0-9][0-9]");
const LLAMA3: Step = Step::Words(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
);
const QWEN2: Step = Step::Words(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
);
const QWEN35: Step = Step::Words(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
);
const TEKKEN: Step = Step::Words(concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+",
));
const GPT4O: Step = Step::Words(concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+",
));
const DEEPSEEK3: [Step; 3] = [
    Step::Matches(r"\p{N}{1,3}"),
    Step::Matches("[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+"),
    Step::Words(concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+",
    )),
];
/// Words of Han letters by themselves; words of all other letters as in `gpt-4o`.
const KIMI: Step = Step::Words(concat!(
    r"[\p{Han}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
));
/// Letters with case in the Unicode version of `DeepSeek`'s first tokenizer.
const DEEPSEEK_LETTERS: &str = concat!(
    r"\s?[A-Za-z\u{b5}\u{c0}-\u{d6}\u{d8}-\u{f6}\u{f8}-\u{1ba}\u{1bc}-\u{1bf}\u{1c4}-\u{293}\u{295}-\u{2af}\u{370}-\u{373}",
    r"\u{376}\u{377}\u{37b}-\u{37d}\u{37f}\u{386}\u{388}-\u{38a}\u{38c}\u{38e}-\u{3a1}\u{3a3}-\u{3f5}\u{3f7}-\u{481}",
    r"\u{48a}-\u{52f}\u{531}-\u{556}\u{10a0}-\u{10c5}\u{13a0}-\u{13f5}\u{13f8}-\u{13fd}\u{1c90}-\u{1cba}\u{1cbd}-\u{1cbf}",
    r"\u{1d00}-\u{1d2b}\u{1d6b}-\u{1d77}\u{1d79}-\u{1d9a}\u{1e00}-\u{1f15}\u{1f18}-\u{1f1d}\u{1f20}-\u{1f45}",
    r"\u{1f48}-\u{1f4d}\u{1f50}-\u{1f57}\u{1f59}\u{1f5b}\u{1f5d}\u{1f5f}-\u{1f7d}\u{1f80}-\u{1fb4}\u{1fb6}-\u{1fbc}",
    r"\u{1fbe}\u{1fc2}-\u{1fc4}\u{1fc6}-\u{1fcc}\u{1fd0}-\u{1fd3}\u{1fd6}-\u{1fdb}\u{1fe0}-\u{1fec}\u{1ff2}-\u{1ff4}",
    r"\u{1ff6}-\u{1ffc}\u{2102}\u{2107}\u{210a}-\u{2113}\u{2115}\u{2119}-\u{211d}\u{2124}\u{2126}\u{2128}\u{212a}-\u{212d}",
    r"\u{212f}-\u{2134}\u{2139}\u{213c}-\u{213f}\u{2145}-\u{2149}\u{214e}\u{2183}\u{2184}\u{2c00}-\u{2c7b}\u{2c7e}-\u{2ce4}",
    r"\u{2ceb}-\u{2cee}\u{2cf2}\u{2cf3}\u{a640}-\u{a66d}\u{a680}-\u{a69b}\u{a722}-\u{a76f}\u{a771}-\u{a787}\u{a78b}-\u{a78e}",
    r"\u{ab70}-\u{abbf}\u{fb00}-\u{fb06}\u{fb13}-\u{fb17}\u{ff21}-\u{ff3a}\u{ff41}-\u{ff5a}\u{10400}-\u{1044f}",
    r"\u{104b0}-\u{104d3}\u{104d8}-\u{104fb}\u{10c80}-\u{10cb2}\u{10cc0}-\u{10cf2}\u{118a0}-\u{118df}\u{1e900}-\u{1e943}]+",
);
const DEEPSEEK_HAN: Step = Step::Matches("[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}]+");
const BLOOM: Step = Step::Matches(" ?[^(\\s|.,!?\u{2026}\u{3002}\u{ff0c}\u{3001}\u{964}\u{6d4}\u{60c})]+");

/// A rule without extras.
const fn rule(names: &'static [&'static str], steps: &'static [Step]) -> Rule {
    Rule { names, steps, whole_words: false, bos: false, nfc: false }
}

/// The known rules. The first is for files that name none.
const RULES: [Rule; 24] = [
    rule(
        &["default", ""],
        &[Step::Matches(r"[\p{P}\$\+<=>\^~\|]+"), GPT2, Step::Matches(r"\p{N}+"), THREE_DIGITS],
    ),
    rule(
        &[
            "gpt-2",
            "phi-2",
            "mpt",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
        ],
        &[GPT2],
    ),
    Rule { nfc: true, ..rule(&["olmo"], &[GPT2]) },
    rule(&["smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"], &[DIGIT, GPT2]),
    Rule { nfc: true, ..rule(&["command-r"], &[DIGIT, GPT2]) },
    rule(&["falcon"], &[Step::Matches(r"[\p{P}\$\+<=>\^~\|`]+"), GPT2, THREE_DIGITS]),
    Rule {
        whole_words: true,
        bos: true,
        ..rule(
            &["llama-bpe", "llama3", "llama-v3", "lfm2", "pixtral", "falcon3", "falcon-h1", "midm-2.0"],
            &[LLAMA3],
        )
    },
    Rule { whole_words: true, ..rule(&["glm4", "glm5"], &[LLAMA3]) },
    rule(&["dbrx", "smaug-bpe", "chatglm-bpe"], &[LLAMA3]),
    Rule { nfc: true, ..rule(&["qwen2"], &[QWEN2]) },
    rule(&["deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "solar-open", "kormo", "grok-2"], &[QWEN2]),
    Rule { nfc: true, ..rule(&["qwen35"], &[QWEN35]) },
    Rule { whole_words: true, bos: true, ..rule(&["tekken"], &[TEKKEN]) },
    rule(&["gpt-4o", "llama4", "kanana2", "minimax-m2"], &[GPT4O]),
    rule(&["kimi-k2"], &[KIMI]),
    rule(&["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"], &DEEPSEEK3),
    rule(
        &["deepseek-llm"],
        &[
            Step::Matches("[\r\n]"),
            Step::Matches(DEEPSEEK_LETTERS),
            Step::Matches(
                "\\s?[!-/:-~\u{ff01}-\u{ff0f}\u{ff1a}-\u{ff5e}\u{2018}-\u{201f}\u{3000}-\u{3002}]+",
            ),
            Step::Matches(r"\s+$"),
            DEEPSEEK_HAN,
            Step::Matches(r"\p{N}+"),
        ],
    ),
    rule(
        &["deepseek-coder"],
        &[
            Step::Matches("[\r\n]"),
            Step::Matches(r"\s?\p{L}+"),
            Step::Matches(r"\s?\p{P}+"),
            DEEPSEEK_HAN,
            DIGIT,
        ],
    ),
    rule(
        &["bailingmoe", "bailingmoe2", "llada-moe"],
        &[Step::Words(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+",
        )],
    ),
    rule(
        &["seed-coder"],
        &[Step::Words(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+",
        )],
    ),
    rule(
        &["exaone-moe"],
        &[Step::Words(concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}",
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+",
        ))],
    ),
    Rule {
        whole_words: true,
        ..rule(
            &["minicpm5"],
            &[
                Step::Matches(r"\p{N}{1,3}"),
                Step::Words(concat!(
                    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*",
                    r"|\s*[\r\n]+|\s+",
                )),
            ],
        )
    },
    rule(&["bloom", "poro-chat", "gpt3-finnish"], &[BLOOM]),
    rule(&["viking"], &[BLOOM, DIGIT]),
];

/// A rule as in a `tokenizer.json`, to find its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedRule {
    /// The expressions that cut text, in order, look-ahead included.
    pub cuts: Vec<String>,
    /// Whether text is normalised to NFC first.
    pub nfc: bool,
    /// Whether a word that is a token is used without merging.
    pub whole_words: bool,
}

impl PublishedRule {
    /// The GGUF name of the known rule that cuts every text as this one, if there is one.
    pub fn name(&self) -> Option<&'static str> {
        let same = |rule: &&Rule| {
            let cuts = rule.steps.iter().map(Step::published);
            (rule.nfc, rule.whole_words) == (self.nfc, self.whole_words) && cuts.eq(self.cuts.iter().cloned())
        };
        RULES.iter().find(same)?.names.first().copied()
    }
}

impl Step {
    /// The expression as published, look-ahead included.
    fn published(&self) -> String {
        match *self {
            Self::Matches(text) => text.to_owned(),
            Self::Words(text) => format!(r"{text}(?!\S)|\s+"),
        }
    }
}

fn find(name: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.names.contains(&name))
}

/// The GGUF names of each rule.
pub fn rules() -> impl Iterator<Item = &'static [&'static str]> {
    RULES.iter().map(|rule| rule.names)
}

/// The names of all rules, for messages.
pub(super) fn names() -> String {
    let names = RULES.iter().flat_map(|rule| rule.names).copied().filter(|name| !name.is_empty());
    names.collect::<Vec<_>>().join(", ")
}

/// Limit on the bytes of cached states of an expression, in each direction; dropped states are recomputed.
const STATES_BYTES: usize = 256 << 10;
/// Bytes planned for an expression: its states, and half a MiB of compiled code. Llama 3's, which names
/// letters of all scripts, took 1.0 MiB in all; others were not measured.
const EXPRESSION_BYTES: u64 = (512 << 10) + 2 * STATES_BYTES as u64;

/// Bytes planned for a rule.
pub(super) fn rule_bytes(name: &str) -> u64 {
    find(name).map_or(0, |rule| rule.steps.len() as u64 * EXPRESSION_BYTES)
}

/// Whether models of a rule expect a beginning token by default.
pub(super) fn begins_with_bos(name: &str) -> bool {
    find(name).is_some_and(|rule| rule.bos)
}

/// A compiled rule.
#[derive(Debug)]
pub(super) struct PreTokenizer {
    steps: Vec<Cut>,
    pub(super) whole_words: bool,
    nfc: bool,
}

impl PreTokenizer {
    /// The compiled rule of a name. Expressions are compiled once, because that takes longer than loading a
    /// small vocabulary.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        static READY: [OnceLock<Option<PreTokenizer>>; RULES.len()] =
            [const { OnceLock::new() }; RULES.len()];
        let place = RULES.iter().position(|rule| rule.names.contains(&name))?;
        let rule = &RULES[place];
        let ready = || {
            let steps = rule.steps.iter().map(Cut::new).collect::<Option<_>>()?; // a test compiles every rule
            Some(Self { steps, whole_words: rule.whole_words, nfc: rule.nfc })
        };
        READY[place].get_or_init(ready).as_ref()
    }

    /// Upper bound of the bytes of a text's longest word; normalised text may have three times as many.
    pub(super) fn longest(&self, text: &str) -> usize {
        if self.nfc { 3 * text.len() } else { longest_stretch(text) }
    }

    /// Passes the words of a text to `each`, without gaps; of the normalised text if the rule normalises.
    pub(super) fn words(&self, text: &str, each: &mut dyn FnMut(&str)) {
        if self.nfc && is_nfc_quick(text.chars()) != IsNormalized::Yes {
            cut(&self.steps, &text.nfc().collect::<String>(), each);
        } else {
            cut(&self.steps, text, each);
        }
    }
}

/// Bytes of the longest stretch without white space inside, counting white space at both ends: no word is
/// longer.
fn longest_stretch(text: &str) -> usize {
    let (mut longest, mut spaces, mut word) = (0, 0, 0);
    for character in text.chars() {
        if character.is_whitespace() {
            spaces += character.len_utf8();
            longest = longest.max(word + spaces);
        } else {
            // the spaces before a word belong to it, the word before them does not
            word = if spaces > 0 { spaces } else { word } + character.len_utf8();
            spaces = 0;
            longest = longest.max(word);
        }
    }
    longest
}

/// Cuts a piece by the first step, and the results by the others.
fn cut(steps: &[Cut], piece: &str, each: &mut dyn FnMut(&str)) {
    match steps.split_first() {
        None => each(piece),
        Some((first, others)) => first.cut(piece, &mut |part| cut(others, part, each)),
    }
}

/// A compiled step.
#[derive(Debug)]
struct Cut {
    expression: Regex,
    /// Whether the last of several spaces is given to the following word.
    gives_back: bool,
    /// Whether spaces that end in a line break have their own branch, so that they keep their last space.
    line_breaks: bool,
}

impl Cut {
    fn new(step: &Step) -> Option<Self> {
        let (text, gives_back) = match *step {
            Step::Matches(text) => (text, false),
            Step::Words(text) => (text, true),
        };
        let line_breaks = text.contains(r"|\s*[\r\n]");
        let expression = RegexBuilder::new(text).delegate_dfa_size_limit(STATES_BYTES).build().ok()?;
        Some(Self { expression, gives_back, line_breaks })
    }

    fn cut(&self, text: &str, each: &mut dyn FnMut(&str)) {
        let mut rest = text;
        while !rest.is_empty() {
            let (start, end) = match self.expression.find(rest) {
                Ok(Some(found)) if found.end() > found.start() => (found.start(), found.end()),
                Ok(_) | Err(_) => (rest.len(), rest.len()), // the expressions match no empty text
            };
            if start > 0 {
                each(&rest[..start]); // what no branch matches is a piece
            }
            let end = if self.gives_back && end > start { self.give_back(rest, start, end) } else { end };
            if end > start {
                each(&rest[start..end]);
            }
            rest = &rest[end..];
        }
    }

    /// The end of a match: before the last of several spaces, if a word follows.
    fn give_back(&self, rest: &str, start: usize, end: usize) -> usize {
        let found = &rest[start..end];
        let line = self.line_breaks && found.ends_with(['\r', '\n']);
        match found.char_indices().next_back() {
            Some((last, _))
                if last > 0 && end < rest.len() && !line && found.chars().all(char::is_whitespace) =>
            {
                start + last
            }
            _ => end,
        }
    }
}

/// Checks that every rule cuts the same words as its published expressions, look-ahead included.
#[cfg(test)]
pub(super) fn check_cut(text: &str) {
    use std::sync::LazyLock;

    /// The published expressions of each rule.
    static PUBLISHED: LazyLock<Vec<Vec<Regex>>> = LazyLock::new(|| {
        let published = |step: &Step| Regex::new(&step.published()).expect("an expression");
        RULES.iter().map(|rule| rule.steps.iter().map(published).collect()).collect()
    });
    static OURS: LazyLock<Vec<&PreTokenizer>> = LazyLock::new(|| {
        let ours =
            |rule: &Rule| PreTokenizer::named(rule.names[0]).expect("a rule whose expressions compile");
        RULES.iter().map(ours).collect()
    });
    for ((rule, published), ours) in RULES.iter().zip(&*PUBLISHED).zip(&*OURS) {
        let text: String = if rule.nfc { text.nfc().collect() } else { text.to_owned() };
        let mut pieces = vec![text.as_str()];
        for step in published {
            let parts = |piece: &'_ str| -> Vec<std::ops::Range<usize>> {
                let mut parts = Vec::new();
                let mut end = 0;
                for found in step.find_iter(piece).map(|found| found.expect("a short text")) {
                    parts.extend([end..found.start(), found.start()..found.end()]);
                    end = found.end();
                }
                parts.push(end..piece.len());
                parts.retain(|part| !part.is_empty());
                parts
            };
            pieces = pieces
                .into_iter()
                .flat_map(|piece| parts(piece).into_iter().map(|part| &piece[part]))
                .collect();
        }
        let mut words = Vec::new();
        ours.words(&text, &mut |word| words.push(word.to_owned()));
        assert_eq!(words, pieces, "{}: {text:?}", rule.names[0]);
    }
}
