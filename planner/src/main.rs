//! planner
fn main() {}
