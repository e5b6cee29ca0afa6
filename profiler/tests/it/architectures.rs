//! The goldens of architectures through the three programs: logits of transformers, and equal bits under every plan.

use serde_json::Value;

use crate::goldens;
use crate::programs::{Profiled, done, fixture, json, number, program, refused};
use crate::tiny;

/// A model of `fixtures/golden/architectures`, and what transformers computes of its tokens.
pub(crate) struct Golden {
    name: &'static str,
    pub(crate) model: String,
    tokens: String,
    logits: Vec<f32>,
    /// The logits' standard deviation.
    deviation: f32,
}

impl Golden {
    pub(crate) fn of(name: &'static str) -> Self {
        let file = |name: &str| fixture(&format!("golden/architectures/{name}"));
        let index: Value = serde_json::from_slice(&std::fs::read(file("index.json")).unwrap()).unwrap();
        let tokens: Vec<String> = index["tokens"].as_array().unwrap().iter().map(Value::to_string).collect();
        Self {
            name,
            model: file(&format!("{name}.gguf")),
            tokens: tokens.join(" "),
            logits: Self::values(&std::fs::read(file(&format!("{name}.npy"))).unwrap()),
            deviation: number(&index["models"][name], "logits_deviation") as f32,
        }
    }

    fn values(npy: &[u8]) -> Vec<f32> {
        npy[128..].as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    /// Its profile, of a short text.
    fn profiled(&self) -> Profiled {
        let here = Profiled::measured();
        std::fs::write(here.path("text.txt"), tiny::text()).unwrap();
        here.profile(&self.model, &["--text", here.path("text.txt").to_str().unwrap()]);
        here
    }

    /// Runs it by a plan, decoding and as a prompt: the logits are those, and the bits of all plans before.
    pub(crate) fn runs(&self, here: &Profiled, plan: &str, same: &mut Option<[Vec<u8>; 2]>) {
        let files = ["--logits", "decoded.npy", "--logits-prefill", "prompt.npy"];
        done(here.run(plan).args(["--tokens", &self.tokens, "--no-probe"]).args(files));
        let found = ["decoded.npy", "prompt.npy"].map(|file| std::fs::read(here.path(file)).unwrap());
        for bytes in &found {
            // keys and values are kept in 16 bits
            let off = compare::largest_difference(&Self::values(bytes), &self.logits);
            assert!(off < 0.02 * self.deviation, "{} {plan}: off by {off} of {}", self.name, self.deviation);
        }
        assert!(*same.get_or_insert_with(|| found.clone()) == found, "{} {plan}: other bits", self.name);
    }
}

#[test]
fn models_of_other_pieces_from_profile_to_the_logits_of_transformers() {
    let recurrent = goldens::RECURRENT;
    for name in recurrent.into_iter().chain(goldens::OTHERS) {
        let golden = Golden::of(name);
        let here = golden.profiled();
        let mut same: Option<[Vec<u8>; 2]> = None;
        let mut plans = vec![
            ("least.toml", vec!["--objective", "memory", "--level", "dense"]),
            ("all.toml", vec!["--level", "dense"]),
            ("two.toml", vec!["--slots", "2", "--level", "dense"]),
        ];
        if name.starts_with("nemotron") {
            // no gates: up and down, and with the ups in memory the downs of those that fire
            let model = plans::file::read::<plans::Model>(&here.path("model.toml")).unwrap().value;
            let bundle = model.parts.bundle;
            assert_eq!((&*model.architecture.activation, bundle.up_bytes), ("relu-squared", 0));
            assert_eq!(bundle.stride_bytes, bundle.gate_bytes + bundle.down_bytes);
            for layer in &model.layers {
                assert_eq!(
                    layer.active_true_fraction, layer.active_gate_fraction,
                    "a neuron fires or adds nothing"
                );
            }
            plans.push(("ups.toml", vec!["--objective", "memory", "--level", "exact-gate"]));
            let said = refused(1, &mut {
                let mut profile = program("profile");
                profile.args(["--quick", "--model", &golden.model, "--activation", "silu"]);
                profile.arg("--out").arg(here.folder.path());
                profile
            });
            assert!(
                said.contains("have no gates and compute relu-squared: leave out --activation"),
                "{said}"
            );
        }
        if name == "smallthinker" {
            plans.push(("gates.toml", vec!["--objective", "memory", "--level", "exact-gate"]));
        }
        if name == "gemma4moe" {
            // two heads of 32 in two layers, and one of 64 in the third
            let model = plans::file::read::<plans::Model>(&here.path("model.toml")).unwrap().value;
            let other = plans::model::Heads { layers: 1, heads: 2, kv_heads: 1, head_width: 64 };
            assert_eq!(model.architecture.other_heads, [other]);
            assert!(model.kv_loss(plans::KvFormat::Q8_0).is_some());
        }
        if name == "gemma4-e2b" {
            // six blocks with inputs of 32 values, in 16 bits; the last three read keys and values of others
            let model = plans::file::read::<plans::Model>(&here.path("model.toml")).unwrap().value;
            let per_layer =
                plans::model::PerLayer { width: 32, row_values: 192, row_bytes: 384, rows: None, reads: 1 };
            assert_eq!(model.architecture.per_layer, Some(per_layer));
            let of = |layers, head_width| plans::model::Heads { layers, heads: 2, kv_heads: 1, head_width };
            assert_eq!(model.architecture.sharing_heads, [of(2, 32), of(1, 64)]);
            assert_eq!((model.architecture.layers, model.architecture.kv_layers()), (3, 3));
        }
        if name == "gemma3n" {
            // seven blocks with inputs of 32 values, in 16 bits, and four streams; the first two blocks' networks are always in memory
            let a = plans::file::read::<plans::Model>(&here.path("model.toml")).unwrap().value.architecture;
            let per_layer =
                plans::model::PerLayer { width: 32, row_values: 224, row_bytes: 448, rows: None, reads: 1 };
            let streams = plans::model::Streams { count: 4, projected_values: 64 };
            assert_eq!((a.per_layer, a.streams), (Some(per_layer), Some(streams)));
            assert_eq!((a.layers, a.kv_layers(), a.shared_neurons), (5, 4, 96));
        }
        if name.starts_with("qwen4exp") {
            // pairs and triples by two heads each, of 32 values in 16 bits, in a table of 192 rows; four streams
            let a = plans::file::read::<plans::Model>(&here.path("model.toml")).unwrap().value.architecture;
            let rows = plans::model::PerLayer {
                width: 32,
                row_values: 128,
                row_bytes: 64,
                rows: Some(192),
                reads: 4,
            };
            // of the streams' products, or of the delta net's where these are more
            let (projected_values, indexer_heads, chosen_blocks) =
                if name == "qwen4exp" { (2 * 256 + 64, 2, 8) } else { (672, 8, 4) };
            let streams = plans::model::Streams { count: 4, projected_values };
            assert_eq!((a.per_layer, a.streams), (Some(rows), Some(streams)));
            // keys and values of one block, and its indexer's
            let of = |heads, kv_heads| plans::model::Heads { layers: 1, heads, kv_heads, head_width: 32 };
            assert_eq!((a.heads, a.kv_layers(), &*a.other_heads), (4, 2, &[of(indexer_heads, 1)][..]));
            assert_eq!(a.chosen_blocks, chosen_blocks);
        }
        // bytes of a row that a token reads, and its number of rows
        let of_rows = match name {
            "gemma4-e2b" => Some((384.0, 1.0)),
            "gemma3n" => Some((448.0, 1.0)),
            "qwen4exp" | "qwen4exp-sparse" => Some((64.0, 4.0)),
            _ => None,
        };
        for (plan, arguments) in &plans {
            let planned = here.plan(plan, arguments);
            assert_eq!(planned.read.per_layer_rows, of_rows.is_some(), "{name} {plan}");
            assert_eq!(planned.memory.state_bytes > 0, recurrent.contains(&name), "{name} {plan}");
            if name == "deepseek2" {
                // 32 values and a key of 16 of each of three layers, in 16 bits
                let tokens = u64::from(planned.context.tokens * planned.context.sequences);
                assert_eq!(planned.memory.kv_bytes, (tokens * 3 * 48 * 2).next_multiple_of(4096), "{plan}");
            }
            golden.runs(&here, plan, &mut same);
            let report = json(here.run(plan).args(["--prompt", "neuron gate", "-n", "8", "--no-probe"]));
            let [peak, limit] = ["memory_peak_bytes", "memory_limit_bytes"].map(|key| number(&report, key));
            assert!(peak <= limit, "{name} {plan}: {report}");
            if let Some((row_bytes, rows)) = of_rows.filter(|_| planned.expected.hit_fraction == 1.0) {
                // all neurons are in memory: a token reads its rows, each in one page or two
                let read = number(&report, "bytes_read_per_token");
                assert_eq!(planned.expected.bytes_read_per_token, rows * (row_bytes + 4096.0));
                assert!((rows * 4096.0..=rows * 8192.0).contains(&read), "{report}");
            }
        }
    }
}

#[test]
fn every_other_architecture_from_profile_to_the_logits_of_transformers() {
    by_two_plans(&goldens::BY_TWO_PLANS);
}

/// Models with the pieces of other [`goldens`]: by two plans each, in `make chain-all`.
const OF_THE_SAME_PIECES: [&str; 28] = [
    "gemma4-e4b",
    "bailingmoe3",
    "qwen3next",
    "granitehybrid",
    "deepseek3",
    "arcee",
    "glm4moe",
    "gemma2",
    "minimax-m2",
    "bailingmoe2",
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
    "granitehybrid-dense",
    "qwen2vl",
    "qwen3vl",
    "qwen3vlmoe",
    "mellum",
    "deepseek2-softmax",
];

#[test]
#[ignore = "minutes: make chain-all"]
fn architectures_of_the_same_pieces_from_profile_to_the_logits_of_transformers() {
    by_two_plans(&OF_THE_SAME_PIECES);
}

/// Each model by the plan of least memory and by the fastest: logits of transformers, and equal bits.
fn by_two_plans(names: &[&'static str]) {
    for &name in names {
        let golden = Golden::of(name);
        let here = golden.profiled();
        let mut plans = vec![("least.toml", "memory", "dense"), ("all.toml", "speed", "dense")];
        if ["bamboo", "arcee"].contains(&name) {
            // dReLU and squared ReLU: neurons that are zero are not read
            plans.push(("gates.toml", "memory", "exact-gate"));
        }
        let mut same = None;
        for (plan, objective, level) in plans {
            here.plan(plan, &["--objective", objective, "--level", level]);
            golden.runs(&here, plan, &mut same);
        }
    }
}
