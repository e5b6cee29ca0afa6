//! Devices with more cores than were measured.

use planner::Inputs;

/// The device with so many cores: each adds what the last that was measured did, less and less.
pub(crate) fn widen(inputs: &mut Inputs, cores: u32) {
    let device = &mut inputs.device;
    let class = device.cores.len() - 1;
    let have: u32 = device.cores.iter().map(|class| class.ids.len() as u32).sum();
    let first = device.cores.iter().flat_map(|class| &class.ids).max().map_or(0, |last| last + 1);
    device.cores[class].ids.extend(first..first + cores.saturating_sub(have));
    let n = device.cores.iter().map(|class| class.ids.len()).sum::<usize>();
    let grow = |rates: &mut Vec<f64>, share: f64| {
        while rates.len() < n {
            let (last, one) = (rates[rates.len() - 1], rates[0].min(rates[rates.len() - 1]));
            rates.push(last + one * share / rates.len() as f64);
        }
    };
    for kernel in &mut device.kernels {
        for rates in [&mut kernel.dense_bytes_per_second, &mut kernel.sparse_bytes_per_second] {
            grow(rates, 0.5);
        }
        grow(&mut kernel.flops_per_second, 4.0);
        kernel.sparse_down_bytes_per_second.iter_mut().for_each(|rates| grow(rates, 0.5));
        for rates in [
            &mut kernel.prompt_flops_per_second,
            &mut kernel.prompt_few_flops_per_second,
            &mut kernel.prompt_sparse_flops_per_second,
            &mut kernel.attention_flops_per_second,
        ] {
            rates.iter_mut().for_each(|rates| grow(rates, 4.0));
        }
        for seconds in [
            &mut kernel.sparse_down_group_seconds,
            &mut kernel.short_dense_row_seconds,
            &mut kernel.short_dot_row_seconds,
            &mut kernel.short_add_row_seconds,
        ] {
            seconds.iter_mut().for_each(|seconds| grow(seconds, 0.0));
        }
        grow(&mut kernel.dispatch_seconds, 1.0);
    }
    device.storage.wake_seconds.iter_mut().for_each(|seconds| {
        let all = seconds.last().copied().unwrap_or_default();
        seconds.resize(n.max(seconds.len()), all);
    });
    grow(&mut device.memory.stream_bytes_per_second, 0.5);
    grow(&mut device.memory.gather_bytes_per_second, 0.5);
}
