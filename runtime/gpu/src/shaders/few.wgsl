// Few vectors: a workgroup computes ROWS rows with VECTORS vectors. Its threads take eight columns each, in
// turn, and add up their sums at the end: first the lanes of a subgroup, then the subgroups.
var<workgroup> partial: array<f32, GROUPS * ROWS * VECTORS>;

@compute @workgroup_size(THREADS)
fn products(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
{{lane_builtins}}
) {
{{lane_lets}}
    let first_row = workgroup.x * ROWS;
    // the rows and vectors behind the last one are computed as the last one, and not written
{{starts}}
{{sums}}
    for (var first = 0u; first < task.eights; first += THREADS) {
        let e = first + thread;
        if e < task.eights {
{{adds}}
        }
    }
{{lane_sums}}
    workgroupBarrier();
    let row = first_row + thread / VECTORS;
    let vector = thread % VECTORS;
    if thread < ROWS * VECTORS && row < task.rows && vector < task.vectors {
        var result = 0.0;
        for (var group = 0u; group < groups; group++) {
            result += partial[group * ROWS * VECTORS + thread];
        }
        outputs[task.offset + vector * task.stride + row] = result;
    }
}
