//! What the context holds from one answer to the next.

use super::session::Session;
use super::sessions::Sessions;

/// The tokens whose keys and values the context holds, and the folder in which those of prompts last.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) held: Held,
    sessions: Option<Sessions>,
}

/// Tokens, and how they came.
#[derive(Debug, Default)]
pub(super) struct Held {
    tokens: Vec<u32>,
    /// So many at the beginning were prefilled, and nothing decoded stands before them: their keys and values are those that
    /// any prefill of these tokens makes.
    prefilled: usize,
}

impl Context {
    /// One that holds nothing yet.
    pub(super) fn new(session: &Session<'_>, sessions: Option<Sessions>) -> Self {
        Self { held: Held { tokens: Vec::with_capacity(session.context()), prefilled: 0 }, sessions }
    }

    /// Takes in of a prompt what lies on disk, where that is more than the context holds.
    pub(super) fn restore(&mut self, session: &mut Session<'_>, prompt: &[u32], wanted: &dyn Fn() -> bool) {
        if let Some(sessions) = &mut self.sessions {
            sessions.restore(session, &mut self.held, prompt, wanted);
        }
    }

    /// Puts on disk what was prefilled and does not lie there yet.
    pub(super) fn keep(&mut self, session: &mut Session<'_>) {
        if let Some(sessions) = &mut self.sessions {
            sessions.keep(session, &self.held);
        }
    }
}

impl Held {
    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Those at the beginning that are as any prefill makes them.
    pub(super) fn prefilled(&self) -> &[u32] {
        &self.tokens[..self.prefilled]
    }

    /// Tokens that a prompt begins with, too.
    pub(super) fn same(&self, prompt: &[u32]) -> usize {
        self.tokens.iter().zip(prompt).take_while(|(held, token)| held == token).count()
    }

    /// Forgets what comes after so many.
    pub(super) fn truncate(&mut self, tokens: usize) {
        self.tokens.truncate(tokens);
        self.prefilled = self.prefilled.min(tokens);
    }

    /// These came by a prefill.
    pub(super) fn read(&mut self, tokens: &[u32]) {
        if self.prefilled == self.tokens.len() {
            self.prefilled += tokens.len();
        }
        self.tokens.extend_from_slice(tokens);
    }

    /// This one was decoded.
    pub(super) fn decoded(&mut self, token: u32) {
        self.tokens.push(token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_a_decoded_token_is_not_what_a_prefill_makes() {
        let mut held = Held::default();
        held.read(&[1, 2, 3]);
        held.decoded(4);
        held.read(&[5]);
        assert_eq!((held.len(), held.prefilled()), (5, &[1, 2, 3][..]));
        assert_eq!((held.same(&[1, 2, 3, 4, 6]), held.same(&[2]), held.same(&[1, 2])), (4, 0, 2));
        // where the decoded token is forgotten, others follow what was prefilled
        held.truncate(2);
        held.read(&[7, 8]);
        assert_eq!(held.prefilled(), [1, 2, 7, 8]);
        held.decoded(9);
        held.truncate(5);
        assert_eq!(held.prefilled(), [1, 2, 7, 8]);
    }
}
