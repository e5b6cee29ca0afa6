//! Slices with pieces of down as in the model's file: exact, and the same bits however they are read.

use super::*;
use crate::container::Checksums;
use crate::model::source::Down;

/// A `SiLU` model: experts, width, neurons of an expert, neurons of a slice, and formats of gate, up and down
/// by layer.
pub(super) struct Case {
    experts: usize,
    shape: [usize; 2],
    pub(super) slice: usize,
    formats: [[Format; 3]; LAYERS],
}

const Q4_K_M: [[Format; 3]; LAYERS] =
    [[Format::Q5_0, Format::Q5_0, Format::Q6K], [Format::Q5_0, Format::Q5_0, Format::Q4K]];

const fn all(format: Format) -> [[Format; 3]; LAYERS] {
    [[format; 3]; LAYERS]
}

/// Cases:
///
/// * blocks of 32, of 256 and of one value, mixed by layer;
/// * widths that are no multiple of a block of down, as `SmolLM2`'s;
/// * slices that kernels rearrange (128 of `Q4_0`), and slices of a whole expert.
pub(super) const CASES: [Case; 9] = [
    Case { experts: 1, shape: [64, 96], slice: 32, formats: all(Format::Q4_1) },
    Case { experts: 4, shape: [64, 96], slice: 32, formats: all(Format::Q8_0) },
    Case { experts: 1, shape: [128, 384], slice: 128, formats: all(Format::Q4_0) },
    Case { experts: 4, shape: [64, 64], slice: 32, formats: all(Format::Mxfp4) },
    Case { experts: 1, shape: [64, 512], slice: 256, formats: Q4_K_M },
    Case { experts: 4, shape: [96, 256], slice: 256, formats: Q4_K_M },
    Case { experts: 1, shape: [64, 96], slice: 24, formats: all(Format::F32) },
    Case { experts: 4, shape: [64, 96], slice: 8, formats: all(Format::F16) },
    Case {
        experts: 1,
        shape: [72, 96],
        slice: 96,
        formats: [[Format::F32, Format::F16, Format::Q8_0]; LAYERS],
    },
];

/// A row of logits for each token.
type Logits = Vec<Vec<f32>>;

impl Case {
    pub(super) fn model(&self) -> Vec<u8> {
        let format = |layer: usize, part: &str| match part {
            "ffn_gate" => self.formats[layer][0],
            "ffn_up" => self.formats[layer][1],
            "ffn_down" => self.formats[layer][2],
            _ => Format::F32,
        };
        model_with("llama", self.experts, self.shape, false, &format)
    }

    pub(super) fn name(&self) -> String {
        format!("{} experts {:?} in {} {:?}", self.experts, self.shape, self.slice, self.formats)
    }

    /// [`all_knobs`] in whole slices, with buffers of at least one; no slots for a model without experts.
    pub(super) fn knobs(&self, container: &Container) -> impl Iterator<Item = Knobs> {
        let d = &container.directory;
        let stored = (0..LAYERS).map(|layer| d.stored(layer).bundle.read_bytes_max());
        let (longest, slice) = (stored.max().unwrap_or(0), self.slice as u32);
        let (experts, neurons) = (self.experts, container.neurons() as u32);
        all_knobs(&backends(container)).into_iter().map(move |knobs| {
            let hot = knobs.hot.next_multiple_of(slice).min(neurons);
            let cold = knobs.cold.next_multiple_of(slice).min(neurons - hot);
            let cold = if experts == 1 { 0 } else { cold };
            Knobs { hot, cold, buffer_bytes: knobs.buffer_bytes.max(longest), ..knobs }
        })
    }
}

#[test]
fn a_piece_is_the_bytes_of_the_models_file() {
    for case in CASES {
        let bytes = case.model();
        let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let container = container_in_pieces(folder.path(), &source, case.slice);
        let (d, file) = (&container.directory, std::fs::read(&container.path).unwrap());
        assert!(!d.down_transposed && !d.architecture().down_transposed);
        let orders = orders(&source, case.slice);
        for (layer, order) in orders.iter().enumerate() {
            let (stored, format) = (d.stored(layer), case.formats[layer][2]);
            let bundle = stored.bundle;
            for (slice, neurons) in order.chunks(case.slice).enumerate() {
                let index = neurons[0] as usize;
                let (expert, first) = (index / case.shape[1], index % case.shape[1]);
                let Down::Columns(down) = source.ffn_down(layer, expert) else { panic!("columns") };
                let span = bundle.slice_span(slice as u64, Part::Whole);
                let bytes = &file[(d.layer_offsets[layer] + span.offset) as usize..][..span.bytes as usize];
                let inputs = case.slice * (bundle.gate_bytes + bundle.up_bytes) as usize;
                let (from, to) = (format.row_bytes(first), format.row_bytes(first + case.slice));
                for (row, piece) in (0..case.shape[0]).zip(bytes[inputs..].chunks_exact(to - from)) {
                    let expected = &down.row(row).bytes[from..to];
                    if stored.down_format == format {
                        assert_eq!(piece, expected, "{} {layer} {slice} {row}", case.name());
                    } else {
                        let [mut a, mut b] = [0; 2].map(|_| vec![0.0; case.slice]);
                        dequantise(format, expected, &mut a);
                        dequantise(stored.down_format, piece, &mut b);
                        assert_eq!(a, b, "{} {layer} {slice} {row}", case.name());
                    }
                }
            }
        }
    }
}

#[test]
fn a_model_with_pieces_computes_the_references_numbers_at_every_limit() {
    for case in CASES {
        let bytes = case.model();
        let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let container = container_in_pieces(folder.path(), &source, case.slice);
        let expected = reference(&source);
        let blocks = case.formats[0][2].has_blocks();
        let mut plain: Option<Logits> = None;
        for activations in ["f32", "q8"] {
            let mut first: Option<(Logits, Logits, _)> = None;
            for knobs in case.knobs(&container) {
                let mut plan = plan(&container, "dense", &knobs);
                activations.clone_into(&mut plan.quality.activations);
                let mut engine = start(&container, &plan);
                let logits = decode(&mut engine).unwrap();
                let counters = engine.counters();
                let mut prompt = Vec::new();
                let each = &mut |_: usize, logits: &[f32]| prompt.push(logits.to_vec());
                engine.prefill(&rows(&TOKENS), Some(each)).unwrap();
                let found = (logits, prompt, (counters.detail.activity, counters.detail.traffic));
                let first = first.get_or_insert_with(|| found.clone());
                assert_eq!(first, &found, "{} {activations} {knobs:?}", case.name());
                if (knobs.hot as usize) < container.neurons() {
                    assert!(counters.missing > 0 && counters.read_bytes > 0, "{knobs:?}");
                }
                assert_eq!(counters.missing % case.slice as u64, 0);
            }
            let Some((logits, prompt, (activity, _))) = first else { panic!("there are plans") };
            assert!(activity.active > 0 && activity.active <= activity.requested, "{activity:?}");
            let (off, of_prompt) = (distance(&logits, &expected), distance(&prompt, &logits));
            if activations == "f32" {
                assert!(off < 2e-4 && of_prompt < 1e-4, "{}: {off}, a prompt {of_prompt}", case.name());
                plain = Some(logits);
            } else {
                // float models round nothing
                let rounds = plain.as_ref().is_some_and(|plain| *plain != logits);
                assert_eq!(rounds, blocks, "{}", case.name());
                assert!(off < 0.1 && of_prompt < 0.01, "{}: {off}, a prompt {of_prompt}", case.name());
            }
        }
    }
}

#[test]
fn pieces_survive_what_a_device_may_do_and_damage_is_named() {
    let case = &CASES[5];
    let bytes = case.model();
    let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let container = container_in_pieces(folder.path(), &source, case.slice);
    let d = &container.directory;
    let buffer_bytes = d.stored(0).bundle.read_bytes_max();
    let knobs = Knobs { cold: 512, buffers: 7, depth: 4, look_ahead: 3, buffer_bytes, ..Knobs::default() };
    let plan = plan(&container, "dense", &knobs);
    let run = |fault| {
        let device = Box::new(Faulty::new(device(&container, &plan), fault));
        let file = container.files(false).unwrap();
        decode(&mut Transformer::start_on(&container, &plan, &file, device, StopHandle::default()).unwrap())
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
    // one byte of an input, and one of a share of the piece
    let bundle = d.stored(1).bundle;
    let inputs = bundle.gate_bytes + bundle.up_bytes;
    let slice = bundle.slice_span(2, Part::Whole).offset;
    let within = [(5, 5 * inputs + 1), (7, 256 * inputs + 7 * bundle.down_bytes + 1)];
    let file = File::options().read(true).write(true).open(&container.path).unwrap();
    for (neuron, offset) in within {
        let (at, mut byte) = (d.layer_offsets[1] + slice + offset, [0]);
        platform::file::read_exact_at(&file, &mut byte, at).unwrap();
        platform::file::write_all_at(&file, &[!byte[0]], at).unwrap();
        let mut engine = start(&container, &plan);
        let message = match decode(&mut engine) {
            Err(error) => error.to_string(),
            Ok(_) => engine.prefill(&rows(&TOKENS), None).unwrap_err().to_string(),
        };
        assert!(message.contains(&format!("neuron {} of layer 1", 512 + neuron)), "{message}");
        platform::file::write_all_at(&file, &byte, at).unwrap();
    }
    // pinned neurons are verified at start
    let file_bytes = std::fs::read(&container.path).unwrap();
    let at = d.layer_offsets[0] + 256 * (d.stored(0).bundle.gate_bytes + d.stored(0).bundle.up_bytes);
    platform::file::write_all_at(&file, &[!file_bytes[at as usize]], at).unwrap();
    let pinned = super::plan(&container, "dense", &Knobs { hot: 256, cold: 0, ..knobs });
    let message = Transformer::start(&container, &pinned, StopHandle::default()).unwrap_err().to_string();
    assert!(message.contains("neuron 0 of layer 0"), "{message}");
}

#[test]
fn what_has_no_pieces_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("refused.bundle");
    let refused = |bytes: &[u8], slice: usize, neighbours: usize| {
        let source = SourceModel::from_gguf(Gguf::parse(bytes).unwrap()).unwrap();
        write_pieces(&path, &source, &orders(&source, neighbours), slice, &mut ()).unwrap_err().to_string()
    };
    let bytes = CASES[0].model();
    assert!(refused(&bytes, 48, 48).contains("slices of 48 neurons are not whole blocks of Q4_1"));
    assert!(refused(&bytes, 32, 16).contains("do not keep slices of 32 neurons in the source's order"));
    assert!(refused(&bytes, 1, 1).contains("slices of 1 neurons are not whole blocks"));
    let rows = model_with("llama", 1, [WIDTH, NEURONS], true, &|_, _| Format::Q8_0);
    assert!(refused(&rows, 32, 32).contains("slices cannot hold pieces of them"));
}

/// Records every layer's checksums, and that the source has freed the first layer.
#[derive(Default)]
struct Kept(Vec<Vec<Checksums>>);

impl WrittenLayers for Kept {
    fn load(&self, layer: usize) -> std::io::Result<Option<Vec<Checksums>>> {
        Ok(self.0.get(layer).cloned())
    }

    fn save(&mut self, layer: usize, checksums: &[Checksums]) -> std::io::Result<()> {
        self.0.truncate(layer);
        self.0.push(checksums.to_vec());
        Ok(())
    }

    fn gives_back(&self) -> bool {
        true
    }

    fn given_back(&self, layer: usize) -> bool {
        layer == 0 && !self.0.is_empty()
    }
}

#[test]
fn layers_that_were_written_before_are_believed_after_a_check_of_every_share() {
    for case in [&CASES[1], &CASES[5]] {
        let bytes = case.model();
        let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let [path, part] = ["test.bundle", "test.part"].map(|name| folder.path().join(name));
        let (orders, mut kept) = (orders(&source, case.slice), Kept::default());
        let write = |kept: &mut Kept| write_pieces(&path, &source, &orders, case.slice, kept);
        write(&mut kept).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let d = Container::open(&path).unwrap().directory;
        std::fs::copy(&path, &part).unwrap();
        write(&mut kept).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), whole, "{}", case.name());
        // the last byte of the first layer's last neuron: padding of a piece, or the piece
        let bundle = d.stored(0).bundle;
        let end = d.layer_offsets[0]
            + bundle.slice_span((orders[0].len() / case.slice - 1) as u64, Part::Whole).end();
        let mut damaged = whole.clone();
        damaged[end as usize - 1] ^= 1;
        std::fs::write(&part, damaged).unwrap();
        let message = write(&mut kept).unwrap_err().to_string();
        assert!(message.contains("layer 0 is damaged"), "{message}");
    }
}

/// Uses a directory that nothing can read: JSON has no number for one of its scores.
#[test]
fn no_layer_is_reported_before_the_rest_of_the_container_is_verified() {
    let case = &CASES[1];
    let bytes = case.model();
    let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let [path, part] = ["test.bundle", "test.part"].map(|name| folder.path().join(name));
    let orders = orders(&source, case.slice);
    let mut unreadable = tokenizer();
    unreadable.scores = vec![f32::INFINITY; unreadable.tokens.len()];
    let contents = Contents {
        name: "test",
        source_fingerprint: "source",
        source: &source,
        tokenizer: unreadable,
        down_format: None,
        slice_neurons: case.slice,
        orders: &orders,
        sets: &[],
        levels: &[],
    };
    let mut kept = Kept::default();
    let error = write(&path, &part, contents, &mut kept, &mut |_| true).unwrap_err().to_string();
    assert!(error.contains("its directory cannot be read: invalid type: null"), "{error}");
    assert!(kept.0.is_empty() && !path.exists() && !part.exists());
}
