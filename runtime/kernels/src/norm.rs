//! Root-mean-square normalisation.

/// `out[i] = x[i] / sqrt(mean of x[j]^2 + epsilon) * weight[i]`.
///
/// The squares are summed in eight interleaved sums, in the same order on every processor.
///
/// *Shapes*: `x: [n]`, `weight: [n]`, `out: [n]`.
///
/// *Source*: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, Eq. 4; `epsilon` as in llama.
///
/// # Panics
/// If the lengths differ.
pub fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    assert_eq!(x.len(), weight.len(), "rms_norm: one weight a value");
    assert_eq!(x.len(), out.len(), "rms_norm: one output a value");
    let scale = 1.0 / (sum_of_squares(x) / x.len() as f32 + epsilon).sqrt();
    for i in 0..x.len() {
        out[i] = x[i] * scale * weight[i];
    }
}

/// [`rms_norm`] without weights: `x[i] /= sqrt(mean(x^2) + epsilon)`.
pub fn rms_norm_in_place(x: &mut [f32], epsilon: f32) {
    let scale = 1.0 / (sum_of_squares(x) / x.len() as f32 + epsilon).sqrt();
    x.iter_mut().for_each(|value| *value *= scale);
}

fn sum_of_squares(x: &[f32]) -> f32 {
    let (eights, rest) = x.as_chunks::<8>();
    let mut sums = [0.0_f32; 8];
    for eight in eights {
        for lane in 0..8 {
            sums[lane] += eight[lane] * eight[lane];
        }
    }
    for lane in 0..rest.len() {
        sums[lane] += rest[lane] * rest[lane];
    }
    sums.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_normalised_vector_has_the_weights_as_root_mean_square() {
        let x = [3.0, -4.0, 0.0, 0.0];
        let mut out = [0.0; 4];
        rms_norm(&x, &[2.0; 4], 0.0, &mut out);
        assert_eq!(out, [2.4, -3.2, 0.0, 0.0]); // the root mean square of x is 2.5
    }

    #[test]
    fn without_weights_is_with_ones() {
        let x = [0.5, -3.0, 7.25];
        let (mut out, mut in_place) = ([0.0; 3], x);
        rms_norm(&x, &[1.0; 3], 1e-5, &mut out);
        rms_norm_in_place(&mut in_place, 1e-5);
        assert_eq!(in_place, out);
    }

    #[test]
    fn epsilon_keeps_zeros_finite() {
        let mut out = [1.0; 3];
        rms_norm(&[0.0; 3], &[1.0; 3], 1e-5, &mut out);
        assert_eq!(out, [0.0; 3]);
    }

    #[test]
    fn every_length_sums_all_its_squares() {
        for n in 1..40_u16 {
            let x: Vec<f32> = (1..=n).map(f32::from).collect();
            let expected = f32::from(n) * (f32::from(n) + 1.0) * (2.0 * f32::from(n) + 1.0) / 6.0;
            assert_eq!(sum_of_squares(&x), expected, "1^2 + ... + {n}^2");
        }
    }
}
