// upper bits: 32 bytes | q: 2 bits, 64 bytes | s[16]: 6 bits | d: f16
fn eight(block: u32, i: u32) -> Eight {
    let k = i / 4u;
    let j = 8u * (i % 4u);
    let low = fields(block + 32u + 32u * (k / 4u) + j, 2u * (k % 4u), 0x03030303u);
    let steps = sum(low, scaled(4.0, fields(block + j, k, 0x01010101u), -4.0));
    let n = i / 2u;
    let lower = (byte(block + 96u + n % 8u) >> (4u * (n / 8u))) & 15u;
    let upper = (byte(block + 104u + n % 4u) >> (2u * (n / 4u))) & 3u;
    return times(half(block + 108u) * (f32(lower | (upper << 4u)) - 32.0), steps);
}
