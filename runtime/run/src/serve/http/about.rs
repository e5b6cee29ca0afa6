//! Facts about the server: its page, its model, its metrics and its health.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::super::calls;
use super::super::request::Refusal;
use super::{Served, Shared};

impl Served {
    fn model(&self) -> Value {
        let context = self.site.about.context;
        json!({
            "id": self.site.model, "object": "model", "created": self.began, "owned_by": "flashplan", "context_length": context,
            "max_model_len": context,
        })
    }

    /// The model as Ollama lists it.
    fn listed(&self) -> Value {
        let since = jiff::Timestamp::from_second(self.began as i64).unwrap_or_default().to_string();
        json!({
            "name": self.site.model, "model": self.site.model, "modified_at": since, "size": 0, "digest": "",
            "details": { "format": "gguf", "family": "", "families": [], "parameter_size": "", "quantization_level": "" },
        })
    }
}

/// The page to talk with the model. `make page` bundles it, with the policy that lets only its own script and style run.
pub(super) async fn page(headers: HeaderMap) -> Result<Response, Refusal> {
    let accepted = headers.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
    if !accepted.is_some_and(|encodings| encodings.contains("gzip")) {
        let message = "the page is compressed; open it in a browser, or ask with `curl --compressed`";
        return Err(Refusal::of(406, "invalid_request_error", message));
    }
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_ENCODING, "gzip"),
        (header::CONTENT_SECURITY_POLICY, include_str!("../page.csp")),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // another version of the server has another page
        (header::CACHE_CONTROL, "no-cache"),
    ];
    Ok((headers, include_bytes!("../page.html.gz").as_slice()).into_response())
}

pub(super) async fn health() -> Response {
    axum::Json(json!({ "status": "ok" })).into_response()
}

pub(super) async fn metrics(State(served): State<Shared>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], served.site.metrics.text()).into_response()
}

pub(super) async fn models(State(served): State<Shared>) -> Response {
    axum::Json(json!({ "object": "list", "data": [served.model()] })).into_response()
}

pub(super) async fn model(
    State(served): State<Shared>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, Refusal> {
    let Ok(Path(name)) = name else {
        return Err(Refusal::of(400, "invalid_request_error", "the path is no text; write it in UTF-8"));
    };
    if name == served.site.model {
        return Ok(axum::Json(served.model()).into_response());
    }
    Err(Refusal::of(
        404,
        "not_found_error",
        format!("there is no model `{name}` here; there is `{}`", served.site.model),
    ))
}

pub(super) async fn ollama_tags(State(served): State<Shared>) -> Response {
    axum::Json(json!({ "models": [served.listed()] })).into_response()
}

pub(super) async fn ollama_version() -> Response {
    axum::Json(json!({ "version": env!("CARGO_PKG_VERSION") })).into_response()
}

/// Describes the model, whichever name the request gives.
pub(super) async fn ollama_show(State(served): State<Shared>) -> Response {
    let about = &served.site.about;
    let template = about.template.as_deref().unwrap_or_default();
    let mut capabilities = vec!["completion"];
    if calls::Format::of(template).is_some() {
        capabilities.push("tools");
    }
    if crate::reasoning::taught_by(template).is_some() {
        capabilities.push("thinking");
    }
    axum::Json(json!({
        "template": template, "parameters": "", "license": "", "modelfile": "", "capabilities": capabilities,
        "details": served.listed()["details"], "modified_at": served.listed()["modified_at"],
        "model_info": { "general.architecture": "flashplan", "flashplan.context_length": about.context },
    }))
    .into_response()
}

/// Properties of the server, in the form of llama.cpp's `/props`.
pub(super) async fn props(State(served): State<Shared>) -> Response {
    let about = &served.site.about;
    axum::Json(json!({
        "default_generation_settings": { "n_ctx": about.context }, "total_slots": about.sequences, "model_path": served.site.model,
        "model_alias": served.site.model, "chat_template": about.template, "bos_token": about.beginning, "eos_token": about.end,
        "modalities": { "vision": false, "audio": false }, "build_info": concat!("flashplan ", env!("CARGO_PKG_VERSION")),
    }))
    .into_response()
}
