//! HTTP: a thread that accepts connections and has an answer for each path.
//!
//! `guard` lets requests in or refuses them, `asking` reads them and sends answers, in the interface of each path (`api`). `about` has the
//! paths that need no engine.

mod about;
mod api;
mod asking;
mod guard;

use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request as HttpRequest, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{MethodRouter, get, post};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::sync::oneshot;
use tokio::time::timeout;

use self::api::Api;
use super::budget::Shares;
use super::connections::{Connections, Patient};
use super::log::Log;
use super::metrics::Metrics;
use super::queue::Queue;
use super::request::Refusal;
use super::store::Store;

/// The longest request head, and the most unsent output that is buffered for a connection.
const HEAD_BYTES: usize = 8 << 10;
/// Bytes of the kernel's socket buffers for a connection: received, and to be sent.
const SOCKET_BYTES: (usize, usize) = (32 << 10, 64 << 10);
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

/// How long answers under way may take to go out in the end.
const LAST: Duration = Duration::from_secs(2);

/// The site that is served: its model's name, key, queue and metrics.
#[derive(Debug)]
pub(super) struct Site {
    /// The model's name, and whether a request must name it rightly.
    pub(super) model: String,
    pub(super) is_strict: bool,
    /// Facts about the model for clients.
    pub(super) about: About,
    /// Key that clients must give; `None` if they need none.
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
        platform::socket::set_buffers(&listener, SOCKET_BYTES.0 / 2, SOCKET_BYTES.1 / 2).map_err(cannot)?;
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

    /// Closes the listener, and waits a moment for open answers.
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
            // a client that breaks the protocol or hangs up is told nothing
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
fn watch(stream: &tokio::net::TcpStream, patience: Duration) -> io::Result<()> {
    platform::socket::watch(stream, STILL_THERE, ASKED_AGAIN, patience)
}

/// A path whose requests are answered in an interface.
fn asked(api: Api) -> MethodRouter<Shared> {
    post(move |State(served): State<Shared>, request: HttpRequest<Body>| {
        asking::respond(served, request, api)
    })
}

fn router(served: Shared) -> Router {
    let router = Api::ALL.into_iter().fold(Router::new(), |router, api| router.route(api.path(), asked(api)));
    router
        .route("/", get(about::page))
        // the base URL of clients, opened in a browser
        .route("/v1", get(|| async { Redirect::temporary("/") }))
        .route("/v1/models", get(about::models))
        .route("/v1/models/{model}", get(about::model))
        .route("/props", get(about::props))
        .route("/api/tags", get(about::ollama_tags))
        .route("/api/show", post(about::ollama_show))
        .route("/api/version", get(about::ollama_version))
        .route("/metrics", get(about::metrics))
        .route("/health", get(about::health))
        .fallback(guard::nothing)
        .method_not_allowed_fallback(guard::no_method)
        .layer(from_fn_with_state(Arc::clone(&served), guard::guard))
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

#[cfg(test)]
pub(super) mod tests;
