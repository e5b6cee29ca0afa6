//! Folders from Hugging Face's hub become GGUF files that a profile begins with, once.
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use flashplan::internals::model::gguf::Gguf;
use flashplan::internals::reference::{Reference, negative_log_likelihood};
use huggingface::{Quantisation, quantised};
use plans::model::Model;
use profiler::Context;
use profiler::model::text::{Texts, Windows};
use profiler::model::{ModelOptions, hub, profile};
use tempfile::TempDir;

fn golden(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/golden").join(path)
}

/// A folder to write into, and what was said.
struct Place {
    out: TempDir,
    context: Context,
    options: ModelOptions,
    said: Vec<String>,
}

impl Place {
    fn new(model: PathBuf) -> Self {
        let out = TempDir::new().unwrap();
        let folder = out.path().to_owned();
        let options = ModelOptions {
            model,
            text: None,
            routes: None,
            name: None,
            down: None,
            gate_levels: false,
            activation: None,
            weights: None,
            consume: false,
            replace: false,
            instant: false,
        };
        Self { context: Context::new(folder.clone(), folder, true), out, options, said: Vec::new() }
    }

    fn open(&mut self, quantisation: Option<Quantisation>) -> anyhow::Result<ModelOptions> {
        self.said.clear();
        hub::open(&self.context, self.options.clone(), quantisation, &mut |sentence| self.said.push(sentence))
    }

    fn names(&self) -> Vec<String> {
        let entries = self.out.path().read_dir().unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

#[test]
fn a_folder_is_made_into_a_file_once_and_measured() {
    let mut here = Place::new(golden("folders/qwen2"));
    let options = here.open(None).unwrap();
    assert_eq!(here.names(), ["qwen2.gguf"]);
    let bytes = fs::metadata(&options.model).unwrap().len();
    assert_eq!(here.said.len(), 1, "{:?}", here.said);
    let size = plans::size::show(bytes);
    assert!(
        here.said[0].contains(&format!("a qwen2 model; writes {size} (F16, F32) to ")),
        "{:?}",
        here.said
    );

    let before = fs::metadata(&options.model).unwrap().ino();
    assert_eq!(here.open(None).unwrap().model, options.model);
    assert_eq!(fs::metadata(&options.model).unwrap().ino(), before, "the same file");
    assert!(here.said[0].contains("is there"), "{:?}", here.said);

    let summary = profile(&here.context, &options).unwrap();
    assert_eq!(summary.name, "qwen2");

    // another folder by the same name
    here.options.model = golden("folders/qwen3");
    here.options.name = Some("qwen2".to_owned());
    let refused = here.open(None).unwrap_err().to_string();
    assert!(refused.contains("was not made of") && refused.contains("--replace"), "{refused}");
    here.options.replace = true;
    here.open(None).unwrap();
    assert_ne!(fs::metadata(&options.model).unwrap().ino(), before, "another file");
}

#[test]
fn what_quantising_loses_is_measured_told_and_kept() {
    let mut here = Place::new(golden("folders/qwen3"));
    let own = here.out.path().join("qwen3-q4_0.unquantised");
    fs::write(&own, "a user's").unwrap();
    let options = here.open(Some(Quantisation::Q4_0)).unwrap();
    assert_eq!(fs::read(&own).unwrap(), b"a user's");
    fs::remove_file(own).unwrap();
    assert_eq!(here.names(), ["qwen3-q4_0.gguf"], "what the folder's weights were written to is gone");
    let said = here.said.last().unwrap();

    // the slow obvious way over the same windows
    let perplexity = |path: &Path| {
        let source = flashplan::internals::model::source::SourceModel::open(path).unwrap();
        let tokenizer = source.tokenizer_data().unwrap().into_tokenizer().unwrap();
        let windows = Windows::new(&tokenizer, &Texts::built_in().held_out, source.config().context, 512);
        let (mut sum, mut count) = (0.0, 0);
        for window in &windows.tokens {
            let mut model = Reference::new(&source, kernels::best());
            for pair in window.windows(2) {
                sum += negative_log_likelihood(&model.step(pair[0], &mut ()), pair[1]);
                count += 1;
            }
        }
        (sum / f64::from(count)).exp()
    };
    let (before, after) = (perplexity(&golden("architectures/qwen3.gguf")), perplexity(&options.model));
    let number = |after: &str| {
        let text = said.split(after).nth(1).unwrap();
        text.split([' ', ',']).next().unwrap().parse::<f64>().unwrap()
    };
    assert!((number("perplexity ") / after - 1.0).abs() < 1e-3, "{said}: {after}");
    assert!(
        (number(&format!("{:.4}, ", number("perplexity "))) / before - 1.0).abs() < 1e-3,
        "{said}: {before}"
    );
    let gguf = Gguf::open(&options.model).unwrap();
    let (name, change) = quantised(&gguf).unwrap();
    assert_eq!(name, "q4_0");
    assert!((change - (after / before - 1.0)).abs() < 1e-3, "{change}");
    assert!(change != 0.0 && said.contains(&format!("{:+.2} %", change * 100.0)), "{said}");

    profile(&here.context, &options).unwrap();
    let model = plans::file::read::<Model>(&here.out.path().join("model.toml")).unwrap().value;
    let note = format!(
        "The source was quantised to q4_0 from a folder of Hugging Face's: its perplexity changed by {:+.2} %",
        change * 100.0
    );
    assert!(model.provenance.notes[0].starts_with(&note), "{:?}", model.provenance.notes);
}

#[test]
fn a_perplexity_that_is_no_number_is_refused() {
    let folder = TempDir::new().unwrap();
    for file in golden("folders/qwen3").read_dir().unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    // logits so large that the likelihood of a text is 0
    let path = folder.path().join("model.safetensors");
    let mut file = fs::read(&path).unwrap();
    let count = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&file[8..8 + count]).unwrap();
    let [start, end] =
        [0, 1].map(|at| header["model.norm.weight"]["data_offsets"][at].as_u64().unwrap() as usize);
    for value in file[8 + count..][start..end].chunks_mut(2) {
        value.copy_from_slice(&half::f16::MAX.to_le_bytes());
    }
    fs::write(&path, file).unwrap();
    let mut here = Place::new(folder.path().to_owned());
    let refused = here.open(Some(Quantisation::Q8_0)).unwrap_err().to_string();
    assert!(refused.contains("the perplexity of held-out text is inf"), "{refused}");
    assert!(here.names().is_empty(), "{:?}", here.names());
}

#[test]
fn a_folder_of_the_hubs_cache_has_its_models_name() {
    let cache = TempDir::new().unwrap();
    let model = cache.path().join("models--someone--A-Model-1B");
    let snapshot = model.join("snapshots/0123abcd");
    fs::create_dir_all(model.join("blobs")).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    for (number, file) in golden("folders/qwen2").read_dir().unwrap().enumerate() {
        let file = file.unwrap();
        fs::copy(file.path(), model.join(format!("blobs/{number}"))).unwrap();
        std::os::unix::fs::symlink(format!("../../blobs/{number}"), snapshot.join(file.file_name())).unwrap();
    }
    let mut here = Place::new(snapshot);
    here.open(None).unwrap();
    assert_eq!(here.names(), ["A-Model-1B.gguf"]);
}

#[test]
fn a_consumed_file_is_gone_and_its_folder_is_not() {
    let folder = TempDir::new().unwrap();
    for file in golden("folders/qwen2").read_dir().unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    let mut here = Place::new(folder.path().to_owned());
    here.options.name = Some("small".to_owned());
    here.options.consume = true;
    let options = here.open(None).unwrap();
    profile(&here.context, &options).unwrap();
    assert!(
        !options.model.exists() && here.names().contains(&"small.bundle".to_owned()),
        "{:?}",
        here.names()
    );
    assert!(huggingface::is_folder(folder.path()) && folder.path().join("model.safetensors").exists());
}

#[test]
fn what_is_no_folder_from_the_hub_is_left_as_it_is() {
    let file = golden("architectures/qwen2.gguf");
    let mut here = Place::new(file.clone());
    assert_eq!(here.open(None).unwrap().model, file);
    let refused = here.open(Some(Quantisation::Q8_0)).unwrap_err().to_string();
    assert!(refused.contains("--quantize is for folders") && refused.contains("llama-quantize"), "{refused}");

    // a folder with a GGUF file in it is that file's
    let both = TempDir::new().unwrap();
    fs::copy(golden("folders/qwen2/config.json"), both.path().join("config.json")).unwrap();
    fs::copy(file, both.path().join("qwen2.gguf")).unwrap();
    here.options.model = both.path().to_owned();
    assert_eq!(here.open(None).unwrap().model, both.path());
    assert!(here.names().is_empty());
}
