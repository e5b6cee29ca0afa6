// Many vectors: a workgroup computes a tile of 64 rows and 64 vectors, 32 columns at a time. Both tiles lie in
// memory of the workgroup, so each weight is unpacked once for 64 vectors. A thread computes four rows, 16
// apart, with four vectors, 16 apart.
const TILE = 64u;
const STEP = 4u;           // eights of a row in a tile
const FOURS = 2u * STEP;   // vectors of four

var<workgroup> w_tile: array<vec4<f32>, TILE * FOURS>;
var<workgroup> x_tile: array<vec4<f32>, TILE * FOURS>;

// The place of four columns of a row. Rows are shuffled, so that threads that read the same columns of
// neighbouring rows use different banks of memory.
fn place(row: u32, four: u32) -> u32 {
    return row * FOURS + (four ^ (row % FOURS));
}

@compute @workgroup_size(256)
fn products(@builtin(workgroup_id) tile: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first_row = tile.x * TILE;
    let first_vector = tile.y * TILE;
    let r = thread % 16u;
    let v = thread / 16u;
    let loaded = thread % TILE; // the row and the vector that this thread loads
    let piece = thread / TILE;  // and which eight of theirs
    let row = (task.first_row + first_row + loaded) * task.row_bytes;
    let vector = (first_vector + loaded) * task.eights;
    let has_row = first_row + loaded < task.rows;
    let has_vector = first_vector + loaded < task.vectors;
{{sums}}
    for (var start = 0u; start < task.eights; start += STEP) {
        let e = start + piece;
        var w = Eight();
        if has_row && e < task.eights {
            w = weights(row, e);
        }
        var x = Eight();
        if has_vector && e < task.eights {
            x = Eight(vectors[2u * (vector + e)], vectors[2u * (vector + e) + 1u]);
        }
        w_tile[place(loaded, 2u * piece)] = w.a;
        w_tile[place(loaded, 2u * piece + 1u)] = w.b;
        x_tile[place(loaded, 2u * piece)] = x.a;
        x_tile[place(loaded, 2u * piece + 1u)] = x.b;
        workgroupBarrier();
        for (var four = 0u; four < FOURS; four++) {
{{adds}}
        }
        workgroupBarrier();
    }
{{writes}}
}

fn write(row: u32, vector: u32, value: f32) {
    if row < task.rows && vector < task.vectors {
        outputs[task.offset + vector * task.stride + row] = value;
    }
}
