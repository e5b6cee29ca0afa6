//! Folders of every architecture against the files that llama.cpp's converter made of the same models, and folders that lie.

use std::fs;
use std::path::{Path, PathBuf};

use flashplan::internals::model::config::RopeScaling;
use flashplan::internals::model::gguf::{Gguf, Value};
use flashplan::internals::model::source::SourceModel;
use flashplan::internals::model::tokenizer::{Tokenizer, TokenizerData, TokenizerKind};
use flashplan::internals::reference::Reference;
use kernels::{Format, dequantise};
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use crate::conversion::{Conversion, Quantisation, quantised};
use crate::keys::Keys;

mod families;

/// The models of `fixtures/golden/folders`.
const MODELS: [&str; 61] = [
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
    "qwen35moe",
    "qwen35",
    "qwen4exp",
    "lfm2",
    "lfm2moe",
    "nemotron_h_moe",
    "nemotron_h",
    "deepseek2",
    "gemma4",
    "gemma4-e2b",
    "gemma4-e4b",
    "gemma4moe",
    "gemma3n",
    "smallthinker",
    "bamboo",
    "deepseek3",
    "deepseek2-softmax",
    "glm4moe",
    "minimax-m2",
    "qwen3next",
    "bailingmoe2",
    "kimi-linear",
    "bailingmoe3",
    "dots1",
    "ernie4_5",
    "ernie4_5-moe",
    "exaone4",
    "exaone-moe",
    "hy_v3",
    "seed_oss",
    "olmo2",
    "olmo3",
    "smollm3",
    "internlm2",
    "qwen2moe",
    "gemma2",
    "granitehybrid",
    "granitehybrid-dense",
    "qwen2vl",
    "qwen3vl",
    "qwen3vlmoe",
    "mellum",
    "arcee",
];

fn golden(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/golden").join(path)
}

/// The file that llama.cpp's converter made of a model.
fn converters(name: &str) -> PathBuf {
    golden(&format!("architectures/{name}.gguf"))
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
    conversion.write(&path, false, &|_| true, &mut |_| Ok(quantisation.map(|_| 0.25))).unwrap();
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
        let expected = Gguf::open(converters(name)).unwrap();
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
        // its n-grams begin anew behind a token that is not the tokenizer's end, so that a text has two
        let ends = |key: &str| name == "qwen4exp" && key == "tokenizer.ggml.eot_token_id";
        let more: Vec<_> = keys(&made)
            .into_iter()
            .filter(|(key, _)| !ends(key))
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
fn every_golden_folder_is_tested() {
    let mut names: Vec<String> = (golden("folders").read_dir().unwrap())
        .map(|folder| folder.unwrap().file_name().into_string().unwrap())
        .collect();
    let mut tested = MODELS.to_vec();
    names.sort();
    tested.sort_unstable();
    assert_eq!(names, tested);
}

#[test]
fn a_split_file_of_every_architecture_is_the_same_model() {
    let models = golden("architectures").read_dir().unwrap().map(|file| file.unwrap().path());
    for path in models.filter(|path| path.extension().is_some_and(|end| end == "gguf")) {
        let place = TempDir::new().unwrap();
        let [whole, parts] =
            [path.clone(), split(&path, place.path())].map(|path| SourceModel::open(path).unwrap());
        assert_eq!(parts.gguf().files().count(), 2);
        assert_eq!(whole.config(), parts.config(), "{}", path.display());
        assert_eq!(whole.tokenizer_data().unwrap(), parts.tokenizer_data().unwrap(), "{}", path.display());
        for tensor in whole.gguf().tensors() {
            let other = parts.gguf().tensor(&tensor.name).unwrap();
            assert_eq!((tensor.dims, tensor.kind), (other.dims, other.kind), "{}", tensor.name);
            assert!(
                whole.gguf().tensor_bytes(tensor) == parts.gguf().tensor_bytes(other),
                "{}: {}",
                path.display(),
                tensor.name
            );
        }
    }
}

#[test]
fn a_file_a_split_file_and_a_folder_go_on_with_the_same_tokens() {
    for name in MODELS {
        let (place, of_folder) = converted(&golden(&format!("folders/{name}")), None);
        let whole = converters(name);
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

/// The values of a tensor.
fn values(gguf: &Gguf<'_>, name: &str) -> Vec<f32> {
    let tensor = gguf.tensor(name).unwrap();
    let mut values = vec![0.0; tensor.dims.iter().product::<u64>() as usize];
    let (format, row) = (tensor.format().unwrap(), tensor.dims[0] as usize);
    let rows = gguf.tensor_bytes(tensor).chunks(format.row_bytes(row));
    rows.zip(values.chunks_mut(row)).for_each(|(bytes, values)| dequantise(format, bytes, values));
    values
}

#[test]
fn weights_keep_their_type_or_take_the_one_asked_for() {
    let folder = golden("folders/qwen3");
    let (_place, exact) = converted(&folder, None);
    let exact = Gguf::open(&exact).unwrap();
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
            let (largest, differs) = (compare::largest(&source), compare::largest_difference(&made, &source));
            assert!(differs <= far * largest, "{}: {differs} of {largest}", tensor.name);
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
        (of("gpt-oss", "config.json", |it| it["swiglu_alpha"] = json!(1.0)), "swiglu_alpha"),
        (of("olmoe", "config.json", |it| it["clip_qkv"] = json!(8.0)), "clip_qkv"),
        (
            of("llama3", "tokenizer.json", |it| it["model"]["type"] = json!("WordPiece")),
            "tokenizer `WordPiece`",
        ),
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
        assert!(refusal.contains("FOLDER") && refusal.len() < 4096, "{refusal}");
    }
}

#[test]
fn rotary_scaling_that_gguf_has_no_key_for_is_refused_by_name() {
    let refusal = |name: &str, change: fn(&mut Json)| {
        let folder = Folder::of(name);
        folder.edit("config.json", |it| change(&mut it["rope_parameters"]));
        folder.refusal()
    };
    for (refusal, expected) in [
        (
            refusal("qwen2", |it| (it["rope_type"], it["factor"]) = (json!("llama3"), json!(8.0))),
            "rotary scaling `llama3` of a qwen2 model",
        ),
        (refusal("llama3", |it| it["rope_type"] = json!(3)), "key `rope_type` is not text"),
        (
            refusal("phi3", |it| drop(it.as_object_mut().unwrap().remove("long_factor"))),
            "rotary scaling `longrope` has no `long_factor`",
        ),
        (refusal("phi3", |it| it["rope_type"] = json!("default")), "`default` with a `long_factor`"),
        (
            refusal("phi3", |it| (it["rope_type"], it["factor"]) = (json!("yarn"), json!(4.0))),
            "rotary scaling `yarn` of a phi3 model",
        ),
        (refusal("llama-yarn", |it| it["mscale"] = json!(0.707)), "key `mscale` of YaRN with 0.707"),
        (refusal("gpt-oss", |it| it["mscale_all_dim"] = json!(1.0)), "key `mscale_all_dim` of YaRN with 1"),
        (refusal("ministral3", |it| it["mscale"] = json!(0.5)), "key `mscale` of YaRN with 0.5, where"),
        // GGUF's 1 is what the factor implies
        (
            refusal("llama-yarn", |it| it["attention_factor"] = json!(1.0)),
            "key `attention_factor` of YaRN with 1, where the factor implies 1.13",
        ),
        (
            refusal("gemma3", |it| it["sliding_attention"]["rope_type"] = json!("linear")),
            "rotary scaling `linear` of layers with a window",
        ),
        (
            refusal("gemma3", |it| it["sliding_attention"] = json!({"type": "yarn", "factor": 2.0})),
            "rotary scaling `yarn` of layers with a window",
        ),
        (
            refusal("gemma3", |it| it["sliding_attention"]["partial_rotary_factor"] = json!(0.5)),
            "key `partial_rotary_factor` with 0.5 of layers with a window",
        ),
        (
            refusal("qwen3", |it| {
                *it =
                    json!({"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}});
            }),
            "a rotary embedding of its own for layers with a window",
        ),
        (
            refusal("llama3", |it| it["factor"] = json!(0.0)),
            "the divisors of rotary frequencies that its keys give are not all above 0",
        ),
    ] {
        assert!(refusal.contains(expected), "{expected}: {refusal}");
    }
}

/// The description of the model of a folder whose `config.json` is changed.
fn config_of(name: &str, change: impl FnOnce(&mut Json)) -> flashplan::internals::model::config::Config {
    let folder = Folder::of(name);
    folder.edit("config.json", change);
    let (_place, path) = converted(folder.path(), None);
    SourceModel::open(path).unwrap().config().clone()
}

#[test]
fn rotary_scaling_that_says_what_is_implied_changes_nothing() {
    let same = |name: &str, change: fn(&mut Json)| {
        assert_eq!(config_of(name, change), config_of(name, |_| {}), "{name}");
    };
    same("llama-yarn", |it| {
        it["rope_parameters"]["attention_factor"] = json!(1.0 + 0.1 * 4.0_f64.ln());
    });
    same("ministral3", |it| it["rope_parameters"]["attention_factor"] = json!(1.0));
    same("gemma3", |it| {
        let full = it["rope_parameters"]["full_attention"].as_object_mut().unwrap();
        let kind = full.remove("rope_type").unwrap();
        full.insert("type".to_owned(), kind);
    });
    // keys beside those of the kinds of layers
    same("gemma3", |it| {
        let rope = &mut it["rope_parameters"];
        rope["full_attention"].as_object_mut().unwrap().remove("rope_theta").unwrap();
        rope["sliding_attention"] = json!({});
        (it["rope_theta"], it["rope_local_base_freq"]) = (json!(1e6), json!(1e4));
    });
}

#[test]
fn what_long_factors_grow_by_is_taken_from_the_configuration() {
    let magnitude = |change: fn(&mut Json)| config_of("phi3", change).ropes[0].magnitude;
    let near = |found: f32, expected: f64| {
        assert!((f64::from(found) - expected).abs() < 1e-6, "{found} for {expected}");
    };
    let usual = |factor: f64| (1.0 + factor.ln() / 32.0_f64.ln()).sqrt();
    near(magnitude(|_| {}), usual(4.0));
    near(magnitude(|it| it["rope_parameters"]["factor"] = json!(8.0)), usual(8.0));
    near(magnitude(|it| it["rope_parameters"]["attention_factor"] = json!(1.25)), 1.25);
}

#[test]
fn granite_has_the_divisors_of_llama_3() {
    let config = config_of("granite", |it| {
        it["rope_parameters"] = json!({
            "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32
        });
    });
    let divisors = &config.ropes[0].divisors;
    assert_eq!(
        (divisors.len(), divisors[0], divisors[7]),
        (8, 1.0, 8.0),
        "a head has 16 values: {divisors:?}"
    );
}

#[test]
fn what_the_configuration_does_not_say_is_what_transformers_takes() {
    let without = |name: &str, keys: &[&str]| {
        config_of(name, |it| keys.iter().for_each(|key| drop(it.as_object_mut().unwrap().remove(*key))))
    };
    let mixtral =
        without("mixtral", &["rope_parameters", "rms_norm_eps", "num_local_experts", "num_experts_per_tok"]);
    assert_eq!((mixtral.ropes[0].base, mixtral.norm_epsilon, mixtral.experts()), (1e6, 1e-5, 8));
    let ministral = without("ministral3", &["rms_norm_eps"]);
    assert_eq!(ministral.norm_epsilon, 1e-5);
    for model in ["ministral3", "gpt-oss"] {
        let folder = Folder::of(model);
        folder.edit("config.json", |it| drop(it.as_object_mut().unwrap().remove("rope_parameters")));
        assert!(folder.refusal().contains("key `rope_parameters` is missing"), "{}", folder.refusal());
    }
    let llama = without("llama-linear", &["rope_parameters", "rms_norm_eps"]);
    assert_eq!((llama.ropes[0].base, llama.norm_epsilon), (10_000.0, 1e-6));

    let window = |change: fn(&mut Json)| {
        let config = config_of("mistral", |it| {
            it["max_position_embeddings"] = json!(8192);
            change(it);
        });
        config.attention(0).window
    };
    assert_eq!(window(|it| drop(it.as_object_mut().unwrap().remove("sliding_window"))), Some(4096));
    assert_eq!(window(|it| it["sliding_window"] = json!(null)), None, "one that is null is none");
}

#[test]
fn gemmas_activation_is_the_one_that_transformers_asks_for() {
    let gelu = kernels::Activation::Gelu;
    assert_eq!(
        config_of("gemma3", |it| it["hidden_act"] = json!("silu")).activation(),
        gelu,
        "not asked for"
    );
    let folder = Folder::of("gemma3");
    folder.edit("config.json", |it| it["hidden_activation"] = json!("gelu"));
    assert!(folder.refusal().contains("activation `gelu` is not implemented"), "{}", folder.refusal());
}

#[test]
fn all_that_is_wrong_is_told_at_once() {
    let folder = Folder::of("llama3");
    folder.edit("config.json", |it| it["hidden_act"] = json!("fatrelu"));
    folder.edit("tokenizer.json", |it| it["normalizer"] = json!({"type": "Lowercase"}));
    folder.edit_header("model.safetensors", |it| {
        it["model.norm.weight"]["dtype"] = json!("I16");
        it["model.embed_tokens.weight"]["dtype"] = json!("U16");
    });
    let refusal = folder.refusal();
    for expected in [
        "4 things keep this folder from being used\n  FOLDER",
        "activation `fatrelu`",
        "type `I16` of tensor `model.norm.weight`",
        "type `U16` of tensor `model.embed_tokens.weight`",
        "normaliser `Lowercase`",
    ] {
        assert!(refusal.contains(expected), "{expected}: {refusal}");
    }
    folder.edit("config.json", |it| it["architectures"] = json!(["MambaForCausalLM"]));
    let refusal = folder.refusal();
    assert!(
        refusal.contains("architecture `MambaForCausalLM`") && refusal.contains("normaliser `Lowercase`"),
        "{refusal}"
    );

    // a tensor that the reader misses
    let folder = Folder::of("llama3");
    folder.edit("tokenizer.json", |it| it["normalizer"] = json!({"type": "Lowercase"}));
    folder.edit("config.json", |it| it["num_hidden_layers"] = json!(4));
    let refusal = folder.refusal();
    assert!(refusal.contains("tensor `blk.3.") && refusal.contains("normaliser `Lowercase`"), "{refusal}");

    // many of a kind
    let folder = Folder::of("llama3");
    folder.edit_header("model.safetensors", |it| {
        it.as_object_mut().unwrap().values_mut().for_each(|tensor| tensor["dtype"] = json!("I16"));
    });
    let refusal = folder.refusal();
    assert!(refusal.contains(" more") && refusal.len() < 4096, "{refusal}");
}

#[test]
fn a_tensor_of_an_unknown_type_is_refused_whatever_its_shape() {
    for (model, tensor) in [
        ("granitemoe", "model.layers.0.block_sparse_moe.input_linear.weight"),
        ("gpt-oss", "model.layers.0.mlp.experts.gate_up_proj"),
        ("gpt-oss", "model.layers.0.mlp.experts.down_proj"),
    ] {
        for shape in [json!([1_u64 << 62, 2, 1]), json!([u64::MAX, u64::MAX, 2]), json!([1_u64 << 40, 2, 2])]
        {
            let folder = Folder::of(model);
            folder.edit_header("model.safetensors", |it| {
                assert!(it[tensor].is_object(), "{tensor}");
                (it[tensor]["dtype"], it[tensor]["shape"]) = (json!("X"), shape.clone());
            });
            let refusal = folder.refusal();
            assert!(refusal.contains(&format!("type `X` of tensor `{tensor}`")), "{refusal}");
            crate::read_any(&folder.bytes("model.safetensors"), true);
        }
    }
}

#[test]
fn a_link_leads_to_no_file_outside() {
    use std::os::unix::fs::symlink;

    let other = Folder::of("llama3");
    for name in ["config.json", "model.safetensors", "generation_config.json", "tokenizer_config.json"] {
        let folder = Folder::of("llama3");
        fs::remove_file(folder.path().join(name)).unwrap();
        symlink(other.path().join(name), folder.path().join(name)).unwrap();
        let refusal = folder.refusal();
        assert!(refusal.contains(&format!("FOLDER/{name}: a link out of the folder")), "{refusal}");
        // a link to nothing is no file that is missing
        fs::remove_file(folder.path().join(name)).unwrap();
        symlink("nothing", folder.path().join(name)).unwrap();
        let refusal = folder.refusal();
        assert!(refusal.contains(&format!("cannot follow the link FOLDER/{name}")), "{refusal}");
    }
    // within the folder, and as in the hub's cache
    let folder = Folder::of("llama3");
    fs::rename(folder.path().join("config.json"), folder.path().join("own.json")).unwrap();
    symlink("own.json", folder.path().join("config.json")).unwrap();
    converted(folder.path(), None);
    let cache = TempDir::new().unwrap();
    let (blobs, snapshot) = (cache.path().join("blobs"), cache.path().join("snapshots/0123"));
    fs::create_dir_all(&blobs).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    for (number, file) in golden("folders/llama3").read_dir().unwrap().enumerate() {
        let file = file.unwrap();
        fs::copy(file.path(), blobs.join(number.to_string())).unwrap();
        symlink(format!("../../blobs/{number}"), snapshot.join(file.file_name())).unwrap();
    }
    converted(&snapshot, None);
}

#[test]
fn no_file_of_the_users_is_written_over() {
    let (place, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let own = elsewhere.path().join("own");
    fs::write(&own, "own").unwrap();
    for name in [".made.gguf.part", ".model.gguf.part"] {
        std::os::unix::fs::symlink(&own, place.path().join(name)).unwrap();
    }
    let path = place.path().join("made.gguf");
    let mut conversion = Conversion::new(&golden("folders/qwen2"), None, place.path()).unwrap();
    conversion.write(&path, false, &|_| true, &mut |_| Ok(None)).unwrap();
    assert_eq!(fs::read(&own).unwrap(), b"own", "what the links led to");

    fs::write(&path, "mine").unwrap();
    let refused = conversion.write(&path, false, &|_| true, &mut |_| Ok(None)).unwrap_err().to_string();
    assert!(refused.contains("came into being") && refused.contains("--replace"), "{refused}");
    assert_eq!(fs::read(&path).unwrap(), b"mine");
    conversion.write(&path, true, &|_| true, &mut |_| Ok(None)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), conversion.bytes());
    assert_eq!(place.path().read_dir().unwrap().count(), 1, "nothing else is left");
}

#[test]
fn a_folder_that_is_changed_while_it_is_read_is_refused() {
    for (bytes, expected) in [
        (0, "got shorter while it was read"),
        (4000, "got shorter"),
        (302_888, "is changed while it is read"),
    ] {
        let folder = Folder::of("llama3");
        let place = TempDir::new().unwrap();
        let mut conversion = Conversion::new(folder.path(), None, place.path()).unwrap();
        conversion.identify(&|| false).unwrap();
        let whole = folder.bytes("model.safetensors");
        // into the file itself, not another one in its place
        let file = fs::OpenOptions::new().write(true).open(folder.path().join("model.safetensors")).unwrap();
        file.set_len(bytes).unwrap();
        file.set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(2)).unwrap();
        assert!(bytes <= whole.len() as u64);
        let refused = conversion.write(&place.path().join("made.gguf"), false, &|_| true, &mut |_| Ok(None));
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains(expected) && refused.contains("model.safetensors"), "{bytes}: {refused}");
        assert_eq!(place.path().read_dir().unwrap().count(), 0, "nothing is left");
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
        conversion.write(&place.path().join("made.gguf"), false, &|_| true, &mut |_| Ok(None)).unwrap_err();
    assert!(refused.to_string().contains("is not finite"), "{refused}");
    let stopped =
        conversion.write(&place.path().join("made.gguf"), false, &|_| false, &mut |_| Ok(None)).unwrap_err();
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

#[test]
fn a_block_whose_scale_is_too_large_is_refused() {
    // bfloat16, of which F16 holds few: 1e7 / 127 is above its largest
    let folder = Folder::of("qwen3");
    let place = "model.layers.1.mlp.up_proj.weight";
    folder.edit_header("model.safetensors", |it| it[place]["dtype"] = json!("BF16"));
    let mut file = folder.bytes("model.safetensors");
    let count = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: Json = serde_json::from_slice(&file[8..8 + count]).unwrap();
    let start = 8 + count + header[place]["data_offsets"][0].as_u64().unwrap() as usize;
    let weights = 96 * 64;
    for (weight, fits) in [(1.0e6_f32, true), (1.0e7, false)] {
        for (at, bytes) in file[start..start + 2 * weights].chunks_mut(2).enumerate() {
            let value = if at == 700 { weight } else { 1.0 };
            bytes.copy_from_slice(&half::bf16::from_f32(value).to_le_bytes());
        }
        folder.put("model.safetensors", &file);
        for quantisation in [Quantisation::Q8_0, Quantisation::Q4_0] {
            let place = TempDir::new().unwrap();
            let mut conversion = Conversion::new(folder.path(), Some(quantisation), place.path()).unwrap();
            let written =
                conversion.write(&place.path().join("made.gguf"), false, &|_| true, &mut |_| Ok(None));
            let fits = fits && quantisation == Quantisation::Q8_0; // an eighth of the largest is Q4_0's scale
            assert_eq!(written.is_ok(), fits, "{weight} as {}", quantisation.name());
            if let Err(refused) = written {
                let expected = format!(
                    "a weight of `blk.1.ffn_up.weight` is not finite, or too large for {}",
                    quantisation.name().to_uppercase()
                );
                assert!(refused.to_string().contains(&expected), "{refused}");
            }
        }
    }
}

#[test]
fn blocks_of_mxfp4_are_told_and_checked() {
    let folder = Folder::of("gpt-oss-mxfp4");
    let place = TempDir::new().unwrap();
    let mut conversion = Conversion::new(folder.path(), None, place.path()).unwrap();
    let path = place.path().join("made.gguf");
    let told = std::cell::RefCell::new(Vec::new());
    let go_on = |bytes| {
        told.borrow_mut().push(bytes);
        true
    };
    conversion.write(&path, false, &go_on, &mut |_| Ok(None)).unwrap();
    let made = Gguf::open(&path).unwrap();
    for tensor in made.tensors().iter().filter(|tensor| matches!(tensor.format(), Ok(Format::Mxfp4))) {
        assert!(told.borrow().contains(&tensor.offset), "{}: {:?}", tensor.name, told.borrow());
    }

    let mut file = folder.bytes("model.safetensors");
    let count = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: Json = serde_json::from_slice(&file[8..8 + count]).unwrap();
    let scales = &header["model.layers.2.mlp.experts.down_proj_scales"]["data_offsets"][0];
    let first = 8 + count + scales.as_u64().unwrap() as usize;
    // none at all, and one by which blocks of the largest values are too large for any number
    for (scale, fits) in [(0xff, false), (0xfe, false), (0x80, true)] {
        file[first + 5] = scale;
        folder.put("model.safetensors", &file);
        let mut conversion = Conversion::new(folder.path(), None, place.path()).unwrap();
        let written = conversion.write(&path, true, &|_| true, &mut |_| Ok(None));
        assert_eq!(written.is_ok(), fits, "{scale:#x}");
        if let Err(refused) = written {
            assert!(refused.to_string().contains("`blk.2.ffn_down_exps.weight` is not finite"), "{refused}");
        }
    }
}

/// The tokenizer of a folder.
fn tokenizer_of(folder: &Folder) -> TokenizerData {
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
    let remarks = remarks(&folder);
    assert!(remarks.len() == 1 && remarks[0].starts_with("token 7 ends a generation"), "{remarks:?}");
    let tokenizer = tokenizer_of(&folder);
    assert_eq!((tokenizer.eos, tokenizer.eot), (Some(2), Some(0)));

    folder.edit("generation_config.json", |it| it["eos_token_id"] = (0..65).collect());
    assert!(folder.refusal().contains("names 67 tokens that end a generation"), "{}", folder.refusal());
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

/// As Phi 4's tokenizer has them.
#[test]
fn added_tokens_that_take_spaces_are_listed() {
    let folder = Folder::of("gpt-oss");
    assert!(tokenizer_of(&folder).strips.is_empty());
    let mut ids = Vec::new();
    folder.edit("tokenizer.json", |it| {
        for token in it["added_tokens"].as_array_mut().unwrap().iter_mut().take(2) {
            (token["lstrip"], token["rstrip"]) = (json!(ids.is_empty()), json!(true));
            ids.push(token["id"].as_u64().unwrap() as u32);
        }
    });
    let strips = tokenizer_of(&folder).strips;
    assert_eq!((&strips.before[..], &strips.after[..]), (&ids[..1], &ids[..]));
}

/// A SentencePiece vocabulary as transformers writes it to a `tokenizer.json`: all cuts of each piece into two, the best score first.
fn merged(gguf: &Gguf<'_>) -> (Json, usize) {
    let data = TokenizerData::from_gguf(gguf).unwrap();
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
fn of_json(json: &Json, tokens: usize) -> Result<Tokenizer, String> {
    tokenizer_data("tokenizer.json", json.to_string().as_bytes(), tokens)
        .map(|data| data.into_tokenizer().unwrap())
}

/// Tokenizer data from a folder with this one tokenizer file, or the error.
fn tokenizer_data(name: &str, file: &[u8], tokens: usize) -> Result<TokenizerData, String> {
    let folder = Folder(TempDir::new().unwrap());
    let config = json!({"architectures": ["LlamaForCausalLM"], "vocab_size": tokens, "bos_token_id": 1, "eos_token_id": 2});
    folder.put(name, file);
    let config = crate::config::Config::read(config.to_string().as_bytes(), folder.path()).unwrap();
    let family = crate::families::of(&config).unwrap();
    let mut keys = Keys::default();
    let place = crate::folder::Folder::new(folder.path());
    crate::tokenizer::keys(&place, &config, Some(family), &mut keys)
        .map_err(|refused| refused.to_string())?;
    let (header, ..) = keys.header(&[]);
    Ok(TokenizerData::from_gguf(&Gguf::parse(&header).unwrap()).unwrap())
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
    // whose cuts would be looked up one by one, each as long as the piece
    let mut long = json.clone();
    long["model"]["vocab"]["x".repeat(1 << 20)] = json!(count);
    let refusal = of_json(&long, count + 1).expect_err("refused");
    assert!(refusal.contains("a piece of 1048576 bytes"), "{refusal}");

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
fn unigram_models_of_sentencepiece_keep_pieces_scores_and_spaces() {
    let goldens: Json = serde_json::from_slice(&fs::read(golden("unigram.json")).unwrap()).unwrap();
    for (name, model) in goldens["models"].as_object().unwrap() {
        let pieces: Vec<(String, f32, u8)> = serde_json::from_value(model["pieces"].clone()).unwrap();
        // a token more than the model has, as folders often say
        let data = |file: &str, bytes: &[u8]| {
            let data = tokenizer_data(file, bytes, pieces.len() + 1).unwrap();
            assert_eq!((data.kind, data.tokens.len()), (TokenizerKind::Unigram, pieces.len() + 1), "{name}");
            for ((text, score, kind), id) in pieces.iter().zip(0..) {
                let found = (&data.tokens[id], data.scores[id].to_bits(), data.types[id]);
                assert_eq!(found, (text, score.to_bits(), *kind), "{name}, {file}");
            }
            assert_eq!(data.types.last(), Some(&5), "{name}: one that is never used");
            assert_eq!((data.add_bos, data.add_eos), (true, false), "{name}: as transformers does");
            assert_eq!(json!(data.add_space_prefix), model["add_space_prefix"], "{name}, {file}");
            assert_eq!(json!(data.removes_spaces), model["removes_spaces"], "{name}, {file}");
        };
        data("tokenizer.model", &fs::read(golden(&format!("unigram/{name}.model"))).unwrap());
        if model.get("tokenizers_differs").is_some() {
            data("tokenizer.json", &fs::read(golden(&format!("unigram/{name}.tokenizer.json"))).unwrap());
        }
    }

    let whole = fs::read(golden("unigram/plain.tokenizer.json")).unwrap();
    let whole: Json = serde_json::from_slice(&whole).unwrap();
    let refused = |change: fn(&mut Json)| {
        let mut json = whole.clone();
        change(&mut json);
        tokenizer_data("tokenizer.json", json.to_string().as_bytes(), 600).expect_err("refused")
    };
    for (refusal, expected) in [
        (
            refused(|it| it["model"]["vocab"][9][0] = json!("a\u{2581}b")),
            "a piece with a space within (`a\u{2581}b`)",
        ),
        (refused(|it| it["model"]["vocab"][9][0] = json!("<s>")), "token `<s>` has two ids, 1 and 9"),
        (
            refused(|it| it["model"]["unk_id"] = json!(null)),
            "no token for what is unknown, and none for bytes",
        ),
        (
            refused(|it| it["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"})),
            "a normaliser",
        ),
        (refused(|it| it["pre_tokenizer"] = json!({"type": "Whitespace"})), "a normaliser, or a cut"),
    ] {
        assert!(refusal.contains(expected), "{expected}: {refusal}");
    }
    // the trainer's and the normaliser's settings are small messages at the end
    let model = fs::read(golden("unigram/plain.model")).unwrap();
    for (field, expected) in [
        (&[0x1a, 3, 0x12, 1, 0x41][..], "`precompiled_charsmap`"),
        (&[0x12, 3, 0xc0, 1, 1], "`treat_whitespace_as_suffix`"),
        (&[0x1a, 2, 0x28, 0], "`escape_whitespaces`"),
        (&[0x12, 2, 0x18, 3], "model of kind 3"),
    ] {
        let refusal = tokenizer_data("tokenizer.model", &[&model, field].concat(), 600).expect_err("refused");
        assert!(refusal.contains(expected), "{expected}: {refusal}");
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

fn remarks(folder: &Folder) -> Vec<String> {
    Conversion::new(folder.path(), None, TempDir::new().unwrap().path()).unwrap().remarks
}

#[test]
fn limits_of_scaling_are_rounded_where_the_folder_says_so() {
    for name in ["gpt-oss", "llama-yarn"] {
        for (said, expected) in [(json!(false), true), (json!(true), false), (json!(null), false)] {
            let config = config_of(name, |it| it["rope_parameters"]["truncate"] = said.clone());
            let RopeScaling::Yarn { exact, .. } = config.ropes[0].scaling else { panic!("{name}") };
            assert_eq!(exact, expected, "{name}: {said}");
        }
    }
}

#[test]
fn what_other_converters_drop_comes_without_the_advice_to_use_them() {
    for (name, key, value) in [
        ("olmoe", "clip_qkv", json!(8.0)),
        ("olmoe", "norm_topk_prob", json!(true)),
        ("qwen3moe", "norm_topk_prob", json!(false)),
        ("qwen2", "use_sliding_window", json!(true)),
    ] {
        let folder = Folder::of(name);
        folder.edit("config.json", |it| it[key] = value);
        let refusal = folder.refusal();
        assert!(refusal.contains(key) && !refusal.contains("convert it"), "{name}: {refusal}");
    }
    let folder = Folder::of("llama-yarn");
    folder.edit("config.json", |it| it["rope_parameters"]["mscale"] = json!(0.7));
    let refusal = folder.refusal();
    assert!(refusal.contains("mscale") && !refusal.contains("convert it"), "{refusal}");
}

#[test]
fn what_a_killed_start_left_behind_is_overwritten() {
    let place = TempDir::new().unwrap();
    fs::write(place.path().join(".made.gguf.part"), vec![1; 1 << 20]).unwrap();
    let mut conversion = Conversion::new(&golden("folders/qwen2"), None, place.path()).unwrap();
    let path = place.path().join("made.gguf");
    conversion.write(&path, false, &|_| true, &mut |_| Ok(None)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), conversion.bytes());
    assert_eq!(place.path().read_dir().unwrap().count(), 1, "nothing else is left");
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
    assert_eq!(
        remarks(&folder),
        ["of a model that sees pictures the part for text is taken, and nothing else"]
    );
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
        crate::read_any(&bytes, true);
        folder.put(file, bytes);
        let beside = TempDir::new().unwrap();
        if let Err(refused) = Conversion::new(folder.path(), None, beside.path()) {
            prop_assert!(refused.to_string().len() < 8192);
        }
        prop_assert_eq!(beside.path().read_dir().unwrap().count(), 0);
    }
}
