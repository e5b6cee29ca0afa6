//! The whole process stays below the plan's limit, whatever it reads.
//!
//! A control group measures the peak where one can be made, and the process's own figures everywhere.
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use bench::cgroup::{ControlGroup, Parent};
use bench::page_cache;
use serde_json::{Value, json};
use skipped::skipped;

use crate::programs;
use crate::programs::{Profiled, TEMPLATE, text};

/// More than any limit here: the group only counts then.
const UNLIMITED: u64 = 4 << 30;

/// A group that counts, and kills what is over the limit.
fn group(limit: u64) -> Option<ControlGroup> {
    let Some(parent) = Parent::find(None) else {
        skipped("control groups", "none can be made here: only the process's own figures are looked at");
        return None;
    };
    Some(parent.group(limit).unwrap())
}

/// A command that enters the group before it is itself.
fn entering(group: Option<&ControlGroup>, command: &Command) -> Command {
    let Some(group) = group else { panic!("there is one") };
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo $$ >\"$1\" || exit 1; shift; exec \"$@\"", "sh"]).arg(group.processes());
    shell.arg(command.get_program()).args(command.get_args());
    command.get_current_dir().into_iter().for_each(|folder| _ = shell.current_dir(folder));
    shell
}

#[track_caller]
fn is_under(group: &ControlGroup, limit: u64, what: &str) {
    let counted = group.counted();
    assert_eq!(counted.oom_kills.unwrap_or(0), 0, "{what}");
    if let Some(peak) = counted.peak_bytes {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        assert!(peak <= limit, "{what}: {:.2} of {:.2} MiB", mib(peak), mib(limit));
    }
}

/// Runs a command in a group that only counts, for some seconds at most; what it said.
fn counted(group: Option<&ControlGroup>, command: &mut Command, input: &str, most: Duration) -> Output {
    let mut command = match group {
        Some(_) => entering(group, command),
        None => {
            let mut same = Command::new(command.get_program());
            same.args(command.get_args()).current_dir(command.get_current_dir().unwrap());
            same
        }
    };
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writes = thread::spawn(move || _ = stdin.write_all(input.as_bytes()));
    let (pid, clock) = (rustix::process::Pid::from_child(&child), Instant::now());
    let ends = thread::spawn(move || child.wait_with_output().unwrap());
    while !ends.is_finished() && clock.elapsed() < most {
        thread::sleep(Duration::from_millis(10));
    }
    if !ends.is_finished() {
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }
    let output = ends.join().unwrap();
    writes.join().unwrap();
    output
}

#[test]
fn texts_larger_than_the_limit_are_refused_or_read_in_pieces() {
    let here = Profiled::kept("oxide-dense");
    let plan = here.plan("plan.toml", &["--mem", &here.tight(&[])]);
    let limit = plan.memory.limit_bytes;
    let large = "let x = 1;\n".repeat(3 << 20);
    std::fs::write(here.path("large.txt"), &large).unwrap();
    std::fs::write(here.path("template.jinja"), TEMPLATE).unwrap();
    let content = "x".repeat(15 << 20);
    let talk = json!({ "schema": 1, "model": "m", "messages": [
        { "role": "user", "content": content }, { "role": "assistant", "content": "b" },
    ] });
    std::fs::write(here.path("talk.json"), talk.to_string()).unwrap();
    let chat = ["--chat", "--template", "template.jinja"];
    let long = Duration::from_secs(300);
    for (arguments, input, most, says) in [
        (&["--prompt-file", "large.txt"][..], "", long, "large.txt has more than 8192 bytes"),
        (&["--prompt", "-"], &*large, long, "standard input has more than 8192 bytes"),
        (&["--chat", "--template", "large.txt"], "", long, "large.txt has more than 65536 bytes"),
        (&chat, "/load talk.json\n", long, "talk.json has more than 81920 bytes"),
        // hours of it are not waited for
        (&["--score", "large.txt"], "", Duration::from_secs(4), "stopped on request"),
        (&["--score", "-"], &*large, Duration::from_secs(4), "stopped on request"),
    ] {
        let group = group(UNLIMITED);
        let output =
            counted(group.as_ref(), here.run("plan.toml").arg("--no-probe").args(arguments), input, most);
        let said = text(&output.stderr);
        assert!(said.contains(says), "{arguments:?}: {said}");
        group.iter().for_each(|group| is_under(group, limit, &format!("{arguments:?}")));
    }
}

/// A server in a group with the plan's limit.
struct Server {
    child: Child,
    address: String,
    group: Option<ControlGroup>,
}

impl Server {
    fn start(here: &Profiled, limit: u64) -> Self {
        let mut run = here.run("plan.toml");
        run.args(["--no-probe", "--template", "template.jinja", "--serve", "127.0.0.1:0"]);
        let group = group(limit);
        let mut run = if group.is_some() { entering(group.as_ref(), &run) } else { run };
        let mut child = run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let listens = lines.find(|line| line.starts_with("open http://")).expect("it listens");
        let address =
            listens.strip_prefix("open http://").unwrap().split([' ', '/']).next().unwrap().to_owned();
        thread::spawn(move || lines.for_each(drop));
        Self { child, address, group }
    }

    fn send(&self, head: &str, body: &str) -> Option<TcpStream> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        let head = format!(
            "{head} HTTP/1.0\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all((head + body).as_bytes()).ok()?;
        Some(stream)
    }

    /// The status and the body of an answer; nothing if there is none.
    fn ask(&self, head: &str, body: &str) -> Option<(u16, String)> {
        let mut answer = String::new();
        self.send(head, body)?.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    }

    /// The answer to a good request, which is repeated while the server is full.
    #[track_caller]
    fn completes(&self) -> Value {
        let body = json!({ "prompt": "let x = ", "max_tokens": 12 }).to_string();
        let clock = Instant::now();
        loop {
            match self.ask("POST /v1/completions", &body) {
                Some((200, answer)) => {
                    return serde_json::from_str::<Value>(&answer).unwrap()["choices"].clone();
                }
                other => assert!(clock.elapsed() < Duration::from_secs(120), "{other:?}"),
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Whether its memory is under the limit so far.
    #[track_caller]
    fn is_under(&mut self, limit: u64, what: &str) {
        assert!(self.child.try_wait().unwrap().is_none(), "it was killed by {what}");
        self.group.iter().for_each(|group| is_under(group, limit, what));
        let (_, metrics) = self.ask("GET /metrics", "").unwrap();
        let metric = |name: &str| -> f64 {
            let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("flashplan_{name} ")));
            line.unwrap_or_else(|| panic!("{name}: {metrics}")).parse().unwrap()
        };
        let peak = metric("memory_peak_bytes");
        assert!(peak <= limit as f64, "{what}: {peak} of {limit} bytes");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _status = self.child.wait();
    }
}

#[test]
fn a_server_holds_no_more_than_its_limit_whoever_asks_for_what() {
    let here = Profiled::kept("oxide-dense");
    std::fs::write(here.path("template.jinja"), TEMPLATE).unwrap();
    let plan = here.plan("plan.toml", &["--mem", &here.tight(&[])]);
    let limit = plan.memory.limit_bytes;
    let most = plan.context.tokens as usize * 8 + (64 << 10) - 100;
    let mut server = Server::start(&here, limit);
    let right = server.completes();
    server.is_under(limit, "a request");

    let of = |one: &str| vec![one; most / (one.len() + 1)].join(",");
    let ab = "ab".repeat(most / 2);
    let bodies = [
        ("POST /v1/completions", format!("{{\"prompt\":[{}]}}", of("[1]"))),
        ("POST /v1/embeddings", format!("{{\"input\":[{}]}}", of("[1]"))),
        ("POST /v1/completions", format!("{{\"prompt\":[{}]}}", of("1"))),
        ("POST /v1/chat/completions", format!("{{\"messages\":[{}]}}", of("{}"))),
        ("POST /v1/completions", format!("{{\"prompt\":\"{ab}\"}}")),
        (
            "POST /v1/chat/completions",
            format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{ab}\"}}]}}"),
        ),
        ("POST /v1/completions", format!("{{\"prompt\":\"{}\"}}", "ab".repeat(4000))),
    ];
    for (head, body) in &bodies {
        thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    for _ in 0..3 {
                        if let Some((status, answer)) = server.ask(head, body) {
                            assert!([400, 413, 503].contains(&status), "{status} {answer}");
                        }
                    }
                });
            }
        });
        server.is_under(limit, &body[..30]);
    }
    // heads without an end, and answers that nobody reads
    let heads: Vec<TcpStream> = (0..64)
        .filter_map(|_| {
            let mut stream = TcpStream::connect(&server.address).ok()?;
            let _refused =
                stream.write_all(format!("GET / HTTP/1.1\r\nx: {}", "a".repeat(31_000)).as_bytes());
            Some(stream)
        })
        .collect();
    assert_eq!(server.completes(), right);
    server.is_under(limit, "heads");
    drop(heads);
    let unread: Vec<Option<TcpStream>> = (0..24)
        .map(|at| {
            let asked = json!({ "prompt": "a", "max_tokens": 200, "n": 1 + at % 4, "stream": at % 2 == 0, "temperature": 1.5,
                "seed": at, "logit_bias": { "2": -100 }, "logprobs": if at % 3 == 0 { json!(2) } else { Value::Null } });
            server.send("POST /v1/completions", &asked.to_string())
        })
        .collect();
    thread::sleep(Duration::from_secs(2));
    server.is_under(limit, "answers that nobody reads");
    drop(unread);
    assert_eq!(server.completes(), right, "what is right stays so");
    server.is_under(limit, "all of it");
}

/// A copy of the program without debug sections and with nothing in the page cache; `None` where that cannot be.
fn cold_program(here: &Profiled) -> Option<Command> {
    let path = here.path("run-cold");
    let stripped =
        Command::new("strip").arg("-o").arg(&path).arg(programs::program("run").get_program()).status();
    let cold =
        || stripped.is_ok_and(|status| status.success()) && page_cache::forget(Path::new(&path)).is_ok();
    cold().then(|| {
        let mut command = Command::new(&path);
        command.current_dir(here.folder.path());
        command
    })
}

#[test]
fn a_cold_start_holds_no_more_than_the_limit() {
    let here = Profiled::kept("oxide-dense");
    let plan = here.plan("plan.toml", &["--mem", &here.tight(&[])]);
    let limit = plan.memory.limit_bytes;
    let prompt = "let x = 1; ".repeat(20);
    let logits = ["--prompt", &prompt, "--logits", "logits.npy"];
    // the second file of logits takes the place of the first, whose kind is read
    for arguments in [&["--prompt", &prompt, "-n", "8"][..], &logits, &logits] {
        let (Some(group), Some(mut run)) = (group(UNLIMITED), cold_program(&here)) else {
            return skipped("cold starts", "they need control groups, and `strip`");
        };
        let container = here.path("oxide-dense.bundle");
        page_cache::forget(&container).unwrap();
        run.args(["--plan", "plan.toml", "--no-probe"]).args(arguments);
        let output = counted(Some(&group), &mut run, "", Duration::from_secs(300));
        assert!(output.status.success(), "{}", text(&output.stderr));
        is_under(&group, limit, &format!("{arguments:?}"));
    }
}
