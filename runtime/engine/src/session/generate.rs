//! An iterator over the next tokens.

use super::Session;
use crate::error::Error;
use crate::sampler::Sampler;

/// Tokens chosen by a [`Sampler`], each decoded when the next one is requested; made by
/// [`Session::generate`].
///
/// The iterator ends when the plan's context is full, and after an error. The last token returned is not yet
/// part of the sequence: [`Session::decode`] it to continue.
#[derive(Debug)]
pub struct Generation<'session> {
    session: &'session mut Session,
    sampler: &'session mut Sampler,
    /// Chosen but not yet decoded.
    last: Option<u32>,
    failed: bool,
}

impl Session {
    /// Generates the tokens after the last [`Session::prefill`] or [`Session::decode`]. It does not stop at
    /// the model's end token; check [`Tokenizer::is_end`](crate::Tokenizer::is_end).
    ///
    /// The first token is [`Error::NoLogits`] if the session has no logits of its last token: before any prompt,
    /// and after [`Session::embed`], [`Session::rewind`] or a [`Session::decode_each`] of several tokens.
    pub fn generate<'session>(&'session mut self, sampler: &'session mut Sampler) -> Generation<'session> {
        Generation { session: self, sampler, last: None, failed: false }
    }
}

impl Generation<'_> {
    fn step(&mut self) -> Result<Option<u32>, Error> {
        if let Some(token) = self.last {
            if self.session.position() == self.session.engine().facts().context {
                return Ok(None);
            }
            self.session.decode(token)?;
        }
        if self.session.logits_after != Some(self.session.position()) {
            return Err(Error::NoLogits);
        }
        self.last = Some(self.sampler.sample(self.session.logits()));
        Ok(self.last)
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<u32, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let token = self.step();
        self.failed = !matches!(token, Ok(Some(_)));
        token.transpose()
    }
}
