//! The cost model: one small function for each equation, in the paper's order.
//!
//! Equations are numbered as in PowerInfer-2 (v1), section 5. *Stated*: in its text. *Reconstructed*:
//! its formulas exist only as pictures; ours are rebuilt from the prose.
//!
//! The engine that is priced does, per layer and token: attention (dense); selection, by router and predictor; starts
//! the reads of what is missing; with look-ahead names what the next layer will request, and starts some of its reads
//! after its own; computes the values (gate and up) of what is in memory, then of what completes; and when all has completed
//! the sums (down) and the copies into the cache:
//!
//! ```text
//! t_token = t_serial + sum over layers of max(t_before + max(t_look_ahead + t_gate_up, t_io + t_drain) + t_after,
//!                                             t_io + t_io of what was prefetched)
//! before: attention, selection      after: sums, insert
//! ```
//!
//! The first term is the chain of a layer's own stages. The second is the device, which with look-ahead is also busy
//! before and after: each layer is priced as if the one before were like it, so that its price depends on nothing but
//! its own share of memory. Without look-ahead the second term is never the greater.
//!
//! Differs from equation 2 (`t_dec = t_comp`): decoding is bound by memory bandwidth in RAM and by flash below that, so
//! that both stand, and what cannot overlap stands beside them.
//!
//! | file | equations |
//! |---|---|
//! | `token` | 1, 2, 6: a token, from its stages and reads |
//! | `stages` | 7, 8, 11: what a layer computes and moves |
//! | `rates`, `hardware`, `units` | 9: cores, kernels, units beside the CPU |
//! | `reads`, `joined`, `read_curves` (made monotone by `isotonic`) | 10: reads |
//! | `misses` | 10: how much of what is requested is missing |
//! | `prompt`, `gpu` | a prompt, and the GPU's part of it |
//! | `terms`, `together`, `speculation` | the same in parts for `run`; several sequences; drafts |
//!
//! Equations 3 to 5 are limits: cores in `cores.rs`, memory in `room.rs`, speed in `pricing.rs`.

pub mod token;

pub mod stages;

pub mod gpu;
pub mod hardware;
pub mod rates;
pub mod units;

pub mod isotonic;
mod joined;
pub mod read_curves;
pub mod reads;

pub mod misses;

pub mod prompt;

pub mod speculation;
pub mod terms;
pub mod together;

pub use plans::plan::mean_position;
pub use plans::terms::Work;

pub use self::gpu::Gpu;
pub use self::prompt::{PromptChoice, PromptLayers, PromptPrice, prompt_check_seconds, visited};
pub use self::rates::rates;
pub use self::stages::{
    attention, check_seconds, context, context_seconds, down, gate_up, insert_seconds, look_ahead, predictor,
    requested, requested_neurons, rest, stages,
};
pub use self::token::{Decision, DecodePrice, decode, embedding_row_seconds, embedding_seconds};
