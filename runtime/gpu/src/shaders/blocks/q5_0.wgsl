// d: f16 | fifth bits: 4 bytes | q: nibbles
fn eight(block: u32, i: u32) -> Eight {
    let fifth = byte(block + 2u + i);
    let low = nibbles(block + 6u + 8u * (i % 2u), 4u * (i / 2u));
    return times(half(block), sum(low, scaled(16.0, Eight(bits(fifth), bits(fifth >> 4u)), -16.0)));
}
