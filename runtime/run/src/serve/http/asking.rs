//! A request on its way to the engine's thread, and its answer on the way out.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request as HttpRequest, header};
use axum::response::sse::{KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_core::Stream as _;
use tokio::time::timeout;

use super::super::answer::{Events, Head, Lines, Whole, WholeBody};
use super::super::budget::{Charge, Shares, Short};
use super::super::mailbox::{Listener, mailbox};
use super::super::queue::Refused;
use super::super::request::{AnswerRequest, Refusal};
use super::super::store::Lookup;
use super::super::{Job, STOPPING, Told, keys, weight};
use super::api::Api;
use super::{Served, Shared, now};

/// Copies of a body while it grows.
pub(super) const BODY_COPIES: usize = 2;
/// Copies of a text in a body while it is read, as `weight` counts them.
const TEXT_COPIES: usize = 5;
/// How often a stream shows that it lives while there is nothing to tell.
const ALIVE: Duration = Duration::from_secs(10);

impl Served {
    /// The longest body that is read: it and what is made of it must fit into their shares.
    fn body_bytes_max(&self) -> usize {
        let Shares { reading, requests, .. } = &*self.site.shares;
        self.site.body_bytes_max.min(reading / TEXT_COPIES).min(requests.bytes() / BODY_COPIES)
    }

    /// Adds bytes of the share of requests, as soon as others give them back.
    async fn grow(&self, held: &mut Charge, bytes: usize) -> Result<(), Refusal> {
        let grown = self.site.shares.requests.grow(held, bytes, self.limits.piece).await;
        grown.map_err(|short| short.refusal("the request"))
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
            // Ollama reads any kind as JSON, and its clients send forms or none
            let any_kind = request.uri().path().starts_with("/api/");
            if !any_kind && !text(header::CONTENT_TYPE).is_some_and(is_json) {
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
            let nothing = self.site.shares.requests.take(0);
            let (mut body, mut held) = (Vec::new(), nothing.map_err(|short| short.refusal("the request"))?);
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
                // received bytes alone take memory, so slow clients cannot block others
                self.grow(&mut held, BODY_COPIES * piece.len()).await?;
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
        let more = weight.request.saturating_sub(held.bytes());
        self.grow(&mut held, more).await?;
        let lookup = Lookup::new(&self.store);
        let known =
            keys::Served { model: &self.site.model, strict: self.site.is_strict, stored: Some(&lookup) };
        let request = api.read(&body, &known)?;
        drop(body);
        held.keep(weight.request);
        if let Some(copy) = lookup.charge() {
            held.add(copy);
        }
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
                "the waiting requests have all the memory there is for them; ask again in some seconds",
            )),
            Err(Refused::Closed) => Err(Refusal::of(503, "overloaded_error", STOPPING)),
        }
    }
}

/// Answers a request, or says why not.
pub(super) async fn respond(served: Shared, request: HttpRequest<Body>, api: Api) -> Response {
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
        whole_of(said, told)
    } else if stream && api.is_ollama() {
        let lines = Body::from_stream(Lines(Events::new(begins, told, form)));
        ([(header::CONTENT_TYPE, "application/x-ndjson")], lines).into_response()
    } else if stream {
        let alive = KeepAlive::new().interval(ALIVE);
        Sse::new(Events::new(begins, told, form)).keep_alive(alive).into_response()
    } else {
        whole_of(form.whole(Whole::hear(&mut told).await?), told)
    };
    if let Some(names) = names(&ignored) {
        response.headers_mut().insert(IGNORED, names);
    }
    Ok(response)
}

/// A response that is all there. The listener's charge lasts until the client has taken it.
fn whole_of(json: String, told: Listener) -> Response {
    let body = Body::new(WholeBody::new(json, told));
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
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
