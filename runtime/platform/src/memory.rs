//! Memory that is mapped once: anonymous pages, present, and locked where the system allows it.

pub use crate::system::memory::{Mapping, lockable_bytes, page_bytes, read_ahead};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_begins_where_it_is_asked_to_and_all_of_it_can_be_written() {
        let page = page_bytes();
        for (pages, align) in [(1, page), (3, page), (1024, 2 << 20), (1025, 2 << 20)] {
            let mut mapping = Mapping::new(pages * page, align).unwrap();
            assert!(mapping.first().addr().get().is_multiple_of(align) && mapping.bytes() == pages * page);
            mapping.populate(align > page).unwrap();
            let all = mapping.as_mut_slice();
            assert!(all.iter().all(|&byte| byte == 0));
            all.fill(7);
            assert_eq!(all.iter().map(|&byte| u64::from(byte)).sum::<u64>(), 7 * all.len() as u64);
        }
    }

    #[test]
    fn a_page_can_be_locked_unless_a_limit_forbids_it() {
        let mapping = Mapping::new(page_bytes(), page_bytes()).unwrap();
        let locked = mapping.lock();
        assert!(locked.is_ok() || lockable_bytes().is_some_and(|bytes| bytes < 1 << 20), "{locked:?}");
    }
}
