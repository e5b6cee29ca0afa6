//! What the figures of a run are called. `plan` tells what it expects under the names under which `run` tells what happened: one
//! name, one figure.

/// Tokens decoded in a second.
pub const DECODE: &str = "decode";
/// Tokens decoded in a second where drafts are verified.
pub const WITH_DRAFTS: &str = "decode, with drafts";
/// Tokens that a step of decoding brings: one, and those of a draft that are kept.
pub const TOKENS_PER_STEP: &str = "tokens a step";
/// Time of a decoded token that half of them, nine in ten, and 99 in a hundred do not exceed.
pub const TOKEN: [&str; 3] = ["token, P50", "token, P90", "token, P99"];
/// Prompt tokens taken in a second.
pub const PREFILL: &str = "prefill";
/// Time of a prompt, after the start.
pub const FIRST_TOKEN: &str = "time to first token";
/// Time from the start of the engine until it takes its first prompt.
pub const START: &str = "start";
/// Bytes of flash read for a decoded token.
pub const READ: &str = "read per token";
/// Share of the neurons requested that were in memory.
pub const FOUND: &str = "found in memory";
/// Bytes of the whole process at its most.
pub const PEAK: &str = "peak memory";
/// Change of perplexity by the quality level.
pub const CHANGE: &str = "perplexity change";

/// A time for people: `2.41 ms`, `53 ms`, `1.3 s`.
pub fn duration(seconds: f64) -> String {
    match seconds {
        ..0.01 => format!("{:.2} ms", seconds * 1e3),
        ..1.0 => format!("{:.0} ms", seconds * 1e3),
        _ => format!("{seconds:.1} s"),
    }
}
