//! The fixture models against implementations that share no code with ours; see `make_golden.py` and
//! `make_routed.py` in `fixtures/golden`.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::path::PathBuf;

use compare::largest_difference;
use flashplan::internals::model::source::SourceModel;
use flashplan::internals::reference::Reference;
use kernels::available;
use serde::Deserialize;

const NAMES: [&str; 4] = ["dense", "moe", "qwen", "nemotron"];

#[derive(Deserialize)]
struct Golden {
    model: String,
    prompt: String,
    tokens: Vec<u32>,
    continuation_tokens: Vec<u32>,
}

#[derive(Deserialize)]
struct Tokens {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    tokens: Vec<u32>,
}

fn fixture(path: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures")).join(path)
}

fn golden(name: &str) -> (Golden, SourceModel<'static>) {
    let json = std::fs::read(fixture(&format!("golden/{name}.json"))).unwrap();
    let golden: Golden = serde_json::from_slice(&json).unwrap();
    let model = SourceModel::open(fixture("models").join(&golden.model)).unwrap();
    (golden, model)
}

/// The rows of a two-dimensional `NumPy` array of `f32`.
fn rows(path: &str, columns: usize) -> Vec<Vec<f32>> {
    let bytes = std::fs::read(fixture(path)).unwrap();
    assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00", "version 1.0");
    let header = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let values: Vec<f32> =
        bytes[header..].as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    values.chunks(columns).map(<[f32]>::to_vec).collect()
}

#[test]
fn logits_are_those_of_transformers() {
    for name in NAMES {
        let (golden, model) = golden(name);
        let expected = rows(&format!("golden/{name}.npy"), model.config().vocabulary);
        assert_eq!(expected.len(), golden.tokens.len());
        let sets = available();
        skipped::absent_instruction_sets(sets.iter().map(|kernels| kernels.instruction_set().name()));
        for kernels in sets {
            let mut reference = Reference::new(&model, kernels);
            for (token, expected) in golden.tokens.iter().zip(&expected) {
                let logits = reference.step(*token, &mut ());
                let off = largest_difference(&logits, expected);
                assert!(off < 2e-3, "{name}, {:?}: {off}", kernels.instruction_set());
            }
        }
    }
}

#[test]
fn greedy_text_is_that_of_transformers() {
    for name in NAMES {
        let (golden, model) = golden(name);
        let kernels = kernels::best();
        let mut reference = Reference::new(&model, kernels);
        let mut logits = Vec::new();
        for &token in &golden.tokens {
            logits = reference.step(token, &mut ());
        }
        for (i, &expected) in golden.continuation_tokens.iter().enumerate() {
            let best = (0..).zip(&logits).max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
            assert_eq!(best, expected, "{name}, token {i}");
            logits = reference.step(expected, &mut ());
        }
    }
}

#[test]
fn tokens_are_those_of_sentencepiece_and_tokenizers() {
    for name in ["dense", "moe"] {
        let (golden, model) = golden(name);
        let tokenizer = model.tokenizer_data().unwrap().into_tokenizer().unwrap();
        let json = std::fs::read(fixture(&format!("golden/{name}-tokens.json"))).unwrap();
        let tokens: Tokens = serde_json::from_slice(&json).unwrap();
        assert!(tokens.cases.len() > 30);
        for Case { text, tokens } in &tokens.cases {
            assert_eq!(&tokenizer.encode(text, false), tokens, "{name}: {text:?}");
        }
        assert_eq!(tokenizer.encode(&golden.prompt, tokenizer.adds_bos()), golden.tokens);
    }
}
