//! Answers: the choices of each, and the steps that decode a token of all of them.

use std::ops::Range;
use std::time::Duration;

use flashplan::internals::counters::detail;
use flashplan::internals::draft::draft;

use super::super::super::ended::Ended;
use super::super::super::{Failure, turn};
use super::super::seat::{Answering, Seat};
use super::Desk;

impl Desk<'_, '_> {
    /// Begins a choice after the prompt, whose logits the first has just been given by the engine.
    pub(super) fn choose(&mut self, at: usize, index: usize) -> Result<(), Failure> {
        let seat = &mut self.seats[at];
        let Some(answering) = &mut seat.answering else { return Ok(()) };
        // all begin where the first one does
        let prompt = answering.prepared.read;
        let kept = self.session.forget(at, prompt)?;
        debug_assert_eq!(kept, prompt, "where a prompt ended, its sequence can go back to");
        seat.held.truncate(kept);
        answering.choice = Some(answering.begin(index, self.session.tokenizer(), self.began, &self.room)?);
        // where nothing was read, the first token is repeated, whatever the logits
        let first = index.is_multiple_of(answering.job.request.options.choices) && prompt > 0;
        self.go_on(at, first.then_some(0))
    }

    /// Chooses the next token of an answer by a row of the engine's logits, or by the logits after its prompt. At the end of a choice, the
    /// next choice begins or the answer ends.
    pub(super) fn go_on(&mut self, at: usize, row: Option<usize>) -> Result<(), Failure> {
        let (seat, tokenizer) = (&mut self.seats[at], self.session.tokenizer());
        let room = seat.held.len() < self.session.context();
        let Some(answering) = &mut seat.answering else { return Ok(()) };
        let Some(choice) = &mut answering.choice else { return Ok(()) };
        let top = answering.job.request.options.likelihoods;
        let logits = row.map_or(&answering.after[..], |row| self.session.row(row));
        match choice.go_on(logits, top, room, tokenizer) {
            Ok(None) => Ok(()),
            Ok(Some(ended)) => self.end_choice(at, ended),
            Err(why) => {
                answering.work.broken = Some(why.to_string());
                self.end(at)
            }
        }
    }

    /// Ends the choice that is being written.
    pub(super) fn end_choice(&mut self, at: usize, ended: Ended) -> Result<(), Failure> {
        let Some(answering) = &mut self.seats[at].answering else { return Ok(()) };
        let Some(choice) = answering.choice.take() else { return Ok(()) };
        let index = choice.index;
        let (answered, whole) = choice.end(ended);
        answering.work.usage.add(answered);
        let of_each = answering.job.request.options.choices;
        if whole && !(index + 1).is_multiple_of(of_each) {
            return self.choose(at, index + 1);
        }
        if whole && answering.prepared.next() {
            answering.answered = index + 1;
            let Seat { held, answering: Some(Answering { prepared, job, .. }), .. } = &mut self.seats[at]
            else {
                return Ok(());
            };
            let wanted = || !job.told.is_closed();
            let prompt = &prepared.prompt[..prepared.read];
            turn::open(self.session, at, held, self.sessions.as_mut(), prompt, &wanted)?;
            return Ok(());
        }
        answering.work.done = whole;
        self.end(at)
    }

    /// Decodes a token of every answer that is being written, and drafts while rows are left. Returns whether there are any answers.
    pub(super) fn write_some(&mut self) -> Result<bool, Failure> {
        self.free()?;
        let writing: Vec<usize> = (0..self.seats.len()).filter(|&at| self.seats[at].writes()).collect();
        if writing.is_empty() {
            return Ok(false);
        }
        let (most, mut left) =
            (self.session.draft_tokens(), self.session.step_rows().saturating_sub(writing.len()));
        let (mut rows, mut of_seats) = (Vec::with_capacity(self.session.step_rows()), Vec::new());
        for &at in &writing {
            let seat = &mut self.seats[at];
            let Some(next) = seat.next() else { continue };
            seat.held.decoded(next);
            let first = rows.len();
            let room = self.session.context() - seat.held.len();
            rows.push((at, next));
            rows.extend(draft(seat.held.tokens(), most.min(left).min(room)).map(|token| (at, token)));
            left -= rows.len() - first - 1;
            of_seats.push((at, first..rows.len()));
        }
        match self.session.decode_each(&rows) {
            Ok((time, counters)) => {
                self.metrics.decoded(of_seats.len(), time, &detail(&counters).times);
                let mut kept = 0;
                for (at, of_seat) in &of_seats {
                    kept += self.take(*at, &rows, of_seat.clone(), time)?;
                }
                self.metrics.drafted(rows.len() - of_seats.len(), kept);
            }
            Err(Failure::Stopped) => {
                for (at, _) in of_seats {
                    self.seats[at].held.truncate(self.session.position(at));
                    self.end_choice(at, Ended::Interrupt)?;
                }
            }
            Err(failure) => return Err(self.fail(failure)),
        }
        Ok(true)
    }

    /// Goes on with an answer by its rows of a step that took `time`. The first row's logits choose the token after the known one. Each
    /// drafted token that equals the chosen token is kept, and its row chooses the next. The engine forgets the rest. Returns the number of
    /// drafted tokens kept.
    pub(super) fn take(
        &mut self,
        at: usize,
        rows: &[(usize, u32)],
        of_seat: Range<usize>,
        time: Duration,
    ) -> Result<usize, Failure> {
        let writes = |seat: &Seat<'_>| {
            let answering = seat.answering.as_ref()?;
            Some((answering.number, answering.choice.as_ref()?.index))
        };
        let answer = writes(&self.seats[at]);
        let (mut kept, mut took) = (0, time);
        for row in of_seat.clone() {
            let seat = &mut self.seats[at];
            if row > of_seat.start {
                // the answer may be over, and another one of the seat's begun
                if writes(seat) != answer || seat.next() != Some(rows[row].1) {
                    break;
                }
                seat.held.decoded(rows[row].1);
                kept += 1;
            }
            if let Some(answering) = &mut seat.answering {
                let (tokens, all) = answering.work.decoded;
                answering.work.decoded = (tokens + 1, all + std::mem::take(&mut took));
            }
            self.go_on(at, Some(row))?;
        }
        self.session.forget(at, self.seats[at].held.len())?;
        Ok(kept)
    }
}
