//! Per-layer embeddings, layers that read the keys and values of others, and several residual streams: their memory and their price.

use plans::memory::{embedding_buffer_bytes, kv_bytes_per_token};
use plans::model::{Heads, PerLayer, Streams};
use plans::{KvFormat, PAGE_BYTES};

use crate::small::{inputs, plan, request};

#[test]
fn a_token_reads_its_row_and_the_table_takes_no_memory() {
    let row_bytes = 5040;
    let without = plan(&inputs(4), &request(None)).plan;
    let mut inputs = inputs(4);
    let a = &mut inputs.model.architecture;
    a.per_layer = Some(PerLayer { width: 256, row_values: 8960, row_bytes, rows: None, reads: 1 });
    let vocabulary = u64::from(a.vocabulary);
    let with = plan(&inputs, &request(None)).plan;
    assert!(with.read.per_layer_rows && !without.read.per_layer_rows);
    assert_eq!(with.memory.fixed_bytes, without.memory.fixed_bytes);
    let buffers = u64::from(with.read.buffers) * with.read.buffer_bytes;
    let of_rows = if with.read.embedding_rows {
        embedding_buffer_bytes(inputs.model.parts.embedding_bytes / vocabulary)
    } else {
        0
    };
    assert_eq!(with.memory.io_buffers_bytes - buffers - of_rows, embedding_buffer_bytes(row_bytes));
    // everything else is in memory
    assert_eq!((with.expected.hit_fraction, without.expected.bytes_read_per_token), (1.0, 0.0));
    assert_eq!(with.expected.bytes_read_per_token, (row_bytes + PAGE_BYTES) as f64);
    let seconds = |plan: &plans::Plan| plan.expected.decode_seconds_constant;
    let read = inputs.device.storage.reads.iter().map(|read| 1.0 / read.reads_per_second);
    let fastest = read.fold(f64::INFINITY, f64::min);
    assert!(seconds(&with) > seconds(&without) + fastest, "{} {}", seconds(&with), seconds(&without));
}

#[test]
fn shared_keys_and_values_are_stored_once_and_read_by_each_layer() {
    let own = plan(&inputs(4), &request(None)).plan;
    let mut inputs = inputs(4);
    let a = &mut inputs.model.architecture;
    let layers = a.layers;
    a.kv_layers = Some(layers - 1);
    let heads = Heads { layers: 1, heads: a.heads, kv_heads: a.kv_heads, head_width: a.head_width };
    a.sharing_heads = vec![heads];
    let shared = plan(&inputs, &request(None)).plan;
    let of_token = kv_bytes_per_token(&inputs.model.architecture, KvFormat::F16);
    let tokens = u64::from(shared.context.tokens);
    assert_eq!(shared.memory.kv_bytes, (tokens * of_token).next_multiple_of(PAGE_BYTES));
    assert!(shared.memory.kv_bytes < own.memory.kv_bytes);
    let context = |plan: &plans::Plan| plan.expected.decode_seconds_per_context_token;
    assert_eq!(context(&shared), context(&own));
}

#[test]
fn streams_take_activations_and_time() {
    let one = plan(&inputs(4), &request(None)).plan;
    let mut inputs = inputs(4);
    let width = u64::from(inputs.model.architecture.width);
    inputs.model.architecture.streams = Some(Streams { count: 4, projected_values: 1 });
    let four = plan(&inputs, &request(None)).plan;
    let rows = u64::from(four.decode_rows());
    let more = four.memory.activations_bytes - one.memory.activations_bytes;
    assert_eq!(more, (rows * 4 * width * 4).next_multiple_of(PAGE_BYTES));
    let rows = u64::from(four.prefill.chunk_tokens);
    assert!(four.memory.prompt_bytes >= rows * 4 * width * 4);
    let seconds = |plan: &plans::Plan| plan.expected.decode_seconds_constant;
    assert!(seconds(&four) > seconds(&one), "{} {}", seconds(&four), seconds(&one));
}
