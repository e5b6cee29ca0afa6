// Eight consecutive values, each the upper half of a float: a block of 16 bytes.
fn two_floats(four: u32) -> vec2<f32> {
    return bitcast<vec2<f32>>(vec2<u32>(four << 16u, four & 0xffff0000u));
}

fn eight(block: u32, i: u32) -> Eight {
    return Eight(
        vec4<f32>(two_floats(word(block)), two_floats(word(block + 4u))),
        vec4<f32>(two_floats(word(block + 8u)), two_floats(word(block + 12u))),
    );
}
