//! Prompts: the sequence slot of each, and their prefill piece by piece.

use std::time::Duration;

use flashplan::StopHandle;

use super::super::super::{Failure, turn};
use super::super::Told;
use super::super::seat::{self, Found, Seat};
use super::Desk;

impl Desk<'_, '_> {
    /// Finds a free sequence slot for a prompt, and how many of its tokens the slot holds. An embedding depends on its text alone, so it
    /// shares nothing.
    pub(super) fn place(
        &mut self,
        prompt: &[u32],
        embeds: bool,
        wanted: &dyn Fn() -> bool,
    ) -> Result<(usize, usize), Failure> {
        if embeds {
            let at = self.seat_for(&[])?;
            self.keep(at);
            self.empty(at)?;
            return Ok((at, 0));
        }
        let at = self.seat_for(prompt)?;
        let held = &self.seats[at].held;
        if held.same(prompt) < held.prefilled().len() {
            self.keep(at);
        }
        let (seat, sessions) = (&mut self.seats[at], self.sessions.as_mut());
        Ok((at, turn::open(self.session, at, &mut seat.held, sessions, prompt, wanted)?))
    }

    /// Empties a sequence slot.
    pub(super) fn empty(&mut self, at: usize) -> Result<(), Failure> {
        self.session.forget(at, 0)?;
        self.seats[at].held.truncate(0);
        Ok(())
    }

    /// Finds a free sequence slot; there must be one. The slot with the longest common prefix is reused if the prompt continues all of its
    /// tokens, or if no other is free. Otherwise the least recently used free slot is taken, and the longest common prefix is copied into
    /// it.
    pub(super) fn seat_for(&mut self, prompt: &[u32]) -> Result<usize, Failure> {
        let found =
            |(at, seat): (usize, &Seat<'_>)| seat.found(prompt, |same| self.session.kept_of(at, same));
        let seats: Vec<Found> = self.seats.iter().enumerate().map(found).collect();
        let (at, from) = seat::choose(&seats);
        if let Some(from) = from {
            self.keep(at);
            let shared = self.session.share(from, at, seats[from].same)?;
            let [from, to] =
                self.seats.get_disjoint_mut([from, at]).unwrap_or_else(|_| unreachable!("two seats"));
            to.held.share(&from.held, shared);
        }
        Ok(at)
    }

    /// Reads some of the prompt that waits for longest, and begins its answer if that was all of it; the time that reading took.
    /// Requests with vectors already go last.
    pub(super) fn read_some(&mut self, stop: &StopHandle) -> Result<Duration, Failure> {
        let reads = |seat: &Seat<'_>| {
            let reading = seat.answering.as_ref().filter(|a| a.choice.is_none())?;
            Some((reading.embedding.as_ref().map_or(0, |embedding| embedding.done), reading.number))
        };
        let waiting = (0..self.seats.len()).filter_map(|at| Some((reads(&self.seats[at])?, at)));
        let Some((_, at)) = waiting.min() else { return Ok(Duration::ZERO) };
        let others_wait =
            self.seats.iter().filter_map(|seat| seat.answering.as_ref()).any(|a| a.choice.is_some());
        let seat = &mut self.seats[at];
        let Some(answering) = &mut seat.answering else { return Ok(Duration::ZERO) };
        if stop.is_stopped() {
            return self.end(at).map(|()| Duration::ZERO);
        }
        let prompt = &answering.prepared.prompt[..answering.prepared.read];
        let mut add =
            answering.embedding.as_mut().map(|embedding| move |hidden: &[f32]| embedding.add(hidden));
        let hidden = add.as_mut().map(|add| add as &mut turn::Hear<'_>);
        let read = if prompt.is_empty() {
            Ok(Duration::ZERO)
        } else {
            turn::read_some(self.session, at, &mut seat.held, prompt, others_wait, hidden)
        };
        let time = match read {
            Ok(time) => time,
            Err(Failure::Stopped) => return self.end(at).map(|()| Duration::ZERO),
            Err(failure) => return Err(self.fail(failure)),
        };
        if seat.held.len() == prompt.len() {
            if answering.work.first.is_zero() {
                answering.work.first = answering.began.elapsed();
            }
            if answering.embedding.is_some() {
                return self.tell_vector(at).map(|()| time);
            }
            if answering.job.request.options.choices > 1 {
                answering.after = self.session.last_logits().to_vec();
            }
            let index = answering.answered;
            self.choose(at, index)?;
        }
        Ok(time)
    }

    /// Sends the vector of a text that has been read, and goes on with the next text or ends the answer.
    pub(super) fn tell_vector(&mut self, at: usize) -> Result<(), Failure> {
        self.empty(at)?;
        let Some(answering) = &mut self.seats[at].answering else { return Ok(()) };
        let Some(embedding) = &mut answering.embedding else { return Ok(()) };
        let (vector, next) = embedding.next();
        // a client that hung up is told nothing
        answering.job.told.send(Told::Vector(vector)).ok();
        match next {
            Some(tokens) => {
                (answering.prepared.read, answering.prepared.prompt) = (tokens.len(), tokens);
            }
            None => {
                answering.work.done = true;
                return self.end(at);
            }
        }
        Ok(())
    }
}
