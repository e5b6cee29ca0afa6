// d: f16 | a part: four g: u8, four times 7 signs, s: 4 bits
fn eight(block: u32, i: u32) -> Eight {
    let part = block + 2u + 8u * (i / 4u);
    let signs = word(part + 4u);
    let seven = (signs >> (7u * (i % 4u))) & 127u;
    let steps = negated(point(GRID, byte(part + i % 4u)), eight_signs(seven));
    return times(half(block) * (f32(signs >> 28u) + 0.5) * 0.25, steps);
}
