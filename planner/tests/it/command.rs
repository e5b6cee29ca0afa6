//! The program: exit codes, messages, files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use assert_cmd::Command;

use crate::small;

/// A folder of this test's own with the two profiles.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    plans::file::write(&small::device(), &folder.join("device.toml")).expect("device.toml");
    plans::file::write(&small::model(3), &folder.join("model.toml")).expect("model.toml");
    folder
}

fn run(folder: &Path, arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = Command::cargo_bin("plan")
        .expect("the program")
        .current_dir(folder)
        .args(arguments)
        .output()
        .expect("a run");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (status.code().unwrap_or(-1), text(stdout), text(stderr))
}

#[test]
fn a_plan_is_written_and_checked_again() {
    let folder = folder("written");
    let (code, out, err) = run(&folder, &["--mem", "24M", "--explain"]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    for part in ["mean of", "simple rule", "Z3 chose among", "runner-up", "feed-forward", "keys and values"] {
        assert!(out.contains(part), "{part} is missing in {out}");
    }
    let (code, out, _) = run(&folder, &["--check", "plan.toml"]);
    assert_eq!(code, 0, "{out}");
    let text = fs::read_to_string(folder.join("plan.toml")).expect("the plan");
    fs::write(folder.join("plan.toml"), text.replace("gap_bytes = ", "gap_bytes = 1")).expect("written");
    let (code, out, _) = run(&folder, &["--check", "plan.toml"]);
    assert_eq!(code, 1, "{out}");
    assert!(out.contains("solving again differs in read.gap_bytes"), "{out}");
    assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 3, "no temporary file is left");
}

#[test]
fn no_output_takes_the_place_of_an_input_or_of_another_file() {
    let folder = folder("outputs");
    assert_eq!(run(&folder, &["-o", "quality.toml"]).0, 0);
    for (name, bytes) in [
        ("model.gguf", &b"GGUF\x03"[..]),
        ("note.txt", b"remember"),
        ("frontier.csv", b"name,age\n"),
        ("frontier.svg", b"<?xml version=\"1.0\"?>\n"),
    ] {
        fs::write(folder.join(name), bytes).expect("written");
    }
    let all = || -> Vec<(PathBuf, Vec<u8>)> {
        let entries = fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry").path());
        let mut all: Vec<_> = entries.map(|path| (path.clone(), fs::read(path).expect("read"))).collect();
        all.sort();
        all
    };
    let before = all();
    for (arguments, said) in [
        (
            &["-o", "device.toml"][..],
            "cannot write device.toml: it is the file of --device; name another file",
        ),
        (&["-o", "model.gguf"], "cannot write model.gguf: the file that is there is not plan.toml"),
        (&["--smt", "note.txt"], "cannot write note.txt: the file that is there is not a problem in SMT-LIB"),
        (&["--smt", "./plan.toml"], "it is where the plan goes"),
        (&["--frontier"], "frontier.csv: the file that is there is not a frontier"),
    ] {
        let (code, _, err) = run(&folder, arguments);
        assert!(code == 1 && err.contains(said), "{arguments:?}: {err}");
        assert_eq!(all(), before, "{arguments:?}");
    }
    // an earlier plan is replaced by one of its quality
    assert_eq!(run(&folder, &["-o", "quality.toml", "--quality", "quality.toml"]).0, 0);
    // an earlier plan, problem or frontier is replaced
    for _ in 0..2 {
        assert_eq!(run(&folder, &["-o", "quality.toml", "--smt", "problem.smt2"]).0, 0);
    }
    let earlier = [
        ("frontier.csv", "limit_bytes,memory_peak_bytes,\n"),
        ("frontier.svg", "<svg width=\"9\" height=\"9\" xmlns=\"http://www.w3.org/2000/svg\">\n</svg>\n"),
    ];
    for (name, text) in earlier {
        fs::write(folder.join(name), text).expect("written");
    }
    assert_eq!(run(&folder, &["--frontier"]).0, 0);
    for (name, text) in earlier {
        assert_ne!(fs::read_to_string(folder.join(name)).expect("read"), text, "{name} is the earlier one");
    }
}

#[test]
fn a_profile_that_was_changed_is_refused_or_noted() {
    let folder = folder("changed");
    let device = fs::read_to_string(folder.join("device.toml")).expect("the device");
    let write = |text: &str| fs::write(folder.join("device.toml"), text).expect("written");
    let (figures, checksum) = device.rsplit_once("checksum = ").expect("a checksum");
    let by_hand = figures.replacen("thread_bytes = ", "thread_bytes = 1", 1);
    write(&format!("{by_hand}checksum = {checksum}"));
    let (code, _, err) = run(&folder, &[]);
    assert!(code == 1 && err.contains("their checksum is another") && err.contains("\"void\""), "{err}");
    write(&format!("{by_hand}checksum = \"void\"\n"));
    let (code, _, err) = run(&folder, &[]);
    assert_eq!((code, &*err), (0, "note: device.toml: its checksum is void: it was changed by hand\n"));
    write(&device);
    let calibration = format!(
        "schema = 1\n[measured]\ntool = \"run\"\ndate = \"2026-11-24\"\ndevice = \"small\"\ndevice_fingerprint = \"{}\"\n\
         model = \"small\"\n[factors]\ncompute = 1.0\nstream = 1.0\ngather = 1.0\nrandom_reads = 0.9\nordered_reads = 1.0\n\
         [integrity]\nchecksum = \"void\"\n",
        small::device().fingerprint
    );
    fs::write(folder.join("calibration.toml"), calibration).expect("written");
    for also in [&[][..], &["--frontier"]] {
        let arguments = [&["--calibration", "calibration.toml"], also].concat();
        let (code, _, err) = run(&folder, &arguments);
        let note = "note: calibration.toml: its checksum is void: it was changed by hand\n";
        assert_eq!((code, &*err), (0, note), "{arguments:?}");
    }
    write(device.rsplit_once("\n#").expect("a comment").0);
    let (code, _, err) = run(&folder, &[]);
    assert_eq!((code, &*err), (0, ""), "a file of an older version");
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error_and_leaves_no_file() {
    let folder = folder("limited");
    let shell = std::process::Command::new("sh")
        .current_dir(&folder)
        .args(["-c", "ulimit -f 1 && exec \"$0\""])
        .arg(assert_cmd::cargo::cargo_bin("plan"))
        .output()
        .expect("a run");
    let said = String::from_utf8(shell.stderr).expect("text");
    let why = "cannot write plan.toml: it is larger than the limit on the size of files (`ulimit -f`) allows; raise the limit";
    assert_eq!((shell.status.code(), &*said), (Some(1), &*format!("error: {why}\n")));
    assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 2, "a temporary file is left");
}

#[test]
fn json_is_one_value() {
    let folder = folder("json");
    let (code, out, _) = run(&folder, &["--json"]);
    assert_eq!(code, 0, "{out}");
    let value: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert!(value["plan"]["expected"]["decode_tokens_per_second"].as_f64() > Some(0.0), "{out}");
}

#[test]
fn limits_that_no_plan_satisfies_exit_with_2_and_leave_no_file() {
    let folder = folder("infeasible");
    let (code, _, err) = run(&folder, &["--mem", "1M"]);
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("no plan satisfies the limits") && err.contains("the smallest takes"), "{err}");
    assert!(!folder.join("plan.toml").exists());
}

#[test]
fn a_simple_rule_that_does_not_fit_is_told_in_json_too() {
    let folder = folder("infeasible-simple");
    let (code, out, err) = run(&folder, &["--mem", "1M", "--baseline", "simple-rule", "--json"]);
    assert_eq!(code, 2, "{err}");
    let value: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    let said = value["infeasible"]["sentences"][0].as_str().unwrap_or_default();
    assert!(said.starts_with("the simple rule does not fit") && err.contains(said), "{out} {err}");
}

#[test]
fn wrong_usage_exits_with_1_and_says_what_to_do() {
    let folder = folder("usage");
    for (arguments, said) in [
        (vec!["--mem", "0"], "give --mem a size"),
        (vec!["--mem", "12X"], "for example 12G"),
        (vec!["--min-speed", "0"], "--min-speed 0 is no limit; give a number of tokens per second from"),
        (vec!["--min-speed", "1e300"], "--min-speed 1e300 is no limit; give"),
        (vec!["--max-ttft", "inf", "--prompt", "64"], "--max-ttft inf is no limit; give a number of seconds"),
        (vec!["--cores", "9"], "core 9 is not in device.toml; it has cores 0,1,2,3"),
        (vec!["--cores", "x"], "0-3,6"),
        (vec!["--context", "0"], "this model takes 2 to 1024 tokens"),
        (vec!["--max-loss", "nan"], "--max-loss"),
        (vec!["--level", "best"], "it has dense, sign, low-rank"),
        (vec!["--device", "."], ". is a folder"),
        (vec!["--model", "missing.toml"], "make one with `profile --model FILE`"),
        (vec!["--device", "missing.toml"], "make one with `profile`"),
        (vec!["--model", "device.toml"], "device.toml is a device.toml, and a model.toml is needed"),
        (vec!["--check", "missing.toml"], "error: cannot read missing.toml: there is no such"),
        (vec!["--without", "luck"], "possible values: predictor, cache, hot-region, bundle, two-phase"),
        (vec!["--without", "two-phase", "--without", "whole-read"], "leave out only one of"),
        (vec!["--without", "bundle"], "the bundles of small are smaller than a page"),
        (vec!["--without", "predictor"], "takes the exact gate, which"),
        (vec!["--without", "predictor", "--level", "sign"], "level `sign` is another"),
        (vec!["--baseline", "mmap"], "llm-in-a-flash"),
        (vec!["--nonsense"], "unexpected argument"),
        (vec!["--frontier", "--smt", "a.smt2"], "cannot be used with"),
        (vec!["--frontier", "--speculate", "auto"], "give --speculate a number, or leave it out"),
        (vec!["--check", "plan.toml", "--frontier"], "cannot be used with"),
        (vec!["--check", "plan.toml", "--mem", "24M"], "'--check <PLAN>...' cannot be used with"),
        (vec!["--check", "plan.toml", "-o", "other.toml"], "cannot be used with"),
        (vec!["--check", "plan.toml", "--max-loss", "0"], "cannot be used with"),
        (
            vec!["-o", "none/plan.toml"],
            "error: cannot write none/plan.toml: there is no folder none; make it",
        ),
        (vec!["--smt", "none/a.smt2"], "error: cannot write none/a.smt2: there is no folder none; make it"),
        (vec!["--frontier", "-o", "none/plan.toml"], "there is no folder none; make it, or name another"),
    ] {
        let (code, _, err) = run(&folder, &arguments);
        assert_eq!(code, 1, "{arguments:?}: {err}");
        assert!(err.contains(said), "{arguments:?}: {err}");
    }
    assert_eq!(run(&folder, &["--help"]).0, 0);
    assert!(run(&folder, &["--version"]).1.starts_with("plan "));
}

#[test]
fn an_unknown_key_is_named_with_the_nearest_known_one() {
    let folder = folder("unknown");
    let path = folder.join("device.toml");
    let text = fs::read_to_string(&path).expect("the device");
    fs::write(&path, text.replace("ram_bytes =", "ram_byte =")).expect("written");
    let (code, _, err) = run(&folder, &[]);
    assert_eq!(code, 1, "{err}");
    assert!(
        err.contains("unknown key `ram_byte`") && err.contains("nearest known name is `ram_bytes`"),
        "{err}"
    );
}

#[test]
fn another_plans_quality_is_kept() {
    let folder = folder("quality");
    assert_eq!(run(&folder, &["--level", "dense", "-o", "dense.toml"]).0, 0);
    assert_eq!(run(&folder, &["--quality", "dense.toml"]).0, 0);
    let plan = plans::file::read::<plans::Plan>(&folder.join("plan.toml")).expect("a plan").value;
    assert_eq!(plan.quality.level, "dense");

    // levels that were measured with other activations are not the quality that was to be kept
    let path = folder.join("model.toml");
    let mut model = plans::file::read::<plans::Model>(&path).expect("the model").value;
    "q8".clone_into(&mut model.activations);
    plans::file::write(&model, &path).expect("written");
    let (code, _, err) = run(&folder, &["--quality", "dense.toml"]);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("the quality keys hold activations `f32`") && err.contains("with `q8`"), "{err}");

    // nor are those of another model
    let mut other = model;
    "other".clone_into(&mut other.name);
    "other".clone_into(&mut other.fingerprint);
    plans::file::write(&other, &path).expect("written");
    let (code, _, err) = run(&folder, &["--quality", "dense.toml"]);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("is a plan for small, and this is other"), "{err}");
}

#[test]
fn the_frontier_is_a_table_a_csv_and_a_chart() {
    let folder = folder("frontier");
    let (code, out, err) = run(&folder, &["--frontier"]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let csv = fs::read_to_string(folder.join("frontier.csv")).expect("the CSV");
    assert!(csv.starts_with("limit_bytes,") && csv.lines().count() > 8, "{csv}");
    assert!(fs::read_to_string(folder.join("frontier.svg")).expect("the chart").contains("<svg"));
    assert!(!folder.join("plan.toml").exists());
}

#[test]
fn a_limit_beyond_the_machine_is_cut_and_that_is_said() {
    let folder = folder("cut");
    let (code, _, err) = run(&folder, &["--mem", "1000G"]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("--mem 1000.0 GiB is more than this machine can give; planned for "), "{err}");
    let plan = plans::file::read::<plans::Plan>(&folder.join("plan.toml")).expect("a plan").value;
    assert_eq!(plan.memory.limit_bytes, small::device().capacity.plannable_bytes());
}

/// The program's end, its standard output being closed before it says anything.
fn unread(folder: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_plan"))
        .current_dir(folder)
        .args(arguments)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("a run");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("an end");
    (output.status.code(), String::from_utf8(output.stderr).expect("text"))
}

#[test]
fn nobody_reads_and_nothing_is_said() {
    let folder = folder("unread");
    for arguments in [
        &["--help"][..],
        &["--completions", "zsh"],
        &["--man"],
        &["--mem", "24M", "--explain"],
        &["--mem", "24M", "--json"],
        &["--check", "plan.toml"],
    ] {
        assert_eq!(unread(&folder, arguments), (Some(0), String::new()), "{arguments:?}");
    }
    assert!(folder.join("plan.toml").exists());
}

#[test]
fn help_has_examples_under_headings_and_shells_their_completions() {
    let folder = folder("help");
    let help = run(&folder, &["--help"]).1;
    for part in ["Examples:\n", "Exit codes: 0 done", "Limits:\n", "Report:\n", "--completions"] {
        assert!(help.contains(part), "{part}: {help}");
    }
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (code, script, _) = run(&folder, &["--completions", shell]);
        assert!(code == 0 && script.contains("min-speed"), "{shell}: {script}");
    }
    let (code, page, _) = run(&folder, &["--man"]);
    assert!(code == 0 && page.contains(".TH plan 1") && page.contains("Examples:"), "{page}");
}

#[test]
fn verbose_says_on_standard_error_what_is_done() {
    let folder = folder("verbose");
    let (code, out, err) = run(&folder, &["--mem", "24M", "-v"]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("solved seconds=") && err.contains("wrote plan.toml"), "{err}");
    assert!(!out.contains("solved"), "{out}");
}

#[test]
fn a_profile_elsewhere_is_named_in_the_plans_provenance() {
    let folder = folder("elsewhere");
    fs::create_dir(folder.join("profile")).expect("a folder");
    for name in ["device.toml", "model.toml"] {
        fs::rename(folder.join(name), folder.join("profile").join(name)).expect("moved");
    }
    let of = |output: &str| {
        let profile = ["--device", "profile/device.toml", "--model", "profile/model.toml", "-o", output];
        let (code, _, err) = run(&folder, &[&profile[..], &["--mem", "24M"]].concat());
        assert_eq!(code, 0, "{err}");
        plans::file::read::<plans::Plan>(&folder.join(output)).expect("a plan").value.provenance.model_folder
    };
    assert_eq!(of("plan.toml").as_deref(), Some("profile"));
    assert_eq!(of("profile/plan.toml"), None);
}
