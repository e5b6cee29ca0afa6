// d: f16 | m: f16 | q: nibbles
fn eight(block: u32, i: u32) -> Eight {
    return scaled(half(block), nibbles(block + 4u + 8u * (i % 2u), 4u * (i / 2u)), half(block + 2u));
}
