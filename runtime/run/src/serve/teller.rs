//! A choice on its way to the client: which of its text is a call of a tool, and where it stops.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::super::chat::conversation::Call;
use super::super::reasoning::Channel;
use super::Told;
use super::budget::{Budget, TEXT_COPIES};
use super::calls::{Calls, ID, Piece};
use super::likelihood::Likelihood;
use super::mailbox::Speaker;
use super::stops::Stops;

/// Messages that a client may leave unread before what follows is joined to longer ones, which take less memory.
const UNREAD: usize = 32;
/// Bytes of text, and likelihoods, of such a message.
const JOINED: (usize, usize) = (2 << 10, 16);
/// Bytes of text that are added to an answer's room at a time.
const MORE_BYTES: usize = 2 << 10;

/// Text of a part of the answer that waits to be sent.
#[derive(Debug)]
pub(super) struct Joined {
    part: Channel,
    text: String,
    likelihoods: Vec<Likelihood>,
}

/// Tells a client what comes of a choice.
pub(super) struct Teller {
    pub(super) told: Speaker,
    pub(super) choice: usize,
    /// Bytes of text that the answer's charge still has room for in this choice, and where more are taken from.
    pub(super) room: usize,
    pub(super) answers: Arc<Budget>,
    /// Text of one part that waits to be sent.
    pub(super) joined: Option<Joined>,
    /// Likelihoods of tokens whose text has not been told.
    pub(super) chosen: Vec<Likelihood>,
    pub(super) stops: Stops,
    /// The reader that tells calls from text, where there are tools, and whether there may be several calls.
    pub(super) calls: Option<Calls>,
    pub(super) parallel: bool,
    /// Number that no other answer has.
    pub(super) number: u64,
    /// Calls so far.
    pub(super) called: usize,
    /// Whether nothing more is sent.
    pub(super) stopped: bool,
    /// Whether the text was cut because there is no room for more of it.
    pub(super) full: bool,
}

impl Teller {
    /// More of it.
    pub(super) fn show(&mut self, part: Channel, text: &str) -> ControlFlow<()> {
        if part == Channel::Reasoning {
            self.chosen.clear();
            return self.send(part, text.to_owned());
        }
        match &mut self.calls {
            Some(calls) => calls.read(part, text).into_iter().try_for_each(|piece| self.piece(piece)),
            None => self.text(text),
        }
    }

    /// Tells the text that was held back, when nothing more comes.
    pub(super) fn finish(&mut self) {
        let pieces = self.calls.as_mut().map(Calls::finish).unwrap_or_default();
        let told = pieces.into_iter().try_for_each(|piece| self.piece(piece));
        let rest = if told.is_continue() && !self.stopped { self.stops.finish() } else { String::new() };
        if !rest.is_empty() {
            // a client that hung up is told nothing
            let _ = self.send(Channel::Answer, rest);
        }
    }

    /// Sends all waiting text at the end of the choice, and likelihoods of tokens without text.
    pub(super) fn end(&mut self) {
        // a client that hung up is told nothing
        if !self.chosen.is_empty() {
            let _ = self.send(Channel::Answer, String::new());
        }
        let _ = self.flush();
    }

    fn piece(&mut self, piece: Piece) -> ControlFlow<()> {
        match piece {
            Piece::Text(text) => self.text(&text),
            Piece::Call(call) => self.call(call),
        }
    }

    fn text(&mut self, text: &str) -> ControlFlow<()> {
        let (text, ends) = self.stops.push(text);
        self.stopped |= ends;
        let told = if text.is_empty() { ControlFlow::Continue(()) } else { self.send(Channel::Answer, text) };
        if ends { ControlFlow::Break(()) } else { told }
    }

    fn call(&mut self, call: Call) -> ControlFlow<()> {
        self.flush()?;
        let hash = blake3::hash(format!("{} {} {}", self.number, self.choice, self.called).as_bytes());
        let call = Call { id: hash.to_hex()[..ID].to_owned(), ..call };
        self.called += 1;
        self.stopped = !self.parallel;
        let gone = self.told.send(Told::Call { choice: self.choice, call }).is_err();
        if gone || self.stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn send(&mut self, part: Channel, text: String) -> ControlFlow<()> {
        while self.room < text.len() {
            // tokens of an unusual length
            match self.answers.take(TEXT_COPIES * MORE_BYTES) {
                Ok(more) => self.told.charge(more),
                Err(_) => {
                    self.full = true;
                    return ControlFlow::Break(());
                }
            }
            self.room += MORE_BYTES;
        }
        self.room -= text.len();
        let likelihoods = std::mem::take(&mut self.chosen);
        match &mut self.joined {
            Some(joined) if joined.part == part => {
                joined.text.push_str(&text);
                joined.likelihoods.extend(likelihoods);
            }
            _ => {
                self.flush()?;
                self.joined = Some(Joined { part, text, likelihoods });
            }
        }
        let long = |joined: &Joined| joined.text.len() >= JOINED.0 || joined.likelihoods.len() >= JOINED.1;
        if self.told.unread() < UNREAD || self.joined.as_ref().is_some_and(long) {
            return self.flush();
        }
        if self.told.is_closed() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Sends the text that waits.
    fn flush(&mut self) -> ControlFlow<()> {
        let Some(Joined { part, text, likelihoods }) = self.joined.take() else {
            return ControlFlow::Continue(());
        };
        let told = self.told.send(Told::Text { choice: self.choice, part, text, likelihoods });
        if told.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}
