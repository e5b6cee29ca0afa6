// d: f16 | dmin: f16 | s[8] m[8]: 6 bits | fifth bits: 32 bytes | q: nibbles, 128 bytes
fn eight(block: u32, i: u32) -> Eight {
    let k = i / 4u;
    let j = 8u * (i % 4u);
    let low = nibbles(block + 48u + 32u * (k / 2u) + j, 4u * (k % 2u));
    let steps = sum(low, times(16.0, fields(block + 16u + j, k, 0x01010101u)));
    let scale = six_bits(block + 4u, k);
    return scaled(half(block) * scale.x, steps, -half(block + 2u) * scale.y);
}
