//! A small GGUF writer for tests, which can also write wrong files.

use super::gguf::{Gguf, TensorInfo};

/// A file in the making.
#[derive(Debug, Clone)]
pub(crate) struct Writer {
    pub magic: [u8; 4],
    pub version: u32,
    /// Replaces the true number of keys.
    pub key_count: Option<u64>,
    /// Replaces the true number of tensors.
    pub tensor_count: Option<u64>,
    pub alignment: usize,
    keys: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data: Vec<u8>,
}

impl Writer {
    pub(crate) fn new() -> Self {
        Self {
            magic: *b"GGUF",
            version: 3,
            key_count: None,
            tensor_count: None,
            alignment: 32,
            keys: Vec::new(),
            tensors: Vec::new(),
            data: Vec::new(),
        }
    }

    /// Adds a key of any type, with its value as bytes.
    pub(crate) fn raw(mut self, key: &[u8], kind: u32, value: &[u8]) -> Self {
        self.keys.push([&string(key), &kind.to_le_bytes()[..], value].concat());
        self
    }

    pub(crate) fn text(self, key: &str, value: &str) -> Self {
        self.raw(key.as_bytes(), 8, &string(value.as_bytes()))
    }

    pub(crate) fn u32(self, key: &str, value: u32) -> Self {
        self.raw(key.as_bytes(), 4, &value.to_le_bytes())
    }

    pub(crate) fn f32(self, key: &str, value: f32) -> Self {
        self.raw(key.as_bytes(), 6, &value.to_le_bytes())
    }

    pub(crate) fn boolean(self, key: &str, value: bool) -> Self {
        self.raw(key.as_bytes(), 7, &[value.into()])
    }

    /// Adds an array of any type, with its elements as bytes.
    pub(crate) fn array(self, key: &str, kind: u32, count: u64, elements: &[u8]) -> Self {
        self.raw(key.as_bytes(), 9, &array(kind, count, elements))
    }

    pub(crate) fn texts(self, key: &str, values: &[&str]) -> Self {
        let elements: Vec<u8> = values.iter().flat_map(|value| string(value.as_bytes())).collect();
        self.array(key, 8, values.len() as u64, &elements)
    }

    pub(crate) fn i32s(self, key: &str, values: &[i32]) -> Self {
        let elements: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.array(key, 5, values.len() as u64, &elements)
    }

    pub(crate) fn f32s(self, key: &str, values: &[f32]) -> Self {
        let elements: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.array(key, 6, values.len() as u64, &elements)
    }

    /// Adds a single-precision tensor with the values 0, 1, 2, ...
    pub(crate) fn tensor(self, name: &str, dims: &[u64]) -> Self {
        let values: u64 = dims.iter().product();
        let bytes: Vec<u8> = (0..values).flat_map(|value| (value as f32).to_le_bytes()).collect();
        self.tensor_of(name, dims, 0, &bytes)
    }

    /// Adds a tensor of any type, with its values as bytes.
    pub(crate) fn tensor_of(mut self, name: &str, dims: &[u64], kind: u32, bytes: &[u8]) -> Self {
        let offset = self.data.len() as u64;
        self.data.extend_from_slice(bytes);
        self.data.resize(self.data.len().next_multiple_of(self.alignment), 0);
        self.tensor_at(name, dims, kind, offset)
    }

    /// Adds a tensor's description without data.
    pub(crate) fn tensor_at(mut self, name: &str, dims: &[u64], kind: u32, offset: u64) -> Self {
        let mut tensor = string(name.as_bytes());
        tensor.extend((dims.len() as u32).to_le_bytes());
        tensor.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
        tensor.extend(kind.to_le_bytes());
        tensor.extend(offset.to_le_bytes());
        self.tensors.push(tensor);
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut file = self.magic.to_vec();
        file.extend(self.version.to_le_bytes());
        file.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        file.extend(self.key_count.unwrap_or(self.keys.len() as u64).to_le_bytes());
        file.extend(self.keys.concat());
        file.extend(self.tensors.concat());
        if !self.data.is_empty() {
            file.resize(file.len().next_multiple_of(self.alignment), 0);
            file.extend(&self.data);
        }
        file
    }
}

/// Splits a model's bytes into `files` files: the first has the keys, each has some of the tensors.
pub(crate) fn split(whole: &[u8], files: usize) -> Vec<Vec<u8>> {
    let gguf = Gguf::parse(whole).unwrap();
    let first = string(gguf.tensors()[0].name.as_bytes());
    let header_end = whole.windows(first.len()).position(|bytes| bytes == first).unwrap();
    let share = gguf.tensors().len().div_ceil(files);
    let file = |(number, tensors): (usize, &[TensorInfo])| {
        let mut writer = Writer::new();
        if number == 0 {
            writer.keys.push(whole[24..header_end].to_vec());
            writer.key_count = Some(gguf.keys().count() as u64 + 3);
        }
        writer = writer
            .raw(b"split.no", 2, &(number as u16).to_le_bytes())
            .raw(b"split.count", 2, &(files as u16).to_le_bytes())
            .raw(b"split.tensors.count", 5, &(gguf.tensors().len() as i32).to_le_bytes());
        for tensor in tensors {
            let kind = tensor.format().unwrap().ggml_type().unwrap();
            writer = writer.tensor_of(&tensor.name, &tensor.dims, kind, gguf.tensor_bytes(tensor));
        }
        writer.bytes()
    };
    gguf.tensors().chunks(share).enumerate().map(file).collect()
}

/// A string as GGUF writes it.
pub(crate) fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

/// An array as GGUF writes it.
pub(crate) fn array(kind: u32, count: u64, elements: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &count.to_le_bytes(), elements].concat()
}

/// A model of one layer, dense or with two experts, small enough to damage at every byte.
pub(crate) fn small_model(experts: u32) -> Writer {
    let (width, head, kv_width, neurons, vocabulary) = (4, 2, 2, 6, 3);
    let writer = Writer::new()
        .text("general.architecture", "llama")
        .u32("llama.block_count", 1)
        .u32("llama.context_length", 16)
        .u32("llama.embedding_length", width)
        .u32("llama.feed_forward_length", neurons)
        .u32("llama.attention.head_count", width / head)
        .u32("llama.attention.head_count_kv", kv_width / head)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
        .text("tokenizer.ggml.model", "llama")
        .texts("tokenizer.ggml.tokens", &["<unk>", "\u{2581}a", "b"])
        .f32s("tokenizer.ggml.scores", &[0.0, -1.0, -2.0])
        .i32s("tokenizer.ggml.token_type", &[2, 1, 1]);
    let [width, kv_width, neurons] = [width, kv_width, neurons].map(u64::from);
    let writer = writer
        .tensor("token_embd.weight", &[width, vocabulary])
        .tensor("output_norm.weight", &[width])
        .tensor("blk.0.attn_norm.weight", &[width])
        .tensor("blk.0.attn_q.weight", &[width, width])
        .tensor("blk.0.attn_k.weight", &[width, kv_width])
        .tensor("blk.0.attn_v.weight", &[width, kv_width])
        .tensor("blk.0.attn_output.weight", &[width, width])
        .tensor("blk.0.ffn_norm.weight", &[width]);
    match experts {
        1 => writer
            .tensor("blk.0.ffn_gate.weight", &[width, neurons])
            .tensor("blk.0.ffn_up.weight", &[width, neurons])
            .tensor("blk.0.ffn_down.weight", &[neurons, width]),
        _ => writer
            .u32("llama.expert_count", experts)
            .u32("llama.expert_used_count", 1)
            .tensor("blk.0.ffn_gate_inp.weight", &[width, experts.into()])
            .tensor("blk.0.ffn_gate_exps.weight", &[width, neurons, experts.into()])
            .tensor("blk.0.ffn_up_exps.weight", &[width, neurons, experts.into()])
            .tensor("blk.0.ffn_down_exps.weight", &[neurons, width, experts.into()]),
    }
}
