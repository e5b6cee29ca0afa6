//! Reads the text of calls from its beginning, as far as it has come.

use serde::de::DeserializeOwned;

/// Why reading stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// It is not known yet: more has to come.
    More,
    /// This is no call.
    NoCall,
}

/// A place in a text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor<'t> {
    rest: &'t str,
    /// Whether nothing more comes.
    is_whole: bool,
}

impl<'t> Cursor<'t> {
    pub(super) fn new(text: &'t str, is_whole: bool) -> Self {
        Self { rest: text, is_whole }
    }

    /// The text that was not read.
    pub(super) fn rest(&self) -> &'t str {
        self.rest
    }

    /// Leaves spaces and lines away.
    pub(super) fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    /// Whether a mark comes next, which is taken then.
    pub(super) fn may(&mut self, mark: &str) -> Result<bool, Stop> {
        if let Some(rest) = self.rest.strip_prefix(mark) {
            self.rest = rest;
            return Ok(true);
        }
        if mark.starts_with(self.rest) && !self.is_whole { Err(Stop::More) } else { Ok(false) }
    }

    /// Takes a mark.
    pub(super) fn mark(&mut self, mark: &str) -> Result<(), Stop> {
        if self.may(mark)? { Ok(()) } else { Err(Stop::NoCall) }
    }

    /// Takes a mark that ends all; one that is missing at the end of the answer is taken for said.
    pub(super) fn close(&mut self, mark: &str) -> Result<(), Stop> {
        self.space();
        if self.is_whole && mark.starts_with(self.rest) {
            self.rest = "";
            return Ok(());
        }
        self.mark(mark)
    }

    /// Whether the answer ends here, as far as is known.
    pub(super) fn ends(&self) -> Result<bool, Stop> {
        match (self.rest.is_empty(), self.is_whole) {
            (true, false) => Err(Stop::More),
            (ends, _) => Ok(ends),
        }
    }

    /// The text before a mark, which is taken, too.
    pub(super) fn until(&mut self, mark: &str) -> Result<&'t str, Stop> {
        let (before, after) = self.rest.split_once(mark).ok_or(self.missing())?;
        self.rest = after;
        Ok(before)
    }

    /// The text before a mark behind which, after spaces, one of those to come stands: the text may have the mark inside.
    pub(super) fn until_before(&mut self, mark: &str, next: &[&str]) -> Result<&'t str, Stop> {
        for (at, mark) in self.rest.match_indices(mark) {
            let after = &self.rest[at + mark.len()..];
            let coming = after.trim_start();
            if next.iter().any(|next| coming.starts_with(next)) || coming.is_empty() && self.is_whole {
                let before = &self.rest[..at];
                self.rest = after;
                return Ok(before);
            }
            if next.iter().any(|next| next.starts_with(coming)) && !self.is_whole {
                return Err(Stop::More);
            }
        }
        Err(self.missing())
    }

    /// The characters of a name.
    pub(super) fn name(&mut self) -> Result<&'t str, Stop> {
        let ends = |c: char| !(c.is_alphanumeric() || "_-.".contains(c));
        let end = match self.rest.find(ends) {
            Some(end) => end,
            None if self.is_whole => self.rest.len(),
            None => return Err(Stop::More),
        };
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        if name.is_empty() { Err(Stop::NoCall) } else { Ok(name) }
    }

    /// A value of JSON.
    pub(super) fn json<T: DeserializeOwned>(&mut self) -> Result<T, Stop> {
        let mut values = serde_json::Deserializer::from_str(self.rest).into_iter();
        match values.next() {
            Some(Ok(value)) => {
                self.rest = &self.rest[values.byte_offset()..];
                Ok(value)
            }
            Some(Err(error)) if !error.is_eof() => Err(Stop::NoCall),
            _ => Err(self.missing()),
        }
    }

    /// Moves behind so many bytes of what was not read.
    pub(super) fn skip(&mut self, bytes: usize) {
        self.rest = &self.rest[bytes..];
    }

    /// The reason to stop where text is missing: the end of the text rules a call out, otherwise more may come.
    pub(super) fn missing(&self) -> Stop {
        if self.is_whole { Stop::NoCall } else { Stop::More }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_has_not_come_is_waited_for_until_nothing_more_comes() {
        let cursor = |text| Cursor::new(text, false);
        assert_eq!(cursor("<a").may("<ab>"), Err(Stop::More));
        assert_eq!(Cursor::new("<a", true).may("<ab>"), Ok(false));
        assert_eq!(cursor("<b").may("<ab>"), Ok(false));
        assert_eq!(cursor("x</a>y").until("</a>"), Ok("x"));
        assert_eq!(cursor("x</a").until("</a>"), Err(Stop::More));
        assert_eq!(cursor("1</v>2</v>\n<k>").until_before("</v>", &["<k>"]), Ok("1</v>2"));
        assert_eq!(cursor("1</v>\n<").until_before("</v>", &["<k>"]), Err(Stop::More));
        assert_eq!(cursor("{\"a\": \"}").json::<Value>(), Err(Stop::More));
        assert_eq!(cursor("{\"a\": x").json::<Value>(), Err(Stop::NoCall));
        assert_eq!(cursor("[1] b").json::<Value>(), Ok(json!([1])));
        assert_eq!(Cursor::new(" </a", true).close("</a>"), Ok(()));
        assert_eq!(cursor("f.g(").name(), Ok("f.g"));
        assert_eq!(cursor("f").name(), Err(Stop::More));
    }
}
