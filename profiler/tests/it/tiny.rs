//! A model of two layers, small enough to profile in a second, and a text for it.

use half::f16;
use kernels::quantise;

const LAYERS: usize = 2;
const HEADS: u32 = 2;
const CONTEXT: u32 = 128;
/// `<unk>`, the 256 bytes.
const VOCABULARY: usize = 257;

/// How the matrices are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    F16,
    Q8_0,
    /// As `Q4_K_M` files are: most in `Q4_K`; the head, down and values of one of the layers in `Q6_K`.
    Q4KM,
}

impl Format {
    /// The model's width, and its neurons: whole blocks.
    fn shape(self) -> (usize, usize) {
        if self == Self::Q4KM { (256, 256) } else { (32, 96) }
    }
}

/// A text of a few thousand bytes with some regularity.
pub(crate) fn text() -> String {
    let words = ["neuron", "gate", "flash", "token", "layer", "cache", "expert", "plan", "read", "page"];
    let mut random = Random(3);
    (0..500).map(|_| format!("{} ", words[(random.next() % 10) as usize])).collect()
}

/// A dReLU model with random weights.
pub(crate) fn model(experts: u32, format: Format) -> Vec<u8> {
    model_with(experts, format, "drelu")
}

/// A model with another activation.
pub(crate) fn model_with(experts: u32, format: Format, activation: &str) -> Vec<u8> {
    gguf(experts, format, activation).bytes()
}

/// A model with another activation, in two files, as llama.cpp splits them.
pub(crate) fn split_model_with(experts: u32, format: Format, activation: &str) -> [Vec<u8>; 2] {
    let whole = gguf(experts, format, activation);
    let half = whole.tensors.len() / 2;
    [0, 1].map(|number: u16| {
        let (first, end) = if number == 0 { (0, half) } else { (half, whole.tensors.len()) };
        let start = |tensor: usize| match whole.tensors.get(tensor) {
            Some(tensor) => u64::from_le_bytes(*tensor.last_chunk().expect("an offset")) as usize,
            None => whole.data.len(),
        };
        let mut file = Gguf {
            random: Random(1),
            format,
            keys: if number == 0 { whole.keys.clone() } else { Vec::new() },
            tensors: whole.tensors[first..end].to_vec(),
            data: whole.data[start(first)..start(end)].to_vec(),
        };
        for tensor in &mut file.tensors {
            let offset: &mut [u8; 8] = tensor.last_chunk_mut().expect("an offset");
            *offset = (u64::from_le_bytes(*offset) - start(first) as u64).to_le_bytes();
        }
        file.key("split.no", 2, &number.to_le_bytes());
        file.key("split.count", 2, &2u16.to_le_bytes());
        file.key("split.tensors.count", 5, &(whole.tensors.len() as i32).to_le_bytes());
        file.bytes()
    })
}

/// A dense model with `PowerInfer`'s predictors.
pub(crate) fn model_with_predictors(rank: usize) -> Vec<u8> {
    model_with_some_predictors(rank, LAYERS, "drelu")
}

/// A dense model with predictors that know the gates: of their hidden values half are the inputs, half the inputs with the other sign.
pub(crate) fn model_with_knowing_predictors() -> Vec<u8> {
    let (mut gguf, (width, neurons)) = (gguf(1, Format::F16, "drelu"), Format::F16.shape());
    for layer in 0..LAYERS {
        let gates = gguf.values(&format!("blk.{layer}.ffn_gate.weight"), width * neurons);
        let first = (0..2 * width).flat_map(|row| {
            let sign = if row < width { 1.0 } else { -1.0 };
            (0..width).map(move |column| if column == row % width { sign } else { 0.0 })
        });
        let second =
            gates.chunks_exact(width).flat_map(|row| row.iter().copied().chain(row.iter().map(|v| -v)));
        let stored = |values: Vec<f32>| values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
        gguf.tensor(&format!("blk.{layer}.fc1.weight"), &[width, 2 * width], 1, stored(first.collect()));
        gguf.tensor(&format!("blk.{layer}.fc2.weight"), &[2 * width, neurons], 1, stored(second.collect()));
    }
    gguf.bytes()
}

/// A dense model with predictors in its first layers, which know nothing.
pub(crate) fn model_with_some_predictors(rank: usize, layers: usize, activation: &str) -> Vec<u8> {
    let (mut gguf, (width, neurons)) = (gguf(1, Format::F16, activation), Format::F16.shape());
    for layer in 0..layers {
        gguf.matrix(&format!("blk.{layer}.fc1.weight"), &[width, rank], 0.3);
        gguf.matrix(&format!("blk.{layer}.fc2.weight"), &[rank, neurons], 0.3);
    }
    gguf.bytes()
}

fn gguf(experts: u32, format: Format, activation: &str) -> Gguf {
    let (width, neurons) = format.shape();
    let mut gguf =
        Gguf { random: Random(1), format, keys: Vec::new(), tensors: Vec::new(), data: Vec::new() };
    gguf.text("general.architecture", "llama");
    gguf.text("flashplan.activation", activation);
    for (key, value) in [
        ("block_count", LAYERS as u32),
        ("context_length", CONTEXT),
        ("embedding_length", width as u32),
        ("feed_forward_length", neurons as u32),
        ("attention.head_count", HEADS),
        ("attention.head_count_kv", HEADS / 2),
    ] {
        gguf.key(&format!("llama.{key}"), 4, &value.to_le_bytes());
    }
    if experts > 1 {
        gguf.key("llama.expert_count", 4, &experts.to_le_bytes());
        gguf.key("llama.expert_used_count", 4, &2u32.to_le_bytes());
    }
    gguf.key("llama.attention.layer_norm_rms_epsilon", 6, &1e-5f32.to_le_bytes());
    gguf.text("tokenizer.ggml.model", "llama");
    let tokens: Vec<String> =
        std::iter::once("<unk>".to_owned()).chain((0..256).map(|byte| format!("<0x{byte:02X}>"))).collect();
    gguf.array("tokenizer.ggml.tokens", 8, &tokens.iter().map(|t| string(t)).collect::<Vec<_>>());
    gguf.array("tokenizer.ggml.scores", 6, &vec![0f32.to_le_bytes().to_vec(); VOCABULARY]);
    let types = (0..VOCABULARY).map(|i| if i == 0 { 2i32 } else { 6 }.to_le_bytes().to_vec());
    gguf.array("tokenizer.ggml.token_type", 5, &types.collect::<Vec<_>>());

    let head = width / HEADS as usize;
    // sums of products grow with the width
    let deviation = 0.3 * (32.0 / width as f32).sqrt();
    gguf.matrix("token_embd.weight", &[width, VOCABULARY], 1.0);
    gguf.norm("output_norm.weight");
    if format == Format::Q4KM {
        gguf.matrix("output.weight", &[width, VOCABULARY], deviation);
    }
    for layer in 0..LAYERS {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        gguf.norm(&name("attn_norm"));
        gguf.norm(&name("ffn_norm"));
        gguf.matrix(&name("attn_q"), &[width, width], deviation);
        gguf.matrix(&name("attn_k"), &[width, head], deviation);
        gguf.matrix(&name("attn_v"), &[width, head], deviation);
        gguf.matrix(&name("attn_output"), &[width, width], deviation);
        if experts == 1 {
            gguf.matrix(&name("ffn_gate"), &[width, neurons], deviation);
            gguf.matrix(&name("ffn_up"), &[width, neurons], deviation);
            gguf.matrix(&name("ffn_down"), &[neurons, width], deviation);
        } else {
            let experts = experts as usize;
            gguf.matrix(&name("ffn_gate_inp"), &[width, experts], deviation);
            gguf.matrix(&name("ffn_gate_exps"), &[width, neurons, experts], deviation);
            gguf.matrix(&name("ffn_up_exps"), &[width, neurons, experts], deviation);
            gguf.matrix(&name("ffn_down_exps"), &[neurons, width, experts], deviation);
        }
    }
    gguf
}

struct Gguf {
    random: Random,
    format: Format,
    keys: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data: Vec<u8>,
}

impl Gguf {
    fn key(&mut self, key: &str, kind: u32, value: &[u8]) {
        self.keys.push([&string(key), &kind.to_le_bytes()[..], value].concat());
    }

    fn text(&mut self, key: &str, value: &str) {
        self.key(key, 8, &string(value));
    }

    fn array(&mut self, key: &str, kind: u32, elements: &[Vec<u8>]) {
        let head = [&kind.to_le_bytes()[..], &(elements.len() as u64).to_le_bytes()].concat();
        self.key(key, 9, &[head, elements.concat()].concat());
    }

    fn norm(&mut self, name: &str) {
        let (width, _) = self.format.shape();
        self.tensor(name, &[width], 0, 1f32.to_le_bytes().repeat(width));
    }

    fn matrix(&mut self, name: &str, dims: &[usize], deviation: f32) {
        let values: Vec<f32> =
            (0..dims.iter().product()).map(|_| self.random.signed() * deviation * 1.7).collect();
        match self.format {
            Format::F16 => {
                let bytes = values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
                self.tensor(name, dims, 1, bytes);
            }
            Format::Q8_0 => {
                let block = |block: &[f32]| {
                    let scale = block.iter().fold(0f32, |max, v| max.max(v.abs())) / 127.0;
                    let quants = block.iter().map(|v| (v / scale).round() as i8 as u8);
                    f16::from_f32(scale).to_le_bytes().into_iter().chain(quants).collect::<Vec<u8>>()
                };
                self.tensor(name, dims, 8, values.chunks(32).flat_map(block).collect());
            }
            Format::Q4KM => {
                let fine = ["output.weight", "blk.0.attn_v.weight", "blk.0.ffn_down.weight"].contains(&name);
                let format = if fine { kernels::Format::Q6K } else { kernels::Format::Q4K };
                let mut bytes = vec![0; format.row_bytes(values.len())];
                quantise(format, &values, &mut bytes);
                self.tensor(name, dims, if fine { 14 } else { 12 }, bytes);
            }
        }
    }

    /// So many values of a tensor in F16.
    fn values(&self, name: &str, count: usize) -> Vec<f32> {
        let tensor =
            self.tensors.iter().find(|tensor| tensor.starts_with(&string(name))).expect("it is there");
        let start = u64::from_le_bytes(*tensor.last_chunk().expect("an offset")) as usize;
        let values = self.data[start..start + 2 * count].chunks_exact(2);
        values.map(|bytes| f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()).collect()
    }

    fn tensor(&mut self, name: &str, dims: &[usize], kind: u32, bytes: Vec<u8>) {
        let mut tensor = string(name);
        tensor.extend((dims.len() as u32).to_le_bytes());
        tensor.extend(dims.iter().flat_map(|&dim| (dim as u64).to_le_bytes()));
        tensor.extend(kind.to_le_bytes());
        tensor.extend((self.data.len() as u64).to_le_bytes());
        self.tensors.push(tensor);
        self.data.extend(bytes);
        self.data.resize(self.data.len().next_multiple_of(32), 0);
    }

    fn bytes(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(3u32.to_le_bytes());
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.keys.len() as u64).to_le_bytes());
        file.extend(self.keys.concat());
        file.extend(self.tensors.concat());
        file.resize(file.len().next_multiple_of(32), 0);
        file.extend(&self.data);
        file
    }
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// `SplitMix64`.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform between -1 and 1.
    fn signed(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}
