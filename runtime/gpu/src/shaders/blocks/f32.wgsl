// Eight consecutive values: a block of 32 bytes.
fn eight(block: u32, i: u32) -> Eight {
    let a = vec4<u32>(aligned(block), aligned(block + 4u), aligned(block + 8u), aligned(block + 12u));
    let b = vec4<u32>(aligned(block + 16u), aligned(block + 20u), aligned(block + 24u), aligned(block + 28u));
    return Eight(bitcast<vec4<f32>>(a), bitcast<vec4<f32>>(b));
}
