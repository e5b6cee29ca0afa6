//! Folders of every architecture against the files that llama.cpp's converter made of the same models, and folders that lie.

use std::fs;
use std::path::{Path, PathBuf};

use flashplan::internals::model::gguf::{Gguf, Value};
use flashplan::internals::model::source::SourceModel;
use flashplan::internals::reference::Reference;
use kernels::{Format, dequantise};
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use crate::conversion::{Conversion, Quantisation, quantised};
use crate::keys::Keys;

/// The models of `fixtures/golden/folders`.
const MODELS: [&str; 18] = [
    "llama3",
    "llama-linear",
    "llama-yarn",
    "qwen2",
    "qwen3",
    "qwen3moe",
    "olmoe",
    "mistral",
    "ministral3",
    "phi3",
    "phi4",
    "gemma3",
    "granite",
    "granitemoe",
    "granitemoe-shared",
    "gpt-oss",
    "gpt-oss-mxfp4",
    "mixtral",
];

fn golden(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/golden").join(path)
}

/// A folder that can be changed.
struct Folder(TempDir);

impl Folder {
    /// A copy of a golden one.
    fn of(name: &str) -> Self {
        let place = TempDir::new().unwrap();
        for file in golden(&format!("folders/{name}")).read_dir().unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), place.path().join(file.file_name())).unwrap();
        }
        Self(place)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        fs::read(self.path().join(name)).unwrap()
    }

    fn put(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.path().join(name), bytes).unwrap();
    }

    /// Changes a file of JSON.
    fn edit(&self, name: &str, change: impl FnOnce(&mut Json)) {
        let path = self.path().join(name);
        let mut json =
            fs::read(&path).map_or_else(|_| json!({}), |bytes| serde_json::from_slice(&bytes).unwrap());
        change(&mut json);
        self.put(name, json.to_string());
    }

    /// Changes the header of the weights, whose length may change.
    fn edit_header(&self, name: &str, change: impl FnOnce(&mut Json)) {
        let file = self.bytes(name);
        let count = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        let mut json: Json = serde_json::from_slice(&file[8..8 + count]).unwrap();
        change(&mut json);
        let header = json.to_string();
        self.put(
            name,
            [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &file[8 + count..]].concat(),
        );
    }

    /// Why it is refused, with nothing left where the file would have been.
    fn refusal(&self) -> String {
        let beside = TempDir::new().unwrap();
        let refused = Conversion::new(self.path(), None, beside.path()).expect_err("refused").to_string();
        assert_eq!(beside.path().read_dir().unwrap().count(), 0, "nothing is left");
        refused.replace(&self.path().display().to_string(), "FOLDER")
    }
}

fn converted(folder: &Path, quantisation: Option<Quantisation>) -> (TempDir, PathBuf) {
    let place = TempDir::new().unwrap();
    let path = place.path().join("made.gguf");
    let mut conversion = Conversion::new(folder, quantisation, place.path()).unwrap();
    conversion.write(&path, &|_| true, &mut |_| Ok(quantisation.map(|_| 0.25))).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), conversion.bytes(), "the size that was told");
    (place, path)
}

/// Keys that say nothing of the model, or are compared otherwise.
const OTHER_KEYS: [&str; 5] =
    ["general.name", "general.size_label", "general.file_type", "tokenizer.ggml.pre", "flashplan.folder"];

/// Texts that rules cut differently.
const TEXTS: [&str; 4] = [
    "The quick brown fox, in 2026: 1234 pages!",
    "  don't  WON'T\n\n\tlet x = 10;",
    "e\u{301}té \u{1f600} ",
    "a\u{2581}b ÀÉ ½ 12345",
];

fn tokens(source: &SourceModel<'_>) -> [Vec<u32>; 4] {
    let tokenizer = source.tokenizer_data().unwrap().into_tokenizer().unwrap();
    TEXTS.map(|text| tokenizer.encode(text, tokenizer.adds_bos()))
}

#[test]
fn a_folder_becomes_what_llama_cpps_converter_makes_of_it() {
    for name in MODELS {
        let (_place, path) = converted(&golden(&format!("folders/{name}")), None);
        let expected = Gguf::open(golden(&format!("architectures/{name}.gguf"))).unwrap();
        let made = Gguf::open(&path).unwrap();
        for tensor in expected.tensors() {
            let own = made.tensor(&tensor.name).unwrap_or_else(|| panic!("{name} lacks {}", tensor.name));
            assert_eq!((own.dims, own.kind), (tensor.dims, tensor.kind), "{name}: {}", tensor.name);
            assert!(
                made.tensor_bytes(own) == expected.tensor_bytes(tensor),
                "{name}: {} differs",
                tensor.name
            );
        }
        assert_eq!(made.tensors().len(), expected.tensors().len(), "{name}: as many tensors");
        let keys = |gguf: &Gguf<'_>| -> Vec<(String, Value)> {
            let told = gguf.keys().filter(|(key, _)| !OTHER_KEYS.contains(key));
            told.map(|(key, value)| (key.to_owned(), value.clone())).collect()
        };
        // a tokenizer.json alone has merges in the place of scores; the tokens below are the same
        let scored = name != "mistral";
        for (key, value) in keys(&expected) {
            if key.starts_with("tokenizer.") && !scored {
                continue;
            }
            assert_eq!(made.value(&key), Some(&value), "{name}: {key}");
        }
        let more: Vec<_> = keys(&made)
            .into_iter()
            .filter(|(key, _)| expected.value(key).is_none() && (scored || !key.starts_with("tokenizer.")))
            .collect();
        assert!(more.is_empty(), "{name}: {more:?}");
        let (own, other) = (SourceModel::open(&path).unwrap(), SourceModel::from_gguf(expected).unwrap());
        assert_eq!(own.config(), other.config(), "{name}: the same description");
        assert_eq!(tokens(&own), tokens(&other), "{name}: the same tokens");
    }
}

/// A model's file as two, as llama.cpp splits it.
fn split(whole: &Path, folder: &Path) -> PathBuf {
    let gguf = Gguf::open(whole).unwrap();
    let half = gguf.tensors().len() / 2;
    let path = |number: usize| folder.join(format!("half-0000{number}-of-00002.gguf"));
    for (number, tensors) in [&gguf.tensors()[..half], &gguf.tensors()[half..]].into_iter().enumerate() {
        let mut keys = if number == 0 { Keys::copied(&gguf) } else { Keys::default() };
        keys.whole("split.no", number as u32);
        keys.whole("split.count", 2);
        keys.whole("split.tensors.count", gguf.tensors().len() as u32);
        let described: Vec<_> = tensors
            .iter()
            .map(|it| {
                (it.name.as_str(), it.dims.to_vec(), it.format().unwrap().ggml_type().unwrap(), it.bytes)
            })
            .collect();
        let (mut file, places, bytes) = keys.header(&described);
        file.resize(bytes as usize, 0);
        for (tensor, place) in tensors.iter().zip(places) {
            file[place as usize..][..tensor.bytes as usize].copy_from_slice(gguf.tensor_bytes(tensor));
        }
        fs::write(path(number + 1), file).unwrap();
    }
    path(1)
}

#[test]
fn a_file_a_split_file_and_a_folder_go_on_with_the_same_tokens() {
    for name in MODELS {
        let (place, of_folder) = converted(&golden(&format!("folders/{name}")), None);
        let whole = golden(&format!("architectures/{name}.gguf"));
        let greedy = |path: &Path| {
            let source = SourceModel::open(path).unwrap();
            let mut model = Reference::new(&source, kernels::best());
            let mut token = 5;
            let mut next = |token: &mut u32| {
                let logits = model.step(*token, &mut ());
                let best = (0_u32..).zip(&logits).max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
                *token = best.0;
                (*token, best.1.to_bits())
            };
            Vec::from_iter((0..12).map(|_| next(&mut token)))
        };
        let expected = greedy(&whole);
        assert_eq!(greedy(&of_folder), expected, "{name}: of the folder");
        assert_eq!(greedy(&split(&whole, place.path())), expected, "{name}: of the split file");
    }
}

#[test]
fn a_configuration_as_it_was_written_for_years_says_the_same() {
    for name in
        ["llama3", "llama-linear", "llama-yarn", "qwen2", "gemma3", "phi3", "phi4", "gpt-oss", "mixtral"]
    {
        let folder = Folder::of(name);
        folder.edit("config.json", |config| {
            let config = config.as_object_mut().unwrap();
            let mut rope = config.remove("rope_parameters").unwrap();
            if let Some(local) = rope.get("sliding_attention") {
                config.insert("rope_local_base_freq".to_owned(), local["rope_theta"].clone());
                rope = rope["full_attention"].clone();
            }
            let mut rope = rope.as_object().unwrap().clone();
            config.insert("rope_theta".to_owned(), rope.remove("rope_theta").unwrap());
            config.extend(
                rope.remove("partial_rotary_factor").map(|it| ("partial_rotary_factor".to_owned(), it)),
            );
            let kind = rope.remove("rope_type").unwrap();
            if kind != "default" {
                rope.insert("type".to_owned(), kind);
                config.insert("rope_scaling".to_owned(), rope.into());
            }
            config.insert("torch_dtype".to_owned(), config["dtype"].clone());
            config.insert("rms_norm_eps".to_owned(), config["rms_norm_eps"].clone());
        });
        let [old, new] = [folder.path().to_owned(), golden(&format!("folders/{name}"))]
            .map(|folder| converted(&folder, None));
        let [old, new] = [&old.1, &new.1].map(|path| SourceModel::open(path).unwrap());
        assert_eq!(old.config(), new.config(), "{name}");
    }
}

#[test]
fn weights_keep_their_type_or_take_the_one_asked_for() {
    let folder = golden("folders/qwen3");
    let (_place, exact) = converted(&folder, None);
    let exact = Gguf::open(&exact).unwrap();
    let values = |gguf: &Gguf<'_>, name: &str| {
        let tensor = gguf.tensor(name).unwrap();
        let mut values = vec![0.0; tensor.dims.iter().product::<u64>() as usize];
        let (format, row) = (tensor.format().unwrap(), tensor.dims[0] as usize);
        let rows = gguf.tensor_bytes(tensor).chunks(format.row_bytes(row));
        rows.zip(values.chunks_mut(row)).for_each(|(bytes, values)| dequantise(format, bytes, values));
        values
    };
    for (quantisation, expected, embedding, far) in [
        (Quantisation::F16, Format::F16, Format::F16, 0.0),
        (Quantisation::Q8_0, Format::Q8_0, Format::Q8_0, 0.01),
        (Quantisation::Q4_0, Format::Q4_0, Format::Q8_0, 0.2),
        // rows of 64 are no blocks of 256
        (Quantisation::Q4K, Format::Q8_0, Format::Q8_0, 0.01),
    ] {
        let (_place, path) = converted(&folder, Some(quantisation));
        let made = Gguf::open(&path).unwrap();
        assert_eq!(quantised(&made), Some((quantisation.name(), 0.25)), "what it lost is in the file");
        for tensor in made.tensors() {
            let wanted = match tensor.name.as_str() {
                "token_embd.weight" | "output.weight" => embedding,
                name if name.ends_with("_norm.weight") => Format::F32,
                _ => expected,
            };
            assert_eq!(tensor.format().unwrap(), wanted, "{}", tensor.name);
            let (made, source) = (values(&made, &tensor.name), values(&exact, &tensor.name));
            let largest = source.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
            let differs = made.iter().zip(&source).fold(0.0_f32, |most, (a, b)| most.max((a - b).abs()));
            assert!(
                differs.is_finite() && differs <= far * largest,
                "{}: {differs} of {largest}",
                tensor.name
            );
            assert!(far == 0.0 || differs > 0.0 || wanted == Format::F32, "{} is quantised", tensor.name);
        }
    }
}

#[test]
fn what_is_not_understood_is_refused_by_name() {
    let config = |change: fn(&mut Json)| {
        let folder = Folder::of("llama3");
        folder.edit("config.json", change);
        folder.refusal()
    };
    let of = |name: &str, file: &str, change: fn(&mut Json)| {
        let folder = Folder::of(name);
        folder.edit(file, change);
        folder.refusal()
    };
    let header = |change: fn(&mut Json)| {
        let folder = Folder::of("llama3");
        folder.edit_header("model.safetensors", change);
        folder.refusal()
    };
    for (refusal, expected) in [
        (
            config(|it| it["architectures"] = json!(["MambaForCausalLM"])),
            "architecture `MambaForCausalLM` (read are LlamaForCausalLM",
        ),
        (config(|it| it["architectures"] = json!([])), "names no architecture"),
        (config(|it| it["hidden_act"] = json!("fatrelu")), "activation `fatrelu` is not implemented"),
        (config(|it| it["rope_parameters"]["rope_type"] = json!("dynamic")), "rotary scaling `dynamic`"),
        (
            config(|it| it["quantization_config"] = json!({"quant_method": "gptq"})),
            "quantisation `gptq` of a folder",
        ),
        (config(|it| it["tie_word_embeddings"] = json!(false)), "there is no tensor `lm_head.weight`"),
        (config(|it| it["partial_rotary_factor"] = json!(0.5)), "partial_rotary_factor"),
        (config(|it| it["num_hidden_layers"] = json!(4)), "tensor `blk.3."),
        (config(|it| it["num_hidden_layers"] = json!(2)), "of a layer beyond the last"),
        (config(|it| it["num_attention_heads"] = json!(3)), "which does not fit its heads"),
        (config(|it| it["vocab_size"] = json!(4_000_000)), "the embedding has 320 rows"),
        (config(|it| it["hidden_size"] = json!(-1)), "key `hidden_size` is not a whole number"),
        (config(|it| it["head_dim"] = json!(4_000_000_000_u32)), "a head has 4000000000 values"),
        (of("qwen3moe", "config.json", |it| it["norm_topk_prob"] = json!(false)), "norm_topk_prob"),
        (of("qwen3moe", "config.json", |it| it["mlp_only_layers"] = json!([0])), "mlp_only_layers"),
        (of("qwen2", "config.json", |it| it["use_sliding_window"] = json!(true)), "use_sliding_window"),
        (
            of("gemma3", "config.json", |it| it["layer_types"][0] = json!("full_attention")),
            "layer 0 of type `full_attention`",
        ),
        (of("gemma3", "config.json", |it| it["query_pre_attn_scalar"] = json!(100)), "query_pre_attn_scalar"),
        (of("gpt-oss", "config.json", |it| it["swiglu_limit"] = json!(5.0)), "swiglu_limit"),
        (of("olmoe", "config.json", |it| it["clip_qkv"] = json!(8.0)), "clip_qkv"),
        (of("llama3", "tokenizer.json", |it| it["model"]["type"] = json!("Unigram")), "tokenizer `Unigram`"),
        (
            of("llama3", "tokenizer.json", |it| it["normalizer"] = json!({"type": "Lowercase"})),
            "normaliser `Lowercase`",
        ),
        (
            of("llama3", "tokenizer.json", |it| it["pre_tokenizer"] = json!({"type": "Whitespace"})),
            "step `Whitespace`",
        ),
        (
            of("llama3", "tokenizer.json", |it| {
                it["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = json!("[a-z]+");
            }),
            "cutting text into words by `[a-z]+`, words taken whole",
        ),
        (of("llama3", "tokenizer.json", |it| it["model"]["vocab"]["new"] = json!(9)), "have one id, 9"),
        (
            of("llama3", "tokenizer.json", |it| it["model"]["vocab"]["new"] = json!(320)),
            "has id 320, and there are 320 tokens",
        ),
        (
            of("llama3", "tokenizer.json", |it| it["model"]["merges"][3] = json!(["q", "q"])),
            "does not join two tokens",
        ),
        (
            of("mixtral", "model.safetensors.index.json", |it| {
                it["weight_map"]["lm_head.weight"] = json!("../model.safetensors");
            }),
            "`../model.safetensors`, which is no file of its folder",
        ),
        (
            of("mixtral", "model.safetensors.index.json", |it| {
                it["weight_map"]["lm_head.weight"] = json!("/etc/passwd");
            }),
            "which is no file of its folder",
        ),
        (
            of("mixtral", "model.safetensors.index.json", |it| {
                it["weight_map"]["other"] = json!("model-00001-of-00002.safetensors");
            }),
            "lacks tensor `other`",
        ),
        (
            of("mixtral", "model.safetensors.index.json", |it| {
                drop(it["weight_map"].as_object_mut().unwrap().remove("lm_head.weight"));
            }),
            "has tensor `lm_head.weight`, which the index has elsewhere",
        ),
        (
            header(|it| {
                let norm = it.as_object_mut().unwrap().remove("model.norm.weight").unwrap();
                it["model.layers.0.mlp.secret.weight"] = norm;
            }),
            "tensor `model.layers.0.mlp.secret.weight` is not implemented",
        ),
        (header(|it| it["model.norm.weight"]["dtype"] = json!("F32")), "has 128 bytes for F32 of shape [64]"),
        (
            header(|it| it["model.norm.weight"]["shape"] = json!([u64::MAX, u64::MAX])),
            "bytes for F16 of shape",
        ),
        (header(|it| it["model.norm.weight"]["data_offsets"] = json!([0, u64::MAX])), "has bytes 0 to"),
        (header(|it| it["model.norm.weight"]["data_offsets"] = json!([0, 128])), "begins at byte"),
        (header(|it| drop(it.as_object_mut().unwrap().remove("model.norm.weight"))), "end at byte"),
        (
            header(|it| {
                it["model.embed_tokens.weight"]["dtype"] = json!("I16");
            }),
            "type `I16` of tensor `model.embed_tokens.weight`",
        ),
    ] {
        assert!(refusal.contains(expected), "{expected}: {refusal}");
        assert!(refusal.starts_with("FOLDER") && refusal.len() < 4096, "{refusal}");
    }
}

#[test]
fn a_folder_without_a_part_of_it_is_refused() {
    for (name, file, expected) in [
        ("llama3", "config.json", "FOLDER has no config.json"),
        ("llama3", "model.safetensors", "FOLDER has no model.safetensors"),
        ("llama3", "tokenizer.json", "FOLDER has no tokenizer.json and no tokenizer.model"),
        ("llama-linear", "tokenizer.model", "FOLDER has no tokenizer.json and no tokenizer.model"),
        ("mixtral", "model-00002-of-00002.safetensors", "model-00002-of-00002.safetensors"),
        ("mixtral", "model.safetensors.index.json", "FOLDER has no model.safetensors"),
    ] {
        let folder = Folder::of(name);
        fs::remove_file(folder.path().join(file)).unwrap();
        assert!(folder.refusal().contains(expected), "{}", folder.refusal());
    }
}

#[test]
fn a_file_cut_short_anywhere_is_refused_by_its_name() {
    for file in ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"] {
        let folder = Folder::of("llama3");
        let whole = folder.bytes(file);
        for bytes in [0, 1, 7, 8, 9, 100, whole.len() / 2, whole.len() - 3] {
            folder.put(file, &whole[..bytes]);
            let refusal = folder.refusal();
            assert!(refusal.contains(file), "{bytes} bytes of {file}: {refusal}");
        }
    }
    let folder = Folder::of("llama-linear");
    let whole = folder.bytes("tokenizer.model");
    folder.put("tokenizer.model", &whole[..whole.len() - 1]);
    assert!(
        folder.refusal().contains("tokenizer.model: it is no model of SentencePiece"),
        "{}",
        folder.refusal()
    );
}

#[test]
fn a_weight_that_is_not_finite_is_refused_and_no_file_is_left() {
    let folder = Folder::of("llama3");
    let mut file = folder.bytes("model.safetensors");
    let last = file.len() - 2;
    file[last..].copy_from_slice(&half::f16::INFINITY.to_le_bytes());
    folder.put("model.safetensors", file);
    let place = TempDir::new().unwrap();
    let mut conversion = Conversion::new(folder.path(), None, place.path()).unwrap();
    let refused =
        conversion.write(&place.path().join("made.gguf"), &|_| true, &mut |_| Ok(None)).unwrap_err();
    assert!(refused.to_string().contains("is not finite"), "{refused}");
    let stopped =
        conversion.write(&place.path().join("made.gguf"), &|_| false, &mut |_| Ok(None)).unwrap_err();
    assert!(stopped.to_string().contains("stopped"), "{stopped}");
    assert_eq!(place.path().read_dir().unwrap().count(), 0, "nothing is left");
}

#[test]
fn the_hash_of_a_folder_tells_it_from_every_other() {
    let hash = |folder: &Path, quantisation| {
        let place = TempDir::new().unwrap();
        Conversion::new(folder, quantisation, place.path()).unwrap().identify(&|| false).unwrap()
    };
    let folder = Folder::of("llama3");
    let before = hash(folder.path(), None);
    assert_eq!(hash(folder.path(), None), before, "the same folder");
    assert_ne!(hash(folder.path(), Some(Quantisation::Q8_0)), before, "quantised");
    let mut file = folder.bytes("model.safetensors");
    *file.last_mut().unwrap() ^= 1;
    folder.put("model.safetensors", file);
    let after = hash(folder.path(), None);
    assert_ne!(after, before, "another weight");
    folder.edit("tokenizer_config.json", |it| it["chat_template"] = json!("{{ messages }}"));
    assert_ne!(hash(folder.path(), None), after, "another template");
}

/// The tokenizer of a folder.
fn tokenizer_of(folder: &Folder) -> flashplan::internals::model::tokenizer::TokenizerData {
    let (_place, path) = converted(folder.path(), None);
    SourceModel::open(path).unwrap().tokenizer_data().unwrap()
}

#[test]
fn tokens_that_begin_and_end_are_found_where_published_models_have_them() {
    let folder = Folder::of("llama3");
    folder.edit("tokenizer.json", |it| {
        it["post_processor"]["single"] =
            json!([{"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]);
    });
    let tokenizer = tokenizer_of(&folder);
    assert_eq!(
        (tokenizer.bos, tokenizer.eos, tokenizer.add_bos, tokenizer.add_eos),
        (Some(1), Some(2), true, false)
    );

    // what the tokenizer itself does counts for more than what its configuration says
    folder.edit("tokenizer.json", |it| it["post_processor"] = json!({"type": "ByteLevel"}));
    folder.edit("tokenizer_config.json", |it| it["add_bos_token"] = json!(true));
    assert!(!tokenizer_of(&folder).add_bos);
    folder.edit("tokenizer.json", |it| it["post_processor"] = json!(null));
    assert!(tokenizer_of(&folder).add_bos);

    // a list of ends: one is the end, and one that is not known by its text ends a turn
    folder.edit("config.json", |it| it["eos_token_id"] = json!([2, 0]));
    folder.edit("generation_config.json", |it| it["eos_token_id"] = json!([2, 0, 7]));
    let beside = TempDir::new().unwrap();
    let conversion = Conversion::new(folder.path(), None, beside.path()).unwrap();
    assert_eq!(conversion.remarks.len(), 1, "{:?}", conversion.remarks);
    assert!(conversion.remarks[0].starts_with("token 7 ends a generation"), "{:?}", conversion.remarks);
    let tokenizer = tokenizer_of(&folder);
    assert_eq!((tokenizer.eos, tokenizer.eot), (Some(2), Some(0)));
}

#[test]
fn a_template_is_found_in_each_of_its_places() {
    let folder = Folder::of("qwen2");
    assert_eq!(tokenizer_of(&folder).chat_template, None);
    folder.put("chat_template.json", r#"{"chat_template": "json"}"#);
    assert_eq!(tokenizer_of(&folder).chat_template.as_deref(), Some("json"));
    folder.put("chat_template.jinja", "jinja");
    assert_eq!(tokenizer_of(&folder).chat_template.as_deref(), Some("jinja"));
    folder.edit("tokenizer_config.json", |it| {
        it["chat_template"] =
            json!([{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "usual"}]);
    });
    assert_eq!(tokenizer_of(&folder).chat_template.as_deref(), Some("usual"));
    folder.edit("tokenizer_config.json", |it| it["chat_template"] = json!("own"));
    assert_eq!(tokenizer_of(&folder).chat_template.as_deref(), Some("own"));
}

#[test]
fn words_taken_whole_or_not_is_the_same_where_merges_make_every_token() {
    // the rule of gpt-oss has a name without it alone; a file with it is read where that changes nothing
    let folder = Folder::of("gpt-oss");
    let before = tokenizer_of(&folder);
    folder.edit("tokenizer.json", |it| it["model"]["ignore_merges"] = json!(true));
    assert_eq!(tokenizer_of(&folder), before);
    folder.edit("tokenizer.json", |it| drop(it["model"]["merges"].as_array_mut().unwrap().pop()));
    let refusal = folder.refusal();
    assert!(refusal.contains("cutting text into words by"), "{refusal}");

    // the form in which some files keep all text: what matches is not removed
    let folder = Folder::of("gpt-oss");
    folder.edit("tokenizer.json", |it| {
        let cut = &mut it["pre_tokenizer"]["pretokenizers"][0];
        (cut["behavior"], cut["invert"]) = (json!("Removed"), json!(true));
    });
    assert_eq!(tokenizer_of(&folder), before);
}

#[test]
fn added_tokens_of_sentencepiece_have_their_kinds() {
    let folder = Folder::of("llama-linear");
    folder.edit("tokenizer_config.json", |it| {
        *it = json!({
            "add_bos_token": true, "add_eos_token": false, "add_prefix_space": false,
            "added_tokens_decoder": {
                "300": {"content": "<|im_end|>", "special": false}, "301": {"content": "\u{2581}x", "special": false},
                "302": {"content": "[INST]", "special": true}, "9999999999999999999999": {"content": "no", "special": true}
            }
        });
    });
    let tokenizer = tokenizer_of(&folder);
    assert_eq!(tokenizer.tokens[300..303], ["<|im_end|>", " x", "[INST]"]);
    assert_eq!(tokenizer.types[300..303], [3, 4, 3]);
    assert_eq!(tokenizer.scores[300..303], [-1000.0; 3]);
    assert!(tokenizer.add_bos && !tokenizer.add_eos && !tokenizer.add_space_prefix);
}

/// A model's vocabulary of SentencePiece's as transformers writes it into a `tokenizer.json`: for each piece all its cuts into two
/// pieces, those of the best score first.
fn merged(gguf: &Gguf<'_>) -> (Json, usize) {
    let data = flashplan::internals::model::tokenizer::TokenizerData::from_gguf(gguf).unwrap();
    let vocabulary: std::collections::HashMap<&str, usize> =
        data.tokens.iter().enumerate().map(|(id, text)| (text.as_str(), id)).collect();
    let mut merges: Vec<(f32, usize, [&str; 2])> = Vec::new();
    for (id, piece) in data.tokens.iter().enumerate().filter(|(id, _)| data.types[*id] == 1) {
        for (at, _) in piece.char_indices().skip(1) {
            let (left, right) = piece.split_at(at);
            if vocabulary.contains_key(left) && vocabulary.contains_key(right) {
                merges.push((data.scores[id], id, [left, right]));
            }
        }
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let special = |id: usize| json!({"id": id, "content": data.tokens[id], "special": true});
    let json = json!({
        "added_tokens": [special(0), special(1), special(2)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u{2581}"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"}]},
        "pre_tokenizer": null,
        "model": {
            "type": "BPE", "byte_fallback": true, "unk_token": "<unk>", "vocab": vocabulary,
            "merges": merges.iter().map(|(_, _, pair)| pair).collect::<Vec<_>>(),
        },
    });
    (json, data.tokens.len())
}

/// The tokenizer that a `tokenizer.json` becomes, or why it does not.
fn of_json(json: &Json, tokens: usize) -> Result<flashplan::internals::model::tokenizer::Tokenizer, String> {
    let folder = Folder(TempDir::new().unwrap());
    let config = json!({"architectures": ["LlamaForCausalLM"], "vocab_size": tokens, "bos_token_id": 1, "eos_token_id": 2});
    folder.put("tokenizer.json", json.to_string());
    let config = crate::config::Config::read(config.to_string().as_bytes(), folder.path()).unwrap();
    let family = crate::families::of(&config).unwrap();
    let mut keys = Keys::default();
    let place = crate::folder::Folder::new(folder.path());
    crate::tokenizer::keys(&place, &config, family, &mut keys).map_err(|refused| refused.to_string())?;
    let (header, ..) = keys.header(&[]);
    let data =
        flashplan::internals::model::tokenizer::TokenizerData::from_gguf(&Gguf::parse(&header).unwrap())
            .unwrap();
    Ok(data.into_tokenizer().unwrap())
}

#[test]
fn merges_of_sentencepiece_give_the_tokens_that_its_scores_give() {
    let gguf = Gguf::open(golden("../models/oxide-dense.gguf")).unwrap();
    let (json, count) = merged(&gguf);
    let tokenizer = of_json(&json, count).unwrap();
    let cases: Json = serde_json::from_slice(&fs::read(golden("dense-tokens.json")).unwrap()).unwrap();
    let cases = cases["cases"].as_array().unwrap();
    assert!(cases.len() > 40, "texts in many languages");
    for case in cases {
        let tokens: Vec<u32> = serde_json::from_value(case["tokens"].clone()).unwrap();
        assert_eq!(tokenizer.encode(case["text"].as_str().unwrap(), false), tokens, "{}", case["text"]);
    }

    let refused = |change: fn(&mut Json)| {
        let mut json = json.clone();
        change(&mut json);
        of_json(&json, count).expect_err("refused")
    };
    for (refusal, expected) in [
        (refused(|it| it["model"]["merges"].as_array_mut().unwrap().swap(0, 400)), "an order of merges"),
        (refused(|it| drop(it["model"]["merges"].as_array_mut().unwrap().remove(500))), "merge"),
        (refused(|it| it["model"]["merges"] = json!([])), "a piece that no merge makes"),
        (refused(|it| it["normalizer"]["normalizers"][0]["prepend"] = json!("_")), "a normaliser"),
        (refused(|it| it["normalizer"] = json!({"type": "NFKC"})), "a normaliser"),
        (refused(|it| it["pre_tokenizer"] = json!({"type": "Whitespace"})), "a normaliser, or a cut"),
    ] {
        assert!(refusal.contains(expected) && refusal.contains("tokenizer.model"), "{expected}: {refusal}");
    }
}

#[test]
fn relu_is_taken_from_the_configuration() {
    let folder = Folder::of("llama3");
    folder.edit("config.json", |it| it["hidden_act"] = json!("relu"));
    let (_place, path) = converted(folder.path(), None);
    assert_eq!(SourceModel::open(path).unwrap().config().activation(), kernels::Activation::Relu);
}

#[test]
fn a_window_of_mistral_is_kept() {
    let folder = Folder::of("mistral");
    folder.edit("config.json", |it| it["sliding_window"] = json!(12));
    let (_place, path) = converted(folder.path(), None);
    assert_eq!(SourceModel::open(path).unwrap().config().attention(0).window, Some(12));
}

#[test]
fn the_text_of_a_model_that_sees_pictures_is_read() {
    let folder = Folder::of("gemma3");
    folder.edit("config.json", |it| {
        let mut text = it.clone();
        text.as_object_mut().unwrap().remove("architectures");
        *it = json!({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text, "vision_config": {"hidden_size": 9}});
    });
    folder.edit_header("model.safetensors", |it| {
        let names: Vec<String> = it.as_object().unwrap().keys().cloned().collect();
        let map = it.as_object_mut().unwrap();
        for name in names.iter().filter(|name| name.starts_with("model.")) {
            let tensor = map.remove(name).unwrap();
            map.insert(format!("language_model.{name}"), tensor);
        }
    });
    let (_place, path) = converted(folder.path(), None);
    let (own, expected) =
        (SourceModel::open(path).unwrap(), SourceModel::open(golden("architectures/gemma3.gguf")).unwrap());
    assert_eq!(own.config(), expected.config());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn changed_bytes_of_any_file_are_read_or_refused(file in 0..7_usize, places in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), kept in any::<prop::sample::Index>(), cut: bool) {
        let (name, file) = [
            ("llama3", "config.json"), ("llama3", "tokenizer.json"), ("llama3", "tokenizer_config.json"),
            ("llama3", "generation_config.json"), ("llama-linear", "tokenizer.model"), ("mixtral", "model.safetensors.index.json"),
            ("llama3", "model.safetensors"),
        ][file];
        let folder = Folder::of(name);
        let mut bytes = folder.bytes(file);
        let reach = bytes.len().min(6000); // the header of weights
        for (place, byte) in places {
            bytes[place.index(reach)] = byte;
        }
        if cut {
            bytes.truncate(kept.index(reach));
        }
        crate::read_any(&bytes);
        folder.put(file, bytes);
        let beside = TempDir::new().unwrap();
        if let Err(refused) = Conversion::new(folder.path(), None, beside.path()) {
            prop_assert!(refused.to_string().len() < 8192);
        }
        prop_assert_eq!(beside.path().read_dir().unwrap().count(), 0);
    }
}
