// d: f16 | m: f16 | fifth bits: 4 bytes | q: nibbles
fn eight(block: u32, i: u32) -> Eight {
    let fifth = aligned(block + 4u) >> (8u * i);
    let low = nibbles(block + 8u + 8u * (i % 2u), 4u * (i / 2u));
    let steps = sum(low, times(16.0, Eight(bits(fifth), bits(fifth >> 4u))));
    return scaled(half(block), steps, half(block + 2u));
}
