// The reference: a thread multiplies one row with one vector, column after column.
@compute @workgroup_size(THREADS)
fn products(@builtin(global_invocation_id) at: vec3<u32>) {
    if at.x >= task.rows || at.y >= task.vectors {
        return;
    }
    let row = (task.first_row + at.x) * task.row_bytes;
    var result = 0.0;
    for (var e = 0u; e < task.eights; e++) {
        let x = 2u * (at.y * task.eights + e);
        result = add_eight(weights(row, e), vectors[x], vectors[x + 1u], result);
    }
    outputs[task.offset + at.y * task.stride + at.x] = result;
}
