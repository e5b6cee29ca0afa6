//! Published folders beyond `fixtures/golden/folders`: parts for pictures, multi-token prediction, keys of other years.

use super::*;

use flashplan::internals::model::config::Config;

/// Asserts that a folder's description and weights equal a file of llama.cpp's converter.
fn assert_same(folder: &Folder, golden_name: &str) -> Config {
    let (_place, path) = converted(folder.path(), None);
    let (made, expected) = (Gguf::open(&path).unwrap(), Gguf::open(converters(golden_name)).unwrap());
    for tensor in expected.tensors() {
        let own = made.tensor(&tensor.name).unwrap_or_else(|| panic!("lacks {}", tensor.name));
        assert_eq!((own.dims, own.kind), (tensor.dims, tensor.kind), "{}", tensor.name);
        assert!(made.tensor_bytes(own) == expected.tensor_bytes(tensor), "{} differs", tensor.name);
    }
    assert_eq!(made.tensors().len(), expected.tensors().len());
    let config = SourceModel::from_gguf(made).unwrap().config().clone();
    let other = SourceModel::from_gguf(expected).unwrap().config().clone();
    assert_eq!(Config { architecture: other.architecture.clone(), ..config.clone() }, other);
    config
}

/// Puts a part for pictures beside a model's text, and its keys where such models have them.
fn wrap(folder: &Folder, class: &str, prefix: (&str, &str)) {
    folder.edit("config.json", |it| {
        let mut text = it.clone();
        text.as_object_mut().unwrap().remove("architectures");
        *it = json!({"architectures": [class], "model_type": "whole", "text_config": text, "vision_config": {"hidden_size": 9}});
    });
    rename(folder, |name| match name.strip_prefix(prefix.0) {
        Some(rest) => format!("{}{rest}", prefix.1),
        None => name.to_owned(),
    });
}

/// Gives tensors other names.
fn rename(folder: &Folder, name: impl Fn(&str) -> String) {
    folder.edit_header("model.safetensors", |it| {
        let tensors = std::mem::take(it.as_object_mut().unwrap());
        let new = |own: String| if own == "__metadata__" { own } else { name(&own) };
        *it = tensors.into_iter().map(|(own, tensor)| (new(own), tensor)).collect();
    });
}

/// Puts tensors of one value behind the others.
fn add(folder: &Folder, names: &[&str]) {
    let mut end = 0;
    folder.edit_header("model.safetensors", |it| {
        let tensors = it.as_object_mut().unwrap();
        let ends = tensors.values().filter_map(|tensor| tensor["data_offsets"][1].as_u64());
        end = ends.max().unwrap();
        for (number, name) in (0..).zip(names) {
            let place = [end + 2 * number, end + 2 * number + 2];
            let tensor = json!({"dtype": "F16", "shape": [1, 1], "data_offsets": place});
            assert!(tensors.insert((*name).to_owned(), tensor).is_none());
        }
    });
    let bytes = [folder.bytes("model.safetensors"), vec![0; 2 * names.len()]].concat();
    folder.put("model.safetensors", bytes);
}

const PICTURES: &str = "of a model that sees pictures the part for text is taken, and nothing else";
const GUESSES: &str = "layers that guess further tokens are left out, which changes no text";

#[test]
fn of_a_model_that_sees_and_guesses_the_text_is_taken() {
    for (name, class) in
        [("qwen35", "Qwen3_5ForConditionalGeneration"), ("qwen35moe", "Qwen3_5MoeForConditionalGeneration")]
    {
        let folder = Folder::of(name);
        wrap(&folder, class, ("model.", "model.language_model."));
        add(
            &folder,
            &["mtp.fc.weight", "mtp.layers.0.mlp.gate.weight", "model.visual.blocks.0.attn.qkv.weight"],
        );
        assert_eq!(remarks(&folder), [PICTURES, GUESSES], "{name}");
        assert_same(&folder, name);
    }
    let folder = Folder::of("gemma4moe");
    wrap(&folder, "Gemma4ForConditionalGeneration", ("model.", "model.language_model."));
    add(
        &folder,
        &["model.vision_tower.a.weight", "model.embed_vision.b.weight", "model.embed_audio.c.weight"],
    );
    assert_eq!(remarks(&folder), [PICTURES]);
    assert_same(&folder, "gemma4moe");
}

#[test]
fn layers_behind_the_last_are_left_out_where_they_guess() {
    let folder = Folder::of("deepseek2");
    add(&folder, &["model.layers.3.eh_proj.weight", "model.layers.3.self_attn.q_a_proj.weight"]);
    let refusal = folder.refusal();
    assert!(refusal.contains("tensor `model.layers.3.eh_proj.weight`"), "{refusal}");
    folder.edit("config.json", |it| it["num_nextn_predict_layers"] = json!(1));
    assert_eq!(remarks(&folder), [GUESSES]);
    assert_same(&folder, "deepseek2");

    let folder = Folder::of("nemotron_h_moe");
    add(&folder, &["mtp.layers.0.enorm.weight", "mtp.layers.1.mixer.gate.weight"]);
    assert_eq!(remarks(&folder), [GUESSES]);
    assert_same(&folder, "nemotron_h_moe");
}

#[test]
fn mistral_3_is_one_of_two_models_beside_its_pictures() {
    for (name, architecture) in [("ministral3", "mistral3"), ("mistral", "mistral3")] {
        let folder = Folder::of(name);
        wrap(&folder, "Mistral3ForConditionalGeneration", ("", "language_model."));
        add(&folder, &["vision_tower.a.weight", "multi_modal_projector.b.weight"]);
        assert_eq!(remarks(&folder), [PICTURES]);
        assert_eq!(assert_same(&folder, name).architecture, architecture);
    }
    let folder = Folder::of("ministral3");
    wrap(&folder, "Mistral3ForConditionalGeneration", ("", "language_model."));
    folder.edit("config.json", |it| it["text_config"]["model_type"] = json!("mistral4"));
    let refusal = folder.refusal();
    assert!(
        refusal.contains("architecture `Mistral3ForConditionalGeneration` of type `mistral4`"),
        "{refusal}"
    );
}

#[test]
fn bamboo_is_a_llama_with_relu_of_both_sides() {
    let folder = Folder::of("mistral");
    folder.edit("config.json", |it| {
        (it["architectures"], it["hidden_act"]) = (json!(["BambooForCausalLM"]), json!("relu"));
    });
    add(&folder, &["model.layers.0.mlp.predictor.fc1.weight", "model.layers.0.mlp.predictor.fc2.weight"]);
    assert_eq!(remarks(&folder), ["predictors of neurons are left out, which changes no text"]);
    let (_place, path) = converted(folder.path(), None);
    let (own, llama) =
        (SourceModel::open(path).unwrap(), SourceModel::open(golden("architectures/mistral.gguf")).unwrap());
    let (config, mut expected) = (own.config(), llama.config().clone());
    assert_eq!((config.architecture.as_str(), config.activation()), ("bamboo", kernels::Activation::Drelu));
    expected.architecture = "bamboo".to_owned();
    let networks = expected.blocks.iter_mut().filter_map(|block| block.feed_forward.as_mut());
    networks.for_each(|network| network.activation = kernels::Activation::Drelu);
    assert_eq!(*config, expected);

    folder.edit("config.json", |it| it["hidden_act"] = json!("silu"));
    assert!(folder.refusal().contains("activation `silu` is not implemented"), "{}", folder.refusal());
}

#[test]
fn keys_of_published_files_say_the_same() {
    // Nemotron: a letter for each block, and limits that are no JSON
    for limit in ["Infinity", "{\"__float__\": \"Infinity\"}"] {
        let folder = Folder::of("nemotron_h_moe");
        folder.edit("config.json", |it| {
            let it = it.as_object_mut().unwrap();
            assert!(it.remove("layers_block_type").is_some());
            it.insert("hybrid_override_pattern".to_owned(), json!("ME*EME"));
            it.insert("num_hidden_layers".to_owned(), json!(6));
            it.insert("time_step_limit".to_owned(), json!([0.0, "LIMIT"]));
            it.insert("text".to_owned(), json!("\\\"Infinity"));
        });
        let config = String::from_utf8(folder.bytes("config.json")).unwrap().replace("\"LIMIT\"", limit);
        assert!(config.contains(&format!("[0.0,{limit}]")), "{config}");
        folder.put("config.json", config);
        assert_same(&folder, "nemotron_h_moe");
    }
    // LFM 2: the layers with attention by their numbers
    let folder = Folder::of("lfm2");
    folder.edit("config.json", |it| {
        let it = it.as_object_mut().unwrap();
        assert!(it.remove("layer_types").is_some());
        it.insert("full_attn_idxs".to_owned(), json!([1]));
        it.insert("block_ff_dim".to_owned(), json!(96));
        it.insert("tie_embedding".to_owned(), json!(true));
    });
    assert_same(&folder, "lfm2");
    // Gemma 4: sizes of layers without a window by keys of their own
    for (name, heads) in [("gemma4", json!(null)), ("gemma4-e2b", json!(null)), ("gemma4moe", json!(1))] {
        let folder = Folder::of(name);
        folder.edit("config.json", |it| {
            let it = it.as_object_mut().unwrap();
            it.remove("per_layer_config");
            it.insert("global_head_dim".to_owned(), json!(64));
            it.insert("num_global_key_value_heads".to_owned(), heads.clone());
            it.insert("use_bidirectional_attention".to_owned(), json!("vision"));
        });
        assert_same(&folder, name);
    }
    // what transformers takes where the file does not say it
    let folder = Folder::of("deepseek2");
    folder.edit("config.json", |it| {
        let it = it.as_object_mut().unwrap();
        for key in [
            "scoring_func",
            "first_k_dense_replace",
            "mlp_layer_types",
            "routed_scaling_factor",
            "norm_topk_prob",
        ] {
            it.remove(key);
        }
    });
    assert_same(&folder, "deepseek2");
}

#[test]
fn a_width_that_is_to_be_adjusted_is() {
    let neurons = |change: fn(&mut Json)| {
        let folder = Folder::of("lfm2");
        folder.edit("config.json", change);
        folder.refusal()
    };
    // two thirds of 144, and then the next multiple: as wide as the weights are
    let folder = Folder::of("lfm2");
    folder.edit("config.json", |it| {
        it["block_auto_adjust_ff_dim"] = json!(true);
        (it["intermediate_size"], it["block_multiple_of"]) = (json!(140), json!(32));
    });
    assert_same(&folder, "lfm2");
    let refusal = neurons(|it| it["block_auto_adjust_ff_dim"] = json!(true));
    assert!(refusal.contains("256"), "64 and then 256: {refusal}");
    let refusal = neurons(|it| {
        (it["block_auto_adjust_ff_dim"], it["block_multiple_of"]) = (json!(true), json!(0));
    });
    assert!(refusal.contains("key `block_multiple_of` is 0"), "{refusal}");
}

#[test]
fn latent_attention_of_deepseek_has_its_scaling() {
    let yarn = |change: fn(&mut Json)| {
        let folder = Folder::of("deepseek2");
        folder.edit("config.json", |it| {
            it["architectures"] = json!(["DeepseekV2ForCausalLM"]);
            it["rope_parameters"] = json!(null);
            it["rope_theta"] = json!(10_000.0);
            it["rope_scaling"] = json!({
                "type": "yarn", "factor": 40.0, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707,
                "original_max_position_embeddings": 64
            });
            change(it);
        });
        folder
    };
    let (_place, path) = converted(yarn(|_| {}).path(), None);
    let source = SourceModel::open(path).unwrap();
    let attention = source.config().attention(1);
    let growth = 1.0 + 0.0707 * 40.0_f32.ln();
    let expected = growth * growth / 32.0_f32.sqrt();
    assert!((attention.scale - expected).abs() < 1e-6 * expected, "{} for {expected}", attention.scale);
    assert_eq!(source.config().ropes[0].magnitude, 1.0);

    let folder = Folder::of("deepseek2");
    folder.edit("config.json", |it| it["architectures"] = json!(["DeepseekV3ForCausalLM"]));
    assert_same(&folder, "deepseek2");

    for (refusal, expected) in [
        (
            yarn(|it| it["rope_scaling"]["mscale_all_dim"] = json!(1.0)).refusal(),
            "key `mscale` of YaRN with 0.707",
        ),
        (yarn(|it| it["n_group"] = json!(8)).refusal(), "the number of groups used is 1"),
        (
            yarn(|it| it["scoring_func"] = json!("sqrtsoftplus")).refusal(),
            "weighing experts by `sqrtsoftplus`",
        ),
        (yarn(|it| it["moe_layer_freq"] = json!(2)).refusal(), "moe_layer_freq"),
        (
            yarn(|it| it["mlp_layer_types"] = json!(["dense", "sparse", "dense"])).refusal(),
            "a dense network behind one of experts",
        ),
        (yarn(|it| it["v_head_dim"] = json!(31)).refusal(), "which does not fit its heads"),
    ] {
        assert!(refusal.contains(expected), "{expected}: {refusal}");
    }
}

#[test]
fn tokens_without_embeddings_have_rows_of_zeros() {
    let folder = Folder::of("gemma3n");
    folder.edit("config.json", |it| {
        // tokens of pictures and sound
        it["vocab_size"] = json!(323);
        // one width for all layers
        it["intermediate_size"] = json!(96);
    });
    let (_place, file) = converted(folder.path(), None);
    let gguf = Gguf::open(&file).unwrap();
    assert_eq!(gguf.texts("tokenizer.ggml.tokens").unwrap().unwrap().len(), 323);
    let old = Gguf::open(converters("gemma3n")).unwrap();
    for name in ["token_embd.weight", "per_layer_token_embd.weight"] {
        let [new, old] = [&gguf, &old].map(|gguf| gguf.tensor_bytes(gguf.tensor(name).unwrap()));
        let (rows, zeros) = new.split_at(old.len());
        assert_eq!((rows, zeros.len()), (old, old.len() / 320 * 3), "{name}");
        assert!(zeros.iter().all(|&byte| byte == 0), "{name}");
    }
}

#[test]
fn what_later_architectures_have_no_key_for_is_refused_by_name() {
    let of = |name: &str, change: fn(&mut Json)| {
        let folder = Folder::of(name);
        folder.edit("config.json", change);
        folder.refusal()
    };
    for (refusal, expected) in [
        (of("qwen35", |it| it["attn_output_gate"] = json!(false)), "attn_output_gate"),
        (of("qwen35", |it| it["layer_types"][0] = json!("mamba")), "a layer of type `mamba`"),
        (of("qwen35", |it| it["linear_num_key_heads"] = json!(3)), "which does not fit its heads"),
        (of("qwen35", |it| it["linear_num_key_heads"] = json!(0)), "which does not fit its heads"),
        (
            of("qwen35", |it| it["linear_key_head_dim"] = json!(4_000_000_000_u32)),
            "which does not fit its heads",
        ),
        (of("qwen35moe", |it| it["mlp_only_layers"] = json!([1])), "mlp_only_layers"),
        (of("lfm2", |it| it["layer_types"][0] = json!("mamba")), "a layer of type `mamba`"),
        (
            of("lfm2", |it| it["num_hidden_layers"] = json!(4_000_000_000_u32)),
            "layers that differ are outside 1 to 1024",
        ),
        (of("lfm2", |it| it["conv_bias"] = json!(true)), "conv_bias"),
        (of("lfm2moe", |it| it["routed_scaling_factor"] = json!(2.0)), "routed_scaling_factor"),
        (of("lfm2moe", |it| it["norm_topk_prob"] = json!(false)), "norm_topk_prob"),
        (
            of("nemotron_h_moe", |it| it["layers_block_type"][1] = json!("mlp")),
            "dense networks and with experts",
        ),
        (of("nemotron_h_moe", |it| it["layers_block_type"][1] = json!("other")), "a block of type `other`"),
        (of("nemotron_h_moe", |it| it["mlp_hidden_act"] = json!("silu")), "activation `silu`"),
        (of("nemotron_h_moe", |it| it["moe_latent_size"] = json!(8)), "moe_latent_size"),
        (of("nemotron_h_moe", |it| it["n_groups"] = json!(3)), "which does not fit its groups"),
        (of("nemotron_h_moe", |it| it["time_step_limit"] = json!([0.0, 0.1])), "time_step_limit"),
        (of("qwen4exp", |it| it["output_gate_type"] = json!("silu")), "gates `silu` of delta nets"),
        (of("qwen4exp", |it| it["output_gate_type"] = json!(null)), "gates `silu` of delta nets"),
        (
            of("qwen4exp", |it| it["eos_token_id"] = json!([148, 2])),
            "n-grams with none or several end tokens",
        ),
        (of("qwen4exp", |it| it["eos_token_id"] = json!(320)), "the token that ends n-grams"),
        (of("qwen4exp", |it| it["split_ngram_parts"] = json!(3)), "there are 2, and not 3"),
        (of("qwen4exp", |it| it["heads_per_ngram"] = json!(3)), "128 values of n-grams do not fit 6 heads"),
        (of("qwen4exp", |it| it["hc_count"] = json!(3)), "tensor `output_hc_norm.weight`"),
        (
            of("qwen4exp", |it| it["ple_layer_ids"] = json!([4])),
            "n-grams need a block with a recurrent state",
        ),
        (of("qwen4exp", |it| it["ple_layer_ids"] = json!([1, 2])), "n-grams in one block"),
        (of("qwen4exp", |it| it["indexer_n_heads"] = json!(4)), "which does not fit its heads"),
        (of("qwen4exp", |it| it["norm_topk_prob"] = json!(false)), "norm_topk_prob"),
        (
            of("gemma3n", |it| it["altup_correct_scale"] = json!(false)),
            "key `altup_correct_scale` with false",
        ),
        (of("gemma3n", |it| it["altup_active_idx"] = json!(1)), "gemma3n.altup.active_idx"),
        (of("gemma3n", |it| it["altup_num_inputs"] = json!(3)), "tensor `altup_proj.weight`"),
        (of("gemma3n", |it| it["num_kv_shared_layers"] = json!(6)), "gemma3n.attention.shared_kv_layers"),
        (
            of("gemma3n", |it| it["activation_sparsity_pattern"] = json!(0.95)),
            "key `activation_sparsity_pattern` is not a share from 0 to 0.9999 for each layer",
        ),
        (of("gemma3n", |it| it["layer_types"][0] = json!("other")), "a layer of type `other`"),
        (of("gemma4", |it| it["hidden_size_per_layer_input"] = json!(256)), "per_layer_token_embd.weight"),
        (of("gemma4", |it| it["num_kv_shared_layers"] = json!(1)), "gemma4.attention.shared_kv_layers"),
        (of("gemma4-e2b", |it| it["num_kv_shared_layers"] = json!(2)), "ffn_down.weight"),
        (of("gemma4-e2b", |it| it["use_double_wide_mlp"] = json!(false)), "ffn_down.weight"),
        (
            of("gemma4", |it| it["layer_types"][2] = json!("sliding_attention")),
            "a last layer that does not see everything",
        ),
        (of("gemma4", |it| it["use_bidirectional_attention"] = json!("all")), "use_bidirectional_attention"),
        (of("gemma4", |it| it["hidden_activation"] = json!("gelu")), "activation `gelu`"),
        (
            of("gemma4", |it| it["rope_parameters"]["full_attention"]["rope_type"] = json!("default")),
            "rotary scaling `default` where it is not `proportional`",
        ),
        (of("kimi-linear", |it| it["mla_use_nope"] = json!(false)), "key `mla_use_nope` with false"),
        (of("kimi-linear", |it| it["linear_attn_config"]["num_heads"] = json!(2)), "key `num_heads` with 2"),
        (
            of("kimi-linear", |it| it["linear_attn_config"] = json!(4)),
            "key `linear_attn_config` is not an object",
        ),
        (
            of("kimi-linear", |it| it["linear_attn_config"] = json!(null)),
            "key `linear_attn_config` is missing",
        ),
        (
            of("kimi-linear", |it| it["moe_router_activation_func"] = json!("softmax")),
            "moe_router_activation_func",
        ),
        (of("bailingmoe3", |it| it["no_kda_lora"] = json!(false)), "key `no_kda_lora` with false"),
        (of("bailingmoe3", |it| it["kda_safe_gate"] = json!(false)), "key `kda_safe_gate` with false"),
        (
            of("bailingmoe3", |it| it["expert_swiglu_limit_list"] = json!([0.0, 7.0])),
            "expert_swiglu_limit_list",
        ),
        (of("bailingmoe3", |it| it["layer_group_size"] = json!(0)), "key `layer_group_size` is 0"),
        (of("smallthinker", |it| it["rope_layout"] = json!([1, 1, 1, 1, 1])), "layers without positions"),
        (
            of("smallthinker", |it| it["sliding_window_layout"] = json!([0, 1])),
            "is not a number for each layer",
        ),
        (of("smallthinker", |it| it["norm_topk_prob"] = json!(false)), "norm_topk_prob"),
        (
            of("smallthinker", |it| it["moe_enable_secondary_experts"] = json!(true)),
            "moe_enable_secondary_experts",
        ),
    ] {
        assert!(refusal.contains(expected), "{expected}: {refusal}");
    }
    let folder = Folder::of("gemma4");
    folder.edit("tokenizer.json", |it| it["normalizer"] = json!({"type": "NFC"}));
    assert!(folder.refusal().contains("other than make spaces a letter"), "{}", folder.refusal());
}

#[test]
fn glm_has_tokens_with_roles_that_no_file_tells() {
    let folder = Folder::of("deepseek2");
    folder.edit("tokenizer_config.json", |it| drop(it.as_object_mut().unwrap().remove("bos_token")));
    folder.edit("config.json", |it| {
        (it["bos_token_id"], it["eos_token_id"]) = (json!(null), json!([2, 4, 5]));
    });
    assert!(remarks(&folder).is_empty(), "all ends have a key: {:?}", remarks(&folder));
    let tokenizer = tokenizer_of(&folder);
    assert_eq!((tokenizer.bos, tokenizer.eos, tokenizer.eot), (Some(3), Some(2), Some(4)));
    assert!(!tokenizer.add_bos, "texts begin with no token of its own accord");
}

#[test]
fn later_architectures_are_quantised_too() {
    for name in ["qwen35moe", "lfm2moe", "nemotron_h_moe", "deepseek2", "gemma4moe", "smallthinker"] {
        let (_place, path) = converted(&golden(&format!("folders/{name}")), Some(Quantisation::Q8_0));
        let (made, exact) = (Gguf::open(&path).unwrap(), Gguf::open(converters(name)).unwrap());
        let mut quantised = 0;
        for tensor in made.tensors() {
            let far = match tensor.format().unwrap() {
                Format::Q8_0 => 0.01,
                // rows that are no blocks of 32, and what is small
                format => {
                    assert_eq!(
                        format,
                        exact.tensor(&tensor.name).unwrap().format().unwrap(),
                        "{}",
                        tensor.name
                    );
                    0.0
                }
            };
            quantised += usize::from(far > 0.0);
            let (own, other) = (values(&made, &tensor.name), values(&exact, &tensor.name));
            let (largest, differs) = (compare::largest(&other), compare::largest_difference(&own, &other));
            assert!(differs <= far * largest, "{name}: {}: {differs} of {largest}", tensor.name);
        }
        assert!(3 * quantised > made.tensors().len(), "{name}: {quantised} tensors of Q8_0");
        let (made, exact) = (SourceModel::from_gguf(made).unwrap(), SourceModel::from_gguf(exact).unwrap());
        assert_eq!(made.config(), exact.config(), "{name}");
        let logits = Reference::new(&made, kernels::best()).step(5, &mut ());
        assert!(logits.iter().all(|logit| logit.is_finite()), "{name}");
    }
}
