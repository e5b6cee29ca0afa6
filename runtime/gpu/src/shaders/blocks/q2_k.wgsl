// s[16] m[16]: nibbles of a byte | q: 2 bits, 64 bytes | d: f16 | dmin: f16
fn eight(block: u32, i: u32) -> Eight {
    let k = i / 4u;
    let q = fields(block + 16u + 32u * (k / 4u) + 8u * (i % 4u), 2u * (k % 4u), 0x03030303u);
    let s = byte(block + i / 2u);
    return scaled(half(block + 80u) * f32(s & 15u), q, -half(block + 82u) * f32(s >> 4u));
}
