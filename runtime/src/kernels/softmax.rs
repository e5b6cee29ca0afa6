//! Scores to probabilities.

/// `x[i] = exp(x[i]) / sum of exp(x[j])`, in place.
///
/// The largest score is subtracted first, so no exponential overflows; a score of minus infinity becomes zero, if
/// another is finite. No scores give no probabilities.
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

#[cfg(test)]
mod tests {
    use super::*;

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
