//! The engine in numbers: the runtime computes by them, the planner prices them.
//!
//! Memory follows from some of them ([`crate::memory`]), time from all. None is a choice of the plan, and none is measured on
//! a machine; who changes one changes what the engine does and what is expected of it at once.

/// Products that one thread is done with in about the time in which another wakes up: no more are worth sharing.
pub const ALONE: usize = 1 << 15;

/// Sums that neurons are added to, by rank: the most threads that can add at once.
pub const SUMS: usize = 8;

/// Rows that are added to a sum together where their factors are rounded: in 16 bits.
pub const ADDED: usize = 16;

/// Neighbours by rank, of so many neurons, that are added to one sum, a power of two: enough for whole groups of rows where few
/// are active, and few enough for all sums to have their share.
pub const fn run_neurons(neurons: usize) -> usize {
    let run = neurons / (8 * SUMS);
    let run = if run < 32 { 32 } else { run };
    if run > 256 { 256 } else { run.next_power_of_two() }
}

/// Neurons whose down rows a prompt meets under one scale for each column, where
/// [`crate::model::Architecture::transposes_down`].
pub const TRANSPOSED: usize = 32;

/// Words of a prompt's row for so many neurons and, rounded, their values once more: a scale, a sum, and four in a word.
pub const TRANSPOSED_WORDS: usize = TRANSPOSED + 2 + TRANSPOSED / 4;

/// Words that so many values take, rounded to 8 bits to meet one row: a scale, a sum, and four values in a word, twice.
pub const fn rounded_words(values: usize) -> usize {
    values / 32 * (2 + 2 * 32 / 4)
}

/// Values of a sum that share a word, in which kernels may keep what they have in common.
pub const SHARING: usize = 32;

/// Words of a sum to which rows of `columns` values are added: one a value, and then one for each [`SHARING`] of them.
pub const fn sum_words(columns: usize) -> usize {
    columns + columns.div_ceil(SHARING)
}

/// Neurons of one dispatch of what completed, for each thread: what is left to compute when the last read has completed.
pub const COMPLETED_CLUSTER: usize = 4;

/// Dispatches of what completes in a layer, at most: some reads complete together.
pub const COMPLETED_DISPATCHES: usize = 3;

/// One in so many of a layer's neurons is considered for reading ahead: those not in memory, the most used first.
pub const PREFETCH_ONE_IN: usize = 3;

/// Share of a layer's reads that the layer before it prefetches, where no profile has it. *Assumed*, from the prototype's 80 %.
pub const PREFETCHED_FRACTION: f64 = 0.8;

/// Share of the prefetched reads that the layer then requests, where no profile has it. *Assumed*, from the prototype's 80 %.
pub const PREFETCHED_USED_FRACTION: f64 = 0.8;

/// Dispatches of a layer's attention: queries, keys and values together; the scores; the output matrix.
pub const ATTENTION_DISPATCHES: usize = 3;
/// Further ones where one vector is kept for all heads: queries of what they are made of; each head's own matrix before the scores, and
/// behind them.
pub const LATENT_DISPATCHES: usize = 3;

/// Passes over the residual stream that one thread makes per layer: two norms (read, read and write), two additions (two
/// reads and a write each), rotary positions.
pub const SERIAL_PASSES_PER_LAYER: usize = 13;

/// Passes over the neurons of the routed experts that one thread makes as it lists those requested: scores and ranks are
/// read, lists and scores are written.
pub const LIST_PASSES: usize = 4;

/// Passes over the sums of down that one thread makes: they are filled, and joined.
pub const SUMS_PASSES: usize = 2;

/// Passes over the logits that sampling makes: maximum, exponentials, the draw.
pub const SAMPLING_PASSES: usize = 3;

/// Sequences that may be in memory at a time, a token of each of which passes a layer together.
pub const SEQUENCES_MAX: usize = 8;

/// Rows that pass a layer together while decoding, at most: a token of each sequence, and the tokens of drafts.
pub const ROWS_MAX: usize = SEQUENCES_MAX;

/// Tokens of a draft, at most.
pub const DRAFT_TOKENS_MAX: usize = ROWS_MAX - 1;

/// Bytes that a row of a draft takes beside the engine for each token of the vocabulary: its logits.
pub const DRAFT_VOCABULARY_BYTES: u64 = 4;

/// Bytes that a sequence takes beside the engine, where a server answers in it: for each token of the vocabulary its logits, those
/// after its prompt, and the two words of each candidate for its next token.
pub const SEQUENCE_VOCABULARY_BYTES: u64 = 4 * 4;
/// Bytes that a sequence takes for each token of its context: that token, the request's, and eight bytes of the request's text.
pub const SEQUENCE_CONTEXT_BYTES: u64 = 4 + 4 + 8;
/// Bytes that a sequence takes for the rest of a request.
pub const SEQUENCE_BYTES: u64 = 64 << 10;

/// Rows of a prompt that an expert meets in one register of products; of the last, half are empty on average.
pub const REGISTER_ROWS: usize = 16;

/// Tokens of a chunk where `kernels.prompt_flops_per_second` is measured, and where `kernels.prompt_few_flops_per_second` is.
pub const PROMPT_TOKENS: [usize; 2] = [128, REGISTER_ROWS];

/// Tokens that are computed in the time that a chunk of a prompt takes beside its tokens, where no profile has it. *Assumed*:
/// weights are unpacked, and their scales met, once a chunk.
pub const CHUNK_TOKENS_ASSUMED: f64 = 16.0;

/// One value of a prompt in so many is not zero where `kernels.prompt_sparse_flops_per_second` is measured.
pub const PROMPT_ACTIVE_ONE_IN: usize = 8;
