// d: f16 | q: nibbles
fn eight(block: u32, i: u32) -> Eight {
    return times(half(block), looked_up(UNEVEN, block + 2u + 8u * (i % 2u), 4u * (i / 2u)));
}
