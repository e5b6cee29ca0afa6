// e[4]: E4M3 | q: nibbles, 8 bytes a sixteen: the lower ones first
fn half_e4m3(bits: u32) -> f32 {
    let exponent = (bits >> 3u) & 15u;
    let mantissa = bits & 7u;
    let normal = bitcast<f32>(((exponent + 119u) << 23u) | (mantissa << 20u));
    let size = select(normal, f32(mantissa) / 1024.0, exponent == 0u);
    return select(size, 0.0, bits == 0x7fu);
}

fn eight(block: u32, i: u32) -> Eight {
    let scale = half_e4m3(byte(block + i / 2u));
    return times(scale, looked_up(TWICE_E2M1, block + 4u + 8u * (i / 2u), 4u * (i % 2u)));
}
