//! A causal convolution of each channel, one position after another.

/// Takes one position's value of each channel and leaves what it is convolved to, `sum over i of taps[i] v[t - (count - 1) + i]`.
///
/// A sum is added up from the oldest position on, whoever asks for it: a prompt in chunks of any size and tokens one by one give
/// the same bits.
///
/// *Shapes*: `taps: [channels, count]`, the oldest position's first; `state: [channels, count - 1]`, the values before, the oldest
/// first; `values: [channels]`.
pub(crate) fn convolve(taps: &[f32], state: &mut [f32], values: &mut [f32]) {
    let before = state.len() / values.len();
    let channels = taps.chunks_exact(before + 1).zip(state.chunks_exact_mut(before));
    for (value, (taps, state)) in values.iter_mut().zip(channels) {
        let (new, sum) = (*value, taps.iter().zip(&*state).fold(0.0, |sum, (tap, value)| sum + tap * value));
        *value = sum + taps[before] * new;
        state.copy_within(1.., 0);
        state[before - 1] = new;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_convolution_is_the_sum_over_the_positions_before_and_its_state_goes_on() {
        const CHANNELS: usize = 3;
        for count in [2, 3, 5] {
            let number = |at: usize| ((at * 37 + 11) % 29) as f32 - 14.0;
            let taps: Vec<f32> = (0..CHANNELS * count).map(number).collect();
            let row = |t: usize| (0..CHANNELS).map(move |channel| number(100 + t * CHANNELS + channel));
            let rows: Vec<Vec<f32>> = (0..9).map(|t| row(t).collect()).collect();
            let mut state = vec![0.0; CHANNELS * (count - 1)];
            for (t, row) in rows.iter().enumerate() {
                let mut values = row.clone();
                convolve(&taps, &mut state, &mut values);
                for (channel, value) in values.into_iter().enumerate() {
                    let term = |i: usize| {
                        let at = (t + i + 1).checked_sub(count);
                        at.map_or(0.0, |at| taps[channel * count + i] * rows[at][channel])
                    };
                    // whole numbers, whose sums have no rounding
                    assert_eq!(value, (0..count).map(term).sum::<f32>(), "{count} {t} {channel}");
                }
            }
        }
    }
}
