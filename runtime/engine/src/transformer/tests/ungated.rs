//! Networks without gates: a neuron has two rows, and its up decides whether it fires. With resident ups,
//! only the down is read.

use super::*;

/// A single-precision row is one page.
const WIDTH: usize = 1024;
const PAGE: u64 = PAGE_BYTES;
/// Neurons of an expert, experts, and neurons of the shared expert.
const NEURONS: usize = 24;
const EXPERTS: usize = 4;
const SHARED: usize = 8;

/// One attention layer, and two mixtures without gates.
fn model() -> Vec<u8> {
    let key = |name: &str| format!("nemotron_h_moe.{name}");
    let neurons = NEURONS as i32;
    let mut writer = Writer::new()
        .text("general.architecture", "nemotron_h_moe")
        .u32(&key("block_count"), 3)
        .u32(&key("context_length"), 64)
        .u32(&key("vocab_size"), VOCABULARY as u32)
        .u32(&key("embedding_length"), WIDTH as u32)
        .i32s(&key("feed_forward_length"), &[0, neurons, neurons])
        .u32(&key("attention.head_count"), 4)
        .i32s(&key("attention.head_count_kv"), &[2, 0, 0])
        .u32(&key("attention.key_length"), 16)
        .u32(&key("attention.value_length"), 16)
        .f32(&key("attention.layer_norm_rms_epsilon"), 1e-5)
        .u32(&key("ssm.time_step_rank"), 1)
        .u32(&key("ssm.inner_size"), 16)
        .u32(&key("ssm.group_count"), 1)
        .u32(&key("ssm.state_size"), 8)
        .u32(&key("ssm.conv_kernel"), 4)
        .u32(&key("expert_count"), EXPERTS as u32)
        .u32(&key("expert_used_count"), 2)
        .u32(&key("expert_feed_forward_length"), NEURONS as u32)
        .u32(&key("expert_shared_feed_forward_length"), SHARED as u32);
    let mut numbers = Numbers(23);
    let mut tensor = |name: &str, dims: &[usize]| {
        let count: usize = dims.iter().product();
        let scale = if dims.len() == 1 { 1.0 } else { 2.0 / (dims[0] as f32).sqrt() };
        let middle = if name.ends_with("norm.weight") { 1.5 } else { 0.0 };
        let value = |number: f32| (middle + number * scale).to_le_bytes();
        let bytes: Vec<u8> = (0..count).flat_map(|_| value(numbers.next())).collect();
        let dims: Vec<u64> = dims.iter().map(|&dim| dim as u64).collect();
        writer = writer.clone().tensor_of(name, &dims, 0, &bytes);
    };
    tensor("token_embd.weight", &[WIDTH, VOCABULARY]);
    tensor("output_norm.weight", &[WIDTH]);
    tensor("blk.0.attn_norm.weight", &[WIDTH]);
    for (name, dims) in [("q", [WIDTH, 64]), ("k", [WIDTH, 32]), ("v", [WIDTH, 32]), ("output", [64, WIDTH])]
    {
        tensor(&format!("blk.0.attn_{name}.weight"), &dims);
    }
    for block in 1..3 {
        let mut of_block = |name: &str, dims: &[usize]| tensor(&format!("blk.{block}.{name}.weight"), dims);
        of_block("attn_norm", &[WIDTH]);
        of_block("ffn_gate_inp", &[WIDTH, EXPERTS]);
        of_block("ffn_up_exps", &[WIDTH, NEURONS, EXPERTS]);
        of_block("ffn_down_exps", &[NEURONS, WIDTH, EXPERTS]);
        of_block("ffn_up_shexp", &[WIDTH, SHARED]);
        of_block("ffn_down_shexp", &[SHARED, WIDTH]);
    }
    writer.bytes()
}

#[test]
fn of_ups_in_memory_the_downs_of_those_that_fire_are_read_and_the_bits_are_the_same() {
    let bytes = model();
    let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let container = container(folder.path(), &source);
    let bundle = container.directory.bundle;
    assert_eq!((bundle.gate_bytes, bundle.up_bytes, bundle.down_bytes), (PAGE, 0, PAGE), "up and down");
    assert_eq!(bundle.stride_bytes, 2 * PAGE);
    let expected = reference(&source);
    let mut dense: Option<(Vec<Vec<f32>>, Counters)> = None;
    let mut prompt: Option<Vec<Vec<f32>>> = None;
    for level in ["dense", "exact-gate", "sign", "low-rank"] {
        let exact = level == "exact-gate";
        let mut first: Option<Vec<Vec<f32>>> = None;
        for knobs in all_knobs(&backends(&container)) {
            let mut engine = start(&container, &plan(&container, level, &knobs));
            let logits = decode(&mut engine).unwrap();
            let c = engine.counters();
            let (a, row) = (c.detail.activity, PAGE);
            assert!(
                a.fired == a.active && 0 < a.fired && a.requested < a.routed || level == "dense",
                "{a:?}"
            );
            assert_eq!(a.fired == a.requested, exact, "{level}: {a:?}");
            // through memory: each up once, by the level or by the network, and the downs of firing neurons
            let (selected, ups) =
                if exact { (a.routed * row, 0) } else { (c.detail.traffic.selection, a.requested) };
            assert_eq!(
                (c.detail.traffic.selection, c.detail.traffic.rows),
                (selected, (ups + a.fired) * row),
                "{level}"
            );
            if knobs.look_ahead == 0 && knobs.gap_bytes == 0 {
                // from flash: downs of missing neurons, or up and down
                assert_eq!(c.read_bytes, c.missing * if exact { row } else { 2 * row }, "{level} {knobs:?}");
            }
            match &first {
                None => {
                    let off = distance(&logits, &expected);
                    assert!((off < 2e-3) == matches!(level, "dense" | "exact-gate"), "{level}: {off}");
                    if exact {
                        let (of_dense, dense) = dense.as_ref().unwrap();
                        assert_eq!(&logits, of_dense, "lossless to the bit");
                        // nothing was cached: half of the rows, for the share that fires
                        let (all, fired) = (dense.detail.activity.requested, dense.detail.activity.fired);
                        assert_eq!(c.read_bytes * 2 * all, dense.read_bytes * fired);
                    }
                    if level == "dense" {
                        dense = Some((logits.clone(), c));
                    }
                    first = Some(logits);
                }
                Some(first) => assert_eq!(&logits, first, "{level} {knobs:?}"),
            }
            let mut prefilled = Vec::new();
            let each = &mut |_: usize, logits: &[f32]| prefilled.push(logits.to_vec());
            start(&container, &plan(&container, level, &knobs)).prefill(&rows(&TOKENS), Some(each)).unwrap();
            assert!(distance(&prefilled, &expected) < 2e-3, "a prompt is dense: {level} {knobs:?}");
            assert_eq!(&prefilled, prompt.get_or_insert_with(|| prefilled.clone()), "{level} {knobs:?}");
        }
    }
}

#[test]
fn an_up_is_read_first_and_its_down_if_it_fires() {
    let bytes = model();
    let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let container = container(folder.path(), &source);
    for level in ["dense", "low-rank"] {
        let expected = decode(&mut start(&container, &plan(&container, level, &Knobs::default()))).unwrap();
        for (phases, cold) in [(Phases::TwoPhase, 0), (Phases::Rows, 0), (Phases::TwoPhase, 30)] {
            let plan = plan(&container, level, &Knobs { phases, cold, ..Knobs::default() });
            let mut engine = start(&container, &plan);
            assert_eq!(decode(&mut engine).unwrap(), expected, "{level} {phases:?}");
            let (c, a) = (engine.counters(), engine.counters().detail.activity);
            if cold == 0 {
                assert_eq!((c.reads, c.read_bytes), (a.requested + a.fired, (a.requested + a.fired) * PAGE));
            }
        }
    }
    // a single row has no phases
    let plan = plan(&container, "exact-gate", &Knobs { phases: Phases::Rows, ..Knobs::default() });
    let message = Transformer::start(&container, &plan, StopHandle::default()).unwrap_err().to_string();
    assert!(message.contains("read.phases is rows"), "{message}");
}

#[test]
fn an_expert_of_an_index_is_its_up_and_its_down() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, model()).unwrap();
    let source = SourceModel::open(&path).unwrap();
    let (index, packed) = (index::index(&path), container_in_pieces(folder.path(), &source, NEURONS));
    let d = &index.directory;
    assert_eq!((d.bundle.reads_of_slice(), d.bundle.up_bytes), (2, 0));
    let buffer_bytes = d.bundle.read_bytes_max().max(packed.directory.bundle.read_bytes_max());
    let slice = NEURONS as u32;
    let at = |hot, cold| Knobs { hot: hot * slice, cold: cold * slice, buffer_bytes, ..Knobs::default() };
    let expected = decode(&mut start(&packed, &plan(&packed, "dense", &at(0, 0)))).unwrap();
    assert!(distance(&expected, &reference(&source)) < 2e-3);
    for knobs in [at(0, 0), at(1, 2), at(4, 0)] {
        let mut engine = start(&index, &plan(&index, "dense", &knobs));
        assert_eq!(decode(&mut engine).unwrap(), expected, "{knobs:?}");
        let c = engine.counters();
        assert_eq!(c.reads, 2 * c.missing / NEURONS as u64, "up and down, and nothing twice: {knobs:?}");
    }
}
