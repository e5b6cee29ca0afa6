//! `flashplan` as a user runs it, with a fixture model, and with stand-ins for the three programs where something goes wrong.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

const FLASHPLAN: &str = env!("CARGO_BIN_EXE_flashplan");

/// A user's folders, and the programs that this user has.
struct User {
    folder: TempDir,
    flashplan: PathBuf,
}

impl User {
    /// With the real programs, which are built if they are not there.
    fn with_programs() -> Self {
        let folder = Path::new(FLASHPLAN).parent().unwrap();
        if ["profile", "plan", "run"].iter().any(|name| !folder.join(name).exists()) {
            let mut cargo = Command::new(env!("CARGO"));
            cargo
                .args(["build", "--locked", "--bins"])
                .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
            for (name, _) in std::env::vars_os() {
                let name = name.to_string_lossy();
                if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
                    cargo.env_remove(&*name);
                }
            }
            if folder.ends_with("release") {
                cargo.arg("--release");
            }
            assert!(cargo.status().unwrap().success(), "the programs are built");
        }
        Self {
            folder: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap(),
            flashplan: FLASHPLAN.into(),
        }
    }

    /// With scripts in place of the programs: each is a shell script behind `--version`.
    fn with_scripts(scripts: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let programs = folder.path().join("bin");
        fs::create_dir(&programs).unwrap();
        let flashplan = programs.join("flashplan");
        fs::copy(FLASHPLAN, &flashplan).unwrap();
        for (name, script) in scripts {
            let version = env!("CARGO_PKG_VERSION");
            let text =
                format!("#!/bin/sh\n[ \"$1\" = --version ] && echo '{name} {version}' && exit 0\n{script}\n");
            fs::write(programs.join(name), text).unwrap();
            fs::set_permissions(programs.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        Self { folder, flashplan }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.flashplan);
        command.args(arguments).current_dir(self.folder.path()).stdin(Stdio::null());
        command
            .env("XDG_DATA_HOME", self.path("data"))
            .env("HOME", self.folder.path())
            .env("PATH", "/usr/bin:/bin");
        // profiles of this user wait for nobody else's
        command.env("TMPDIR", self.folder.path());
        command
    }

    #[track_caller]
    fn done(&self, arguments: &[&str]) -> (String, String) {
        let output = self.command(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}\n{}\n{}", text(&output.stdout), text(&output.stderr));
        (text(&output.stdout), text(&output.stderr))
    }

    #[track_caller]
    fn refused(&self, code: i32, arguments: &[&str]) -> String {
        let Output { status, stdout, stderr } = self.command(arguments).output().unwrap();
        assert_eq!(status.code(), Some(code), "{arguments:?}\n{}\n{}", text(&stdout), text(&stderr));
        text(&stderr)
    }

    /// The folder of the only model.
    fn model_folder(&self) -> PathBuf {
        let only = |folder: PathBuf| {
            let folders = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
            let folders: Vec<_> = folders.filter(|path| path.is_dir()).collect();
            let [only] = &folders[..] else { panic!("{folders:?}") };
            only.clone()
        };
        only(only(self.path("data/flashplan")))
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Programs that a text says were called, in order.
fn called(said: &str) -> Vec<&str> {
    let commands = said.lines().filter_map(|line| line.strip_prefix("$ "));
    commands.filter_map(|command| command.split(' ').next()?.rsplit('/').next()).collect()
}

#[test]
fn one_command_leads_from_a_file_to_its_text_and_the_next_one_starts_at_once() {
    let user = User::with_programs();
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/models/oxide-dense.gguf");
    fs::copy(fixture, user.path("model.gguf")).unwrap();
    let run = |mem: &str| {
        user.done(&["run", "model.gguf", "--mem", mem, "--prompt", "fn main", "-n", "8", "--", "--no-probe"])
    };

    let (first, said) = run("40M");
    assert_eq!(called(&said), ["profile", "profile", "plan", "run"], "{said}");
    assert!(!first.is_empty() && !first.contains('$'), "text alone: {first}");
    let folder = user.model_folder();
    for name in ["device.toml", "model.toml", "plan-40M.toml", "source.toml"] {
        assert!(folder.join(name).exists(), "{name}");
    }

    // a printed command is one that can be copied
    let line = said.lines().rfind(|line| line.starts_with("$ ")).unwrap().trim_start_matches("$ ");
    let copied = Command::new("sh").args(["-c", line]).current_dir(user.folder.path()).output().unwrap();
    assert_eq!(text(&copied.stdout), first, "{line}");

    let (again, said) = run("40M");
    assert_eq!((called(&said), &again), (vec!["run"], &first), "{said}");
    let begun = Instant::now();
    let (other, said) = run("30M");
    assert_eq!((called(&said), &other), (vec!["plan", "run"], &first), "{said}");
    assert!(begun.elapsed() < Duration::from_secs(30), "another limit is planned in seconds");

    // all verbs
    let (answers, said) = user.done(&[
        "bench",
        "model.gguf",
        "--mem",
        "40M",
        "--",
        "--json",
        "--no-probe",
        "--tokens",
        "1 2 3 4",
    ]);
    assert_eq!(called(&said), ["run"], "{said}");
    let figures: Value = serde_json::from_str(&answers).unwrap();
    assert!(figures["decode_tokens_per_second"].as_f64().unwrap() > 0.0, "{answers}");
    let template = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/clients/plain.jinja");
    let chat = ["chat", "model.gguf", "--mem", "40M", "--", "--template", template, "-n", "4", "--no-probe"];
    let mut chat = user
        .command(&chat)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut chat.stdin.take().unwrap(), b"fn main\n").unwrap();
    assert!(!chat.wait_with_output().unwrap().stdout.is_empty(), "an answer");
    let (listed, _) = user.done(&["list"]);
    assert!(
        listed.contains("model.gguf") && listed.contains("40.0 MiB") && listed.contains("30.0 MiB"),
        "{listed}"
    );
    let listed: Value = serde_json::from_str(&user.done(&["list", "--json"]).0).unwrap();
    assert_eq!(listed["models"][0]["plans"].as_array().unwrap().len(), 2, "{listed}");
    let (doctor, _) = user.done(&["doctor"]);
    assert!(doctor.contains("measured: plans may use"), "{doctor}");
    served(&user);
    learns(&user);

    // a plan that cannot be has the planner's code, and its words
    let said = user.refused(2, &["run", "model.gguf", "--mem", "40M", "--min-speed", "1e6", "--prompt", "x"]);
    assert!(said.contains("no plan satisfies the limits"), "{said}");

    // a file that changes is profiled again; so is one whose profile is damaged, and its plan stays where the profile is the same
    let other = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/models/oxide-moe.gguf");
    fs::copy(other, user.path("model.gguf")).unwrap();
    let (changed, said) = run("40M");
    assert!(said.contains("has changed since it was profiled"), "{said}");
    assert_eq!(called(&said), ["profile", "plan", "run"], "{said}");
    assert_ne!(changed, first);
    fs::write(folder.join("model.toml"), "schema = 1\n[architecture]\n").unwrap();
    let (again, said) = run("40M");
    assert_eq!((called(&said), &again), (vec!["profile", "run"], &changed), "{said}");
    assert!(said.contains("it is made again"), "{said}");

    let (removed, _) = user.done(&["rm", "model.gguf"]);
    assert!(removed.contains("model.gguf stays"), "{removed}");
    assert!(!folder.exists() && user.path("model.gguf").exists(), "the profile alone goes");
    let said = user.refused(1, &["rm", "model.gguf"]);
    assert!(said.contains("is not prepared"), "{said}");
}

/// A mixture is planned again by the counts of its use. They predict its hits better, and change no bit.
fn learns(user: &User) {
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/models/oxide-qwen.gguf");
    fs::copy(fixture, user.path("mixture.gguf")).unwrap();
    let start = |more: &[&str]| -> (Value, String) {
        let own = ["run", "mixture.gguf", "--mem", "27M", "--prompt", "fn main() {", "-n", "150"];
        let (figures, said) = user.done(&[&own, more, &["--", "--no-probe", "--json"]].concat());
        (serde_json::from_str(&figures).unwrap(), said)
    };
    let (first, said) = start(&[]);
    assert_eq!(called(&said), ["profile", "plan", "run"], "{said}");
    let device = fs::read_dir(user.path("data/flashplan")).unwrap().next().unwrap().unwrap().path();
    let mut folders = fs::read_dir(device).unwrap().map(|entry| entry.unwrap().path());
    let folder = folders.find(|path| path.join("learned.toml").exists()).unwrap();
    let file = folder.join("learned.toml");
    let counted = || plans::file::read::<plans::Learned>(&file).unwrap().value.learned.tokens;
    assert_eq!(counted(), first["decode_tokens"].as_u64().unwrap(), "tokens that were decoded");
    let held = fs::read_to_string(&file).unwrap();
    assert!(!held.contains("main"), "no text of the prompt: {held}");
    while counted() < plans::learned::TOKENS_MIN {
        let (_, said) = start(&[]);
        assert_eq!(called(&said), ["run"], "too few tokens to learn from: {said}");
    }

    let (learned, said) = start(&[]);
    assert_eq!(called(&said), ["plan", "run"], "{said}");
    let plan = plans::file::read::<plans::Plan>(&folder.join("learned-plan-27M.toml")).unwrap().value;
    let speed = plan.expected.decode_tokens_per_second;
    let without = plan.provenance.unlearned_tokens_per_second.unwrap();
    let pays = speed >= 1.05 * without;
    assert_eq!(said.contains("tok/s planned instead of"), pays, "{speed} {without}: {said}");
    let executed = if pays { "/learned-plan-27M.toml" } else { "/plan-27M.toml" };
    let last = said.lines().rfind(|line| line.starts_with("$ ")).unwrap();
    assert!(last.contains(executed), "{speed} {without}: {last}");
    assert_eq!(learned["logits_hash"], first["logits_hash"], "equal quality keys, equal bits");

    // predicted by the counts, and by the routes of another model
    let error = |name: &str| {
        let mut run = Command::new(Path::new(FLASHPLAN).with_file_name("run"));
        run.arg("--plan").arg(folder.join(name)).args(["--prompt", "fn main() {", "-n", "150"]);
        let output = run.args(["--no-probe", "--json", "--no-learn"]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let figures: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(figures["logits_hash"], first["logits_hash"], "{name}");
        let hits = |key: &str| figures[key].as_f64().unwrap();
        (hits("hit_fraction_predicted") - hits("hit_fraction")).abs()
    };
    let before = counted();
    let (by_counts, by_others) = (error("learned-plan-27M.toml"), error("plan-27M.toml"));
    assert!(by_counts < 0.1 && by_counts < by_others / 2.0, "{by_counts} {by_others}");
    let (_, said) = start(&["--no-learn"]);
    assert!(called(&said) == ["run"] && said.contains("/plan-27M.toml"), "{said}");
    assert_eq!(counted(), before, "nothing is counted");
    let (_, said) = start(&[]);
    assert_eq!(called(&said), ["run"], "the counts have hardly grown: {said}");
    assert!(counted() > before, "more tokens are counted");
}

/// A server answers, and ends when this program is asked to.
fn served(user: &User) {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let mut command = user.command(&["serve", "model.gguf", "--mem", "40M", "--address", &address]);
    let mut server = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    while std::net::TcpStream::connect(&address).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it listens");
        std::thread::sleep(Duration::from_millis(50));
    }
    kill_process(Pid::from_raw(server.id().cast_signed()).unwrap(), Signal::TERM).unwrap();
    assert!(server.wait().unwrap().code().is_some(), "no signal ends it");
    assert!(std::net::TcpStream::connect(&address).is_err(), "the server has ended, too");
}

#[test]
fn the_three_programs_are_passed_on_to() {
    let user = User::with_programs();
    for (arguments, part) in [
        (["profile", "--version"], "profile "),
        (["plan", "--help"], "Find the fastest plan"),
        (["run", "--version"], "run "),
        (["--version", "--version"], "flashplan "),
    ] {
        let arguments = if arguments[0] == arguments[1] { &arguments[..1] } else { &arguments[..] };
        assert!(user.done(arguments).0.contains(part), "{arguments:?}");
    }
    let said = user.refused(1, &["run", "--plan", "nowhere.toml"]);
    assert!(said.contains("nowhere.toml"), "{said}");
    let (help, _) = user.done(&["--help"]);
    for word in ["chat", "serve", "bench", "doctor", "list", "rm", "hf:OWNER/REPO", "Examples:"] {
        assert!(help.contains(word), "{word}: {help}");
    }
    for shell in ["bash", "zsh", "fish"] {
        assert!(user.done(&["--completions", shell]).0.contains("min-speed"), "{shell}");
    }
}

#[test]
fn what_is_missing_or_of_another_version_is_named() {
    let user = User::with_scripts(&[("profile", ""), ("plan", "")]);
    fs::write(user.path("model.gguf"), "x").unwrap();
    let said = user.refused(1, &["chat", "model.gguf"]);
    assert!(said.contains("the program `run` is missing") && said.contains("make build"), "{said}");

    let user = User::with_scripts(&[("profile", ""), ("plan", ""), ("run", "")]);
    let said = user.refused(1, &["chat", "nowhere.gguf"]);
    assert!(said.contains("there is no file or folder nowhere.gguf"), "{said}");
    fs::write(user.path("bin/plan"), "#!/bin/sh\necho plan 0.0.1\n").unwrap();
    let said = user.refused(1, &["chat", "nowhere.gguf"]);
    assert!(
        said.contains("plan says `plan 0.0.1`") && said.contains("install all four programs together"),
        "{said}"
    );
}

#[test]
fn a_stage_that_fails_or_is_killed_is_named_and_nothing_is_believed_of_it() {
    let device = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/device.toml");
    let measures = format!(
        r#"[ "$1" = --model ] || [ "$2" = --model ] || {{ while [ "$1" != --out ]; do shift; done; cp {device} "$2"/device.toml; exit 0; }}"#
    );
    let full = format!("{measures}; echo 'error: the disk is full; make room' >&2; exit 1");
    let user = User::with_scripts(&[("profile", &full), ("plan", ""), ("run", "")]);
    fs::write(user.path("model.gguf"), "x").unwrap();
    let said = user.refused(1, &["chat", "model.gguf"]);
    assert!(said.ends_with("error: the disk is full; make room\n"), "its own words, once: {said}");
    assert_eq!(called(&said), ["profile", "profile"], "{said}");
    let said = user.refused(1, &["chat", "model.gguf"]);
    assert_eq!(called(&said), ["profile"], "the machine was measured: {said}");

    let killed = format!("{measures}; kill -9 $$");
    let user = User::with_scripts(&[("profile", &killed), ("plan", ""), ("run", "")]);
    fs::write(user.path("model.gguf"), "x").unwrap();
    let said = user.refused(1, &["chat", "model.gguf"]);
    assert!(said.contains("`profile` was killed") && said.contains("smaller --mem"), "{said}");
}
