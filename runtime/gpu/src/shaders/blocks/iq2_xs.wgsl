// d: f16 | four a part: g: 9 bits, 7 signs | s[16]: 4 bits
fn eight(block: u32, i: u32) -> Eight {
    let q = pair(block + 2u + 2u * i);
    let s = (byte(block + 66u + i / 4u) >> (4u * (i / 2u % 2u))) & 15u;
    return times(half(block) * (f32(s) + 0.5) * 0.25, negated(point(GRID, q & 511u), eight_signs(q >> 9u)));
}
