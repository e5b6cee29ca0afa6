// g: u8, 4 a part | upper 3 bits of g and a sign, 4 a part | s[16]: 3 bits, d: 4 bits four times
fn eight(block: u32, i: u32) -> Eight {
    let upper = byte(block + 32u + i / 2u) >> (4u * (i % 2u));
    let shift = select(-1.0, 1.0, (upper & 8u) == 0u);
    let g = byte(block + i) | ((upper & 7u) << 8u);
    let n = i / 2u;
    let s = (pair(block + 48u + 2u * (n / 4u)) >> (3u * (n % 4u))) & 7u;
    let low = (pair(block + 48u) >> 12u) | ((pair(block + 50u) >> 12u) << 4u);
    let high = (pair(block + 52u) >> 12u) | ((pair(block + 54u) >> 12u) << 4u);
    let d = from_half(low | (high << 8u));
    return times(d * (2.0 * f32(s) + 1.0) * 0.125, scaled(1.0, point(GRID, g), shift));
}
