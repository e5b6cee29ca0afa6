//! Back ends that read flash.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A back end that reads flash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// Positioned reads by a pool of threads, one for each read in flight. Every system has it.
    Pread,
    /// Asynchronous reads that the decoding thread starts and reaps itself. Some kernels and containers refuse it.
    IoUring,
}

impl Backend {
    /// All back ends.
    pub const ALL: [Self; 2] = [Self::Pread, Self::IoUring];

    /// Name of the back end in the files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pread => "pread",
            Self::IoUring => "io-uring",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
