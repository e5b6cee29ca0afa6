//! Storage formats of keys and values, whose bytes planner and runtime agree on.

/// A storage format of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvFormat {
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
    /// 32 signed bytes under one half-precision scale.
    Q8_0,
    /// 32 nibbles under one half-precision scale.
    Q4_0,
}

impl KvFormat {
    /// Every format, the default first.
    pub const ALL: [Self; 4] = [Self::F16, Self::F32, Self::Q8_0, Self::Q4_0];

    /// The name in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F16 => "F16",
            Self::F32 => "F32",
            Self::Q8_0 => "Q8_0",
            Self::Q4_0 => "Q4_0",
        }
    }

    /// The format of a name; `F16` for an unknown name, which no checked file has.
    pub fn named(name: &str) -> Self {
        Self::ALL.into_iter().find(|format| format.name() == name).unwrap_or(Self::F16)
    }

    /// Values of a block; a row has whole blocks.
    pub const fn block_values(self) -> u64 {
        match self {
            Self::F16 | Self::F32 => 1,
            Self::Q8_0 | Self::Q4_0 => 32,
        }
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> u64 {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
            Self::Q8_0 => 34,
            Self::Q4_0 => 18,
        }
    }

    /// Whether the format quantises in blocks, with a loss that `profile` measures.
    pub const fn has_blocks(self) -> bool {
        self.block_values() > 1
    }

    /// Whether a row of `values` has whole blocks.
    pub const fn holds(self, values: u64) -> bool {
        values.is_multiple_of(self.block_values())
    }

    /// Bytes of a row of `values`, the last block padded.
    pub const fn row_bytes(self, values: u64) -> u64 {
        values.div_ceil(self.block_values()).saturating_mul(self.block_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_whole_blocks() {
        let rows = KvFormat::ALL.map(|format| format.row_bytes(128));
        assert_eq!(rows, [256, 512, 136, 72]);
        for format in KvFormat::ALL {
            assert_eq!(KvFormat::named(format.name()), format);
            assert!(format.holds(64) && format.holds(80) != format.has_blocks());
        }
    }

    #[test]
    fn the_names_are_those_that_files_may_have() {
        assert_eq!(KvFormat::ALL.map(KvFormat::name), crate::check::KV_FORMATS);
    }
}
