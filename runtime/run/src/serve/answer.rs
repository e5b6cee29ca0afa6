//! An answer on its way out: whole, or as server-sent events, in the form of the client's interface.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt::Debug;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::response::sse;
use futures_core::Stream;
use hyper::body::{Body, Bytes, Frame, SizeHint};

use super::super::chat::conversation::Call;
use super::super::reasoning::Channel;
use super::likelihood::Likelihood;
use super::mailbox::Listener;
use super::request::Refusal;
use super::{STOPPING, Told, Usage};

/// Identity of an answer.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) id: String,
    /// Seconds since 1970.
    pub(super) created: u64,
    pub(super) model: String,
}

/// How one interface writes an answer.
pub(super) trait Form: Debug + Send {
    /// Events of a stream for one message about the answer. The last events come with the end or the failure.
    fn events(&mut self, told: Told) -> Vec<Event>;

    /// All of it at once, as JSON.
    fn whole(&mut self, whole: Whole) -> String;
}

/// A server-sent event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) name: Option<&'static str>,
    pub(super) data: String,
}

impl Event {
    /// One without a name.
    pub(super) fn of(data: String) -> Self {
        Self { name: None, data }
    }
}

/// Parts of a choice, put together.
#[derive(Debug, Default)]
pub(super) struct Heard {
    pub(super) content: String,
    pub(super) reasoning: String,
    pub(super) likelihoods: Vec<Likelihood>,
    pub(super) calls: Vec<Call>,
    pub(super) cut: bool,
    /// The text that ended it.
    pub(super) stop: Option<String>,
}

/// An answer's choices or vectors, put together, and its usage.
#[derive(Debug, Default)]
pub(super) struct Whole {
    pub(super) choices: Vec<Heard>,
    /// The vectors of the texts, in order.
    pub(super) vectors: Vec<Vec<f32>>,
    pub(super) usage: Usage,
}

impl Whole {
    /// Listens until the end.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) async fn hear(told: &mut Listener) -> Result<Self, Refusal> {
        let mut whole = Self::default();
        loop {
            let told = told.recv().await.unwrap_or_else(|| Told::Failed(Refusal::broken(STOPPING)));
            match told {
                Told::Begins { .. } | Told::Said(_) => {}
                Told::Text { choice, part, text, likelihoods } => {
                    let heard = whole.choice(choice);
                    match part {
                        Channel::Answer | Channel::Call => heard.content.push_str(&text),
                        Channel::Reasoning => heard.reasoning.push_str(&text),
                    }
                    heard.likelihoods.extend(likelihoods);
                }
                Told::Vector(vector) => whole.vectors.push(vector),
                Told::Call { choice, call } => whole.choice(choice).calls.push(call),
                Told::Choice { choice, cut, stop } => {
                    let heard = whole.choice(choice);
                    (heard.cut, heard.stop) = (cut, stop);
                }
                Told::Ended(usage) => return Ok(Self { usage, ..whole }),
                Told::Failed(refusal) => return Err(refusal),
            }
        }
    }

    fn choice(&mut self, choice: usize) -> &mut Heard {
        if self.choices.len() <= choice {
            self.choices.resize_with(choice + 1, Heard::default);
        }
        &mut self.choices[choice]
    }
}

/// An answer as server-sent events. Dropping it hangs up: the answer ends.
#[derive(Debug)]
pub(super) struct Events {
    told: Listener,
    form: Box<dyn Form>,
    ready: VecDeque<Event>,
    over: bool,
}

impl Events {
    /// The events of an answer; `begins` is its first message.
    pub(super) fn new(begins: Told, told: Listener, mut form: Box<dyn Form>) -> Self {
        let ready = form.events(begins).into();
        Self { told, form, ready, over: false }
    }
}

impl Events {
    /// The next event, when it has come; none at the end.
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Poll::Ready(Some(event));
            }
            if self.over {
                return Poll::Ready(None);
            }
            let Poll::Ready(told) = self.told.poll_recv(context) else { return Poll::Pending };
            let told = told.unwrap_or_else(|| Told::Failed(Refusal::broken(STOPPING)));
            self.over = matches!(told, Told::Ended(_) | Told::Failed(_));
            let events = self.form.events(told);
            self.ready.extend(events);
        }
    }
}

/// Bytes of a whole answer that are handed over at a time: what has been handed over waits for its client within the connection's charge.
const PIECE_BYTES: usize = 8 << 10;

/// A whole answer on its way out. It holds the answer's charge until all of it is handed over.
#[derive(Debug)]
pub(super) struct WholeBody {
    json: String,
    sent: usize,
    _told: Listener,
}

impl WholeBody {
    /// A body of `json`; `told` holds the answer's charge.
    pub(super) fn new(json: String, told: Listener) -> Self {
        Self { json, sent: 0, _told: told }
    }
}

impl Body for WholeBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let rest = &self.json.as_bytes()[self.sent..];
        // a copy, so that the last piece does not keep the whole
        let piece = Bytes::copy_from_slice(&rest[..rest.len().min(PIECE_BYTES)]);
        self.sent += piece.len();
        Poll::Ready((!piece.is_empty()).then(|| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.sent == self.json.len()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact((self.json.len() - self.sent) as u64)
    }
}

impl Stream for Events {
    type Item = Result<sse::Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_event(context).map(|event| {
            let Event { name, data } = event?;
            // the name first, as everybody else writes it
            let event = name.map_or_else(sse::Event::default, |name| sse::Event::default().event(name));
            Some(Ok(event.data(data)))
        })
    }
}

/// An answer as lines of JSON.
#[derive(Debug)]
pub(super) struct Lines(pub(super) Events);

impl Stream for Lines {
    type Item = Result<String, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_event(context).map(|event| event.map(|event| Ok(event.data + "\n")))
    }
}
