//! Rotary position embedding, over pairs of a head's values.
//!
//! In llama's GGUF files the two values of a pair are neighbours (ggml calls this NORM). In most other files
//! they are half of the rotated width apart (NEOX).

/// Cosine and sine of the rotation of one pair of a head's values.
#[derive(Clone, Copy, Debug, Default, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct Rotation {
    /// Cosine of the angle.
    pub cos: f32,
    /// Sine of the angle.
    pub sin: f32,
}

/// Fills in the rotation of every pair at `position`: pair `i` is rotated by `position * frequencies[i]` and
/// multiplied by `magnitude`.
///
/// All heads of all layers share the rotations, so they are computed once per token and can afford double
/// precision. A single-precision angle is off by 1e-4 at position 2000.
///
/// *Shapes*: `frequencies: [dimensions / 2]`, `out: [dimensions / 2]`.
///
/// *Source*: Su et al., "`RoFormer`", 2021, Eq. 15 and 34.
pub fn fill_rotations(frequencies: &[f64], magnitude: f64, position: usize, out: &mut [Rotation]) {
    for (frequency, rotation) in frequencies.iter().zip(out) {
        let angle = position as f64 * frequency;
        let (cos, sin) = (magnitude * angle.cos(), magnitude * angle.sin());
        *rotation = Rotation { cos: cos as f32, sin: sin as f32 };
    }
}

/// Frequency `i` of `pairs`: `base^(-i / pairs)`.
pub fn rope_frequency(base: f32, i: usize, pairs: usize) -> f64 {
    f64::from(base).powf(-(i as f64) / pairs as f64)
}

/// Rotates pair `(i, i + dimensions / 2)` of every head by rotation `i`. Dimensions beyond the rotations are
/// unchanged.
///
/// *Shapes*: as in [`rope`].
///
/// # Panics
/// If `heads` is not a whole number of heads, or a head has fewer pairs than there are rotations.
pub fn rope_halves(heads: &mut [f32], head_dim: usize, rotations: &[Rotation]) {
    assert!(heads.len().is_multiple_of(head_dim), "rope: {} values are not heads of {head_dim}", heads.len());
    assert!(2 * rotations.len() <= head_dim, "rope: {} rotations in a head of {head_dim}", rotations.len());
    for head in heads.chunks_exact_mut(head_dim) {
        let (first, rest) = head.split_at_mut(rotations.len());
        for ((x, y), r) in first.iter_mut().zip(rest).zip(rotations) {
            (*x, *y) = (*x * r.cos - *y * r.sin, *x * r.sin + *y * r.cos);
        }
    }
}

/// Rotates pair `(2 i, 2 i + 1)` of every head by rotation `i`. Dimensions beyond the rotations are
/// unchanged.
///
/// *Shapes*: `heads: [number of heads, head_dim]`, `rotations: [dimensions / 2]` with `dimensions <= head_dim`.
///
/// # Panics
/// If `heads` is not a whole number of heads, or a head has fewer pairs than there are rotations.
pub fn rope(heads: &mut [f32], head_dim: usize, rotations: &[Rotation]) {
    assert!(heads.len().is_multiple_of(head_dim), "rope: {} values are not heads of {head_dim}", heads.len());
    assert!(2 * rotations.len() <= head_dim, "rope: {} rotations in a head of {head_dim}", rotations.len());
    for head in heads.chunks_exact_mut(head_dim) {
        for ([x, y], r) in head.as_chunks_mut().0.iter_mut().zip(rotations) {
            (*x, *y) = (*x * r.cos - *y * r.sin, *x * r.sin + *y * r.cos);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(base: f32, position: usize, out: &mut [Rotation]) {
        let frequencies: Vec<f64> = (0..out.len()).map(|i| rope_frequency(base, i, out.len())).collect();
        fill_rotations(&frequencies, 1.0, position, out);
    }

    fn check(actual: &[f32], expected: &[f32]) {
        let close =
            actual.len() == expected.len() && actual.iter().zip(expected).all(|(a, e)| (a - e).abs() < 1e-6);
        assert!(close, "{actual:?} should be {expected:?}");
    }

    #[test]
    fn the_first_pair_rotates_by_the_position_and_the_next_more_slowly() {
        let mut rotations = [Rotation::default(); 2];
        fill(10000.0, 3, &mut rotations);
        let mut heads = [1.0, 0.0, 0.0, 2.0];
        rope(&mut heads, 4, &rotations);
        let (fast, slow) = (3.0_f32, 0.03_f32);
        check(&heads, &[fast.cos(), fast.sin(), -2.0 * slow.sin(), 2.0 * slow.cos()]);
    }

    #[test]
    fn all_heads_rotate_equally_and_dimensions_beyond_the_rotations_stay() {
        let rotations = [Rotation { cos: 0.0, sin: 1.0 }];
        let mut heads = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        rope(&mut heads, 4, &rotations);
        check(&heads, &[-2.0, 1.0, 3.0, 4.0, -6.0, 5.0, 7.0, 8.0]);
    }

    #[test]
    fn a_product_depends_on_the_distance_of_the_positions_alone() {
        let product = |query_position, key_position| {
            let (mut query, mut key) = ([0.3, -1.2, 0.8, 0.5], [1.1, 0.4, -0.7, 0.9]);
            let mut rotations = [Rotation::default(); 2];
            fill(10000.0, query_position, &mut rotations);
            rope(&mut query, 4, &rotations);
            fill(10000.0, key_position, &mut rotations);
            rope(&mut key, 4, &rotations);
            query.iter().zip(key).map(|(q, k)| q * k).sum()
        };
        check(&[product(7, 4)], &[product(4003, 4000)]);
    }

    #[test]
    fn halves_are_rotated_as_adjacent_values_in_another_order() {
        let mut rotations = [Rotation::default(); 2];
        fill(10000.0, 5, &mut rotations);
        let mut adjacent = [0.3, -1.2, 0.8, 0.5, 9.0];
        let mut halves = [0.3, 0.8, -1.2, 0.5, 9.0];
        rope(&mut adjacent, 5, &rotations);
        rope_halves(&mut halves, 5, &rotations);
        assert_eq!(halves, [adjacent[0], adjacent[2], adjacent[1], adjacent[3], 9.0]);
    }

    #[test]
    fn a_magnitude_multiplies_the_pair() {
        let (mut plain, mut larger) = ([Rotation::default()], [Rotation::default()]);
        fill_rotations(&[0.5], 1.0, 3, &mut plain);
        fill_rotations(&[0.5], 1.5, 3, &mut larger);
        check(&[larger[0].cos, larger[0].sin], &[1.5 * plain[0].cos, 1.5 * plain[0].sin]);
    }

    #[test]
    fn position_zero_changes_nothing() {
        let mut rotations = [Rotation::default(); 3];
        fill(500_000.0, 0, &mut rotations);
        assert_eq!(rotations, [Rotation { cos: 1.0, sin: 0.0 }; 3]);
    }
}
