// Sums over groups of LANES threads through memory of the workgroup: for devices without subgroups, and to
// test other sizes than the device's own.
var<workgroup> exchanged: array<f32, THREADS>;

fn lanes_sum(value: f32, thread: u32) -> f32 {
    let lane = thread % LANES;
    exchanged[thread] = value;
    workgroupBarrier();
    for (var step = LANES / 2u; step > 0u; step /= 2u) {
        if lane < step {
            exchanged[thread] += exchanged[thread + step];
        }
        workgroupBarrier();
    }
    let all = exchanged[thread - lane];
    workgroupBarrier();
    return all;
}
