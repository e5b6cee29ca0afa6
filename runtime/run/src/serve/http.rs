//! HTTP: who may ask, what is asked, and how the answer goes out.

use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{MatchedPath, Path, State};
use axum::http::{HeaderMap, Request as HttpRequest, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::sse::{KeepAlive, Sse};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use futures_core::Stream as _;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::answer::{Events, Form, Head, Lines, Whole, WholeBody};
use super::anthropic::{self, Anthropic};
use super::budget::{Charge, Shares, Short};
use super::calls;
use super::connections::{Connections, Patient};
use super::embeddings::{self, Vectors};
use super::keys;
use super::log::Log;
use super::mailbox::{Listener, mailbox};
use super::metrics::Metrics;
use super::ollama::{self, Ollama};
use super::openai::{self, OpenAi};
use super::questions;
use super::queue::{Queue, Refused};
use super::request::{AnswerRequest, Refusal};
use super::responses::{self, Responses};
use super::store::Store;
use super::{Job, STOPPING, Told, weight};

/// The longest request head, and the most unsent output that is buffered for a connection.
const HEAD_BYTES: usize = 8 << 10;
/// Bytes of the kernel's socket buffers for a connection: received, and to be sent.
const SOCKET_BYTES: (usize, usize) = (32 << 10, 64 << 10);
/// Copies of a body while it grows.
const BODY_COPIES: usize = 2;
/// Copies of a text in a body while it is read, as `weight` counts them.
const TEXT_COPIES: usize = 5;
/// How often the system asks whether a silent client is still there, and how often it asks again.
const STILL_THERE: Duration = Duration::from_secs(15);
const ASKED_AGAIN: u32 = 3;

/// Time limits for clients.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// How long a client may take for its head, and do nothing between two requests.
    head: Duration,
    /// How long for its body, and for each piece of it.
    body: Duration,
    piece: Duration,
    /// How long it may take none of what it is sent.
    patience: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { head: seconds(10), body: seconds(30), piece: seconds(5), patience: seconds(30) }
    }
}

/// How often a stream shows that it lives while there is nothing to tell.
const ALIVE: Duration = Duration::from_secs(10);
/// How long answers under way may take to go out in the end.
const LAST: Duration = Duration::from_secs(2);

/// Where Anthropic's clients ask, and are refused in their own words.
const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";
/// Where Ollama's do.
const OLLAMA: &str = "/api/";

/// The site that is served: its model's name, key, queue and metrics.
#[derive(Debug)]
pub(super) struct Site {
    /// The model's name, and whether a request must name it rightly.
    pub(super) model: String,
    pub(super) is_strict: bool,
    /// Facts about the model for clients.
    pub(super) about: About,
    /// Key that clients must give; `None`: anybody may ask.
    pub(super) key: Option<String>,
    /// To whom requests go.
    pub(super) asked: Arc<Queue>,
    /// Tokens of the plan's context.
    pub(super) context: usize,
    /// The longest body that such a context has use for.
    pub(super) body_bytes_max: usize,
    /// Memory that clients can make the server hold.
    pub(super) shares: Arc<Shares>,
    /// Metrics for the operator.
    pub(super) metrics: Arc<Metrics>,
    pub(super) log: Log,
}

/// The model, for clients that look before they ask.
#[derive(Debug, Default)]
pub(super) struct About {
    /// Tokens of a context.
    pub(super) context: usize,
    /// Answers at once.
    pub(super) sequences: usize,
    pub(super) template: Option<String>,
    /// Names of the tokens that begin and end a text.
    pub(super) beginning: Option<String>,
    pub(super) end: Option<String>,
}

/// A site with what its handlers share.
#[derive(Debug)]
struct Served {
    site: Site,
    address: SocketAddr,
    began: u64,
    answers: AtomicU64,
    limits: Limits,
    /// Conversations that responses have ended.
    store: Arc<Store>,
}

type Shared = Arc<Served>;

/// A thread that speaks HTTP.
#[derive(Debug)]
pub(super) struct Door {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Door {
    /// Listens at an address.
    ///
    /// # Errors
    /// A sentence, if the address cannot be had.
    pub(super) fn open(address: SocketAddr, site: Site, limits: Limits) -> Result<Self, String> {
        let cannot = |error: io::Error| {
            format!("cannot listen on {address}: {error}; give another with --serve ADDRESS")
        };
        let listener = TcpListener::bind(address).map_err(cannot)?;
        listener.set_nonblocking(true).map_err(cannot)?;
        // connections have the listener's; the system doubles them, for its own books
        sockopt::set_socket_recv_buffer_size(&listener, SOCKET_BYTES.0 / 2)
            .and_then(|()| sockopt::set_socket_send_buffer_size(&listener, SOCKET_BYTES.1 / 2))
            .map_err(|error| cannot(error.into()))?;
        let address = listener.local_addr().map_err(cannot)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot)?;
        let (stop, stopped) = oneshot::channel();
        let (began, answers) = (now().as_secs(), AtomicU64::new(0));
        let store = Arc::new(Store::new(Arc::clone(&site.shares)));
        let served = Served { site, address, began, answers, limits, store };
        let speak = move || {
            runtime.block_on(accept(listener, Arc::new(served), stopped));
            runtime.shutdown_timeout(LAST);
        };
        let thread = std::thread::Builder::new().name("http".to_owned()).spawn(speak).map_err(cannot)?;
        Ok(Self { address, stop, thread })
    }

    /// Where it listens; the port is known even where 0 was given.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets nobody in any more, and those out who have their answer.
    pub(super) fn close(self) {
        // an error on either says that it has ended already
        let _ = self.stop.send(());
        let _ = self.thread.join();
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Accepts connections, each with time limits, until the server stops. Then gives open connections a last moment to end.
async fn accept(listener: TcpListener, served: Shared, mut stopped: oneshot::Receiver<()>) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
    let limits = served.limits;
    let connections = Connections::new(served.site.shares.connections);
    let router = router(served);
    loop {
        let mut next = pin!(async {
            let accepted = listener.accept().await;
            (accepted, connections.enter().await)
        });
        let next = poll_fn(|context| match Pin::new(&mut stopped).poll(context) {
            Poll::Ready(_) => Poll::Ready(None),
            Poll::Pending => next.as_mut().poll(context).map(Some),
        });
        let Some((accepted, place)) = next.await else { break };
        let Ok((stream, _)) = accepted else {
            // too many open files, for example: others may close some
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        if watch(&stream, limits.patience).is_err() {
            continue;
        }
        let service = place.asked(TowerToHyperService::new(router.clone()));
        tokio::spawn(async move {
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(limits.head).max_buf_size(HEAD_BYTES);
            let stream = Patient::new(TokioIo::new(stream), limits.patience);
            let mut spoken = pin!(http.serve_connection(stream, service));
            let mut out = pin!(place.out());
            // who breaks the protocol or hangs up is told nothing, and nobody else is
            poll_fn(|context| match (spoken.as_mut().poll(context), out.as_mut().poll(context)) {
                (Poll::Pending, Poll::Pending) => Poll::Pending,
                _ => Poll::Ready(()),
            })
            .await;
        });
    }
    let _ = timeout(LAST, connections.emptied()).await;
}

/// Has the system break off with a client that is no longer there and has not said so.
fn watch(stream: &tokio::net::TcpStream, patience: Duration) -> rustix::io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, STILL_THERE)?;
    sockopt::set_tcp_keepintvl(stream, STILL_THERE)?;
    sockopt::set_tcp_keepcnt(stream, ASKED_AGAIN)?;
    sockopt::set_tcp_user_timeout(stream, patience.as_millis() as u32)
}

fn router(served: Shared) -> Router {
    Router::new()
        .route("/", get(page))
        // the base URL of clients, opened in a browser
        .route("/v1", get(|| async { Redirect::temporary("/") }))
        .route("/v1/models", get(models))
        .route("/v1/models/{model}", get(model))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completion))
        .route("/v1/responses", post(responses))
        .route("/v1/embeddings", post(vectors))
        .route(MESSAGES, post(messages))
        .route(COUNT, post(count))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/apply-template", post(template))
        .route("/props", get(props))
        .route("/api/chat", post(ollama_chat))
        .route("/api/generate", post(ollama_generate))
        .route("/api/tags", get(ollama_tags))
        .route("/api/show", post(ollama_show))
        .route("/api/version", get(ollama_version))
        .route("/metrics", get(metrics))
        .route("/health", get(health))
        .fallback(nothing)
        .method_not_allowed_fallback(no_method)
        .layer(from_fn_with_state(Arc::clone(&served), guard))
        .with_state(served)
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, axum::Json(self.json())).into_response();
        response.extensions_mut().insert(self);
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("5"));
        }
        response
    }
}

/// Lets in who may ask. A page in a browser that is not ours may not, whatever name it gave this machine.
async fn guard(State(served): State<Shared>, request: HttpRequest<Body>, next: Next) -> Response {
    let path = request.uri().path();
    let (anthropic, ollama) = (path.starts_with(MESSAGES), path.starts_with(OLLAMA));
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

fn admitted(served: &Served, path: &str, headers: &HeaderMap) -> Result<(), Refusal> {
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
fn is_loopback(host: &str) -> bool {
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

async fn nothing(request: HttpRequest<Body>) -> Refusal {
    let message = format!(
        "there is no {}; there are / (a page), /v1/chat/completions, /v1/completions, /v1/responses, /v1/embeddings, /v1/messages, /v1/models, /tokenize, /detokenize, /apply-template, /props, /api/chat, /api/generate, /api/tags, /api/show, /health and /metrics",
        request.uri().path()
    );
    Refusal::of(404, "not_found_error", message)
}

async fn no_method(request: HttpRequest<Body>) -> Refusal {
    let message = format!("{} does not take {}", request.uri().path(), request.method());
    Refusal::of(405, "invalid_request_error", message)
}

/// The page to talk with the model. `make page` bundles it, with the policy that lets only its own script and style run.
async fn page(headers: HeaderMap) -> Result<Response, Refusal> {
    let accepted = headers.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
    if !accepted.is_some_and(|encodings| encodings.contains("gzip")) {
        let message = "the page is compressed; open it in a browser, or ask with `curl --compressed`";
        return Err(Refusal::of(406, "invalid_request_error", message));
    }
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_ENCODING, "gzip"),
        (header::CONTENT_SECURITY_POLICY, include_str!("page.csp")),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // another version of the server has another page
        (header::CACHE_CONTROL, "no-cache"),
    ];
    Ok((headers, include_bytes!("page.html.gz").as_slice()).into_response())
}

async fn health() -> Response {
    axum::Json(json!({ "status": "ok" })).into_response()
}

async fn metrics(State(served): State<Shared>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], served.site.metrics.text()).into_response()
}

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

    /// The longest body that is read: it and what is made of it must fit into their shares.
    fn body_bytes_max(&self) -> usize {
        let Shares { reading, requests, .. } = &*self.site.shares;
        self.site.body_bytes_max.min(reading / TEXT_COPIES).min(requests.bytes() / BODY_COPIES)
    }

    /// Bytes of the share of requests, as soon as others give them back.
    async fn take(&self, bytes: usize) -> Result<Charge, Refusal> {
        let taken = self.site.shares.requests.wait(bytes, self.limits.piece).await;
        taken.map_err(|short| short.refusal("the request"))
    }

    /// The body of a request, within the limits of its length and time, and the charge for it.
    async fn body(&self, request: HttpRequest<Body>) -> Result<(Vec<u8>, Charge), Refusal> {
        let invalid = |status, message: &str| Refusal::of(status, "invalid_request_error", message);
        let most = self.body_bytes_max();
        let long = || {
            let remedy =
                if most < self.site.body_bytes_max { "; send less, or plan with --reserve" } else { "" };
            invalid(413, &format!("the body has more than {most} bytes{remedy}"))
        };
        {
            let text = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
            let is_json = |kind: &str| {
                kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
            };
            if !text(header::CONTENT_TYPE).is_some_and(is_json) {
                return Err(invalid(415, "send `Content-Type: application/json`"));
            }
            let announced = text(header::CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
            if announced.is_some_and(|bytes| bytes > most as u64) {
                return Err(long());
            }
        }
        let mut pieces = pin!(request.into_body().into_data_stream());
        let read = async {
            let late = |_| invalid(408, "the body did not come in time; send it again");
            let (mut body, mut held) = (Vec::new(), self.take(0).await?);
            loop {
                let piece = poll_fn(|context| pieces.as_mut().poll_next(context));
                let Some(piece) = timeout(self.limits.piece, piece).await.map_err(late)? else {
                    held.keep(body.capacity());
                    return Ok((body, held));
                };
                let piece = piece.map_err(|_| invalid(400, "the body broke off; send it again"))?;
                if body.len() + piece.len() > most {
                    return Err(long());
                }
                // only what has come takes room: who sends slowly keeps nobody out
                held.add(self.take(BODY_COPIES * piece.len()).await?);
                body.reserve_exact(piece.len());
                body.extend_from_slice(&piece);
            }
        };
        timeout(self.limits.body, read)
            .await
            .map_err(|_| invalid(408, "the body did not come in time; send it again"))?
    }

    /// A request as its body says it, and the charge for it.
    async fn request(
        &self,
        request: HttpRequest<Body>,
        api: Api,
    ) -> Result<(AnswerRequest, Charge), Refusal> {
        let (body, mut held) = self.body(request).await?;
        let weight = weight::of(&body);
        // nothing is waited for while a body is read, so that no two are read at a time
        if weight.reading > self.site.shares.reading {
            let short = Short::Ever { bytes: weight.reading, budget: self.site.shares.reading };
            return Err(short.refusal("the request"));
        }
        held.add(self.take(weight.request.saturating_sub(held.bytes())).await?);
        let known =
            keys::Served { model: &self.site.model, strict: self.site.is_strict, stored: Some(&self.store) };
        let request = api.read(&body, &known)?;
        drop(body);
        held.keep(weight.request);
        request.fits(self.site.context)?;
        Ok((request, held))
    }

    /// Puts a request into the queue, and returns the receiver of its answer.
    fn ask(&self, request: AnswerRequest, held: Charge) -> Result<Listener, Refusal> {
        let (told, heard) = mailbox();
        match self.site.asked.put(Job { request, told, held }) {
            Ok(()) => Ok(heard),
            Err(Refused::Full) => Err(Refusal::of(
                503,
                "overloaded_error",
                "too many requests wait already; ask again in some seconds",
            )),
            Err(Refused::Closed) => Err(Refusal::of(503, "overloaded_error", STOPPING)),
        }
    }
}

async fn models(State(served): State<Shared>) -> Response {
    axum::Json(json!({ "object": "list", "data": [served.model()] })).into_response()
}

async fn model(
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

async fn chat(State(served): State<Shared>, request: HttpRequest<Body>) -> Response {
    respond(served, request, Api::Chat).await
}

async fn completion(State(served): State<Shared>, request: HttpRequest<Body>) -> Response {
    respond(served, request, Api::Text).await
}

async fn responses(State(served): State<Shared>, request: HttpRequest<Body>) -> Response {
    respond(served, request, Api::Responses).await
}

async fn vectors(State(served): State<Shared>, request: HttpRequest<Body>) -> Response {
    respond(served, request, Api::Embeddings).await
}

async fn messages(State(served): State<Shared>, request: HttpRequest<Body>) -> Response {
    respond(served, request, Api::Messages).await
}

async fn count(State(served): State<Shared>, request: HttpRequest<Body>) -> Response {
    respond(served, request, Api::Count).await
}

async fn tokenize(State(served): State<Shared>, request: HttpRequest<Body>) -> Response {
    respond(served, request, Api::Tokenize).await
}

async fn detokenize(State(served): State<Shared>, request: HttpRequest<Body>) -> Response {
    respond(served, request, Api::Detokenize).await
}

async fn template(State(served): State<Shared>, request: HttpRequest<Body>) -> Response {
    respond(served, request, Api::Template).await
}

async fn ollama_chat(State(served): State<Shared>, request: HttpRequest<Body>) -> Response {
    respond(served, request, Api::OllamaChat).await
}

async fn ollama_generate(State(served): State<Shared>, request: HttpRequest<Body>) -> Response {
    respond(served, request, Api::OllamaGenerate).await
}

async fn ollama_tags(State(served): State<Shared>) -> Response {
    axum::Json(json!({ "models": [served.listed()] })).into_response()
}

async fn ollama_version() -> Response {
    axum::Json(json!({ "version": env!("CARGO_PKG_VERSION") })).into_response()
}

/// Describes the model, whichever name the request gives.
async fn ollama_show(State(served): State<Shared>) -> Response {
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
async fn props(State(served): State<Shared>) -> Response {
    let about = &served.site.about;
    axum::Json(json!({
        "default_generation_settings": { "n_ctx": about.context }, "total_slots": about.sequences, "model_path": served.site.model,
        "model_alias": served.site.model, "chat_template": about.template, "bos_token": about.beginning, "eos_token": about.end,
        "modalities": { "vision": false, "audio": false }, "build_info": concat!("flashplan ", env!("CARGO_PKG_VERSION")),
    }))
    .into_response()
}

async fn respond(served: Shared, request: HttpRequest<Body>, api: Api) -> Response {
    answered(served, request, api).await.unwrap_or_else(IntoResponse::into_response)
}

/// Asks, waits for the first word, and lets the answer out at once or as it comes.
async fn answered(served: Shared, request: HttpRequest<Body>, api: Api) -> Result<Response, Refusal> {
    let (mut request, held) = served.request(request, api).await?;
    let mut ignored = std::mem::take(&mut request.ignored);
    let number = served.answers.fetch_add(1, Ordering::Relaxed);
    let head = Head {
        id: format!("{}-{:x}{number:04x}", api.prefix(), now().as_micros()),
        created: now().as_secs(),
        model: served.site.model.clone(),
    };
    let (stream, mut form) = (request.stream, api.form(head, &request, &served.store));
    let mut told = served.ask(request, held)?;
    let mut begins = match told.recv().await {
        Some(Told::Failed(refusal)) => return Err(refusal),
        Some(begins) => begins,
        None => return Err(Refusal::broken(STOPPING)),
    };
    if let Told::Begins { ignored: more, .. } = &mut begins {
        ignored.append(more);
    }
    served.site.log.ignored(api.path(), &ignored);
    let mut response = if let Told::Said(said) = begins {
        axum::Json(said).into_response()
    } else if stream && api.is_ollama() {
        let lines = Body::from_stream(Lines(Events::new(begins, told, form)));
        ([(header::CONTENT_TYPE, "application/x-ndjson")], lines).into_response()
    } else if stream {
        let alive = KeepAlive::new().interval(ALIVE);
        Sse::new(Events::new(begins, told, form)).keep_alive(alive).into_response()
    } else {
        let whole = form.whole(Whole::hear(&mut told).await?);
        let body = Body::new(WholeBody::new(whole, told));
        ([(header::CONTENT_TYPE, "application/json")], body).into_response()
    };
    if let Some(names) = names(&ignored) {
        response.headers_mut().insert(IGNORED, names);
    }
    Ok(response)
}

/// The header that names keys of a request which change nothing of its answer.
const IGNORED: &str = "flashplan-ignored";
/// Its length, at most.
const IGNORED_BYTES_MAX: usize = 1 << 10;

/// Names as a header takes them.
fn names(keys: &[String]) -> Option<header::HeaderValue> {
    let mut text = keys.join(", ").replace(|c: char| !(c.is_ascii_graphic() || c == ' '), "?");
    text.truncate(IGNORED_BYTES_MAX);
    header::HeaderValue::from_str(&text).ok().filter(|_| !keys.is_empty())
}

/// In whose words is asked and answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Api {
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
    fn prefix(self) -> &'static str {
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

    fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Text => "/v1/completions",
            Self::Messages => MESSAGES,
            Self::Responses => "/v1/responses",
            Self::Embeddings => "/v1/embeddings",
            Self::OllamaChat => "/api/chat",
            Self::OllamaGenerate => "/api/generate",
            Self::Tokenize => "/tokenize",
            Self::Detokenize => "/detokenize",
            Self::Template => "/apply-template",
            Self::Count => COUNT,
        }
    }

    fn read(self, body: &[u8], served: &keys::Served<'_>) -> Result<AnswerRequest, Refusal> {
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

    fn is_ollama(self) -> bool {
        matches!(self, Self::OllamaChat | Self::OllamaGenerate)
    }

    fn form(self, head: Head, request: &AnswerRequest, store: &Arc<Store>) -> Box<dyn Form> {
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

#[cfg(test)]
pub(super) mod tests;
