// d: f16 | g: u8, 4 a part | signs, 4 a part | upper 2 bits of g | s[16]: 4 bits
fn eight(block: u32, i: u32) -> Eight {
    let k = i / 4u;
    let l = i % 4u;
    let g = byte(block + 2u + i) | (((byte(block + 66u + k) >> (2u * l)) & 3u) << 8u);
    let s = (byte(block + 74u + k) >> (4u * (l / 2u))) & 15u;
    return times(half(block) * (f32(s) + 0.5) * 0.25, negated(point(GRID, g), byte(block + 34u + i)));
}
