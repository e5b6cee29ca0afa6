// d: f16 | g: u8, 4 a part | a part: four upper 3 bits of g, s: 3 bits, a sign
fn eight(block: u32, i: u32) -> Eight {
    let upper = pair(block + 34u + 2u * (i / 4u));
    let g = byte(block + 2u + i) | (((upper >> (3u * (i % 4u))) & 7u) << 8u);
    let shift = select(1.0, -1.0, upper >> 15u == 1u);
    let s = (upper >> 12u) & 7u;
    return times(half(block) * (2.0 * f32(s) + 1.0) * 0.125, scaled(1.0, point(GRID, g), shift));
}
