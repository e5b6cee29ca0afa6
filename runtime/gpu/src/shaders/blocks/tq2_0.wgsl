// q: 2 bits, 64 bytes | d: f16
fn eight(block: u32, i: u32) -> Eight {
    let k = i / 4u;
    let q = fields(block + 32u * (k / 4u) + 8u * (i % 4u), 2u * (k % 4u), 0x03030303u);
    return times(half(block + 64u), scaled(1.0, q, -1.0));
}
