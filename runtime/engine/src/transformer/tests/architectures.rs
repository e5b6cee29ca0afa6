//! Every supported architecture with all its peculiarities and random weights. The engine computes the
//! reference's logits, token by token and as a prompt in chunks. Tokens cross the edges of windows and the
//! original context of scaled rotary embeddings.

use super::*;

mod beside;
mod cases;

use cases::{
    BAILINGMOE3, CASES, Case, GEMMA3N, GEMMA4, GEMMA4_MOE, GEMMA4_SMALL, KIMI_LINEAR, NONE, QWEN4EXP, QWEN35,
    SMALLTHINKER,
};

impl Case {
    fn is_recurrent(&self, layer: usize) -> bool {
        layer == 0 && !self.recurrent.is_empty()
    }

    /// A layer's tensors, besides those common to all.
    fn own(&self, layer: usize) -> &'static [(&'static str, &'static [usize])] {
        match layer {
            0 if !self.recurrent.is_empty() => self.recurrent,
            0 if !self.first.is_empty() => self.first,
            _ => self.of_layer,
        }
    }

    /// Number of layers whose tensors differ.
    fn different(&self) -> usize {
        if self.own(0) == self.of_layer { 1 } else { LAYERS }
    }

    /// The model as a single-precision GGUF file.
    fn file(&self) -> Vec<u8> {
        self.file_in(|_| Format::F32)
    }

    /// The model with matrices in other formats, by their names after `blk.N.`.
    fn file_in(&self, format: fn(&str) -> Format) -> Vec<u8> {
        let (mut numbers, a) = (Numbers(11), self.architecture);
        let key = |name: &str| format!("{a}.{name}");
        let mut writer = Writer::new()
            .text("general.architecture", a)
            .u32(&key("block_count"), (LAYERS + self.guessing) as u32)
            .u32(&key("context_length"), 64)
            .u32(&key("vocab_size"), VOCABULARY as u32)
            .u32(&key("embedding_length"), WIDTH as u32)
            .u32(&key("feed_forward_length"), NEURONS as u32)
            .u32(&key("attention.head_count"), 4)
            .u32(&key("attention.key_length"), self.head_width as u32)
            .u32(&key("attention.value_length"), self.rank.unwrap_or(self.head_width) as u32)
            .f32(&key("attention.layer_norm_rms_epsilon"), 1e-5);
        writer = if self.rank.is_some() && self.kv_heads == NONE.kv_heads {
            writer.u32(&key("attention.head_count_kv"), 1)
        } else if self.kv_heads == [2; LAYERS] {
            writer.u32(&key("attention.head_count_kv"), 2)
        } else {
            let counts: Vec<u8> = self.kv_heads.iter().flat_map(|count| count.to_le_bytes()).collect();
            writer.array(&key("attention.head_count_kv"), 4, 2, &counts)
        };
        if self.experts > 1 {
            writer = writer.u32(&key("expert_count"), self.experts as u32).u32(&key("expert_used_count"), 2);
        }
        if self.guessing > 0 {
            writer = writer.u32(&key("nextn_predict_layers"), self.guessing as u32);
        }
        writer = (self.keys)(writer, a);
        let mut tensor = |writer: Writer, name: &str, dims: &[usize]| {
            let count: usize = dims.iter().product();
            let is_vector = name.ends_with("norm.weight") || name.starts_with("rope");
            let scale = if dims.len() == 1 { 1.0 } else { 2.0 / (dims[0] as f32).sqrt() };
            let value = |number: f32| match name {
                _ if is_vector => 1.5 + number,
                // states decay
                _ if name.ends_with("ssm_a") => number - 1.5,
                _ => number * scale,
            };
            let values: Vec<f32> = (0..count).map(|_| value(numbers.next())).collect();
            let behind = name.strip_prefix("blk.").and_then(|name| name.split_once('.'));
            let format = behind.map_or(Format::F32, |(_, name)| format(name));
            let mut bytes = vec![0; format.row_bytes(count)];
            quantise(format, &values, &mut bytes);
            let dims: Vec<u64> = dims.iter().map(|&dim| dim as u64).collect();
            writer.tensor_of(name, &dims, format.ggml_type().unwrap(), &bytes)
        };
        writer = tensor(writer, "token_embd.weight", &[WIDTH, VOCABULARY]);
        if !self.without.contains(&"output_norm") {
            writer = tensor(writer, "output_norm.weight", &[WIDTH]);
        }
        for (name, dims) in self.others {
            writer = tensor(writer, name, dims);
        }
        let (query, kv) = (4 * self.head_width, 2 * self.head_width);
        let stack: &[usize] = if self.experts > 1 { &[self.experts] } else { &[] };
        let suffix = if self.experts > 1 { "_exps" } else { "" };
        for layer in 0..LAYERS {
            let usual: [(&str, &[usize]); 10] = [
                ("attn_norm", &[WIDTH]),
                ("ffn_norm", &[WIDTH]),
                ("attn_q", &[WIDTH, query]),
                ("attn_k", &[WIDTH, kv]),
                ("attn_v", &[WIDTH, kv]),
                ("attn_output", &[query, WIDTH]),
                ("ffn_gate_inp", &[WIDTH, self.experts]),
                ("ffn_gate", &[WIDTH, NEURONS]),
                ("ffn_up", &[WIDTH, NEURONS]),
                ("ffn_down", &[NEURONS, WIDTH]),
            ];
            for (name, dims) in usual {
                let routes = name == "ffn_gate_inp" && self.experts == 1;
                let attends = name.starts_with("attn_") && name != "attn_norm" && self.is_recurrent(layer);
                if self.without.contains(&name) || routes || attends {
                    continue;
                }
                let of_expert = matches!(name, "ffn_gate" | "ffn_up" | "ffn_down");
                let (suffix, stack) = if of_expert { (suffix, stack) } else { ("", &[][..]) };
                writer =
                    tensor(writer, &format!("blk.{layer}.{name}{suffix}.weight"), &[dims, stack].concat());
            }
            for (name, dims) in self.own(layer) {
                writer = tensor(writer, &format!("blk.{layer}.{name}"), dims);
            }
        }
        for layer in LAYERS..LAYERS + self.guessing {
            for (name, dims) in
                [("nextn.eh_proj.weight", &[2 * WIDTH, WIDTH][..]), ("attn_norm.weight", &[WIDTH])]
            {
                writer = tensor(writer, &format!("blk.{layer}.{name}"), dims);
            }
        }
        writer.bytes()
    }
}

/// A model whose attention chooses four blocks of two positions.
pub(super) fn of_chosen_blocks() -> Vec<u8> {
    QWEN4EXP.file()
}

/// Tolerance relative to the logits' root mean square: sums of 64 to 96 products in another order, in two
/// layers.
const SAME: f32 = 2e-5;
/// Tolerance of gemma4. Its scores are unscaled, of the order of tens, and their softmax amplifies
/// differences.
const SAME_UNSCALED: f32 = 3e-5;

#[test]
fn the_engine_computes_every_architecture_as_the_reference_does() {
    for case in CASES {
        let (bytes, folder) = (case.file(), tempfile::tempdir().unwrap());
        let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap())
            .unwrap_or_else(|error| panic!("{}: {error}", case.name));
        let container = container(folder.path(), &source);
        let expected = reference(&source);
        let size_of = |values: &[Vec<f32>]| {
            let squares = values.iter().flatten().map(|value| value * value);
            (squares.clone().sum::<f32>() / squares.count() as f32).sqrt()
        };
        let size = size_of(&expected);
        let most = if case.architecture == "gemma4" { SAME_UNSCALED } else { SAME };
        let mut slow = Reference::new(&source, best());
        let expected_hidden: Vec<Vec<f32>> = TOKENS.iter().map(|&token| slow.hidden(token)).collect();
        let mut first: Option<[Vec<Vec<f32>>; 3]> = None;
        for knobs in [
            Knobs { hot: 40, cold: 30, chunk: 5, look_ahead: 1, ..Knobs::default() },
            Knobs { hot: 96, chunk: 12, cores: vec![0, 0], ..Knobs::default() },
            Knobs { cold: 96, chunk: 1, cluster: 7, ..Knobs::default() },
        ] {
            let mut engine = start(&container, &plan(&container, "dense", &knobs));
            let decoded = decode(&mut engine).unwrap();
            // a sequence that goes back, across windows too, equals one that never went on
            let back = if case.recurrent.is_empty() { vec![TOKENS.len() - 2, 1, 4] } else { vec![0] };
            for at in back {
                for (position, &token) in TOKENS.iter().enumerate().skip(at) {
                    let row = Token { token, sequence: 0, position };
                    assert!(
                        engine.decode(&[row]).unwrap() == decoded[position],
                        "{}: back to {at}",
                        case.name
                    );
                }
            }
            let mut prompt = Vec::new();
            engine.prefill(&rows(&TOKENS), Some(&mut |_, logits| prompt.push(logits.to_vec()))).unwrap();
            for (what, found) in [("decode", &decoded), ("prefill", &prompt)] {
                let off = distance(found, &expected) / size;
                assert!(off < most, "{}, {what}: off by {off} of {size}", case.name);
            }
            let mut hidden = Vec::new();
            engine.prefill_hidden(&rows(&TOKENS), &mut |_, state| hidden.push(state.to_vec())).unwrap();
            let off = distance(&hidden, &expected_hidden) / size_of(&expected_hidden);
            assert!(off < most, "{}, hidden states: off by {off}", case.name);
            let same = first.get_or_insert_with(|| [decoded.clone(), prompt.clone(), hidden.clone()]);
            assert!(*same == [decoded, prompt, hidden], "{}: one quality, the same bits", case.name);
        }
    }
}

#[test]
fn every_piece_of_a_description_changes_the_logits() {
    // a piece that is read and then ignored would pass everywhere else
    let logits = |case: &Case| {
        let bytes = case.file();
        let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
        reference(&source)
    };
    for case in CASES {
        let bytes = case.file();
        let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
        let of = |layer: usize| case.own(layer).iter().map(move |(name, _)| format!("blk.{layer}.{name}"));
        let outside = case.others.iter().map(|(name, _)| (*name).to_owned());
        let tables = ["per_layer", "altup", "output_hc"];
        let outside = outside.filter(|name| tables.iter().any(|start| name.starts_with(start)));
        for name in (0..case.different()).flat_map(of).chain(outside) {
            // each tensor by itself replaced by zeros
            let mut changed = bytes.clone();
            let tensor = source.gguf().tensor(&name).unwrap();
            changed[tensor.offset as usize..][..tensor.bytes as usize].fill(0);
            let changed = SourceModel::from_gguf(Gguf::parse(&changed).unwrap()).unwrap();
            assert!(distance(&reference(&changed), &logits(&case)) > 1e-3, "{}: {name}", case.name);
        }
        let needs = [
            "gpt-oss",
            "granitemoe with a shared expert",
            "qwen35 without recurrent layers",
            "gemma4",
            "gemma4, a mixture",
            "gemma4, per-layer embeddings",
            "gemma3n",
        ];
        let needed = !case.recurrent.is_empty() || case.rank.is_some() || needs.contains(&case.name);
        if (case.keys)(Writer::new(), "a").bytes() != Writer::new().bytes() && !needed {
            let plain = Case { keys: |writer, _| writer.f32("granitemoe.logit_scale", 1.0), ..case };
            assert!(distance(&logits(&plain), &logits(&case)) > 1e-3, "{}: its keys", case.name);
        }
    }
}

/// The result of transformers for one model; see `fixtures/golden/architectures.py`.
#[derive(serde::Deserialize)]
struct Golden {
    architecture: String,
    /// The logits' standard deviation.
    logits_deviation: f32,
}

#[derive(serde::Deserialize)]
struct Index {
    tokens: Vec<u32>,
    models: std::collections::BTreeMap<String, Golden>,
}

/// Tolerance relative to the logits' standard deviation: F32 in another order over three to six layers, whose
/// experts and sharp softmaxes amplify a difference.
pub(super) const GOLDEN: f32 = 5e-5;

/// Tolerance of a model whose low-rank vectors transformers normalises with an epsilon of 1e-6, whatever its
/// configuration says. We use the file's 1e-5, as llama.cpp does.
const GOLDEN_EPSILON: f32 = 1.5e-4;

#[test]
fn reference_and_engine_compute_what_transformers_computes() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/golden/architectures"));
    let index: Index = serde_json::from_slice(&std::fs::read(folder.join("index.json")).unwrap()).unwrap();
    for (name, golden) in &index.models {
        let opened = SourceModel::open(folder.join(format!("{name}.gguf")));
        let source = opened.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(source.config().architecture, golden.architecture);
        let expected = npy(&folder.join(format!("{name}.npy")), source.config().vocabulary);
        assert_eq!(expected.len(), index.tokens.len());
        let check = |what: &str, found: &[Vec<f32>]| {
            let off = distance(found, &expected) / golden.logits_deviation;
            let near = match name.as_str() {
                "deepseek2" => GOLDEN_EPSILON,
                _ => GOLDEN,
            };
            assert!(off < near, "{name}, {what}: off by {off} of the deviation");
        };
        let mut reference = Reference::new(&source, best());
        let logits: Vec<Vec<f32>> =
            index.tokens.iter().map(|&token| reference.step(token, &mut ())).collect();
        check("reference", &logits);
        if name == "gpt-oss-mxfp4" {
            continue; // the engine rounds vectors to 8 bits and stores down rows anew, which no F32 figure judges
        }
        let temporary = tempfile::tempdir().unwrap();
        let container = container(temporary.path(), &source);
        let draft = if source.config().recurrent().is_some() { 0 } else { 4 };
        let knobs = Knobs { hot: 20, cold: 40, chunk: 7, context: 64, buffers: 9, draft, ..Knobs::default() };
        let mut engine = start(&container, &plan(&container, "dense", &knobs));
        let of_token = kv_bytes_per_token(&container.directory.architecture(), knobs.kv);
        assert_eq!(engine.kv_bytes_per_token(), of_token, "{name}");
        let rows = rows(&index.tokens);
        let decoded: Vec<Vec<f32>> =
            rows.iter().map(|row| engine.decode(&[*row]).unwrap().to_vec()).collect();
        check("decode", &decoded);
        let mut prompt = Vec::new();
        engine.prefill(&rows, Some(&mut |_, logits| prompt.push(logits.to_vec()))).unwrap();
        check("prefill", &prompt);
        // tokens together see the same windows, sinks and bounds as one by one
        for together in rows.chunks(1 + draft as usize) {
            let found = engine.decode(together).unwrap();
            let expected = &decoded[together[0].position..][..together.len()];
            assert!(found == expected.concat(), "{name}: {} tokens in a step", together.len());
        }
    }
}

/// Formats of the matrices: all in blocks, except routers.
fn in_blocks(name: &str) -> Format {
    match name {
        _ if name.contains("norm") || name.ends_with("scale.weight") || name.ends_with(".scale") => {
            Format::F32
        }
        // coefficients of three streams are no block
        _ if name.contains("altup") => Format::F32,
        _ if name.contains("gate_inp") => Format::F32,
        _ if name.contains("attn_") => Format::Q8_0,
        _ => Format::Q4_0,
    }
}

/// [`in_blocks`] with unquantised down, so that nothing is quantised twice.
fn in_blocks_but_down(name: &str) -> Format {
    if name.contains("down") { Format::F32 } else { in_blocks(name) }
}

#[test]
fn heads_and_routers_of_other_kinds_compute_the_references_numbers_in_blocks() {
    for (case, format) in [
        (GEMMA4, in_blocks as fn(&str) -> Format),
        (GEMMA4_SMALL, in_blocks),
        (GEMMA3N, in_blocks),
        (GEMMA4_MOE, in_blocks),
        (SMALLTHINKER, in_blocks_but_down),
    ] {
        let (bytes, folder) = (case.file_in(format), tempfile::tempdir().unwrap());
        let source = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap();
        let fires = source.config().activation().always_fires();
        let container = if fires {
            container_in_pieces(folder.path(), &source, NEURONS)
        } else {
            container(folder.path(), &source)
        };
        let buffer_bytes = container.directory.bundle.read_bytes_max().max(8192);
        let all = if case.experts > 1 { [(96, 96), (0, 192), (384, 0)] } else { [(0, 0), (0, 0), (96, 0)] };
        let knobs = |(at, (hot, cold)): (usize, (u32, u32))| Knobs {
            hot,
            cold,
            buffer_bytes,
            buffers: 9,
            look_ahead: 2 * (at as u32 % 2),
            chunk: 5 + at as u32,
            cores: vec![0; 1 + at % 2],
            ..Knobs::default()
        };
        let all: Vec<Knobs> = all.into_iter().enumerate().map(knobs).collect();
        let expected = reference(&source);
        let mut of_forms = Vec::new();
        for activations in ["f32", "q8"] {
            let mut first = None;
            for knobs in &all {
                let mut plan = plan(&container, "dense", knobs);
                activations.clone_into(&mut plan.quality.activations);
                let mut engine = start(&container, &plan);
                let decoded = decode(&mut engine).unwrap();
                let mut prompt = Vec::new();
                engine.prefill(&rows(&TOKENS), Some(&mut |_, logits| prompt.push(logits.to_vec()))).unwrap();
                let found = [decoded, prompt];
                let first = first.get_or_insert_with(|| found.clone());
                assert!(*first == found, "{} {activations} {knobs:?}", case.name);
            }
            of_forms.extend(first);
        }
        for found in &of_forms[0] {
            let off = distance(found, &expected);
            assert!(off < 1e-4, "{}: off by {off}", case.name);
        }
        for found in &of_forms[1] {
            let off = distance(found, &expected);
            assert!(off > 1e-4 && off < 0.3, "{}: rounding vectors is off by {off}", case.name);
        }
        together::check(&container, case.name, "dense", &all[..2]);
    }
}

#[test]
fn an_index_of_a_mixture_beside_a_network_gives_the_bits_of_a_container() {
    let (bytes, folder) = (GEMMA4_MOE.file_in(in_blocks), tempfile::tempdir().unwrap());
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    let source = SourceModel::open(&path).unwrap();
    let [packed, index] = [container_in_pieces(folder.path(), &source, NEURONS), index::index(&path)];
    let logits = |container: &Container| {
        let buffer_bytes = container.directory.bundle.read_bytes_max().max(8192);
        let knobs = Knobs { hot: 96, cold: 96, buffers: 9, buffer_bytes, ..Knobs::default() };
        let mut engine = start(container, &plan(container, "dense", &knobs));
        let decoded = decode(&mut engine).unwrap();
        (decoded, engine.prefill(&rows(&TOKENS), None).unwrap().to_vec())
    };
    assert!(logits(&packed) == logits(&index), "they have the same numbers");
}

/// The rows of a two-dimensional `NumPy` array of `f32`.
pub(super) fn npy(path: &Path, columns: usize) -> Vec<Vec<f32>> {
    let bytes = std::fs::read(path).unwrap();
    assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00", "version 1.0");
    let header = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let values: Vec<f32> =
        bytes[header..].as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    values.chunks(columns).map(<[f32]>::to_vec).collect()
}

#[test]
fn descriptions_that_the_engine_has_no_room_for_are_refused() {
    let refused = |case: Case, problem: &str| {
        let bytes = case.file();
        let message = SourceModel::from_gguf(Gguf::parse(&bytes).unwrap()).unwrap_err().to_string();
        assert!(message.contains(problem), "{message}");
    };
    let guessing = Case {
        keys: |writer, a| (QWEN35.keys)(writer, a).u32(&format!("{a}.nextn_predict_layers"), 2),
        ..QWEN35
    };
    refused(guessing, "fewer than there are layers");
    refused(Case { head_width: 15, ..QWEN35 }, "it must be even");
    let shared = Case {
        keys: |writer, a| {
            let window = writer.u32(&format!("{a}.attention.sliding_window"), 4);
            let pattern = window.array(&format!("{a}.attention.sliding_window_pattern"), 7, 2, &[1, 0]);
            pattern.u32(&format!("{a}.attention.shared_kv_layers"), 1)
        },
        ..GEMMA4
    };
    refused(
        shared,
        "`gemma4.attention.shared_kv_layers` is 1, and only a number that leaves layers of each kind",
    );
    let without = Case { others: &[], ..GEMMA4_SMALL };
    refused(without, "tensor `per_layer_token_embd.weight` is missing");
    let all = Case {
        keys: |writer, a| {
            let cutoffs: Vec<u8> = [0.3_f32; LAYERS].iter().flat_map(|it| it.to_le_bytes()).collect();
            let writer = (GEMMA4_SMALL.keys)(writer, a).u32(&format!("{a}.altup.num_inputs"), 3);
            let writer = writer.u32(&format!("{a}.altup.active_idx"), 1);
            writer.array(&format!("{a}.activation_sparsity_scale"), 6, 2, &cutoffs)
        },
        ..GEMMA3N
    };
    refused(all, "key `gemma3n.altup.active_idx` is 1, and only 0, the first of the streams, is implemented");
    refused(Case { others: &GEMMA3N.others[1..], ..GEMMA3N }, "tensor `altup_proj.weight` is missing");
    let beyond = Case { others: &[("per_layer_token_embd.weight", &[16, 23])], ..QWEN4EXP };
    refused(beyond, "a head of n-grams reads beyond them");
    refused(Case { recurrent: &[], ..QWEN4EXP }, "tensor `blk.0.attn_qkv.weight` is missing");
    refused(Case { others: &[], ..GEMMA4 }, "layers without a window need `rope_freqs.weight`");
    refused(
        Case { kv_heads: [0, 2], ..KIMI_LINEAR },
        "only 0 or 1, of one vector for all heads, is implemented",
    );
    let unbounded = Case {
        keys: |writer, a| {
            (KIMI_LINEAR.keys)(writer, a)
                .boolean(&format!("{a}.kda.safe_gate"), false)
                .f32(&format!("{a}.kda.gate_lower_bound"), -5.0)
        },
        ..BAILINGMOE3
    };
    refused(unbounded, "key `bailingmoe3.kda.safe_gate` is false, and only true is implemented");
    let rising = Case {
        keys: |writer, a| (KIMI_LINEAR.keys)(writer, a).f32(&format!("{a}.kda.gate_lower_bound"), 5.0),
        ..BAILINGMOE3
    };
    refused(rising, "key `bailingmoe3.kda.gate_lower_bound` is 5, and only a number below 0 is implemented");
    let other = Case { keys: |writer, a| writer.u32(&format!("{a}.expert_gating_func"), 3), ..SMALLTHINKER };
    refused(other, "key `smallthinker.expert_gating_func` is 3, and only 1 or 2 is implemented");
}
