//! The command line from outside: wrong usage, a whole quick run, and what an end in the middle leaves.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use plans::Device;

use crate::tiny;

/// The program with a folder for temporary files of this test's own: profiles of other tests need not be waited for.
fn profile() -> Command {
    profile_of(std::thread::current().name().unwrap_or("profile"))
}

/// The program with temporary files in this folder: two that measure a machine to the end wait for each other there.
fn profile_of(name: &str) -> Command {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&folder).expect("a folder for tests");
    let mut profile = Command::new(env!("CARGO_BIN_EXE_profile"));
    profile.env("TMPDIR", folder);
    profile
}

fn run(arguments: &[&str]) -> Output {
    profile().args(arguments).output().expect("the program starts")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_check_says_what_is_lacking_and_measures_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let output =
        profile().arg("--check").arg("--out").arg(folder.path()).output().expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", stderr(&output));
    for name in ["locked memory", "io_uring", "direct reads", "huge pages", "memory of the control group"] {
        assert!(text.contains(name), "{text}");
    }
    assert_eq!(files_in(folder.path()), Vec::<String>::new(), "{text}");
    assert_eq!(run(&["--check", "--model", "x.gguf"]).status.code(), Some(1));
    // of files that it would not write, and of a folder that it would not make, it asks nothing
    fs::write(folder.path().join("memory.csv"), "name,age\n").expect("written");
    let missing = folder.path().join("missing");
    for out in [folder.path(), &missing] {
        let output =
            profile().args(["--check", "--storage"]).arg(folder.path()).arg("--out").arg(out).output();
        let output = output.expect("the program starts");
        assert!(output.status.success(), "{}", stderr(&output));
    }
    assert_eq!(files_in(folder.path()), ["memory.csv"]);
    let said =
        stderr(&profile().arg("--check").arg("--out").arg(&missing).output().expect("the program starts"));
    assert!(said.contains("missing does not exist"), "{said}");
}

fn files_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("the folder is there");
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn wrong_usage_is_one_sentence_and_status_1() {
    for (arguments, message) in [
        (
            &["--out", "/etc/hostname/folder"][..],
            "cannot create /etc/hostname/folder: Not a directory (os error 20); name a place that is there",
        ),
        (&["--out", "/etc/hostname"], "--out /etc/hostname is not a folder"),
        (&["--storage", "/no/such/folder"], "--storage /no/such/folder does not exist"),
        (&["--out", "/tmp", "--model", "/no/model.gguf"], "--model /no/model.gguf does not exist"),
        (&["--out", "/tmp", "--model", "/tmp", "--text", "/no/text"], "--text /no/text does not exist"),
        (&["--out", "/tmp", "--name", "a b/c"], "is not a short name"),
        (&["--layout", "rows"], "unexpected argument '--layout'"),
        (&["--text", "/etc/hostname"], "--model <FILE|DIR|hf:OWNER/REPO[:QUANT]>"),
        (&["--model", "hf:gpt2"], "`hf:gpt2` names no model: write hf:OWNER/REPO"),
        (&["no.gguf"], "--model no.gguf does not exist"),
        (&["no.gguf", "surplus"], "unexpected argument 'surplus'"),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(stderr(&output).contains(message), "{arguments:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_model_that_does_not_open_is_refused_before_another_profile_is_waited_for() {
    let out = tempfile::tempdir().unwrap();
    let lock = fs::File::create(out.path().join("flashplan-profile.lock")).unwrap();
    lock.lock().unwrap();
    let output = profile()
        .env("TMPDIR", out.path())
        .args(["--model", "/etc/hostname", "--out"])
        .arg(out.path())
        .output()
        .expect("the program starts");
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.starts_with("error: /etc/hostname: not a GGUF file: it begins with"), "{said}");
    assert!(
        said.matches("/etc/hostname").count() == 1 && said.contains("give a model in GGUF format"),
        "{said}"
    );
}

#[test]
fn help_has_an_example_and_version_a_number() {
    let help = run(&["--help"]);
    assert!(help.status.success());
    let text = String::from_utf8(help.stdout).unwrap();
    assert!(text.contains("profile --model") && text.contains("Exit codes"), "{text}");
    let version = run(&["--version"]);
    assert!(version.status.success());
    assert_eq!(
        String::from_utf8(version.stdout).unwrap(),
        format!("profile {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn shells_have_completions_and_nobody_need_read_them() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = run(&["--completions", shell]);
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && script.contains("consume-model"), "{shell}: {script}");
    }
    let page = String::from_utf8(run(&["--man"]).stdout).unwrap();
    assert!(page.contains(".TH profile 1") && page.contains("Examples:"), "{page}");
    for arguments in [&["--help"][..], &["--completions", "bash"], &["--man"]] {
        let mut child =
            profile().args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()), "{arguments:?}");
    }
}

#[test]
fn a_quick_run_writes_a_device_that_can_be_planned_for() {
    let out = tempfile::tempdir().unwrap();
    let output = profile_of("measured")
        .args(["--quick", "--json", "--name", "test-machine", "--out"])
        .arg(out.path())
        .output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("machine: about"), "the estimate comes first");
    assert_eq!(files_in(out.path()), ["cores.csv", "device.toml", "memory.csv", "storage.csv"]);

    let path = out.path().join("device.toml");
    let device = plans::file::read::<Device>(&path).unwrap().value;
    assert_eq!(device.name, "test-machine");
    assert_eq!(plans::file::render(&device, &path).unwrap(), fs::read_to_string(&path).unwrap());
    assert!(device.capacity.plannable_bytes() > 0);
    assert!(device.capacity.process_bytes > 8 << 20);
    assert!(device.capacity.thread_bytes >= 64 << 10);
    assert!(device.storage.cpu_seconds_per_read > 0.0);
    assert!(device.storage.reads.len() <= 88);
    let checked = device.storage.check_bytes_per_second.unwrap();
    assert!((1e7..1e12).contains(&checked), "{checked} bytes/s");
    // both back ends, or the file says why there is one
    let rings = device.storage.reads.iter().filter(|read| read.backend == plans::Backend::IoUring).count();
    assert_eq!(rings > 0, device.storage.io_uring.is_some());
    assert!(rings > 0 || device.provenance.notes.iter().any(|note| note.starts_with("io_uring is refused")));
    assert!(device.core_ids().contains(&device.storage.best_core));
    // a format of weights is told apart by what its arithmetic costs, not only by its bytes
    let best = device.identity.instruction_sets.last().unwrap();
    for format in kernels::Format::ALL {
        let timed = |kernel: &&plans::device::KernelSpeed| {
            kernel.format == format.name() && kernel.instruction_set == *best
        };
        assert_eq!(device.kernels.iter().filter(timed).count(), 1, "{format}");
    }
    assert_eq!(device.identity.instruction_sets.first().unwrap(), "scalar");

    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["device"]["fingerprint"], device.fingerprint.as_str());
    assert!(json["model"].is_null());
    for (file, column) in
        [("cores.csv", "value"), ("memory.csv", "bytes_per_second"), ("storage.csv", "reads_per_second")]
    {
        let mut csv = csv::Reader::from_path(out.path().join(file)).unwrap();
        let at = csv.headers().unwrap().iter().position(|name| name == column).expect(column);
        let values: Vec<f64> = csv.records().map(|row| row.unwrap()[at].parse().unwrap()).collect();
        assert!(!values.is_empty() && values.iter().all(|&value| value >= 0.0), "{file}");
    }
}

#[test]
fn ctrl_c_ends_it_with_status_1_and_leaves_nothing() {
    for after in [Duration::ZERO, Duration::from_secs(3)] {
        let out = tempfile::tempdir().unwrap();
        let mut child = profile().arg("--out").arg(out.path()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        assert!(lines.next().unwrap().unwrap().contains("about"));
        std::thread::sleep(after);
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let requested = Instant::now();
        assert_eq!(child.wait().unwrap().code(), Some(1));
        assert!(requested.elapsed() < Duration::from_secs(5), "{:?}", requested.elapsed());
        let message = lines.next().unwrap().unwrap();
        assert!(message.contains("stopped on request"), "{message}");
        assert_eq!(files_in(out.path()), [""; 0]);
    }
}

#[test]
fn a_second_profile_waits_for_the_first_and_names_another_machine_before() {
    let out = tempfile::tempdir().unwrap();
    let model = out.path().join("tiny.gguf");
    fs::write(&model, tiny::model(1, tiny::Format::F16)).unwrap();
    fs::write(out.path().join("text.txt"), tiny::text()).unwrap();
    let device = concat!(env!("CARGO_MANIFEST_DIR"), "/../plans/tests/device.toml");
    let mut device = plans::file::read::<Device>(Path::new(device)).unwrap().value;
    "Another processor".clone_into(&mut device.identity.cpu);
    device.fingerprint = Device::fingerprint_of(&device.identity);
    plans::file::write(&device, &out.path().join("device.toml")).unwrap();
    let first = fs::File::create(out.path().join("flashplan-profile.lock")).unwrap();
    first.lock().unwrap();
    fs::write(out.path().join("flashplan-profile.lock"), "process 12, into /first\n").unwrap();
    let mut child = profile()
        .env("TMPDIR", out.path())
        .arg("--quick")
        .arg("--text")
        .arg(out.path().join("text.txt"))
        .arg("--model")
        .arg(&model)
        .arg("--out")
        .arg(out.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let warned = lines.next().unwrap();
    assert!(
        warned.contains("device.toml describes another machine")
            && warned.contains("processor: Another processor there, "),
        "{warned}"
    );
    let waits = lines.next().unwrap();
    assert!(waits.contains("another `profile` is measuring (process 12, into /first): waiting"), "{waits}");
    std::thread::sleep(Duration::from_millis(500));
    assert!(child.try_wait().unwrap().is_none() && !out.path().join("model.toml").exists());
    drop(first);
    let said = lines.collect::<Vec<_>>().join("\n");
    assert!(child.wait().unwrap().success() && out.path().join("model.toml").exists(), "{said}");
    let holder = fs::read_to_string(out.path().join("flashplan-profile.lock")).unwrap();
    assert_eq!(holder, format!("process {}, into {}\n", child.id(), out.path().display()));
}

#[test]
fn a_table_of_somebody_else_is_not_replaced_and_nothing_is_measured() {
    let out = tempfile::tempdir().unwrap();
    fs::write(out.path().join("memory.csv"), "name,age\n").unwrap();
    let output = profile().arg("--quick").arg("--out").arg(out.path()).output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("memory.csv: the file that is there is not a profile's memory.csv"), "{said}");
    assert_eq!(files_in(out.path()), ["memory.csv"]);
}

#[test]
fn a_model_that_gets_shorter_ends_it_with_a_sentence() {
    let out = tempfile::tempdir().unwrap();
    let model = out.path().join("model.gguf");
    fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/models/oxide-dense.gguf"), &model).unwrap();
    // the device is known already, so that the model comes at once
    let device = concat!(env!("CARGO_MANIFEST_DIR"), "/../plans/tests/device.toml");
    fs::copy(device, out.path().join("device.toml")).unwrap();
    let mut child = profile()
        .args(["--quick", "--out"])
        .arg(out.path())
        .arg("--model")
        .arg(&model)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("machine: measured before")));
    fs::File::options().write(true).open(&model).unwrap().set_len(4096).unwrap();
    let said = lines.collect::<Vec<_>>().join("\n");
    assert_eq!(child.wait().unwrap().code(), Some(1), "{said}");
    assert!(said.contains("got shorter") && said.contains("fetch it again"), "{said}");
}

#[test]
fn a_full_disk_is_told_in_a_sentence_and_nothing_is_left() {
    let out = tempfile::tempdir().unwrap();
    let turn = tempfile::tempdir().unwrap();
    // files may grow to 8 MiB only, and the signal that says so is ignored
    let output = Command::new("sh")
        .env("TMPDIR", turn.path())
        .args(["-c", "trap '' XFSZ; ulimit -f 16384; exec \"$0\" --quick --out \"$1\""])
        .arg(env!("CARGO_BIN_EXE_profile"))
        .arg(out.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let message = stderr(&output);
    assert!(message.contains("cannot write the scratch file") && message.contains("--storage"), "{message}");
    assert_eq!(files_in(out.path()), [""; 0]);
}

mod slow {
    use super::*;

    #[test]
    #[ignore = "minutes: make test-slow"]
    fn a_file_system_in_memory_is_read_buffered() {
        let folder = Path::new("/dev/shm");
        let in_memory = rustix::fs::statfs(folder).is_ok_and(|kind| kind.f_type as u64 == 0x0102_1994);
        let room = rustix::fs::statvfs(folder).is_ok_and(|space| space.f_bavail * space.f_frsize >= 1 << 30);
        if !(in_memory && room) {
            skipped::skipped("/dev/shm", "it is no file system in memory with 1 GiB of room");
            return;
        }
        let out = tempfile::tempdir().unwrap();
        let output = profile_of("measured")
            .args(["--quick", "--storage", "/dev/shm", "--out"])
            .arg(out.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let device = plans::file::read::<Device>(&out.path().join("device.toml")).unwrap().value;
        assert_eq!((device.storage.direct, device.storage.file_system.as_str()), (false, "tmpfs"));
        assert!(device.storage.reads.iter().all(|read| !read.direct));
        assert!(device.provenance.notes.iter().any(|note| note.contains("reads are buffered")));
        assert!(String::from_utf8(output.stdout).unwrap().contains("through the page cache"));
    }
}
