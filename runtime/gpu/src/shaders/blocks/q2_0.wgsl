// d: f16 | q: 2 bits, four of a byte
fn eight(block: u32, i: u32) -> Eight {
    let q = vec4<u32>(pair(block + 2u + 2u * i)) >> vec4<u32>(0u, 2u, 4u, 6u);
    let steps = Eight(vec4<f32>(q & vec4<u32>(3u)), vec4<f32>((q >> vec4<u32>(8u)) & vec4<u32>(3u)));
    return times(half(block), scaled(1.0, steps, -1.0));
}
