//! Names of figures: `plan` prints expected figures under the names of the measured figures of `run`.

/// Decoded tokens per second.
pub const DECODE: &str = "decode";
/// Decoded tokens per second with drafts.
pub const WITH_DRAFTS: &str = "decode, with drafts";
/// Tokens per decoding step: one, and the accepted tokens of a draft.
pub const TOKENS_PER_STEP: &str = "tokens a step";
/// Percentiles of the time of a decoded token.
pub const TOKEN: [&str; 3] = ["latency P50", "latency P90", "latency P99"];
/// Prompt tokens per second.
pub const PREFILL: &str = "prefill";
/// Time of a prompt, without the start.
pub const FIRST_TOKEN: &str = "time to first token";
/// Time until the engine accepts a prompt.
pub const START: &str = "startup";
/// Bytes read from flash per decoded token.
pub const READ: &str = "disk read per token";
/// Fraction of the requested neurons that were in memory.
pub const FOUND: &str = "cache hit rate";
/// Peak memory of the whole process.
pub const PEAK: &str = "peak memory";
/// Change of perplexity at the quality level.
pub const CHANGE: &str = "perplexity change";

/// A time for people: `2.41 ms`, `53 ms`, `1.3 s`.
pub fn duration(seconds: f64) -> String {
    match seconds {
        ..0.01 => format!("{:.2} ms", seconds * 1e3),
        ..1.0 => format!("{:.0} ms", seconds * 1e3),
        _ => format!("{seconds:.1} s"),
    }
}
