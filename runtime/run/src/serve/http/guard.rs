//! Admission: the key, the host and the origin of a request, and refusals in the words of each interface.

use std::net::SocketAddr;

use axum::body::Body;
use axum::extract::{MatchedPath, State};
use axum::http::{HeaderMap, Request as HttpRequest, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::super::request::Refusal;
use super::super::{anthropic, ollama};
use super::api::{Api, OLLAMA};
use super::{Served, Shared};

/// Admits or refuses a request. A page of another origin is refused, whatever name it gave this machine.
pub(super) async fn guard(State(served): State<Shared>, request: HttpRequest<Body>, next: Next) -> Response {
    let path = request.uri().path();
    let (anthropic, ollama) = (path.starts_with(Api::Messages.path()), path.starts_with(OLLAMA));
    let (method, route) = (request.method().clone(), request.extensions().get::<MatchedPath>().cloned());
    let response = match admitted(&served, request.uri().path(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    };
    let Some(refusal) = response.extensions().get::<Refusal>() else { return response };
    served.site.metrics.refused();
    served.site.log.refused(&method, route.as_ref().map(MatchedPath::as_str), refusal);
    let written = match (anthropic, ollama) {
        (true, _) => anthropic::refusal(refusal),
        (_, true) => ollama::refusal(refusal),
        _ => return response,
    };
    let (mut parts, body) = (response.status(), axum::Json(written)).into_response().into_parts();
    let after = response.headers().get(header::RETRY_AFTER);
    parts.headers.extend(after.map(|after| (header::RETRY_AFTER, after.clone())));
    Response::from_parts(parts, body)
}

pub(super) fn admitted(served: &Served, path: &str, headers: &HeaderMap) -> Result<(), Refusal> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    if let Some(key) = &served.site.key
        && !matches!(path, "/" | "/v1" | "/health")
    {
        let bearer = text(header::AUTHORIZATION).and_then(|value| value.split_once(' '));
        let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, key)| key);
        let given = bearer.or(headers.get("x-api-key").and_then(|key| key.to_str().ok())).unwrap_or_default();
        // hashes are compared in constant time
        if blake3::hash(given.trim().as_bytes()) != blake3::hash(key.as_bytes()) {
            let message = "the key is missing or wrong; send `Authorization: Bearer KEY` with the key of --api-key-file";
            return Err(Refusal::of(401, "authentication_error", message));
        }
    }
    let host = text(header::HOST).unwrap_or_default();
    if served.site.key.is_none() && !is_loopback(host) {
        let message =
            format!("the host `{host}` is not this machine's own name; ask for http://{}", served.address);
        return Err(Refusal::of(403, "permission_error", message));
    }
    // with a key there may be a proxy before us that speaks TLS
    let is_own = |origin: &str| {
        let tls = origin.strip_prefix("https://").filter(|_| served.site.key.is_some());
        origin.strip_prefix("http://").or(tls) == Some(host)
    };
    if let Some(origin) = text(header::ORIGIN)
        && !is_own(origin)
    {
        let message = format!("pages of `{origin}` may not ask here; ask from a program");
        return Err(Refusal::of(403, "permission_error", message));
    }
    Ok(())
}

/// Whether a `Host` header names the machine that it is sent from, with or without a port.
pub(super) fn is_loopback(host: &str) -> bool {
    if let Ok(address) = host.parse::<SocketAddr>() {
        return address.ip().is_loopback();
    }
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

pub(super) async fn nothing(request: HttpRequest<Body>) -> Refusal {
    let message = format!(
        "there is no {}; there are / (a page), /v1/chat/completions, /v1/completions, /v1/responses, /v1/embeddings, /v1/messages, /v1/models, /tokenize, /detokenize, /apply-template, /props, /api/chat, /api/generate, /api/tags, /api/show, /health and /metrics",
        request.uri().path()
    );
    Refusal::of(404, "not_found_error", message)
}

pub(super) async fn no_method(request: HttpRequest<Body>) -> Refusal {
    let message = format!("{} does not take {}", request.uri().path(), request.method());
    Refusal::of(405, "invalid_request_error", message)
}
