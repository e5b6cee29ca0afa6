//! Every storage format of GGUF files, against logits that transformers computed with weights decoded by
//! ggml's Python package; see `fixtures/golden/quantised.py`. The weights are equal bit for bit. Without
//! rounded vectors, the reference and the engine therefore differ only by the order of sums.
//!
//! *Vectors of 8 bits.* As `rounded.rs` argues, rounding 32 values under their largest has a mean square
//! error of 0.7 %. A logit of these one-layer models has passed five rounded vectors: before attention, its
//! output, before the network, its neurons, before the head. The one before the network counts twice, in gate
//! and up. The error is `0.7 % * sqrt(6)` = 1.7 % of the logits' deviation, if the layer's output is as large
//! as the whole: [`ROUNDED_MEAN`].
//!
//! The largest of 1,536 such numbers would be 3.5 times that if all tokens' vectors had equal statistics.
//! They do not, so six times are allowed: [`ROUNDED`].

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::architectures::{GOLDEN, npy};
use super::*;
use crate::model::gguf::TensorInfo;

/// Tolerance of the mean square with rounded vectors, relative to the logits' standard deviation.
const ROUNDED_MEAN: f32 = 0.02;
/// Tolerance of the largest difference, likewise.
const ROUNDED: f32 = 0.1;

/// Formats without golden logits. The kernels' tests compare their rows with ggml's, bit for bit.
const ROWS_ONLY: [&str; 7] = ["IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0", "NVFP4", "Q1_0", "Q2_0"];

#[derive(serde::Deserialize)]
struct Golden {
    /// The logits' standard deviation.
    logits_deviation: f32,
}

#[derive(serde::Deserialize)]
struct Index {
    tokens: Vec<u32>,
    models: BTreeMap<String, Golden>,
}

#[test]
fn reference_and_engine_compute_what_transformers_computes_in_every_format_with_a_golden() {
    let index = index();
    let in_files = Format::ALL.into_iter().filter(|format| format.ggml_type().is_some());
    for format in in_files.filter(|format| !matches!(format, Format::F32 | Format::F16)) {
        let name = format.name();
        let has_golden = index.models.contains_key(name);
        assert_ne!(has_golden, ROWS_ONLY.contains(&name), "{name}");
        if !has_golden {
            continue;
        }
        // rows of attention's last matrix are no whole blocks of 256
        let is_other =
            |tensor: &TensorInfo| format.block_values() == 256 && tensor.name.contains("attn_output");
        let fits = |tensor: &TensorInfo, found| (found == format) != is_other(tensor);
        let stored = agrees(&index, name, &fits, [ROUNDED_MEAN, ROUNDED], format.has_blocks());
        assert_eq!(stored == Format::Q4_0X4, format == Format::Q4_0, "{name}");
    }
}

/// A model of two layers whose experts round their factors. A logit has passed ten rounded vectors, two of
/// them twice: `0.7 % * sqrt(12)` = 2.4 %, while no token changes experts, and none does here. The largest of
/// 7,680 numbers would be four times that. Eight times are allowed, because tokens' vectors differ in
/// statistics, and two experts' outputs are weighted.
#[test]
fn reference_and_engine_compute_what_transformers_computes_of_a_mixture_of_k_formats() {
    let finer = ["token_embd", "blk.0.attn_v", "blk.0.ffn_down"];
    let fits = |tensor: &TensorInfo, found| {
        let is_finer = finer.iter().any(|name| tensor.name.starts_with(name));
        found
            == match () {
                () if tensor.name.contains("ffn_gate_inp") => Format::F32,
                () if is_finer => Format::Q6K,
                () => Format::Q4K,
            }
    };
    agrees(&index(), "Q4_K_M", &fits, [0.03, 0.2], true);
}

fn index() -> Index {
    serde_json::from_slice(&std::fs::read(folder().join("index.json")).unwrap()).unwrap()
}

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/golden/quantised"))
}

/// Checks that the golden's matrices have fitting formats. The reference and the engine must compute its
/// logits, with every instruction set, in place and packed. Rounded vectors may differ by `rounded`, in the
/// mean square and each. Returns the format of down in the container.
fn agrees(
    index: &Index,
    name: &str,
    fits: &dyn Fn(&TensorInfo, Format) -> bool,
    rounded: [f32; 2],
    has_blocks: bool,
) -> Format {
    let golden = index.models.get(name).unwrap_or_else(|| panic!("{name} has no golden"));
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("model.gguf");
    std::fs::copy(folder().join(format!("{name}.gguf")), &path).unwrap();
    let source = SourceModel::open(&path).unwrap();
    for tensor in source.gguf().tensors().iter().filter(|tensor| tensor.dims[1] > 1) {
        let found = tensor.format().unwrap();
        assert!(fits(tensor, found), "{name}, {}: {found}", tensor.name);
    }
    let expected = npy(&folder().join(format!("{name}.npy")), source.config().vocabulary);
    assert_eq!(expected.len(), index.tokens.len());
    let off = |found: &[Vec<f32>]| distance(found, &expected) / golden.logits_deviation;

    let in_place = index::index(&path);
    let packed = container_in_pieces(temporary.path(), &source, source.config().ffn_width());
    for kernels in kernels_of_all_sets() {
        let name = format!("{name} {}", kernels.instruction_set());
        let mut reference = Reference::new(&source, kernels);
        let logits: Vec<Vec<f32>> =
            index.tokens.iter().map(|&token| reference.step(token, &mut ())).collect();
        let of_reference = off(&logits);
        assert!(of_reference < GOLDEN, "{name}, reference: off by {of_reference}");
        let mut of_forms: Vec<[Vec<Vec<f32>>; 2]> = Vec::new();
        for activations in ["f32", "q8"] {
            let mut same: Option<[Vec<Vec<f32>>; 2]> = None;
            for container in [&in_place, &packed] {
                let buffer_bytes = container.directory.stored(0).bundle.read_bytes_max().max(8192);
                let knobs = Knobs { buffer_bytes, chunk: 7, ..Knobs::default() };
                let mut plan = plan(container, "dense", &knobs);
                activations.clone_into(&mut plan.quality.activations);
                kernels.instruction_set().name().clone_into(&mut plan.quality.instruction_set);
                let mut engine = start(container, &plan);
                let rows = rows(&index.tokens);
                let decoded = rows.iter().map(|row| engine.decode(&[*row]).unwrap().to_vec()).collect();
                let mut prompt = Vec::new();
                engine.prefill(&rows, Some(&mut |_, logits| prompt.push(logits.to_vec()))).unwrap();
                let found = [decoded, prompt];
                let same = same.get_or_insert_with(|| found.clone());
                assert!(*same == found, "{name} {activations}: in place and packed have the same bits");
            }
            let found = same.unwrap();
            let [most_mean, most] = if activations == "f32" { [GOLDEN; 2] } else { rounded };
            for (what, logits) in ["decode", "prefill"].into_iter().zip(&found) {
                let off = off(logits);
                assert!(off < most, "{name} {activations}, {what}: off by {off}");
                let mean = mean_square(logits, &expected) / golden.logits_deviation;
                assert!(mean < most_mean, "{name} {activations}, {what}: off by {mean} in the mean");
            }
            of_forms.push(found);
        }
        assert_eq!(of_forms[0] != of_forms[1], has_blocks, "{name}: only blocks meet rounded vectors");
    }
    packed.directory.stored(0).down_format
}

/// The root of the mean square of differences.
fn mean_square(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    let squares = a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| (a - b).powi(2));
    let (sum, count) = squares.fold((0.0, 0.0_f32), |(sum, count), square| (sum + square, count + 1.0));
    (sum / count).sqrt()
}
