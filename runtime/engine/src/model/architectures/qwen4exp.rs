//! `qwen4exp`: as `qwen35moe`, with gated residual streams in place of norms and sums, and hashed n-grams in one
//! block. Gates of delta nets are sigmoids.
//!
//! Attention is over blocks of positions that an indexer chooses. It chooses all while there are few, so the model
//! is described with attention to all positions, and a context that long.

use super::super::config::{Config, ConfigError, Mixer, Mixing, NGramHead, NGrams, Norms, Streams};
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
    config.context = config.context.min(attended(k, &config));
    config.ngrams = ngrams(k, &config);
    let parts = ["q_proj", "k_proj", "q_norm", "k_norm"];
    let attention = (0..config.blocks.len()).filter(|&block| config.blocks[block].attention().is_some());
    let of_block = |block| parts.map(|part| format!("blk.{block}.indexer.{part}.weight"));
    let unused = attention.flat_map(of_block).collect();
    (config, Names { output_norm: Some("output_hc_norm.weight"), others: Vec::new(), unused, ..names })
}

/// Positions that attention sees without a choice: all blocks that the indexer may choose, and of the
/// incomplete one behind them.
fn attended(k: &Keys<'_>, config: &Config) -> usize {
    // the indexer's shapes, which choosing all does not need
    for key in ["attention.indexer.head_count", "attention.indexer.key_length"] {
        k.size(key);
    }
    let budget = k.size("attention.indexer.top_k") as u64;
    let blocks = k.wholes("attention.compress_ratios", config.blocks.len()).unwrap_or_default();
    let blocks = blocks.into_iter().zip(&config.blocks).filter(|(_, block)| block.attention().is_some());
    let seen = blocks.map(|(positions, _)| match positions {
        0 => {
            k.refuse_value("attention.compress_ratios", "numbers above 0 of blocks with attention");
            1
        }
        positions => (budget / positions).saturating_add(1).saturating_mul(positions) - 1,
    });
    seen.min().map_or(usize::MAX, |seen| usize::try_from(seen.max(1)).unwrap_or(usize::MAX))
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
