// d: f16 | q: bits
fn eight(block: u32, i: u32) -> Eight {
    let q = byte(block + 2u + i);
    return times(half(block), scaled(2.0, Eight(bits(q), bits(q >> 4u)), -1.0));
}
