//! Questions that need no answer of the model: the tokens of a text, the text of tokens, and the prompt of a conversation.

use serde_json::{Value, json};

use super::keys::{self, Endpoint, Keys, Notes, Served};
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
    const KEYS: Endpoint =
        Endpoint::of(&["model", "content", "prompt", "add_special", "parse_special", "with_pieces"]);
    let notes = Notes::default();
    let mut keys = Keys::read(body, &KEYS, &notes)?;
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
    const KEYS: Endpoint = Endpoint::of(&["model", "tokens"]);
    let notes = Notes::default();
    let mut keys = Keys::read(body, &KEYS, &notes)?;
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

/// Tokens as JSON. With `pieces`, each has its text, or its bytes if they are no text.
pub(super) fn told(tokens: &[u32], pieces: Option<Vec<Vec<u8>>>, context: usize) -> Value {
    let piece = |(id, piece): (&u32, Vec<u8>)| match String::from_utf8(piece) {
        Ok(text) => json!({ "id": id, "piece": text }),
        Err(error) => json!({ "id": id, "piece": error.into_bytes() }),
    };
    let listed = match pieces {
        None => json!(tokens),
        Some(pieces) => tokens.iter().zip(pieces).map(piece).collect(),
    };
    json!({ "tokens": listed, "count": tokens.len(), "max_model_len": context })
}

#[cfg(test)]
mod tests {
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
        let told = told(&[1, 2], Some(vec![b"a".to_vec(), vec![0xc3]]), 9);
        assert_eq!(told["tokens"], json!([{ "id": 1, "piece": "a" }, { "id": 2, "piece": [195] }]));
        assert_eq!((&told["count"], &told["max_model_len"]), (&json!(2), &json!(9)));
    }
}
