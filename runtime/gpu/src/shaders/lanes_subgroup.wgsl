// Sums over the lanes of a subgroup, whose size the device chooses.
fn lanes_sum(value: f32, thread: u32) -> f32 {
    return subgroupAdd(value);
}
