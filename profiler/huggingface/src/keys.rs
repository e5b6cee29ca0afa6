//! The header of a GGUF file being put together: keys, then tensors.
//!
//! Source: ggml's `docs/gguf.md`; the layout is drawn in the engine's reader of GGUF.

/// The bytes that a tensor's place is a multiple of.
pub(crate) const ALIGNMENT: u64 = 32;

/// Keys in the order of insertion. A repeated key replaces the first.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    keys: Vec<(String, Vec<u8>)>,
}

impl Keys {
    fn put(&mut self, key: &str, kind: u32, value: &[u8]) {
        let bytes = [&kind.to_le_bytes()[..], value].concat();
        match self.keys.iter_mut().find(|(name, _)| name == key) {
            Some((_, value)) => *value = bytes,
            None => self.keys.push((key.to_owned(), bytes)),
        }
    }

    pub(crate) fn whole(&mut self, key: &str, value: u32) {
        self.put(key, 4, &value.to_le_bytes());
    }

    pub(crate) fn number(&mut self, key: &str, value: f64) {
        self.put(key, 6, &(value as f32).to_le_bytes());
    }

    pub(crate) fn flag(&mut self, key: &str, value: bool) {
        self.put(key, 7, &[value.into()]);
    }

    pub(crate) fn text(&mut self, key: &str, value: &str) {
        self.put(key, 8, &string(value));
    }

    pub(crate) fn texts<'t>(&mut self, key: &str, values: impl ExactSizeIterator<Item = &'t str>) {
        let count = values.len();
        self.array(key, 8, count, values.flat_map(string));
    }

    pub(crate) fn numbers(&mut self, key: &str, values: &[f32]) {
        self.array(key, 6, values.len(), values.iter().flat_map(|value| value.to_le_bytes()));
    }

    pub(crate) fn flags(&mut self, key: &str, values: &[bool]) {
        self.array(key, 7, values.len(), values.iter().map(|&value| value.into()));
    }

    pub(crate) fn wholes(&mut self, key: &str, values: &[i32]) {
        self.array(key, 5, values.len(), values.iter().flat_map(|value| value.to_le_bytes()));
    }

    pub(crate) fn long_wholes(&mut self, key: &str, values: &[u64]) {
        self.array(key, 10, values.len(), values.iter().flat_map(|value| value.to_le_bytes()));
    }

    fn array(&mut self, key: &str, kind: u32, count: usize, elements: impl Iterator<Item = u8>) {
        let mut value = kind.to_le_bytes().to_vec();
        value.extend((count as u64).to_le_bytes());
        value.extend(elements);
        self.put(key, 9, &value);
    }

    /// Adds these, too.
    pub(crate) fn extend(&mut self, others: Self) {
        self.keys.extend(others.keys);
    }

    /// Whether a key is there.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.keys.iter().any(|(name, _)| name == key)
    }

    /// The header of a file with these keys and tensors, each tensor's offset in the file, and the file's length.
    ///
    /// A tensor has a name, dimensions (the contiguous one first), ggml's number of its type, and its bytes.
    pub(crate) fn header(&self, tensors: &[(&str, Vec<u64>, u32, u64)]) -> (Vec<u8>, Vec<u64>, u64) {
        let mut file = b"GGUF".to_vec();
        file.extend(3_u32.to_le_bytes());
        file.extend((tensors.len() as u64).to_le_bytes());
        file.extend((self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            file.extend(string(key));
            file.extend(value);
        }
        let mut places = Vec::with_capacity(tensors.len());
        let mut end = 0_u64;
        for (name, dims, kind, bytes) in tensors {
            file.extend(string(name));
            file.extend((dims.len() as u32).to_le_bytes());
            dims.iter().for_each(|dim| file.extend(dim.to_le_bytes()));
            file.extend(kind.to_le_bytes());
            file.extend(end.to_le_bytes());
            places.push(end);
            end += bytes.next_multiple_of(ALIGNMENT);
        }
        file.resize(file.len().next_multiple_of(ALIGNMENT as usize), 0);
        let data = file.len() as u64;
        places.iter_mut().for_each(|place| *place += data);
        (file, places, data + end)
    }
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

#[cfg(test)]
impl Keys {
    /// The keys of a file, as far as its types are those written here.
    pub(crate) fn copied(gguf: &flashplan::internals::model::gguf::Gguf<'_>) -> Self {
        use flashplan::internals::model::gguf::{Array, Value};

        let mut keys = Self::default();
        for (key, value) in gguf.keys() {
            match value {
                Value::Integer(value) => keys.whole(key, u32::try_from(*value).unwrap()),
                Value::Float(value) => keys.number(key, *value),
                Value::Boolean(value) => keys.flag(key, *value),
                Value::String(value) => keys.text(key, value),
                Value::Array(Array::String(values)) => keys.texts(key, values.iter().map(String::as_str)),
                Value::Array(Array::F32(values)) => keys.numbers(key, values),
                Value::Array(Array::I32(values)) => keys.wholes(key, values),
                Value::Array(Array::U64(values)) => keys.long_wholes(key, values),
                Value::Array(Array::Boolean(values)) => keys.flags(key, values),
                Value::Array(other) => panic!("{key}: {other:?}"),
            }
        }
        keys
    }
}
