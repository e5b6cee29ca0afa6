// Eight consecutive values: a block of 16 bytes.
fn two_halves(four: u32) -> vec2<f32> {
    return vec2<f32>(from_half(four & 0xffffu), from_half(four >> 16u));
}

fn eight(block: u32, i: u32) -> Eight {
    return Eight(
        vec4<f32>(two_halves(word(block)), two_halves(word(block + 4u))),
        vec4<f32>(two_halves(word(block + 8u)), two_halves(word(block + 12u))),
    );
}
