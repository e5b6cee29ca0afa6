//! Storage formats: the blocks of a row of weights.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A storage format of weights. A row of `n` values is `n / block_values()` blocks, back to back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Format {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of single precision.
    BF16,
    /// 32 signed bytes under one half-precision scale (ggml's `Q8_0`, 34 bytes a block).
    #[serde(rename = "Q8_0")]
    Q8_0,
    /// 32 nibbles, offset by 8, under one half-precision scale (ggml's `Q4_0`, 18 bytes a block).
    #[serde(rename = "Q4_0")]
    Q4_0,
    /// `Q4_0` groups: 128 nibbles behind the scales of their four blocks, 72 bytes; only our own files have it.
    #[serde(rename = "Q4_0x4")]
    Q4_0X4,
    /// 256 six-bit values, offset by 32, in sixteens that have a byte as their scale, all under one half-precision
    /// scale (ggml's `Q6_K`, 210 bytes a block).
    #[serde(rename = "Q6_K")]
    Q6K,
    /// 256 nibbles, in groups of 32 that have six-bit scales and minima under two in half precision (ggml's `Q4_K`, 144
    /// bytes a block).
    #[serde(rename = "Q4_K")]
    Q4K,
}

impl Format {
    /// Every format, in the order of decreasing size; of two of one size, what holds values worse comes first.
    pub const ALL: [Self; 8] =
        [Self::F32, Self::F16, Self::BF16, Self::Q8_0, Self::Q6K, Self::Q4_0, Self::Q4_0X4, Self::Q4K];

    /// Values in one block; a row's length is a multiple of it.
    pub const fn block_values(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q8_0 | Self::Q4_0 => 32,
            Self::Q4_0X4 => 128,
            Self::Q6K | Self::Q4K => 256,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q8_0 => 34,
            Self::Q4_0 => 18,
            Self::Q4_0X4 => 72,
            Self::Q6K => 210,
            Self::Q4K => 144,
        }
    }

    /// Whether values come in blocks under a scale: whole numbers, which vectors of 8 bits can meet.
    pub const fn has_blocks(self) -> bool {
        self.block_values() > 1
    }

    /// Whether blocks are of 256 values, in groups with scales of their own.
    pub const fn is_k(self) -> bool {
        matches!(self, Self::Q6K | Self::Q4K)
    }

    /// Bytes of a row of `values` values.
    ///
    /// # Panics
    /// If `values` is not a multiple of [`Format::block_values`]: readers check that at the door.
    pub const fn row_bytes(self, values: usize) -> usize {
        // kernels need this for every row, and a division takes a tenth of the time of a row
        let block = self.block_values();
        debug_assert!(block.is_power_of_two(), "a division by it is a shift");
        assert!(values & (block - 1) == 0, "a row is whole blocks");
        (values >> block.trailing_zeros()) * self.block_bytes()
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::Q8_0 => "Q8_0",
            Self::Q4_0 => "Q4_0",
            Self::Q4_0X4 => "Q4_0x4",
            Self::Q6K => "Q6_K",
            Self::Q4K => "Q4_K",
        })
    }
}
