//! Parts that the platforms other than Linux share.

pub(crate) mod absent;
pub(crate) mod anonymous;
pub(crate) mod missing;
pub(crate) mod sleep;
#[cfg(unix)]
pub(crate) mod unpinned;
