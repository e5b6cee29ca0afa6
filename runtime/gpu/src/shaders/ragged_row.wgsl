// Eight values of a row that begins at byte `row`. Rows of formats without blocks may end inside of eight.
fn weights(row: u32, e: u32) -> Eight {
    let stored = eight(row + e * BLOCK_BYTES, 0u);
    let inside = vec4<u32>(0u, 1u, 2u, 3u) + vec4<u32>(8u * e) < vec4<u32>(task.columns);
    let inside_too = vec4<u32>(4u, 5u, 6u, 7u) + vec4<u32>(8u * e) < vec4<u32>(task.columns);
    let none = vec4<f32>(0.0);
    return Eight(select(none, stored.a, inside), select(none, stored.b, inside_too));
}
