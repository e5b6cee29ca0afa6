// Eight values of a row that begins at byte `row`.
fn weights(row: u32, e: u32) -> Eight {
    return eight(row + e / EIGHTS * BLOCK_BYTES, e % EIGHTS);
}
