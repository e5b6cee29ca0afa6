// d: f16 | g: u8, 8 a part | upper bit of g | signs, 4 a part | s[8]: 4 bits
fn eight(block: u32, i: u32) -> Eight {
    let k = i / 4u;
    let l = i % 4u;
    let upper = byte(block + 66u + k) >> (2u * l);
    let first = byte(block + 2u + 2u * i) | ((upper & 1u) << 8u);
    let second = byte(block + 3u + 2u * i) | ((upper & 2u) << 7u);
    let s = (byte(block + 106u + k / 2u) >> (4u * (k % 2u))) & 15u;
    let steps = negated(two_points(GRID, first, second), byte(block + 74u + i));
    return times(half(block) * (2.0 * f32(s) + 1.0), steps);
}
