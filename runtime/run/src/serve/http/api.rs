//! The interfaces of clients: how each reads a request and writes an answer.

use std::sync::Arc;

use super::super::answer::{Form, Head};
use super::super::anthropic::{self, Anthropic};
use super::super::embeddings::{self, Vectors};
use super::super::ollama::{self, Ollama};
use super::super::openai::{self, OpenAi};
use super::super::request::{AnswerRequest, Refusal};
use super::super::responses::{self, Responses};
use super::super::store::Store;
use super::super::{keys, questions};

/// The beginning of Ollama's paths, whose refusals are in its words.
pub(super) const OLLAMA: &str = "/api/";

/// The interface of a request and its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Api {
    Chat,
    Text,
    Messages,
    Responses,
    Embeddings,
    OllamaChat,
    OllamaGenerate,
    Tokenize,
    Detokenize,
    Template,
    Count,
}

impl Api {
    /// Every interface.
    pub(super) const ALL: [Self; 11] = [
        Self::Chat,
        Self::Text,
        Self::Messages,
        Self::Responses,
        Self::Embeddings,
        Self::OllamaChat,
        Self::OllamaGenerate,
        Self::Tokenize,
        Self::Detokenize,
        Self::Template,
        Self::Count,
    ];

    /// The beginning of an answer's id.
    pub(super) fn prefix(self) -> &'static str {
        match self {
            Self::Chat => "chatcmpl",
            Self::Text => "cmpl",
            Self::Messages => "msg",
            Self::Responses => "resp",
            Self::Embeddings => "embd",
            Self::OllamaChat | Self::OllamaGenerate => "gen",
            Self::Tokenize | Self::Detokenize | Self::Template | Self::Count => "ask",
        }
    }

    /// The path of its requests.
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Text => "/v1/completions",
            Self::Messages => "/v1/messages",
            Self::Responses => "/v1/responses",
            Self::Embeddings => "/v1/embeddings",
            Self::OllamaChat => "/api/chat",
            Self::OllamaGenerate => "/api/generate",
            Self::Tokenize => "/tokenize",
            Self::Detokenize => "/detokenize",
            Self::Template => "/apply-template",
            Self::Count => "/v1/messages/count_tokens",
        }
    }

    /// Reads the body of a request.
    pub(super) fn read(self, body: &[u8], served: &keys::Served<'_>) -> Result<AnswerRequest, Refusal> {
        match self {
            Self::Chat => openai::chat(body, served),
            Self::Text => openai::completion(body, served),
            Self::Messages => anthropic::messages(body, served),
            Self::Responses => responses::response(body, served),
            Self::Embeddings => embeddings::embeddings(body, served),
            Self::OllamaChat => ollama::chat(body, served),
            Self::OllamaGenerate => ollama::generate(body, served),
            Self::Tokenize => questions::tokenize(body, served),
            Self::Detokenize => questions::detokenize(body, served),
            Self::Template => questions::template(body, served),
            Self::Count => questions::count(body, served),
        }
    }

    /// Whether it is one of Ollama's.
    pub(super) fn is_ollama(self) -> bool {
        matches!(self, Self::OllamaChat | Self::OllamaGenerate)
    }

    /// The form of the answer to a request.
    pub(super) fn form(self, head: Head, request: &AnswerRequest, store: &Arc<Store>) -> Box<dyn Form> {
        match self {
            // questions are answered without a form
            Self::Tokenize | Self::Detokenize | Self::Template | Self::Count | Self::Messages => {
                Box::new(Anthropic::new(head))
            }
            Self::OllamaChat | Self::OllamaGenerate => Box::new(Ollama::new(head, self == Self::OllamaChat)),
            Self::Responses => Box::new(Responses::new(head, request, store)),
            Self::Embeddings => Box::new(Vectors::new(head.model, request)),
            Self::Chat | Self::Text => Box::new(OpenAi::new(head, self == Self::Chat, request)),
        }
    }
}
