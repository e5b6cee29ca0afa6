//! Storage formats: the blocks of a row of weights.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A storage format of weights. A row of `n` values is `n / block_values()` blocks, back to back.
///
/// Names and blocks are ggml's unless noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Format {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of single precision.
    BF16,
    /// 32 signed bytes under one half-precision scale.
    #[serde(rename = "Q8_0")]
    Q8_0,
    /// 256 six-bit values, offset by 32, in groups of 16 with a scale of a byte each, under one
    /// half-precision scale.
    #[serde(rename = "Q6_K")]
    Q6K,
    /// 32 five-bit values with a scale and a minimum in half precision.
    #[serde(rename = "Q5_1")]
    Q5_1,
    /// 32 five-bit values, offset by 16, under one half-precision scale.
    #[serde(rename = "Q5_0")]
    Q5_0,
    /// 256 five-bit values, in groups of 32 that have six-bit scales and minima under two in half precision.
    #[serde(rename = "Q5_K")]
    Q5K,
    /// 32 nibbles with a scale and a minimum in half precision.
    #[serde(rename = "Q4_1")]
    Q4_1,
    /// 32 nibbles, offset by 8, under one half-precision scale.
    #[serde(rename = "Q4_0")]
    Q4_0,
    /// `Q4_0` in groups: the scales of four blocks, then their 128 nibbles, 72 bytes. Only flashplan's own
    /// files use it.
    #[serde(rename = "Q4_0x4")]
    Q4_0X4,
    /// 32 nibbles that select one of sixteen non-uniform steps, under one half-precision scale.
    #[serde(rename = "IQ4_NL")]
    Iq4Nl,
    /// 64 four-bit floats (E2M1), in groups of 16 with a seven-bit float (E4M3) as scale.
    #[serde(rename = "NVFP4")]
    Nvfp4,
    /// 256 nibbles, in groups of 32 that have six-bit scales and minima under two in half precision.
    #[serde(rename = "Q4_K")]
    Q4K,
    /// 32 four-bit floats (E2M1) under a power of two.
    #[serde(rename = "MXFP4")]
    Mxfp4,
    /// 256 nibbles that select one of sixteen non-uniform steps, in groups of 32 with six-bit scales under
    /// one half-precision scale.
    #[serde(rename = "IQ4_XS")]
    Iq4Xs,
    /// 256 three-bit values, offset by 4, in groups of 16 with six-bit scales under one half-precision scale.
    #[serde(rename = "Q3_K")]
    Q3K,
    /// 256 values: every four are a point of a grid of 512 and four signs. Groups of 32 have four-bit scales.
    #[serde(rename = "IQ3_S")]
    Iq3S,
    /// 256 values: every four are a point of a grid of 256. Every eight have seven stored signs. Groups of 32
    /// have four-bit scales.
    #[serde(rename = "IQ3_XXS")]
    Iq3Xxs,
    /// 256 two-bit values, in groups of 16 with four-bit scales and minima under two in half precision.
    #[serde(rename = "Q2_K")]
    Q2K,
    /// 256 values: every eight are a point of a grid of 1024 and eight signs. Groups of 16 have four-bit
    /// scales.
    #[serde(rename = "IQ2_S")]
    Iq2S,
    /// 256 values: every eight are a point of a grid of 512 and seven stored signs. Groups of 16 have
    /// four-bit scales.
    #[serde(rename = "IQ2_XS")]
    Iq2Xs,
    /// 64 two-bit values, offset by 1, under one half-precision scale.
    #[serde(rename = "Q2_0")]
    Q2_0,
    /// 256 ternary values, in two bits each, under one half-precision scale.
    #[serde(rename = "TQ2_0")]
    Tq2_0,
    /// 256 values: every eight are a point of a grid of 256 and seven stored signs. Groups of 32 have
    /// four-bit scales.
    #[serde(rename = "IQ2_XXS")]
    Iq2Xxs,
    /// 256 values: every eight are a point of a grid of 2048 and a shift. Groups of 16 have three-bit scales.
    #[serde(rename = "IQ1_M")]
    Iq1M,
    /// 256 ternary values, five to a byte, under one half-precision scale.
    #[serde(rename = "TQ1_0")]
    Tq1_0,
    /// 256 values: every eight are a point of a grid of 2048. Groups of 32 have three-bit scales and a shift.
    #[serde(rename = "IQ1_S")]
    Iq1S,
    /// 128 signs under one half-precision scale.
    #[serde(rename = "Q1_0")]
    Q1_0,
}

impl Format {
    /// Every format, by decreasing size; of two equal sizes, the less accurate one comes first.
    pub const ALL: [Self; 29] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q8_0,
        Self::Q6K,
        Self::Q5_1,
        Self::Q5_0,
        Self::Q5K,
        Self::Q4_1,
        Self::Q4_0,
        Self::Q4_0X4,
        Self::Iq4Nl,
        Self::Nvfp4,
        Self::Q4K,
        Self::Mxfp4,
        Self::Iq4Xs,
        Self::Q3K,
        Self::Iq3S,
        Self::Iq3Xxs,
        Self::Q2K,
        Self::Iq2S,
        Self::Iq2Xs,
        Self::Q2_0,
        Self::Tq2_0,
        Self::Iq2Xxs,
        Self::Iq1M,
        Self::Tq1_0,
        Self::Iq1S,
        Self::Q1_0,
    ];

    /// The name in files and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::Q8_0 => "Q8_0",
            Self::Q6K => "Q6_K",
            Self::Q5_1 => "Q5_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5K => "Q5_K",
            Self::Q4_1 => "Q4_1",
            Self::Q4_0 => "Q4_0",
            Self::Q4_0X4 => "Q4_0x4",
            Self::Iq4Nl => "IQ4_NL",
            Self::Q4K => "Q4_K",
            Self::Mxfp4 => "MXFP4",
            Self::Iq4Xs => "IQ4_XS",
            Self::Q3K => "Q3_K",
            Self::Iq3S => "IQ3_S",
            Self::Iq3Xxs => "IQ3_XXS",
            Self::Q2K => "Q2_K",
            Self::Iq2S => "IQ2_S",
            Self::Iq2Xs => "IQ2_XS",
            Self::Iq2Xxs => "IQ2_XXS",
            Self::Nvfp4 => "NVFP4",
            Self::Q2_0 => "Q2_0",
            Self::Tq2_0 => "TQ2_0",
            Self::Iq1M => "IQ1_M",
            Self::Tq1_0 => "TQ1_0",
            Self::Iq1S => "IQ1_S",
            Self::Q1_0 => "Q1_0",
        }
    }

    /// ggml's number of the format in GGUF files; `None` for flashplan's own formats.
    pub const fn ggml_type(self) -> Option<u32> {
        match self {
            Self::F32 => Some(0),
            Self::F16 => Some(1),
            Self::Q4_0 => Some(2),
            Self::Q4_1 => Some(3),
            Self::Q5_0 => Some(6),
            Self::Q5_1 => Some(7),
            Self::Q8_0 => Some(8),
            Self::Q2K => Some(10),
            Self::Q3K => Some(11),
            Self::Q4K => Some(12),
            Self::Q5K => Some(13),
            Self::Q6K => Some(14),
            Self::Iq2Xxs => Some(16),
            Self::Iq2Xs => Some(17),
            Self::Iq3Xxs => Some(18),
            Self::Iq1S => Some(19),
            Self::Iq4Nl => Some(20),
            Self::Iq3S => Some(21),
            Self::Iq2S => Some(22),
            Self::Iq4Xs => Some(23),
            Self::Iq1M => Some(29),
            Self::BF16 => Some(30),
            Self::Tq1_0 => Some(34),
            Self::Tq2_0 => Some(35),
            Self::Mxfp4 => Some(39),
            Self::Nvfp4 => Some(40),
            Self::Q1_0 => Some(41),
            Self::Q2_0 => Some(42),
            Self::Q4_0X4 => None,
        }
    }

    /// The format with this ggml number.
    pub fn of_ggml_type(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.ggml_type() == Some(number))
    }

    /// Values in one block; row lengths are multiples of it.
    pub const fn block_values(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q8_0 | Self::Q5_1 | Self::Q5_0 | Self::Q4_1 | Self::Q4_0 | Self::Iq4Nl | Self::Mxfp4 => 32,
            Self::Nvfp4 | Self::Q2_0 => 64,
            Self::Q4_0X4 | Self::Q1_0 => 128,
            Self::Q6K | Self::Q5K | Self::Q4K | Self::Iq4Xs | Self::Q3K | Self::Iq3S => 256,
            Self::Iq3Xxs | Self::Q2K | Self::Iq2S | Self::Iq2Xs | Self::Iq2Xxs => 256,
            Self::Tq2_0 | Self::Iq1M | Self::Tq1_0 | Self::Iq1S => 256,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q8_0 => 34,
            Self::Q6K => 210,
            Self::Q5_1 => 24,
            Self::Q5_0 => 22,
            Self::Q5K => 176,
            Self::Q4_1 => 20,
            Self::Q4_0 | Self::Iq4Nl | Self::Q2_0 | Self::Q1_0 => 18,
            Self::Nvfp4 => 36,
            Self::Q4_0X4 => 72,
            Self::Q4K => 144,
            Self::Mxfp4 => 17,
            Self::Iq4Xs => 136,
            Self::Q3K | Self::Iq3S => 110,
            Self::Iq3Xxs => 98,
            Self::Q2K => 84,
            Self::Iq2S => 82,
            Self::Iq2Xs => 74,
            Self::Tq2_0 | Self::Iq2Xxs => 66,
            Self::Iq1M => 56,
            Self::Tq1_0 => 54,
            Self::Iq1S => 50,
        }
    }

    /// Whether values come in blocks of integers under a scale, which can be multiplied with vectors of 8
    /// bits.
    pub const fn has_blocks(self) -> bool {
        self.block_values() > 1
    }

    /// Whether blocks have 256 values, in groups with scales of their own.
    pub const fn is_k(self) -> bool {
        self.block_values() == 256
    }

    /// Whether the generic block loop of every instruction set unpacks this format, 32 values at a time. The
    /// other formats have kernels of their own.
    pub const fn is_unpacked(self) -> bool {
        match self {
            Self::F32 | Self::F16 | Self::BF16 | Self::Q8_0 | Self::Q6K => false,
            Self::Q4_0 | Self::Q4_0X4 | Self::Q4K => false,
            Self::Q5_1 | Self::Q5_0 | Self::Q5K | Self::Q4_1 | Self::Iq4Nl | Self::Mxfp4 => true,
            Self::Iq4Xs | Self::Q3K | Self::Iq3S | Self::Iq3Xxs => true,
            Self::Q2K | Self::Iq2S | Self::Iq2Xs | Self::Iq2Xxs => true,
            Self::Nvfp4 | Self::Q2_0 | Self::Tq2_0 | Self::Iq1M | Self::Tq1_0 | Self::Iq1S | Self::Q1_0 => {
                true
            }
        }
    }

    /// Whether [`quantise`](crate::quantise) supports the format; others can only be read. Writing formats of
    /// few bits needs importance data and a search.
    pub const fn is_written(self) -> bool {
        match self {
            Self::F32 | Self::F16 | Self::BF16 | Self::Q8_0 | Self::Q6K | Self::Q5_1 | Self::Q5_0 => true,
            Self::Q5K | Self::Q4_1 | Self::Q4_0 | Self::Q4_0X4 | Self::Q4K | Self::Mxfp4 => true,
            Self::Iq4Nl | Self::Iq4Xs | Self::Q3K | Self::Iq3S | Self::Iq3Xxs => false,
            Self::Q2K | Self::Iq2S | Self::Iq2Xs | Self::Iq2Xxs => false,
            Self::Nvfp4 | Self::Q2_0 | Self::Tq2_0 | Self::Iq1M | Self::Tq1_0 | Self::Iq1S | Self::Q1_0 => {
                false
            }
        }
    }

    /// Bytes of a row of `values` values.
    ///
    /// # Panics
    /// If `values` is not a multiple of [`Format::block_values`]; readers check this when they open a file.
    pub const fn row_bytes(self, values: usize) -> usize {
        // kernels call this for every row, and a division takes a tenth of the row's time
        let block = self.block_values();
        debug_assert!(block.is_power_of_two(), "a division by it is a shift");
        assert!(values & (block - 1) == 0, "a row is whole blocks");
        (values >> block.trailing_zeros()) * self.block_bytes()
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
