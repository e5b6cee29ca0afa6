//! Everything that flashplan asks of an operating system, in one place.
//!
//! Each module below is one idea with the same functions on every platform. [`MISSING`] lists the guarantees that this platform cannot
//! give; `profile --check` and the report name them.
//!
//! | folder | platform |
//! |---|---|
//! | `linux` | Linux, complete |
//! | `macos` | macOS; takes from `posix` what is the same |
//! | `windows` | Windows |
//! | `posix` | any other Unix; Linux, too, if built with `--cfg flashplan_portable`, which tests this code there |
//!
//! It knows no plan, no model and no kernel.

#[cfg(unix)]
mod unix;

#[cfg_attr(all(target_os = "linux", not(flashplan_portable)), path = "linux/mod.rs")]
#[cfg_attr(all(target_os = "macos", not(flashplan_portable)), path = "macos/mod.rs")]
#[cfg_attr(windows, path = "windows/mod.rs")]
#[cfg_attr(
    any(all(unix, flashplan_portable), not(any(target_os = "linux", target_os = "macos", windows))),
    path = "posix/mod.rs"
)]
mod system;

#[cfg(all(target_os = "macos", not(flashplan_portable)))]
#[expect(dead_code, unreachable_pub, unused_imports, reason = "macOS takes a part of it")]
mod posix;

#[cfg(not(all(target_os = "linux", not(flashplan_portable))))]
mod common;
mod error;
mod types;

pub mod affinity;
pub mod file;
pub mod machine;
pub mod memory;
pub mod page_cache;
pub mod process;
pub mod signal;
pub mod socket;
pub mod terminal;
pub mod wait;

/// A guarantee of flashplan that a platform cannot give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing {
    /// Name of the guarantee.
    pub name: &'static str,
    /// Consequence of its absence.
    pub consequence: &'static str,
}

/// Name of the platform, as users know it.
pub const NAME: &str = system::NAME;

/// The guarantees that this platform cannot give; none on Linux.
pub const MISSING: &[Missing] = system::MISSING;
