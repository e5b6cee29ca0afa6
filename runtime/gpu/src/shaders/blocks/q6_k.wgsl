// low: nibbles, 128 bytes | high: 2 bits, 64 bytes | s[16]: i8 | d: f16
fn eight(block: u32, i: u32) -> Eight {
    let n = i / 16u;           // of two halves
    let quarter = i / 4u % 4u; // of a half
    let j = 8u * (i % 4u);
    let low = nibbles(block + 64u * n + 32u * (quarter % 2u) + j, 4u * (quarter / 2u));
    let high = fields(block + 128u + 32u * n + j, 2u * quarter, 0x03030303u);
    let scale = f32(bitcast<i32>(byte(block + 192u + i / 2u) << 24u) >> 24u);
    return times(half(block + 208u) * scale, sum(low, scaled(16.0, high, -32.0)));
}
