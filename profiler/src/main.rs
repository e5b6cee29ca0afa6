//! `profile`: measures a machine and a model.
fn main() {}
