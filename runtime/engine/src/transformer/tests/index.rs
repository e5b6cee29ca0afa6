//! Experts read from a model's own file by its index: the same bits as a container with the same slices.
//! Every difference of the file from the indexed one is named.

use std::path::PathBuf;

use super::*;
use crate::container::write_index;
use crate::flash::{APART, FILE_BYTES_MAX, Gather};
use crate::model::writer::split;

/// A `SiLU` model: experts, width, neurons of an expert, formats of gate, up and down by layer, and number of
/// files.
pub(super) struct Case {
    experts: usize,
    shape: [usize; 2],
    formats: [[Format; 3]; LAYERS],
    files: usize,
}

const Q4_K_M: [[Format; 3]; LAYERS] =
    [[Format::Q5_0, Format::Q5_0, Format::Q6K], [Format::Q5_0, Format::Q5_0, Format::Q4K]];

const fn all(format: Format) -> [[Format; 3]; LAYERS] {
    [[format; 3]; LAYERS]
}

/// Cases:
///
/// * blocks of 32, of 256 and of one value, mixed by layer;
/// * a format that kernels rearrange (`Q4_0` in rows of 128);
/// * a model without experts;
/// * files that split a layer's experts.
pub(super) const CASES: [Case; 7] = [
    Case { experts: 4, shape: [64, 96], formats: all(Format::Q8_0), files: 1 },
    Case { experts: 4, shape: [128, 384], formats: all(Format::Q4_0), files: 1 },
    Case { experts: 4, shape: [64, 64], formats: all(Format::Mxfp4), files: 2 },
    Case { experts: 4, shape: [96, 256], formats: Q4_K_M, files: 3 },
    Case { experts: 1, shape: [64, 512], formats: Q4_K_M, files: 1 },
    Case { experts: 4, shape: [64, 96], formats: all(Format::F16), files: 5 },
    Case {
        experts: 1,
        shape: [72, 96],
        formats: [[Format::F32, Format::F16, Format::Q8_0]; LAYERS],
        files: 2,
    },
];

impl Case {
    /// Writes the model's files; returns the first.
    pub(super) fn write(&self, folder: &Path) -> PathBuf {
        let format = |layer: usize, part: &str| match part {
            "ffn_gate" => self.formats[layer][0],
            "ffn_up" => self.formats[layer][1],
            "ffn_down" => self.formats[layer][2],
            _ => Format::F32,
        };
        let whole = model_with("llama", self.experts, self.shape, false, &format);
        let name = |number: usize| match self.files {
            1 => folder.join("model.gguf"),
            files => folder.join(format!("model-{number:05}-of-{files:05}.gguf")),
        };
        let files = if self.files == 1 { vec![whole] } else { split(&whole, self.files) };
        files.iter().enumerate().for_each(|(i, bytes)| std::fs::write(name(i + 1), bytes).unwrap());
        name(1)
    }

    pub(super) fn name(&self) -> String {
        format!("{} experts {:?} {:?} in {} files", self.experts, self.shape, self.formats, self.files)
    }

    /// [`all_knobs`] in whole slices, with buffers of at least one slice.
    pub(super) fn knobs(&self, container: &Container) -> Vec<Knobs> {
        let d = &container.directory;
        let stored = (0..LAYERS).map(|layer| d.stored(layer).bundle.read_bytes_max());
        let (longest, slice) = (stored.max().unwrap_or(0), self.shape[1] as u32);
        let neurons = container.neurons() as u32;
        let all = all_knobs(&backends(container)).into_iter();
        all.map(|knobs| {
            let hot = knobs.hot.next_multiple_of(slice).min(neurons);
            let cold = knobs.cold.next_multiple_of(slice).min(neurons - hot);
            let cold = if self.experts == 1 { 0 } else { cold };
            Knobs { hot, cold, buffer_bytes: knobs.buffer_bytes.max(longest), ..knobs }
        })
        .collect()
    }
}

/// Writes the index of the model at a path, beside it.
pub(super) fn index(path: &Path) -> Container {
    let source = SourceModel::open(path).unwrap();
    let slice = source.config().ffn_width();
    let orders = orders(&source, slice);
    let always_on = vec![0; source.config().layers()];
    let (name, kind) = ("dense".to_owned(), LevelKind::Dense);
    let levels = [LevelSource { name, kind, set: None, thresholds: None, always_on }];
    let contents = Contents {
        name: "test",
        source_fingerprint: "source",
        source: &source,
        tokenizer: tokenizer(),
        down_format: None,
        slice_neurons: slice,
        orders: &orders,
        sets: &[],
        levels: &levels,
    };
    let index = path.with_extension("index");
    let mut seen = Vec::new();
    let progress = &mut |bytes| {
        seen.push(bytes);
        true
    };
    write_index(&index, &index.with_extension("part"), contents, None, progress).unwrap();
    let files: u64 = source.gguf().files().map(|(.., bytes)| bytes.len() as u64).sum();
    assert!(seen.is_sorted() && *seen.last().unwrap() <= files, "{seen:?} of {files}");
    Container::open(&index).unwrap()
}

/// The logits of [`TOKENS`] by decode and by prefill.
fn both(engine: &mut Transformer) -> [Vec<Vec<f32>>; 2] {
    let decoded = decode(engine).unwrap();
    let mut prompt = Vec::new();
    let each = &mut |_: usize, logits: &[f32]| prompt.push(logits.to_vec());
    engine.prefill(&rows(&TOKENS), Some(each)).unwrap();
    [decoded, prompt]
}

#[test]
fn an_index_gives_the_bits_of_a_container_at_every_limit() {
    for case in CASES {
        let folder = tempfile::tempdir().unwrap();
        let path = case.write(folder.path());
        let (source, index) = (SourceModel::open(&path).unwrap(), index(&path));
        let packed = container_in_pieces(folder.path(), &source, case.shape[1]);
        assert_eq!(index.model_files.len(), case.files);
        for activations in ["f32", "q8"] {
            let expected = {
                let longest = packed
                    .directory
                    .stored(0)
                    .bundle
                    .read_bytes_max()
                    .max(packed.directory.stored(1).bundle.read_bytes_max());
                let mut plan = plan(&packed, "dense", &Knobs { buffer_bytes: longest, ..Knobs::default() });
                activations.clone_into(&mut plan.quality.activations);
                both(&mut start(&packed, &plan))
            };
            for knobs in case.knobs(&index) {
                let mut plan = plan(&index, "dense", &knobs);
                activations.clone_into(&mut plan.quality.activations);
                let mut engine = start(&index, &plan);
                assert_eq!(both(&mut engine), expected, "{} {activations} {knobs:?}", case.name());
                let counters = engine.counters();
                if (knobs.hot as usize) < index.neurons() {
                    assert!(counters.missing > 0 && counters.read_bytes > 0, "{knobs:?}");
                }
            }
        }
    }
}

/// Each separate part of a slice is a read, in a token and in a replay.
#[test]
fn reads_again_alone_are_counted_part_by_part() {
    for case in [&CASES[ONE], &CASES[3], &CASES[5]] {
        let folder = tempfile::tempdir().unwrap();
        let container = index(&case.write(folder.path()));
        let buffer_bytes = (0..LAYERS).map(|l| container.directory.stored(l).bundle.read_bytes_max()).max();
        let knobs = Knobs { buffers: 4, buffer_bytes: buffer_bytes.unwrap(), ..Knobs::default() };
        let mut engine = start(&container, &plan(&container, "dense", &knobs));
        let before = engine.counters();
        engine.record_reads();
        decode(&mut engine).unwrap();
        let after = engine.counters();
        let (reads, slices) =
            (after.reads - before.reads, (after.missing - before.missing) / case.shape[1] as u64);
        assert_eq!(reads, 3 * slices, "{}", case.name());
        let alone = engine.replay_reads(2).unwrap().unwrap();
        assert_eq!(alone.reads, reads, "{}", case.name());
    }
}

/// A case whose fixed part, gates, ups and downs are in one file.
const ONE: usize = 0;

#[test]
fn experts_of_an_index_survive_what_a_device_may_do() {
    for case in [&CASES[ONE], &CASES[3]] {
        let folder = tempfile::tempdir().unwrap();
        let container = index(&case.write(folder.path()));
        let buffer_bytes = (0..LAYERS).map(|l| container.directory.stored(l).bundle.read_bytes_max()).max();
        let knobs = Knobs {
            cold: 2 * case.shape[1] as u32,
            buffers: 7,
            depth: 4,
            look_ahead: 3,
            buffer_bytes: buffer_bytes.unwrap(),
            ..Knobs::default()
        };
        let plan = plan(&container, "dense", &knobs);
        let run = |fault| {
            let (groups, r) = (container.groups(), &plan.read);
            let parts = Gather::parts_max(&groups, r.buffer_bytes);
            let files = container.files(false).unwrap();
            let (depth, requests) = (r.depth as usize, r.buffers as usize * parts);
            let inner = flash::open_backend(r.backend, files.clone(), false, depth, requests, &[0]).unwrap();
            let faulty = Box::new(Faulty::new(inner, fault));
            let device = Box::new(Gather::new(faulty, groups, r.buffers as usize, parts));
            decode(
                &mut Transformer::start_on(&container, &plan, &files, device, StopHandle::default()).unwrap(),
            )
        };
        let expected = decode(&mut start(&container, &plan)).unwrap();
        for fault in [Fault::Reordered, Fault::Late, Fault::Short { every: 3 }] {
            assert_eq!(run(fault).unwrap(), expected, "{fault:?}");
        }
        for (fault, says) in
            [(Fault::Failing { every: 5 }, "Input/output error"), (Fault::Stale { every: 1 }, "checksum")]
        {
            let message = run(fault).unwrap_err().to_string();
            assert!(message.contains(says), "{fault:?}: {message}");
        }
    }
}

#[test]
fn every_byte_of_the_models_file_is_checked_and_what_changed_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = CASES[ONE].write(folder.path());
    let container = index(&path);
    let source = container.directory.source.clone().unwrap();
    let buffer_bytes = container.directory.bundle.read_bytes_max();
    let slots = plan(&container, "dense", &Knobs { buffer_bytes, ..Knobs::default() });
    let pinned = plan(&container, "dense", &Knobs { buffer_bytes, hot: 4 * 96, ..Knobs::default() });
    let good = std::fs::read(&path).unwrap();
    let damaged = |at: usize| {
        let mut bad = good.clone();
        bad[at] ^= 1;
        std::fs::write(&path, bad).unwrap();
    };
    for (part, name) in ["gate", "up", "down"].into_iter().enumerate() {
        let at = source.slices[1][2][part] as usize;
        damaged(at + 5);
        let says = format!("{name} of an expert of layer 1 (byte {at} of {}", path.display());
        let mut engine = start(&container, &slots);
        let decoded = decode(&mut engine).err().map(|error| error.to_string());
        let message =
            decoded.unwrap_or_else(|| engine.prefill(&rows(&TOKENS), None).unwrap_err().to_string());
        assert!(message.contains(&says), "{message}");
        let message = Transformer::start(&container, &pinned, StopHandle::default()).unwrap_err().to_string();
        assert!(message.contains(&says), "{message}");
    }
    let in_file = source.tensors.iter().flatten().copied();
    for place in in_file {
        damaged(place as usize + 3);
        let message = Transformer::start(&container, &slots, StopHandle::default()).unwrap_err().to_string();
        assert!(message.contains("attention, embeddings or head do not match"), "{message}");
    }
    // the file's start, its length, another file, none
    let reopened = || Container::open(&container.path).map(|_| ()).unwrap_err().to_string();
    damaged(40);
    assert!(reopened().contains("its beginning, up to the first tensor, is another"), "{}", reopened());
    std::fs::write(&path, &good[..good.len() - 1]).unwrap();
    assert!(reopened().contains(&format!("it has {} bytes and not {}", good.len() - 1, good.len())));
    std::fs::write(&path, b"another").unwrap();
    assert!(reopened().contains("it has 7 bytes") && reopened().contains("get that file again"));
    std::fs::remove_file(&path).unwrap();
    assert!(reopened().contains("model.gguf, whose weights") && reopened().contains("name it with --model"));
    // in another, named folder; truncated after opening
    let elsewhere = tempfile::tempdir().unwrap();
    let moved = elsewhere.path().join("model.gguf");
    std::fs::write(&moved, &good).unwrap();
    let container = Container::open_with(&container.path, Some(elsewhere.path())).unwrap();
    let mut engine = start(&container, &slots);
    File::options().write(true).open(&moved).unwrap().set_len(good.len() as u64 / 2).unwrap();
    let message = decode(&mut engine).unwrap_err().to_string();
    assert!(
        message.contains("of a slice of the model's file failed: the file has become shorter"),
        "{message}"
    );
}

#[test]
fn an_index_that_names_what_no_file_has_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let container = index(&CASES[ONE].write(folder.path()));
    let refused = |change: &dyn Fn(&mut crate::container::Source)| {
        let mut changed = container.clone();
        change(changed.directory.source.as_mut().unwrap());
        changed.check().unwrap_err()
    };
    let end = container.directory.source.as_ref().unwrap().files[0].bytes;
    for (problem, changed) in [
        ("experts are not where", refused(&|source| source.slices[1][3][2] = end - 1)),
        ("experts are not where", refused(&|source| source.slices[0].truncate(3))),
        ("experts are not where", refused(&|source| source.slices[0][0][0] = u64::MAX)),
        ("fixed part is not where", refused(&|source| source.tensors.truncate(1))),
        ("fixed part is not where", refused(&|source| source.tensors[0] = Some(end))),
        ("in other folders", refused(&|source| source.files[0].name = "../model.gguf".to_owned())),
        ("in other folders", refused(&|source| source.files.clear())),
        ("impossible lengths", refused(&|source| source.files[0].bytes = 1 << 60)),
    ] {
        assert!(changed.contains(problem), "{changed}");
    }
    // its own tensors at addresses of the model's files, and so many files that their addresses reach those
    // of slices
    let mut outside = container.clone();
    outside.directory.fixed.offset = 50 * FILE_BYTES_MAX;
    assert!(outside.check().unwrap_err().contains("fixed part is not where"));
    let many = refused(&|source| {
        let file = source.files[0].clone();
        source.files.resize((APART / FILE_BYTES_MAX) as usize, file);
    });
    assert!(many.contains("it names 262144 files"), "{many}");
}
