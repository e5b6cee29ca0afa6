//! The models of [`super`]: each architecture with its peculiarities, in two layers.

use super::super::*;

/// A model of an architecture: its keys and tensors, besides those common to all.
#[derive(Clone, Copy)]
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) architecture: &'static str,
    pub(super) experts: usize,
    pub(super) head_width: usize,
    /// Key and value heads of each layer.
    pub(super) kv_heads: [u32; LAYERS],
    pub(super) keys: fn(Writer, &str) -> Writer,
    /// Tensors of each layer, or only of the last if the first has its own.
    pub(super) of_layer: &'static [(&'static str, &'static [usize])],
    /// Tensors outside layers.
    pub(super) others: &'static [(&'static str, &'static [usize])],
    /// Common tensors that this architecture does not have.
    pub(super) without: &'static [&'static str],
    /// Tensors that replace attention in the first layer; empty if it has attention.
    pub(super) recurrent: &'static [(&'static str, &'static [usize])],
    /// Tensors of the first layer, if its attention has another shape; empty if all layers are equal.
    pub(super) first: &'static [(&'static str, &'static [usize])],
    /// Layers after the last that predict further tokens.
    pub(super) guessing: usize,
    /// For latent attention: the rank of keys and values; `head_width` is then the width of the stored row.
    pub(super) rank: Option<usize>,
}

pub(super) const NONE: Case = Case {
    name: "llama",
    architecture: "llama",
    experts: 1,
    head_width: 16,
    kv_heads: [2; LAYERS],
    keys: |writer, _| writer,
    of_layer: &[],
    others: &[],
    without: &[],
    recurrent: &[],
    first: &[],
    guessing: 0,
    rank: None,
};

pub(super) const CASES: [Case; 32] = [
    NONE,
    Case { name: "llama, Mixtral", experts: 4, ..NONE },
    Case {
        name: "llama 3 with biases",
        of_layer: &[
            ("attn_q.bias", &[64]),
            ("attn_k.bias", &[32]),
            ("attn_v.bias", &[32]),
            ("attn_output.bias", &[64]),
            ("ffn_gate.bias", &[NEURONS]),
            ("ffn_up.bias", &[NEURONS]),
            ("ffn_down.bias", &[64]),
        ],
        others: &[("rope_freqs.weight", &[8])],
        ..NONE
    },
    Case {
        name: "llama, scaled linearly",
        keys: |writer, a| {
            let writer = writer.text(&format!("{a}.rope.scaling.type"), "linear");
            writer.f32(&format!("{a}.rope.scaling.factor"), 4.0)
        },
        ..NONE
    },
    Case {
        name: "llama with a window, Mistral",
        keys: |writer, a| writer.u32(&format!("{a}.attention.sliding_window"), 3),
        ..NONE
    },
    Case {
        name: "mistral3",
        architecture: "mistral3",
        keys: |writer, a| {
            writer
                .text(&format!("{a}.rope.scaling.type"), "yarn")
                .f32(&format!("{a}.rope.scaling.factor"), 8.0)
                .u32(&format!("{a}.rope.scaling.original_context_length"), 4)
                .f32(&format!("{a}.rope.scaling.yarn_beta_fast"), 4.0)
                .f32(&format!("{a}.rope.scaling.yarn_log_multiplier"), 0.5)
                .f32(&format!("{a}.attention.temperature_scale"), 0.3)
        },
        ..NONE
    },
    Case {
        name: "qwen2",
        architecture: "qwen2",
        of_layer: &[("attn_q.bias", &[64]), ("attn_k.bias", &[32]), ("attn_v.bias", &[32])],
        ..NONE
    },
    Case {
        name: "qwen3",
        architecture: "qwen3",
        head_width: 32,
        of_layer: &[("attn_q_norm.weight", &[32]), ("attn_k_norm.weight", &[32])],
        ..NONE
    },
    Case {
        name: "qwen3moe",
        architecture: "qwen3moe",
        experts: 4,
        of_layer: &[("attn_q_norm.weight", &[16]), ("attn_k_norm.weight", &[16])],
        ..NONE
    },
    Case {
        name: "olmoe",
        architecture: "olmoe",
        experts: 4,
        of_layer: &[("attn_q_norm.weight", &[64]), ("attn_k_norm.weight", &[32])],
        ..NONE
    },
    Case {
        name: "phi3",
        architecture: "phi3",
        keys: |writer, a| writer.u32(&format!("{a}.rope.dimension_count"), 12),
        of_layer: &[("attn_qkv.weight", &[64, 128]), ("ffn_up.weight", &[64, 2 * NEURONS])],
        without: &["attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"],
        ..NONE
    },
    Case {
        name: "gemma3",
        architecture: "gemma3",
        head_width: 32,
        keys: |writer, a| {
            writer
                .u32(&format!("{a}.attention.sliding_window"), 4)
                .array(&format!("{a}.attention.sliding_window_pattern"), 7, 2, &[1, 0])
                .f32(&format!("{a}.rope.freq_base"), 1e6)
                .f32(&format!("{a}.rope.freq_base_swa"), 100.0)
                .f32(&format!("{a}.rope.scaling.factor"), 8.0)
                .f32(&format!("{a}.final_logit_softcapping"), 2.0)
        },
        of_layer: &[
            ("attn_q_norm.weight", &[32]),
            ("attn_k_norm.weight", &[32]),
            ("post_attention_norm.weight", &[64]),
            ("post_ffw_norm.weight", &[64]),
        ],
        ..NONE
    },
    Case {
        name: "granitemoe",
        architecture: "granitemoe",
        experts: 4,
        keys: |writer, a| {
            writer
                .f32(&format!("{a}.attention.scale"), 0.1)
                .f32(&format!("{a}.embedding_scale"), 3.0)
                .f32(&format!("{a}.residual_scale"), 0.25)
                .f32(&format!("{a}.logit_scale"), 5.0)
        },
        ..NONE
    },
    Case {
        name: "granitemoe with a shared expert",
        architecture: "granitemoe",
        experts: 4,
        keys: |writer, a| {
            let writer = writer.u32(&format!("{a}.expert_shared_feed_forward_length"), 80);
            writer.f32(&format!("{a}.logit_scale"), 0.5)
        },
        of_layer: &[
            ("ffn_gate_shexp.weight", &[64, 80]),
            ("ffn_up_shexp.weight", &[64, 80]),
            ("ffn_down_shexp.weight", &[80, 64]),
        ],
        ..NONE
    },
    Case {
        name: "phi3 with divisors",
        architecture: "phi3",
        keys: |writer, a| {
            let writer = writer.u32(&format!("{a}.rope.scaling.original_context_length"), 8);
            writer.f32(&format!("{a}.rope.scaling.attn_factor"), 1.25)
        },
        of_layer: &[("attn_qkv.weight", &[64, 128]), ("ffn_up.weight", &[64, 2 * NEURONS])],
        others: &[("rope_factors_long.weight", &[8]), ("rope_factors_short.weight", &[8])],
        without: &["attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"],
        ..NONE
    },
    Case {
        name: "gpt-oss",
        architecture: "gpt-oss",
        experts: 4,
        keys: |writer, a| {
            writer
                .u32(&format!("{a}.expert_feed_forward_length"), NEURONS as u32)
                .u32(&format!("{a}.attention.sliding_window"), 3)
                .text(&format!("{a}.rope.scaling.type"), "yarn")
                .f32(&format!("{a}.rope.scaling.factor"), 32.0)
                .u32(&format!("{a}.rope.scaling.original_context_length"), 8)
        },
        of_layer: &[
            ("attn_q.bias", &[64]),
            ("attn_k.bias", &[32]),
            ("attn_v.bias", &[32]),
            ("attn_output.bias", &[64]),
            ("attn_sinks.weight", &[4]),
            ("post_attention_norm.weight", &[64]),
            ("ffn_gate_inp.bias", &[4]),
            ("ffn_gate_exps.bias", &[NEURONS, 4]),
            ("ffn_up_exps.bias", &[NEURONS, 4]),
            ("ffn_down_exps.bias", &[64, 4]),
        ],
        without: &["ffn_norm"],
        ..NONE
    },
    Case {
        name: "qwen3moe, gate and up in one tensor",
        architecture: "qwen3moe",
        experts: 4,
        of_layer: &[
            ("attn_q_norm.weight", &[16]),
            ("attn_k_norm.weight", &[16]),
            ("ffn_gate_up_exps.weight", &[64, 2 * NEURONS, 4]),
        ],
        without: &["ffn_gate", "ffn_up"],
        ..NONE
    },
    Case {
        name: "lfm2",
        architecture: "lfm2",
        kv_heads: [0, 2],
        keys: |writer, a| writer.u32(&format!("{a}.shortconv.l_cache"), 3),
        of_layer: &[("attn_q_norm.weight", &[16]), ("attn_k_norm.weight", &[16])],
        others: &[("token_embd_norm.weight", &[64])],
        without: &["output_norm"],
        recurrent: &[
            ("shortconv.conv.weight", &[3, 64]),
            ("shortconv.in_proj.weight", &[64, 3 * 64]),
            ("shortconv.out_proj.weight", &[64, 64]),
        ],
        ..NONE
    },
    GEMMA4,
    GEMMA4_MOE,
    GEMMA4_SMALL,
    GEMMA3N,
    QWEN4EXP,
    SMALLTHINKER,
    Case {
        name: "smallthinker, down by neurons",
        of_layer: &[("ffn_down_exps.weight", &[64, NEURONS, 4])],
        without: &["ffn_down"],
        ..SMALLTHINKER
    },
    QWEN35,
    Case {
        name: "qwen35 without recurrent layers",
        // flags, both layers false
        keys: |writer, a| {
            (QWEN35.keys)(writer, a).array(&format!("{a}.attention.recurrent_layers"), 7, 2, &[0, 0])
        },
        recurrent: &[],
        ..QWEN35
    },
    Case {
        name: "qwen35moe",
        architecture: "qwen35moe",
        guessing: 1,
        experts: 4,
        keys: |writer, a| (QWEN35.keys)(writer, a).u32(&format!("{a}.expert_shared_feed_forward_length"), 80),
        of_layer: &[
            ("attn_q.weight", &[64, 128]),
            ("attn_q_norm.weight", &[16]),
            ("attn_k_norm.weight", &[16]),
            ("post_attention_norm.weight", &[64]),
            ("ffn_gate_shexp.weight", &[64, 80]),
            ("ffn_up_shexp.weight", &[64, 80]),
            ("ffn_down_shexp.weight", &[80, 64]),
            ("ffn_gate_inp_shexp.weight", &[64]),
        ],
        recurrent: &[
            ("attn_qkv.weight", &[64, 2 * 2 * 8 + 4 * 8]),
            ("attn_gate.weight", &[64, 4 * 8]),
            ("ssm_alpha.weight", &[64, 4]),
            ("ssm_beta.weight", &[64, 4]),
            ("ssm_conv1d.weight", &[4, 64]),
            ("ssm_dt.bias", &[4]),
            ("ssm_a", &[4]),
            ("ssm_norm.weight", &[8]),
            ("ssm_out.weight", &[4 * 8, 64]),
            ("post_attention_norm.weight", &[64]),
            ("ffn_gate_shexp.weight", &[64, 80]),
            ("ffn_up_shexp.weight", &[64, 80]),
            ("ffn_down_shexp.weight", &[80, 64]),
            ("ffn_gate_inp_shexp.weight", &[64]),
        ],
        ..QWEN35
    },
    Case {
        name: "deepseek2",
        architecture: "deepseek2",
        experts: 4,
        head_width: 32,
        rank: Some(24),
        guessing: 1,
        keys: |writer, a| {
            writer
                .u32(&format!("{a}.attention.q_lora_rank"), 20)
                .u32(&format!("{a}.attention.kv_lora_rank"), 24)
                .u32(&format!("{a}.attention.key_length_mla"), 20)
                .u32(&format!("{a}.attention.value_length_mla"), 18)
                .u32(&format!("{a}.rope.dimension_count"), 8)
                .text(&format!("{a}.rope.scaling.type"), "yarn")
                .f32(&format!("{a}.rope.scaling.factor"), 8.0)
                .u32(&format!("{a}.rope.scaling.original_context_length"), 4)
                .f32(&format!("{a}.rope.scaling.yarn_log_multiplier"), 0.1)
                .u32(&format!("{a}.expert_shared_count"), 2)
                .u32(&format!("{a}.expert_gating_func"), 2)
                .boolean(&format!("{a}.expert_weights_norm"), true)
                .f32(&format!("{a}.expert_weights_scale"), 1.8)
        },
        of_layer: &[
            ("attn_q_a.weight", &[64, 20]),
            ("attn_q_a_norm.weight", &[20]),
            ("attn_q_b.weight", &[20, 4 * 20]),
            ("attn_kv_a_mqa.weight", &[64, 32]),
            ("attn_kv_a_norm.weight", &[24]),
            ("attn_k_b.weight", &[12, 24, 4]),
            ("attn_v_b.weight", &[24, 18, 4]),
            ("attn_output.weight", &[4 * 18, 64]),
            ("exp_probs_b.bias", &[4]),
            ("ffn_gate_shexp.weight", &[64, 2 * NEURONS]),
            ("ffn_up_shexp.weight", &[64, 2 * NEURONS]),
            ("ffn_down_shexp.weight", &[2 * NEURONS, 64]),
        ],
        without: &["attn_q", "attn_k", "attn_v", "attn_output"],
        ..NONE
    },
    Case {
        name: "deepseek2 without experts and low-rank queries",
        architecture: "deepseek2",
        head_width: 56,
        rank: Some(40),
        keys: |writer, a| {
            writer
                .u32(&format!("{a}.attention.kv_lora_rank"), 40)
                .u32(&format!("{a}.attention.key_length_mla"), 25)
                .u32(&format!("{a}.attention.value_length_mla"), 63)
                .u32(&format!("{a}.rope.dimension_count"), 16)
                .u32(&format!("{a}.leading_dense_block_count"), LAYERS as u32)
        },
        of_layer: &[
            ("attn_q.weight", &[64, 4 * 25]),
            ("attn_kv_a_mqa.weight", &[64, 56]),
            ("attn_kv_a_norm.weight", &[40]),
            ("attn_k_b.weight", &[9, 40, 4]),
            ("attn_v_b.weight", &[40, 63, 4]),
            ("attn_output.weight", &[4 * 63, 64]),
        ],
        without: &["attn_q", "attn_k", "attn_v", "attn_output"],
        ..NONE
    },
    KIMI_LINEAR,
    BAILINGMOE3,
];

/// Two heads of 16 with a window, and one of 32 without, whose keys are also its values.
pub(super) const GEMMA4: Case = Case {
    name: "gemma4",
    architecture: "gemma4",
    head_width: 32,
    kv_heads: [2, 1],
    keys: |writer, a| {
        writer
            .u32(&format!("{a}.attention.sliding_window"), 4)
            .array(&format!("{a}.attention.sliding_window_pattern"), 7, 2, &[1, 0])
            .u32(&format!("{a}.attention.key_length_swa"), 16)
            .u32(&format!("{a}.attention.value_length_swa"), 16)
            .u32(&format!("{a}.attention.shared_kv_layers"), 0)
            .u32(&format!("{a}.embedding_length_per_layer_input"), 0)
            .u32(&format!("{a}.rope.dimension_count"), 32)
            .u32(&format!("{a}.rope.dimension_count_swa"), 16)
            .f32(&format!("{a}.rope.freq_base"), 1e6)
            .f32(&format!("{a}.rope.freq_base_swa"), 100.0)
            .f32(&format!("{a}.final_logit_softcapping"), 2.0)
    },
    first: &[
        ("attn_q.weight", &[64, 64]),
        ("attn_k.weight", &[64, 32]),
        ("attn_v.weight", &[64, 32]),
        ("attn_output.weight", &[64, 64]),
        ("attn_q_norm.weight", &[16]),
        ("attn_k_norm.weight", &[16]),
        ("post_attention_norm.weight", &[64]),
        ("post_ffw_norm.weight", &[64]),
        ("layer_output_scale.weight", &[1]),
    ],
    of_layer: &[
        ("attn_q.weight", &[64, 128]),
        ("attn_k.weight", &[64, 32]),
        ("attn_output.weight", &[128, 64]),
        ("attn_q_norm.weight", &[32]),
        ("attn_k_norm.weight", &[32]),
        ("post_attention_norm.weight", &[64]),
        ("post_ffw_norm.weight", &[64]),
    ],
    others: &[("rope_freqs.weight", &[16])],
    without: &["attn_q", "attn_k", "attn_v", "attn_output"],
    ..NONE
};

/// [`GEMMA4`] with experts beside the network.
pub(super) const GEMMA4_MOE: Case = Case {
    name: "gemma4, a mixture",
    experts: 4,
    keys: |writer, a| {
        (GEMMA4.keys)(writer, a).u32(&format!("{a}.expert_feed_forward_length"), NEURONS as u32)
    },
    first: &[
        ("attn_q.weight", &[64, 64]),
        ("attn_k.weight", &[64, 32]),
        ("attn_v.weight", &[64, 32]),
        ("attn_output.weight", &[64, 64]),
        ("attn_q_norm.weight", &[16]),
        ("attn_k_norm.weight", &[16]),
        ("post_attention_norm.weight", &[64]),
        ("post_ffw_norm.weight", &[64]),
        ("ffn_gate.weight", &[64, NEURONS]),
        ("ffn_up.weight", &[64, NEURONS]),
        ("ffn_down.weight", &[NEURONS, 64]),
        ("pre_ffw_norm_2.weight", &[64]),
        ("post_ffw_norm_1.weight", &[64]),
        ("post_ffw_norm_2.weight", &[64]),
        ("ffn_gate_inp.scale", &[64]),
        ("ffn_down_exps.scale", &[4]),
    ],
    of_layer: &[
        ("attn_q.weight", &[64, 128]),
        ("attn_k.weight", &[64, 32]),
        ("attn_output.weight", &[128, 64]),
        ("attn_q_norm.weight", &[32]),
        ("attn_k_norm.weight", &[32]),
        ("post_attention_norm.weight", &[64]),
        ("post_ffw_norm.weight", &[64]),
        ("ffn_gate.weight", &[64, NEURONS]),
        ("ffn_up.weight", &[64, NEURONS]),
        ("ffn_down.weight", &[NEURONS, 64]),
        ("pre_ffw_norm_2.weight", &[64]),
        ("post_ffw_norm_1.weight", &[64]),
        ("post_ffw_norm_2.weight", &[64]),
        ("ffn_gate_inp.scale", &[64]),
        ("ffn_down_exps.scale", &[4]),
        ("layer_output_scale.weight", &[1]),
    ],
    ..GEMMA4
};

/// Per-layer embeddings of 32 values, and a last layer that reads the first one's keys and values.
pub(super) const GEMMA4_SMALL: Case = Case {
    name: "gemma4, per-layer embeddings",
    head_width: 16,
    kv_heads: [2; LAYERS],
    keys: |writer, a| {
        writer
            .u32(&format!("{a}.attention.sliding_window"), 4)
            .array(&format!("{a}.attention.sliding_window_pattern"), 7, 2, &[1, 1])
            .u32(&format!("{a}.attention.shared_kv_layers"), 1)
            .u32(&format!("{a}.embedding_length_per_layer_input"), 32)
    },
    first: &[
        ("attn_q.weight", &[64, 64]),
        ("attn_k.weight", &[64, 32]),
        ("attn_v.weight", &[64, 32]),
        ("attn_output.weight", &[64, 64]),
        ("attn_q_norm.weight", &[16]),
        ("attn_k_norm.weight", &[16]),
        ("post_attention_norm.weight", &[64]),
        ("post_ffw_norm.weight", &[64]),
        ("inp_gate.weight", &[64, 32]),
        ("proj.weight", &[32, 64]),
        ("post_norm.weight", &[64]),
        ("layer_output_scale.weight", &[1]),
    ],
    of_layer: &[
        ("attn_q.weight", &[64, 64]),
        ("attn_output.weight", &[64, 64]),
        ("attn_q_norm.weight", &[16]),
        ("post_attention_norm.weight", &[64]),
        ("post_ffw_norm.weight", &[64]),
        ("inp_gate.weight", &[64, 32]),
        ("proj.weight", &[32, 64]),
        ("post_norm.weight", &[64]),
    ],
    others: &[
        ("per_layer_token_embd.weight", &[LAYERS * 32, VOCABULARY]),
        ("per_layer_model_proj.weight", &[64, LAYERS * 32]),
        ("per_layer_proj_norm.weight", &[32]),
    ],
    ..GEMMA4
};

/// Three residual streams and branches of rank 32. The first layer keeps only its highest gates; the last one reads
/// the first one's keys and values.
pub(super) const GEMMA3N: Case = Case {
    name: "gemma3n",
    architecture: "gemma3n",
    head_width: 16,
    kv_heads: [2; LAYERS],
    keys: |writer, a| {
        let cutoffs: Vec<u8> = [0.3_f32, f32::NEG_INFINITY].iter().flat_map(|it| it.to_le_bytes()).collect();
        writer
            .u32(&format!("{a}.attention.sliding_window"), 4)
            .array(&format!("{a}.attention.sliding_window_pattern"), 7, 2, &[1, 1])
            .u32(&format!("{a}.attention.shared_kv_layers"), 1)
            .u32(&format!("{a}.embedding_length_per_layer_input"), 32)
            .u32(&format!("{a}.altup.num_inputs"), 3)
            .u32(&format!("{a}.altup.active_idx"), 0)
            .array(&format!("{a}.activation_sparsity_scale"), 6, 2, &cutoffs)
    },
    first: &[
        ("attn_q.weight", &[64, 64]),
        ("attn_k.weight", &[64, 32]),
        ("attn_v.weight", &[64, 32]),
        ("attn_output.weight", &[64, 64]),
        ("attn_q_norm.weight", &[16]),
        ("attn_k_norm.weight", &[16]),
        ("post_attention_norm.weight", &[64]),
        ("laurel_l.weight", &[64, 32]),
        ("laurel_r.weight", &[32, 64]),
        ("laurel_post_norm.weight", &[64]),
        ("altup_router_norm.weight", &[64]),
        ("altup_router.weight", &[64, 3]),
        ("altup_predict_coef.weight", &[3, 9]),
        ("altup_correct_coef.weight", &[3, 3]),
        ("altup_correct_scale.weight", &[64]),
        ("post_ffw_norm.weight", &[64]),
        ("inp_gate.weight", &[64, 32]),
        ("proj.weight", &[32, 64]),
        ("post_norm.weight", &[64]),
    ],
    of_layer: &[
        ("attn_q.weight", &[64, 64]),
        ("attn_output.weight", &[64, 64]),
        ("attn_q_norm.weight", &[16]),
        ("post_attention_norm.weight", &[64]),
        ("laurel_l.weight", &[64, 32]),
        ("laurel_r.weight", &[32, 64]),
        ("laurel_post_norm.weight", &[64]),
        ("altup_router_norm.weight", &[64]),
        ("altup_router.weight", &[64, 3]),
        ("altup_predict_coef.weight", &[3, 9]),
        ("altup_correct_coef.weight", &[3, 3]),
        ("altup_correct_scale.weight", &[64]),
        ("post_ffw_norm.weight", &[64]),
        ("inp_gate.weight", &[64, 32]),
        ("proj.weight", &[32, 64]),
        ("post_norm.weight", &[64]),
    ],
    others: &[
        ("altup_proj.weight", &[64, 64, 2]),
        ("altup_unembd_proj.weight", &[64, 64, 2]),
        ("per_layer_token_embd.weight", &[LAYERS * 32, VOCABULARY]),
        ("per_layer_model_proj.weight", &[64, LAYERS * 32]),
        ("per_layer_proj_norm.weight", &[32]),
    ],
    ..GEMMA4
};

/// A layer without positions and one with a window; both route before attention.
pub(super) const SMALLTHINKER: Case = Case {
    name: "smallthinker",
    architecture: "smallthinker",
    experts: 4,
    keys: |writer, a| {
        let writer = writer.u32(&format!("{a}.expert_gating_func"), 2);
        writer.u32(&format!("{a}.attention.sliding_window"), 3)
    },
    ..NONE
};

/// Four value heads of 8 that share two keys.
pub(super) const QWEN35: Case = Case {
    name: "qwen35",
    architecture: "qwen35",
    keys: |writer, a| {
        writer
            .u32(&format!("{a}.ssm.group_count"), 2)
            .u32(&format!("{a}.ssm.time_step_rank"), 4)
            .u32(&format!("{a}.ssm.state_size"), 8)
            .u32(&format!("{a}.ssm.inner_size"), 32)
            .u32(&format!("{a}.ssm.conv_kernel"), 4)
            .u32(&format!("{a}.full_attention_interval"), 2)
            .u32(&format!("{a}.rope.dimension_count"), 8)
    },
    of_layer: &[
        ("attn_q.weight", &[64, 128]),
        ("attn_q_norm.weight", &[16]),
        ("attn_k_norm.weight", &[16]),
        ("post_attention_norm.weight", &[64]),
    ],
    without: &["attn_q", "ffn_norm"],
    recurrent: &[
        ("attn_qkv.weight", &[64, 2 * 2 * 8 + 4 * 8]),
        ("attn_gate.weight", &[64, 4 * 8]),
        ("ssm_alpha.weight", &[64, 4]),
        ("ssm_beta.weight", &[64, 4]),
        ("ssm_conv1d.weight", &[4, 64]),
        ("ssm_dt.bias", &[4]),
        ("ssm_a", &[4]),
        ("ssm_norm.weight", &[8]),
        ("ssm_out.weight", &[4 * 8, 64]),
        ("post_attention_norm.weight", &[64]),
    ],
    ..NONE
};

/// [`QWEN35`] with experts, two gated residual streams, n-grams in the first layer that start again after token 5.
/// In the last layer, attention to four blocks of two positions.
pub(super) const QWEN4EXP: Case = Case {
    name: "qwen4exp",
    architecture: "qwen4exp",
    experts: 4,
    keys: |writer, a| {
        let key = |name: &str| format!("{a}.{name}");
        let longs = |values: [u64; 4]| values.map(u64::to_le_bytes).concat();
        (QWEN35.keys)(writer, a)
            .u32(&key("expert_shared_feed_forward_length"), 80)
            .u32(&key("hyper_connection.count"), 2)
            .u32(&key("hyper_connection.low_rank"), 32)
            .u32(&key("attention.indexer.head_count"), 2)
            .u32(&key("attention.indexer.key_length"), 16)
            .u32(&key("attention.indexer.top_k"), 8)
            .array(&key("attention.compress_ratios"), 5, 2, &[0, 0, 0, 0, 2, 0, 0, 0])
            .array(&key("ple.layers"), 5, 1, &[0; 4])
            .u32(&key("ple.ngram_size"), 3)
            .u32(&key("ple.heads_per_ngram"), 2)
            .u32(&key("ple.conv_kernel"), 3)
            .u32(&key("ple.eos_token_id"), 5)
            .u32(&key("embedding_length_per_layer_input"), 16)
            .array(&key("ple.layer_multipliers"), 10, 3, &longs([12_345, 777, 990_001, 0])[..24])
            .array(&key("ple.head_offsets"), 10, 4, &longs([0, 5, 12, 17]))
            .array(&key("ple.head_vocab_sizes"), 10, 4, &longs([5, 7, 5, 7]))
    },
    of_layer: &[
        ("attn_q.weight", &[64, 128]),
        ("attn_q_norm.weight", &[16]),
        ("attn_k_norm.weight", &[16]),
        ("indexer.q_proj.weight", &[64, 2 * 16]),
        ("indexer.k_proj.weight", &[64, 16]),
        ("indexer.q_norm.weight", &[16]),
        ("indexer.k_norm.weight", &[16]),
        ("ffn_gate_shexp.weight", &[64, 80]),
        ("ffn_up_shexp.weight", &[64, 80]),
        ("ffn_down_shexp.weight", &[80, 64]),
        ("ffn_gate_inp_shexp.weight", &[64]),
        ("hc_attn_norm.weight", &[128]),
        ("hc_attn_down.weight", &[128, 32]),
        ("hc_attn_up.weight", &[32, 128]),
        ("hc_attn_inject.weight", &[128, 2]),
        ("hc_ffn_norm.weight", &[128]),
        ("hc_ffn_down.weight", &[128, 32]),
        ("hc_ffn_up.weight", &[32, 128]),
        ("hc_ffn_inject.weight", &[128, 2]),
    ],
    without: &["attn_norm", "attn_q", "ffn_norm", "output_norm"],
    recurrent: &[
        ("attn_qkv.weight", &[64, 2 * 2 * 8 + 4 * 8]),
        ("attn_gate.weight", &[64, 4 * 8]),
        ("ssm_alpha.weight", &[64, 4]),
        ("ssm_beta.weight", &[64, 4]),
        ("ssm_conv1d.weight", &[4, 64]),
        ("ssm_dt.bias", &[4]),
        ("ssm_a", &[4]),
        ("ssm_norm.weight", &[8]),
        ("ssm_out.weight", &[4 * 8, 64]),
        ("ffn_gate_shexp.weight", &[64, 80]),
        ("ffn_up_shexp.weight", &[64, 80]),
        ("ffn_down_shexp.weight", &[80, 64]),
        ("ffn_gate_inp_shexp.weight", &[64]),
        ("hc_attn_norm.weight", &[128]),
        ("hc_attn_down.weight", &[128, 32]),
        ("hc_attn_up.weight", &[32, 128]),
        ("hc_attn_inject.weight", &[128, 2]),
        ("hc_ffn_norm.weight", &[128]),
        ("hc_ffn_down.weight", &[128, 32]),
        ("hc_ffn_up.weight", &[32, 128]),
        ("hc_ffn_inject.weight", &[128, 2]),
        ("ple_key.weight", &[64, 128]),
        ("ple_value.weight", &[64, 64]),
        ("ple_norm_key.weight", &[128]),
        ("ple_norm_query.weight", &[128]),
        ("ple_norm_conv.weight", &[128]),
        ("ple_conv1d.weight", &[3, 128]),
    ],
    others: &[
        ("output_hc_norm.weight", &[128]),
        ("output_hc_down.weight", &[128, 32]),
        ("output_hc_up.weight", &[32, 128]),
        ("per_layer_token_embd.weight", &[16, 24]),
    ],
    ..QWEN35
};

/// Delta attention of four heads of 8, then latent attention without positions.
pub(super) const KIMI_LINEAR: Case = Case {
    name: "kimi-linear",
    architecture: "kimi-linear",
    experts: 4,
    head_width: 32,
    kv_heads: [0, 1],
    rank: Some(24),
    keys: |writer, a| {
        writer
            .u32(&format!("{a}.attention.kv_lora_rank"), 24)
            .u32(&format!("{a}.attention.key_length_mla"), 20)
            .u32(&format!("{a}.attention.value_length_mla"), 18)
            .u32(&format!("{a}.rope.dimension_count"), 8)
            .u32(&format!("{a}.ssm.conv_kernel"), 4)
            .u32(&format!("{a}.kda.head_dim"), 8)
            .u32(&format!("{a}.expert_shared_count"), 2)
            .u32(&format!("{a}.expert_gating_func"), 2)
            .f32(&format!("{a}.expert_weights_scale"), 1.8)
    },
    of_layer: &[
        ("attn_q.weight", &[64, 4 * 20]),
        ("attn_kv_a_mqa.weight", &[64, 32]),
        ("attn_kv_a_norm.weight", &[24]),
        ("attn_k_b.weight", &[12, 24, 4]),
        ("attn_v_b.weight", &[24, 18, 4]),
        ("attn_output.weight", &[4 * 18, 64]),
        ("exp_probs_b.bias", &[4]),
        ("ffn_gate_shexp.weight", &[64, 2 * NEURONS]),
        ("ffn_up_shexp.weight", &[64, 2 * NEURONS]),
        ("ffn_down_shexp.weight", &[2 * NEURONS, 64]),
    ],
    without: &["attn_q", "attn_k", "attn_v", "attn_output"],
    recurrent: &[
        ("attn_qkv.weight", &[64, 3 * 32]),
        ("ssm_conv1d_q.weight", &[4, 1, 32]),
        ("ssm_conv1d_k.weight", &[4, 1, 32]),
        ("ssm_conv1d_v.weight", &[4, 32]),
        ("ssm_f_a.weight", &[64, 8]),
        ("ssm_f_b.weight", &[8, 32]),
        ("ssm_g_a.weight", &[64, 8]),
        ("ssm_g_b.weight", &[8, 32]),
        ("ssm_beta.weight", &[64, 4]),
        ("ssm_a", &[1, 4]),
        ("ssm_dt.bias", &[32]),
        ("ssm_norm.weight", &[8]),
        ("attn_output.weight", &[32, 64]),
        ("exp_probs_b.bias", &[4]),
        ("ffn_gate_shexp.weight", &[64, 2 * NEURONS]),
        ("ffn_up_shexp.weight", &[64, 2 * NEURONS]),
        ("ffn_down_shexp.weight", &[2 * NEURONS, 64]),
    ],
    ..NONE
};

/// [`KIMI_LINEAR`] with bounded decays, whole matrices and gates of heads.
pub(super) const BAILINGMOE3: Case = Case {
    name: "bailingmoe3",
    architecture: "bailingmoe3",
    guessing: 1,
    kv_heads: [0, 1],
    keys: |writer, a| {
        (KIMI_LINEAR.keys)(writer, a)
            .boolean(&format!("{a}.kda.safe_gate"), true)
            .f32(&format!("{a}.kda.gate_lower_bound"), -5.0)
            .boolean(&format!("{a}.expert_weights_norm"), true)
    },
    of_layer: &[
        ("attn_q.weight", &[64, 4 * 20]),
        ("attn_gate.weight", &[64, 4]),
        ("attn_kv_a_mqa.weight", &[64, 32]),
        ("attn_kv_a_norm.weight", &[24]),
        ("attn_k_b.weight", &[12, 24, 4]),
        ("attn_v_b.weight", &[24, 18, 4]),
        ("attn_output.weight", &[4 * 18, 64]),
        ("exp_probs_b.bias", &[4]),
        ("ffn_gate_shexp.weight", &[64, 2 * NEURONS]),
        ("ffn_up_shexp.weight", &[64, 2 * NEURONS]),
        ("ffn_down_shexp.weight", &[2 * NEURONS, 64]),
    ],
    recurrent: &[
        ("attn_q.weight", &[64, 32]),
        ("attn_k.weight", &[64, 32]),
        ("attn_v.weight", &[64, 32]),
        ("ssm_conv1d_q.weight", &[4, 1, 32]),
        ("ssm_conv1d_k.weight", &[4, 1, 32]),
        ("ssm_conv1d_v.weight", &[4, 1, 32]),
        ("ssm_f_a.weight", &[64, 32]),
        ("ssm_g_a.weight", &[64, 32]),
        ("ssm_beta.weight", &[64, 4]),
        ("ssm_a", &[1, 4]),
        ("ssm_dt.bias", &[32]),
        ("ssm_norm.weight", &[8]),
        ("attn_output.weight", &[32, 64]),
        ("exp_probs_b.bias", &[4]),
        ("ffn_gate_shexp.weight", &[64, 2 * NEURONS]),
        ("ffn_up_shexp.weight", &[64, 2 * NEURONS]),
        ("ffn_down_shexp.weight", &[2 * NEURONS, 64]),
    ],
    ..KIMI_LINEAR
};
