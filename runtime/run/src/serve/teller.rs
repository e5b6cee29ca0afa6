//! A choice on its way to the client: which of its text is a call of a tool, and where it stops.

use std::ops::ControlFlow;

use tokio::sync::mpsc::UnboundedSender;

use super::super::chat::conversation::Call;
use super::super::reasoning::Channel;
use super::Told;
use super::calls::{Calls, Piece};
use super::likelihood::Likelihood;
use super::stops::Stops;

/// Characters of a call's number: Mistral's templates take no other.
const ID: usize = 9;

/// Tells a client what comes of a choice.
pub(super) struct Teller {
    pub(super) told: UnboundedSender<Told>,
    pub(super) choice: usize,
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
    /// Whether nothing more is told.
    pub(super) stopped: bool,
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
            // who has gone is told nothing
            let _ = self.send(Channel::Answer, rest);
        }
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
        let hash = blake3::hash(format!("{} {} {}", self.number, self.choice, self.called).as_bytes());
        let call = Call { id: hash.to_hex()[..ID].to_owned(), ..call };
        self.called += 1;
        self.stopped = !self.parallel;
        let gone = self.told.send(Told::Call { choice: self.choice, call }).is_err();
        if gone || self.stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn send(&mut self, part: Channel, text: String) -> ControlFlow<()> {
        let likelihoods = std::mem::take(&mut self.chosen);
        let told = self.told.send(Told::Text { choice: self.choice, part, text, likelihoods });
        if told.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}
