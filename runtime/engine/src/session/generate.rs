//! The tokens that follow, one after another, as an iterator.

use super::Session;
use crate::error::Error;
use crate::sampler::Sampler;

/// Tokens that a [`Sampler`] chooses, each decoded when the next one is asked for; made by [`Session::generate`].
///
/// The iterator ends where the plan's context is full, and after an error. The last token that it gave is not part of the sequence
/// yet: to go on after it, [`Session::decode`] it.
#[derive(Debug)]
pub struct Generation<'session> {
    session: &'session mut Session,
    sampler: &'session mut Sampler,
    /// Chosen and not decoded.
    last: Option<u32>,
    failed: bool,
}

impl Session {
    /// The tokens that follow the last [`Session::prefill`] or [`Session::decode`]. The model's end does not end them:
    /// [`Tokenizer::is_end`](crate::Tokenizer::is_end) tells.
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
