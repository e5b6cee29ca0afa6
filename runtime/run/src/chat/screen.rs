//! Where an answer goes: what is for the user on standard output, what the model says to itself on standard error, dimmed.

use std::io::{self, IsTerminal as _, Write as _};

use anstream::{AutoStream, ColorChoice};
use anstyle::Style;

use super::super::reasoning::Channel;
use crate::Failure;
use crate::output::Text;

/// An answer as it comes.
#[derive(Debug)]
pub(super) struct Screen {
    answer: Text,
    /// Whether standard output is a terminal, which obeys more than letters.
    terminal: bool,
    dim: Style,
    /// The part of the last piece.
    last: Option<Channel>,
}

impl Screen {
    pub(super) fn new() -> Self {
        let colours = AutoStream::choice(&io::stderr()) != ColorChoice::Never;
        let dim = if colours { Style::new().dimmed() } else { Style::new() };
        Self { answer: Text::new(), terminal: io::stdout().is_terminal(), dim, last: None }
    }

    /// Whether the reader of answers has gone.
    pub(super) fn is_gone(&self) -> bool {
        self.answer.is_gone()
    }

    /// The next piece.
    pub(super) fn show(&mut self, part: Channel, text: &str) -> Result<(), Failure> {
        if self.last == Some(Channel::Reasoning) && part == Channel::Answer {
            aside("\n\n");
        }
        self.last = Some(part);
        match part {
            Channel::Reasoning | Channel::Call => {
                let dim = self.dim;
                aside(&format!("{dim}{}{dim:#}", harmless(text)));
                Ok(())
            }
            Channel::Answer if self.terminal => self.answer.say(&harmless(text)),
            Channel::Answer => self.answer.say(text),
        }
    }

    /// The end of an answer: the next line is a new one.
    pub(super) fn end(&mut self) -> Result<(), Failure> {
        match self.last.take() {
            Some(Channel::Reasoning | Channel::Call) => aside("\n"),
            Some(Channel::Answer) => self.answer.say("\n")?,
            None => {}
        }
        Ok(())
    }
}

/// Writes a piece of text to standard error, if it is open.
fn aside(text: &str) {
    let mut out = io::stderr().lock();
    let _nobody_reads = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// A model may write what a terminal takes for an order.
fn harmless(text: &str) -> String {
    text.replace(|c: char| c.is_control() && !matches!(c, '\n' | '\t'), "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_no_orders_from_a_model() {
        assert_eq!(harmless("a\x1b[2J\tb\r\n\u{9b}1mc"), "a\u{fffd}[2J\tb\u{fffd}\n\u{fffd}1mc");
    }
}
