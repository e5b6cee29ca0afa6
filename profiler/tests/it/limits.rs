//! Small models through the three programs: the logits of the reference at every memory limit.

use flashplan::internals::container::{Container, Section};
use flashplan::internals::model::source::SourceModel;
use flashplan::internals::reference::{Observer, Reference, Selector};
use kernels::best;

use crate::architectures::Golden;
use crate::programs::{Profiled, done, json, number, program, refused};
use crate::tiny;

/// Maximum change of logits by 8-bit vectors and by down rows that are quantised again, as a share of the logits' deviation.
///
/// Wrong down rows, or a missing minimum, change more than the whole deviation.
const LOSS: f32 = 0.05;

#[test]
fn a_model_of_k_quants_from_profile_to_the_logits_of_the_reference() {
    const TOKENS: [u32; 8] = [70, 12, 200, 3, 3, 151, 99, 256];
    let here = Profiled::measured();
    let model = tiny::model(1, tiny::Format::Q4KM);
    std::fs::write(here.path("tiny.gguf"), &model).unwrap();
    std::fs::write(here.path("text.txt"), tiny::text()).unwrap();
    let [path, calibration] = ["tiny.gguf", "text.txt"].map(|name| here.path(name).display().to_string());
    here.profile(&path, &["--text", &calibration]);

    let tight = here.tight(&["--level", "dense"]);
    let plan = here.plan("dense.toml", &["--mem", &tight, "--level", "dense"]);
    assert_eq!(plan.quality.activations, "q8");
    let tokens = TOKENS.map(|token| token.to_string()).join(" ");
    let files = ["--logits", "decoded.npy", "--logits-prefill", "prompt.npy"];
    done(here.run("dense.toml").args(["--tokens", &tokens]).args(files));

    // losses are against the source file, of which the container has lost something
    std::fs::write(here.path("scored.txt"), &tiny::text()[2000..]).unwrap();
    let scored = |source: &[&str]| json(here.run("dense.toml").args(["--score", "scored.txt"]).args(source));
    let [by_profile, read] = [scored(&[]), scored(&["--source", &path])];
    let [dense, container] = ["perplexity_dense", "perplexity_container"].map(|key| number(&read, key));
    assert!(dense != container && number(&by_profile, "perplexity_container") == container, "{read}");
    let change = number(&read, "perplexity_change_fraction");
    assert!((number(&read, "perplexity_plan") / dense - 1.0 - change).abs() < 1e-9, "{read}");
    let lost = plan.expected.container_perplexity_change_fraction.unwrap();
    assert!((container / number(&by_profile, "perplexity_dense") - 1.0 - lost).abs() < 1e-9, "{by_profile}");
    assert!((container / dense - 1.0 - lost).abs() < 0.02, "{lost} by the profile: {read}");

    let source = SourceModel::open(&path).unwrap();
    let mut reference = Reference::new(&source, best());
    let expected: Vec<f32> = TOKENS.iter().flat_map(|&token| reference.step(token, &mut ())).collect();
    let deviation = (expected.iter().map(|l| l * l).sum::<f32>() / expected.len() as f32).sqrt();
    for file in ["decoded.npy", "prompt.npy"] {
        let bytes = std::fs::read(here.path(file)).unwrap();
        assert_eq!(bytes.len(), 128 + 4 * expected.len(), "{file}: a number for each of the reference's");
        let logits = bytes[128..].as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        let (mut squares, mut count) = (0.0, 0);
        for (logit, expected) in logits.zip(&expected) {
            (squares, count) = (squares + (logit - expected).powi(2), count + 1);
        }
        let off = (squares / count as f32).sqrt() / deviation;
        assert!(count == expected.len() && off < LOSS, "{file}: {off}");
        assert!(off > 0.0, "{file} is not the reference's own");
    }
}

#[test]
fn a_mixture_whose_neurons_all_fire_from_profile_to_the_same_logits_at_every_limit() {
    // an expert of 18 KiB is one slice; keys and values are kept in 16 bits
    same_logits_at_every_limit(4, tiny::Format::F16, 40 << 10, 96, 0.01);
}

#[test]
fn a_mixed_file_whose_neurons_all_fire_loses_nothing_from_profile_to_the_same_logits_at_every_limit() {
    // a layer is one block of down, of another format in each; vectors are rounded to 8 bits
    same_logits_at_every_limit(1, tiny::Format::Q4KM, 160 << 10, 256, 0.05);
    same_logits_at_every_limit(4, tiny::Format::Q4KM, 600 << 10, 256, 0.05);
}

/// Runs plans for the least memory, for `more` bytes more, and for everything: each has the source's logits, to `far` of the largest.
///
/// Weights come from the model's file. A container gives the same bits, and so does a model in two files.
fn same_logits_at_every_limit(experts: u32, format: tiny::Format, more: u64, slice: u32, far: f32) {
    let here = Profiled::measured();
    std::fs::write(here.path("tiny.gguf"), tiny::model_with(experts, format, "silu")).unwrap();
    std::fs::write(here.path("text.txt"), tiny::text()).unwrap();
    let [path, calibration] = ["tiny.gguf", "text.txt"].map(|name| here.path(name).display().to_string());
    here.profile(&path, &["--text", &calibration, "--index"]);
    let bytes = |name: &str| std::fs::metadata(here.path(name)).unwrap().len();
    assert!(!here.path("tiny.bundle").exists() && bytes("tiny.index") < 64 << 10, "{}", bytes("tiny.index"));

    let least = here.plan("least.toml", &["--objective", "memory", "--max-loss", "0"]);
    // by the cores of the least: another thread takes 64 KiB, which the measured rates would decide about
    let cores: Vec<String> = least.decode.compute_cores.iter().map(u32::to_string).collect();
    let all = here.plan("all.toml", &["--max-loss", "0"]);
    let cached = |plan: &plans::Plan| plan.memory.hot_bytes + plan.memory.cold_bytes;
    // the least is so to within the gap, which a tiny model may fit into: then less than `more` is some
    let with = |more: u64| {
        let limit = (least.memory.prefill_total_bytes + more).to_string();
        here.plan("some.toml", &["--mem", &limit, "--max-loss", "0", "--cores", &cores.join(",")])
    };
    let some = [more, more / 2, 0].into_iter().map(with).find(|some| cached(some) < cached(&all)).unwrap();
    let of_all = [&least, &some, &all].map(|plan| &plan.memory);
    assert!(cached(&least) < cached(&some) && cached(&some) < cached(&all), "{of_all:?}");
    for plan in [&least, &some, &all] {
        assert_eq!(
            (plan.cache.slice_neurons, plan.read.parts, &*plan.target.container),
            (slice, 3, "tiny.index")
        );
    }

    let source = SourceModel::open(&path).unwrap();
    let mut reference = Reference::new(&source, best());
    let expected: Vec<f32> = LOGITS_OF.iter().flat_map(|&token| reference.step(token, &mut ())).collect();
    let largest = compare::largest(&expected);
    let mut same: Option<[Vec<u8>; 2]> = None;
    for plan in ["least.toml", "some.toml", "all.toml"] {
        let found = logits(&here, plan);
        for bytes in &found {
            let logits = bytes[128..].as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            let off = compare::largest_difference(&logits.collect::<Vec<f32>>(), &expected);
            assert!(off < far * largest, "{plan}: {off} of {largest}");
        }
        assert!(*same.get_or_insert_with(|| found.clone()) == found, "{plan}: other bits");
        let report = json(here.run(plan).args(["--prompt", "neuron gate", "-n", "8", "--no-probe"]));
        assert!(
            number(&report, "memory_peak_bytes") <= number(&report, "memory_limit_bytes"),
            "{plan}: {report}"
        );
    }
    let same = same.unwrap();

    // packed
    let packed = Profiled::measured();
    packed.profile(&path, &["--text", &calibration, "--pack"]);
    let plan = packed.plan("least.toml", &["--objective", "memory", "--max-loss", "0"]);
    assert_eq!(
        (plan.cache.slice_neurons, plan.read.parts, &*plan.target.container),
        (slice, 1, "tiny.bundle")
    );
    assert!(logits(&packed, "least.toml") == same, "a container has other bits");

    // in two files
    let split = Profiled::measured();
    for (file, bytes) in (1..).zip(tiny::split_model_with(experts, format, "silu")) {
        std::fs::write(split.path(&format!("tiny-{file:05}-of-00002.gguf")), bytes).unwrap();
    }
    let first = split.path("tiny-00001-of-00002.gguf").display().to_string();
    split.profile(&first, &["--text", &calibration, "--index"]);
    split.plan("least.toml", &["--objective", "memory", "--max-loss", "0"]);
    assert!(logits(&split, "least.toml") == same, "two files have other bits");
}

#[test]
fn experts_with_exact_zeros_are_read_whole_from_the_models_own_file() {
    // without gates, and with them
    for name in ["nemotron_h_moe", "smallthinker"] {
        let (here, golden) = (Profiled::measured(), Golden::of(name));
        std::fs::copy(&golden.model, here.path("model.gguf")).unwrap();
        let path = here.path("model.gguf").display().to_string();
        here.profile(&path, &["--index"]);
        let model = plans::file::read::<plans::Model>(&here.path("model.toml")).unwrap().value;
        assert!(here.path("model.index").exists() && !here.path("model.bundle").exists());
        // nothing that reads single neurons, and no loss
        assert_eq!(model.levels.len(), 1, "{name}");
        assert!(model.levels[0].lossless && !model.architecture.down_transposed, "{name}");

        let least = here.plan("least.toml", &["--objective", "memory"]);
        let all = here.plan("all.toml", &[]);
        assert!(
            least.memory.hot_bytes + least.memory.cold_bytes < all.memory.hot_bytes + all.memory.cold_bytes
        );
        let mut same = None;
        for plan in ["least.toml", "all.toml"] {
            golden.runs(&here, plan, &mut same);
        }
    }

    // experts are whole or neurons are single: both cannot be asked for
    let here = Profiled::measured();
    let said = refused(1, &mut {
        let mut profile = program("profile");
        profile.args(["--quick", "--index", "--down", "Q8_0", "--model", &Golden::of("smallthinker").model]);
        profile.arg("--out").arg(here.folder.path());
        profile
    });
    assert!(said.contains("all weights go into a container; leave out --index"), "{said}");
}

/// Leaves out what a container's level does.
struct Cut {
    /// `[layer][expert][neuron]`.
    thresholds: Vec<Vec<Vec<f32>>>,
}

impl Cut {
    /// As the container says it, whose neurons are in another order than the source's.
    fn of(container: &Container, level: &str) -> Self {
        let (d, files) = (&container.directory, container.files(false).unwrap());
        let section = |section, what| -> Vec<u8> {
            let section: &Section = section;
            let mut bytes = vec![0; section.bytes as usize];
            container.read_section(&files, section, what, &mut bytes).unwrap();
            bytes
        };
        let thresholds = section(container.level(level).unwrap().thresholds.as_ref().unwrap(), "thresholds");
        let tables = section(&d.tables, "tables");
        let word = |bytes: &[u8], at: usize| -> [u8; 4] { bytes[4 * at..][..4].try_into().unwrap() };
        let (neurons, width) = (container.neurons(), d.config.ffn_width());
        let of_layer = |layer: usize| {
            let mut of_layer = vec![vec![0.0; width]; d.config.experts()];
            let mut seen = vec![0; d.config.experts()];
            for rank in 0..neurons {
                let source = u32::from_le_bytes(word(&tables, 3 * layer * neurons + rank)) as usize;
                let expert = source / width;
                let at = layer * neurons + expert * width + seen[expert];
                seen[expert] += 1;
                of_layer[expert][source % width] = f32::from_le_bytes(word(&thresholds, at));
            }
            of_layer
        };
        Self { thresholds: (0..d.config.layers()).map(of_layer).collect() }
    }
}

impl Observer for Cut {
    fn feed_forward(&mut self, _: usize, _: usize, _: &[f32], _: &[f32], _: &[f32]) {}
}

impl Selector for Cut {
    fn select(&mut self, layer: usize, expert: usize, _: &[f32], gate: &[f32], selected: &mut [bool]) {
        let thresholds = &self.thresholds[layer][expert];
        for ((selected, gate), least) in selected.iter_mut().zip(gate).zip(thresholds) {
            *selected = (gate / (1.0 + (-gate).exp())).abs() >= *least;
        }
    }
}

#[test]
fn a_model_whose_small_gates_are_left_out_from_profile_to_the_reference_that_leaves_out_the_same() {
    for experts in [1, 4] {
        let here = Profiled::measured();
        std::fs::write(here.path("tiny.gguf"), tiny::model_with(experts, tiny::Format::F16, "silu")).unwrap();
        std::fs::write(here.path("text.txt"), tiny::text()).unwrap();
        let [path, calibration] = ["tiny.gguf", "text.txt"].map(|name| here.path(name).display().to_string());
        here.profile(&path, &["--text", &calibration, "--gate-levels"]);
        let level = "gate-threshold-27";
        let chosen = ["--level", level, "--max-loss", "1000"];
        let none = here.plan("none.toml", &[&["--without", "cache"][..], &chosen].concat());
        let all = here.plan("all.toml", &chosen);
        let cached = |plan: &plans::Plan| plan.memory.hot_bytes + plan.memory.cold_bytes;
        assert!(cached(&none) == 0 && cached(&all) > 0, "{:?} {:?}", none.memory, all.memory);

        let source = SourceModel::open(&path).unwrap();
        let mut cut = Cut::of(&Container::open(&here.path("tiny.bundle")).unwrap(), level);
        let mut reference = Reference::new(&source, best());
        let expected: Vec<f32> =
            LOGITS_OF.iter().flat_map(|&token| reference.step_selected(token, &mut cut)).collect();
        let largest = compare::largest(&expected);
        let mut same: Option<[Vec<u8>; 2]> = None;
        for plan in ["none.toml", "all.toml"] {
            let found = logits(&here, plan);
            let decoded = found[0][128..].as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            let off = compare::largest_difference(&decoded.collect::<Vec<f32>>(), &expected);
            // keys and values are kept in 16 bits
            assert!(off < 0.01 * largest, "{experts} experts, {plan}: {off} of {largest}");
            assert!(*same.get_or_insert_with(|| found.clone()) == found, "{plan}: other bits");
            let report = json(here.run(plan).args(["--prompt", "neuron gate", "-n", "8", "--no-probe"]));
            let peak = number(&report, "memory_peak_bytes");
            assert!(peak <= number(&report, "memory_limit_bytes"), "{plan}: {report}");
        }
    }
}

/// Tokens whose logits are compared.
const LOGITS_OF: [u32; 8] = [70, 12, 200, 3, 3, 151, 99, 256];

/// Logits of [`LOGITS_OF`] by decoding and by a prompt, as files.
fn logits(here: &Profiled, plan: &str) -> [Vec<u8>; 2] {
    let tokens = LOGITS_OF.map(|token| token.to_string()).join(" ");
    let files = ["--logits", "decoded.npy", "--logits-prefill", "prompt.npy"];
    done(here.run(plan).args(["--tokens", &tokens, "--no-probe"]).args(files));
    ["decoded.npy", "prompt.npy"].map(|name| std::fs::read(here.path(name)).unwrap())
}

#[test]
fn a_models_own_file_is_found_and_nothing_is_read_from_another() {
    let here = Profiled::measured();
    let model = tiny::model_with(4, tiny::Format::F16, "silu");
    for folder in ["models", "out", "elsewhere"] {
        std::fs::create_dir(here.path(folder)).unwrap();
    }
    std::fs::rename(here.path("device.toml"), here.path("out/device.toml")).unwrap();
    std::fs::write(here.path("models/tiny.gguf"), &model).unwrap();
    std::fs::write(here.path("text.txt"), tiny::text()).unwrap();
    let profile = |arguments: &[&str]| {
        let mut profile = program("profile");
        let all = ["--quick", "--model", "models/tiny.gguf", "--text", "text.txt", "--out", "out"];
        profile.args(all).args(arguments).current_dir(here.folder.path());
        profile
    };
    // what is read later is not given away
    let said = refused(1, &mut profile(&["--index", "--consume-model"]));
    assert!(said.contains("--consume-model does not go with --index"), "{said}");
    // whole experts are not packed unless that is asked for
    done(&mut profile(&[]));
    let files = ["--device", "out/device.toml", "--model", "out/model.toml", "--objective", "memory"];
    here.plan("plan.toml", &[&files[..], &["--max-loss", "0"]].concat());
    let run = |arguments: &[&str]| {
        let mut run = here.run("plan.toml");
        run.args(["--tokens", "7 8", "-n", "4", "--no-probe"]).args(arguments);
        run
    };
    // the index beside its profile, the model where it was profiled
    let tokens = json(&mut run(&[]))["tokens"].clone();
    std::fs::rename(here.path("models/tiny.gguf"), here.path("elsewhere/tiny.gguf")).unwrap();
    let said = refused(1, &mut run(&[]));
    assert!(said.contains("tiny.gguf, whose weights") && said.contains("name it with --model"), "{said}");
    assert_eq!(json(&mut run(&["--model", "elsewhere/tiny.gguf"]))["tokens"], tokens);
    std::fs::rename(here.path("elsewhere/tiny.gguf"), here.path("out/tiny.gguf")).unwrap();
    assert_eq!(json(&mut run(&["--model", "out/tiny.index"]))["tokens"], tokens);
    // another model of the same name, and one in which a byte of every expert has changed
    std::fs::write(here.path("out/tiny.gguf"), tiny::model_with(1, tiny::Format::F16, "silu")).unwrap();
    let said = refused(1, &mut run(&[]));
    assert!(said.contains("is not the file that") && said.contains("get that file again"), "{said}");
    let mut changed = model;
    let end = changed.len();
    changed[end - 64 * 96 * 4..].iter_mut().step_by(64).for_each(|byte| *byte ^= 1);
    std::fs::write(here.path("out/tiny.gguf"), changed).unwrap();
    let said = refused(1, &mut run(&[]));
    assert!(said.contains("of an expert of layer 1") && said.contains("make its index again"), "{said}");
}
