//! Keys of requests, taken one by one.
//!
//! `table` says for each endpoint which keys it does, which change nothing, and which it refuses. A key that changes nothing of the answer
//! is accepted and noted: the client reads its name in a header, the operator in the log. A key that would change the answer and is not
//! implemented is refused by name. A key that looks like a misspelled implemented key is refused, too.

mod table;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use plans::file::significant;
use serde::Deserialize;
use serde_json::{Map, Value};

use self::table::{EMPTY, HARMLESS, NEUTRAL_ELSEWHERE, REFUSED, REFUSED_INSIDE, is_done};
use super::request::{Options, Refusal};
use super::store::Lookup;

pub(super) use self::table::{
    CHAT, COMPLETIONS, DETOKENIZE, EMBEDDINGS, Endpoint, MESSAGES, Neutral, OFF, OLLAMA_CHAT,
    OLLAMA_GENERATE, RESPONSES, TOKENIZE, is_known,
};

/// Names of keys that change nothing, in the order of their names.
#[derive(Debug, Default)]
pub(super) struct Notes(RefCell<BTreeSet<String>>);

impl Notes {
    /// Notes a key.
    pub(super) fn add(&self, key: impl Into<String>) {
        self.0.borrow_mut().insert(key.into());
    }

    /// All names.
    pub(super) fn names(self) -> Vec<String> {
        self.0.into_inner().into_iter().collect()
    }
}

/// Keys of an object inside a request, taken one by one. A key that is null says nothing.
pub(super) struct Fields<'n> {
    keys: Map<String, Value>,
    /// The key of the request that it belongs to, and what it is.
    param: &'static str,
    of: String,
    notes: &'n Notes,
}

impl<'n> Fields<'n> {
    pub(super) fn new(
        value: Value,
        param: &'static str,
        of: impl Into<String>,
        notes: &'n Notes,
    ) -> Result<Self, Refusal> {
        let of = of.into();
        let Value::Object(mut keys) = value else {
            return Err(Refusal::invalid(Some(param), format!("`{param}`: {of} is no object")));
        };
        keys.retain(|_, value| !value.is_null());
        Ok(Self { keys, param, of, notes })
    }

    /// An object inside this one.
    pub(super) fn inner(&mut self, key: &str, of: impl Into<String>) -> Result<Self, Refusal> {
        let value = self.must(key)?;
        Self::new(value, self.param, of, self.notes)
    }

    pub(super) fn take<T: for<'de> Deserialize<'de>>(&mut self, key: &str) -> Result<Option<T>, Refusal> {
        let Some(value) = self.keys.remove(key) else { return Ok(None) };
        serde_json::from_value(value).map(Some).map_err(|error| {
            Refusal::invalid(Some(self.param), format!("`{}`: `{key}` of {}: {error}", self.param, self.of))
        })
    }

    /// The value of a key that there must be.
    pub(super) fn must<T: for<'de> Deserialize<'de>>(&mut self, key: &str) -> Result<T, Refusal> {
        let missing =
            || Refusal::invalid(Some(self.param), format!("`{}`: {} has no `{key}`", self.param, self.of));
        let missing = missing();
        self.take(key)?.ok_or(missing)
    }

    /// Leaves away keys that every client of the interface sends and that say nothing here.
    pub(super) fn without_effect(&mut self, keys: &[&str]) {
        keys.iter().for_each(|&key| drop(self.keys.remove(key)));
    }

    /// Refuses keys with a value that is not neutral.
    pub(super) fn refuse(&self, keys: &[(&str, Neutral)]) -> Result<(), Refusal> {
        let says = |(key, neutral): &&(&str, Neutral)| {
            self.keys.get(*key).is_some_and(|value| !asks_for_nothing(value, neutral))
        };
        keys.iter().find(says).map_or(Ok(()), |(key, _)| Err(self.not_done(key)))
    }

    /// Notes what is left, and refuses what would change the answer.
    pub(super) fn finish(self) -> Result<(), Refusal> {
        self.refuse(REFUSED_INSIDE)?;
        for key in self.keys.keys() {
            self.notes.add(format!("{}.{key}", self.param));
        }
        Ok(())
    }

    /// Refuses any key that is left: every key of this object matters.
    pub(super) fn finish_all(self) -> Result<(), Refusal> {
        self.keys.keys().next().map_or(Ok(()), |key| Err(self.not_done(key)))
    }

    fn not_done(&self, key: &str) -> Refusal {
        let message = format!("`{key}` of {} is not implemented here; leave it away", self.of);
        Refusal::invalid(Some(self.param), message)
    }
}

fn asks_for_nothing(value: &Value, neutral: Neutral) -> bool {
    value.is_null()
        || neutral.iter().any(|text| serde_json::from_str::<Value>(text).is_ok_and(|quiet| quiet == *value))
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// Stop texts, and bytes of each, at most.
const STOPS_MAX: usize = 16;
const STOP_BYTES_MAX: usize = 256;
/// Answers to one prompt, and likelihoods told beside each token's, at most.
const CHOICES_MAX: usize = 16;
const LIKELIHOODS_MAX: usize = 20;

/// The keys of a request, taken one by one.
pub(super) struct Keys<'n> {
    keys: Map<String, Value>,
    endpoint: &'static Endpoint,
    pub(super) notes: &'n Notes,
}

impl<'n> Keys<'n> {
    pub(super) fn read(body: &[u8], endpoint: &'static Endpoint, notes: &'n Notes) -> Result<Self, Refusal> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(mut keys)) => {
                keys.retain(|_, value| !value.is_null());
                Ok(Self { keys, endpoint, notes })
            }
            Ok(_) => Err(Refusal::invalid(None, "the body is no JSON object")),
            Err(error) => Err(Refusal::invalid(None, format!("the body is no JSON: {error}"))),
        }
    }

    pub(super) fn take<T: for<'de> Deserialize<'de>>(&mut self, key: &str) -> Result<Option<T>, Refusal> {
        let Some(value) = self.keys.remove(key) else { return Ok(None) };
        serde_json::from_value(value)
            .map(Some)
            .map_err(|error| Refusal::invalid(Some(key), format!("`{key}`: {error}")))
    }

    /// Fields of an object that a key has.
    pub(super) fn fields(&mut self, key: &'static str) -> Result<Option<Fields<'n>>, Refusal> {
        let value: Option<Value> = self.take(key)?;
        value.map(|value| Fields::new(value, key, format!("`{key}`"), self.notes)).transpose()
    }

    /// Value of a key.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.keys.get(key)
    }

    /// Sets a key, if there is a value for it.
    pub(super) fn put(&mut self, key: &str, value: Option<Value>) {
        self.keys.extend(value.map(|value| (key.to_owned(), value)));
    }

    /// Leaves away a key that has a value which says nothing.
    pub(super) fn forget(&mut self, key: &str, value: &Value) {
        if self.keys.get(key) == Some(value) {
            self.keys.remove(key);
        }
    }

    /// Takes another interface's name of a key for the one that is meant.
    pub(super) fn rename(&mut self, theirs: &str, ours: &str) -> Result<(), Refusal> {
        if let Some(refusal) = self.keys.get(ours).and_then(|value| self.refusal(ours, value)) {
            return Err(refusal);
        }
        let value = self.keys.remove(theirs);
        self.keys.extend(value.map(|value| (ours.to_owned(), value)));
        Ok(())
    }

    /// The model that is meant. There is one: unless names are strict, any name is that model's.
    pub(super) fn model(&mut self, served: &Served<'_>) -> Result<(), Refusal> {
        match self.take::<String>("model")? {
            Some(model) if model != served.model && served.strict => {
                let message = format!("there is no model `{model}` here; name `{}`, or none", served.model);
                Err(Refusal {
                    param: Some("model".to_owned()),
                    code: Some("model_not_found"),
                    ..Refusal::of(404, "not_found_error", message)
                })
            }
            Some(model) if model != served.model => {
                self.notes.add("model");
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A number that is -1 where there is no limit.
    fn unlimited(&mut self, key: &str) -> Result<Option<usize>, Refusal> {
        match self.take::<i64>(key)? {
            None | Some(-1) => Ok(None),
            Some(number) => usize::try_from(number)
                .map(Some)
                .map_err(|_| Refusal::invalid(Some(key), format!("`{key}` is {number}; it is 0 or more"))),
        }
    }

    pub(super) fn options(&mut self) -> Result<Options, Refusal> {
        let number = |key: &str, value: Option<f64>, range: std::ops::RangeInclusive<f64>| match value {
            Some(value) if !range.contains(&value) => Err(Refusal::invalid(
                Some(key),
                format!("`{key}` is {value}; it is {} to {}", range.start(), range.end()),
            )),
            value => Ok(value.map(|value| significant(value) as f32)),
        };
        let temperature = self.take("temperature")?;
        let (top_p, min_p) = (self.take("top_p")?, self.take("min_p")?);
        let repeat: Option<f64> = match self.take("repeat_penalty")? {
            None => self.take("repetition_penalty")?,
            given => given,
        };
        let stop = match self.take::<OneOrMany>("stop")? {
            None => Vec::new(),
            Some(OneOrMany::One(text)) => vec![text],
            Some(OneOrMany::Many(texts)) => texts,
        };
        if stop.len() > STOPS_MAX || stop.iter().any(|text| text.is_empty() || text.len() > STOP_BYTES_MAX) {
            return Err(Refusal::invalid(
                Some("stop"),
                format!("`stop` has up to {STOPS_MAX} texts of 1 to {STOP_BYTES_MAX} bytes"),
            ));
        }
        let newer = self.endpoint.does("max_completion_tokens");
        let max = if newer { self.unlimited("max_completion_tokens")? } else { None };
        let older = self.unlimited("max_tokens")?;
        if max.is_some() && older.is_some() && max != older {
            let message = "`max_tokens` and `max_completion_tokens` differ; leave `max_tokens` away";
            return Err(Refusal::invalid(Some("max_tokens"), message));
        }
        let (presence, frequency) = (self.take("presence_penalty")?, self.take("frequency_penalty")?);
        let choices = if self.endpoint.does("n") { self.take("n")?.unwrap_or(1) } else { 1 };
        if !(1..=CHOICES_MAX).contains(&choices) {
            return Err(Refusal::invalid(Some("n"), format!("`n` is {choices}; it is 1 to {CHOICES_MAX}")));
        }
        // all tokens, as the command line says it
        let top_k = self.take::<i64>("top_k")?.map(|top_k| usize::try_from(top_k).unwrap_or(0));
        // any seed will do
        self.forget("seed", &Value::from(-1));
        let seed = self.take("seed")?;
        Ok(Options {
            temperature: number("temperature", temperature, 0.0..=2.0)?,
            top_p: number("top_p", top_p, 0.0..=1.0)?,
            top_k,
            min_p: number("min_p", min_p, 0.0..=1.0)?,
            repeat_penalty: number("repeat_penalty", repeat, 0.1..=10.0)?,
            presence_penalty: number("presence_penalty", presence, -2.0..=2.0)?,
            frequency_penalty: number("frequency_penalty", frequency, -2.0..=2.0)?,
            logit_bias: self.logit_bias()?,
            likelihoods: None,
            echo: false,
            choices,
            schema: None,
            seed,
            stop,
            max_tokens: max.or(older),
        })
    }

    /// Refuses an answer of no tokens, where only some may be wanted.
    pub(super) fn some_tokens(options: &Options, key: &str) -> Result<(), Refusal> {
        match options.max_tokens {
            Some(0) => Err(Refusal::invalid(Some(key), format!("`{key}` is 0; it is 1 or more"))),
            _ => Ok(()),
        }
    }

    /// Tokens by number, each with what is added to its logit.
    fn logit_bias(&mut self) -> Result<Vec<(u32, f32)>, Refusal> {
        let biases: BTreeMap<String, f64> = self.take("logit_bias")?.unwrap_or_default();
        let wrong = |message: String| Refusal::invalid(Some("logit_bias"), message);
        let bias = |(token, bias): (String, f64)| {
            let number = token.parse().map_err(|_| {
                wrong(format!(
                    "`logit_bias` has `{token}`, which is no token's number; `run --tokenize` tells them"
                ))
            })?;
            if !(-100.0..=100.0).contains(&bias) {
                return Err(wrong(format!("`logit_bias` of {token} is {bias}; it is -100 to 100")));
            }
            Ok((number, bias as f32))
        };
        biases.into_iter().map(bias).collect()
    }

    /// How many alternatives are reported beside a token's own likelihood.
    pub(super) fn likelihoods(&mut self, key: &str) -> Result<Option<usize>, Refusal> {
        match self.take::<usize>(key)? {
            Some(top) if top > LIKELIHOODS_MAX => {
                Err(Refusal::invalid(Some(key), format!("`{key}` is {top}; it is 0 to {LIKELIHOODS_MAX}")))
            }
            top => Ok(top),
        }
    }

    /// Whether the answer is streamed, and whether the stream ends with what was used.
    pub(super) fn stream(&mut self) -> Result<(bool, bool), Refusal> {
        let stream = self.take("stream")?.unwrap_or(false);
        let Some(mut options) = self.fields("stream_options")? else { return Ok((stream, false)) };
        let usage = options.take("include_usage")?.unwrap_or(false);
        options.finish()?;
        if !stream {
            self.notes.add("stream_options");
        }
        Ok((stream, usage))
    }

    /// Notes what is left, and refuses what would change the answer.
    pub(super) fn finish(self) -> Result<(), Refusal> {
        for (key, value) in &self.keys {
            if let Some(refusal) = self.refusal(key, value) {
                return Err(refusal);
            }
            self.notes.add(key);
        }
        Ok(())
    }

    /// Why a key that was not taken is refused, if it is.
    fn refusal(&self, key: &str, value: &Value) -> Option<Refusal> {
        let row = self.endpoint.refused.iter().chain(REFUSED).find(|(refused, _)| *refused == key);
        if let Some((_, neutral)) = row {
            let message = format!("`{key}` is not implemented here; leave it away");
            return (!asks_for_nothing(value, neutral)).then(|| Refusal::invalid(Some(key), message));
        }
        if HARMLESS.contains(&key) {
            return None;
        }
        if is_done(key) {
            // sampling changes nothing of an endpoint that draws no tokens
            let draws = table::SAMPLING.contains(&key) || table::LENGTH.contains(&key);
            let row = NEUTRAL_ELSEWHERE.iter().find(|(other, _)| *other == key);
            let is_neutral = asks_for_nothing(value, EMPTY)
                || row.is_some_and(|(_, neutral)| asks_for_nothing(value, neutral))
                || draws && !self.endpoint.draws();
            let message = format!("`{key}` is not implemented at this endpoint; leave it away");
            return (!is_neutral).then(|| Refusal::invalid(Some(key), message));
        }
        let meant = self.endpoint.done().find(|done| is_misspelled(key, done))?;
        let message = format!("`{key}` is unknown; `{meant}` is meant, or leave it away");
        Some(Refusal { is_unknown: true, ..Refusal::invalid(Some(key), message) })
    }
}

/// The model that is served, and whether a request must name it rightly.
#[derive(Debug, Clone, Copy)]
pub(super) struct Served<'s> {
    pub(super) model: &'s str,
    pub(super) strict: bool,
    /// Conversations that a request may go on with.
    pub(super) stored: Option<&'s Lookup<'s>>,
}

/// Whether one letter is wrong, missing, too much, or in its neighbour's place.
fn is_misspelled(key: &str, known: &str) -> bool {
    let (mut key, mut known) = (key.as_bytes(), known.as_bytes());
    if known.len() < 4 {
        return false;
    }
    while let (Some((a, rest)), Some((b, known_rest))) = (key.split_first(), known.split_first())
        && a == b
    {
        (key, known) = (rest, known_rest);
    }
    while let (Some((a, rest)), Some((b, known_rest))) = (key.split_last(), known.split_last())
        && a == b
    {
        (key, known) = (rest, known_rest);
    }
    match (key, known) {
        ([a, b], [c, d]) => (a, b) == (d, c),
        (key, known) => key.len() <= 1 && known.len() <= 1,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::table::{ENDPOINTS, LENGTH, SAMPLING};
    use super::*;

    #[test]
    fn one_wrong_letter_is_a_misspelled_key() {
        for key in ["temprature", "temperatur", "tempearture", "temperaturee", "Temperature"] {
            assert!(is_misspelled(key, "temperature"), "{key}");
        }
        for (key, known) in [("user", "seed"), ("a", "n"), ("top_a2", "top_p"), ("colour", "tools")] {
            assert!(!is_misspelled(key, known), "{key}");
        }
    }

    #[test]
    fn harmless_keys_are_noted_and_others_are_refused_by_name() {
        let finish = |body: Value| {
            let notes = Notes::default();
            Keys::read(body.to_string().as_bytes(), &CHAT, &notes).and_then(Keys::finish)?;
            Ok::<_, Refusal>(notes.names())
        };
        let noted =
            finish(json!({ "user": "u", "metadata": {}, "colour": "red", "best_of": 1, "store": true }));
        assert_eq!(noted.unwrap(), ["best_of", "colour", "metadata", "store", "user"]);
        for (body, words) in [
            (json!({ "best_of": 2 }), "`best_of` is not implemented"),
            (json!({ "grammar": "root ::= a" }), "`grammar` is not implemented"),
            (json!({ "temprature": 1 }), "`temprature` is unknown; `temperature` is meant"),
            (json!({ "functions": [{}] }), "`functions` is not implemented"),
            (json!({ "max_output_tokens": 5 }), "`max_output_tokens` is not implemented at this endpoint"),
            (json!({ "system": "Be kind." }), "`system` is not implemented at this endpoint"),
            (json!({ "format": "json" }), "`format` is not implemented at this endpoint"),
            (json!({ "think": false }), "`think` is not implemented at this endpoint"),
        ] {
            let said = finish(body).unwrap_err().message;
            assert!(said.contains(words), "{said}");
        }
    }

    #[test]
    fn keys_of_other_endpoints_are_refused_where_they_would_change_the_answer() {
        let finish = |endpoint, key: &str, value: Value| {
            let notes = Notes::default();
            let body = json!({ key: value }).to_string();
            Keys::read(body.as_bytes(), endpoint, &notes).and_then(Keys::finish).is_ok()
        };
        for endpoint in ENDPOINTS {
            let own =
                |key: &str| endpoint.does(key) || endpoint.refused.iter().any(|(refused, _)| *refused == key);
            for key in ENDPOINTS.iter().flat_map(|other| other.done()).filter(|key| !own(key)) {
                let harmless = !endpoint.draws() && [SAMPLING, LENGTH].iter().any(|keys| keys.contains(&key));
                assert_eq!(finish(endpoint, key, json!("a")), harmless, "{key} at {endpoint:?}");
                assert!(finish(endpoint, key, Value::Null), "{key} at {endpoint:?}");
            }
        }
        assert!(finish(&MESSAGES, "response_format", json!({})) && finish(&CHAT, "store", json!(true)));
        assert!(finish(&OLLAMA_CHAT, "n", json!(1)) && !finish(&OLLAMA_CHAT, "n", json!(2)));
        assert!(finish(&EMBEDDINGS, "temperature", json!(1)) && !finish(&EMBEDDINGS, "messages", json!([1])));
    }

    #[test]
    fn no_key_is_both_done_and_refused() {
        for endpoint in ENDPOINTS {
            let done: Vec<&str> = endpoint.done().collect();
            for (key, neutral) in endpoint.refused.iter().chain(REFUSED) {
                assert!(!done.contains(key) && !HARMLESS.contains(key), "{key}");
                assert!(neutral.iter().all(|text| serde_json::from_str::<Value>(text).is_ok()), "{key}");
            }
            assert!(!HARMLESS.iter().any(|key| done.contains(key)));
        }
    }
}
