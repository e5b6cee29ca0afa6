// d: f16 | q: 32 bytes
fn eight(block: u32, i: u32) -> Eight {
    let q = block + 2u + 8u * i;
    return times(half(block), Eight(signed_bytes(word(q)), signed_bytes(word(q + 4u))));
}
