//! Tests of `room.rs`.

use super::*;

#[test]
fn the_regions_within_a_limit_fill_it_and_one_byte_more_does_not_fit() {
    for limit in [1 << 20, 26_214_400, (12 << 30) + 4097, 1 << 42] {
        let regions = regions_within(limit);
        assert!(with_page_tables(regions) as u64 <= limit, "{limit}");
        assert!(with_page_tables(regions + 1) as u64 > limit, "{limit}");
    }
    assert_eq!(regions_within(100), 0);
}

#[test]
fn rows_lie_over_slots_and_regions_on_pages() {
    let room = Room { bytes: 10 * 4096, rows: 3 * 4096, tables: 100 };
    let need = |hot, cold, tables| Need { hot, cold, tables };
    assert_eq!(room.taken(need(4097, 4096, 0)), (2 + 3 + 1) * 4096);
    assert_eq!(room.taken(need(4097, 4 * 4096 + 1, 3996)), (2 + 5 + 1) * 4096);
    assert!(room.fits(need(6 * 4096, 12288, 0)) && !room.fits(need(6 * 4096 + 1, 12288, 0)));
    assert_eq!(room.budgets(), [10 * 4096 - 100, 7 * 4096 - 100]);
}
