//! The endpoint with a fixture model: what clients ask, what they get, and what they may not do.
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use flashplan::internals::model::source::SourceModel;
use flashplan::internals::pooling::{Pooled, Pooling};
use flashplan::internals::reference::Reference;
use serde_json::{Value, json};

use crate::programs;
use crate::programs::{Profiled, TEMPLATE, done, refused, text};

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
        let out = std::fs::File::create(here.path("served.txt")).unwrap();
        let mut child = run.stdout(out).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let listens = lines.find(|line| line.starts_with("open http://")).expect("it listens");
        let address = listens.split(['/', ' ']).nth(3).unwrap().to_owned();
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

    /// The head and the body of an answer.
    fn head(&self, head: &str, body: &Value) -> (String, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(self.request(head, &[], &body.to_string()).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}"));
        (head.to_owned(), body.to_owned())
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
    let here = Profiled::kept("oxide-dense");
    std::fs::write(here.path("template.jinja"), TEMPLATE).unwrap();
    // a schema's grammar has no room in a plan that fills its limit, until some is reserved
    here.plan("chat.toml", &["--mem", &here.tight(&[])]);
    let crammed = Server::start(&here, "127.0.0.1:0", &[]);
    let asked =
        json!({ "messages": said("Hi"), "response_format": format(&json!({ "enum": ["a".repeat(3000)] })) });
    crammed.refuses(413, "POST /v1/chat/completions", &[], &asked.to_string(), "the plan's limit has");
    // a prompt that is only shown or counted has no answer, and needs no grammar
    let prompt = crammed.post("/apply-template", &asked)["prompt"].clone();
    assert_eq!(prompt, "<s> user: Hi\nassistant:");
    crammed.end();
    let (limit, room) = (here.tight(&["--reserve", "10M"]), 10 << 20);
    let roomy = here.plan("chat.toml", &["--mem", &limit, "--reserve", "10M"]);
    assert_eq!(roomy.memory.reserve_bytes, room);
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
    several(&server, second);
    likely(&here, &server);
    biased(&server, second);
    enforced(&server);
    calls(&here, &server);
    anthropic(&server, first, &one);
    embedded(&server);
    refusals(&server);
    full(&server);
    hangs_up(&server, first, &one);
    crowd(&server, [(first, &one), (second, &two)]);
    flood(&server, second);
    let metrics = server.get("/metrics");
    let metric = |name: &str| -> f64 {
        let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("flashplan_{name} ")));
        line.unwrap_or_else(|| panic!("{name}: {metrics}")).parse().unwrap()
    };
    assert!(metric("requests_total") >= 20.0 && metric("refused_total") >= 8.0, "{metrics}");
    assert!(metric("memory_peak_bytes") <= metric("memory_limit_bytes"), "{metrics}");
    assert_eq!(metric("queue_requests"), 0.0);
    // a token's time goes into its stages
    let stages = metrics.lines().filter_map(|line| line.strip_prefix("flashplan_stage_seconds_total{"));
    let staged: f64 = stages.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum();
    let whole = metric("decode_seconds_total");
    assert!(staged > 0.5 * whole && staged <= whole, "{staged} {whole}");
    let told = server.end();
    assert!(told.iter().any(|line| line.contains("the client hung up")), "{told:#?}");
    assert!(!told.iter().any(|line| line.contains("warning")), "{told:#?}");
    keyed(&here);
}

#[test]
fn programs_read_a_line_for_each_answer_and_refusal_and_nothing_that_was_said() {
    let here = Profiled::kept("oxide-dense");
    std::fs::write(here.path("template.jinja"), TEMPLATE).unwrap();
    here.plan("chat.toml", &[]);
    let server = Server::start(&here, "127.0.0.1:0", &["--json"]);
    let address = server.address.clone();
    let answer = server.post("/v1/completions", &json!({ "prompt": "a secret", "max_tokens": 4 }));
    server.refuses(404, "GET /nothing/secret?secret", &[], "", "there is no");
    server.refuses(400, "POST /v1/completions", &[], r#"{"prompt": "a secret", "n": -1}"#, "n");
    server.refuses(400, "POST /v1/completions", &[], r#"{"prompt": "a", "promptt": 1}"#, "unknown");
    let told = json!({ "prompt": "a secret", "max_tokens": 1, "a secret": 1, "user": "a secret" });
    let (head, _) = server.head("POST /v1/completions", &told);
    assert!(head.contains("flashplan-ignored: a secret, user"), "{head}");
    let people = server.end();
    assert!(!people.iter().any(|line| line.starts_with('[')), "{people:#?}");

    let text = std::fs::read_to_string(here.path("served.txt")).unwrap();
    assert!(!text.contains("secret"), "{text}");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [listening, answered, nowhere, wrong, unknown, ignored, _, stopped] = &lines[..] else {
        panic!("{text}")
    };
    assert_eq!((&ignored["event"], &ignored["keys"]), (&json!("ignored"), &json!(["other", "user"])));
    assert_eq!((&listening["event"], &listening["address"]), (&json!("listening"), &json!(address)));
    assert_eq!((&answered["event"], &answered["end"]), (&json!("answer"), &json!("given")));
    let usage = &answer["usage"];
    assert_eq!(
        (&answered["prompt_tokens"], &answered["answer_tokens"]),
        (&usage["prompt_tokens"], &usage["completion_tokens"])
    );
    let seconds = |key: &str| answered[key].as_f64().unwrap();
    assert!(0.0 < seconds("first_token_seconds") && seconds("first_token_seconds") <= seconds("seconds"));
    for (refusal, path, param, status) in [
        (nowhere, "other", Value::Null, 404),
        (wrong, "/v1/completions", json!("n"), 400),
        (unknown, "/v1/completions", json!("other"), 400),
    ] {
        assert_eq!(
            (&refusal["event"], &refusal["path"], &refusal["param"], &refusal["status"]),
            (&json!("refusal"), &json!(path), &param, &json!(status))
        );
    }
    assert_eq!((&stopped["event"], &stopped["answers"]), (&json!("stopped"), &json!(2)));
    assert!(lines.iter().all(|line| line["time"].as_str().unwrap().ends_with('Z')));
}

/// Tokens of a block on disk.
const BLOCK: usize = 32;

#[test]
fn prompts_last_on_disk_and_change_no_bit() {
    let here = Profiled::kept("oxide-dense");
    std::fs::write(here.path("template.jinja"), TEMPLATE).unwrap();
    let tight = here.tight(&[]);
    here.plan("chat.toml", &["--mem", &tight]);
    let prompt: Vec<u32> = (0..100).map(|at| 3 + at * 7 % 200).collect();
    // every likelihood with it, so that a bit would show
    let ask = |server: &Server, prompt: &[u32]| {
        let answer =
            server.post("/v1/completions", &json!({ "prompt": prompt, "max_tokens": 8, "logprobs": 5 }));
        let read =
            prompt.len() as u64 - answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        (answer["choices"].clone(), read as usize)
    };
    let once = |options: &[&str], prompt: &[u32]| {
        let server = Server::start(&here, "127.0.0.1:0", options);
        let answer = ask(&server, prompt);
        let metrics = server.get("/metrics");
        let metric = |name: &str| -> f64 {
            let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("flashplan_{name} ")));
            line.unwrap().parse().unwrap()
        };
        assert!(metric("memory_peak_bytes") <= metric("memory_limit_bytes"), "{metrics}");
        (answer, server.end())
    };
    let sessions = &["--sessions", "kept"][..];
    let files = || {
        let entries = std::fs::read_dir(here.path("kept")).unwrap().map(|entry| entry.unwrap());
        entries.map(|entry| (entry.path(), entry.metadata().unwrap().len())).collect::<Vec<_>>()
    };
    let quiet = |told: &[String]| assert!(!told.iter().any(|line| line.contains("warning")), "{told:#?}");
    let ((plain, read), _) = once(&[], &prompt);
    assert_eq!(read, prompt.len());

    // the first time it is read, and after a restart only what is no whole block
    let ((first, read), told) = once(sessions, &prompt);
    assert_eq!((&first, read, files().len()), (&plain, prompt.len(), prompt.len() / BLOCK));
    quiet(&told);
    let ((again, read), told) = once(sessions, &prompt);
    assert_eq!((&again, read), (&plain, prompt.len() % BLOCK));
    quiet(&told);
    // another prompt that begins alike reads what is its own; one that is whole blocks reads its last token
    let mut other = prompt.clone();
    other[70] += 1;
    let ((_, read), _) = once(sessions, &other);
    assert_eq!(read, prompt.len() - 2 * BLOCK);
    let ((whole, read), _) = once(sessions, &prompt[..64]);
    assert_eq!((whole, read), (once(&[], &prompt[..64]).0.0, 1));

    // a damaged file is told of, removed, and made anew
    let (path, bytes) = files().into_iter().next().unwrap();
    for damage in [bytes / 2, bytes - 1] {
        let mut damaged = std::fs::read(&path).unwrap();
        damaged[damage as usize] ^= 4;
        std::fs::write(&path, damaged).unwrap();
        let told: Vec<String> =
            [&prompt, &other].into_iter().flat_map(|prompt| once(sessions, prompt).1).collect();
        assert_eq!(told.iter().filter(|line| line.contains("is removed: it is")).count(), 1, "{told:#?}");
        assert_eq!(once(sessions, &prompt).0, (plain.clone(), prompt.len() % BLOCK));
    }
    // what another plan would compute otherwise is no use to it
    here.plan("chat.toml", &["--mem", &tight, "--context", "128"]);
    assert_eq!(once(sessions, &prompt).0.1, prompt.len());

    // the bound is kept, by the newest
    let bound = (4 * bytes).to_string();
    let bounded = [sessions, &["--sessions-size", &bound]].concat();
    let ((_, read), told) = once(&bounded, &other);
    quiet(&told);
    assert!(read < other.len(), "the beginning lies there");
    assert!(files().iter().map(|(_, bytes)| bytes).sum::<u64>() <= 4 * bytes, "{:?}", files());
    assert_eq!(once(&bounded, &other).0.1, other.len() % BLOCK);
    let said = refused(
        1,
        here.run("chat.toml")
            .args(["--no-probe", "--serve", "127.0.0.1:0"])
            .args(sessions)
            .args(["--sessions-size", "1KiB"]),
    );
    assert!(said.contains("--sessions-size 1.0 KiB: 32 tokens of this model take"), "{said}");
    let said = refused(
        1,
        here.run("chat.toml").args(["--no-probe", "--serve", "127.0.0.1:0", "--sessions", "chat.toml"]),
    );
    assert!(said.contains("name a folder that can be written to"), "{said}");
    let said = refused(1, here.run("chat.toml").args(["--prompt", "x"]).args(sessions));
    assert!(said.contains("--chat") && said.contains("--serve"), "{said}");
}

#[test]
fn several_are_answered_together_and_each_as_if_alone() {
    let here = Profiled::kept("oxide-dense");
    std::fs::write(here.path("template.jinja"), TEMPLATE).unwrap();
    let prompts: Vec<Vec<u32>> = (0..5)
        .map(|first| (0..20 + 30 * first).map(|at| 3 + (at * 7 + first * 11) % 200).collect())
        .collect();
    // every likelihood with it, so that a bit would show; two choices share their prompt
    let ask = |server: &Server, prompt: &[u32]| {
        let asked = json!({ "prompt": prompt, "max_tokens": 24, "logprobs": 5, "n": 2, "temperature": 0.8, "seed": 3 });
        server.post("/v1/completions", &asked)["choices"].clone()
    };
    let plan = here.plan("chat.toml", &["--mem", "40M"]);
    let server = Server::start(&here, "127.0.0.1:0", &[]);
    let expected: Vec<Value> = prompts.iter().map(|prompt| ask(&server, prompt)).collect();
    let embedded = vectors(&server, &json!(prompts));
    server.end();

    let several = here.plan("chat.toml", &["--mem", "40M", "--slots", "3", "--quality", "chat.toml"]);
    assert_eq!(several.memory.kv_bytes, 3 * plan.memory.kv_bytes);
    let planned = several.together.unwrap().decode_tokens_per_second;
    let bench = done(here.run("chat.toml").args(["--no-probe", "--bench", "--json"]));
    let together = serde_json::from_slice::<Value>(&bench.stdout).unwrap()["together"].clone();
    let of = |key: &str| -> Vec<f64> {
        together.as_array().unwrap().iter().map(|of| of[key].as_f64().unwrap()).collect()
    };
    assert_eq!((of("sequences"), of("decode_tokens_per_second_predicted")), (vec![1.0, 2.0, 3.0], planned));
    assert!(of("decode_tokens_per_second").iter().all(|&speed| speed > 0.0), "{together}");
    let server = Server::start(&here, "127.0.0.1:0", &["--sessions", "kept"]);
    thread::scope(|scope| {
        scope.spawn(|| (0..3).for_each(|_| assert_eq!(vectors(&server, &json!(prompts)), embedded)));
        for client in 0..5 {
            let (server, prompts, expected) = (&server, &prompts, &expected);
            scope.spawn(move || {
                for turn in 0..3 {
                    let at = (client + turn) % 5;
                    assert_eq!(ask(server, &prompts[at]), expected[at], "{client} {turn}");
                }
            });
        }
    });
    let metrics = server.get("/metrics");
    let metric = |name: &str| -> f64 {
        let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("flashplan_{name} ")));
        line.unwrap_or_else(|| panic!("{name}: {metrics}")).parse().unwrap()
    };
    let rows = metric("decoded_tokens_total") / metric("decode_steps_total");
    // how often they meet is the machine's affair
    assert!((1.05..=3.0).contains(&rows), "{rows} tokens a step");
    assert!(metric("memory_peak_bytes") <= metric("memory_limit_bytes"), "{metrics}");
    // who hangs up leaves the others as they are, and his seat
    let long =
        json!({ "prompt": prompts[0], "stream": true, "temperature": 1.5, "seed": 1, "max_tokens": 200 });
    for _ in 0..3 {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.write_all(server.request("POST /v1/completions", &[], &long.to_string()).as_bytes()).unwrap();
        stream.read_exact(&mut [0; 400]).unwrap();
    }
    assert_eq!(ask(&server, &prompts[4]), expected[4]);
    let told = server.end();
    assert!(!told.iter().any(|line| line.contains("warning")), "{told:#?}");
}

#[test]
fn drafts_change_no_answer() {
    let here = Profiled::kept("oxide-dense");
    std::fs::write(here.path("template.jinja"), TEMPLATE).unwrap();
    let round = "let x = 1;\nlet y = 2;\n".repeat(5);
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["a", "b"],
        "properties": { "a": { "type": "string", "maxLength": 20 }, "b": { "type": "integer", "minimum": 1, "maximum": 99 } },
    });
    let mut asked: Vec<(&str, Value)> = vec![
        ("completions", json!({ "prompt": round, "max_tokens": 60, "logprobs": 5 })),
        (
            "completions",
            json!({ "prompt": round, "max_tokens": 40, "n": 3, "temperature": 0.6, "seed": 3, "logprobs": 2 }),
        ),
        (
            "completions",
            json!({ "prompt": round, "max_tokens": 40, "presence_penalty": 0.5, "frequency_penalty": 0.3 }),
        ),
        (
            "chat/completions",
            json!({ "messages": said(&round), "max_tokens": 60, "logprobs": true, "top_logprobs": 3 }),
        ),
        (
            "chat/completions",
            json!({ "messages": said(&round), "temperature": 1.2, "seed": 5, "n": 2, "response_format": format(&schema) }),
        ),
    ];
    let answered = |server: &Server, (path, body): &(&str, Value)| {
        server.post(&format!("/v1/{path}"), body)["choices"].clone()
    };
    here.plan("chat.toml", &["--mem", "40M", "--context", "256", "--reserve", "10M"]);
    let server = Server::start(&here, "127.0.0.1:0", &[]);
    // texts that end an answer in its middle, wherever a draft is then
    let whole = answered(&server, &asked[0]);
    let whole: Vec<char> = whole[0]["text"].as_str().unwrap().chars().collect();
    for at in [20, 33] {
        let stop: String = whole[at..at + 3].iter().collect();
        asked.push(("completions", json!({ "prompt": round, "max_tokens": 60, "stop": [stop] })));
    }
    let expected: Vec<Value> = asked.iter().map(|asked| answered(&server, asked)).collect();
    server.end();

    let same = ["--mem", "40M", "--context", "256", "--reserve", "10M", "--quality", "chat.toml"];
    here.plan("chat.toml", &[&same[..], &["--slots", "2", "--speculate", "3"]].concat());
    let server = Server::start(&here, "127.0.0.1:0", &["--sessions", "kept"]);
    // three at a time on two seats, each in another order
    thread::scope(|scope| {
        for client in 0..3 {
            let (server, asked, expected) = (&server, &asked, &expected);
            scope.spawn(move || {
                for turn in 0..asked.len() {
                    let at = (3 * client + turn) % asked.len();
                    assert_eq!(answered(server, &asked[at]), expected[at], "{}", asked[at].1);
                }
            });
        }
    });
    let metrics = server.get("/metrics");
    let metric = |name: &str| -> f64 {
        let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("flashplan_{name} ")));
        line.unwrap_or_else(|| panic!("{name}: {metrics}")).parse().unwrap()
    };
    let (drafted, kept) = (metric("drafted_tokens_total"), metric("kept_tokens_total"));
    assert!(kept > 50.0 && kept <= drafted, "{metrics}");
    assert!(metric("decoded_tokens_total") > metric("decode_steps_total") + kept, "{metrics}");
    assert!(metric("memory_peak_bytes") <= metric("memory_limit_bytes"), "{metrics}");
    let told = server.end();
    assert!(!told.iter().any(|line| line.contains("warning")), "{told:#?}");
}

#[test]
fn a_model_with_a_recurrent_state_answers_each_prompt_as_if_it_were_the_first() {
    let here = Profiled::measured();
    here.profile(&programs::fixture("golden/architectures/lfm2.gguf"), &[]);
    std::fs::write(here.path("template.jinja"), TEMPLATE).unwrap();
    here.plan("chat.toml", &["--slots", "2"]);
    // one goes on where another ends, one ends before, one differs in the middle, one at the beginning
    let prompt =
        |first: u32, tokens: u32| -> Vec<u32> { (0..tokens).map(|at| first + at * 7 % 200).collect() };
    let mut differs = prompt(3, 60);
    differs[30] += 1;
    let prompts = [prompt(3, 60), prompt(3, 90), prompt(3, 41), differs, prompt(5, 60)];
    // every likelihood with it, so that a bit would show; two choices share their prompt
    let ask = |server: &Server, prompt: &[u32]| {
        let asked = json!({ "prompt": prompt, "max_tokens": 16, "logprobs": 5, "n": 2, "temperature": 0.8, "seed": 3 });
        server.post("/v1/completions", &asked)["choices"].clone()
    };
    let alone = |prompt: &Vec<u32>| {
        let server = Server::start(&here, "127.0.0.1:0", &[]);
        let answer = ask(&server, prompt);
        server.end();
        answer
    };
    let expected: Vec<Value> = prompts.iter().map(alone).collect();
    let server = Server::start(&here, "127.0.0.1:0", &[]);
    for at in [0, 1, 0, 2, 3, 1, 1, 4, 0] {
        assert_eq!(ask(&server, &prompts[at]), expected[at], "{at}");
    }
    thread::scope(|scope| {
        for client in 0..3 {
            let (server, prompts, expected) = (&server, &prompts, &expected);
            scope.spawn(move || {
                for turn in 0..5 {
                    let at = (client + turn) % 5;
                    assert_eq!(ask(server, &prompts[at]), expected[at], "{client} {turn}");
                }
            });
        }
    });
    server.end();
    // and prompts last on disk with their state: what goes on where another ended takes that in, in another process, too
    let kept = here.path("kept");
    let lasting = || Server::start(&here, "127.0.0.1:0", &["--sessions", kept.to_str().unwrap()]);
    let cached = |server: &Server, prompt: &[u32]| {
        let asked = json!({ "prompt": prompt, "max_tokens": 1 });
        server.post("/v1/completions", &asked)["usage"]["prompt_tokens_details"]["cached_tokens"].clone()
    };
    let files = || std::fs::read_dir(&kept).unwrap().count();
    let server = lasting();
    assert_eq!(ask(&server, &prompts[0]), expected[0]);
    server.end();
    assert_eq!(files(), 1);
    for _ in 0..2 {
        let server = lasting();
        assert_eq!(ask(&server, &prompts[1]), expected[1]);
        assert_eq!(ask(&server, &prompts[3]), expected[3]);
        server.end();
        assert_eq!(files(), 3);
    }
    let server = lasting();
    assert_eq!(cached(&server, &prompts[1][..80]), 60);
    assert_eq!(cached(&server, &prompts[3][..59]), 0);
    server.end();
    // what is damaged is told of and removed
    let (longest, _) = (std::fs::read_dir(&kept).unwrap())
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.path(), entry.metadata().unwrap().len()))
        .max_by_key(|(_, bytes)| *bytes)
        .unwrap();
    let mut bytes = std::fs::read(&longest).unwrap();
    let last = bytes.len() - 40;
    bytes[last] ^= 1;
    std::fs::write(&longest, bytes).unwrap();
    let server = lasting();
    let mut longer = prompts[1].clone();
    longer.push(1);
    cached(&server, &longer);
    let told = server.end();
    assert!(told.iter().any(|line| line.contains("is removed: it is damaged")), "{told:#?}");
}

#[test]
fn a_long_prompt_leaves_others_half_of_the_time() {
    let here = Profiled::kept("oxide-dense");
    std::fs::write(here.path("template.jinja"), TEMPLATE).unwrap();
    let plan = here.plan("chat.toml", &["--mem", &here.tight(&["--slots", "2"]), "--slots", "2"]);
    let server = Server::start(&here, "127.0.0.1:0", &[]);
    let asked = json!({ "prompt": [3, 10, 17], "temperature": 1.5, "seed": 1, "max_tokens": 240 });
    let whole = server.post("/v1/completions", &asked);
    assert!(whole["usage"]["completion_tokens"].as_u64().unwrap() > 150, "{whole}");
    let counters = || {
        let metrics = server.get("/metrics");
        ["decode_steps_total", "prompt_wait_seconds_total", "prompt_share_seconds_total"].map(|name| {
            let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("flashplan_{name} ")));
            line.unwrap().parse::<f64>().unwrap()
        })
    };
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let streamed =
        json!({ "stream": true, "prompt": [3, 10, 17], "temperature": 1.5, "seed": 1, "max_tokens": 240 });
    stream.write_all(server.request("POST /v1/completions", &[], &streamed.to_string()).as_bytes()).unwrap();
    let mut begun = [0; 400];
    stream.read_exact(&mut begun).unwrap();
    let (long, before): (Vec<u32>, _) = ((0..230).map(|at| 3 + at * 7 % 200).collect(), counters());
    let read = server.post("/v1/completions", &json!({ "prompt": long, "max_tokens": 1 }));
    let [steps, waited, had] = [0, 1, 2].map(|which| counters()[which] - before[which]);
    // a token after every chunk but the last, at least
    let chunks = 230_u32.div_ceil(plan.prefill.chunk_tokens);
    assert!(chunks > 3, "{chunks}");
    assert!(steps >= f64::from(chunks - 1), "{steps} in {chunks} chunks");
    // and as long as the chunk took
    assert!(waited > 0.0 && had >= waited, "{had} after {waited}");
    // the one that waited says what it says alone, and so does the one that was waited for
    let mut all = String::new();
    stream.read_to_string(&mut all).unwrap();
    let all = String::from_utf8(begun.to_vec()).unwrap() + &all;
    let (_, body) = all.split_once("\r\n\r\n").unwrap();
    let text: String =
        events(body).iter().map(|event| event["choices"][0]["text"].as_str().unwrap().to_owned()).collect();
    assert_eq!(text, whole["choices"][0]["text"].as_str().unwrap());
    let alone = server.post("/v1/completions", &json!({ "prompt": long, "max_tokens": 1 }));
    assert_eq!(read["choices"], alone["choices"]);
    server.end();
}

/// `curl -N` at a server, if there is a curl.
fn curl(server: &Server, path: &str, body: &Value) -> Option<Child> {
    let url = format!("http://{}{path}", server.address);
    let mut curl = Command::new("curl");
    curl.args(["--no-buffer", "--silent", "--show-error", "--fail", &url, "--json", &body.to_string()]);
    match curl.stdout(Stdio::piped()).spawn() {
        Ok(child) => Some(child),
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
            skipped::skipped("curl", "there is none here");
            None
        }
    }
}

/// A real client, which prints what comes when it comes: events before the answer is over, each a line with an empty one after it, and
/// `[DONE]` last. When it is ended in the middle, the next one is answered before that answer could have been.
#[test]
fn curl_hears_events_as_they_come_and_frees_its_seat_when_it_ends() {
    let here = Profiled::kept("oxide-dense");
    std::fs::write(here.path("template.jinja"), TEMPLATE).unwrap();
    here.plan("chat.toml", &["--mem", &here.tight(&[])]);
    let server = Server::start(&here, "127.0.0.1:0", &[]);
    // the model's end never comes
    let asked = |stream: bool| {
        json!({
            "messages": said("let x = 1"), "stream": stream, "max_tokens": 200, "temperature": 1.5, "seed": 4,
            "logit_bias": { "2": -100 }, "stream_options": { "include_usage": true },
        })
    };
    let answered = || {
        let metrics = server.get("/metrics");
        let line = metrics.lines().find_map(|line| line.strip_prefix("flashplan_answer_tokens_total "));
        line.unwrap().parse::<u64>().unwrap()
    };
    let mut whole_body = asked(false);
    whole_body.as_object_mut().unwrap().remove("stream_options");
    let whole = server.post("/v1/chat/completions", &whole_body);
    assert_eq!(whole["usage"]["completion_tokens"], 200);
    let whole = whole["choices"][0]["message"]["content"].as_str().unwrap();

    // on a machine with much else to do the first event may be seen late
    let early = (0..5).any(|_| {
        let before = answered();
        let Some(mut child) = curl(&server, "/v1/chat/completions", &asked(true)) else { return true };
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let first = lines.next().unwrap();
        let early = answered() == before;
        let body: Vec<String> = [first].into_iter().chain(lines).collect();
        assert!(child.wait().unwrap().success());
        let (told, empty): (Vec<&String>, Vec<&String>) =
            body.iter().partition(|line| line.starts_with("data: "));
        assert!(told.len() == empty.len() && empty.iter().all(|line| line.is_empty()), "{body:#?}");
        let events = events(&body.join("\n"));
        let pieces: Vec<&str> =
            events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str()).collect();
        assert_eq!(pieces.concat(), whole);
        assert!(pieces.len() > 50, "{pieces:?}");
        assert_eq!(events.last().unwrap()["usage"]["completion_tokens"], 200);
        early
    });
    assert!(early, "the first event came before the answer's end");

    let Some(mut child) = curl(&server, "/v1/chat/completions", &asked(true)) else { return };
    let mut first = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut first).unwrap();
    assert!(first.starts_with("data: {"), "{first}");
    child.kill().unwrap();
    child.wait().unwrap();
    // there is one seat
    let next = server.post("/v1/completions", &json!({ "prompt": "fn main", "max_tokens": 2 }));
    assert_eq!(next["usage"]["completion_tokens"], 2);
    let refused = curl(&server, "/v1/chat/completions", &json!({ "messages": said("Hi"), "n": 17 })).unwrap();
    assert_eq!(
        refused.wait_with_output().unwrap().status.code(),
        Some(22),
        "--fail says that it was refused"
    );
    let told = server.end();
    assert!(told.iter().any(|line| line.contains("the client hung up")), "{told:#?}");
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

/// Several answers to one prompt are those that their seeds give alone, whole and as they come, and the prompt is read once.
fn several(server: &Server, prompt: &str) {
    let asked = |n: u64, seed: u64, stream: bool| json!({ "messages": said(prompt), "max_tokens": 8, "temperature": 1.5, "seed": seed, "n": n, "stream": stream });
    let all = server.post("/v1/chat/completions", &asked(3, 7, false));
    let contents: Vec<&str> = all["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["message"]["content"].as_str().unwrap())
        .collect();
    let alone: Vec<Value> =
        (7..10).map(|seed| server.post("/v1/chat/completions", &asked(1, seed, false))).collect();
    let one = |answer: &Value| answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    assert_eq!(contents, alone.iter().map(one).collect::<Vec<_>>());
    assert!(contents[0] != contents[1] && contents[1] != contents[2], "{contents:?}");
    let used = |answer: &Value, what: &str| answer["usage"][what].as_u64().unwrap();
    assert_eq!(used(&all, "prompt_tokens"), used(&alone[0], "prompt_tokens"));
    let each: u64 = alone.iter().map(|answer| used(answer, "completion_tokens")).sum();
    assert_eq!(used(&all, "completion_tokens"), each);

    let (_, body) = server.send("POST /v1/chat/completions", &[], &asked(3, 7, true).to_string());
    let mut streamed = [const { String::new() }; 3];
    let mut ends = 0;
    for event in events(&body) {
        let choice = &event["choices"][0];
        let content = choice["delta"]["content"].as_str().unwrap_or_default();
        streamed[choice["index"].as_u64().unwrap() as usize] += content;
        ends += usize::from(choice["finish_reason"].is_string());
    }
    assert_eq!((streamed.each_ref().map(String::as_str), ends), ([contents[0], contents[1], contents[2]], 3));
}

/// A token's likelihood is the softmax of the logits that `run` writes, in both endpoints' forms.
fn likely(here: &Profiled, server: &Server) {
    let prompt = [1_u32, 20, 33, 47];
    let numbers = prompt.map(|token| token.to_string()).join(" ");
    done(here.run("chat.toml").args(["--no-probe", "--tokens", &numbers, "--logits-prefill", "p.npy"]));
    let bytes = std::fs::read(here.path("p.npy")).unwrap();
    let header = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let (logits, _) = bytes[header..].as_chunks::<4>();
    let logits: Vec<f64> = logits.iter().map(|&b| f64::from(f32::from_le_bytes(b))).collect();
    let last = &logits[logits.len() / prompt.len() * (prompt.len() - 1)..];
    let total: f64 = last.iter().map(|logit| logit.exp()).sum();
    let mut expected: Vec<f64> = last.iter().map(|logit| (logit.exp() / total).ln()).collect();
    expected.sort_by(|a, b| b.total_cmp(a));
    let asked = json!({ "prompt": prompt, "max_tokens": 6, "logprobs": 4 });
    let answer = server.post("/v1/completions", &asked);
    let (text, told) = (&answer["choices"][0]["text"], &answer["choices"][0]["logprobs"]);
    let mut top: Vec<f64> =
        told["top_logprobs"][0].as_object().unwrap().values().map(|v| v.as_f64().unwrap()).collect();
    top.sort_by(|a, b| b.total_cmp(a));
    assert_eq!(top.len(), 4);
    for (found, expected) in top.iter().zip(&expected) {
        assert!((found - expected).abs() < 1e-3, "{found} {expected}");
    }
    assert_eq!(told["token_logprobs"][0].as_f64().unwrap(), top[0], "it takes the likeliest");
    let tokens: Vec<&str> = told["tokens"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
    assert_eq!(tokens.concat(), text.as_str().unwrap());
    let begins: String = tokens[..2].concat();
    assert_eq!(told["text_offset"][2], begins.chars().count());

    let asked = json!({ "messages": said("let"), "max_tokens": 6, "logprobs": true, "top_logprobs": 2 });
    let whole = server.post("/v1/chat/completions", &asked);
    let told = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(told.len(), 6);
    for token in told {
        assert_eq!(token["logprob"], token["top_logprobs"][0]["logprob"], "{token}");
        assert!(token["top_logprobs"][1]["logprob"].as_f64() <= token["logprob"].as_f64(), "{token}");
        assert_eq!(token["bytes"].as_array().unwrap().len(), token["token"].as_str().unwrap().len());
    }
    let mut streamed = asked;
    streamed["stream"] = json!(true);
    let (_, body) = server.send("POST /v1/chat/completions", &[], &streamed.to_string());
    let content = |event: &Value| event["choices"][0]["logprobs"]["content"].as_array().cloned();
    let streamed: Vec<Value> = events(&body).iter().filter_map(content).flatten().collect();
    assert_eq!(&streamed, told);
}

/// A bias forbids or forces a token; penalties of presence and number turn away from what was said, each as far as it is set.
fn biased(server: &Server, prompt: &str) {
    let post = |extra: Value| {
        let mut asked = json!({ "prompt": prompt, "max_tokens": 12, "logprobs": 0 });
        asked.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let answer = server.post("/v1/completions", &asked);
        let tokens = answer["choices"][0]["logprobs"]["tokens"].as_array().unwrap();
        tokens.iter().map(|token| token.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let forced = post(json!({ "logit_bias": { "40": 100 } }));
    assert!(forced.iter().all(|token| *token == forced[0]) && forced.len() == 12, "{forced:?}");
    let times = |told: &[String]| told.iter().filter(|token| **token == forced[0]).count();
    // what a bias forces is let go after it was said so often that the penalties outweigh it
    let said = |presence: f64, number: f64| {
        let mut options = json!({ "logit_bias": { "40": 20 }, "max_tokens": 30 });
        (options["presence_penalty"], options["frequency_penalty"]) = (json!(presence), json!(number));
        times(&post(options))
    };
    let (free, presence, number) = (said(0.0, 0.0), said(2.0, 0.0), said(0.0, 2.0));
    assert!(free >= presence && presence > number && number > 1, "{free} {presence} {number}");
    let plain = post(json!({}));
    let first = post(json!({ "frequency_penalty": 2, "presence_penalty": 2 }));
    assert!(
        plain[0] == first[0] && first.len() == 12,
        "nothing is penalised before it was said: {plain:?} {first:?}"
    );
}

/// A schema as it is asked for.
fn format(schema: &Value) -> Value {
    json!({ "type": "json_schema", "json_schema": { "name": "a", "schema": schema } })
}

/// An answer that must be JSON is, at once and as it comes, whatever the model would rather say; a hostile schema is refused, or
/// enforced within the plan's memory and a bounded time.
fn enforced(server: &Server) {
    let schema = json!({
        "type": "object",
        "properties": { "colour": { "enum": ["red", "green"] }, "count": { "type": "integer", "minimum": 1, "maximum": 99 } },
        "required": ["colour", "count"],
        "additionalProperties": false,
    });
    let format =
        |schema: &Value| json!({ "type": "json_schema", "json_schema": { "name": "a", "schema": schema } });
    for seed in 0..6 {
        let mut asked = json!({
            "messages": said("Tell me all."), "temperature": 1.5, "seed": seed, "n": 2, "response_format": format(&schema),
        });
        let whole = server.post("/v1/chat/completions", &asked);
        for choice in whole["choices"].as_array().unwrap() {
            let answer: Value = serde_json::from_str(choice["message"]["content"].as_str().unwrap()).unwrap();
            assert!(matches!(answer["colour"].as_str(), Some("red" | "green")), "{answer}");
            assert!((1..100).contains(&answer["count"].as_u64().unwrap()), "{answer}");
            assert_eq!((answer.as_object().unwrap().len(), &choice["finish_reason"]), (2, &json!("stop")));
        }
        asked["stream"] = json!(true);
        let (_, body) = server.send("POST /v1/chat/completions", &[], &asked.to_string());
        let of_first = |event: &Value| {
            let choice = &event["choices"][0];
            choice["delta"]["content"].as_str().filter(|_| choice["index"] == 0).map(str::to_owned)
        };
        let streamed: String = events(&body).iter().filter_map(of_first).collect();
        assert_eq!(streamed, whole["choices"][0]["message"]["content"].as_str().unwrap());
    }
    let object =
        json!({ "messages": said("Hi"), "response_format": { "type": "json_object" }, "max_tokens": 30 });
    let answer = server.post("/v1/chat/completions", &object);
    assert!(answer["choices"][0]["message"]["content"].as_str().unwrap().starts_with('{'), "{answer}");

    let keys: Value = (0..400).map(|i| (format!("k{i}"), json!({ "type": "string" }))).collect();
    let words: Vec<String> = (0..1500).map(|i| format!("word{i}")).collect();
    for schema in [
        json!({ "type": "object", "properties": keys }),
        json!({ "enum": words }),
        json!({ "type": "string", "pattern": "^(a|b)*a(a|b){40}$" }),
        json!({ "type": "string", "pattern": "^(((a{50}){50}){50}){50}$" }),
        json!({ "type": "array", "items": { "type": "string" }, "minItems": 1_000_000_000 }),
        json!({ "allOf": [{ "anyOf": [] }, { "anyOf": [] }] }),
        json!({ "type": "string", "format": "no such format" }),
    ] {
        let clock = Instant::now();
        let asked = json!({ "messages": said("Hi"), "response_format": format(&schema), "max_tokens": 20 });
        let (status, body) = server.send("POST /v1/chat/completions", &[], &asked.to_string());
        assert!(matches!(status, 200 | 400 | 413 | 500), "{status} {body}");
        assert!(clock.elapsed() < Duration::from_secs(20), "{schema}: {:?}", clock.elapsed());
    }
}

/// A call that must be is one of a tool that there is, with arguments as its schema says, whatever the model would rather say; the
/// conversation goes on with what the tool said.
fn calls(here: &Profiled, server: &Server) {
    let tool = |name: &str, parameters: Value| json!({ "type": "function", "function": { "name": name, "parameters": parameters } });
    let weather = json!({
        "type": "object",
        "properties": { "city": { "type": "string", "maxLength": 9 }, "days": { "type": "integer", "minimum": 1, "maximum": 7 } },
        "required": ["city", "days"],
        "additionalProperties": false,
    });
    let tools = json!([
        tool("weather", weather),
        tool("now", json!({ "type": "object", "properties": {}, "additionalProperties": false }))
    ]);
    let mut asked = json!({ "messages": said("The weather?"), "tools": tools, "temperature": 1.2 });
    let named = json!({ "type": "function", "function": { "name": "weather" } });
    let mut called = Vec::new();
    for seed in 0..6 {
        (asked["seed"], asked["stream"]) = (json!(seed), json!(false));
        asked["tool_choice"] = if seed % 2 == 0 { named.clone() } else { json!("required") };
        let choice = server.post("/v1/chat/completions", &asked)["choices"][0].clone();
        assert_eq!(
            (&choice["finish_reason"], &choice["message"]["content"]),
            (&json!("tool_calls"), &Value::Null)
        );
        let [call] = &choice["message"]["tool_calls"].as_array().unwrap()[..] else { panic!("{choice}") };
        assert_eq!(call["id"].as_str().unwrap().len(), 9);
        let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
        if call["function"]["name"] == "weather" {
            assert!((1..8).contains(&arguments["days"].as_u64().unwrap()), "{arguments}");
            assert!(arguments["city"].as_str().unwrap().chars().count() < 10, "{arguments}");
        } else {
            assert_eq!((seed % 2, &call["function"]["name"], arguments), (1, &json!("now"), json!({})));
        }
        called.push(call.clone());
        asked["stream"] = json!(true);
        let (_, body) = server.send("POST /v1/chat/completions", &[], &asked.to_string());
        let events = events(&body);
        let streamed: Vec<&Value> = events
            .iter()
            .map(|e| &e["choices"][0]["delta"]["tool_calls"][0])
            .filter(|c| !c.is_null())
            .collect();
        assert!(
            streamed.len() == 1 && streamed[0]["function"] == call["function"] && streamed[0]["index"] == 0,
            "{body}"
        );
        assert!(events.iter().any(|event| event["choices"][0]["finish_reason"] == "tool_calls"), "{body}");
    }
    let told = json!([
        { "role": "user", "content": "The weather?" },
        { "role": "assistant", "content": null, "tool_calls": [called[0]] },
        { "role": "tool", "content": "21 degrees", "tool_call_id": called[0]["id"] },
    ]);
    for choice in ["auto", "none"] {
        let asked = json!({ "messages": told, "tools": [tools[1]], "tool_choice": choice, "max_tokens": 12 });
        let answer = server.post("/v1/chat/completions", &asked);
        assert!(!answer["choices"][0]["message"]["content"].as_str().unwrap().is_empty(), "{answer}");
    }
    // a tool in the formats of other models' templates, whose words are what counts
    let short = json!({
        "properties": { "city": { "type": "string", "maxLength": 9 }, "days": { "type": "integer", "minimum": 1, "maximum": 7 } },
        "required": ["city", "days"],
        "additionalProperties": false,
    });
    for taught in [
        "<tool_call><function=f><parameter=k>",
        "<tool_call><arg_key><arg_value>",
        "<|tool_call_start|>",
        "<|tool_call>call:",
        "[TOOL_CALLS][ARGS]",
    ] {
        let template = format!("{{# {taught} #}}{}", TEMPLATE.replace("<tool_call>", "<call>"));
        std::fs::write(here.path("template.jinja"), template).unwrap();
        let server = Server::start(here, "127.0.0.1:0", &[]);
        let mut asked = json!({ "messages": said("The weather?"), "tools": [tool("weather", short.clone())], "temperature": 1.2, "seed": 2 });
        asked["tool_choice"] = named.clone();
        let choice = server.post("/v1/chat/completions", &asked)["choices"][0].clone();
        let call = &choice["message"]["tool_calls"][0]["function"];
        assert_eq!(
            (&choice["finish_reason"], &call["name"]),
            (&json!("tool_calls"), &json!("weather")),
            "{taught}"
        );
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        assert!((1..8).contains(&arguments["days"].as_u64().unwrap()), "{taught}: {arguments}");
        assert!(arguments["city"].as_str().unwrap().chars().count() < 10, "{taught}: {arguments}");
        asked["stream"] = json!(true);
        let (_, body) = server.send("POST /v1/chat/completions", &[], &asked.to_string());
        let events = events(&body);
        let streamed = events.iter().map(|event| &event["choices"][0]["delta"]["tool_calls"][0]["function"]);
        assert_eq!(streamed.filter(|call| !call.is_null()).collect::<Vec<_>>(), [call], "{taught}");
        server.end();
    }
    std::fs::write(
        here.path("template.jinja"),
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
    )
    .unwrap();
    let without = Server::start(here, "127.0.0.1:0", &[]);
    without.refuses(
        400,
        "POST /v1/chat/completions",
        &[],
        &asked.to_string(),
        "tools are not implemented for this model",
    );
    without.end();
    std::fs::write(here.path("template.jinja"), TEMPLATE).unwrap();
}

/// Anthropic's messages: the same words, blocks as they come, and refusals in its own form.
fn anthropic(server: &Server, prompt: &str, plain: &str) {
    let mut asked = json!({ "max_tokens": 12, "messages": said(prompt), "temperature": 0 });
    let whole = server.post("/v1/messages", &asked);
    let text = whole["content"][0]["text"].as_str().unwrap();
    assert_eq!(text.trim_start(), plain.trim_start());
    assert_eq!((&whole["stop_reason"], &whole["usage"]["output_tokens"]), (&json!("max_tokens"), &json!(12)));
    asked["stream"] = json!(true);
    let (_, body) = server.send("POST /v1/messages", &[], &asked.to_string());
    let named: Vec<(&str, Value)> = body
        .split("\n\n")
        .filter_map(|event| event.strip_prefix("event: ")?.split_once("\ndata: "))
        .map(|(name, data)| (name, serde_json::from_str(data).unwrap()))
        .collect();
    assert!(named.iter().all(|(name, data)| data["type"] == *name), "{body}");
    let mut names: Vec<&str> = named.iter().map(|(name, _)| *name).collect();
    names.dedup();
    assert_eq!(
        names,
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop"
        ]
    );
    let streamed: String = named.iter().filter_map(|(_, data)| data["delta"]["text"].as_str()).collect();
    assert_eq!(streamed, text);
    let (status, body) = server.send("POST /v1/messages", &[], &json!({ "messages": [] }).to_string());
    let error: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (status, &error["type"], &error["error"]["type"]),
        (400, &json!("error"), &json!("invalid_request_error"))
    );
    let (status, body) = server.send("GET /v1/messages", &[], "");
    assert!(status == 405 && body.contains("\"type\":\"error\""), "{status} {body}");
}

/// Many requests wait while one is answered. A client that hangs up gives up its place at once.
fn full(server: &Server) {
    let number = |name: &str| {
        let metrics = server.get("/metrics");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("flashplan_{name} ")));
        line.unwrap().parse::<f64>().unwrap()
    };
    let before = (number("requests_total"), number("refused_total"));
    let many = 30;
    let long =
        json!({ "messages": said("Tell me all."), "stream": true, "temperature": 1.5, "seed": 1, "n": 16 });
    let connect = || {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        let request = server.request("POST /v1/chat/completions", &[], &long.to_string());
        stream.write_all(request.as_bytes()).unwrap();
        stream
    };
    let mut answered = connect();
    answered.read_exact(&mut [0; 400]).unwrap();
    let waiting: Vec<TcpStream> = (0..many).map(|_| connect()).collect();
    let clock = Instant::now();
    while number("queue_requests") < f64::from(many) {
        assert!(clock.elapsed() < Duration::from_secs(20), "they do not wait");
        thread::sleep(Duration::from_millis(5));
    }
    let all = (before.0 + f64::from(many) + 1.0, before.1);
    assert_eq!((number("requests_total"), number("refused_total")), all);
    let answers = number("answer_tokens_total");
    drop(waiting);
    let clock = Instant::now();
    while number("queue_requests") > 0.0 {
        assert!(clock.elapsed() < Duration::from_secs(20), "they keep their places");
        thread::sleep(Duration::from_millis(5));
    }
    // there is room again, and the one that is answered still is
    let next = connect();
    while number("queue_requests") < 1.0 {
        assert!(clock.elapsed() < Duration::from_secs(20), "there is no room");
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(number("answer_tokens_total"), answers, "no answer has ended");
    answered.read_exact(&mut [0; 400]).unwrap();
    drop((answered, next));
    while number("queue_requests") > 0.0 {
        thread::sleep(Duration::from_millis(5));
    }
}

/// The vectors that a server gives.
#[track_caller]
fn vectors(server: &Server, input: &Value) -> Vec<Vec<f32>> {
    let answer = server.post("/v1/embeddings", &json!({ "input": input }));
    let of = |item: &Value| serde_json::from_value(item["embedding"].clone()).unwrap();
    answer["data"].as_array().unwrap().iter().map(of).collect()
}

fn embedded(server: &Server) {
    let source = SourceModel::open("../fixtures/models/oxide-dense.gguf").unwrap();
    let tokenizer = source.tokenizer_data().unwrap().into_tokenizer().unwrap();
    assert!(!tokenizer.adds_eos(), "nothing comes after a text");
    let texts = ["let x = 1", "fn main() { println!(\"Hello\"); }", "x"];
    let tokens = texts.map(|text| tokenizer.encode(text, tokenizer.adds_bos()));
    let expected = tokens.clone().map(|tokens| {
        let (mut slow, mut pooled) = (Reference::new(&source, kernels::best()), Pooled::new(Pooling::Last));
        tokens.iter().for_each(|&token| pooled.add(&slow.hidden(token)));
        pooled.finish()
    });
    let (path, width) = ("/v1/embeddings", source.config().width);
    let answer = server.post(path, &json!({ "input": texts, "model": "oxide-dense" }));
    let count: usize = tokens.iter().map(Vec::len).sum();
    assert_eq!(answer["usage"], json!({ "prompt_tokens": count, "total_tokens": count }));
    assert_eq!((&answer["object"], &answer["model"]), (&json!("list"), &json!("oxide-dense")));
    let found = vectors(server, &json!(texts));
    assert_eq!(found.len(), texts.len());
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found.len(), width);
        let off = compare::largest_difference(found, expected);
        assert!(off < 1e-4, "{off}");
    }
    // equal texts have equal vectors, to the bit, however they are asked for and whatever was asked before
    assert_eq!(vectors(server, &json!(tokens)), found);
    assert_eq!(vectors(server, &json!(tokens[1])), found[1..2]);
    assert_eq!(vectors(server, &json!(texts[1])), found[1..2]);
    let many = vectors(server, &json!(vec![texts[0]; 40]));
    assert!(many.len() == 40 && many.iter().all(|vector| *vector == found[0]));
    let coded =
        server.post(path, &json!({ "input": texts[2], "encoding_format": "base64", "dimensions": width }));
    assert_eq!(coded["data"][0]["embedding"].as_str().unwrap().len(), (4 * width).div_ceil(3) * 4);

    let post = format!("POST {path}");
    for (body, words) in [
        (json!({ "input": "a", "dimensions": 8 }), "`dimensions` is 8"),
        (json!({ "input": "" }), "an empty text"),
        (json!({ "input": [[1], vec![1; 5000]] }), "text 1 has 5000 tokens"),
        (json!({ "input": [999_999] }), "there is no token 999999"),
        (json!({ "input": "a", "stream": true }), "`stream` is not implemented"),
    ] {
        server.refuses(400, &post, &[], &body.to_string(), words);
    }
    let many = json!({ "input": vec!["a"; 2048] });
    server.refuses(413, &post, &[], &many.to_string(), "the vectors may take");
    server.refuses(405, &format!("GET {path}"), &[], "", "does not take GET");
    // nobody waits for the texts of a client that hangs up
    let long = json!({ "input": vec![vec![3; 200]; 150] }).to_string();
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.write_all(server.request(&post, &[], &long).as_bytes()).unwrap();
    thread::sleep(Duration::from_millis(50));
    drop(stream);
    assert_eq!(vectors(server, &json!(texts[0])), found[..1]);
}

fn refusals(server: &Server) {
    let chat = "POST /v1/chat/completions";
    let asks = |key: &str, value: Value| {
        let mut body = json!({ "messages": said("Hi") });
        body[key] = value;
        body.to_string()
    };
    server.refuses(400, chat, &[], &asks("tools", json!([{}])), "`tools`: a tool has no `type`");
    server.refuses(400, chat, &[], &asks("logit_bias", json!({ "999999": 1 })), "there is no token 999999");
    let many = json!({ "messages": said("Hi"), "n": 16, "logprobs": true, "top_logprobs": 20 });
    server.refuses(400, chat, &[], &many.to_string(), "set a smaller `max_tokens`, or ask for fewer");
    server.refuses(400, chat, &[], &asks("tols", json!([])), "`tools` is meant");
    server.refuses(400, chat, &[], &asks("grammar", json!("root")), "`grammar` is not implemented");
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
    let long = json!({ "prompt": vec![1; 5_000] }).to_string();
    server.refuses(400, "POST /v1/completions", &[], &long, "maximum context length is");
    let (_, answer) = server.send("POST /v1/completions", &[], &long);
    assert!(answer.contains("\"code\":\"context_length_exceeded\""), "{answer}");
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
        for client in 0..30 {
            let (prompt, plain) = prompts[client % 2];
            scope.spawn(move || {
                let asked = json!({ "messages": said(prompt), "max_tokens": 12 });
                let answer = server.post("/v1/chat/completions", &asked);
                let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
                assert_eq!(content.trim_start(), plain.trim_start());
            });
        }
    });
}

/// A flood of questions leaves time for an answer, and for the request to end.
fn flood(server: &Server, prompt: &str) {
    let (ends, question) =
        (AtomicBool::new(false), json!({ "content": "let x = 1; ".repeat(700), "with_pieces": true }));
    let limit = Duration::from_secs(30);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let clock = Instant::now();
                while !ends.load(Ordering::Relaxed) && clock.elapsed() < limit {
                    server.post("/tokenize", &question);
                }
            });
        }
        thread::sleep(Duration::from_millis(200));
        let clock = Instant::now();
        server.post("/v1/completions", &json!({ "prompt": prompt, "max_tokens": 12 }));
        ends.store(true, Ordering::Relaxed);
        assert!(clock.elapsed() < limit / 2, "{:?}", clock.elapsed());
    });
}

/// Where others can reach it there is a key, and who has it is answered.
fn keyed(here: &Profiled) {
    let said = refused(1, here.run("chat.toml").args(["--no-probe", "--serve", "0.0.0.0:0"]));
    assert!(said.contains("lets everyone in") && said.contains("--api-key-file"), "{said}");
    let said = refused(1, here.run("chat.toml").args(["--no-probe", "--serve", "--api-key-file", "none"]));
    assert!(said.contains("--api-key-file none: there is no such file; make one with the key"), "{said}");
    std::fs::write(here.path("key"), "short\n").unwrap();
    let said = refused(1, here.run("chat.toml").args(["--no-probe", "--serve", "--api-key-file", "key"]));
    assert!(said.contains("8 or more printable characters"), "{said}");
    std::fs::write(here.path("key"), "correct-horse-battery\n").unwrap();
    let server = Server::start(here, "127.0.0.1:0", &["--api-key-file", "key"]);
    server.refuses(401, "GET /v1/models", &[], "", "the key is missing or wrong");
    server.refuses(401, "GET /v1/models", &[("authorization", "Bearer wrong")], "", "missing or wrong");
    for header in [("authorization", "Bearer correct-horse-battery"), ("x-api-key", "correct-horse-battery")]
    {
        let (status, _) = server.send("GET /v1/models", &[header], "");
        assert_eq!(status, 200, "{header:?}");
    }
    server.refuses(401, "POST /v1/messages", &[("x-api-key", "wrong")], "", "the key is missing or wrong");
    server.get("/health");
    // the words of headers in any case, and the origin of a proxy that ends TLS
    let key = ("authorization", "bearer correct-horse-battery");
    let origin = format!("https://{}", server.address);
    let headers = [key, ("content-type", "application/JSON"), ("origin", origin.as_str())];
    let (status, said) = server.send("POST /tokenize", &headers, r#"{"content": "a"}"#);
    assert_eq!(status, 200, "{said}");
    let refused = || {
        let (_, metrics) = server.send("GET /metrics", &[key], "");
        let number = |name: &str| -> f64 {
            let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("flashplan_{name} ")));
            line.unwrap().parse().unwrap()
        };
        // nothing has been answered yet
        assert!(number("memory_peak_bytes") > 0.0, "{metrics}");
        number("refused_total")
    };
    let before = refused();
    for (head, status) in [("GET /%ff", 404), ("GET /v1/models/%ff", 400), ("PUT /v1/models", 405)] {
        server.refuses(status, head, &[key], "", "");
    }
    assert_eq!(refused(), before + 3.0);
    server.end();
}
