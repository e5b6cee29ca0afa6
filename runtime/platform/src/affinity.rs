//! The cores that a thread may use.
//!
//! Where the platform cannot pin threads, [`PINS`] is false: a set still names cores that exist, and the system chooses among all.

pub use crate::system::affinity::CoreSet;

/// Whether threads stay on the cores that they are restricted to.
pub const PINS: bool = crate::system::affinity::PINS;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_restricted_to_its_first_core_and_back() {
        let all = CoreSet::current().unwrap();
        let first = all.cores()[0];
        let one = CoreSet::of(&[first]).unwrap();
        assert!(all.contains(first) && one.contains(first));
        one.restrict_this_thread().unwrap();
        let restricted = CoreSet::current().unwrap();
        assert_eq!(restricted == one, PINS || all == one);
        all.restrict_this_thread().unwrap();
        assert_eq!(CoreSet::current().unwrap(), all);
        assert!(CoreSet::of(&[u32::MAX]).is_err());
    }
}
