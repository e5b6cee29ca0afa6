// d: f16 | g: u8, 8 a part | a part: four times 7 signs, s: 4 bits
fn eight(block: u32, i: u32) -> Eight {
    let signs = word(block + 66u + 4u * (i / 4u));
    let seven = (signs >> (7u * (i % 4u))) & 127u;
    let steps = two_points(GRID, byte(block + 2u + 2u * i), byte(block + 3u + 2u * i));
    return times(half(block) * (f32(signs >> 28u) + 0.5) * 0.5, negated(steps, eight_signs(seven)));
}
