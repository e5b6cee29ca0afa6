// d: f16 | q: nibbles
fn eight(block: u32, i: u32) -> Eight {
    let q = nibbles(block + 2u + 8u * (i % 2u), 4u * (i / 2u));
    return times(half(block), scaled(1.0, q, -8.0));
}
