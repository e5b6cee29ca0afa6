//! Questions that need no answer of the model: the tokens of a text, the text of tokens, and the prompt of a conversation.

use serde::{Serialize, Serializer};

use super::keys::{self, Keys, Notes, Served};
use super::request::{AnswerRequest, Ask, Refusal};
use super::{anthropic, openai};

/// A question about the model's vocabulary or template.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Question {
    /// The tokens of a text.
    Tokens { text: String, with_beginning: bool, with_special: bool, with_pieces: bool },
    /// The text of tokens.
    Text(Vec<u32>),
    /// The prompt of a request, as text.
    Prompt(Box<AnswerRequest>),
    /// The number of its tokens.
    Count(Box<AnswerRequest>),
}

fn asked(question: Question, notes: Notes) -> AnswerRequest {
    AnswerRequest { ignored: notes.names(), ..AnswerRequest::of(Ask::Question(question)) }
}

fn missing(key: &str) -> Refusal {
    Refusal::invalid(Some(key), format!("`{key}` is missing"))
}

/// A request to `/tokenize`, in llama.cpp's words or vLLM's.
pub(super) fn tokenize(body: &[u8], served: &Served<'_>) -> Result<AnswerRequest, Refusal> {
    let notes = Notes::default();
    let mut keys = Keys::read(body, &keys::TOKENIZE, &notes)?;
    keys.model(served)?;
    let text = match keys.take("content")? {
        None => keys.take("prompt")?,
        given => given,
    };
    let question = Question::Tokens {
        text: text.ok_or_else(|| missing("content"))?,
        with_beginning: keys.take("add_special")?.unwrap_or(false),
        with_special: keys.take("parse_special")?.unwrap_or(true),
        with_pieces: keys.take("with_pieces")?.unwrap_or(false),
    };
    keys.finish()?;
    Ok(asked(question, notes))
}

/// A request to `/detokenize`.
pub(super) fn detokenize(body: &[u8], served: &Served<'_>) -> Result<AnswerRequest, Refusal> {
    let notes = Notes::default();
    let mut keys = Keys::read(body, &keys::DETOKENIZE, &notes)?;
    keys.model(served)?;
    let tokens = keys.take("tokens")?.ok_or_else(|| missing("tokens"))?;
    keys.finish()?;
    Ok(asked(Question::Text(tokens), notes))
}

/// A request to `/apply-template`, with the keys of a chat.
pub(super) fn template(body: &[u8], served: &Served<'_>) -> Result<AnswerRequest, Refusal> {
    let mut request = openai::chat(body, served)?;
    let ignored = std::mem::take(&mut request.ignored);
    let ask = Ask::Question(Question::Prompt(Box::new(request)));
    Ok(AnswerRequest { ignored, ..AnswerRequest::of(ask) })
}

/// A request to `/v1/messages/count_tokens`.
pub(super) fn count(body: &[u8], served: &Served<'_>) -> Result<AnswerRequest, Refusal> {
    let notes = Notes::default();
    let mut keys = Keys::read(body, &keys::MESSAGES, &notes)?;
    let request = anthropic::conversation(&mut keys, served)?;
    keys.finish()?;
    Ok(asked(Question::Count(Box::new(request)), notes))
}

/// The reply to a question, before it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reply {
    /// Tokens as numbers, or each with its piece of text. A piece that is no text is a list of bytes.
    Tokens { tokens: Vec<u32>, with_pieces: bool, context: usize },
    /// The text of tokens.
    Text(Vec<u32>),
    /// The text of a prompt's tokens.
    Prompt(Vec<u32>),
    /// The number of a prompt's tokens.
    Count(usize),
}

/// Bytes of JSON for a token's number and the keys around it.
const TOKEN_BYTES: usize = 40;
/// Bytes of JSON for a byte of a piece: `\u0000` in a text, `255,` in a list.
const BYTE_BYTES: usize = 6;
/// Bytes of the keys of a reply.
const KEYS_BYTES: usize = 100;

impl Reply {
    /// Bytes of memory while the reply is written and until it is sent, at most. `piece` has the bytes of a token.
    pub(super) fn bytes_max(&self, piece: impl Fn(u32) -> Vec<u8>) -> usize {
        let of_pieces = |tokens: &[u32]| -> usize { tokens.iter().map(|&token| piece(token).len()).sum() };
        KEYS_BYTES
            + match self {
                Self::Tokens { tokens, with_pieces, .. } => {
                    let pieces = if *with_pieces { BYTE_BYTES * of_pieces(tokens) } else { 0 };
                    TOKEN_BYTES * tokens.len() + pieces
                }
                // the text is there twice, beside its bytes and what replaces those that are no text
                Self::Text(tokens) => (2 * BYTE_BYTES + 4) * of_pieces(tokens),
                Self::Prompt(tokens) => (BYTE_BYTES + 4) * of_pieces(tokens),
                Self::Count(_) => 0,
            }
    }

    /// The reply as JSON, in a text of this capacity.
    pub(super) fn json(&self, piece: impl Fn(u32) -> Vec<u8>, capacity: usize) -> String {
        let text = |tokens: &[u32]| {
            let bytes: Vec<u8> = tokens.iter().flat_map(|&token| piece(token)).collect();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let mut json = Vec::with_capacity(capacity);
        let written = match self {
            Self::Tokens { tokens, with_pieces: true, context } => {
                let listed = Listed(tokens, |token| Piece { id: token, piece: Shown::of(piece(token)) });
                write(&mut json, &Told { tokens: listed, count: tokens.len(), max_model_len: *context })
            }
            Self::Tokens { tokens, context, .. } => {
                write(&mut json, &Told { tokens, count: tokens.len(), max_model_len: *context })
            }
            Self::Text(tokens) => {
                let text = text(tokens);
                write(&mut json, &Detokenized { content: &text, prompt: &text })
            }
            Self::Prompt(tokens) => write(&mut json, &Rendered { prompt: &text(tokens) }),
            Self::Count(tokens) => write(&mut json, &Counted { input_tokens: *tokens }),
        };
        debug_assert!(written.is_ok(), "texts and numbers are JSON");
        String::from_utf8(json).unwrap_or_default()
    }
}

fn write(json: &mut Vec<u8>, value: &impl Serialize) -> serde_json::Result<()> {
    serde_json::to_writer(json, value)
}

#[derive(Serialize)]
struct Told<T> {
    tokens: T,
    count: usize,
    max_model_len: usize,
}

#[derive(Serialize)]
struct Detokenized<'t> {
    content: &'t str,
    prompt: &'t str,
}

#[derive(Serialize)]
struct Rendered<'t> {
    prompt: &'t str,
}

#[derive(Serialize)]
struct Counted {
    input_tokens: usize,
}

#[derive(Serialize)]
struct Piece {
    id: u32,
    piece: Shown,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Shown {
    Text(String),
    Bytes(Vec<u8>),
}

impl Shown {
    fn of(piece: Vec<u8>) -> Self {
        String::from_utf8(piece).map_or_else(|error| Self::Bytes(error.into_bytes()), Self::Text)
    }
}

/// A list that is made while it is written.
struct Listed<'t, F>(&'t [u32], F);

impl<T: Serialize, F: Fn(u32) -> T> Serialize for Listed<'_, F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|&token| (self.1)(token)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn questions_are_read_in_the_words_of_several_servers() {
        let served = Served { model: "m", strict: true, stored: None };
        let ask = |request: Result<AnswerRequest, Refusal>| request.map(|request| request.ask);
        let tokens = |text: &str| {
            let text = text.to_owned();
            Ask::Question(Question::Tokens {
                text,
                with_beginning: false,
                with_special: true,
                with_pieces: false,
            })
        };
        assert_eq!(ask(tokenize(br#"{"content": "a"}"#, &served)), Ok(tokens("a")));
        assert_eq!(ask(tokenize(br#"{"prompt": "b", "model": "m"}"#, &served)), Ok(tokens("b")));
        assert_eq!(
            ask(detokenize(br#"{"tokens": [1]}"#, &served)),
            Ok(Ask::Question(Question::Text(vec![1])))
        );
        assert!(tokenize(b"{}", &served).unwrap_err().message.contains("`content` is missing"));
        // Anthropic's clients need not say how long an answer may be that they do not want
        let counted = count(br#"{"messages": [{"role": "user", "content": "a"}]}"#, &served).unwrap();
        assert!(matches!(counted.ask, Ask::Question(Question::Count(_))));
    }

    #[test]
    fn pieces_that_are_no_text_are_bytes() {
        let piece = |token: u32| if token == 1 { b"a".to_vec() } else { vec![0xc3] };
        let reply = |with_pieces| Reply::Tokens { tokens: vec![1, 2], with_pieces, context: 9 };
        let json = |reply: &Reply| -> Value { serde_json::from_str(&reply.json(piece, 0)).unwrap() };
        assert_eq!(
            json(&reply(true)),
            json!({ "tokens": [{ "id": 1, "piece": "a" }, { "id": 2, "piece": [195] }], "count": 2, "max_model_len": 9 })
        );
        assert_eq!(json(&reply(false))["tokens"], json!([1, 2]));
        assert_eq!(json(&Reply::Text(vec![1, 2])), json!({ "content": "a\u{fffd}", "prompt": "a\u{fffd}" }));
        assert_eq!(json(&Reply::Prompt(vec![1])), json!({ "prompt": "a" }));
        assert_eq!(json(&Reply::Count(7)), json!({ "input_tokens": 7 }));
    }

    proptest! {
        /// The charge for a reply is taken before it is written.
        #[test]
        fn a_reply_is_no_longer_than_its_charge(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..6), 1..40),
            with_pieces: bool,
        ) {
            let piece = |token: u32| pieces[token as usize % pieces.len()].clone();
            let tokens: Vec<u32> = (0..pieces.len() as u32).map(|at| u32::MAX - at).collect();
            for reply in [
                Reply::Tokens { tokens: tokens.clone(), with_pieces, context: usize::MAX },
                Reply::Text(tokens.clone()),
                Reply::Prompt(tokens.clone()),
                Reply::Count(usize::MAX),
            ] {
                let bytes = reply.bytes_max(piece);
                let json = reply.json(piece, bytes);
                prop_assert!(json.len() <= bytes && json.capacity() <= bytes, "{} {bytes}", json.len());
            }
        }
    }
}
