// d: f16 | upper 2 bits of s[8] | lower 4 bits of s[8] | q: nibbles, 16 bytes a part
fn eight(block: u32, i: u32) -> Eight {
    let k = i / 4u;
    let lower = (byte(block + 4u + k / 2u) >> (4u * (k % 2u))) & 15u;
    let upper = (pair(block + 2u) >> (2u * k)) & 3u;
    let scale = half(block) * (f32(lower | (upper << 4u)) - 32.0);
    return times(scale, looked_up(UNEVEN, block + 8u + 16u * k + 8u * (i % 2u), 4u * (i / 2u % 2u)));
}
