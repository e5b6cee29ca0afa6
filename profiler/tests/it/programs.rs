//! The three programs as a user would run them, on a profiled fixture model.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use serde_json::Value;

/// A program of the workspace, built if it is not there.
pub(crate) fn program(name: &str) -> Command {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_BIN_EXE_profile")).parent().unwrap().to_owned();
        if ["run", "plan", "score", "examples/embed", "examples/sequences"]
            .iter()
            .any(|name| !folder.join(name).exists())
        {
            let mut cargo = Command::new(env!("CARGO"));
            cargo
                .args(["build", "--locked", "--bins", "--examples"])
                .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
            // `ring` is built anew whenever these are others than in the user's own cargo
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
        folder
    });
    let mut program = Command::new(FOLDER.join(name));
    // these profiles wait for each other, and for nobody else's
    program.env("TMPDIR", env!("CARGO_TARGET_TMPDIR"));
    program
}

/// The fixtures have no chat template of their own: this one serves them.
pub(crate) const TEMPLATE: &str = include_str!("../../../fixtures/clients/plain.jinja");

pub(crate) fn fixture(path: &str) -> String {
    format!("{}/../fixtures/{path}", env!("CARGO_MANIFEST_DIR"))
}

#[track_caller]
pub(crate) fn text(output: &[u8]) -> String {
    String::from_utf8(output.to_vec()).unwrap()
}

/// Runs a command that should succeed.
#[track_caller]
pub(crate) fn done(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}\n{}{}", text(&output.stdout), text(&output.stderr));
    output
}

#[track_caller]
pub(crate) fn json(command: &mut Command) -> Value {
    serde_json::from_slice(&done(command.arg("--json")).stdout).unwrap()
}

/// Runs a command that should fail with this code; says what it says.
#[track_caller]
pub(crate) fn refused(code: i32, command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{command:?}\n{}{said}", text(&output.stdout));
    said
}

/// The model with whose profile the machine is measured.
const MEASURED_WITH: &str = "oxide-dense";
/// Text of the fixtures' own kind: all of the built-in texts fill two minutes of a build with assertions.
pub(crate) const SHORT_TEXT: [&str; 2] =
    ["--text", concat!(env!("CARGO_MANIFEST_DIR"), "/texts/calibration/code.txt")];

/// The folder with this build's profile of a fixture model and this machine. It is created if missing, and locked by the file.
fn kept(model: &str) -> (PathBuf, File) {
    let fixture = fixture(&format!("models/{model}.gguf"));
    let hash = |path: &Path| blake3::hash(&std::fs::read(path).unwrap()).to_hex()[..16].to_owned();
    let made_by = hash(Path::new(env!("CARGO_BIN_EXE_profile")));
    let of = hash(Path::new(&fixture));
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("kept-{model}"));
    let lock = File::create(kept.with_extension("lock")).unwrap();
    lock.lock().unwrap();
    let (mark, key) = (kept.join("key"), format!("{made_by} {of}"));
    if std::fs::read_to_string(&mark).ok().as_deref() != Some(&key) {
        let _nothing_was_kept = std::fs::remove_dir_all(&kept);
        // one measurement of the machine for all
        let new = if model == MEASURED_WITH { Profiled::empty() } else { Profiled::measured() };
        new.profile(&fixture, &SHORT_TEXT);
        std::fs::rename(new.folder.keep(), &kept).unwrap();
        std::fs::write(mark, key).unwrap();
    }
    (kept, lock)
}

/// A profiled fixture model in a folder of its own.
pub(crate) struct Profiled {
    pub(crate) folder: tempfile::TempDir,
}

impl Profiled {
    /// A copy of this build's one profile of the model, for tests that measure no speed.
    pub(crate) fn kept(model: &str) -> Self {
        let (kept, _held) = kept(model);
        let here = Self::empty();
        for file in std::fs::read_dir(&kept).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), here.path(file.file_name().to_str().unwrap())).unwrap();
        }
        here
    }

    /// This machine, as this build's program has measured it once, for a profile of another model: a device takes the time of
    /// many small models.
    pub(crate) fn measured() -> Self {
        let (here, (kept, _held)) = (Self::empty(), kept(MEASURED_WITH));
        std::fs::copy(kept.join("device.toml"), here.path("device.toml")).unwrap();
        here
    }

    fn empty() -> Self {
        Self { folder: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap() }
    }

    pub(crate) fn profile(&self, model: &str, arguments: &[&str]) {
        let out = self.folder.path();
        done(program("profile").args(["--quick", "--model", model]).args(arguments).arg("--out").arg(out));
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn plan_command(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = program("plan");
        command.args(arguments).args(["-o", name]).current_dir(self.folder.path());
        command
    }

    /// Makes a plan, reads it back.
    pub(crate) fn plan(&self, name: &str, arguments: &[&str]) -> plans::Plan {
        done(&mut self.plan_command(name, arguments));
        plans::file::read(&self.path(name)).unwrap().value
    }

    pub(crate) fn run(&self, plan: &str) -> Command {
        let mut command = program("run");
        command.args(["--plan", plan]).current_dir(self.folder.path());
        command
    }

    /// A little more than the least limit under which there is a plan of this quality.
    pub(crate) fn tight(&self, quality: &[&str]) -> String {
        let least = self.plan("least.toml", &[&["--objective", "memory"], quality].concat());
        (least.memory.prefill_total_bytes + (1 << 20)).to_string()
    }
}

pub(crate) fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("{key} in {value}"))
}
