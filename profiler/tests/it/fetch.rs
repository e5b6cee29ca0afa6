//! `profile --model hf:OWNER/REPO` as a user runs it, with a hub on this machine.
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use flashplan::internals::container::Container;
use tempfile::TempDir;

use crate::server::{COMMIT, NAME, Server};

fn golden(path: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/golden").join(path)).unwrap()
}

/// A hub, and a folder for the cache and what is written.
struct Place {
    server: Server,
    folder: TempDir,
}

impl Place {
    fn new(files: &[(&str, &[u8])]) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        // the device is known already, so that only the model is measured
        let device = concat!(env!("CARGO_MANIFEST_DIR"), "/../plans/tests/device.toml");
        fs::create_dir(folder.path().join("out")).unwrap();
        fs::copy(device, folder.path().join("out/device.toml")).unwrap();
        Self { server: Server::new(files), folder }
    }

    fn profile(&self, asked: &str, arguments: &[&str]) -> Output {
        let mut profile = Command::new(env!("CARGO_BIN_EXE_profile"));
        profile.args(["--quick", "--out", "out", "--model", &format!("hf:{NAME}{asked}")]).args(arguments);
        // a profile of its own, which waits for nobody
        profile.current_dir(self.folder.path()).env("TMPDIR", self.folder.path());
        profile.env("HF_ENDPOINT", self.server.endpoint()).env("HF_HOME", self.folder.path().join("hf"));
        profile.env_remove("HF_HUB_CACHE").env_remove("HF_TOKEN").output().unwrap()
    }

    /// The output of a profile that downloads its model and then refuses a text that is too short.
    fn fetched(&self, asked: &str) -> String {
        fs::write(self.folder.path().join("short.txt"), "a few words").unwrap();
        let output = self.profile(asked, &["--text", "short.txt"]);
        assert!(said(&output).contains("the text is too short"), "{}", said(&output));
        said(&output)
    }

    fn files_asked(&self) -> usize {
        self.server.asked().iter().filter(|it| it.path.starts_with("/storage/")).count()
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_model_is_fetched_measured_and_read_in_place_by_its_own_name() {
    let model = golden("architectures/qwen3moe.gguf");
    let here = Place::new(&[("Tiny-F16.gguf", &model), ("Tiny-Q2_K.gguf", b"no model")]);
    let output = here.profile(":f16", &[]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(
        said(&output).contains(&format!("hub: {NAME} at {COMMIT:.12}: Tiny-F16.gguf")),
        "{}",
        said(&output)
    );
    assert_eq!(here.files_asked(), 1);

    // experts are read from the cache, and the file is called as on the hub, not by its checksum
    let out = here.folder.path().join("out");
    let index = Container::open(&out.join("Tiny-F16.index")).unwrap();
    let source = index.directory.source.as_ref().unwrap();
    assert_eq!(source.files[0].name, "Tiny-F16.gguf");
    assert!(source.folder.ends_with(format!("snapshots/{COMMIT}")), "{}", source.folder.display());

    let again = here.fetched(":f16");
    assert!(again.contains("all of it is in"), "{again}");
    assert_eq!(here.files_asked(), 0);
}

#[test]
fn a_folder_with_safetensors_becomes_a_file() {
    let files = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
    let bytes: Vec<_> = files.iter().map(|file| golden(&format!("folders/qwen3/{file}"))).collect();
    let files: Vec<_> = files.iter().zip(&bytes).map(|(&file, bytes)| (file, bytes.as_slice())).collect();
    let here = Place::new(&files);
    let said = here.fetched("");
    assert!(here.folder.path().join("out/A-Model.gguf").exists(), "{said}");
}

#[test]
fn what_cannot_be_is_refused_before_a_byte_is_fetched() {
    let here = Place::new(&[("Tiny-F16.gguf", &[7; 1000]), ("Tiny-Q2_K.gguf", &[8; 900])]);
    let refused = |asked: &str, arguments: &[&str]| {
        let output = here.profile(asked, arguments);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        said(&output)
    };
    let text = refused("", &[]);
    assert!(text.contains("has 2 models; name one of\n  hf:someone/A-Model:Q2_K  900 B\n"), "{text}");
    let text = refused(":F16", &["--consume-model"]);
    assert!(text.contains("--consume-model would leave holes in the hub's cache"), "{text}");
    here.server.behave().announced = Some(1 << 45);
    let text = refused(":F16", &[]);
    assert!(text.contains("32.0 TiB of someone/A-Model are to be fetched; make room"), "{text}");
    assert_eq!(here.files_asked(), 0);
}
