//! The planner as a whole: against brute force, as properties, by its explanations and its command line.

mod cases;
mod command;
mod cores;
mod decisions;
mod documents;
mod explains;
mod grid;
mod independent;
mod kv_formats;
mod learned;
mod oracle;
mod paper;
mod per_layer;
mod properties;
mod rates;
mod slices;
mod small;
mod together;
#[path = "../../examples/support/wide.rs"]
mod wide;
