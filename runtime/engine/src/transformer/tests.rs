//! Plans with the same quality keys give the same bits, and dense ones the reference's numbers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use compare::largest_difference;
use plans::file::parse;
use plans::layout::{Part, Phases, Span};
use plans::memory::{
    Activations, choices_of, kv_bytes_per_token, kv_token_bytes, per_layer_buffer_bytes, slot_part,
    state_bytes, tables_bytes,
};
use plans::model::LevelKind;
use plans::plan::Speculation;
use plans::{PAGE_BYTES, Policy};
use platform::affinity::CoreSet;

use std::fs::File;

use plans::{Backend, KvFormat, Plan};

use super::*;
use crate::container::Container;
use crate::container::{Contents, LevelSource, PredictorSource, SetSource, WrittenLayers, write};
use crate::embedding::EmbeddingRows;
use crate::flash::faulty::{Fault, Faulty};
use crate::flash::{self, Flash};
use crate::model::gguf::Gguf;
use crate::model::source::SourceModel;
use crate::model::tokenizer::{Strips, TokenizerData, TokenizerKind};
use crate::model::writer::Writer;
use crate::predictor::{Hidden, sign_bits};
use crate::reference::Reference;
use crate::stop::StopHandle;
use kernels::{Format, Kernels, best, dequantise, quantise};

mod architectures;
mod by_layer;
mod down_rows;
mod drafts;
mod gate_threshold;
#[cfg(target_arch = "x86_64")]
mod hashes;
mod index;
mod kv_formats;
mod latent;
mod look_ahead;
mod own_inputs;
mod pieces;
mod quantised;
mod recurrent;
mod rounded;
mod slices;
mod soak;
mod together;
mod ungated;
pub(crate) mod unit;

use rounded::{Rounding, What};

/// Every kernel set of this processor; skips the test for the other sets.
pub(crate) fn kernels_of_all_sets() -> Vec<&'static dyn Kernels> {
    let available = kernels::available();
    skipped::absent_instruction_sets(available.iter().map(|kernels| kernels.instruction_set().name()));
    available
}

const WIDTH: usize = 64;
const NEURONS: usize = 96;
const LAYERS: usize = 2;
const VOCABULARY: usize = 40;

/// Random-looking numbers between -1 and 1.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn order(&mut self, count: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..count as u32).collect();
        for i in (1..count).rev() {
            order.swap(i, ((self.next() + 1.0) / 2.0 * i as f32) as usize);
        }
        order
    }
}

/// The width of a model: whole blocks, for `Q4_0` whole groups of four, because some kernels store it so.
fn width(format: Format) -> usize {
    let format = if format == Format::Q4_0 { Format::Q4_0X4 } else { format };
    WIDTH.next_multiple_of(format.block_values())
}

/// A dReLU model of two layers with random weights, as a GGUF file. Without experts it has its own head.
/// Blocks of 256 also run along the rows of down, as in `PowerInfer`'s files, and the head of `Q4_K` is
/// `Q6_K`.
pub(crate) fn model(experts: usize, format: Format) -> Vec<u8> {
    model_of("bamboo", experts, format, width(format))
}

fn model_of(family: &str, experts: usize, format: Format, width: usize) -> Vec<u8> {
    let of =
        |_: usize, part: &str| if part == "output" && format == Format::Q4K { Format::Q6K } else { format };
    model_with(family, experts, [width, NEURONS], format.is_k(), &of)
}

/// [`model_of`] with any width and number of neurons, down rows or columns, and a format for each layer's
/// matrices and for those outside layers, as layer 0.
fn model_with(
    family: &str,
    experts: usize,
    [width, neurons]: [usize; 2],
    down_rows: bool,
    format: &dyn Fn(usize, &str) -> Format,
) -> Vec<u8> {
    let mut numbers = Numbers(7);
    let key = |name: &str| format!("{family}.{name}");
    let mut writer = Writer::new()
        .text("general.architecture", family)
        .u32(&key("block_count"), LAYERS as u32)
        .u32(&key("context_length"), 64)
        .u32(&key("vocab_size"), VOCABULARY as u32)
        .u32(&key("embedding_length"), width as u32)
        .u32(&key("feed_forward_length"), neurons as u32)
        .u32(&key("attention.head_count"), 4)
        .u32(&key("attention.head_count_kv"), if family == "deepseek2" { 1 } else { 2 })
        .f32(&key("attention.layer_norm_rms_epsilon"), 1e-5);
    if family == "deepseek2" {
        writer = latent::KEYS.into_iter().fold(writer, |writer, (name, value)| writer.u32(&key(name), value));
    }
    if experts > 1 {
        writer = writer.u32(&key("expert_count"), experts as u32).u32(&key("expert_used_count"), 2);
    }
    let mut matrix = |writer: Writer, name: &str, dims: &[usize], format: Format| {
        let count: usize = dims.iter().product();
        // attention that affects the logits
        let scale = if name.contains("attn_kv_a_norm") { 4.0 } else { 2.0 / (dims[0] as f32).sqrt() };
        let values: Vec<f32> = (0..count).map(|_| numbers.next() * scale).collect();
        let mut bytes = vec![0; format.row_bytes(count)];
        if format == Format::Mxfp4 {
            // values cannot be converted to it here: any nibbles serve, under a power of two
            bytes.chunks_exact_mut(17).zip(values.chunks(32)).for_each(|(block, values)| {
                block.iter_mut().zip(values).for_each(|(byte, value)| *byte = value.to_bits() as u8);
                block[0] = 121;
            });
        } else {
            quantise(format, &values, &mut bytes);
        }
        let dims: Vec<u64> = dims.iter().map(|&dim| dim as u64).collect();
        writer.tensor_of(name, &dims, format.ggml_type().unwrap(), &bytes)
    };
    writer = matrix(writer, "token_embd.weight", &[width, VOCABULARY], format(0, "token_embd"));
    if experts == 1 {
        writer = matrix(writer, "output.weight", &[width, VOCABULARY], format(0, "output"));
    }
    writer = matrix(writer, "output_norm.weight", &[width], Format::F32);
    for layer in 0..LAYERS {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        for part in ["attn_norm", "ffn_norm"] {
            writer = matrix(writer, &name(part), &[width], Format::F32);
        }
        let projected =
            [("attn_q", width), ("attn_k", width / 2), ("attn_v", width / 2), ("attn_output", width)];
        let projected = projected.map(|(part, rows)| (part, vec![width, rows]));
        let attention = if family == "deepseek2" { latent::tensors(width) } else { projected.to_vec() };
        for (part, dims) in attention {
            let format = if part.ends_with("norm") { Format::F32 } else { format(layer, part) };
            writer = matrix(writer, &name(part), &dims, format);
        }
        let (suffix, stack) = if experts > 1 {
            writer = matrix(writer, &name("ffn_gate_inp"), &[width, experts], Format::F32);
            ("_exps", vec![experts])
        } else {
            ("", Vec::new())
        };
        let down = if down_rows { ("ffn_down_t", [width, neurons]) } else { ("ffn_down", [neurons, width]) };
        for (part, dims) in [("ffn_gate", [width, neurons]), ("ffn_up", [width, neurons]), down] {
            let dims = [&dims[..], &stack].concat();
            writer = matrix(writer, &name(&format!("{part}{suffix}")), &dims, format(layer, part));
        }
    }
    writer.bytes()
}

fn tokenizer() -> TokenizerData {
    TokenizerData {
        kind: TokenizerKind::SentencePiece,
        tokens: (0..VOCABULARY).map(|i| format!("t{i}")).collect(),
        scores: vec![0.0; VOCABULARY],
        types: (0..VOCABULARY).map(|i| if i == 0 { 2 } else { 1 }).collect(),
        merges: Vec::new(),
        pre: String::new(),
        bos: None,
        eos: None,
        eot: None,
        unknown: Some(0),
        add_bos: false,
        add_eos: false,
        add_space_prefix: false,
        removes_spaces: false,
        strips: Strips::default(),
        chat_template: None,
        recommended: None,
    }
}

/// The container of a model with a shuffled order and one level of each kind; predictors are random but
/// fixed.
pub(crate) fn container(folder: &Path, source: &SourceModel<'_>) -> Container {
    container_with(folder, source, None)
}

/// [`container`] with quantised down rows stored as `down`, or as in the source.
fn container_with(folder: &Path, source: &SourceModel<'_>, down: Option<Format>) -> Container {
    container_in_slices(folder, source, down, 1, 1)
}

/// [`container_with`] with neurons in slices; `neighbours` stay together in the order.
fn container_in_slices(
    folder: &Path,
    source: &SourceModel<'_>,
    down: Option<Format>,
    neighbours: usize,
    slice_neurons: usize,
) -> Container {
    let mut numbers = Numbers(99);
    let c = source.config();
    let groups = c.experts() * c.ffn_width() / neighbours;
    let group = |group: u32| (0..neighbours as u32).map(move |neuron| group * neighbours as u32 + neuron);
    let orders: Vec<Vec<u32>> =
        (0..c.layers()).map(|_| numbers.order(groups).into_iter().flat_map(group).collect()).collect();
    let predictors = |make: &mut dyn FnMut(usize, usize) -> PredictorSource| -> Vec<Vec<_>> {
        (0..c.layers()).map(|layer| (0..c.experts()).map(|expert| make(layer, expert)).collect()).collect()
    };
    let signs = predictors(&mut |layer, expert| {
        let gate = source.ffn_gate(layer, expert);
        let rows = orders[layer].iter().filter(|&&index| index as usize / c.ffn_width() == expert);
        let mut words = vec![0; c.ffn_width() * c.width.div_ceil(64)];
        for (&index, words) in rows.zip(words.chunks_mut(c.width.div_ceil(64))) {
            let mut row = vec![0.0; c.width];
            dequantise(gate.format, gate.row(index as usize % c.ffn_width()).bytes, &mut row);
            sign_bits(&row, words);
        }
        PredictorSource::Sign(words)
    });
    let rank = 16;
    let mut matrix = |count: usize| {
        let values: Vec<f32> = (0..count).map(|_| numbers.next()).collect();
        let mut bytes = vec![0; Format::F16.row_bytes(count)];
        quantise(Format::F16, &values, &mut bytes);
        bytes
    };
    let low_rank = predictors(&mut |_, _| PredictorSource::LowRank {
        rank,
        fc1: matrix(rank * c.width),
        fc2: matrix(c.ffn_width() * rank),
    });
    let format = Format::F16;
    let thresholds = |value: f32| Some(vec![vec![vec![value; c.ffn_width()]; c.experts()]; c.layers()]);
    let level = |name: &str, kind, set, thresholds, always_on: u32| LevelSource {
        name: name.to_owned(),
        kind,
        set,
        thresholds,
        always_on: vec![always_on; c.layers()],
    };
    let path = folder.join("test.bundle");
    let sets = [
        SetSource { name: "sign", kind: LevelKind::Sign, format, hidden: Hidden::Relu, predictors: &signs },
        SetSource {
            name: "low-rank",
            kind: LevelKind::LowRank,
            format,
            hidden: Hidden::Linear,
            predictors: &low_rank,
        },
    ];
    let levels = [
        level("dense", LevelKind::Dense, None, None, 0),
        level("exact-gate", LevelKind::ExactGate, None, None, 0),
        level("sign", LevelKind::Sign, Some(0), thresholds(c.width as f32 / 2.0), 8),
        level("low-rank", LevelKind::LowRank, Some(1), thresholds(0.1), 5),
    ];
    let contents = Contents {
        name: "test",
        source_fingerprint: "source",
        source,
        tokenizer: tokenizer(),
        down_format: Some(crate::container::stored_down_format(source, down)),
        slice_neurons,
        orders: &orders,
        sets: &sets,
        levels: &levels,
    };
    write(&path, &path.with_extension("part"), contents, &mut (), &mut |_| true).unwrap();
    Container::open(&path).unwrap()
}

/// The container of a model whose neurons all fire, with pieces of down in shuffled slices.
fn container_in_pieces(folder: &Path, source: &SourceModel<'_>, slice: usize) -> Container {
    let path = folder.join("test.bundle");
    let orders = orders(source, slice);
    write_pieces(&path, source, &orders, slice, &mut ()).unwrap();
    Container::open(&path).unwrap()
}

fn write_pieces(
    path: &Path,
    source: &SourceModel<'_>,
    orders: &[Vec<u32>],
    slice: usize,
    layers: &mut dyn WrittenLayers,
) -> std::io::Result<()> {
    let always_on = vec![0; source.config().layers()];
    let (name, kind) = ("dense".to_owned(), LevelKind::Dense);
    let levels = [LevelSource { name, kind, set: None, thresholds: None, always_on }];
    let contents = Contents {
        name: "test",
        source_fingerprint: "source",
        source,
        tokenizer: tokenizer(),
        down_format: None,
        slice_neurons: slice,
        orders,
        sets: &[],
        levels: &levels,
    };
    write(path, &path.with_extension("part"), contents, layers, &mut |_| true).map(|_| ())
}

/// Orders of a model's layers that keep groups of `neighbours` together.
fn orders(source: &SourceModel<'_>, neighbours: usize) -> Vec<Vec<u32>> {
    let (c, mut numbers) = (source.config(), Numbers(99));
    let groups = c.experts() * c.ffn_width() / neighbours;
    let group = |group: u32| (0..neighbours as u32).map(move |neuron| group * neighbours as u32 + neuron);
    (0..c.layers()).map(|_| numbers.order(groups).into_iter().flat_map(group).collect()).collect()
}

/// Everything in a plan that changes only speed and memory, and the format of keys and values.
#[derive(Debug, Clone)]
pub(crate) struct Knobs {
    pub(crate) cores: Vec<u32>,
    pub(crate) hot: u32,
    pub(crate) cold: u32,
    pub(crate) policy: Policy,
    pub(crate) cluster: u32,
    pub(crate) chunk: u32,
    pub(crate) buffers: u32,
    pub(crate) buffer_bytes: u64,
    pub(crate) gap_bytes: u64,
    pub(crate) depth: u32,
    pub(crate) look_ahead: u32,
    pub(crate) blocking: bool,
    pub(crate) phases: Phases,
    pub(crate) embedding_rows: bool,
    pub(crate) backend: Backend,
    pub(crate) context: u32,
    pub(crate) sequences: u32,
    pub(crate) kv: KvFormat,
    pub(crate) draft: u32,
}

impl Default for Knobs {
    fn default() -> Self {
        Self {
            cores: vec![0],
            hot: 0,
            cold: 0,
            policy: Policy::Lru,
            cluster: 16,
            chunk: 8,
            buffers: 4,
            buffer_bytes: 8192,
            gap_bytes: 0,
            depth: 2,
            look_ahead: 0,
            blocking: false,
            phases: Phases::Whole,
            embedding_rows: false,
            backend: Backend::Pread,
            context: 32,
            sequences: 1,
            kv: KvFormat::F32,
            draft: 0,
        }
    }
}

pub(crate) fn plan(container: &Container, level: &str, k: &Knobs) -> Plan {
    let d = &container.directory;
    let entry = container.level(level).unwrap();
    let a = d.architecture();
    let mut plan: Plan = parse(include_str!("test_plan.toml"), Path::new("test_plan.toml")).unwrap();
    level.clone_into(&mut plan.quality.level);
    plan.quality.kind = entry.kind;
    plan.quality.always_on_neurons.clone_from(&entry.always_on);
    best().instruction_set().name().clone_into(&mut plan.quality.instruction_set);
    k.kv.name().clone_into(&mut plan.quality.kv_format);
    plan.cache.hot_neurons = vec![k.hot; d.config.layers()];
    plan.cache.cold_slots = vec![k.cold; d.config.layers()];
    plan.cache.policy = k.policy;
    plan.cache.slice_neurons = d.bundle.slice_neurons as u32;
    plan.read.parts = d.bundle.reads_of_slice() as u32;
    plan.decode.compute_cores.clone_from(&k.cores);
    plan.prefill.compute_cores.clone_from(&k.cores);
    plan.decode.cluster_neurons = k.cluster;
    plan.prefill.chunk_tokens = k.chunk;
    (plan.context.tokens, plan.context.sequences) = (k.context, k.sequences);
    plan.speculation = speculation(k.draft);
    (plan.read.buffers, plan.read.buffer_bytes) = (k.buffers, k.buffer_bytes);
    (plan.read.gap_bytes, plan.read.depth, plan.read.backend) = (k.gap_bytes, k.depth, k.backend);
    (plan.read.look_ahead, plan.read.blocking, plan.read.phases) = (k.look_ahead, k.blocking, k.phases);

    // an embedding that is the head, too, stays in memory
    let needs = EmbeddingRows::needs(container).filter(|_| k.embedding_rows);
    plan.read.embedding_rows = needs.is_some();
    plan.read.per_layer_rows = a.per_layer.is_some();
    let (left, row_buffer) = needs.unwrap_or_default();
    let pages = |bytes: u64| bytes.next_multiple_of(PAGE_BYTES);
    let slot = |layer| d.stored(layer).bundle.part_bytes(slot_part(entry.kind));
    let slots: u64 = (0..d.config.layers()).map(slot).sum();
    let level_bytes = container.level_resident_bytes(entry);
    let m = &mut plan.memory;
    m.fixed_bytes = pages(d.fixed.bytes - left + level_bytes);
    m.hot_bytes = pages(u64::from(k.hot) * slots);
    m.cold_bytes = pages(u64::from(k.cold) * slots);
    m.kv_bytes = pages(u64::from(k.sequences) * u64::from(k.context) * kv_bytes_per_token(&a, k.kv));
    m.kv_token_bytes = kv_token_bytes(&a, k.kv);
    m.state_bytes = pages(u64::from(k.sequences) * state_bytes(&a));
    m.io_buffers_bytes = u64::from(k.buffers) * k.buffer_bytes + row_buffer + per_layer_buffer_bytes(&a);
    let choices = choices_of(&plan, level_bytes);
    let (activations, tables) = (Activations::new(&a, &choices), tables_bytes(&a, &choices));
    let m = &mut plan.memory;
    (m.activations_bytes, m.prompt_bytes) = (activations.bytes(), activations.prompt.bytes());
    m.tables_bytes = tables;
    (m.decode_total_bytes, m.prefill_total_bytes) = (m.decode_sum(), m.prefill_sum());
    plan.expected.memory_peak_bytes = plan.memory.prefill_total_bytes;
    plan.provenance.quality = plan.quality_hash();
    plan
}

/// Drafts of `draft_tokens` tokens.
pub(crate) fn speculation(draft_tokens: u32) -> Option<Speculation> {
    let nothing = Speculation {
        draft_tokens,
        drafted_tokens_per_step: 0.0,
        tokens_per_step: 1.0,
        decode_tokens_per_second: 1.0,
    };
    (draft_tokens > 0).then_some(nothing)
}

pub(crate) fn rows(tokens: &[u32]) -> Vec<Token> {
    tokens.iter().enumerate().map(|(position, &token)| Token { token, sequence: 0, position }).collect()
}

pub(crate) const TOKENS: [u32; 12] = [3, 17, 39, 0, 5, 5, 21, 8, 30, 17, 3, 11];

/// All logits of [`TOKENS`], one decode step each.
fn decode(engine: &mut Transformer) -> Result<Vec<Vec<f32>>, TransformerError> {
    rows(&TOKENS).iter().map(|row| Ok(engine.decode(&[*row])?.to_vec())).collect()
}

pub(crate) fn start(container: &Container, plan: &Plan) -> Transformer {
    Transformer::start(container, plan, StopHandle::default()).unwrap()
}

fn device(container: &Container, plan: &Plan) -> Box<dyn Flash> {
    let file = container.files(false).unwrap();
    let r = &plan.read;
    flash::open_backend(r.backend, file, false, r.depth as usize, r.buffers as usize, &[0]).unwrap()
}

/// The back ends of this machine; names a refused one.
fn backends(container: &Container) -> Vec<Backend> {
    let file = container.files(false).unwrap();
    match flash::open_backend(Backend::IoUring, file, false, 1, 1, &[]) {
        Err(error) if flash::tests::refused(&error) => vec![Backend::Pread],
        _ => Backend::ALL.to_vec(),
    }
}

fn distance(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    largest_difference(a.iter().flatten(), b.iter().flatten())
}

fn reference(source: &SourceModel<'_>) -> Vec<Vec<f32>> {
    let mut reference = Reference::new(source, best());
    TOKENS.iter().map(|&token| reference.step(token, &mut ())).collect()
}

/// The dense model's logits. If the container's down rows were quantised again, those are used, because the
/// source is blocked along the other axis.
fn dense_logits(source: &SourceModel<'_>, container: &Container) -> Vec<Vec<f32>> {
    match container.directory.down_format {
        Format::Q8_0 | Format::Q4_0 | Format::Q4_0X4 => Rounding::logits(container, best(), What::Nothing),
        _ => reference(source),
    }
}

/// Plans that differ in everything but quality, with all back ends and cache policies.
fn all_knobs(backends: &[Backend]) -> Vec<Knobs> {
    let two: Vec<u32> = CoreSet::current().unwrap().cores().into_iter().take(2).collect();
    let mut all = vec![
        Knobs::default(),
        Knobs { cores: two.clone(), hot: 96, cold: 0, ..Knobs::default() },
        Knobs { hot: 30, cold: 40, cluster: 5, buffers: 1, chunk: 1, look_ahead: 1, ..Knobs::default() },
        Knobs { cold: 60, buffers: 2, buffer_bytes: 65536, gap_bytes: 4096, depth: 3, ..Knobs::default() },
        Knobs {
            cores: two,
            hot: 1,
            cold: 3,
            cluster: 1000,
            chunk: 5,
            buffers: 9,
            look_ahead: 2,
            ..Knobs::default()
        },
        Knobs { cold: 50, buffers: 12, gap_bytes: 4096, depth: 5, blocking: true, ..Knobs::default() },
        Knobs { cold: 9, buffers: 2, blocking: true, embedding_rows: true, ..Knobs::default() },
        Knobs { cold: 50, buffers: 99, depth: 64, look_ahead: 64, embedding_rows: true, ..Knobs::default() },
    ];
    let cycled = backends.iter().cycle().zip(Policy::ALL.into_iter().cycle());
    for (knobs, (&backend, policy)) in all.iter_mut().zip(cycled) {
        (knobs.backend, knobs.policy) = (backend, policy);
    }
    all
}

#[test]
fn the_weight_format_is_that_of_the_gate_rows_whatever_attention_has() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = model(1, Format::Q8_0);
    let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
    let mut directory = container(folder.path(), &source).directory;
    directory.tensors.iter_mut().for_each(|tensor| tensor.format = Format::F32);
    directory.down_format = Format::F16;
    let a = directory.architecture();
    assert_eq!((&*a.weight_format, &*a.down_format, &*a.activation), ("Q8_0", "F16", "drelu"));
}

#[test]
fn what_a_token_takes_through_memory_is_counted_once() {
    let (layers, tokens, f32_bytes) = (LAYERS as u64, TOKENS.len() as u64, 4);
    for experts in [1, 4] {
        let bytes = model(experts, Format::F32);
        let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let container = container(folder.path(), &source);
        let (routed, width) = (if experts == 1 { 1 } else { 2 }, WIDTH as u64);
        let row = width * f32_bytes;
        for level in ["dense", "exact-gate", "sign"] {
            let mut engine = start(&container, &plan(&container, level, &Knobs::default()));
            decode(&mut engine).unwrap();
            let Detail { activity: a, traffic: t, .. } = engine.counters().detail;
            let routers = if experts == 1 { 0 } else { experts as u64 };
            // attention's 192 rows, two norms; then the last norm and the head
            let per_layer = (64 + 32 + 32 + 64 + 2 + routers) * row;
            assert_eq!(t.weights, tokens * (layers * per_layer + (1 + VOCABULARY as u64) * row));
            // a token at position p reads p + 1 keys and values, each [2 heads, 16]
            assert_eq!(t.kv, layers * 2 * 32 * f32_bytes * tokens * (tokens + 1) / 2);
            let named = tokens * layers * routed * NEURONS as u64;
            let (selection, gates) = match level {
                "dense" => (0, a.requested),
                "exact-gate" => (named * row, 0),
                _ => (named * (8 + 4), a.requested), // a word of signs and a threshold
            };
            assert_eq!((t.selection, a.routed), (selection, named));
            assert_eq!(t.rows, (gates + a.fired + a.active) * row);
            assert!(a.active < a.fired && a.fired <= a.requested, "{a:?}");
            assert_eq!(
                a.fired == a.requested,
                level == "exact-gate",
                "only gates that fire are requested for: {a:?}"
            );
        }
    }
}

#[test]
fn plans_with_equal_quality_keys_give_equal_bits_and_dense_ones_the_reference() {
    for (experts, format) in [
        (1, Format::F32),
        (1, Format::F16),
        (4, Format::F32),
        (1, Format::Q8_0),
        (4, Format::Q4_0),
        (1, Format::Q4K),
        (4, Format::Q6K),
    ] {
        let bytes = model(experts, format);
        let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let container = container(folder.path(), &source);
        let expected = dense_logits(&source, &container);
        let mut dense = Vec::new();
        let (mut prompt, mut prompt_rounded): (Option<Vec<Vec<f32>>>, Option<Vec<f32>>) = (None, None);
        for level in ["dense", "exact-gate", "sign", "low-rank"] {
            let mut decoded_rounded: Option<Vec<Vec<f32>>> = None;
            let mut first: Option<(Vec<Vec<f32>>, _)> = None;
            for knobs in all_knobs(&backends(&container)) {
                let mut engine = start(&container, &plan(&container, level, &knobs));
                let logits = decode(&mut engine).unwrap();
                let counters = engine.counters();
                let a = counters.detail.activity;
                assert!(a.active <= a.requested && a.requested <= a.routed && a.active > 0, "{a:?}");
                assert_eq!(a.requested, counters.looked_up);
                if knobs.hot == 96 && experts == 1 {
                    assert_eq!(counters.missing, 0);
                } else {
                    assert!(counters.missing > 0 && counters.read_bytes > 0, "{knobs:?}");
                }
                let work = (a, counters.detail.traffic);
                match &first {
                    None => first = Some((logits.clone(), work)),
                    Some((first, did)) => {
                        assert_eq!(&logits, first, "{level} {experts} {format} {knobs:?}");
                        assert_eq!(work, *did, "{level} {experts} {format} {knobs:?}");
                    }
                }
                if matches!(level, "dense" | "exact-gate") {
                    let off = distance(&logits, &expected);
                    assert!(off < 2e-3, "{level} {experts} {format}: {off}");
                }
                if matches!(level, "dense" | "exact-gate") {
                    let mut prefilled = Vec::new();
                    let each = &mut |_: usize, logits: &[f32]| prefilled.push(logits.to_vec());
                    let mut engine = start(&container, &plan(&container, level, &knobs));
                    engine.prefill(&rows(&TOKENS), Some(each)).unwrap();
                    let off = distance(&prefilled, &logits);
                    assert!(off < 1e-4, "prefill is dense decode, added in another order: {off}");
                    match &prompt {
                        None => prompt = Some(prefilled),
                        Some(prompt) => assert_eq!(&prefilled, prompt, "{experts} {format} {knobs:?}"),
                    }
                    let mut rounded = plan(&container, level, &knobs);
                    "q8".clone_into(&mut rounded.quality.activations);
                    let mut engine = start(&container, &rounded);
                    let decoded = decode(&mut engine).unwrap();
                    match &decoded_rounded {
                        None => decoded_rounded = Some(decoded),
                        Some(first) => assert_eq!(&decoded, first, "{experts} {format} {knobs:?}"),
                    }
                    let mut engine = start(&container, &rounded);
                    let logits_rounded = engine.prefill(&rows(&TOKENS), None).unwrap();
                    match &prompt_rounded {
                        None => prompt_rounded = Some(logits_rounded.to_vec()),
                        Some(first) => assert_eq!(logits_rounded, first, "{experts} {format} {knobs:?}"),
                    }
                    dense = logits;
                }
            }
            if level == "dense" {
                let last = &prompt.as_ref().unwrap()[TOKENS.len() - 1..];
                let off = distance(&[prompt_rounded.clone().unwrap()], last);
                let rounds = format.has_blocks();
                assert_eq!(off > 0.0, rounds, "only blocks meet rounded activations: {off}");
                assert!(off < 0.1, "rounding to 8 bits is a small change: {off}");
                let off = distance(&decoded_rounded.unwrap(), &dense);
                assert!((off > 0.0) == rounds && off < 0.1, "as for a prompt: {off}");
            }
            if matches!(level, "sign" | "low-rank") {
                let off = first.map_or(0.0, |(first, _)| distance(&first, &dense));
                assert!(off > 1e-3, "{level} leaves neurons out");
            }
        }
    }
}

#[test]
fn a_neuron_that_is_read_in_phases_gives_the_same_bits_and_takes_the_reads_that_its_gate_asks_for() {
    let bytes = model_of("bamboo", 1, Format::F32, 512); // bundles of a page and a half
    let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let container = container(folder.path(), &source);
    let faults = [Fault::Reordered, Fault::Late, Fault::Short { every: 3 }];
    for level in ["dense", "exact-gate", "low-rank"] {
        let knobs = Knobs { buffer_bytes: 16384, ..Knobs::default() };
        let expected = decode(&mut start(&container, &plan(&container, level, &knobs))).unwrap();
        for phases in [Phases::TwoPhase, Phases::Rows] {
            if (level, phases) == ("exact-gate", Phases::TwoPhase) {
                let plan = plan(&container, level, &Knobs { phases, ..knobs.clone() });
                let message =
                    Transformer::start(&container, &plan, StopHandle::default()).unwrap_err().to_string();
                assert!(message.contains("read.phases is two-phase"), "{message}");
                continue;
            }
            for common in all_knobs(&backends(&container)) {
                let knobs = Knobs { phases, buffer_bytes: 16384, ..common };
                let plan = plan(&container, level, &knobs);
                let mut engine = start(&container, &plan);
                assert_eq!(decode(&mut engine).unwrap(), expected, "{level} {knobs:?}");
                let (c, layout) = (engine.counters(), container.directory.bundle);
                if (knobs.hot, knobs.cold, knobs.look_ahead) == (0, 0, 0) {
                    let rest = if phases == Phases::Rows { 2 } else { 1 };
                    let reads = match level {
                        "exact-gate" => 2 * c.detail.activity.requested,
                        _ => c.detail.activity.requested + rest * c.detail.activity.fired,
                    };
                    assert_eq!(c.reads, reads, "{level} {knobs:?}");
                    let pages = |part| layout.steps(part, phases).unwrap().spans;
                    let bytes = |steps: &[Span]| steps.iter().map(|step| step.bytes).sum::<u64>();
                    let bytes = match level {
                        "exact-gate" => c.detail.activity.requested * bytes(&pages(Part::UpDown)),
                        _ => {
                            let steps = pages(Part::Whole);
                            c.detail.activity.requested * bytes(&steps[..1])
                                + c.detail.activity.fired * bytes(&steps[1..])
                        }
                    };
                    assert_eq!(c.read_bytes, bytes, "{level} {knobs:?}");
                }
                for fault in faults.into_iter().filter(|_| level == "low-rank" && knobs.look_ahead == 2) {
                    let device = Box::new(Faulty::new(device(&container, &plan), fault));
                    let file = container.files(false).unwrap();
                    let mut engine =
                        Transformer::start_on(&container, &plan, &file, device, StopHandle::default())
                            .unwrap();
                    assert_eq!(decode(&mut engine).unwrap(), expected, "{level} {fault:?} {knobs:?}");
                }
            }
            let lies = [
                (Fault::Failing { every: 7 }, "Input/output error"),
                (Fault::Stale { every: 1 }, "checksum"),
            ];
            for (fault, says) in lies {
                let plan = plan(&container, level, &Knobs { phases, cold: 20, buffers: 8, ..knobs.clone() });
                let device = Box::new(Faulty::new(device(&container, &plan), fault));
                let file = container.files(false).unwrap();
                let mut engine =
                    Transformer::start_on(&container, &plan, &file, device, StopHandle::default()).unwrap();
                let message = decode(&mut engine).unwrap_err().to_string();
                assert!(message.contains(says), "{level} {fault:?}: {message}");
            }
        }
    }
}

#[test]
fn a_model_whose_neurons_all_fire_gives_equal_bits_wherever_they_lie() {
    for (experts, format) in
        [(1, Format::F32), (1, Format::Q8_0), (4, Format::Q4_0), (1, Format::Q4_0), (1, Format::Q6K)]
    {
        let bytes = model_of("llama", experts, format, width(format));
        let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let container = container(folder.path(), &source);
        let transposes = container.directory.architecture().transposes_down();
        assert_eq!(transposes, (experts, format) == (1, Format::Q4_0));
        for activations in ["f32", "q8"] {
            let mut first: Option<(Vec<Vec<f32>>, _, Vec<f32>)> = None;
            for mut knobs in all_knobs(&backends(&container)) {
                if transposes {
                    // a prompt takes 32 neurons at a time
                    knobs.buffers = knobs.buffers.max(3);
                }
                let mut plan = plan(&container, "dense", &knobs);
                activations.clone_into(&mut plan.quality.activations);
                let mut engine = start(&container, &plan);
                let logits = decode(&mut engine).unwrap();
                let did = engine.counters().detail.activity;
                assert_eq!((did.fired, did.requested), (did.routed, did.routed), "{knobs:?}");
                let prompt = engine.prefill(&rows(&TOKENS), None).unwrap().to_vec();
                let (expected, counted, of_prompt) =
                    first.get_or_insert_with(|| (logits.clone(), did, prompt.clone()));
                assert_eq!((&logits, &did), (&*expected, &*counted), "{experts} {format} {knobs:?}");
                assert_eq!(&prompt, of_prompt, "{experts} {format} {knobs:?}");
            }
            let (logits, _, prompt) = first.as_ref().unwrap();
            let off = distance(std::slice::from_ref(prompt), &logits[TOKENS.len() - 1..]);
            let largest = compare::largest(prompt);
            // a prompt's vectors are rounded as a token's; sums of nibbles are rounded, too
            let rounded = activations == "q8" && format == Format::Q4_0;
            assert!(
                off <= largest * if rounded { 1e-2 } else { 1e-5 },
                "{experts} {format} {activations}: {off}"
            );
            let off = distance(logits, &dense_logits(&source, &container));
            let tolerance = if activations == "q8" && format.has_blocks() { 0.1 } else { 2e-3 };
            assert!(off < tolerance, "{experts} {format} {activations}: {off}");
        }
        for activations in ["f32", "q8"] {
            let mut plan = plan(&container, "dense", &Knobs { buffers: 1, ..Knobs::default() });
            activations.clone_into(&mut plan.quality.activations);
            let says = Transformer::start(&container, &plan, StopHandle::default())
                .err()
                .map(|e| e.to_string())
                .unwrap_or_default();
            let refused = says.contains("read.buffers is 1, and a prompt of this model takes 32 neurons");
            assert_eq!(
                refused,
                transposes && activations == "q8" && best().down().transposes(Format::Q4_0X4),
                "{says}"
            );
        }
    }
}

#[test]
fn a_prompt_may_be_prefilled_and_the_rest_decoded() {
    let bytes = model(4, Format::F32);
    let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let container = container(folder.path(), &source);
    let mut engine = start(&container, &plan(&container, "dense", &Knobs::default()));
    let all = rows(&TOKENS);
    engine.prefill(&all[..7], None).unwrap();
    let mut last = Vec::new();
    for row in &all[7..] {
        last = engine.decode(&[*row]).unwrap().to_vec();
    }
    assert!(distance(&[last], &reference(&source)[11..]) < 2e-3);
}

#[test]
fn a_prompt_lies_over_the_last_layers_slots_and_changes_no_bit() {
    for experts in [1, 4] {
        let bytes = model(experts, Format::F32);
        let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let container = container(folder.path(), &source);
        let all = rows(&TOKENS);
        // two tokens, two prompts, a token between them and tokens after: the cold slots in use
        let run = |cold: u32, chunk: u32| {
            let plan = plan(&container, "low-rank", &Knobs { cold, chunk, ..Knobs::default() });
            let mut engine = start(&container, &plan);
            let used = |engine: &Transformer| -> Vec<u32> {
                engine.layers.neurons.iter().map(|neurons| neurons.cache.used()).collect()
            };
            let (mut logits, mut seen) = (Vec::new(), Vec::new());
            for part in [0..1, 1..2, 2..6, 6..7, 7..9, 9..10, 10..12] {
                if part.len() == 1 {
                    logits.push(engine.decode(&all[part]).unwrap().to_vec());
                } else {
                    let before = used(&engine);
                    logits.push(engine.prefill(&all[part], None).unwrap().to_vec());
                    seen.push((before, used(&engine)));
                }
            }
            (plan.memory, logits, seen)
        };
        let (_, expected, _) = run(0, 8);
        for chunk in [1, 3, 8] {
            let (memory, logits, seen) = run(NEURONS as u32, chunk);
            assert_eq!(logits, expected, "{experts} experts, chunks of {chunk}");
            assert!(memory.prompt_bytes < memory.cold_bytes, "a layer keeps its slots: {memory:?}");
            for (before, after) in seen {
                assert!(before.iter().all(|&used| used > 0), "{before:?}");
                let kept = after.iter().take_while(|&&used| used > 0).count();
                assert!(kept < LAYERS && after[kept..].iter().all(|&used| used == 0), "{after:?}");
                assert_eq!(after[..kept], before[..kept]);
                assert!(kept > 0 || 2 * memory.prompt_bytes + PAGE_BYTES > memory.cold_bytes, "{memory:?}");
            }
        }
    }
}

#[test]
fn a_device_that_answers_late_or_out_of_order_changes_nothing_and_one_that_lies_is_found_out() {
    let bytes = model(1, Format::F16);
    let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let container = container(folder.path(), &source);
    let expected = {
        let plan = plan(&container, "low-rank", &Knobs { cold: 20, ..Knobs::default() });
        decode(&mut start(&container, &plan)).unwrap()
    };
    for backend in backends(&container) {
        let knobs = Knobs { cold: 20, backend, buffers: 8, look_ahead: 2, ..Knobs::default() };
        let plan = plan(&container, "low-rank", &knobs);
        let engine = |fault| {
            let device = Faulty::new(device(&container, &plan), fault);
            let file = container.files(false).unwrap();
            Transformer::start_on(&container, &plan, &file, Box::new(device), StopHandle::default()).unwrap()
        };
        let with = |fault| {
            let mut engine = engine(fault);
            assert!(engine.flash().starts_with(backend.name()));
            decode(&mut engine)
        };
        let harmless = [Fault::Reordered, Fault::Late, flash::tests::SLOWED, Fault::Short { every: 2 }];
        for fault in harmless {
            assert_eq!(with(fault).unwrap(), expected, "{backend} {fault:?}");
        }
        let message = with(Fault::Failing { every: 20 }).unwrap_err().to_string();
        assert!(message.starts_with("reading ") && message.contains("Input/output error"), "{message}");
        // every read: completion order decides which read has a neuron at the flipped bit
        for fault in [Fault::Flipped { every: 1 }, Fault::Stale { every: 1 }] {
            let message = with(fault).unwrap_err().to_string();
            assert!(message.contains("does not match its checksum"), "{message}");
        }

        // continuing after an error gives the next error: no read of the failed list is left
        for (fault, says) in
            [(Fault::Flipped { every: 1 }, "checksum"), (Fault::Failing { every: 1 }, "reading")]
        {
            let mut engine = engine(fault);
            for _ in 0..2 {
                let message =
                    engine.prefill(&rows(&TOKENS), None).map(<[f32]>::to_vec).unwrap_err().to_string();
                assert!(message.contains(says), "{message}");
                let message = decode(&mut engine).unwrap_err().to_string();
                assert!(message.contains(says), "{message}");
            }
        }
    }
}

/// Accidents of a container while an engine reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Accident {
    /// Another file takes its name.
    Renamed,
    /// Another model of the same shape is written over it.
    Rewritten,
    /// Its end is lost.
    Truncated,
}

#[test]
fn a_container_that_changes_while_it_is_read_gives_the_right_answer_or_a_sentence() {
    let bytes = model(1, Format::F16);
    let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let container = container(folder.path(), &source);
    let good = std::fs::read(&container.path).unwrap();
    let layers = container.directory.layer_offsets[0];
    let mut other = good.clone();
    other[layers as usize..].rotate_right(WIDTH);
    let expected = {
        let plan = plan(&container, "low-rank", &Knobs { cold: 20, ..Knobs::default() });
        decode(&mut start(&container, &plan)).unwrap()
    };
    for backend in backends(&container) {
        for direct in [false, true] {
            for (accident, says) in [
                (Accident::Renamed, None),
                (Accident::Rewritten, Some("was replaced")),
                (Accident::Truncated, Some("has become shorter")),
            ] {
                let knobs = Knobs { cold: 20, backend, buffers: 8, look_ahead: 2, ..Knobs::default() };
                let mut plan = plan(&container, "low-rank", &knobs);
                plan.read.direct = direct;
                let mut engine = match Transformer::start(&container, &plan, StopHandle::default()) {
                    Err(error @ TransformerError::Open { .. }) if direct => {
                        skipped::skipped("direct reads", error);
                        continue;
                    }
                    started => started.unwrap(),
                };
                let mut failures = Vec::new();
                for (row, expected) in rows(&TOKENS).iter().zip(&expected) {
                    if row.position == 3 {
                        match accident {
                            Accident::Renamed => {
                                let path = elsewhere.path().join("other");
                                std::fs::write(&path, &other).unwrap();
                                std::fs::rename(&path, &container.path).unwrap();
                            }
                            Accident::Rewritten => std::fs::write(&container.path, &other).unwrap(),
                            Accident::Truncated => {
                                let file = File::options().write(true).open(&container.path).unwrap();
                                file.set_len(layers + 700).unwrap();
                            }
                        }
                    }
                    match engine.decode(&[*row]) {
                        Ok(logits) => assert_eq!(logits, expected, "{backend} {accident:?} {}", row.position),
                        Err(error) => {
                            failures.push(error.to_string());
                            break;
                        }
                    }
                }
                // a prompt needs every neuron
                let prompt = engine.prefill(&rows(&TOKENS), None).map(<[f32]>::to_vec);
                failures.extend(prompt.err().map(|error| error.to_string()));
                match says {
                    None => assert!(failures.is_empty(), "{backend} {accident:?}: {failures:?}"),
                    Some(says) => {
                        assert_eq!(failures.len(), 2, "{backend} {accident:?}");
                        assert!(failures.iter().all(|failure| failure.contains(says)), "{failures:?}");
                    }
                }
                std::fs::write(&container.path, &good).unwrap();
            }
        }
    }
}

#[test]
fn a_row_of_the_embedding_that_changes_under_us_is_named_and_the_others_are_read_on() {
    let bytes = model(1, Format::F32);
    let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let container = container(folder.path(), &source);
    let mut engine =
        start(&container, &plan(&container, "dense", &Knobs { embedding_rows: true, ..Knobs::default() }));
    let fixed = container.directory.fixed.offset;
    let file = File::options().write(true).open(&container.path).unwrap();
    platform::file::write_all_at(&file, &[0x7f], fixed + 17 * WIDTH as u64 * 4 + 9).unwrap();
    let [three, seventeen] = [3, 17].map(|token| [Token { token, sequence: 0, position: 0 }]);
    engine.decode(&three).unwrap();
    let message = engine.decode(&seventeen).map(<[f32]>::to_vec).unwrap_err().to_string();
    assert!(message.starts_with("row 17 of the token embedding"), "{message}");
    let message = engine.prefill(&seventeen, None).map(<[f32]>::to_vec).unwrap_err().to_string();
    assert!(message.contains("does not match its checksum"), "{message}");
    engine.decode(&three).unwrap();
    // a container that has become shorter
    file.set_len(fixed + 8192).unwrap();
    let far = [Token { token: VOCABULARY as u32 - 1, sequence: 0, position: 0 }];
    let message = engine.decode(&far).map(<[f32]>::to_vec).unwrap_err().to_string();
    assert!(message.starts_with("reading ") && message.contains("has become shorter"), "{message}");
}

#[test]
fn impossible_tokens_and_plans_are_refused_by_name() {
    let bytes = model(1, Format::F32);
    let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let container = container(folder.path(), &source);
    let good = plan(&container, "dense", &Knobs::default());
    let mut engine = start(&container, &good);
    let token = |token, position| [Token { token, sequence: 0, position }];
    assert!(matches!(engine.decode(&token(40, 0)), Err(TransformerError::Token { token: 40, .. })));
    assert!(matches!(
        engine.decode(&token(1, 32)),
        Err(TransformerError::Context { position: 32, context: 32 })
    ));

    let refused = |change: &dyn Fn(&mut Plan)| {
        let mut plan = good.clone();
        change(&mut plan);
        Transformer::start(&container, &plan, StopHandle::default()).unwrap_err().to_string()
    };
    assert!(refused(&|p| p.quality.level = "best".to_owned()).contains("best is not in the container"));
    assert!(refused(&|p| p.cache.hot_neurons[1] = 97).contains("97 pinned neurons"));
    assert!(refused(&|p| p.cache.hot_neurons[1] = 9).contains("memory.hot_bytes"));
    assert!(refused(&|p| p.read.buffer_bytes = 4096).contains("read.buffer_bytes"));
    assert!(refused(&|p| p.decode.compute_cores = vec![999]).contains("core 999"));
    assert!(refused(&|p| p.quality.kind = LevelKind::Sign).contains("quality.kind"));
}
