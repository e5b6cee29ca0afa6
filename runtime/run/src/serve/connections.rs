//! Connections: a bounded number; at the bound, an idle one is closed for the next.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Request, Response};
use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::service::Service;
use tokio::sync::Notify;
use tokio::time::{Sleep, timeout};

/// How long a connection may ask for nothing before it makes room for another: what it has sent may not have been read yet.
const GRACE: Duration = Duration::from_millis(250);

/// Connections that are there.
#[derive(Debug)]
pub(super) struct Connections {
    most: usize,
    all: Mutex<Vec<Arc<State>>>,
    left: Notify,
}

/// The state of one.
#[derive(Debug)]
struct State {
    /// Whether it waits for an answer or takes one.
    asks: AtomicBool,
    /// Start of its idle time.
    idle: Mutex<Instant>,
    /// Told to go.
    out: Notify,
}

/// A connection's place, until it is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    state: Arc<State>,
    of: Arc<Connections>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connections {
    /// None yet, and so many at most.
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, all: Mutex::default(), left: Notify::new() })
    }

    /// Waits for a place for a connection. If all are taken, the connection that has been idle longest is closed. If none has been idle for
    /// `GRACE`, this waits on.
    pub(super) async fn enter(self: &Arc<Self>) -> Permit {
        loop {
            let left = self.left.notified();
            {
                let mut all = locked(&self.all);
                if all.len() < self.most {
                    let state = State {
                        asks: AtomicBool::new(false),
                        idle: Mutex::new(Instant::now()),
                        out: Notify::new(),
                    };
                    let state = Arc::new(state);
                    all.push(Arc::clone(&state));
                    drop(all);
                    return Permit { state, of: Arc::clone(self) };
                }
                let idle = all.iter().filter(|state| !state.asks.load(Ordering::Relaxed));
                let oldest = idle.min_by_key(|state| *locked(&state.idle));
                if let Some(oldest) = oldest.filter(|state| locked(&state.idle).elapsed() >= GRACE) {
                    oldest.out.notify_one();
                }
            }
            let _soon = timeout(GRACE, left).await;
        }
    }

    /// Waits until all connections are closed.
    pub(super) async fn emptied(&self) {
        loop {
            let left = self.left.notified();
            if locked(&self.all).is_empty() {
                return;
            }
            left.await;
        }
    }
}

impl Permit {
    /// Waits until the connection must close.
    pub(super) async fn out(&self) {
        self.state.out.notified().await;
    }

    /// A service that knows from whom it is asked.
    pub(super) fn asked<S>(&self, service: S) -> Asked<S> {
        Asked { service, state: Arc::clone(&self.state) }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        locked(&self.of.all).retain(|state| !Arc::ptr_eq(state, &self.state));
        self.of.left.notify_one();
    }
}

/// A request on its way, from its head until all of its answer is handed over.
#[derive(Debug)]
struct Asking(Arc<State>);

impl Drop for Asking {
    fn drop(&mut self) {
        *locked(&self.0.idle) = Instant::now();
        self.0.asks.store(false, Ordering::Relaxed);
    }
}

/// A service of one connection.
#[derive(Debug)]
pub(super) struct Asked<S> {
    service: S,
    state: Arc<State>,
}

impl<S> Service<Request<Incoming>> for Asked<S>
where
    S: Service<Request<Incoming>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        self.state.asks.store(true, Ordering::Relaxed);
        let (asking, answer) = (Asking(Arc::clone(&self.state)), self.service.call(request));
        Box::pin(async move {
            let answer = answer.await?;
            Ok(answer.map(|body| Body::new(Answer { body, _asking: asking })))
        })
    }
}

/// An answer as it goes out.
struct Answer {
    body: Body,
    _asking: Asking,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream of bytes that breaks off when its other end takes none for so long.
#[derive(Debug)]
pub(super) struct Patient<S> {
    stream: S,
    patience: Duration,
    ends: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    pub(super) fn new(stream: S, patience: Duration) -> Self {
        Self { stream, patience, ends: None }
    }

    /// The result of a write, or an error if the client took nothing for too long.
    fn within<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.ends = None;
            return written;
        }
        let patience = self.patience;
        let ends = self.ends.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        ends.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: Read + Unpin> Read for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, to)
    }
}

impl<S: Write + Unpin> Write for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.within(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.within(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.within(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.stream).poll_shutdown(context);
        self.within(context, ended)
    }
}
