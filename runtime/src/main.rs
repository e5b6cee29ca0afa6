//! runtime
fn main() {}
