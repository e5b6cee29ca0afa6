//! A grammar that tokens are held against before they are chosen.
//!
//! The grammar is `llguidance`'s, over bytes: its own trie of the whole vocabulary would cost some MiB that no plan has counted.
//! Tokens are tried in the order of their likelihood, and most often the first one passes. The cost is counted: limits bound the
//! time of a step and the memory of all of them.

use std::sync::{Arc, LazyLock};

use flashplan::{Sampler, Tokenizer};
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};

use super::super::reasoning::{NextText, Parts, opens};

/// The token of the grammar's own vocabulary that is no byte: the end.
const END: u32 = 256;
/// Limit of a lexer's states. Each takes 1 to 2 kB; a schema with a dozen keys has some hundreds.
const LEXER_STATES: usize = 1000;
/// Limit of a grammar's symbols in productions. The same schema has some hundreds.
const SYMBOLS: usize = 2500;
/// Work of making a lexer, about 10 ms, and of one step, about 5 ms.
const FUEL: (u64, u64) = (500_000, 70_000);
/// Items of a parser, for one position and for one step.
const ITEMS: (usize, usize) = (1000, 20_000);
/// Bytes of a grammar within these limits: measured to be 170 kB and at most 400 bytes for each one of the schema's.
const BYTES: (u64, u64) = (1 << 20, 400);

/// Memory for the grammar of a schema, at most.
pub(super) fn bytes_max(schema: &str) -> u64 {
    BYTES.0 + BYTES.1 * schema.len() as u64
}

/// Bytes as tokens, and the end.
static ALPHABET: LazyLock<TokEnv> = LazyLock::new(|| {
    let mut words: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    words.push(b"\xff<end>".to_vec());
    let trie = TokTrie::from(&TokRxInfo::new(END + 1, END), &words);
    Arc::new(ApproximateTokEnv::new(trie))
});

/// A grammar, and how much of it an answer has already.
pub(super) struct Grammar {
    matcher: Matcher,
    /// Whether the answer has begun: text other than white space was chosen. No reasoning opens behind it.
    has_begun: bool,
    /// Tokens that steer the model and are part of the text.
    marks: &'static [&'static str],
}

impl Grammar {
    /// Compiles a Lark grammar; `%json` embeds schemas that `schema` has checked. Tokens named in `marks` count as text by their names;
    /// other special tokens never do.
    ///
    /// # Errors
    /// A sentence, if it cannot be enforced or is larger than the limits.
    pub(super) fn new(lark: String, marks: &'static [&'static str]) -> Result<Self, String> {
        let made = (|| {
            let mut factory = ParserFactory::new(&ALPHABET, InferenceCapabilities::default(), &[])?;
            factory.quiet();
            *factory.limits_mut() = ParserLimits {
                max_items_in_row: ITEMS.0,
                step_max_items: ITEMS.1,
                initial_lexer_fuel: FUEL.0,
                step_lexer_fuel: FUEL.1,
                max_lexer_states: LEXER_STATES,
                max_grammar_size: SYMBOLS,
                precompute_large_lexemes: false,
                verbose_errors: false,
            };
            factory.create_parser(TopLevelGrammar::from_lark(lark))
        })();
        let mut matcher = Matcher::new(made);
        // the first step is computed now, so that a failure is told before the answer begins
        let first = matcher.compute_mask_or_eos().map(drop);
        first.map_or_else(|error| Err(plain(&error)), |()| Ok(Self { matcher, has_begun: false, marks }))
    }

    /// The grammar at its beginning, for another answer.
    pub(super) fn anew(&self) -> Self {
        Self { matcher: self.matcher.clone(), ..*self }
    }

    /// Takes text that has come already; whether it may be so.
    pub(super) fn goes_on_with(&mut self, text: &str) -> bool {
        let bytes: Vec<u32> = text.bytes().map(u32::from).collect();
        self.matcher.validate_tokens(&bytes).is_ok_and(|valid| valid == bytes.len())
            && self.matcher.consume_tokens(&bytes).is_ok()
    }

    /// The next token of an answer that has gone so far; `None` if nothing may follow. What the model says to itself is free, but
    /// does not end the answer.
    ///
    /// # Errors
    /// A sentence, if no token of the vocabulary goes on with it, or it costs more than the limits.
    pub(super) fn choose(
        &mut self,
        sampler: &mut Sampler,
        logits: &[f32],
        tokenizer: &Tokenizer,
        parts: Option<&Parts>,
    ) -> Result<Option<u32>, String> {
        let place = parts.map_or(NextText::Answer, Parts::place);
        if let (NextText::Elsewhere, Some(parts)) = (place, parts) {
            // a tag that ends it must not bring a piece of the answer along
            let free = |token| match tokenizer.special(token) {
                _ if tokenizer.is_end(token) => false,
                Some(_) => true,
                None => !parts.would_answer(&text(tokenizer, token)),
            };
            return sampler.sample_among(logits, free).map(Some).ok_or_else(|| STUCK.to_owned());
        }
        if self.matcher.is_stopped() && !self.matcher.is_error() {
            return Ok(None);
        }
        let may_end = self.matcher.is_accepting().map_err(|error| plain(&error))?;
        let begins = self.matcher.compute_mask_or_eos().map_err(|error| plain(&error))?;
        let marks = self.marks;
        // the parts may still hold a byte of the answer that a tag begins with, too
        let may_reason = place == NextText::Beginning && !self.has_begun;
        let kind = |token| match tokenizer.special(token) {
            _ if tokenizer.is_end(token) => Kind::End,
            _ if may_reason && opens(&text(tokenizer, token)) => Kind::Opens,
            Some(name) if marks.contains(&name) => Kind::Text(name.bytes().map(u32::from).collect()),
            Some(_) => Kind::Steers,
            None => {
                Kind::Text(tokenizer.piece(token).unwrap_or_default().into_iter().map(u32::from).collect())
            }
        };
        let mut failed = None;
        let token = sampler.sample_among(logits, |token| match kind(token) {
            Kind::End => may_end,
            Kind::Opens => true,
            Kind::Steers => false,
            Kind::Text(bytes) if bytes.first().is_some_and(|&first| begins.is_allowed(first)) => {
                let valid = self.matcher.validate_tokens(&bytes);
                valid.map_err(|error| failed = Some(plain(&error))).is_ok_and(|valid| valid == bytes.len())
            }
            Kind::Text(_) => false,
        });
        match (failed, token) {
            (Some(error), _) => Err(error),
            (None, None) if may_end => Ok(None),
            (None, None) => Err(STUCK.to_owned()),
            (None, Some(token)) => {
                if let Kind::Text(bytes) = kind(token) {
                    self.has_begun |= bytes.iter().any(|&byte| !b" \t\r\n".contains(&(byte as u8)));
                    self.matcher.consume_tokens(&bytes).map_err(|error| plain(&error))?;
                }
                Ok(Some(token))
            }
        }
    }
}

/// Kinds of tokens, to a grammar.
enum Kind {
    /// The end of the answer.
    End,
    /// The beginning of what is not for the user.
    Opens,
    /// Anything else that is no text.
    Steers,
    /// Text, as tokens of the grammar.
    Text(Vec<u32>),
}

/// Error of an answer that no token can go on with.
const STUCK: &str = "no token of the vocabulary goes on with what the answer must be";

fn text(tokenizer: &Tokenizer, token: u32) -> String {
    String::from_utf8_lossy(&tokenizer.piece(token).unwrap_or_default()).into_owned()
}

/// An error without the state of the parser below it.
fn plain(error: &impl std::fmt::Display) -> String {
    let error = error.to_string();
    let line = error.lines().next().unwrap_or_default();
    line.split("<state>").next().unwrap_or(line).trim().to_owned()
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::{Duration, Instant};

    use flashplan::Sampling;
    use flashplan::internals::model::gguf::Gguf;
    use flashplan::internals::model::tokenizer::TokenizerData;
    use rand::rngs::StdRng;
    use rand::{RngExt as _, SeedableRng as _};
    use serde::Deserialize;
    use serde_json::{Value, json};

    use super::super::super::reasoning::Channel;
    use super::super::schema;
    use super::*;

    pub(in super::super) fn tokenizer() -> Tokenizer {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/models/oxide-dense.gguf");
        TokenizerData::from_gguf(&Gguf::open(path).unwrap()).unwrap().into_tokenizer().unwrap()
    }

    fn of(schema: &Value) -> Result<Grammar, String> {
        Grammar::new(format!("start: {}", schema::grammar(schema)?), &[])
    }

    /// Whether a text is all that a grammar asks for.
    pub(in super::super) fn takes(grammar: &Grammar, text: &str) -> bool {
        let mut matcher = grammar.matcher.clone();
        let bytes: Vec<u32> = text.bytes().map(u32::from).collect();
        matcher.validate_tokens(&bytes).is_ok_and(|valid| valid == bytes.len())
            && matcher.consume_tokens(&bytes).is_ok()
            && matcher.is_accepting().unwrap_or(false)
    }

    /// The answer and the reasoning of a model with random logits under a grammar; `None` if they have not ended after 2000 tokens.
    pub(in super::super) fn written(
        grammar: &Grammar,
        tokenizer: &Tokenizer,
        seed: u64,
        reasons: bool,
    ) -> Option<(String, String)> {
        let mut grammar = grammar.anew();
        let mut random = StdRng::seed_from_u64(seed);
        let temperature = if seed.is_multiple_of(2) { 0.0 } else { 1.0 };
        let mut sampling = Sampling::default();
        (sampling.temperature, sampling.seed) = (temperature, seed);
        let mut sampler = Sampler::new(sampling).unwrap();
        let (mut parts, mut letters) = (Parts::new(reasons), tokenizer.stream());
        let (mut answer, mut reasoning) = (String::new(), String::new());
        for _ in 0..2000 {
            let logits: Vec<f32> =
                (0..tokenizer.vocabulary()).map(|_| random.random::<f32>() * 8.0).collect();
            let token = grammar.choose(&mut sampler, &logits, tokenizer, Some(&parts)).unwrap();
            let Some(token) = token.filter(|&token| !tokenizer.is_end(token)) else {
                parts.finish(|_, text| answer.push_str(text));
                return Some((answer, reasoning));
            };
            parts.text(&letters.push(token), |part, text| match part {
                Channel::Answer => answer.push_str(text),
                Channel::Reasoning | Channel::Call => reasoning.push_str(text),
            });
        }
        None
    }

    #[test]
    fn no_reasoning_opens_behind_the_first_byte_of_an_answer() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/models/oxide-dense.gguf");
        let mut data = TokenizerData::from_gguf(&Gguf::open(path).unwrap()).unwrap();
        let think = data.tokens.len() as u32;
        data.tokens.push("<think>".to_owned());
        data.types.push(4);
        data.scores.resize(data.tokens.len(), 0.0);
        let tokenizer = data.into_tokenizer().unwrap();
        let mut grammar = of(&json!({ "const": [false] })).unwrap();
        let mut sampler = Sampler::new(Sampling::default()).unwrap();
        let (mut parts, mut letters, mut answer) = (Parts::new(false), tokenizer.stream(), String::new());
        // `[` may begin `[THINK]`, so that the parts hold it back
        let bracket =
            (0..think).find(|&token| tokenizer.piece(token).is_some_and(|piece| piece == b"[")).unwrap();
        for step in 0..20 {
            let mut logits = vec![0.0; tokenizer.vocabulary()];
            logits[if step == 0 { bracket } else { think } as usize] = 9.0;
            let token = grammar.choose(&mut sampler, &logits, &tokenizer, Some(&parts)).unwrap();
            let Some(token) = token.filter(|&token| !tokenizer.is_end(token)) else { break };
            assert_ne!(token, think, "after {answer:?}");
            parts.text(&letters.push(token), |_, text| answer.push_str(text));
        }
        parts.finish(|_, text| answer.push_str(text));
        assert_eq!(answer, "[false]");
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Person {
        name: String,
        age: u8,
        #[serde(default)]
        colours: Vec<Colour>,
        next: Option<Box<Self>>,
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Colour {
        Red,
        Green,
    }

    fn person() -> Value {
        json!({
            "$ref": "#/$defs/person",
            "$defs": { "person": {
                "type": "object",
                "properties": {
                    "name": { "type": "string", "minLength": 2, "maxLength": 12 },
                    "age": { "type": "integer", "minimum": 0, "maximum": 120 },
                    "colours": { "type": "array", "items": { "enum": ["red", "green"] }, "maxItems": 3 },
                    "next": { "anyOf": [{ "$ref": "#/$defs/person" }, { "type": "null" }] },
                },
                "required": ["name", "age", "next"],
                "additionalProperties": false,
            } },
        })
    }

    #[test]
    fn whatever_the_model_wants_to_say_it_is_what_the_schema_says() {
        let (tokenizer, grammar) = (tokenizer(), of(&person()).unwrap());
        let mut deepest = 0;
        for seed in 0..60 {
            let (answer, _) = written(&grammar, &tokenizer, seed, false).expect("it ends");
            let person: Person =
                serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{answer}: {error}"));
            let (mut next, mut depth) = (Some(&person), 0);
            while let Some(person) = next {
                assert!((2..=12).contains(&person.name.chars().count()) && person.age <= 120, "{answer}");
                assert!(person.colours.len() <= 3, "{answer}");
                let known = |colour: &Colour| matches!(colour, Colour::Red | Colour::Green);
                assert!(person.colours.iter().all(known));
                (next, depth) = (person.next.as_deref(), depth + 1);
            }
            deepest = deepest.max(depth);
        }
        assert!(deepest > 1, "a recursive schema goes on");
    }

    #[test]
    fn any_object_is_json_in_one_line() {
        let (tokenizer, grammar) = (tokenizer(), of(&schema::any_object()).unwrap());
        let ended = (0..20).filter_map(|seed| written(&grammar, &tokenizer, seed, false));
        let answers: Vec<String> = ended.map(|(answer, _)| answer).collect();
        assert!(!answers.is_empty());
        for answer in answers {
            match serde_json::from_str::<Value>(&answer) {
                Ok(value) => assert!(value.is_object() && !answer.contains('\n'), "{answer}"),
                // JSON has numbers of any size
                Err(error) => assert!(error.to_string().contains("number out of range"), "{error}: {answer}"),
            }
        }
    }

    /// Reasoning is unconstrained, and the answer after it is constrained.
    #[test]
    fn reasoning_is_free_and_does_not_end_the_answer() {
        let (tokenizer, grammar) = (tokenizer(), of(&json!({ "const": 7 })).unwrap());
        let mut sampler = Sampler::new(Sampling::default()).unwrap();
        let mut parts = Parts::new(true);
        let like = |token: u32| -> Vec<f32> {
            (0..tokenizer.vocabulary() as u32).map(|other| if other == token { 9.0 } else { 0.0 }).collect()
        };
        let mut grammar = grammar.anew();
        for token in tokenizer.encode(" I see </think>", false) {
            let chosen = grammar.choose(&mut sampler, &like(token), &tokenizer, Some(&parts));
            assert_eq!(chosen, Ok(Some(token)));
            parts.text(&String::from_utf8(tokenizer.piece(token).unwrap()).unwrap(), |_, _| {});
        }
        assert_eq!(parts.place(), NextText::Answer);
        let chosen = grammar.choose(&mut sampler, &like(40), &tokenizer, Some(&parts)).unwrap().unwrap();
        assert_eq!(tokenizer.piece(chosen).unwrap(), b"7");
        assert_eq!(grammar.choose(&mut sampler, &like(40), &tokenizer, Some(&parts)), Ok(None));
        let end = (0..tokenizer.vocabulary() as u32).find(|&token| tokenizer.is_end(token)).unwrap();
        let parts = Parts::new(true);
        let chosen = grammar.anew().choose(&mut sampler, &like(end), &tokenizer, Some(&parts)).unwrap();
        assert_ne!(chosen, Some(end));
    }

    /// Whatever a schema says, it is refused or enforced in bounded time.
    #[test]
    fn a_hostile_schema_takes_no_time() {
        let tokenizer = tokenizer();
        let many: Value = (0..500).map(|i| (format!("k{i}"), json!({ "type": "string" }))).collect();
        let alternatives: Vec<Value> =
            (0..200).map(|i| json!({ "properties": { format!("a{i}"): { "type": "number" } } })).collect();
        for (schema, at_all) in [
            (json!({ "type": "object", "properties": many }), false),
            (json!({ "anyOf": alternatives }), false),
            (json!({ "type": "string", "pattern": "^(a|b)*a(a|b){40}$" }), true),
            (json!({ "type": "string", "pattern": "^(((a{50}){50}){50}){50}$" }), true),
            (json!({ "type": "string", "minLength": 1_000_000_000 }), true),
            (json!({ "type": "array", "items": { "type": "integer" }, "minItems": 1_000_000_000 }), true),
            (
                json!({ "type": "number", "multipleOf": 0.000_001, "minimum": 0.1, "maximum": 99_999_999 }),
                true,
            ),
            (json!({ "$ref": "#" }), false),
            (json!({ "type": "no such type" }), false),
            (json!({ "type": "string", "format": "no such format" }), false),
            (json!({ "type": "string", "pattern": "(" }), false),
            (json!({ "$ref": "http://elsewhere.example/schema" }), false),
            (json!({ "type": "object", "dependencies": {} }), false),
        ] {
            let clock = Instant::now();
            let grammar = of(&schema);
            let told = schema.to_string();
            let told = &told[..told.len().min(80)];
            match grammar {
                Ok(grammar) => {
                    assert!(at_all, "{told}");
                    let mut grammar = grammar.anew();
                    let mut sampler = Sampler::new(Sampling::default()).unwrap();
                    let logits = vec![0.0; tokenizer.vocabulary()];
                    for _ in 0..50 {
                        if !matches!(grammar.choose(&mut sampler, &logits, &tokenizer, None), Ok(Some(_))) {
                            break;
                        }
                    }
                }
                Err(error) => assert!(!error.is_empty() && !error.contains('\n'), "{error}"),
            }
            assert!(clock.elapsed() < Duration::from_secs(10), "{told}: {:?}", clock.elapsed());
        }
    }
}
