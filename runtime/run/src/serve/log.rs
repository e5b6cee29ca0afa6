//! Log of requests for the operator: one line for each answer on standard error. With `--json`, standard output gets one object for each
//! answer and each refusal, for log collectors.
//!
//! Neither has any text of a request or of its answer.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use axum::http::Method;
use plans::file::significant;
use serde_json::{Value, json};

use super::super::session::RunningPlan;
use super::keys::is_known;
use super::request::Refusal;
use super::seat::AnswerFigures;

/// The form of the log.
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
    /// The server was stopped.
    Stopped,
    /// It could not go on.
    Broken,
}

impl Log {
    /// It listens.
    pub(super) fn listens(self, session: &RunningPlan<'_>, address: SocketAddr) {
        let (model, level) = (session.model.name(), &session.plan.quality.level);
        let speed = session.plan.expected.decode_tokens_per_second;
        let (context, sequences) = (session.context(), session.sequences());
        let page = page_url(address);
        terminal::say(format_args!(
            "{model}: quality level `{level}`, {} of {context} tokens, {speed:.1} tok/s planned",
            if sequences == 1 { "a context".to_owned() } else { format!("{sequences} contexts") },
        ));
        terminal::say(format_args!("open {page} in a browser; programs use {page}/v1; Ctrl-C ends"));
        if let Some(reason) = session.unlocked() {
            terminal::say(format_args!("warning: the memory may be paged out: {reason}"));
        }
        self.tell(
            "listening",
            json!({
                "address": address.to_string(),
                "model": model,
                "level": level,
                "context_tokens": context,
                "sequences": sequences,
                "decode_tokens_per_second_predicted": significant(speed),
                "memory_unlocked_reason": session.unlocked(),
            }),
        );
    }

    /// An answer is over, so long after it was begun.
    pub(super) fn answered(
        self,
        number: u64,
        sequence: usize,
        work: &AnswerFigures,
        time: Duration,
        end: End,
    ) {
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

    /// A request was refused. `route` is the route of its path; `None` if the path has none.
    pub(super) fn refused(self, method: &Method, route: Option<&str>, refusal: &Refusal) {
        self.tell("refusal", refused(method, route, refusal));
    }

    /// Keys of a request were ignored. Keys unknown to every interface are the client's own words and are logged as `other`.
    pub(super) fn ignored(self, path: &str, keys: &[String]) {
        if keys.is_empty() {
            return;
        }
        let known = |key: &String| is_known(key.split('.').next().unwrap_or_default());
        let mut names: Vec<&str> = keys
            .iter()
            .map(|key| if known(key) { key.split('.').next().unwrap_or_default() } else { "other" })
            .collect();
        names.dedup();
        if self == Self::Text {
            terminal::say(format_args!("[{path}: without effect: {}]", names.join(", ")));
        }
        self.tell("ignored", json!({ "path": path, "keys": names }));
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

/// The URL of the page from this machine: the loopback address for a server that listens on all addresses.
fn page_url(mut address: SocketAddr) -> String {
    if address.ip().is_unspecified() {
        address.set_ip(if address.is_ipv4() {
            Ipv4Addr::LOCALHOST.into()
        } else {
            Ipv6Addr::LOCALHOST.into()
        });
    }
    format!("http://{address}")
}

/// A refusal as JSON, without the client's own words: an unknown method, path or key becomes `other`.
fn refused(method: &Method, route: Option<&str>, refusal: &Refusal) -> Value {
    let known = [
        Method::GET,
        Method::POST,
        Method::HEAD,
        Method::OPTIONS,
        Method::PUT,
        Method::PATCH,
        Method::DELETE,
    ];
    let other = "other";
    json!({
        "method": known.iter().find(|&it| it == method).map_or(other, Method::as_str),
        "path": route.unwrap_or(other),
        "status": refusal.status,
        "type": refusal.kind,
        "param": refusal.param.as_deref().map(|param| if refusal.is_unknown { other } else { param }),
    })
}

#[cfg(test)]
mod tests {
    use super::super::keys::{CHAT, Keys, Notes};
    use super::*;

    #[test]
    fn the_page_has_an_address_that_a_browser_opens() {
        let url = |address: &str| page_url(address.parse().expect("an address"));
        assert_eq!(url("127.0.0.1:8080"), "http://127.0.0.1:8080");
        assert_eq!(url("0.0.0.0:80"), "http://127.0.0.1:80");
        assert_eq!(url("[::]:8080"), "http://[::1]:8080");
        assert_eq!(url("192.168.1.7:8080"), "http://192.168.1.7:8080");
    }

    #[test]
    fn no_words_of_a_client_are_in_what_is_told_of_a_refusal() {
        let told = |body: &str, method: &str, route: Option<&str>| {
            let notes = Notes::default();
            let keys = Keys::read(body.as_bytes(), &CHAT, &notes);
            let refusal = keys.and_then(Keys::finish).expect_err("a key is left");
            refused(&Method::from_bytes(method.as_bytes()).expect("a method"), route, &refusal)
        };
        let secret = told(r#"{"toolss": 1}"#, "SECRET", None);
        assert!(!secret.to_string().to_lowercase().contains("secret"), "{secret}");
        assert!(!secret.to_string().contains("toolss"), "{secret}");
        assert_eq!(
            (&secret["method"], &secret["path"], &secret["param"]),
            (&json!("other"), &json!("other"), &json!("other"))
        );
        let known = told(r#"{"audio": "my secret"}"#, "POST", Some("/v1/chat/completions"));
        assert!(!known.to_string().contains("secret"), "{known}");
        assert_eq!(
            (&known["method"], &known["path"], &known["param"]),
            (&json!("POST"), &json!("/v1/chat/completions"), &json!("audio"))
        );
    }
}
