//! Profiles of a model that are killed or stopped in the middle, from outside.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::tiny;

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn files_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("the folder is there");
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// A folder with a tiny model of so many experts, a text and a device, so that only the model is measured.
fn place(experts: u32) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("tiny.gguf"), tiny::model(experts, tiny::Format::Q8_0)).unwrap();
    fs::write(folder.path().join("text.txt"), tiny::text()).unwrap();
    let device =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../plans/amd-epyc-2c-24g/oxide-dense/device.toml");
    fs::copy(device, folder.path().join("device.toml")).unwrap();
    folder
}

fn profile_of(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_profile"));
    // a turn of its own: profiles of other tests need not be waited for
    let turn = Path::new(env!("CARGO_TARGET_TMPDIR")).join(std::thread::current().name().unwrap());
    fs::create_dir_all(&turn).unwrap();
    command.env("TMPDIR", turn);
    command.arg("--model").arg(folder.join("tiny.gguf")).arg("--text").arg(folder.join("text.txt"));
    command.arg("--quick").arg("--out").arg(folder);
    command
}

/// The finished parts of a profile under way.
fn parts(folder: &Path) -> Option<std::path::PathBuf> {
    let mut entries = fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    entries.find(|path| path.is_dir() && path.to_string_lossy().contains("/.profile-"))
}

/// Profiles and kills that as soon as `now`; false when it was faster than the signal.
fn kill_when(now: impl Fn() -> bool, mut profile: Command) -> bool {
    let mut child = profile.stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    while child.try_wait().unwrap().is_none() {
        if now() {
            child.kill().unwrap();
        }
    }
    !child.wait().unwrap().success()
}

/// Whether a part of the profile under way is finished.
fn is_finished(folder: &Path, part: &str) -> bool {
    parts(folder).is_some_and(|parts| parts.join(part).exists())
}

/// Experts: so many that the second layer takes a while to write.
const MANY: u32 = 8;

/// A folder with a model that has holes and an unfinished container, from a profile that was killed at the first hole.
///
/// It was killed before that, too, after each of `parts`. If the signal comes after the last layer, a new folder is tried.
fn half_consumed(parts: &[&str]) -> tempfile::TempDir {
    for _ in 0..20 {
        let place = place(MANY);
        let folder = place.path();
        let model = folder.join("tiny.gguf");
        let whole = blocks(&model);
        let profile = || {
            let mut profile = profile_of(folder);
            profile.arg("--consume-model");
            profile
        };
        let stopped = parts.iter().all(|part| kill_when(|| is_finished(folder, part), profile()))
            && kill_when(|| blocks(&model) < whole, profile());
        if stopped && half_written(folder).is_some() {
            return place;
        }
    }
    panic!("twenty profiles were faster than a signal");
}

/// The space that a file takes, in blocks of 512 bytes; none if it is gone.
fn blocks(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |file| file.blocks())
}

/// The container under way.
fn half_written(folder: &Path) -> Option<std::path::PathBuf> {
    files_in(folder).into_iter().find(|name| name.ends_with(".part")).map(|name| folder.join(name))
}

#[test]
fn a_profile_that_is_killed_in_every_stage_ends_as_an_undisturbed_one() {
    let (undisturbed, killed) = (place(2), place(2));
    let output = profile_of(undisturbed.path()).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let said = stderr(&output);
    let estimate = said.find("model: about ").expect("an estimate");
    assert!(said[..estimate].lines().all(|line| line.starts_with("warning: ")), "it comes first: {said}");
    let complete = files_in(undisturbed.path());

    let mut stages = 0;
    for part in [
        "job",
        "written",
        "predictors-0000-0000",
        "layer-0000",
        "streams",
        "predictors-0001-0001",
        "layer-0001",
        "bundles-0000",
        "bundles-0001",
    ] {
        // Either it was killed, or it was faster than that.
        if !kill_when(|| is_finished(killed.path(), part), profile_of(killed.path())) {
            fs::remove_file(killed.path().join("model.toml")).unwrap();
            continue;
        }
        stages += 1;
        for file in ["model.toml", "tiny.bundle", "neurons.csv", "reuse.csv"] {
            let (file, whole) = (killed.path().join(file), undisturbed.path().join(file));
            assert!(!file.exists() || fs::read(&file).unwrap() == fs::read(&whole).unwrap(), "half a file");
        }
    }
    assert!(stages >= 6, "killed in {stages} stages only");

    // One byte of what is finished is damaged: it is found out, and done again.
    if let Some(parts) = parts(killed.path()) {
        let mut streams = fs::read(parts.join("streams")).unwrap();
        *streams.last_mut().unwrap() ^= 1;
        fs::write(parts.join("streams"), streams).unwrap();
    }
    let output = profile_of(killed.path()).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(files_in(killed.path()), complete, "nothing is left behind");
    for file in ["model.toml", "tiny.bundle", "neurons.csv", "reuse.csv"] {
        let [a, b] = [&undisturbed, &killed].map(|folder| fs::read(folder.path().join(file)).unwrap());
        assert!(a == b, "{file} differs");
    }
}

#[test]
fn a_model_that_is_consumed_is_gone_in_the_end_and_the_profile_is_the_same() {
    let whole = place(MANY);
    let output = profile_of(whole.path()).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));

    let consumed = half_consumed(&["layer-0001"]);
    let model = consumed.path().join("tiny.gguf");
    let output = profile_of(consumed.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("has been consumed in part"), "{}", stderr(&output));

    let output = profile_of(consumed.path()).arg("--consume-model").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        !model.exists() && !consumed.path().join("tiny.gguf.consumed").exists(),
        "model and note are gone"
    );
    for file in ["model.toml", "tiny.bundle", "neurons.csv", "reuse.csv"] {
        let [a, b] = [&whole, &consumed].map(|folder| fs::read(folder.path().join(file)).unwrap());
        assert!(a == b, "{file} differs");
    }
}

#[test]
fn a_consumed_model_is_not_believed_without_the_finished_parts_of_its_profile() {
    let folder = half_consumed(&[]);
    let model = folder.path().join("tiny.gguf");
    let finished = parts(folder.path()).unwrap();
    let refused = |why: &str| {
        let output = profile_of(folder.path()).arg("--consume-model").output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
    };
    // the half-written container is damaged where the model has a hole
    let part = half_written(folder.path()).unwrap();
    let whole = fs::read(&part).unwrap();
    fs::write(&part, vec![0; whole.len()]).unwrap();
    refused("layer 0 is damaged");
    assert!(part.exists(), "and stays, for it may be all that there is");

    fs::remove_file(finished.join("written")).unwrap();
    refused("what its profile had finished is not in");
    fs::remove_dir_all(&finished).unwrap();
    refused("what its profile had finished is not in");
    let note = folder.path().join("tiny.gguf.consumed");
    fs::write(&note, "{}").unwrap();
    refused("if that is a whole model, remove the note");
    assert!(model.exists(), "nothing is removed");
}

#[test]
fn a_profile_that_is_stopped_says_where_it_goes_on() {
    let folder = place(2);
    let mut child = profile_of(folder.path()).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    while !parts(folder.path()).is_some_and(|parts| parts.join("streams").exists()) {
        assert!(child.try_wait().unwrap().is_none(), "ended before its first layer");
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT)
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("error: stopped on request; what is finished"), "{}", stderr(&output));
    let output = profile_of(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let message = stderr(&output);
    assert!(message.contains("resuming: 1 of 2 layers") || message.contains("resuming: 2 of 2"), "{message}");
}
