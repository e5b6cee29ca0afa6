//! Values of a GGUF file's keys, and its tensors.

use std::fmt::{self, Display};

use super::error::{GgufError, quote};
use kernels::Format;

/// A metadata value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Any of the eight integer types.
    Integer(i128),
    /// Single or double precision.
    Float(f64),
    /// True or false.
    Boolean(bool),
    /// Text.
    String(String),
    /// An array of one type.
    Array(Array),
}

/// A metadata array of one type.
#[derive(Debug, Clone, PartialEq)]
pub enum Array {
    /// Unsigned bytes.
    U8(Vec<u8>),
    /// Signed bytes.
    I8(Vec<i8>),
    /// 16 bits.
    U16(Vec<u16>),
    /// 16 bits, signed.
    I16(Vec<i16>),
    /// 32 bits.
    U32(Vec<u32>),
    /// 32 bits, signed.
    I32(Vec<i32>),
    /// Single precision.
    F32(Vec<f32>),
    /// True or false.
    Boolean(Vec<bool>),
    /// Text.
    String(Vec<String>),
    /// Nested arrays.
    Array(Vec<Self>),
    /// 64 bits.
    U64(Vec<u64>),
    /// 64 bits, signed.
    I64(Vec<i64>),
    /// Double precision.
    F64(Vec<f64>),
}

impl Value {
    /// The value's type, for messages.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Integer(value) => format!("the integer {value}"),
            Self::Float(value) => format!("the number {value}"),
            Self::Boolean(value) => format!("the boolean {value}"),
            Self::String(value) => format!("the text {}", quote(value)),
            Self::Array(_) => "an array".to_owned(),
        }
    }
}

/// A tensor's storage type by ggml's number, including known but unsupported types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorType(pub(super) u32);

impl TensorType {
    /// Name, values of a block and bytes of a block; sizes are zero if the number is unknown or withdrawn.
    pub(super) fn known(self) -> (&'static str, u64, u64) {
        if let Some(format) = self.format() {
            return (format.name(), format.block_values() as u64, format.block_bytes() as u64);
        }
        match self.0 {
            9 => ("Q8_1", 32, 36),
            15 => ("Q8_K", 256, 292),
            24 => ("I8", 1, 1),
            25 => ("I16", 1, 2),
            26 => ("I32", 1, 4),
            27 => ("I64", 1, 8),
            28 => ("F64", 1, 8),
            // withdrawn from ggml
            4 => ("Q4_2", 0, 0),
            5 => ("Q4_3", 0, 0),
            31 => ("Q4_0_4_4", 0, 0),
            32 => ("Q4_0_4_8", 0, 0),
            33 => ("Q4_0_8_8", 0, 0),
            36 => ("IQ4_NL_4_4", 0, 0),
            37 => ("IQ4_NL_4_8", 0, 0),
            38 => ("IQ4_NL_8_8", 0, 0),
            // only in ik_llama.cpp
            133 => ("Q6_0", 0, 0),
            134 => ("IQ1_BN", 0, 0),
            135 => ("IQ2_BN", 0, 0),
            137 => ("IQ2_K", 0, 0),
            138 => ("IQ3_K", 0, 0),
            139 => ("IQ4_K", 0, 0),
            140 => ("IQ5_K", 0, 0),
            141 => ("IQ6_K", 0, 0),
            144 => ("IQ4_KS", 0, 0),
            145 => ("IQ2_KS", 0, 0),
            146 => ("IQ4_KSS", 0, 0),
            152 => ("IQ5_KS", 0, 0),
            153 => ("IQ2_KT", 0, 0),
            154 => ("IQ3_KT", 0, 0),
            155 => ("IQ4_KT", 0, 0),
            156 => ("IQ3_KS", 0, 0),
            157 => ("IQ2_KL", 0, 0),
            158 => ("IQ1_KT", 0, 0),
            _ => ("", 0, 0),
        }
    }

    /// Whether other programs use its number for another type.
    pub(super) fn is_ambiguous(self) -> bool {
        (40..=42).contains(&self.0)
    }

    /// The format, if it is supported.
    pub fn format(self) -> Option<Format> {
        Format::of_ggml_type(self.0)
    }
}

impl Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known().0 {
            "" => write!(f, "ggml type {}", self.0),
            name => f.write_str(name),
        }
    }
}

/// A tensor: its name, shape and place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name in the file.
    pub name: String,
    /// Dimensions in ggml's `ne` order, contiguous first; missing ones are 1.
    pub dims: [u64; 4],
    /// The storage type of the values.
    pub kind: TensorType,
    /// First byte, from the start of the model's first file.
    pub offset: u64,
    /// Bytes stored; 0 if `kind` has no known size.
    pub bytes: u64,
}

impl TensorInfo {
    /// The format of a required tensor.
    ///
    /// # Errors
    /// [`GgufError::UnsupportedType`] if the type is not a [`Format`].
    pub fn format(&self) -> Result<Format, GgufError> {
        self.kind
            .format()
            .ok_or_else(|| GgufError::UnsupportedType { name: self.name.clone(), kind: self.kind })
    }
}
