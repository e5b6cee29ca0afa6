//! A causal convolution of each channel over positions.

use std::ops::Range;

use kernels::Activation;

use crate::pool::Pool;

/// The least number of channels that a thread takes together.
const TOGETHER: usize = 64;

/// Replaces one position's values by their convolutions, `sum over i of taps[i] v[t - (count - 1) + i]`, and
/// advances the state.
///
/// Each sum starts with the oldest position, so prompts in chunks of any size and single tokens give the same
/// bits.
///
/// *Shapes*: `taps: [channels, count]`, oldest position first; `state: [channels, count - 1]`, the values
/// before, oldest first; `values: [channels]`.
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

/// Applies [`convolve`] to the `channels` of rows of `stride`, one row after another, then adds the bias if
/// there is one, then `SiLU`. Threads share the channels.
///
/// *Shapes*: `taps: [channels, count]`, `bias: [channels]`, `state: [channels, count - 1]`, `rows: [count, stride]`.
pub(crate) fn convolve_rows(
    pool: &Pool,
    taps: &[f32],
    bias: Option<&[f32]>,
    state: &mut [f32],
    rows: &mut [f32],
    stride: usize,
    channels: Range<usize>,
) {
    let (count, taps_of_each) = (rows.len() / stride, taps.len() / channels.len());
    let first = channels.start;
    pool.share_columns_with(rows, stride, channels, state, TOGETHER, |columns, state| {
        let range = columns.range().start - first..columns.range().end - first;
        let taps = &taps[range.start * taps_of_each..range.end * taps_of_each];
        let bias = bias.map(|bias| &bias[range.clone()]);
        for row in 0..count {
            let values = columns.row(row);
            convolve(taps, state, values);
            if let Some(bias) = bias {
                values.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
            }
            values.iter_mut().for_each(|value| *value = Activation::Silu.of_gate(*value));
        }
    });
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
                    // whole numbers, so that sums have no rounding
                    assert_eq!(value, (0..count).map(term).sum::<f32>(), "{count} {t} {channel}");
                }
            }
        }
    }
}
