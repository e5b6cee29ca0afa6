//! Counts of earlier runs in place of a profile's misses.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use assert_cmd::Command;
use planner::learned::Learning;
use planner::{Answer, Inputs};
use plans::learned::{
    Counted, FILE, LayerVisits, Learned, PREFIXES, SIZES, TOKENS_MIN, after_prefix, slots_of,
};
use plans::plan::Request;

use crate::{slices, small};

const EXPERTS: usize = 16;
const MEM: u64 = 34 << 20;

/// A layer whose every token visits the two experts of the one before, or, in `fresh` of ten tokens, two others.
fn layer(tokens: u64, fresh: u64) -> LayerVisits {
    let mut recent: Vec<usize> = (0..EXPERTS).collect();
    let left = |prefix| EXPERTS - after_prefix(EXPERTS, prefix);
    let mut counts = LayerVisits {
        visits: vec![0; EXPERTS],
        distances: (0..PREFIXES).map(|prefix| vec![0; left(prefix)]).collect(),
        frequency_misses: Vec::new(),
    };
    let mut visited = [0, 1];
    for token in 0..tokens {
        if token * 7 % 10 < fresh {
            let first = (token * 5 % 16) as usize;
            visited = [first, (first + 3) % EXPERTS];
        }
        for expert in visited {
            counts.visits[expert] += 1;
            for (prefix, distances) in counts.distances.iter_mut().enumerate() {
                let first = after_prefix(EXPERTS, prefix);
                let mut beyond = recent.iter().filter(|&&other| other >= first);
                if let Some(distance) = beyond.position(|&other| other == expert) {
                    distances[distance] += 1;
                }
            }
        }
        recent.retain(|expert| !visited.contains(expert));
        recent.splice(0..0, visited);
    }
    // as many as LRU
    let missed = |&size: &usize| counts.distances[0][slots_of(EXPERTS, size)..].iter().sum();
    counts.frequency_misses = SIZES.iter().map(missed).collect();
    counts
}

/// Counts of the small mixture: its first layers repeat themselves, the last ones hardly.
fn counts(inputs: &Inputs, tokens: u64) -> Learned {
    Learned {
        schema: plans::SCHEMA,
        learned: Counted {
            tool: "run 0".to_owned(),
            model: inputs.model.name.clone(),
            model_fingerprint: inputs.model.fingerprint.clone(),
            container_fingerprint: inputs.model.container.fingerprint.clone(),
            tokens,
        },
        layers: (0..6).map(|index| layer(tokens, [0, 1, 1, 8, 9, 10][index])).collect(),
    }
}

fn learning(inputs: &Inputs) -> Learning {
    Learning::of(&counts(inputs, 1000), "hash".to_owned(), inputs).expect("counts of this model")
}

#[test]
fn a_learned_plan_is_at_least_as_fast_by_the_counts_and_has_the_same_quality() {
    let profiled = slices::mixture(32);
    let learning = learning(&profiled);
    let request = small::request(Some(MEM));
    let before = small::plan(&profiled, &request).plan;
    let mut plan = small::plan(&learning.inputs, &request).plan;
    let without = learning.unlearned_speed(&profiled, &request).expect("a request").expect("a plan");
    let speed = plan.expected.decode_tokens_per_second;
    assert!(speed > 1.02 * without, "layers that repeat themselves need less memory: {speed} {without}");
    assert_eq!(plan.quality, before.quality, "equal quality keys, equal bits");
    assert_ne!(plan.cache, before.cache, "memory goes where it helps");

    learning.note_in(&mut plan, Some(without));
    let provenance = &plan.provenance;
    assert_eq!((provenance.learned_toml.as_deref(), provenance.learned_tokens), (Some("hash"), Some(1000)));
    let gain = planner::learned::gain(&plan).expect("it learned");
    assert_eq!(gain, format!("learned from 1000 tokens: planned {speed:.1} tok/s, {without:.1} without it"));
    assert_eq!(planner::learned::gain(&before), None);
}

#[test]
fn a_limit_that_only_counts_can_keep_has_no_plan_without_them() {
    let profiled = slices::mixture(32);
    let learning = learning(&profiled);
    let of = |inputs: &Inputs| {
        small::plan(inputs, &small::request(Some(MEM))).plan.expected.decode_tokens_per_second
    };
    let (less, more) = (of(&profiled), of(&learning.inputs));
    assert!(more > 1.01 * less, "{more} {less}");
    let speed = Some((less + more) / 2.0);
    let request = Request { decode_tokens_per_second_min: speed, ..small::request(Some(MEM)) };
    assert!(matches!(planner::plan(&profiled, &request).expect("a request"), Answer::Infeasible(_)));
    let mut plan = small::plan(&learning.inputs, &request).plan;
    assert_eq!(learning.unlearned_speed(&profiled, &request).expect("a request"), None);
    learning.note_in(&mut plan, None);
    assert!(planner::learned::gain(&plan).expect("it learned").ends_with(", no plan without it"));
}

#[test]
fn counts_of_others_and_few_counts_are_refused() {
    let inputs = slices::mixture(32);
    let refused = |learned: &Learned, inputs: &Inputs, part: &str| {
        let why = Learning::of(learned, String::new(), inputs).expect_err("it is refused");
        assert!(why.contains(part), "{why}");
    };
    let right = counts(&inputs, TOKENS_MIN);
    assert!(Learning::of(&right, String::new(), &inputs).is_ok());
    refused(&counts(&inputs, TOKENS_MIN - 1), &inputs, "it counts 255 tokens, and plans learn from 256 on");
    let mut other = right.clone();
    other.learned.model_fingerprint = "another".to_owned();
    refused(&other, &inputs, "another model");
    let mut other = right.clone();
    other.learned.container_fingerprint = "another".to_owned();
    refused(&other, &inputs, "another model or container");
    let mut other = right.clone();
    other.layers.pop();
    refused(&other, &inputs, "experts that model.toml does not have");
    refused(&right, &small::inputs(6), "experts that model.toml does not have");
}

/// A folder with the two profiles.
fn folder(name: &str) -> (PathBuf, Inputs) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    let inputs = slices::mixture(32);
    plans::file::write(&inputs.device, &folder.join("device.toml")).expect("device.toml");
    plans::file::write(&inputs.model, &folder.join("model.toml")).expect("model.toml");
    (folder, inputs)
}

#[track_caller]
fn run(folder: &Path, arguments: &[&str]) -> (String, String) {
    let mut command = Command::cargo_bin("plan").expect("the program");
    let Output { status, stdout, stderr } =
        command.current_dir(folder).args(arguments).output().expect("a run");
    let [out, err] = [stdout, stderr].map(|bytes| String::from_utf8(bytes).expect("text"));
    assert!(status.success(), "{arguments:?}\n{out}\n{err}");
    (out, err)
}

#[test]
fn plan_learns_from_the_file_beside_the_profile_unless_told_not_to() {
    let (folder, inputs) = folder("learned");
    let read = |name: &str| fs::read(folder.join(name)).expect("a plan");
    let mem = ["--mem", "34M", "--context", "256"];
    let plan = |more: &[&str]| run(&folder, &[&mem[..], more].concat());
    let (out, err) = plan(&["-o", "before.toml"]);
    assert!(!out.contains("learned") && err.is_empty(), "{out}{err}");

    let file = folder.join(FILE);
    plans::file::write(&counts(&inputs, 1000), &file).expect("learned.toml");
    let (out, err) = plan(&["-o", "learned-plan.toml"]);
    assert!(out.contains("\nlearned from 1000 tokens: planned ") && err.is_empty(), "{out}{err}");
    plan(&["-o", "again.toml"]);
    assert_eq!(read("again.toml"), read("learned-plan.toml"), "the same inputs, the same bytes");
    let (out, _) = plan(&["-o", "without.toml", "--no-learn"]);
    assert!(!out.contains("learned"), "{out}");
    assert_eq!(read("without.toml"), read("before.toml"));
    let (out, _) = run(&folder, &["--check", "learned-plan.toml", "before.toml"]);
    assert!(out.matches("the same plan.toml").count() == 2 && !out.contains("note"), "{out}");

    // other counts are another input, for the plan that learned from them alone
    let mut more = counts(&inputs, 1000);
    more.learned.tokens += 1;
    plans::file::write(&more, &file).expect("learned.toml");
    let (out, _) = run(&folder, &["--check", "learned-plan.toml", "before.toml"]);
    assert!(
        out.contains("learned-plan.toml: note: learned.toml has changed since the plan was made"),
        "{out}"
    );
    assert!(!out.contains("before.toml: note"), "{out}");

    // a damaged file, and one of another version, are as none
    let text = fs::read_to_string(&file).expect("learned.toml");
    for (from, to, part) in [
        ("tokens = 1001", "tokens = 1002", "checksum"),
        ("schema = 1", "schema = 2", "schema is 2"),
        ("[learned]", "[learned", "learned.toml, line"),
    ] {
        fs::write(&file, text.replace(from, to)).expect("written");
        let (_, err) = plan(&["-o", "damaged.toml"]);
        assert!(err.starts_with("note: nothing is learned from learned.toml") && err.contains(part), "{err}");
        assert!(err.matches('\n').count() == 1, "{err}");
        assert_eq!(read("damaged.toml"), read("before.toml"));
    }
}
