// e: a byte | q: nibbles
fn eight(block: u32, i: u32) -> Eight {
    let e = byte(block);
    let scale = bitcast<f32>(select((e - 1u) << 23u, 0x00200000u << (e & 1u), e < 2u));
    return times(scale, looked_up(TWICE_E2M1, block + 1u + 8u * (i % 2u), 4u * (i / 2u)));
}
