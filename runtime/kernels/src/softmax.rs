//! Converts scores to probabilities.

/// `x[i] = exp(x[i]) / sum of exp(x[j])`, in place.
///
/// The largest score is subtracted first, so no exponential overflows. A score of minus infinity becomes zero
/// if another score is finite. An empty slice stays empty.
///
/// *Shapes*: `x: [n]`.
pub fn softmax(x: &mut [f32]) {
    let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for x in x.iter_mut() {
        *x = (*x - largest).exp();
        sum += *x;
    }
    for x in x {
        *x /= sum;
    }
}

/// `e^x` for `x <= 0`, to four parts in `2^24`; below -87 it returns its value at -87, about 1e-38. The
/// branch-free arithmetic vectorises on any processor; a call of the C library would take longer than
/// computing the score.
///
/// `e^x = 2^n e^r`, with integer `n` and `|r| <= ln 2 / 2`. *Source*: Moshier, Cephes, `expf.c`: the
/// polynomial, and `ln 2` in two parts.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const BASE: f32 = 12_582_912.0; // 1.5 * 2^23: the lowest bits of `BASE + n` are those of `n`
    let x = if x < -87.0 { -87.0 } else { x };
    let based = x * std::f32::consts::LOG2_E + BASE;
    let n = based - BASE;
    let r = x - n * 0.693_359_4 + n * 2.121_944_4e-4;
    let p = 1.987_569_1e-4_f32;
    let p = p * r + 1.398_2e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 0.5;
    (p * r * r + r + 1.0) * f32::from_bits(based.to_bits().wrapping_add(127) << 23)
}

/// `x[i] = exp(x[i] - largest)`, vectorised for the instruction set of the caller it is inlined into.
#[inline(always)]
pub(super) fn exponentials(x: &mut [f32], largest: f32) {
    x.iter_mut().for_each(|x| *x = exp(*x - largest));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_those_of_double_precision() {
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NEG_INFINITY) < 2e-38 && exp(f32::NAN).is_nan());
        for i in 0..=870_000 {
            let x = i as f32 * -1e-4;
            let expected = f64::from(x).exp();
            let off = (f64::from(exp(x)) / expected - 1.0).abs();
            assert!(off < 4.0 / f64::from(1 << 24), "{x}: off by {off:e}");
        }
    }

    #[test]
    fn probabilities_are_in_the_ratio_of_the_exponentials() {
        let mut x = [0.0, 2.0_f32.ln(), 5.0_f32.ln(), f32::NEG_INFINITY];
        softmax(&mut x);
        for (actual, expected) in x.iter().zip([0.125, 0.25, 0.625, 0.0]) {
            assert!((actual - expected).abs() < 1e-7, "{actual} should be {expected}");
        }
    }

    #[test]
    fn large_scores_do_not_overflow() {
        let mut x = [1e30, 1e30, -1e30];
        softmax(&mut x);
        assert_eq!(x, [0.5, 0.5, 0.0]);
    }

    #[test]
    fn no_scores_give_no_probabilities() {
        softmax(&mut []);
    }
}
