//! `OpenAI`'s embeddings: texts that become a vector each, one after another.

use std::vec::IntoIter;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use flashplan::internals::pooling::{Pooled, Pooling};
use serde::Serialize;
use serde_json::{Value, json};

use super::Told;
use super::answer::{Event, Form, Whole};
use super::keys::{self, Keys, Notes, Served};
use super::request::{AnswerRequest, Ask, Input, Refusal, inputs};

/// Texts of a request, at most; `OpenAI` takes as many.
const INPUTS_MAX: usize = 2048;
/// Bytes of a number until its answer is out: the number, its digits, and the spare capacity of the growing text.
const NUMBER_BYTES: usize = 4 + 3 * 16;

/// A request to `/v1/embeddings`.
pub(super) fn embeddings(body: &[u8], served: &Served<'_>) -> Result<AnswerRequest, Refusal> {
    let notes = Notes::default();
    let mut keys = Keys::read(body, &keys::EMBEDDINGS, &notes)?;
    keys.model(served)?;
    let refused = |message: String| Refusal::invalid(Some("input"), message);
    let input: Value = keys
        .take("input")?
        .ok_or_else(|| refused("`input` is missing: of what is the embedding wanted?".to_owned()))?;
    let inputs = inputs(input, "input", INPUTS_MAX)?;
    if inputs.iter().any(Input::is_empty) {
        return Err(refused("`input` has an empty text, which has no embedding; leave it away".to_owned()));
    }
    let format = keys.take::<String>("encoding_format")?.unwrap_or_else(|| "float".to_owned());
    if !matches!(format.as_str(), "float" | "base64") {
        let message = format!("`encoding_format` is `{format}`; it is float or base64");
        return Err(Refusal::invalid(Some("encoding_format"), message));
    }
    let dimensions = keys.take("dimensions")?;
    keys.finish()?;
    let ask = Ask::Embeddings { inputs, dimensions };
    Ok(AnswerRequest {
        usage: true,
        repeated: json!(format),
        ignored: notes.names(),
        ..AnswerRequest::of(ask)
    })
}

/// The texts that are still to be embedded, and the one that is.
pub(super) struct Embedding {
    pooling: Pooling,
    pooled: Pooled,
    rest: IntoIter<Vec<u32>>,
    /// Texts that have their vector.
    pub(super) done: usize,
    /// Bytes that all vectors take until they are out, at most.
    pub(super) bytes_max: usize,
}

impl Embedding {
    /// The embeddings of a first text and the `rest` after it, in a model of this width.
    pub(super) fn new(pooling: Pooling, width: usize, rest: Vec<Vec<u32>>) -> Self {
        let bytes_max = (1 + rest.len()) * width * NUMBER_BYTES;
        Self { pooling, pooled: Pooled::new(pooling), rest: rest.into_iter(), done: 0, bytes_max }
    }

    /// Tokens of the texts after the one at hand.
    pub(super) fn tokens(&self) -> usize {
        self.rest.as_slice().iter().map(Vec::len).sum()
    }

    /// Hears the hidden state of the text's next token.
    pub(super) fn add(&mut self, hidden: &[f32]) {
        self.pooled.add(hidden);
    }

    /// All of the text's tokens were heard: its vector, and the tokens of the next one.
    pub(super) fn next(&mut self) -> (Vec<f32>, Option<Vec<u32>>) {
        let pooled = std::mem::replace(&mut self.pooled, Pooled::new(self.pooling));
        self.done += 1;
        (pooled.finish(), self.rest.next())
    }
}

/// How vectors are written.
#[derive(Debug)]
pub(super) struct Vectors {
    model: String,
    /// As numbers of 32 bits, least byte first, in base 64; otherwise as numbers of JSON.
    base64: bool,
}

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<Item<'a>>,
    model: &'a str,
    usage: Value,
}

#[derive(Serialize)]
struct Item<'a> {
    object: &'static str,
    index: usize,
    embedding: Form32<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Form32<'a> {
    Numbers(&'a [f32]),
    Base64(String),
}

impl Vectors {
    /// The answer to such a request.
    pub(super) fn new(model: String, request: &AnswerRequest) -> Self {
        Self { model, base64: request.repeated == "base64" }
    }

    fn vector<'a>(&self, vector: &'a [f32]) -> Form32<'a> {
        if !self.base64 {
            return Form32::Numbers(vector);
        }
        let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
        Form32::Base64(BASE64_STANDARD.encode(bytes))
    }
}

impl Form for Vectors {
    fn events(&mut self, _: Told) -> Vec<Event> {
        Vec::new() // `stream` is no key of these requests
    }

    fn whole(&mut self, whole: Whole) -> String {
        let item = |(index, vector)| Item { object: "embedding", index, embedding: self.vector(vector) };
        let tokens = whole.usage.prompt;
        let list = List {
            object: "list",
            data: whole.vectors.iter().map(Vec::as_slice).enumerate().map(item).collect(),
            model: &self.model,
            usage: json!({ "prompt_tokens": tokens, "total_tokens": tokens }),
        };
        // strings and numbers are always JSON
        serde_json::to_string(&list).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Usage;
    use super::*;

    fn read(body: &Value) -> Result<AnswerRequest, Refusal> {
        embeddings(body.to_string().as_bytes(), &Served { model: "m", strict: true, stored: None })
    }

    #[test]
    fn texts_and_tokens_are_read_one_or_several_and_the_rest_is_refused_by_name() {
        let asked = |body: Value| match read(&body).expect("it is taken").ask {
            Ask::Embeddings { inputs, dimensions } => (inputs, dimensions),
            other => panic!("{other:?}"),
        };
        let text = |text: &str| Input::Text(text.to_owned());
        assert_eq!(asked(json!({ "input": "a", "user": "me" })), (vec![text("a")], None));
        assert_eq!(
            asked(json!({ "input": ["a", "b"], "dimensions": 8 })),
            (vec![text("a"), text("b")], Some(8))
        );
        assert_eq!(asked(json!({ "input": [1, 2], "model": "m" })).0, [Input::Tokens(vec![1, 2])]);
        assert_eq!(
            asked(json!({ "input": [[1], [2, 3]] })).0,
            [Input::Tokens(vec![1]), Input::Tokens(vec![2, 3])]
        );
        for (body, param, words) in [
            (json!({}), "input", "missing"),
            (json!({ "input": [] }), "input", "has 0 texts"),
            (json!({ "input": vec!["a"; 2049] }), "input", "has 2049 texts"),
            (json!({ "input": ["a", ""] }), "input", "empty text"),
            (json!({ "input": [[1], []] }), "input", "empty text"),
            (json!({ "input": ["a", 1] }), "input", "a list of tokens"),
            (json!({ "input": [-1] }), "input", "a list of tokens"),
            (json!({ "input": "a", "encoding_format": "int8" }), "encoding_format", "float or base64"),
            (json!({ "input": "a", "dimensions": "many" }), "dimensions", "`dimensions`"),
            (json!({ "input": "a", "stream": true }), "stream", "not implemented"),
            (json!({ "input": "a", "model": "n" }), "model", "no model `n`"),
        ] {
            let refusal = read(&body).expect_err("it is refused");
            assert_eq!(refusal.param.as_deref(), Some(param), "{body}");
            assert!(refusal.message.contains(words), "{body}: {}", refusal.message);
        }
    }

    #[test]
    fn vectors_are_written_as_numbers_or_in_base_64_with_the_same_bits() {
        let vectors = vec![vec![0.6_f32, -0.8, 1e-12], vec![1.0, 0.0, -0.0]];
        let written = |format: &str| -> Value {
            let request = read(&json!({ "input": "a", "encoding_format": format })).expect("it is taken");
            let usage = Usage { prompt: 7, ..Usage::default() };
            let whole = Whole { vectors: vectors.clone(), usage, ..Whole::default() };
            serde_json::from_str(&Vectors::new("m".to_owned(), &request).whole(whole)).expect("it is JSON")
        };
        let (numbers, text) = (written("float"), written("base64"));
        for (at, vector) in vectors.iter().enumerate() {
            let (number, text) = (&numbers["data"][at], &text["data"][at]);
            assert_eq!((&number["index"], &number["object"]), (&json!(at), &json!("embedding")));
            let told: Vec<f32> = serde_json::from_value(number["embedding"].clone()).expect("numbers");
            let bytes = BASE64_STANDARD.decode(text["embedding"].as_str().expect("a text")).expect("base 64");
            for (value, (told, bytes)) in vector.iter().zip(told.iter().zip(bytes.chunks_exact(4))) {
                assert_eq!((told.to_bits(), bytes), (value.to_bits(), &value.to_le_bytes()[..]));
            }
            assert_eq!(bytes.len(), 4 * vector.len());
        }
        assert_eq!(numbers["usage"], json!({ "prompt_tokens": 7, "total_tokens": 7 }));
        assert_eq!((&numbers["object"], &numbers["model"]), (&json!("list"), &json!("m")));
    }
}
