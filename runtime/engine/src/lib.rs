//! Runs language models that are larger than memory, by a plan.
//!
//! `profile` measures a machine and a model, `plan` decides what each core, byte and read does, and this
//! crate executes the plan. A model comes in a container written by `profile`; a plan comes in a file written
//! by `plan`.
//!
//! ```no_run
//! use flashplan::{Engine, Model, Plan, Sampler, Sampling};
//!
//! # fn main() -> Result<(), flashplan::Error> {
//! let plan = Plan::read("plan.toml")?;
//! let model = Model::open_for(&plan)?;
//! let engine = Engine::start(&model, &plan)?;
//!
//! let tokenizer = model.tokenizer();
//! let mut sampler = Sampler::new(Sampling::default())?;
//! let mut text = tokenizer.stream();
//! let mut session = engine.session()?;
//! session.prefill(&tokenizer.encode("Once upon a time", tokenizer.adds_bos()))?;
//! for token in session.generate(&mut sampler) {
//!     let token = token?;
//!     if tokenizer.is_end(token) {
//!         break;
//!     }
//!     print!("{}", text.push(token));
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`Engine::start`] makes every check that the program `run` makes. It refuses a plan for another model,
//! container, machine or schema, and names the difference. It maps all memory of the plan; decoding allocates
//! nothing. The engine computes and reads on its own threads, pinned to the plan's cores, and does not pin
//! the caller's thread. A [`StopHandle`] ends a call from another thread. Sessions own a handle of the
//! engine, so a struct or a thread can own a session.
//!
//! Plans with equal quality keys give equal logits, bit for bit, whatever their memory, threads and reads.
//!
//! [`internals`] has the parts that only flashplan's programs and tests use. It may change in any version.

mod draft;
mod engine;
mod error;
mod fit;
mod open;
mod plan;
mod recording;
mod routes;
mod sampler;
mod session;
mod stop;

mod transformer;

mod attention;
mod convolution;
mod delta_net;
mod embedding;
mod feed_forward;
mod kv;
mod pooling;
mod products;
mod recurrent;
mod stage;
mod state_space;

mod cache;
mod fetch;
mod level;
mod neurons;
mod visits;
mod weights;

mod arena;
mod flash;
mod machine;
mod pool;
mod probe;
mod walks;

mod container;
mod model;
mod moe;
mod predictor;
mod reference;
mod rotary;

pub use engine::Engine;
pub use error::{Error, Mismatch};
pub use model::tokenizer::{TextStream, Tokenizer};
pub use open::Model;
pub use plan::Plan;
pub use sampler::{Sampler, Sampling};
pub use session::{Batch, Generation, Session};
pub use stop::StopHandle;
pub use transformer::Counters;

#[cfg_attr(public_api, doc(hidden))]
pub mod internals {
    //! The parts of the engine that flashplan's programs are made of. `profile` times the engine's own
    //! kernels, reads and caches, and writes containers; `run` reports, serves and measures. Nothing here is
    //! stable.

    pub mod arena {
        //! All memory of a plan as one mapping, handed out as slabs.
        pub use crate::arena::*;
    }
    pub mod attention {
        //! Attention over keys and values, as decode and prefill compute it.
        pub use crate::attention::*;
    }
    pub mod cache {
        //! A layer's cache of neurons, under each policy.
        pub use crate::cache::*;
    }
    pub mod container {
        //! The container: its directory, its checksums, reading and writing it.
        pub use crate::container::*;
    }
    pub mod counters {
        //! Detailed counters: neurons by outcome, bytes through memory, time by stage.
        pub use crate::neurons::Activity;
        pub use crate::stage::{Stage, StageTimes, Traffic};
        pub use crate::transformer::{Detail, UnitWork, accumulate, detail, detail_mut};
    }
    pub mod draft {
        //! Drafts: guesses of the next tokens from earlier text.
        pub use crate::draft::*;
    }
    pub mod engine {
        //! Views into a model, a plan, an engine and its sequences that embedders do not need.
        pub use crate::engine::{EngineExt, Visited, start_beside};
        pub use crate::open::container;
        pub use crate::plan::contract;
        pub use crate::probe::Probe;
        pub use crate::session::BatchExt;
        pub use crate::transformer::{Aside, Fallback};
    }
    pub mod fetch {
        //! Demand reads and prefetch reads, and a replay of them without compute.
        pub use crate::fetch::*;
    }
    pub mod flash {
        //! Reads from a device through `pread` or `io_uring`.
        pub use crate::flash::*;
    }
    pub mod kv {
        //! Keys and values of a sequence.
        pub use crate::kv::*;
    }
    pub mod machine {
        //! This machine's identity, and the memory that the process uses.
        pub use crate::machine::*;
    }
    pub mod moe {
        //! The router's choice of experts.
        pub use crate::moe::*;
    }
    pub mod pooling {
        //! Text embeddings, pooled from the hidden states of the tokens.
        pub use crate::pooling::*;
    }
    pub mod pool {
        //! Compute threads on a plan's cores.
        pub use crate::pool::*;
    }
    pub mod predictor {
        //! Predictors of active neurons.
        pub use crate::predictor::*;
    }
    pub mod products {
        //! Products of a prompt's rows with a matrix.
        pub use crate::products::*;
    }
    pub mod recording {
        //! Recorded routes, and files of them.
        pub use crate::recording::*;
        pub use crate::routes::*;
    }
    pub mod reference {
        //! A slow, obvious reference of the whole model.
        pub use crate::reference::*;
    }
    pub mod walks {
        //! Loops of the engine's kernels over memory, to be timed.
        pub use crate::walks::*;
    }
    pub mod rotary {
        //! Rotary frequencies, computed once for a model.
        pub use crate::rotary::*;
    }
    pub mod model {
        //! Model files.
        pub use crate::model::*;
    }
}

#[cfg(test)]
mod tests {
    /// Libraries that programs link and embedders should not have to.
    const OF_PROGRAMS: [&str; 5] = ["clap", "csv", "ctrlc", "indicatif", "plotters"];

    /// Names of the libraries that a crate links, by its manifest.
    fn linked(manifest: &str) -> Vec<&str> {
        let sections = manifest.split("\n[").filter_map(|section| section.split_once("]\n"));
        let linked = sections.filter(|(name, _)| *name == "dependencies" || name.ends_with(".dependencies"));
        let names =
            linked.flat_map(|(_, lines)| lines.lines()).filter_map(|line| line.split(['.', ' ', '=']).next());
        names.filter(|name| !name.is_empty()).collect()
    }

    #[test]
    fn the_engine_links_no_library_of_the_programs() {
        for (name, manifest) in [
            ("flashplan", include_str!("../Cargo.toml")),
            ("kernels", include_str!("../../kernels/Cargo.toml")),
            ("plans", include_str!("../../../plans/Cargo.toml")),
        ] {
            let linked = linked(manifest);
            assert!(linked.contains(&"thiserror"), "{name} links {linked:?}");
            let wrong: Vec<_> = OF_PROGRAMS.into_iter().filter(|library| linked.contains(library)).collect();
            assert!(wrong.is_empty(), "{name} links {wrong:?}: they belong into the programs");
        }
        assert_eq!(
            linked("[package]\nname = \"x\"\n\n[dependencies]\ncsv.workspace = true\nclap = \"4\"\n"),
            ["csv", "clap"]
        );
    }
}
