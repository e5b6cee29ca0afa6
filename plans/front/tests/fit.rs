//! `flashplan fit` with a hub on this machine.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

#[expect(dead_code, reason = "the hub's own tests use the rest of it")]
#[path = "../../../profiler/hub/tests/server/mod.rs"]
mod server;

use server::{NAME, Server};

/// A hub with a model in two files, one of them no model.
struct Place {
    server: Server,
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models/oxide-qwen.gguf");
        let model = std::fs::read(path).unwrap();
        let server =
            Server::new(&[("M-F16.gguf", &model), ("M-Q2_K.gguf", &[7; 4000]), ("mmproj-M.gguf", b"x")]);
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        std::fs::write(folder.path().join("local.gguf"), &model).unwrap();
        Self { server, folder }
    }

    fn fit(&self, model: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flashplan"));
        command.args(["fit", model, "--device", "rpi5"]).args(arguments).current_dir(self.folder.path());
        command.env("HF_ENDPOINT", self.server.endpoint()).env("HF_HOME", self.folder.path().join("hf"));
        command.env("HOME", self.folder.path()).env_remove("XDG_DATA_HOME").env_remove("HF_TOKEN");
        command.output().unwrap()
    }

    #[track_caller]
    fn report(&self, model: &str, arguments: &[&str]) -> Value {
        let output = self.fit(model, &[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

#[test]
fn quantisations_are_planned_from_their_headers_alone() {
    let here = Place::new();
    let report = here.report(&format!("hf:{NAME}"), &["--mem", "1M,40M"]);
    assert_eq!(report["device"], "raspberry-pi-5-16g");
    let models = report["models"].as_array().unwrap();
    assert_eq!(models.len(), 2, "the smallest first, and no projector: {report}");
    assert!(models[0]["refused"].as_str().unwrap().contains("no header of a GGUF file"), "{report}");
    let good = &models[1];
    assert_eq!(good["model"], format!("hf:{NAME}:F16"));
    let bytes = here.folder.path().join("local.gguf").metadata().unwrap().len();
    assert_eq!(good["disk_bytes"], bytes);
    let [small, large] = &good["limits"].as_array().unwrap()[..] else { panic!("{report}") };
    assert!(small["fits"] == false && !small["why"].as_array().unwrap().is_empty(), "{report}");
    assert_eq!(large["fits"], true);
    let speed = large["decode_tokens_per_second"].as_f64().unwrap();
    let between = large["decode_tokens_per_second_between"].as_array().unwrap();
    assert!(between[0].as_f64().unwrap() < speed && speed < between[1].as_f64().unwrap(), "{report}");
    assert!(["disk", "memory", "compute"].contains(&large["bound_by"].as_str().unwrap()), "{report}");
    assert!(large["memory_peak_bytes"].as_u64().unwrap() <= 40 << 20, "{report}");
    let asked: Vec<_> =
        here.server.asked().into_iter().filter(|it| it.path.starts_with("/storage/")).collect();
    assert!(asked.iter().all(|it| it.range.is_some()), "ranges alone: {asked:?}");

    // from a file that is here
    let local = here.report("local.gguf", &["--mem", "40M"]);
    assert_eq!(
        local["models"][0]["limits"][0]["decode_tokens_per_second"],
        large["decode_tokens_per_second"]
    );
    // less memory is never faster
    let tight = here.report("local.gguf", &["--mem", "14M,40M"]);
    let cell = &tight["models"][0]["limits"][0];
    assert!(cell["decode_tokens_per_second"].as_f64().is_none_or(|tight| tight <= speed), "{tight}");
}

#[test]
fn people_have_a_table_and_scripts_an_exit_code() {
    let here = Place::new();
    let output = here.fit(&format!("hf:{NAME}:F16"), &["--mem", "1M,40M"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for part in ["on raspberry-pi-5-16g", "in 1.0 MiB", "in 40.0 MiB", "does not fit", "F16"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(here.fit("local.gguf", &["--mem", "1M"]).status.code(), Some(2), "nothing fits");
    let refused = |model: &str, arguments: &[&str]| {
        let output = here.fit(model, arguments);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused(&format!("hf:{NAME}:Q9"), &[]).contains("has no Q9"));
    assert!(refused("nowhere.gguf", &[]).contains("there is no file or folder"));
    assert!(refused("local.gguf", &["--device", "nowhere"]).contains("cannot be used multiple times"));
}
