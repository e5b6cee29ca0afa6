//! planner
pub mod candidates;
pub mod cost;
pub mod encode;
pub mod error;
pub mod groups;
pub mod hardware;
pub mod problem;
pub mod reads;
pub mod request;
pub mod solve;
pub mod surface;
pub mod tables;
