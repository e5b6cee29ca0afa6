//! Logits of the fixture models, to the bit: what is committed here changes with the arithmetic and with nothing else. A change that
//! means to keep all bits keeps these hashes; one that does not says so by new ones.
//!
//! Instruction sets add in different orders, so each has hashes of its own. They were made on x86-64: Neon, Dotprod and I8mm have
//! none. All rest on the C library's `expf`.

use kernels::InstructionSet;

use super::*;

/// Of a model: its level, and the hashes of its logits by scalar, AVX2 and AVX-512.
const HASHES: [(&str, &str, [&str; 3]); 7] = [
    ("oxide-dense", "dense", ["", "", ""]),
    ("oxide-dense", "exact-gate", ["", "", ""]),
    ("oxide-moe", "dense", ["", "", ""]),
    ("oxide-moe", "exact-gate", ["", "", ""]),
    ("oxide-nemotron", "dense", ["", "", ""]),
    ("oxide-nemotron", "exact-gate", ["", "", ""]),
    ("oxide-qwen", "dense", ["", "", ""]),
];

/// Tokens of the vocabulary of all four models; the prompt is the first eight.
const TOKENS: [u32; 12] = [1, 733, 1629, 41, 5, 5, 2049, 3307, 88, 12, 733, 640];
const PROMPT: usize = 8;

/// BLAKE3 of the logits after every token of the prompt, through prefill, and after every later token, through decode; its first half.
fn hash(container: &Container, level: &str, set: InstructionSet) -> String {
    let mut plan = plan(container, level, &Knobs { cold: 40, buffers: 9, ..Knobs::default() });
    set.name().clone_into(&mut plan.quality.instruction_set);
    let mut engine = start(container, &plan);
    let (rows, mut hash) = (rows(&TOKENS), blake3::Hasher::new());
    let mut add = |logits: &[f32]| drop(hash.update(bytemuck::cast_slice(logits)));
    engine.prefill(&rows[..PROMPT], Some(&mut |_, logits: &[f32]| add(logits))).unwrap();
    for row in &rows[PROMPT..] {
        add(engine.decode(&[*row]).unwrap());
    }
    hash.finalize().to_hex()[..32].to_owned()
}

#[test]
fn logits_of_the_fixture_models_are_those_that_are_committed() {
    let mut opened: Option<(&str, tempfile::TempDir, Container)> = None;
    let (mut found, mut expected) = (Vec::new(), Vec::new());
    for (model, level, hashes) in HASHES {
        if opened.as_ref().is_none_or(|(name, ..)| *name != model) {
            let path = format!("{}/../../fixtures/models/{model}.gguf", env!("CARGO_MANIFEST_DIR"));
            let (folder, source) = (tempfile::tempdir().unwrap(), SourceModel::open(&path).unwrap());
            let container = match model {
                "oxide-qwen" => container_in_pieces(folder.path(), &source, source.config().ffn_width()),
                _ => container(folder.path(), &source),
            };
            opened = Some((model, folder, container));
        }
        let (.., container) = opened.as_ref().unwrap();
        for kernels in kernels::available() {
            let set = kernels.instruction_set();
            let committed = match set {
                InstructionSet::Scalar => hashes[0],
                InstructionSet::Avx2 => hashes[1],
                InstructionSet::Avx512 => hashes[2],
                InstructionSet::Neon | InstructionSet::Dotprod | InstructionSet::I8mm => continue,
            };
            found.push((model, level, set, hash(container, level, set)));
            expected.push((model, level, set, committed.to_owned()));
        }
    }
    assert_eq!(found, expected, "the arithmetic has changed");
}
