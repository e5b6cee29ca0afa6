//! `profile`, and the way from it over `plan` to `run` and `score`: every command on models of this repository.

#![expect(clippy::unwrap_used, clippy::missing_assert_message, reason = "tests, whose values say it")]

mod architectures;
mod ceiling;
mod chain;
mod chat;
mod cli;
mod drafts;
mod fetch;
mod goldens;
mod hub;
mod instant;
mod limits;
mod model;
mod programs;
mod proofs;
mod resume;
mod routes;
mod serve;
#[expect(dead_code, reason = "the hub's own tests use the rest of it")]
#[path = "../../hub/tests/server/mod.rs"]
mod server;
mod tiny;
