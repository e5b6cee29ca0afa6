//! Checks that stored weights are finite.

use super::Format;

/// Bytes checked per iteration.
const PIECE_BYTES: usize = 4096;

/// Index of the first block (or value, in formats without blocks) that contains an infinity or a NaN, in its
/// values or its scale.
///
/// `bytes` must be whole blocks. A scale that may make its block overflow is refused as well.
pub fn first_not_finite(format: Format, bytes: &[u8]) -> Option<usize> {
    // infinity and NaN have every exponent bit set
    match format {
        Format::F32 => first::<4>(bytes, |value| u32::from_le_bytes(*value) & 0x7f80_0000 == 0x7f80_0000),
        Format::BF16 => first::<2>(bytes, |value| u16::from_le_bytes(*value) & 0x7f80 == 0x7f80),
        Format::F16 => first::<2>(bytes, |value| is_half_not_finite(*value)),
        // the largest value is 6; times the next power of two it overflows
        Format::Mxfp4 => bytes.chunks_exact(format.block_bytes()).position(|block| block[0] > 252),
        // the upper four bits of four numbers form the scale; the last number holds its exponent, except for
        // one bit
        Format::Iq1M => bytes
            .chunks_exact(format.block_bytes())
            .position(|block| block[55] & 0x70 == 0x70 && block[53] & 0xc0 == 0xc0),
        _ => {
            let places = scale_places(format);
            let not_finite = |block: &[u8]| {
                places.iter().any(|&place| is_half_not_finite([block[place], block[place + 1]]))
            };
            bytes.chunks_exact(format.block_bytes()).position(not_finite)
        }
    }
}

fn is_half_not_finite(value: [u8; 2]) -> bool {
    u16::from_le_bytes(value) & 0x7c00 == 0x7c00
}

/// Index of the first value that satisfies `is`; searches piece by piece, so that comparisons are vectorised.
fn first<const BYTES: usize>(bytes: &[u8], is: impl Fn(&[u8; BYTES]) -> bool) -> Option<usize> {
    let any = |piece: &&[u8]| piece.as_chunks().0.iter().fold(false, |any, value| any | is(value));
    let (number, piece) = bytes.chunks(PIECE_BYTES).enumerate().find(|(_, piece)| any(piece))?;
    let within = piece.as_chunks().0.iter().position(is)?;
    Some(number * (PIECE_BYTES / BYTES) + within)
}

/// Offsets of the half-precision scales in a block.
pub(crate) const fn scale_places(format: Format) -> &'static [usize] {
    match format {
        Format::F32 | Format::F16 | Format::BF16 | Format::Mxfp4 | Format::Nvfp4 | Format::Iq1M => &[],
        Format::Q5_1 | Format::Q5K | Format::Q4_1 | Format::Q4K => &[0, 2],
        Format::Q4_0X4 => &[0, 2, 4, 6],
        Format::Q6K => &[208],
        Format::Q3K => &[108],
        Format::Q2K => &[80, 82],
        Format::Tq2_0 => &[64],
        Format::Tq1_0 => &[52],
        Format::Q8_0
        | Format::Q5_0
        | Format::Q4_0
        | Format::Iq4Nl
        | Format::Iq4Xs
        | Format::Iq3S
        | Format::Iq3Xxs
        | Format::Iq2S
        | Format::Iq2Xs
        | Format::Q2_0
        | Format::Iq2Xxs
        | Format::Iq1S
        | Format::Q1_0 => &[0],
    }
}

#[cfg(test)]
mod tests {
    use crate::dequantise;

    use super::*;

    /// Checks every format through its values: a refused block has a value that is not finite, an accepted
    /// one has none.
    #[test]
    fn what_is_refused_is_what_becomes_infinite_or_no_number() {
        for format in Format::ALL {
            let (bytes, values) = (format.block_bytes(), format.block_values());
            let exponents: Vec<Vec<u8>> = match format {
                Format::F32 | Format::BF16 => [0x7f80_u16, 0xff80, 0x7fc0, 0x7f7f, 0xff7f, 0x0001]
                    .map(|upper| [&vec![0; bytes - 2][..], &upper.to_le_bytes()].concat())
                    .into(),
                Format::F16 => {
                    [0x7c00_u16, 0xfc00, 0x7e00, 0x7bff, 0xfbff, 1].map(|v| v.to_le_bytes().to_vec()).into()
                }
                Format::Mxfp4 => [255_u8, 254, 253, 252, 1].map(|e| [&[e][..], &[0x77; 16]].concat()).into(),
                Format::Nvfp4 => vec![vec![0xff; bytes], vec![0x77; bytes]],
                Format::Iq1M => [[0xc0, 0x70], [0xc0, 0xf0], [0xff, 0x7f], [0xbf, 0x7f], [0xff, 0x6f]]
                    .map(|[c, d]| [&[0xff; 53][..], &[c, 0xff, d]].concat())
                    .into(),
                _ => {
                    let half = |place: usize, upper: u16| {
                        let mut block = vec![0xff; bytes];
                        scale_places(format)
                            .iter()
                            .for_each(|&at| block[at..at + 2].copy_from_slice(&[0, 0]));
                        block[place..place + 2].copy_from_slice(&upper.to_le_bytes());
                        block
                    };
                    let places = scale_places(format).iter();
                    places
                        .flat_map(|&place| {
                            [0x7c00, 0xfc00, 0x7e00, 0x7bff, 0xfbff, 1].map(|v| half(place, v))
                        })
                        .collect()
                }
            };
            for block in &exponents {
                let mut out = vec![0.0; values];
                dequantise(format, block, &mut out);
                let finite = out.iter().all(|value| value.is_finite());
                assert_eq!(first_not_finite(format, block).is_none(), finite, "{format} {block:x?}");
            }
            // far into the row, after sound blocks
            let Some(damaged) = exponents.iter().find(|block| first_not_finite(format, block).is_some())
            else {
                assert_eq!(format, Format::Nvfp4, "whose scales are all finite");
                continue;
            };
            let mut many = vec![0; 5000 * bytes];
            assert_eq!(first_not_finite(format, &many), None, "{format}");
            many[4321 * bytes..][..bytes].copy_from_slice(damaged);
            assert_eq!(first_not_finite(format, &many), Some(4321), "{format}");
        }
    }
}
