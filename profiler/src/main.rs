//! profiler
fn main() {}
