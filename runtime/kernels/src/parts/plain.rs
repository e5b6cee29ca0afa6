//! The definition of [`Unpack`]: one byte after another, on any processor.

use half::f16;

use super::{PART, Unpack};

/// Plain Rust.
#[derive(Clone, Copy)]
pub(in super::super) struct Plain;

impl Unpack for Plain {
    type Bytes = [u8; PART];
    type Pair = [f32; 2];

    fn load(self, bytes: &[u8; PART]) -> [u8; PART] {
        *bytes
    }

    fn store(self, bytes: [u8; PART]) -> [u8; PART] {
        bytes
    }

    fn nibbles(self, bytes: &[u8; PART / 2]) -> [u8; PART] {
        std::array::from_fn(|j| if j < 16 { bytes[j] & 0xf } else { bytes[j - 16] >> 4 })
    }

    fn shifted(self, bytes: [u8; PART], down: i32, mask: u8) -> [u8; PART] {
        let moved = |byte: u8| if down < 0 { byte << -down } else { byte >> down };
        bytes.map(|byte| moved(byte) & mask)
    }

    fn spread(self, bits: [u8; 4], value: u8) -> [u8; PART] {
        std::array::from_fn(|j| if bits[j / 8] >> (j % 8) & 1 == 1 { value } else { 0 })
    }

    fn eights(self, groups: [u64; 4]) -> [u8; PART] {
        std::array::from_fn(|j| groups[j / 8].to_le_bytes()[j % 8])
    }

    fn plus(self, a: [u8; PART], b: [u8; PART]) -> [u8; PART] {
        std::array::from_fn(|j| a[j].wrapping_add(b[j]))
    }

    fn third(self, bytes: [u8; PART]) -> [u8; PART] {
        bytes.map(|byte| ((u16::from(byte) * 3) >> 8) as u8)
    }

    fn or(self, a: [u8; PART], b: [u8; PART]) -> [u8; PART] {
        std::array::from_fn(|j| a[j] | b[j])
    }

    fn less(self, bytes: [u8; PART], by: u8) -> [u8; PART] {
        bytes.map(|byte| byte.wrapping_sub(by))
    }

    fn negated(self, bytes: [u8; PART], signs: [u8; PART]) -> [u8; PART] {
        std::array::from_fn(|j| if signs[j] == 0 { bytes[j] } else { bytes[j].wrapping_neg() })
    }

    fn look_up(self, table: &[i8; 16], at: [u8; PART]) -> [u8; PART] {
        at.map(|at| table[usize::from(at)].cast_unsigned())
    }

    fn half(self, bits: [u8; 2]) -> [f32; 2] {
        [f16::from_le_bytes(bits).to_f32(); 2]
    }

    fn pair(self, floats: [f32; 2]) -> [f32; 2] {
        floats
    }

    fn floats(self, pair: [f32; 2]) -> [f32; 2] {
        pair
    }
}
