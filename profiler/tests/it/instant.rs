//! `profile --instant` and `profile --header`: profiles without calibration.
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use plans::file::read;
use plans::model::LayerActivity;
use plans::{Model, Policy};
use tempfile::TempDir;

use crate::programs::{Profiled, done, json, number, program};
use crate::server::{NAME, Server};

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(path)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A folder with a device that was measured elsewhere.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        fs::copy(fixture("../plans/tests/device.toml"), folder.path().join("device.toml")).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn profile(&self, arguments: &[&str]) -> Command {
        let mut profile = Command::new(env!("CARGO_BIN_EXE_profile"));
        profile.args(arguments).current_dir(self.0.path()).env("TMPDIR", self.0.path());
        profile.env("HF_HOME", self.path("hf")).env_remove("HF_HUB_CACHE").env_remove("HF_TOKEN");
        profile
    }

    #[track_caller]
    fn done(&self, arguments: &[&str]) -> Model {
        let output = self.profile(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", said(&output));
        read(&self.path("model.toml")).unwrap().value
    }

    #[track_caller]
    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.profile(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", said(&output));
        said(&output)
    }
}

#[test]
fn a_mixture_has_the_misses_of_recorded_routes_and_says_so() {
    let here = Place::new();
    let file = fixture("models/oxide-qwen.gguf");
    let model = here.done(&["--instant", file.to_str().unwrap()]);
    assert!(model.has_priors() && model.provenance.calibration_tokens == 0, "{:?}", model.provenance);
    assert!(model.provenance.notes.iter().any(|note| note.contains("recorded routes of Qwen3-30B-A3B")));
    assert!(here.path("oxide-qwen.index").exists(), "an index and no container");
    let [level] = &model.levels[..] else { panic!("{:?}", model.levels) };
    let upper = level.perplexity_change_fraction_upper.unwrap();
    assert_eq!((&*level.name, level.lossless), ("dense", upper == 0.0));
    // pinned experts are arbitrary, and found by chance; recent ones are found more often
    let half = model.reuse.cached_fraction.iter().position(|&cached| cached == 0.5).unwrap();
    let mean = |policy, share: usize| {
        let of = level.layers.iter().map(|layer| layer.misses(policy).unwrap()[share][half]);
        of.sum::<f64>() / level.layers.len() as f64
    };
    let (recent, pinned) = (mean(Policy::Lru, 0), mean(Policy::Lru, 4));
    assert!((0.4..0.6).contains(&pinned) && recent < pinned - 0.05, "{recent} {pinned}");
    for layer in &level.layers {
        let recent = &layer.misses(Policy::Lru).unwrap()[0];
        assert_eq!((recent[0], *recent.last().unwrap()), (1.0, 0.0));
        assert!(recent.is_sorted_by(|a, b| a >= b), "{recent:?}");
    }
    assert!(model.dense.perplexity > 1.0 && model.dense.perplexity < 1000.0);
    assert!(!here.path("neurons.csv").exists(), "nothing was counted");
}

#[test]
fn a_relu_model_runs_dense_and_is_read_in_place() {
    let here = Place::new();
    let file = fixture("models/oxide-dense.gguf");
    let model = here.done(&["--instant", "--model", file.to_str().unwrap()]);
    assert_eq!(model.levels.iter().map(|level| &*level.name).collect::<Vec<_>>(), ["dense"]);
    assert!(model.provenance.notes.iter().any(|note| note.contains("a full profile is faster")));
    assert!(here.path("oxide-dense.index").exists() && !here.path("oxide-dense.bundle").exists());
    // about as many neurons fire in a few tokens as in a full profile
    let full = fixture("../plans/amd-epyc-zen5-2c-24g/oxide-dense/model.toml");
    let full = read::<Model>(&full).unwrap().value;
    for (found, counted) in model.layers.iter().zip(&full.layers) {
        for of in [|it: &LayerActivity| it.active_gate_fraction, |it: &LayerActivity| it.active_true_fraction]
        {
            let ratio = of(found) / of(counted);
            assert!((0.5..2.0).contains(&ratio), "{found:?} {counted:?}");
        }
    }
    let packed = here.done(&["--instant", "--pack", "--name", "packed", file.to_str().unwrap()]);
    assert!(here.path("packed.bundle").exists() && packed.has_priors());
}

/// The checksums come of the pass that checks the file; `run` compares them with what it reads.
#[test]
fn an_index_has_the_checksums_of_what_run_reads() {
    for model in ["oxide-qwen", "oxide-dense"] {
        let here = Profiled::measured();
        let file = fixture(&format!("models/{model}.gguf")).canonicalize().unwrap();
        done(program("profile").arg("--instant").arg(&file).arg("--out").arg(here.folder.path()));
        here.plan("least.toml", &["--objective", "memory", "--max-loss", "1000"]);
        let report =
            json(here.run("least.toml").args(["--prompt", "fn main() { let", "-n", "8", "--no-probe"]));
        assert!(number(&report, "bytes_read_per_token") > 0.0, "{report}");
    }
}

#[test]
fn a_damaged_or_another_model_is_refused() {
    let here = Place::new();
    let mut bytes = fs::read(fixture("models/oxide-moe.gguf")).unwrap();
    // not a number in any format of floats, and as the scale of any block
    let at = bytes.len() - 512;
    bytes[at..].as_chunks_mut().0.fill([0xff, 0x7f]);
    fs::write(here.path("damaged.gguf"), &bytes).unwrap();
    let told = here.refused(&["--instant", "damaged.gguf"]);
    assert!(told.contains("infinite or not a number"), "{told}");
    assert!(!here.path("model.toml").exists());

    here.done(&["--instant", fixture("models/oxide-moe.gguf").to_str().unwrap()]);
    let told = here.refused(&["--instant", fixture("models/oxide-dense.gguf").to_str().unwrap()]);
    assert!(told.contains("--replace"), "{told}");
    let told = here.refused(&["--instant", "--quick", "model.gguf"]);
    assert!(told.contains("cannot be used with"), "{told}");
    fs::write(here.path("model.safetensors"), "x").unwrap();
    let told = here.refused(&["--instant", "model.safetensors"]);
    assert!(told.contains("weights alone") && told.contains("config.json"), "{told}");
}

/// Plans depend on shapes and misses: both must be the same from the header and from the whole file.
#[test]
fn a_header_says_what_the_file_does() {
    for name in ["oxide-qwen", "oxide-dense"] {
        let bytes = fs::read(fixture(&format!("models/{name}.gguf"))).unwrap();
        let server = Server::new(&[("M-F16.gguf", &bytes), ("M-Q2_K.gguf", &bytes)]);
        let here = Place::new();
        let output = here
            .profile(&["--header", "--model", &format!("hf:{NAME}:F16")])
            .env("HF_ENDPOINT", server.endpoint())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", said(&output));
        let asked: Vec<_> =
            server.asked().into_iter().filter(|it| it.path.starts_with("/storage/")).collect();
        let ranges: Vec<_> = asked.iter().map(|it| it.range.clone().unwrap()).collect();
        assert_eq!(ranges, ["bytes=0-1048575"], "a megabyte of {}", bytes.len());
        let header: Model = read(&here.path("model.toml")).unwrap().value;

        let here = Place::new();
        fs::write(here.path("M-F16.gguf"), &bytes).unwrap();
        let local = here.done(&["--header", "M-F16.gguf"]);
        fs::remove_file(here.path("model.toml")).unwrap();
        let whole = here.done(&["--instant", "M-F16.gguf"]);
        for other in [&local, &whole] {
            assert_eq!(header.architecture, other.architecture);
            assert_eq!(header.reuse, other.reuse);
            for (of_header, of_other) in header.levels[0].layers.iter().zip(&other.levels[0].layers) {
                assert_eq!(of_header.misses(Policy::Lru), of_other.misses(Policy::Lru));
                assert_eq!(of_header.predicted_neurons_mean, of_other.predicted_neurons_mean);
            }
            // how many neurons of a ReLU model fire is in its weights
            let fires = |model: &Model| model.layers.iter().map(|it| it.active_gate_fraction).sum::<f64>();
            assert_eq!(fires(&header), header.layers.len() as f64);
            assert_eq!(fires(&header) > fires(other), name == "oxide-dense" && other == &whole);
            let but_tokenizer =
                |model: &Model| plans::model::Parts { tokenizer_bytes: 0, ..model.parts.clone() };
            assert_eq!(but_tokenizer(&header), but_tokenizer(other));
            let (least, most) = (header.parts.tokenizer_bytes, other.parts.tokenizer_bytes);
            assert!(least.abs_diff(most) < least / 20, "{least} {most}");
        }
        // a profile that was measured stays
        let told = here.refused(&["--header", "M-F16.gguf"]);
        assert!(told.contains("would replace"), "{told}");
    }
}

#[test]
fn what_has_no_header_is_refused() {
    let server = Server::new(&[("M-F16.gguf", &[7; 5000])]);
    let here = Place::new();
    let mut command = here.profile(&["--header", "--model", &format!("hf:{NAME}")]);
    let output = command.env("HF_ENDPOINT", server.endpoint()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("no header of a GGUF file"), "{}", said(&output));
}
