//! Committed hashes of the fixture models' logits. They change only with the arithmetic: a change that should
//! keep all bits keeps them, and any other change renews them.
//!
//! Instruction sets add in different orders, so each has its own hashes. They were made on x86-64: Neon,
//! Dotprod and I8mm have none. Routers and softmax depend on the C library's `expf`.

use kernels::InstructionSet;

use super::*;

/// A model, its lossless levels, and the hash of its logits at any of them for scalar, AVX2 and AVX-512.
const HASHES: [(&str, &[&str], [&str; 3]); 4] = [
    (
        "oxide-dense",
        &["dense", "exact-gate"],
        [
            "527a341fcc70fa3f88abacdc21160cf6",
            "571ef0b83d7fe10e39f4ad7979755cf0",
            "fb2a42ab86e04d4969212d89d499f4b9",
        ],
    ),
    (
        "oxide-moe",
        &["dense", "exact-gate"],
        [
            "4063ed3633ceb5084a82fa5fe6c6ab39",
            "1f4b4fd2dbff5ab7f592748b2bb98f66",
            "7c1bd07edd70bf382e3f41b453272e6a",
        ],
    ),
    (
        "oxide-nemotron",
        &["dense", "exact-gate"],
        [
            "910ffb7ca43050ddad91c7f501280f8e",
            "d8104bf7b85ea20e308e6aa1081e86b2",
            "48d89548234b77cc3f4a8cae94fb0d48",
        ],
    ),
    (
        "oxide-qwen",
        &["dense"],
        [
            "fe7710c665495a591afe60d27e3c8656",
            "14383d1623e5e00858881adf31977524",
            "0fd3c57d2759982fc31910ae27dad697",
        ],
    ),
];

/// Tokens that all four vocabularies have; the first eight are the prompt.
const TOKENS: [u32; 12] = [1, 733, 1629, 41, 5, 5, 2049, 3307, 88, 12, 733, 640];
const PROMPT: usize = 8;

/// The first half of BLAKE3 of the logits after every token of the prompt, by prefill, and after every later
/// token, by decode.
fn hash(container: &Container, level: &str, set: InstructionSet) -> String {
    let mut plan =
        plan(container, level, &Knobs { cold: 64, buffers: 9, buffer_bytes: 128 << 10, ..Knobs::default() });
    set.name().clone_into(&mut plan.quality.instruction_set);
    let mut engine = start(container, &plan);
    let (rows, mut hash) = (rows(&TOKENS), blake3::Hasher::new());
    let mut add = |logits: &[f32]| {
        hash.update(bytemuck::cast_slice(logits));
    };
    engine.prefill(&rows[..PROMPT], Some(&mut |_, logits: &[f32]| add(logits))).unwrap();
    for row in &rows[PROMPT..] {
        add(engine.decode(&[*row]).unwrap());
    }
    hash.finalize().to_hex()[..32].to_owned()
}

#[test]
fn logits_of_the_fixture_models_are_those_that_are_committed() {
    let (mut found, mut expected) = (Vec::new(), Vec::new());
    for (model, levels, [scalar, avx2, avx512]) in HASHES {
        let path = format!("{}/../../fixtures/models/{model}.gguf", env!("CARGO_MANIFEST_DIR"));
        let (folder, source) = (tempfile::tempdir().unwrap(), SourceModel::open(&path).unwrap());
        let container = match model {
            "oxide-qwen" => container_in_pieces(folder.path(), &source, source.config().ffn_width()),
            _ => container(folder.path(), &source),
        };
        for (kernels, level) in
            kernels_of_all_sets().into_iter().flat_map(|k| levels.iter().map(move |l| (k, l)))
        {
            let set = kernels.instruction_set();
            let committed = match set {
                InstructionSet::Scalar => scalar,
                InstructionSet::Avx2 => avx2,
                InstructionSet::Avx512 => avx512,
                InstructionSet::Neon | InstructionSet::Dotprod | InstructionSet::I8mm => {
                    skipped::skipped("a committed hash", format_args!("none for {set}"));
                    continue;
                }
            };
            found.push((model, level, set, hash(&container, level, set)));
            expected.push((model, level, set, committed.to_owned()));
        }
    }
    assert_eq!(found, expected, "the arithmetic has changed");
}
