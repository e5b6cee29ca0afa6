//! Constants of the engine, which the runtime uses and the planner prices.
//!
//! Some decide memory ([`crate::memory`]), all decide time. None is a choice of a plan or measured on a machine. A changed constant
//! changes the engine and its expected speed at once.

/// Products that one thread computes in about the time that another takes to wake up; fewer are not worth sharing.
pub const ALONE: usize = 1 << 15;

/// Sums that neurons are added to, by rank: the most threads that can add at once.
pub const SUMS: usize = 8;

/// Rows that are added to a sum together, in 16 bits, where their factors are rounded.
pub const ADDED: usize = 16;

/// Neurons of neighbouring ranks that are added to the same sum, a power of two.
///
/// A run is long enough for whole groups of rows when few are active, and short enough for all sums to have their share.
pub const fn run_neurons(neurons: usize) -> usize {
    let run = neurons / (8 * SUMS);
    let run = if run < 32 { 32 } else { run };
    if run > 256 { 256 } else { run.next_power_of_two() }
}

/// Neurons whose down rows a prompt multiplies with one scale for each column, where
/// [`crate::model::Architecture::transposes_down`].
pub const TRANSPOSED: usize = 32;

/// Words of a prompt's row for [`TRANSPOSED`] neurons: their values, and a rounded copy with a scale, a sum, and four values in a word.
pub const TRANSPOSED_WORDS: usize = TRANSPOSED + 2 + TRANSPOSED / 4;

/// Words of `values` that are rounded to 8 bits: a scale, a sum, and four values in a word, twice.
pub const fn rounded_words(values: usize) -> usize {
    values / 32 * (2 + 2 * 32 / 4)
}

/// Values of a sum that share one more word, for a common factor that a kernel keeps.
pub const SHARING: usize = 32;

/// Words of a sum of rows of `columns` values: one for each value, then one for each [`SHARING`] of them.
pub const fn sum_words(columns: usize) -> usize {
    columns + columns.div_ceil(SHARING)
}

/// Completed neurons of one dispatch, for each thread: the work left when the last read completes.
pub const COMPLETED_CLUSTER: usize = 4;

/// Dispatches of completed neurons in a layer, at most: some reads complete together.
pub const COMPLETED_DISPATCHES: usize = 3;

/// One of this many neurons of a layer is considered for prefetching: neurons not in memory, the most used first.
pub const PREFETCH_ONE_IN: usize = 3;

/// Share of a layer's reads that the layer before it prefetches, where no profile has it. *Assumed.*
pub const PREFETCHED_FRACTION: f64 = 0.8;

/// Share of the prefetched reads that the layer then requests, where no profile has it. *Assumed.*
pub const PREFETCHED_USED_FRACTION: f64 = 0.8;

/// Dispatches of a layer's attention: queries, keys and values together; the scores; the output matrix.
pub const ATTENTION_DISPATCHES: usize = 3;
/// Further dispatches of latent attention: the queries' second matrix, and each head's matrix before and after the scores.
pub const LATENT_DISPATCHES: usize = 3;

/// Passes of one thread over the residual stream per layer.
///
/// Two norms (read, read and write), two additions (two reads and a write each), and rotary positions.
pub const SERIAL_PASSES_PER_LAYER: usize = 13;

/// Passes of one thread over a row of the model's width, per layer, for so many residual streams.
///
/// Predicting reads each stream for each stream and copies it. Correcting reads and writes each. A router, once for both, reads a row
/// of weights for each stream.
pub const fn stream_passes(streams: usize) -> usize {
    if streams > 1 { streams * streams + 6 * streams } else { 0 }
}

/// Passes of one thread over the routed experts' neurons to list the requested ones: it reads scores and ranks, writes lists and scores.
pub const LIST_PASSES: usize = 4;

/// Passes of one thread over the sums of down: it clears and joins them.
pub const SUMS_PASSES: usize = 2;

/// Passes of sampling over the logits: maximum, exponentials, the draw.
pub const SAMPLING_PASSES: usize = 3;

/// Sequences in memory at a time, at most. Active ones decode as one batch.
pub const SEQUENCES_MAX: usize = 8;

/// Rows of a decoding batch, at most: a token of each sequence, and the tokens of drafts.
pub const ROWS_MAX: usize = SEQUENCES_MAX;

/// Tokens of a draft, at most.
pub const DRAFT_TOKENS_MAX: usize = ROWS_MAX - 1;

/// Bytes of a draft's row outside the engine, for each token of the vocabulary: its logits.
pub const DRAFT_VOCABULARY_BYTES: u64 = 4;

/// Bytes of a server's sequence outside the engine, for each token of the vocabulary.
///
/// Its logits, the logits after its prompt, and two words of each candidate for the next token.
pub const SEQUENCE_VOCABULARY_BYTES: u64 = 4 * 4;
/// Bytes of a sequence for each token of its context: that token, the request's token, and eight bytes of the request's text.
pub const SEQUENCE_CONTEXT_BYTES: u64 = 4 + 4 + 8;
/// Bytes of a sequence for the rest of a request.
pub const SEQUENCE_BYTES: u64 = 64 << 10;

/// Rows of a prompt in one register of products; the last register is half empty on average.
pub const REGISTER_ROWS: usize = 16;

/// Chunk lengths that measure `kernels.prompt_flops_per_second` and `kernels.prompt_few_flops_per_second`.
pub const PROMPT_TOKENS: [usize; 2] = [128, REGISTER_ROWS];

/// Time of a chunk beyond its tokens, in tokens, where no profile has it. *Assumed*: weights are unpacked once a chunk.
pub const CHUNK_TOKENS_ASSUMED: f64 = 16.0;

/// One value of this many is not zero where `kernels.prompt_sparse_flops_per_second` is measured.
pub const PROMPT_ACTIVE_ONE_IN: usize = 8;
