//! The program from outside, where it needs no model: help, completions, the man page, and waiting.
#![expect(clippy::unwrap_used, clippy::missing_assert_message, reason = "a test, whose values say it")]

use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PLAN: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../plans/amd-epyc-2c-24g/oxide-dense/plan-20M.toml");

fn run(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_run"));
    command.args(arguments);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The command's end, its standard output being closed before it says anything.
fn unread(mut command: Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    child.wait_with_output().unwrap()
}

#[test]
fn help_has_examples_under_headings_and_shells_their_completions() {
    let help = text(&run(&["--help"]).output().unwrap().stdout);
    for part in
        ["Examples:\n", "Exit codes: 0 done", "Prompt:\n", "Generation:\n", "Report:\n", "--completions"]
    {
        assert!(help.contains(part), "{part}: {help}");
    }
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = run(&["--completions", shell]).output().unwrap();
        assert!(output.status.success() && text(&output.stdout).contains("prompt-file"), "{shell}");
    }
    let page = run(&["--man"]).output().unwrap();
    let page = text(&page.stdout);
    assert!(page.contains(".TH run 1") && page.contains("Examples:"), "{page}");
    let wrong = run(&["--completions", "csh"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(1));
    assert!(text(&wrong.stderr).starts_with("error: invalid value 'csh'"), "{}", text(&wrong.stderr));
}

#[test]
fn nobody_reads_and_nothing_is_said() {
    for arguments in [&["--help"][..], &["--version"], &["--completions", "bash"], &["--man"]] {
        let output = unread(run(arguments));
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()), "{arguments:?}");
    }
}

fn pipe(folder: &Path) -> String {
    let pipe = folder.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    pipe.display().to_string()
}

/// Waits until the process has said that it wants to hear of signals.
fn listens(child: &Child) {
    let status = format!("/proc/{}/status", child.id());
    let caught = || {
        let status = std::fs::read_to_string(&status).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap()
    };
    const TERMINATION: u64 = 1 << 14;
    while caught() & TERMINATION == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap().success());
}

/// Whether it ends within seconds, and what it says.
fn end(mut child: Child) -> (Option<i32>, String) {
    let clock = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if clock.elapsed() > Duration::from_secs(20) {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (status.code(), said)
}

#[test]
fn a_pipe_that_never_comes_can_be_left() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = pipe(folder.path());
    for name in ["INT", "TERM", "HUP"] {
        let child = run(&["--plan", PLAN, "--model", &pipe])
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        listens(&child);
        signal(&child, name);
        let (code, said) = end(child);
        assert_eq!(code, Some(1), "{name}");
        assert_eq!(said, "error: stopped on request; no file was left unfinished\n", "{name}");
    }
}

#[test]
fn an_error_is_a_fact_and_a_remedy_that_name_the_path_once() {
    let output = run(&["--plan", "/no/plan.toml"]).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.starts_with("error: cannot read /no/plan.toml: "), "{said}");
    assert!(said.contains("; name your plan.toml") && said.matches("/no/plan.toml").count() == 1, "{said}");
}

#[test]
fn a_sampling_option_that_means_nothing_is_named_as_it_is_given() {
    for (option, value) in
        [("--temp", "-1"), ("--top-p", "2"), ("--min-p", "-0.5"), ("--repeat-penalty", "0")]
    {
        let output = run(&["--plan", PLAN, option, value]).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1));
        assert!(said.starts_with(&format!("error: {option} is {value}; it is ")), "{said}");
    }
}

fn fixture(model: &str) -> String {
    format!("{}/../../fixtures/models/{model}.gguf", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn a_text_is_shown_in_tokens_without_a_plan() {
    let model = fixture("oxide-dense");
    let output = run(&["--model", &model, "--tokenize", "Hi \u{1f980}</s>"]).output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    let lines = text(&output.stdout);
    let pieces: Vec<&str> = lines.lines().map(|line| line.trim().split_once("  ").unwrap().1).collect();
    assert_eq!(pieces[0], "\"<s>\"", "{lines}");
    assert!(
        lines.contains("\"<0xF0>\"") && pieces.len() > 7,
        "a character without a token is bytes: {lines}"
    );

    let json = |arguments: &[&str]| -> (Vec<u64>, String) {
        let output =
            run(&[&["--model", &model, "--json", "--tokenize"], arguments].concat()).output().unwrap();
        let value: serde_json::Value = serde_json::from_str(&text(&output.stdout)).unwrap();
        let tokens =
            value["tokens"].as_array().unwrap().iter().map(|token| token.as_u64().unwrap()).collect();
        let pieces = value["pieces"].as_array().unwrap().iter().map(|piece| piece.as_str().unwrap());
        (tokens, pieces.collect())
    };
    let (plain, pieces) = json(&["a</s>"]);
    assert!(!plain.contains(&2) && pieces == "<s> a</s>", "{plain:?} {pieces}");
    let (special, pieces) = json(&["a</s>", "--special"]);
    assert!(special.ends_with(&[2]) && pieces == "<s> a</s>", "{special:?} {pieces}");
    assert_eq!(json(&[""]).0, [1], "no text has the beginning");
}

#[test]
fn tokens_of_nothing_that_has_a_tokenizer_are_refused() {
    for (arguments, message) in [
        (&["--tokenize", "a"][..], "cannot read plan.toml: there is no such file"),
        (&["--tokenize", "a", "--model", "/no/model.gguf"], "/no/model.gguf"),
        (&["--tokenize", "a", "--prompt", "b"], "cannot be used with"),
        (&["--prompt", "a"], "cannot read plan.toml: there is no such file"),
    ] {
        let output = run(arguments).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(said.starts_with("error: ") && said.contains(message), "{arguments:?}: {said}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn no_output_takes_the_place_of_an_input_or_of_another_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    std::fs::copy(PLAN, at("plan.toml")).unwrap();
    std::fs::copy(fixture("oxide-dense"), at("model.gguf")).unwrap();
    std::fs::write(at("prompt.txt"), "Once").unwrap();
    std::fs::write(at("drawing.svg"), "<svg/>").unwrap();
    let all = || -> Vec<Vec<u8>> {
        ["plan.toml", "model.gguf", "prompt.txt", "drawing.svg"]
            .map(|name| std::fs::read(at(name)).unwrap())
            .into()
    };
    let before = all();
    let (plan, model, prompt, drawing) =
        (at("plan.toml"), at("model.gguf"), at("prompt.txt"), at("drawing.csv"));
    for (arguments, message) in [
        (&["--logits", &model][..], "model.gguf: it is the model of this run; name another file"),
        (&["--logits-prefill", &plan], "plan.toml: it is the plan of this run"),
        (&["--report", &plan], "plan.toml: it is the plan of this run"),
        (
            &["--report", &drawing],
            "drawing.svg: the file that is there is not a picture of ours, and would be lost",
        ),
        (&["--report", &prompt], "prompt.txt: it is the file of --prompt-file"),
        (&["--logits", &at("a"), "--logits-prefill", &at("a")], "a: it is where --logits goes"),
        (&["--logits", &fixture("oxide-moe")], "oxide-moe.gguf: the file that is there is not a NumPy array"),
        (&["--bench", "--calibration-out", &plan], "plan.toml: it is the plan of this run"),
    ] {
        let prompt = if arguments[0] == "--bench" { &[][..] } else { &["--prompt-file", &prompt] };
        let output =
            run(&["--plan", &plan, "--model", &model]).args(prompt).args(arguments).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.starts_with("error: cannot write ") && said.contains(message), "{arguments:?}: {said}");
        assert!(all() == before, "{arguments:?}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 4);
}

#[test]
fn memory_that_is_refused_is_never_taken_for_a_stop() {
    let model = fixture("oxide-dense");
    let mut told = 0;
    // from too little for a process to enough for all of it
    for kibibytes in (4_000..40_000).step_by(1_500) {
        let output = Command::new("sh")
            .args([
                "-c",
                "ulimit -v $1 && exec \"$0\" --model \"$2\" --tokenize a",
                env!("CARGO_BIN_EXE_run"),
            ])
            .args([&kibibytes.to_string(), &model])
            .output()
            .unwrap();
        let said = text(&output.stderr);
        assert!(!said.contains("stopped on request"), "{kibibytes}: {said}");
        told += usize::from(said.contains("raise the limit on address space (`ulimit -v`)"));
    }
    assert!(told > 0, "no limit was between a process and its thread");
}

/// Files of prompts are named by their quality, so they must never hold what cores compute in place of a unit.
#[test]
fn prompts_are_not_kept_where_the_cores_may_stand_in_for_a_unit() {
    let output = Command::new(env!("CARGO_BIN_EXE_run"))
        .args(["--plan", "plan.toml", "--chat", "--fallback", "--sessions", "kept"])
        .output()
        .unwrap();
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("cannot be used with"), "{said}");
}
