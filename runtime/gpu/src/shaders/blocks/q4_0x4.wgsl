// d[4]: f16 | q[4]: nibbles, 16 bytes each
fn eight(block: u32, i: u32) -> Eight {
    let q = nibbles(block + 8u + 16u * (i / 4u) + 8u * (i % 2u), 4u * (i / 2u % 2u));
    return times(half(block + 2u * (i / 4u)), scaled(1.0, q, -8.0));
}
