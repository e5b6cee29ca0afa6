//! The header of a GGUF file, parsed and checked.

use std::collections::BTreeMap;
use std::fmt::Display;

use super::error::{FirstBytes, GgufError, KeyError, quote};
use super::value::{Array, TensorInfo, TensorType, Value};

/// Limit on nested arrays; no known key nests at all.
pub(super) const ARRAY_DEPTH_MAX: usize = 4;
/// The alignment of a file without `general.alignment`.
const ALIGNMENT_DEFAULT: u64 = 32;
/// The smallest key: an empty name, a type and one byte of value.
const KEY_BYTES_MIN: u64 = 8 + 4 + 1;
/// The smallest tensor description: an empty name and one dimension.
const TENSOR_BYTES_MIN: u64 = 8 + 4 + 8 + 4 + 8;

/// The metadata and tensor directory of a file.
#[derive(Debug)]
pub(super) struct Contents {
    pub version: u32,
    pub powerinfer: bool,
    pub keys: BTreeMap<String, Value>,
    pub tensors: Vec<TensorInfo>,
    /// Index in `tensors` by name.
    pub places: BTreeMap<String, usize>,
}

impl Contents {
    /// The value of a key, if `pick` accepts it.
    pub(super) fn typed<'v, T>(
        &'v self,
        key: &str,
        expected: &'static str,
        pick: impl FnOnce(&'v Value) -> Option<T>,
    ) -> Result<Option<T>, KeyError> {
        let Some(value) = self.keys.get(key) else {
            return Ok(None);
        };
        match pick(value) {
            Some(picked) => Ok(Some(picked)),
            None => Err(KeyError::Type { key: key.to_owned(), expected, found: value.describe() }),
        }
    }

    /// Reads and checks the file up to its data.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, GgufError> {
        let mut reader = Reader { bytes, at: 0 };
        let powerinfer = read_magic(bytes)?;
        reader.at = 4;
        let version = reader.u32(&"the version")?;
        match version {
            2 | 3 => {}
            other if matches!(other.swap_bytes(), 1..=3) => return Err(GgufError::BigEndian),
            found => return Err(GgufError::Version { found }),
        }
        let tensor_count = reader.u64(&"the number of tensors")?;
        let key_count = reader.u64(&"the number of keys")?;
        reader.holds(&"keys", key_count, KEY_BYTES_MIN)?;
        reader.holds(&"tensors", tensor_count, TENSOR_BYTES_MIN)?;

        let mut contents =
            Self { version, powerinfer, keys: BTreeMap::new(), tensors: Vec::new(), places: BTreeMap::new() };
        for index in 0..key_count {
            let key = reader.string(&format_args!("the name of key {index}"))?;
            if contents.keys.contains_key(&key) {
                return Err(GgufError::DuplicateKey { key });
            }
            let value = reader.value(&key)?;
            contents.keys.insert(key, value);
        }
        reader.holds(&"tensors", tensor_count, TENSOR_BYTES_MIN)?;
        for index in 0..tensor_count {
            let tensor = reader.tensor(index)?;
            if contents.places.insert(tensor.name.clone(), contents.tensors.len()).is_some() {
                return Err(GgufError::DuplicateTensor { name: tensor.name });
            }
            contents.tensors.push(tensor);
        }
        let alignment =
            contents.typed("general.alignment", "a whole number of 0 or more", |value| match value {
                Value::Integer(value) => u64::try_from(*value).ok(),
                _ => None,
            })?;
        contents.place(reader.at as u64, alignment.unwrap_or(ALIGNMENT_DEFAULT), bytes.len() as u64)?;
        Ok(contents)
    }

    /// Adds the tensors of a further file of the same model, which starts at byte `start`. Its keys are
    /// ignored.
    pub(super) fn append(&mut self, other: Self, start: u64) -> Result<(), GgufError> {
        for mut tensor in other.tensors {
            if self.places.insert(tensor.name.clone(), self.tensors.len()).is_some() {
                return Err(GgufError::DuplicateTensor { name: tensor.name });
            }
            tensor.offset += start;
            self.tensors.push(tensor);
        }
        Ok(())
    }

    /// Converts offsets in the data to offsets in the file, and checks that no two tensors overlap.
    fn place(&mut self, header_end: u64, alignment: u64, length: u64) -> Result<(), GgufError> {
        if !alignment.is_power_of_two() {
            return Err(GgufError::Alignment { found: alignment });
        }
        // without tensors there may be no data; with them, an alignment beyond the file is found below
        let data = header_end.checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
        let begins: Vec<u64> = self.tensors.iter().map(|tensor| tensor.offset).collect();
        for tensor in &mut self.tensors {
            if !tensor.offset.is_multiple_of(alignment) {
                return Err(GgufError::Misaligned {
                    name: tensor.name.clone(),
                    offset: tensor.offset,
                    alignment,
                });
            }
            let offset = data.saturating_add(tensor.offset);
            if offset.checked_add(tensor.bytes).is_none_or(|end| end > length) {
                // a tensor that starts inside this one suggests another type, not a truncated file
                let next = begins.iter().copied().filter(|&begin| begin > tensor.offset).min();
                if let Some(next) = next.filter(|&next| next - tensor.offset < tensor.bytes)
                    && tensor.kind.is_ambiguous()
                {
                    let (name, kind, bytes) = (tensor.name.clone(), tensor.kind, tensor.bytes);
                    return Err(GgufError::OtherType { name, kind, bytes, found: next - tensor.offset });
                }
                return Err(GgufError::TensorBeyond {
                    name: tensor.name.clone(),
                    bytes: tensor.bytes,
                    offset,
                    length,
                });
            }
            tensor.offset = offset;
        }
        let mut by_offset: Vec<&TensorInfo> = self.tensors.iter().filter(|tensor| tensor.bytes > 0).collect();
        by_offset.sort_by_key(|tensor| tensor.offset);
        for (place, tensor) in by_offset.iter().enumerate().filter(|(_, tensor)| tensor.kind.is_ambiguous()) {
            let next = by_offset.get(place + 1).map_or(length, |next| next.offset);
            let end = tensor.offset + tensor.bytes;
            if next < end || next > end.next_multiple_of(alignment) {
                let (name, kind, bytes) = (tensor.name.clone(), tensor.kind, tensor.bytes);
                return Err(GgufError::OtherType { name, kind, bytes, found: next - tensor.offset });
            }
        }
        for pair in by_offset.windows(2) {
            if let [first, second] = pair
                && first.offset + first.bytes > second.offset
            {
                return Err(GgufError::Overlap {
                    first: first.name.clone(),
                    second: second.name.clone(),
                    offset: second.offset,
                });
            }
        }
        Ok(())
    }
}

/// Whether the magic is `PowerInfer`'s.
fn read_magic(bytes: &[u8]) -> Result<bool, GgufError> {
    match bytes {
        [] => Err(GgufError::Empty),
        [b'G', b'G', b'U', b'F', ..] => Ok(false),
        [b'P', b'W', b'R', b'I', ..] => Ok(true),
        _ => Err(GgufError::NotGguf { first: FirstBytes(bytes.iter().take(8).copied().collect()) }),
    }
}

/// A position in the bytes of a file.
///
/// The bytes may be a mapped file that others write to. Methods copy bytes before they check them and use
/// only the copy; no byte is read twice.
///
/// `what` becomes text only for an error.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// Checks that `count` items of at least `bytes_min` bytes each can follow.
    fn holds(&self, what: &dyn Display, count: u64, bytes_min: u64) -> Result<(), GgufError> {
        if count.checked_mul(bytes_min).is_none_or(|bytes| bytes > self.left()) {
            let (offset, left) = (self.at as u64, self.left());
            return Err(GgufError::Count { what: what.to_string(), count, offset, left });
        }
        Ok(())
    }

    fn take(&mut self, count: u64, what: &dyn Display) -> Result<&'a [u8], GgufError> {
        if count > self.left() {
            let (offset, length) = (self.at as u64, self.bytes.len() as u64);
            return Err(GgufError::Truncated { what: what.to_string(), needed: count, offset, length });
        }
        let start = self.at;
        self.at += count as usize; // not more than what is left
        Ok(&self.bytes[start..self.at])
    }

    fn fixed<const N: usize>(&mut self, what: &dyn Display) -> Result<[u8; N], GgufError> {
        let mut fixed = [0; N];
        fixed.copy_from_slice(self.take(N as u64, what)?);
        Ok(fixed)
    }

    fn u32(&mut self, what: &dyn Display) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.fixed(what)?))
    }

    fn u64(&mut self, what: &dyn Display) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.fixed(what)?))
    }

    fn boolean(&mut self, what: &dyn Display) -> Result<bool, GgufError> {
        match self.fixed(what)? {
            [0] => Ok(false),
            [1] => Ok(true),
            [found] => Err(GgufError::Boolean { what: what.to_string(), found }),
        }
    }

    fn string(&mut self, what: &dyn Display) -> Result<String, GgufError> {
        let count = self.u64(&format_args!("the length of {what}"))?;
        let offset = self.at as u64;
        String::from_utf8(self.take(count, what)?.to_vec())
            .map_err(|_| GgufError::NotUtf8 { what: what.to_string(), offset })
    }

    fn value(&mut self, key: &str) -> Result<Value, GgufError> {
        let name = quote(key);
        let what: &dyn Display = &format_args!("the value of key {name}");
        Ok(match self.u32(&format_args!("the type of key {name}"))? {
            0 => Value::Integer(u8::from_le_bytes(self.fixed(what)?).into()),
            1 => Value::Integer(i8::from_le_bytes(self.fixed(what)?).into()),
            2 => Value::Integer(u16::from_le_bytes(self.fixed(what)?).into()),
            3 => Value::Integer(i16::from_le_bytes(self.fixed(what)?).into()),
            4 => Value::Integer(u32::from_le_bytes(self.fixed(what)?).into()),
            5 => Value::Integer(i32::from_le_bytes(self.fixed(what)?).into()),
            6 => Value::Float(f32::from_le_bytes(self.fixed(what)?).into()),
            7 => Value::Boolean(self.boolean(what)?),
            8 => Value::String(self.string(what)?),
            9 => Value::Array(self.array(what, 1)?),
            10 => Value::Integer(u64::from_le_bytes(self.fixed(what)?).into()),
            11 => Value::Integer(i64::from_le_bytes(self.fixed(what)?).into()),
            12 => Value::Float(f64::from_le_bytes(self.fixed(what)?)),
            found => {
                return Err(GgufError::ValueType { what: what.to_string(), found });
            }
        })
    }

    fn array(&mut self, what: &dyn Display, depth: usize) -> Result<Array, GgufError> {
        if depth > ARRAY_DEPTH_MAX {
            return Err(GgufError::Depth { what: what.to_string() });
        }
        let kind = self.u32(&format_args!("the element type of {what}"))?;
        let count = self.u64(&format_args!("the length of {what}"))?;
        Ok(match kind {
            0 => Array::U8(self.numbers(what, count, u8::from_le_bytes)?),
            1 => Array::I8(self.numbers(what, count, i8::from_le_bytes)?),
            2 => Array::U16(self.numbers(what, count, u16::from_le_bytes)?),
            3 => Array::I16(self.numbers(what, count, i16::from_le_bytes)?),
            4 => Array::U32(self.numbers(what, count, u32::from_le_bytes)?),
            5 => Array::I32(self.numbers(what, count, i32::from_le_bytes)?),
            6 => Array::F32(self.numbers(what, count, f32::from_le_bytes)?),
            7 => Array::Boolean(self.elements(what, count, 1, |reader, what| reader.boolean(what))?),
            8 => Array::String(self.elements(what, count, 8, |reader, what| reader.string(what))?),
            9 => Array::Array(self.elements(what, count, 12, |reader, what| reader.array(what, depth + 1))?),
            10 => Array::U64(self.numbers(what, count, u64::from_le_bytes)?),
            11 => Array::I64(self.numbers(what, count, i64::from_le_bytes)?),
            12 => Array::F64(self.numbers(what, count, f64::from_le_bytes)?),
            found => {
                return Err(GgufError::ValueType { what: format!("an element of {what}"), found });
            }
        })
    }

    fn numbers<T, const N: usize>(
        &mut self,
        what: &dyn Display,
        count: u64,
        decode: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>, GgufError> {
        self.elements(what, count, N as u64, |reader, what| Ok(decode(reader.fixed(what)?)))
    }

    /// Reads `count` elements of at least `bytes_min` bytes each; allocates after checking that the file can
    /// hold them.
    fn elements<T>(
        &mut self,
        what: &dyn Display,
        count: u64,
        bytes_min: u64,
        read: impl Fn(&mut Self, &dyn Display) -> Result<T, GgufError>,
    ) -> Result<Vec<T>, GgufError> {
        self.holds(&format_args!("elements of {what}"), count, bytes_min)?;
        let mut elements = Vec::with_capacity(count as usize);
        for index in 0..count {
            elements.push(read(self, &format_args!("element {index} of {what}"))?);
        }
        Ok(elements)
    }

    /// Reads a tensor's description; its offset still counts within the data.
    fn tensor(&mut self, index: u64) -> Result<TensorInfo, GgufError> {
        let text = self.string(&format_args!("the name of tensor {index}"))?;
        let (name, shown) = (text.clone(), quote(&text));
        let found = self.u32(&format_args!("the number of dimensions of tensor {shown}"))?;
        if !(1..=4).contains(&found) {
            return Err(GgufError::DimensionCount { name, found });
        }
        let mut dims = [1; 4];
        for dim in &mut dims[..found as usize] {
            *dim = self.u64(&format_args!("the dimensions of tensor {shown}"))?;
        }
        let kind = TensorType(self.u32(&format_args!("the type of tensor {shown}"))?);
        let offset = self.u64(&format_args!("the offset of tensor {shown}"))?;
        let bytes = size(&name, dims, kind)?;
        Ok(TensorInfo { name, dims, kind, offset, bytes })
    }
}

/// Bytes of a tensor; 0 if its type has no known size.
fn size(name: &str, dims: [u64; 4], kind: TensorType) -> Result<u64, GgufError> {
    let name = || name.to_owned();
    if dims.contains(&0) {
        return Err(GgufError::DimensionZero { name: name(), dims: dims.to_vec() });
    }
    let (_, block, block_bytes) = kind.known();
    let [row, ..] = dims;
    if block > 0 && !row.is_multiple_of(block) {
        return Err(GgufError::PartialBlock { name: name(), row, kind, block });
    }
    dims.iter()
        .try_fold(1_u64, |values, &dim| values.checked_mul(dim))
        .and_then(|values| values.checked_div(block).unwrap_or(0).checked_mul(block_bytes))
        .ok_or_else(|| GgufError::SizeOverflow { name: name(), dims: dims.to_vec() })
}
