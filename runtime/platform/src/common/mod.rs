//! Parts that the platforms other than Linux share.
#![cfg_attr(windows, allow(dead_code, reason = "Windows pins threads"))]

pub(crate) mod absent;
pub(crate) mod anonymous;
pub(crate) mod missing;
pub(crate) mod sleep;
pub(crate) mod unpinned;
