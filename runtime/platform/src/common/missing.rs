//! The guarantees that platforms other than Linux lack, each with what follows.
#![allow(dead_code, reason = "no platform lacks all of them")]

use crate::Missing;

pub(crate) const AFFINITY: Missing = Missing {
    name: "pinned threads",
    consequence: "the system moves threads between cores, so speeds vary more than the plan says",
};
pub(crate) const PAGE_CACHE: Missing = Missing {
    name: "page cache in the memory limit",
    consequence: "the limit covers the process alone: pages of files that the system keeps are beyond it",
};
pub(crate) const DIRECT: Missing =
    Missing { name: "direct reads", consequence: "reads go through the page cache" };
pub(crate) const URING: Missing =
    Missing { name: "io_uring", consequence: "threads read, which takes more processor time a read" };
pub(crate) const HUGE_PAGES: Missing =
    Missing { name: "huge pages", consequence: "the system alone decides on the size of pages" };
pub(crate) const GROUP_MEMORY: Missing = Missing {
    name: "memory of the control group",
    consequence: "no group enforces the plan's limit, and the peak is that of the process",
};
pub(crate) const GROUP_PROCESSORS: Missing =
    Missing { name: "processors of the control group", consequence: "no group limits them" };
pub(crate) const OTHERS: Missing = Missing {
    name: "processor time of others",
    consequence: "a disturbed measurement is not noticed, and not repeated",
};
pub(crate) const LOCKED: Missing =
    Missing { name: "locked memory", consequence: "the system may swap a plan's memory out" };
