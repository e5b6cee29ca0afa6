//! `qwen4exp`: as `qwen35moe`, with gated residual streams in place of norms and sums, and hashed n-grams in one
//! block. Gates of delta nets are sigmoids.
//!
//! Attention is over blocks of positions that an indexer chooses.

use super::super::config::{Config, ConfigError, Indexer, Mixer, Mixing, NGramHead, NGrams, Norms, Streams};
use super::{Keys, Names, qwen35};

pub(super) fn read(k: &Keys<'_>) -> (Config, Names) {
    let (mut config, names) = qwen35::read_experts(k);
    for block in &mut config.blocks {
        block.norms = Norms::Neither;
        if let Some(Mixer::DeltaNet(net)) = &mut block.mixer {
            net.sigmoid_gate = true;
        }
    }
    let rank = k.size("hyper_connection.low_rank");
    config.streams =
        Some(Streams { count: k.size("hyper_connection.count"), mixing: Mixing::Gated { rank } });
    add_indexers(k, &mut config);
    config.ngrams = ngrams(k, &config);
    (config, Names { output_norm: Some("output_hc_norm.weight"), others: Vec::new(), ..names })
}

/// Gives every attention its indexer.
fn add_indexers(k: &Keys<'_>, config: &mut Config) {
    let (heads, width) = (k.size("attention.indexer.head_count"), k.size("attention.indexer.key_length"));
    let budget = k.size("attention.indexer.top_k");
    let blocks = k.wholes("attention.compress_ratios", config.blocks.len()).unwrap_or_default();
    for (block, positions) in config.blocks.iter_mut().zip(blocks) {
        let Some(Mixer::Attention(attention)) = &mut block.mixer else { continue };
        let positions = usize::try_from(positions).unwrap_or(usize::MAX);
        if positions == 0 || !budget.is_multiple_of(positions) {
            k.refuse_value("attention.compress_ratios", "divisors of `attention.indexer.top_k`");
            return;
        }
        attention.indexer = Some(Indexer { heads, width, positions, blocks: budget / positions });
    }
}

/// The n-grams of the block that has them, if one has.
fn ngrams(k: &Keys<'_>, config: &Config) -> Option<NGrams> {
    let layers = k.wholes("ple.layers", 0)?;
    let [block] = *layers else {
        if !layers.is_empty() {
            k.refuse_value("ple.layers", "n-grams in one block");
        }
        return None;
    };
    // of pictures, which a text has none of
    k.ignore("ple.image_token_id");
    let tokens = k.size("ple.ngram_size").min(NGrams::TOKENS_MAX + 1);
    let of_each = k.size("ple.heads_per_ngram").min(NGrams::HEADS_MAX + 1);
    let heads = tokens.saturating_sub(1) * of_each;
    let mut multipliers = k.wholes("ple.layer_multipliers", tokens)?;
    let offsets = k.wholes("ple.head_offsets", heads)?;
    let rows = k.wholes("ple.head_vocab_sizes", heads)?;
    multipliers.truncate(tokens);
    let heads: Vec<NGramHead> = (offsets.into_iter().zip(rows).take(heads))
        .map(|(offset, rows)| NGramHead { offset, rows })
        .collect();
    let end = k.size("ple.eos_token_id");
    if end >= config.vocabulary {
        let rule = format!("there are {} tokens", config.vocabulary);
        let what = "the token that ends n-grams";
        k.refuse(ConfigError::Contradiction { what, found: end as u64, rule });
    }
    Some(NGrams {
        block: usize::try_from(block).unwrap_or(usize::MAX),
        multipliers,
        heads,
        end: end as u32,
        rows: k.rows("per_layer_token_embd.weight").unwrap_or(0),
        row_width: k.size("embedding_length_per_layer_input"),
        taps: k.size("ple.conv_kernel"),
    })
}
