//! What the operator reads of requests: a line for each answer on standard error, or with `--json` one object for each answer and each
//! refusal on standard output, for programs that collect such lines.
//!
//! What is said in a request or in its answer stands in neither.

use std::net::SocketAddr;
use std::time::Duration;

use plans::file::significant;
use serde_json::{Value, json};

use super::super::session::Session;
use super::request::Refusal;
use super::seat::Work;

/// In which form it is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Log {
    /// Lines for people.
    Text,
    /// Objects for programs.
    Json,
}

/// How an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// It was given.
    Given,
    /// The client hung up.
    Gone,
    /// The server was told to stop.
    Stopped,
    /// It could not go on.
    Broken,
}

impl Log {
    /// It listens.
    pub(super) fn listens(self, session: &Session<'_>, address: SocketAddr) {
        let (model, level) = (session.model.name(), &session.plan.quality.level);
        let speed = session.plan.expected.decode_tokens_per_second;
        let (context, sequences) = (session.context(), session.sequences());
        terminal::say(format_args!(
            "{model} on http://{address}/v1: level `{level}`, {} of {context} tokens, {speed:.1} tok/s planned; Ctrl-C ends",
            if sequences == 1 { "a context".to_owned() } else { format!("{sequences} contexts") },
        ));
        self.tell(
            "listening",
            json!({
                "address": address.to_string(),
                "model": model,
                "level": level,
                "context_tokens": context,
                "sequences": sequences,
                "decode_tokens_per_second_predicted": significant(speed),
            }),
        );
    }

    /// An answer is over, so long after it was begun.
    pub(super) fn answered(self, number: u64, sequence: usize, work: &Work, time: Duration, end: End) {
        let usage = work.usage;
        let (steps, decoding) = work.decoded;
        let speed = (steps > 0).then(|| steps as f64 / decoding.as_secs_f64());
        if self == Self::Text {
            terminal::say(format_args!(
                "[{number}: {} in, {} of them held; {} out{}; {:.2} s to the first{}]",
                usage.prompt,
                usage.cached,
                usage.answer,
                speed.map_or_else(String::new, |speed| format!(" at {speed:.1} tok/s")),
                work.first.as_secs_f64(),
                if end == End::Gone { "; the client hung up" } else { "" },
            ));
        }
        self.tell(
            "answer",
            json!({
                "number": number,
                "sequence": sequence,
                "end": match end {
                    End::Given => "given",
                    End::Gone => "client hung up",
                    End::Stopped => "server stopped",
                    End::Broken => "broken off",
                },
                "error": work.broken,
                "prompt_tokens": usage.prompt,
                "cached_tokens": usage.cached,
                "answer_tokens": usage.answer,
                "first_token_seconds": significant(work.first.as_secs_f64()),
                "seconds": significant(time.as_secs_f64()),
                "decode_tokens_per_second": speed.map(significant),
            }),
        );
    }

    /// A request was refused.
    pub(super) fn refused(self, method: &str, path: &str, refusal: &Refusal) {
        self.tell(
            "refusal",
            json!({
                "method": method,
                "path": path,
                "status": refusal.status,
                "type": refusal.kind,
                "param": refusal.param,
            }),
        );
    }

    /// It listens no more.
    pub(super) fn stopped(self, answers: u64) {
        self.tell("stopped", json!({ "answers": answers }));
    }

    fn tell(self, event: &str, mut about: Value) {
        if self == Self::Text {
            return;
        }
        about["event"] = event.into();
        about["time"] = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string().into();
        // a full disk is no reason to leave clients without an answer
        if let Err(error) = terminal::tell(about) {
            terminal::output::say_error(format_args!(
                "cannot write to standard output: {error}; answers go on"
            ));
        }
    }
}
