//! Command lines, output and progress, shared by the programs of flashplan.
//!
//! | module | what it does |
//! |---|---|
//! | [`command`] | reads the command line; `--help`, `--completions` and man pages |
//! | [`output`] | text on standard output and standard error, quiet when the reader is gone |
//! | [`rows`] | tables |
//! | [`progress`] | progress of a job: bars on a terminal, a line a minute elsewhere |
//! | [`interrupt`] | Ctrl-C and termination, also while a pipe is waited for |
//! | [`log`] | the log of `--verbose` |
//!
//! Standard output is for results, standard error for everything else.

pub mod command;
pub mod interrupt;
pub mod log;
pub mod output;
pub mod progress;
pub mod rows;

pub use output::{say, tell};
pub use progress::{Bar, Progress};
pub use rows::Rows;
