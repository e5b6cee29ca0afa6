// d: f16 | dmin: f16 | s[8] m[8]: 6 bits | q: nibbles, 32 bytes of two groups
fn eight(block: u32, i: u32) -> Eight {
    let k = i / 4u;
    let q = nibbles(block + 16u + 32u * (k / 2u) + 8u * (i % 4u), 4u * (k % 2u));
    let scale = six_bits(block + 4u, k);
    return scaled(half(block) * scale.x, q, -half(block + 2u) * scale.y);
}
