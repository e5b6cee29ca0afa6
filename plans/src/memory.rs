//! The sizes of a plan's regions and their sum.
//!
//! The planner prices memory with these functions, and the runtime maps exactly that much. So a plan's sums are true by
//! construction (equation 4 of the paper; its terms are ours).

use crate::engine::{
    ADDED, DRAFT_VOCABULARY_BYTES, SEQUENCE_BYTES, SEQUENCE_CONTEXT_BYTES, SEQUENCE_VOCABULARY_BYTES, SUMS,
    TRANSPOSED, TRANSPOSED_WORDS, rounded_words, sum_words,
};
use crate::layout::Part;
use crate::model::{Architecture, Heads, LevelKind, Model};
use crate::plan::{MemoryPlan, Plan};
use crate::{Backend, Device, KvFormat, PAGE_BYTES, Policy};

/// The choices of a plan that decide its memory.
#[derive(Debug, Clone, Copy)]
pub struct Choices<'a> {
    /// The quality level's kind.
    pub kind: LevelKind,
    /// The level's resident bytes: predictors or gate rows.
    pub level_resident_bytes: u64,
    /// Pinned neurons per layer.
    pub hot_neurons: &'a [u32],
    /// Slots per layer.
    pub cold_slots: &'a [u32],
    /// The cache policy.
    pub policy: Policy,
    /// Neurons of a slice, which are inserted and evicted together.
    pub slice_neurons: u64,
    /// Context length.
    pub context_tokens: u64,
    /// Sequences in memory; each adds a row to the decoding batch.
    pub sequences: u64,
    /// Storage format of keys and values.
    pub kv: KvFormat,
    /// Tokens of a draft; each adds a row to the decoding batch.
    pub draft_tokens: u64,
    /// Compute threads.
    pub compute_threads: u64,
    /// The back end that reads flash.
    pub backend: Backend,
    /// Reads in flight; 0 for a process that reads nothing.
    pub depth: u64,
    /// Neurons of a prompt computed together.
    pub cluster_neurons: u64,
    /// Prompt tokens that pass a layer together.
    pub chunk_tokens: u64,
    /// I/O buffers.
    pub buffers: u64,
    /// Bytes of an I/O buffer.
    pub buffer_bytes: u64,
    /// Whether rows of the token embedding are read when their token comes.
    pub embedding_rows: bool,
    /// Bytes that `run --serve` takes and frees while it answers, such as grammars.
    pub reserve_bytes: u64,
    /// Bytes that a unit takes of the process.
    pub unit_bytes: u64,
}

impl Choices<'_> {
    /// Rows that pass a layer together while decoding.
    pub fn rows(&self) -> u64 {
        self.sequences + self.draft_tokens
    }
}

/// Bytes of the embedding that stay in the file while its rows are read one by one: whole pages.
pub fn embedding_left_bytes(embedding_bytes: u64) -> u64 {
    embedding_bytes / PAGE_BYTES * PAGE_BYTES
}

/// Bytes of the buffer for a row of the embedding: the most pages that a row touches.
pub fn embedding_buffer_bytes(row_bytes: u64) -> u64 {
    row_bytes.next_multiple_of(PAGE_BYTES) + PAGE_BYTES
}

/// The part of a bundle that a cache slot holds at a level.
pub fn slot_part(kind: LevelKind) -> Part {
    match kind {
        LevelKind::ExactGate | LevelKind::GateThreshold => Part::UpDown,
        LevelKind::Dense | LevelKind::Sign | LevelKind::LowRank => Part::Whole,
    }
}

/// Bytes of keys and values, or of the vectors in their place, that one token of context takes.
pub fn kv_bytes_per_token(a: &Architecture, format: KvFormat) -> u64 {
    kv_bytes_of(a, a.storing_heads(), format)
}

/// Bytes of keys and values that a token reads for each token of context: more than are stored where layers share them.
pub fn kv_read_bytes_per_token(a: &Architecture, format: KvFormat) -> u64 {
    kv_bytes_of(a, a.reading_heads(), format)
}

fn kv_bytes_of(a: &Architecture, heads: impl Iterator<Item = Heads>, format: KvFormat) -> u64 {
    let of_shape = |heads: Heads| {
        let rows = u64::from(heads.layers) * u64::from(a.kept_rows()) * u64::from(heads.kv_heads);
        rows.saturating_mul(format.row_bytes(heads.head_width.into()))
    };
    heads.map(of_shape).fold(0, u64::saturating_add)
}

/// Bytes of the buffer for a row of the per-layer embedding; 0 without one.
pub fn per_layer_buffer_bytes(a: &Architecture) -> u64 {
    a.per_layer.map_or(0, |per_layer| embedding_buffer_bytes(per_layer.row_bytes))
}

/// [`kv_bytes_per_token`] as a plan has it: 0 where all layers have the same heads.
pub fn kv_token_bytes(a: &Architecture, format: KvFormat) -> u64 {
    let is_uniform = a.kv_layers() == a.layers && a.other_heads.is_empty() && a.latent.is_none();
    if is_uniform { 0 } else { kv_bytes_per_token(a, format) }
}

/// Bytes of a sequence's recurrent state: the current one, and a copy from the end of its last prompt, to go back to.
pub fn state_bytes(a: &Architecture) -> u64 {
    a.state_values().saturating_mul(2 * 4)
}

/// Bytes that a sequence takes beside the engine.
fn sequence_bytes(a: &Architecture, context_tokens: u64) -> u64 {
    SEQUENCE_BYTES
        + SEQUENCE_CONTEXT_BYTES * context_tokens
        + SEQUENCE_VOCABULARY_BYTES * u64::from(a.vocabulary)
}

/// Elements (of four bytes) of each activation buffer; the runtime takes exactly these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Activations {
    /// Rows of a decoding step: a token of each sequence, and the tokens of a draft.
    pub decode: Rows,
    /// Rows of a chunk of a prompt. They overlap the cold region.
    pub prompt: Rows,
    /// Approximation of the next layer's input, for look-ahead, `[width]`.
    pub next_input: u64,
    /// Each decoding row rounded to 8 bits, twice. A row has at most the width, attention's width, a shared expert's neurons or 4096.
    pub rounded: u64,
    /// Predictor scores and the selected positions, `[2, routed neurons]`; for several rows their union and its owners,
    /// `[2, rows, neurons of a layer]`.
    pub candidates: u64,
    /// Predictor hidden layer and sign bits; at most the width or 4096, four times.
    pub predictor: u64,
    /// Requested positions, their slots, and the positions computed next, `[4, neurons of a layer]`.
    pub requested: u64,
    /// Quantised down rows that wait to be added as a group, `[rows, `[`ADDED`]`, width]`, where down is transposed.
    pub waiting: u64,
    /// Rounded values of the requested neurons, where down is not transposed: [`rounded_words`] of `[routed neurons]`.
    pub values_rounded: u64,
    /// Logits, `[rows, vocabulary]`.
    pub logits: u64,
}

/// Elements (of four bytes) of the buffers that grow with the rows of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// Residual stream, `[rows, width]`.
    pub residual: u64,
    /// Normalised input of a block, `[rows, width]`.
    pub normed: u64,
    /// A block's output, `[rows, width]`.
    pub block_output: u64,
    /// Projections of the token mixer: queries with their gates, keys and values; or `[rows, projected_values]` of a recurrent layer
    /// or latent attention. A shared expert reuses the buffer: `[rows, width + 2 shared_neurons]`. So do per-layer embeddings, two of
    /// their widths a row, and low-rank branches beside the token mixer.
    pub projections: u64,
    /// Result of the token mixer before its output matrix: `[rows, heads * head_width]` of the widest heads, or a recurrent layer's
    /// `[rows, mixed_values]`.
    pub attended: u64,
    /// Cosines and sines of the rotary position, `[rotary embeddings, rows, head_width]` of the widest head.
    pub rotations: u64,
    /// Router logits and the weight of each expert, `[2, rows + 1, experts]`.
    pub router: u64,
    /// Neuron values. Decoding: `[routed neurons]`, for several rows `[rows, neurons of a layer]`.
    ///
    /// A prompt has `[cluster, rows]`. The cluster has at least [`TRANSPOSED`] neurons and a rounded copy where
    /// [`Architecture::transposes_down`]; where down is not transposed, at least a slice and a packed copy.
    pub neurons: u64,
    /// Sums of a feed-forward block. Decoding with transposed down: `[rows, `[`SUMS`]`, `[`sum_words`]`(width)]`. A mixture's prompt:
    /// `[rows * experts used, width]`.
    pub sums: u64,
    /// Rows of a prompt by expert, `[rows * experts used]`.
    pub members: u64,
    /// A mixture's prompt, packed by expert, `[rows * experts used, width]`.
    pub gathered: u64,
    /// Embeddings, `[rows, width]`, and per-layer embeddings or rows of n-grams, `[rows, row_values]`, where there are any.
    pub own_inputs: u64,
    /// Residual streams, `[rows, streams, width]`, where there are several.
    pub streams: u64,
    /// Blocks of positions that attention has chosen, and their scores, `[rows, 2, blocks]`, where it chooses.
    pub chosen: u64,
}

/// Whether this many buffers hold [`TRANSPOSED`] neurons wherever a window of reads begins: one read may be used in part.
pub fn hold_transposed(buffers: u64, buffer_bytes: u64, stride_bytes: u64) -> bool {
    let each = (buffer_bytes.saturating_sub(PAGE_BYTES) / stride_bytes.max(1)).max(1);
    buffers.saturating_sub(1).saturating_mul(each) >= TRANSPOSED as u64
}

impl Activations {
    /// The buffers for these shapes.
    pub fn new(a: &Architecture, c: &Choices<'_>) -> Self {
        let (width, chunk) = (u64::from(a.width), c.chunk_tokens);
        let members = chunk * u64::from(a.experts_used);
        let gathered = if a.experts > 1 { members * width } else { 0 };
        let transposed = if a.transposes_down() { TRANSPOSED_WORDS as u64 } else { 0 };
        let cluster = if a.down_transposed {
            c.cluster_neurons.max(transposed)
        } else {
            c.cluster_neurons.max(c.slice_neurons).saturating_mul(2)
        };
        let rows = c.rows();
        // nine bytes are sixteen nibbles and their scale's share
        let waiting = rows * (ADDED as u64 * width * 9 / 16).div_ceil(4);
        let sums = rows * (SUMS * sum_words(width as usize)) as u64;
        let neurons = if rows > 1 { rows * a.neurons() } else { a.neurons_routed() };
        let by_rows = |words: u64| if a.down_transposed { words } else { 0 };
        let rounded = rounded_words(a.neurons_routed() as usize) as u64;
        Self {
            decode: Rows { neurons, sums: by_rows(sums), ..Rows::new(a, rows) },
            prompt: Rows {
                neurons: chunk.saturating_mul(cluster),
                sums: gathered,
                members,
                gathered,
                ..Rows::new(a, chunk)
            },
            next_input: width,
            rounded: 2 * rows * width.max(mixed_values(a)).max(u64::from(a.shared_neurons)).max(4096),
            candidates: 2 * neurons,
            predictor: 4 * width.max(4096),
            requested: 4 * a.neurons(),
            waiting: by_rows(waiting),
            values_rounded: rounded - by_rows(rounded),
            logits: rows * u64::from(a.vocabulary),
        }
    }

    /// Bytes of all buffers but the prompt's: each aligned to cache lines, the sum to pages.
    pub fn bytes(&self) -> u64 {
        let Self {
            decode,
            prompt: _,
            next_input,
            rounded,
            candidates,
            predictor,
            requested,
            waiting,
            values_rounded,
            logits,
        } = *self;
        let single = [next_input, rounded, candidates, predictor, requested, waiting, values_rounded, logits];
        on_pages(single.into_iter().chain(decode.elements()))
    }
}

impl Rows {
    /// The buffers that decoding and prefill share; all others are empty.
    fn new(a: &Architecture, rows: u64) -> Self {
        let width = u64::from(a.width);
        let gates = if a.gated_attention { 2 } else { 1 };
        let attended = widest(a, |heads| gates * heads.query_width() + 2 * heads.kv_width());
        let recurrent = a.recurrent.map_or(0, |recurrent| recurrent.projected_values.into());
        let latent = a.latent.map_or(0, |latent| latent.projected_values.into());
        let shared = if a.shared_neurons == 0 { 0 } else { width + 2 * u64::from(a.shared_neurons) };
        let (own, own_inputs) = a.per_layer.map_or((0, 0), |per_layer| {
            (2 * u64::from(per_layer.width), width + u64::from(per_layer.row_values))
        });
        let (streams, branch) = a.streams.map_or((0, 0), |streams| {
            (width * u64::from(streams.count), u64::from(streams.projected_values))
        });
        Self {
            residual: rows * width,
            normed: rows * width,
            block_output: rows * width,
            projections: rows * attended.max(recurrent).max(latent).max(shared).max(own).max(branch),
            attended: rows * mixed_values(a),
            rotations: rows * u64::from(a.rotary_embeddings) * widest(a, |heads| heads.head_width.into()),
            router: 2 * (rows + 1) * u64::from(a.experts),
            neurons: 0,
            sums: 0,
            members: 0,
            gathered: 0,
            own_inputs: rows * own_inputs,
            streams: rows * streams,
            chosen: rows * 2 * u64::from(a.chosen_blocks),
        }
    }

    /// Elements of each buffer, in memory order; each buffer starts on a cache line.
    pub fn elements(&self) -> [u64; 14] {
        let Self {
            residual,
            normed,
            block_output,
            projections,
            attended,
            rotations,
            router,
            neurons,
            sums,
            members,
            gathered,
            own_inputs,
            streams,
            chosen,
        } = *self;
        [
            residual,
            normed,
            block_output,
            projections,
            attended,
            rotations,
            own_inputs,
            streams,
            chosen,
            router,
            neurons,
            sums,
            members,
            gathered,
        ]
    }

    /// Bytes of all buffers, rounded up to pages.
    pub fn bytes(&self) -> u64 {
        on_pages(self.elements().into_iter())
    }
}

/// Input width of the widest output matrix: attention's, a recurrent layer's, or the widest step of latent attention before it.
fn mixed_values(a: &Architecture) -> u64 {
    let recurrent = a.recurrent.map_or(0, |recurrent| recurrent.mixed_values.into());
    let latent = a.latent.map_or(0, |latent| latent.mixed_values.into());
    widest(a, Heads::query_width).max(recurrent).max(latent)
}

/// The largest of a figure over the head shapes of all layers.
fn widest(a: &Architecture, of: impl Fn(&Heads) -> u64) -> u64 {
    a.reading_heads().map(|heads| of(&heads)).max().unwrap_or(0)
}

/// Bytes of buffers with these elements: each aligned to cache lines, the sum to pages.
fn on_pages(elements: impl Iterator<Item = u64>) -> u64 {
    elements
        .map(|elements| elements.saturating_mul(4).checked_next_multiple_of(64).unwrap_or(u64::MAX))
        .fold(0, u64::saturating_add)
        .checked_next_multiple_of(PAGE_BYTES)
        .unwrap_or(u64::MAX)
}

/// Table bytes of a neuron: two checksums and a position in its expert's list, four bytes each, and its expert, two.
const NEURON_TABLES_BYTES: u64 = 3 * 4 + 2;
/// Table bytes of a slice: a slot number.
const SLICE_TABLES_BYTES: u64 = 4;

/// Bytes of the tables that say where each neuron is.
///
/// They have an entry for each neuron and each slice, and the cache policy's own ([`slots_tables_bytes`]). Where rows of an embedding
/// are read, each has a checksum of four bytes.
pub fn tables_bytes(a: &Architecture, c: &Choices<'_>) -> u64 {
    let of_layer = |(&hot, &cold): (&u32, &u32)| {
        slots_tables_bytes(a, c.policy, c.slice_neurons, u64::from(hot), u64::from(cold))
    };
    let slots: u64 = c.hot_neurons.iter().zip(c.cold_slots).map(of_layer).sum();
    (slotless_tables_bytes(a, c.slice_neurons, c.embedding_rows) + slots).next_multiple_of(PAGE_BYTES)
}

/// Bytes of the tables of a layer with `hot` pinned neurons and `cold` slots, in whole slices.
pub fn slots_tables_bytes(a: &Architecture, policy: Policy, slice_neurons: u64, hot: u64, cold: u64) -> u64 {
    policy.tables_bytes(a.neurons() / slice_neurons, hot / slice_neurons, cold / slice_neurons)
}

/// The part of [`tables_bytes`] that does not depend on the cache, not rounded up to pages.
pub fn slotless_tables_bytes(a: &Architecture, slice_neurons: u64, embedding_rows: bool) -> u64 {
    let vocabulary = u64::from(a.vocabulary);
    let per_layer = a.per_layer.map_or(0, |per_layer| per_layer.rows.unwrap_or(vocabulary));
    let rows = if embedding_rows { vocabulary } else { 0 } + per_layer;
    let slices = a.neurons() / slice_neurons;
    u64::from(a.layers) * (a.neurons() * NEURON_TABLES_BYTES + slices * SLICE_TABLES_BYTES) + rows * 4
}

/// Every region of a plan with these choices. `limit_bytes` is copied, not checked.
pub fn regions(device: &Device, model: &Model, c: &Choices<'_>, limit_bytes: u64) -> MemoryPlan {
    let a = &model.architecture;
    let slot_bytes = |layer| model.bundle(layer).part_bytes(slot_part(c.kind));
    let slots = |counts: &[u32]| {
        let of_layer = |(layer, &count): (usize, &u32)| u64::from(count) * slot_bytes(layer);
        counts.iter().enumerate().map(of_layer).sum::<u64>().next_multiple_of(PAGE_BYTES)
    };
    let embedding = model.parts.embedding_bytes;
    let (left, row_buffer) = if c.embedding_rows {
        let row_bytes = embedding / u64::from(a.vocabulary).max(1);
        (embedding_left_bytes(embedding), embedding_buffer_bytes(row_bytes))
    } else {
        (0, 0)
    };
    let activations = Activations::new(a, c);
    let mut memory = MemoryPlan {
        limit_bytes,
        process_bytes: device.capacity.process_bytes
            + c.compute_threads * device.capacity.thread_bytes
            + backend_bytes(device, c)
            + model.parts.tokenizer_bytes
            // of each sequence but the first, which every run has
            + (c.sequences - 1) * sequence_bytes(a, c.context_tokens)
            + c.draft_tokens * DRAFT_VOCABULARY_BYTES * u64::from(a.vocabulary),
        reserve_bytes: c.reserve_bytes,
        fixed_bytes: (model.parts.fixed_bytes - left + c.level_resident_bytes).next_multiple_of(PAGE_BYTES),
        hot_bytes: slots(c.hot_neurons),
        cold_bytes: slots(c.cold_slots),
        kv_bytes: (c.sequences * c.context_tokens * kv_bytes_per_token(a, c.kv)).next_multiple_of(PAGE_BYTES),
        kv_token_bytes: kv_token_bytes(a, c.kv),
        state_bytes: c.sequences.saturating_mul(state_bytes(a)).next_multiple_of(PAGE_BYTES),
        activations_bytes: activations.bytes(),
        prompt_bytes: activations.prompt.bytes(),
        io_buffers_bytes: c.buffers * c.buffer_bytes + row_buffer + per_layer_buffer_bytes(a),
        tables_bytes: tables_bytes(a, c),
        unit_bytes: c.unit_bytes.next_multiple_of(PAGE_BYTES),
        page_tables_bytes: 0,
        decode_total_bytes: 0,
        prefill_total_bytes: 0,
    };
    memory.page_tables_bytes = page_tables_bytes(memory.prefill_sum());
    memory.decode_total_bytes = memory.decode_sum();
    memory.prefill_total_bytes = memory.prefill_sum();
    memory
}

/// Bytes of a back end without its buffers: a thread for each read in flight, or the rings.
fn backend_bytes(device: &Device, c: &Choices<'_>) -> u64 {
    match c.backend {
        Backend::Pread => c.depth * device.capacity.thread_bytes,
        Backend::IoUring => ring_bytes(c.depth, c.buffers * c.buffer_bytes),
    }
}

/// Bytes that the kernel keeps for an io_uring with `depth` reads in flight and `buffers_bytes` registered; an upper bound.
///
/// The reads are rounded up to a power of two. Each takes 64 bytes of submission, 32 of completion, 4 of index, and less than 900 of
/// kernel records. Each registered page takes 16 bytes, and the heads take four pages. There is no thread and no stack.
pub fn ring_bytes(depth: u64, buffers_bytes: u64) -> u64 {
    if depth == 0 {
        return 0;
    }
    let reads = depth.next_power_of_two() << 10;
    let registered = buffers_bytes.div_ceil(PAGE_BYTES) * 16;
    (reads + registered + 4 * PAGE_BYTES).next_multiple_of(PAGE_BYTES)
}

/// Bytes of the page tables of `mapped_bytes`: eight for each page, and the levels above.
pub fn page_tables_bytes(mapped_bytes: u64) -> u64 {
    (mapped_bytes / 500 + 4 * PAGE_BYTES).next_multiple_of(PAGE_BYTES)
}

/// The choices of a finished plan.
pub fn choices_of(plan: &Plan, level_resident_bytes: u64) -> Choices<'_> {
    Choices {
        kind: plan.quality.kind,
        level_resident_bytes,
        hot_neurons: &plan.cache.hot_neurons,
        cold_slots: &plan.cache.cold_slots,
        policy: plan.cache.policy,
        slice_neurons: u64::from(plan.cache.slice_neurons),
        context_tokens: u64::from(plan.context.tokens),
        sequences: u64::from(plan.context.sequences),
        kv: plan.quality.kv(),
        draft_tokens: u64::from(plan.draft_tokens()),
        compute_threads: plan.decode.compute_cores.len().max(plan.prefill.compute_cores.len()) as u64,
        backend: plan.read.backend,
        depth: u64::from(plan.read.depth),
        cluster_neurons: u64::from(plan.prefill_cluster_neurons()),
        chunk_tokens: u64::from(plan.prefill.chunk_tokens),
        buffers: u64::from(plan.read.buffers),
        buffer_bytes: plan.read.buffer_bytes,
        embedding_rows: plan.read.embedding_rows,
        reserve_bytes: plan.memory.reserve_bytes,
        unit_bytes: plan.memory.unit_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_hold_a_block_of_neurons_wherever_a_window_begins() {
        // by counting: neurons from any byte on whose pages fit the buffers, one of which is partly used
        for (stride, buffer_bytes) in
            [(8192, 8192), (8192, 1 << 16), (6912, 1 << 14), (256, 8192), (4097, 1 << 16)]
        {
            for buffers in 1..=40 {
                let fits = |first: u64| {
                    let pages = |count: u64| {
                        let end = (first + count * stride).next_multiple_of(PAGE_BYTES);
                        end - first / PAGE_BYTES * PAGE_BYTES
                    };
                    (1..).take_while(|&count| count == 1 || pages(count) <= buffer_bytes).last().unwrap_or(1)
                };
                let each = (0..PAGE_BYTES).map(fits).min().unwrap_or(1);
                let held = (buffers - 1) * each;
                assert_eq!(
                    hold_transposed(buffers, buffer_bytes, stride),
                    held >= TRANSPOSED as u64,
                    "{stride} {buffers}"
                );
            }
        }
    }

    #[test]
    fn a_ring_takes_no_stacks_and_less_than_threads_would() {
        assert_eq!(ring_bytes(0, 1 << 20), 0, "no reads, no ring");
        // 32 reads, 16 bytes for each of 256 pages, four pages
        assert_eq!(ring_bytes(32, 1 << 20), (32 << 10) + 4096 + 4 * PAGE_BYTES);
        assert_eq!(ring_bytes(33, 0), ring_bytes(64, 0), "the kernel rounds up");
        for depth in [1, 8, 64, 1024] {
            assert!(ring_bytes(depth, depth << 16) < (depth + 1) * (64 << 10));
        }
    }
}
