//! A conversation with a fixture model: through pipes, and at a terminal.
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::programs::{Profiled, TEMPLATE, done, program, refused, text};

/// The output of a conversation.
struct Talk {
    /// Standard output: answers alone.
    said: String,
    /// Standard error, line by line.
    told: Vec<String>,
}

impl Talk {
    /// The lines that sum up answers.
    fn sums(&self) -> Vec<&str> {
        self.told.iter().map(String::as_str).filter(|line| line.starts_with('[')).collect()
    }

    /// Tokens of the prompt that were read for each answer, and tokens that the context held after it.
    fn read_and_held(&self) -> Vec<(usize, usize)> {
        let number = |text: &str| text.split(' ').next().unwrap().parse().unwrap();
        let of = |line: &&str| (number(&line[1..]), number(line.split("context ").nth(1).unwrap()));
        self.sums().iter().map(of).collect()
    }

    #[track_caller]
    fn tells(&self, part: &str) {
        assert!(self.told.iter().any(|line| line.contains(part)), "{part}: {:#?}", self.told);
    }
}

fn talk(here: &Profiled, options: &[&str], typed: &str) -> Talk {
    let mut run = here.run("chat.toml");
    run.args(["--chat", "--no-probe", "--template", "template.jinja"]).args(options);
    // compared with `run`, which takes the likeliest token where nothing is said
    if !options.contains(&"--temp") {
        run.args(["--temp", "0"]);
    }
    let mut child = run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(typed.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let (said, told) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{said}{told}");
    Talk { said, told: told.lines().map(str::to_owned).collect() }
}

#[test]
fn a_conversation_is_had_through_pipes_and_at_a_terminal() {
    let here = Profiled::kept("oxide-dense");
    std::fs::write(here.path("template.jinja"), TEMPLATE).unwrap();
    let tight = here.tight(&[]);
    here.plan("chat.toml", &["--mem", &tight]);
    goes_on(&here);
    loaded(&here);
    lasts(&here);
    refusals(&here);
    interrupted(&here);
    drafted(&here);
}

/// With drafts the same is said, and as much of it is held.
fn drafted(here: &Profiled) {
    let typed = format!("{FIRST}\n{FIRST}; {FIRST}; {FIRST};\n/reset\n{FIRST}\n");
    let talks = |plan: &[&str]| {
        here.plan("chat.toml", &[&["--mem", "40M", "--level", "exact-gate"], plan].concat());
        [&["-n", "40"][..], &["-n", "30", "--temp", "0.7", "--repeat-penalty", "1.1", "--seed", "5"]]
            .map(|options| talk(here, options, &typed))
    };
    let ([greedy, drawn], with) = (talks(&[]), talks(&["--speculate", "5"]));
    for (without, with) in [greedy, drawn].iter().zip(&with) {
        assert_eq!(with.said, without.said);
        assert_eq!(with.read_and_held(), without.read_and_held());
    }
}

const FIRST: &str = "let x = 1";

/// It goes on where it was, and says what the model says.
fn goes_on(here: &Profiled) {
    let first = FIRST;
    // what the model says after the same text without any chat
    let prompt = format!("user: {first}\nassistant:");
    let plain = text(&done(here.run("chat.toml").args(["--prompt", &prompt, "-n", "12"])).stdout);
    let plain = plain.strip_prefix(&prompt).unwrap().strip_suffix('\n').unwrap().trim_start();

    let typed = format!("{first}\nfn main\\\n() {{\n/save talk.json\n/stats\n/plan\n\n/reset\n{first}\n");
    let one = talk(here, &["-n", "12"], &typed);
    assert!(one.said.starts_with(&format!("{plain}\n")), "{plain:?}: {}", one.said);
    // every answer from the same beginning is the same, whatever the context held meanwhile
    assert!(one.said.ends_with(&format!("{plain}\n")), "{plain:?}: {}", one.said);
    let (read, held): (Vec<usize>, Vec<usize>) = one.read_and_held().into_iter().unzip();
    assert_eq!(read.len(), 3, "{:#?}", one.told);
    // the second turn pays for itself and for the token that was said last, not for the first
    assert!(read[1] < read[0] + 12 && held[1] > held[0] + read[1], "{:#?}", one.told);
    // the same words again read only what comes before the answer anew: nothing but the last token of the prompt
    assert_eq!((read[2], held[2]), (1, held[0]), "{:#?}", one.told);
    for part in ["Cut off: the limit of -n.", "tok/s (planned ", "--seed 0", "2 answers", "chat.toml"] {
        one.tells(part);
    }
    // the plan's report of the last answer, its memory within the plan
    one.tells("peak memory");
    assert!(!one.told.iter().any(|line| line.contains("warning")), "{:#?}", one.told);

    let saved: Value = serde_json::from_slice(&std::fs::read(here.path("talk.json")).unwrap()).unwrap();
    let messages = saved["messages"].as_array().unwrap();
    assert_eq!(saved["model"], "oxide-dense");
    assert_eq!(messages[0], json!({"role": "user", "content": first}));
    assert_eq!(messages[1], json!({"role": "assistant", "content": plain}));
    assert_eq!(messages[2], json!({"role": "user", "content": "fn main\n() {"}));
    assert_eq!(messages.len(), 4);
    assert!(one.said.contains(messages[3]["content"].as_str().unwrap()));
}

/// A conversation that was saved goes on, and one that is damaged is refused and changes nothing.
fn loaded(here: &Profiled) {
    std::fs::write(here.path("bad.json"), "{}").unwrap();
    let typed = "/load talk.json\n/load bad.json\n/load none.json\nAnd?\n/system Be kind.\n/save more.json\n";
    let more = talk(here, &["-n", "4"], typed);
    more.tells("A conversation with 2 answers is loaded.");
    more.tells("bad.json is no saved conversation: missing field `schema`");
    more.tells("cannot read none.json");
    let saved: Value = serde_json::from_slice(&std::fs::read(here.path("more.json")).unwrap()).unwrap();
    let said: Vec<&str> =
        saved["messages"].as_array().unwrap().iter().map(|m| m["content"].as_str().unwrap()).collect();
    assert_eq!((said.len(), said[0], said[1], said[5]), (7, "Be kind.", FIRST, "And?"), "{saved}");
    // draws are those of the seed
    // another answer takes the place of the last
    let typed = "/regenerate\nfn\n/regenerate\n/save again.json\n";
    let again = talk(here, &["-n", "4", "--temp", "1.5"], typed);
    again.tells("there is no answer yet");
    assert_eq!(again.sums().len(), 2, "{:#?}", again.told);
    let saved: Value = serde_json::from_slice(&std::fs::read(here.path("again.json")).unwrap()).unwrap();
    assert_eq!(saved["messages"].as_array().unwrap().len(), 2, "{saved}");
    assert!(again.said.trim_end().ends_with(saved["messages"][1]["content"].as_str().unwrap().trim()));
    // a chat that is told nothing samples
    let mut run = here.run("chat.toml");
    run.args(["--chat", "--template", "template.jinja"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut usual = run.stdout(Stdio::null()).spawn().unwrap();
    usual.stdin.take().unwrap().write_all(b"/stats\n").unwrap();
    let told = text(&usual.wait_with_output().unwrap().stderr);
    assert!(told.contains("--temp 0.7 --top-k 40 --top-p 0.95 --min-p 0.05"), "{told}");
    let drawn = |seed: &str| talk(here, &["-n", "12", "--temp", "1.5", "--seed", seed], "fn\n").said;
    assert_eq!(drawn("7"), drawn("7"));
    assert_ne!(drawn("7"), drawn("8"));
}

/// With `--sessions`, a conversation after a restart reads few tokens again, and gets the same answers.
fn lasts(here: &Profiled) {
    let typed = format!("{}\n", "let x = 1; ".repeat(12));
    let plain = talk(here, &["-n", "4"], &typed);
    let sessions = ["-n", "4", "--sessions", "prompts"];
    let [first, second] = [(); 2].map(|()| talk(here, &sessions, &typed));
    assert!(
        plain.said == first.said && first.said == second.said,
        "{} {} {}",
        plain.said,
        first.said,
        second.said
    );
    let read = |talk: &Talk| talk.read_and_held()[0].0;
    assert!(read(&first) == read(&plain) && read(&second) < 32 && read(&first) >= 32, "{:#?}", second.told);
    assert!(!second.told.iter().any(|line| line.contains("warning")), "{:#?}", second.told);
}

/// A command that cannot be done is refused with a remedy, and the conversation goes on.
fn refusals(here: &Profiled) {
    let long = "let x = 1; ".repeat(100);
    let typed = format!("let x\n{long}\n/halp\n/save\n/system {long}\n/save kept.json\nlet y\n//\n");
    let typed = typed + &format!("{}\n", long.repeat(10));
    let talk = talk(here, &["-n", "4", "--system", "Rust."], &typed);
    talk.tells(
        "a message has more than 8192 bytes, which the plan's context has no room for; say it shorter",
    );
    talk.tells("tokens, and the plan's context has room for 256 tokens with the answer; say it shorter, begin anew with /reset, ");
    talk.tells("there is no command /halp; /help lists those there are");
    talk.tells("/save needs a file");
    assert_eq!(talk.sums().len(), 3, "{:#?}", talk.told);
    let kept: Value = serde_json::from_slice(&std::fs::read(here.path("kept.json")).unwrap()).unwrap();
    let said: Vec<&str> =
        kept["messages"].as_array().unwrap().iter().map(|m| m["content"].as_str().unwrap()).collect();
    assert_eq!((said.len(), said[0], said[1]), (3, "Rust.", "let x"), "{kept}");

    let told = refused(1, here.run("chat.toml").arg("--chat"));
    assert!(told.contains("oxide-dense has no chat template: name one with --template FILE"), "{told}");
    std::fs::write(
        here.path("endless.jinja"),
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    )
    .unwrap();
    let told = refused(1, here.run("chat.toml").args(["--chat", "--template", "endless.jinja"]));
    assert!(told.contains("does more than a conversation needs"), "{told}");
    let told = refused(1, here.run("chat.toml").args(["--system", "x"]));
    assert!(told.contains("--chat"), "{told}");
    let told = refused(1, here.run("chat.toml").args(["--chat", "--json"]));
    assert!(told.contains("cannot be used with"), "{told}");
}

/// A chat at a terminal of its own, which `script` makes.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    shown: Arc<Mutex<String>>,
    /// Bytes of the output that were waited for.
    seen: usize,
}

impl Terminal {
    fn new(here: &Profiled, state: &Path, options: &str) -> Self {
        let run = program("run").get_program().to_str().unwrap().to_owned();
        // no shell may wait for it: one that is interrupted itself ends with a signal's code
        let run =
            format!("exec {run} --plan chat.toml --chat --no-probe --template template.jinja {options}");
        let mut script = Command::new("script");
        script.args(["-q", "-e", "-f", "-c", &run, "/dev/null"]).current_dir(here.folder.path());
        script.env("XDG_STATE_HOME", state).env("TERM", "xterm");
        let mut child = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (keys, mut screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let shown = Arc::new(Mutex::new(String::new()));
        let kept = Arc::clone(&shown);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                kept.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        Self { child, keys, shown, seen: 0 }
    }

    fn types(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// Waits until one of the texts is shown after all that has been waited for; which.
    #[track_caller]
    fn waits(&mut self, texts: &[&str]) -> usize {
        let clock = Instant::now();
        loop {
            let shown = self.shown.lock().unwrap().clone();
            let found = texts
                .iter()
                .enumerate()
                .filter_map(|(i, text)| Some((shown[self.seen..].find(text)? + text.len(), i)));
            if let Some((end, which)) = found.min() {
                self.seen += end;
                return which;
            }
            assert!(
                clock.elapsed() < Duration::from_secs(60),
                "{texts:?} never came: {:?}",
                &shown[self.seen..]
            );
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// The program: the last process in the chain of `script`.
    fn program(&self) -> Pid {
        let mut id = self.child.id();
        loop {
            let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
            match children.split_whitespace().next() {
                Some(child) => id = child.parse().unwrap(),
                None => return Pid::from_raw(id.cast_signed()).unwrap(),
            }
        }
    }

    fn ends(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

/// At a terminal Ctrl-C stops the answer and not the program.
fn interrupted(here: &Profiled) {
    let state = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::new(here, state.path(), "--temp 2");
    terminal.waits(&["/help lists"]);
    terminal.waits(&["> "]);
    // an answer may end before it is stopped
    let interrupted = (0..20).any(|_| {
        terminal.types("let x\r");
        terminal.waits(&["let x"]);
        terminal.waits(&["\n"]);
        thread::sleep(Duration::from_millis(30));
        terminal.types("\u{3}");
        let stopped = terminal.waits(&["Interrupted.", "Ctrl-C once more", "is full"]) == 0;
        if !stopped {
            terminal.types("/reset\r");
            terminal.waits(&["begins anew"]);
        }
        terminal.waits(&["> "]);
        stopped
    });
    assert!(interrupted, "{}", terminal.shown.lock().unwrap());
    // it goes on, with a line that was cleared before
    terminal.types("never\u{3}");
    terminal.waits(&["Ctrl-C once more"]);
    terminal.waits(&["> "]);
    terminal.types("/stats\r");
    terminal.waits(&["conversation"]);
    terminal.waits(&["> "]);
    terminal.types("\u{1b}[A"); // what was typed last
    terminal.waits(&["/stats"]);
    terminal.types("\u{3}");
    terminal.waits(&["> "]);
    terminal.types("\u{4}");
    assert_eq!(terminal.ends(), Some(0));

    let history = state.path().join("flashplan/chat-history");
    assert_eq!(history.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let lines = std::fs::read_to_string(history).unwrap();
    assert!(lines.contains("let x\n") && lines.contains("/stats\n") && !lines.contains("never"), "{lines}");

    // twice is enough, and what was typed before is there
    let mut terminal = Terminal::new(here, state.path(), "-n 4");
    terminal.waits(&["> "]);
    terminal.types("\u{1b}[A");
    terminal.waits(&["/stats"]);
    terminal.types("\u{3}");
    terminal.waits(&["Ctrl-C once more"]);
    terminal.waits(&["> "]);
    terminal.types("\u{3}");
    assert_eq!(terminal.ends(), Some(0));
    // whoever ends it from outside gets the terminal back as it was
    let mut terminal = Terminal::new(here, state.path(), "-n 4");
    terminal.waits(&["> "]);
    kill_process(terminal.program(), Signal::TERM).unwrap();
    terminal.waits(&["\u{1b}[?2004l"]);
    terminal.waits(&["stopped on request"]);
    assert_eq!(terminal.ends(), Some(1));
    // and during an answer, too: only Ctrl-C stops the answer alone
    let mut terminal = Terminal::new(here, state.path(), "--temp 2");
    terminal.waits(&["> "]);
    terminal.types("let x\r");
    terminal.waits(&["let x"]);
    terminal.waits(&["\n"]);
    thread::sleep(Duration::from_millis(30));
    kill_process(terminal.program(), Signal::TERM).unwrap();
    terminal.waits(&["stopped on request"]);
    assert_eq!(terminal.ends(), Some(1));
}
