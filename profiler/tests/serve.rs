//! The endpoint with a fixture model: what clients ask, what they get, and what they may not do.
#![expect(clippy::unwrap_used, clippy::missing_assert_message, reason = "a test, whose values say it")]

#[expect(dead_code, reason = "the other tests use the rest of it")]
mod programs;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use programs::{Profiled, TEMPLATE, done, refused, text};

/// A server that listens.
struct Server {
    child: Child,
    address: String,
    /// Collects what it tells after that, line by line.
    told: Option<JoinHandle<Vec<String>>>,
}

impl Server {
    fn start(here: &Profiled, address: &str, options: &[&str]) -> Self {
        let mut run = here.run("chat.toml");
        run.args(["--no-probe", "--template", "template.jinja", "--serve", address]).args(options);
        let mut child = run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let listens = lines.find(|line| line.contains(" on http://")).expect("it listens");
        let address = listens.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned();
        let told = Some(thread::spawn(move || lines.collect()));
        Self { child, address, told }
    }

    /// Sends a whole request, head and body; the status, and the body as it came. The old version of the protocol has no chunks.
    fn send(&self, head: &str, headers: &[(&str, &str)], body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(self.request(head, headers, body).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}"));
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    fn request(&self, head: &str, headers: &[(&str, &str)], body: &str) -> String {
        let mut lines = format!("{head} HTTP/1.0\r\ncontent-length: {}\r\n", body.len());
        for (name, value) in [("host", self.address.as_str()), ("content-type", "application/json")] {
            if !headers.iter().any(|(other, _)| *other == name) {
                lines += &format!("{name}: {value}\r\n");
            }
        }
        for (name, value) in headers {
            lines += &format!("{name}: {value}\r\n");
        }
        format!("{lines}\r\n{body}")
    }

    #[track_caller]
    fn get(&self, path: &str) -> String {
        let (status, body) = self.send(&format!("GET {path}"), &[], "");
        assert_eq!(status, 200, "{body}");
        body
    }

    #[track_caller]
    fn post(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.send(&format!("POST {path}"), &[], &body.to_string());
        assert_eq!(status, 200, "{answer}");
        serde_json::from_str(&answer).unwrap()
    }

    #[track_caller]
    fn refuses(&self, status: u16, head: &str, headers: &[(&str, &str)], body: &str, words: &str) {
        let (found, answer) = self.send(head, headers, body);
        let error: Value = serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{answer}"));
        let message = error["error"]["message"].as_str().unwrap();
        assert!(found == status && message.contains(words), "{found} {message}");
    }

    /// Asks it to end; what it told after it listened.
    fn end(mut self) -> Vec<String> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let told: Vec<String> = self.told.take().unwrap().join().unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0), "{told:#?}");
        told
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
    }
}

fn said(content: &str) -> Value {
    json!([{ "role": "user", "content": content }])
}

/// The events of a stream, the last of which says that it is over.
#[track_caller]
fn events(body: &str) -> Vec<Value> {
    let data: Vec<&str> = body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    let (last, events) = data.split_last().unwrap();
    assert_eq!(*last, "[DONE]");
    events.iter().map(|data| serde_json::from_str(data).unwrap()).collect()
}

#[test]
fn clients_are_answered_under_the_plan() {
    let here = Profiled::new("oxide-dense");
    std::fs::write(here.path("template.jinja"), TEMPLATE).unwrap();
    here.plan("chat.toml", &[]);
    // what the model says after the same text without any server
    let plain = |prompt: &str| {
        let output = done(here.run("chat.toml").args(["--no-probe", "--prompt", prompt, "-n", "12"]));
        let all = text(&output.stdout);
        all.strip_prefix(prompt).unwrap().strip_suffix('\n').unwrap().to_owned()
    };
    let (first, second) = ("let x = 1", "fn main() {");
    let [one, two] = [first, second].map(|said| plain(&format!("user: {said}\nassistant:")));

    let server = Server::start(&here, "127.0.0.1:0", &[]);
    assert_eq!(server.get("/health"), r#"{"status":"ok"}"#);
    let models: Value = serde_json::from_str(&server.get("/v1/models")).unwrap();
    assert_eq!(models["data"][0]["id"], "oxide-dense");
    answers(&server, first, &one);
    let answer = server.post("/v1/completions", &json!({ "prompt": second, "max_tokens": 12 }));
    assert_eq!(answer["choices"][0]["text"], plain(second).as_str());
    refusals(&server);
    hangs_up(&server, first, &one);
    crowd(&server, [(first, &one), (second, &two)]);
    let metrics = server.get("/metrics");
    let metric = |name: &str| -> f64 {
        let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("flashplan_{name} ")));
        line.unwrap_or_else(|| panic!("{name}: {metrics}")).parse().unwrap()
    };
    assert!(metric("requests_total") >= 20.0 && metric("refused_total") >= 8.0, "{metrics}");
    assert!(metric("memory_peak_bytes") <= metric("memory_limit_bytes"), "{metrics}");
    assert_eq!(metric("queue_requests"), 0.0);
    let told = server.end();
    assert!(told.iter().any(|line| line.contains("the client hung up")), "{told:#?}");
    assert!(!told.iter().any(|line| line.contains("warning")), "{told:#?}");
    keyed(&here);
}

/// At once and as it comes, the same words; the second time the context holds the prompt already; a stop text ends it.
fn answers(server: &Server, prompt: &str, plain: &str) {
    let asked = json!({ "model": "oxide-dense", "messages": said(prompt), "max_tokens": 12 });
    let whole = server.post("/v1/chat/completions", &asked);
    let choice = &whole["choices"][0];
    assert_eq!(choice["message"]["content"].as_str().unwrap().trim_start(), plain.trim_start());
    assert_eq!(
        (&choice["finish_reason"], &whole["usage"]["completion_tokens"]),
        (&json!("length"), &json!(12))
    );
    let prompt_tokens = whole["usage"]["prompt_tokens"].as_u64().unwrap();

    let mut streamed = asked.clone();
    (streamed["stream"], streamed["stream_options"]) = (json!(true), json!({ "include_usage": true }));
    let (status, body) = server.send("POST /v1/chat/completions", &[], &streamed.to_string());
    assert_eq!(status, 200, "{body}");
    let events = events(&body);
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    let content: String =
        events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(content, choice["message"]["content"].as_str().unwrap());
    let ends: Vec<&Value> = events
        .iter()
        .map(|event| &event["choices"][0]["finish_reason"])
        .filter(|end| !end.is_null())
        .collect();
    assert_eq!(ends, ["length"]);
    let usage = &events.last().unwrap()["usage"];
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], prompt_tokens - 1);

    let cut = content.char_indices().nth(content.chars().count() / 2).unwrap().0;
    let stop = &content[cut..];
    let mut stopped = asked;
    stopped["stop"] = json!([stop]);
    let ended = server.post("/v1/chat/completions", &stopped);
    let before = &content[..content.find(stop).unwrap()];
    assert_eq!(ended["choices"][0]["message"]["content"], before);
    assert_eq!(ended["choices"][0]["finish_reason"], "stop");
}

fn refusals(server: &Server) {
    let chat = "POST /v1/chat/completions";
    let asks = |key: &str, value: Value| {
        let mut body = json!({ "messages": said("Hi") });
        body[key] = value;
        body.to_string()
    };
    server.refuses(400, chat, &[], &asks("n", json!(2)), "`n` is not implemented");
    server.refuses(400, chat, &[], &asks("colour", json!("red")), "`colour` is unknown");
    server.refuses(404, chat, &[], &asks("model", json!("gpt-4")), "there is no model `gpt-4`");
    server.refuses(400, chat, &[], "{", "the body is no JSON");
    server.refuses(415, chat, &[("content-type", "text/plain")], &asks("n", json!(1)), "Content-Type");
    server.refuses(
        403,
        chat,
        &[("host", "evil.example")],
        &asks("n", json!(1)),
        "not this machine's own name",
    );
    server.refuses(403, chat, &[("origin", "http://evil.example")], &asks("n", json!(1)), "may not ask here");
    server.refuses(405, "GET /v1/chat/completions", &[], "", "does not take GET");
    server.refuses(404, "GET /v2", &[], "", "there is no /v2");
    let long = json!({ "prompt": vec![1; 10_000] }).to_string();
    server.refuses(400, "POST /v1/completions", &[], &long, "has room for");
    let none = json!({ "prompt": [999_999] }).to_string();
    server.refuses(400, "POST /v1/completions", &[], &none, "there is no token 999999");
    let huge = format!("{{\"prompt\": \"{}\"}}", "a".repeat(8 << 20));
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let request = server.request("POST /v1/completions", &[], &huge);
    let _refused_before_all_is_sent = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    let _reset = stream.read_to_end(&mut answer);
    assert!(answer.is_empty() || String::from_utf8_lossy(&answer).starts_with("HTTP/1.0 413"));
}

/// Who hangs up in the middle of an answer makes room for the next, whose words are his own.
fn hangs_up(server: &Server, prompt: &str, plain: &str) {
    let asked = json!({ "messages": said("Tell me all."), "stream": true, "temperature": 1.5, "seed": 1 });
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let request = server.request("POST /v1/chat/completions", &[], &asked.to_string());
    stream.write_all(request.as_bytes()).unwrap();
    let mut some = [0; 400];
    stream.read_exact(&mut some).unwrap();
    drop(stream);
    let clock = Instant::now();
    let answer = server.post("/v1/chat/completions", &json!({ "messages": said(prompt), "max_tokens": 12 }));
    let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(content.trim_start(), plain.trim_start());
    assert!(clock.elapsed() < Duration::from_secs(20), "{:?}", clock.elapsed());
}

/// Many at once: nobody gets another's answer.
fn crowd(server: &Server, prompts: [(&str, &str); 2]) {
    thread::scope(|scope| {
        for client in 0..8 {
            let (prompt, plain) = prompts[client % 2];
            scope.spawn(move || {
                for _ in 0..2 {
                    let asked = json!({ "messages": said(prompt), "max_tokens": 12 });
                    let answer = server.post("/v1/chat/completions", &asked);
                    let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
                    assert_eq!(content.trim_start(), plain.trim_start());
                }
            });
        }
    });
}

/// Where others can reach it there is a key, and who has it is answered.
fn keyed(here: &Profiled) {
    let said = refused(1, here.run("chat.toml").args(["--no-probe", "--serve", "0.0.0.0:0"]));
    assert!(said.contains("lets everyone in") && said.contains("--api-key-file"), "{said}");
    std::fs::write(here.path("key"), "short\n").unwrap();
    let said = refused(1, here.run("chat.toml").args(["--no-probe", "--serve", "--api-key-file", "key"]));
    assert!(said.contains("8 or more printable characters"), "{said}");
    std::fs::write(here.path("key"), "correct-horse-battery\n").unwrap();
    let server = Server::start(here, "127.0.0.1:0", &["--api-key-file", "key"]);
    server.refuses(401, "GET /v1/models", &[], "", "the key is missing or wrong");
    server.refuses(401, "GET /v1/models", &[("authorization", "Bearer wrong")], "", "missing or wrong");
    let (status, _) = server.send("GET /v1/models", &[("authorization", "Bearer correct-horse-battery")], "");
    assert_eq!(status, 200);
    server.get("/health");
    server.end();
}
