//! Folders of every architecture against the files that llama.cpp's converter made of the same models, and folders that lie.

use std::fs;
use std::path::{Path, PathBuf};

use flashplan::internals::model::gguf::{Gguf, Value};
use flashplan::internals::model::source::SourceModel;
use tempfile::TempDir;

use crate::conversion::{Conversion, Quantisation};

/// The models of `fixtures/golden/folders`.
const MODELS: [&str; 18] = [
    "llama3", "llama-linear", "llama-yarn", "qwen2", "qwen3", "qwen3moe", "olmoe", "mistral", "ministral3", "phi3", "phi4", "gemma3",
    "granite", "granitemoe", "granitemoe-shared", "gpt-oss", "gpt-oss-mxfp4", "mixtral",
];

fn golden(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/golden").join(path)
}

fn converted(folder: &Path, quantisation: Option<Quantisation>) -> (TempDir, PathBuf) {
    let place = TempDir::new().unwrap();
    let path = place.path().join("made.gguf");
    let conversion = Conversion::new(folder, quantisation, place.path()).unwrap();
    conversion.write(&path, &|| false).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), conversion.bytes(), "the size that was told");
    (place, path)
}

/// Keys that say nothing of the model, or are compared otherwise.
const OTHER_KEYS: [&str; 5] =
    ["general.name", "general.size_label", "general.file_type", "tokenizer.ggml.pre", "flashplan.folder"];

/// Texts that rules cut differently.
const TEXTS: [&str; 4] =
    ["The quick brown fox, in 2026: 1234 pages!", "  don't  WON'T\n\n\tlet x = 10;", "e\u{301}té \u{1f600} ", "a\u{2581}b ÀÉ ½ 12345"];

#[test]
fn a_folder_becomes_what_llama_cpps_converter_makes_of_it() {
    for name in MODELS {
        let (_place, path) = converted(&golden(&format!("folders/{name}")), None);
        let (made, expected) = (Gguf::open(&path).unwrap(), Gguf::open(golden(&format!("architectures/{name}.gguf"))).unwrap());
        for tensor in expected.tensors() {
            let own = made.tensor(&tensor.name).unwrap_or_else(|| panic!("{name} lacks {}", tensor.name));
            assert_eq!((own.dims, own.kind), (tensor.dims, tensor.kind), "{name}: {}", tensor.name);
            assert!(made.tensor_bytes(own) == expected.tensor_bytes(tensor), "{name}: {} differs", tensor.name);
        }
        assert_eq!(made.tensors().len(), expected.tensors().len(), "{name}: as many tensors");
        let keys = |gguf: &'_ Gguf<'_>| -> Vec<(String, Value)> {
            let told = gguf.keys().filter(|(key, _)| !OTHER_KEYS.contains(key));
            told.map(|(key, value)| (key.to_owned(), value.clone())).collect()
        };
        let (own, others) = (keys(&made), keys(&expected));
        for (key, value) in &others {
            assert_eq!(made.value(key), Some(value), "{name}: {key}");
        }
        let more: Vec<_> = own.iter().filter(|(key, _)| expected.value(key).is_none()).collect();
        assert!(more.is_empty(), "{name}: {more:?}");
        let (own, other) = (SourceModel::open(&path).unwrap(), SourceModel::from_gguf(expected).unwrap());
        assert_eq!(own.config(), other.config(), "{name}: the same description");
        let tokens = |source: &SourceModel<'_>| {
            let tokenizer = source.tokenizer_data().unwrap().into_tokenizer().unwrap();
            TEXTS.map(|text| tokenizer.encode(text, tokenizer.adds_bos()))
        };
        assert_eq!(tokens(&own), tokens(&other), "{name}: the same tokens");
    }
}
