//! Phones of the paper's experiments.

use plans::device::{
    Capacity, CoreClass, Device, Identity, KernelSpeed, Memory, Provenance, ReadSpeed, Storage, Unit,
    UnitRates,
};

/// A phone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phone {
    /// 24 GB, UFS 4.0, Snapdragon 8 Gen 3.
    OnePlus12,
    /// 16 GB, UFS 3.1, Snapdragon 8+ Gen 1.
    Ace2,
}

/// Bytes of a `Q4_0` row of 4096 values.
const ROW: u64 = 4096 / 32 * 18;

/// A OnePlus 12 with 24 GB, or an Ace 2 with 16.
pub(crate) fn device(phone: Phone) -> Device {
    let mut device = one_plus_12();
    if phone == Phone::Ace2 {
        ace_2(&mut device);
    }
    device.fingerprint = Device::fingerprint_of(&device.identity);
    device
}

fn one_plus_12() -> Device {
    let identity = Identity {
        cpu: "Snapdragon 8 Gen 3".to_owned(),
        core_classes: ["1 x 3300 MHz", "5 x 3000 MHz", "2 x 2200 MHz"].map(String::from).to_vec(),
        instruction_sets: ["scalar", "neon"].map(String::from).to_vec(),
        ram_gib: 24,
        storage: "UFS 4.0".to_owned(),
    };
    let stream = [18e9, 28e9, 35e9, 40e9, 43e9, 43.9e9, 43.9e9, 43.9e9];
    let flops = added(&[(1, 42e9), (5, 14.4e9), (2, 5.3e9)]);
    let mut reads = Vec::new();
    for (pattern, points) in [
        (
            "random",
            [(4096, 207_500.0), (8192, 103_700.0), (16384, 73_000.0), (65536, 33_500.0), (524_288, 7_440.0)],
        ),
        (
            "sequential",
            [(4096, 110_000.0), (8192, 97_600.0), (16384, 91_500.0), (65536, 45_800.0), (524_288, 7_630.0)],
        ),
    ] {
        for (depth, share) in [(1, 0.2), (8, 0.7), (32, 1.0)] {
            for (block_bytes, rate) in points {
                reads.push(ReadSpeed {
                    backend: plans::Backend::Pread,
                    direct: true,
                    pattern: pattern.to_owned(),
                    block_bytes,
                    depth,
                    span_bytes: 512 << 20,
                    reads_per_second: rate * share,
                    spread_fraction: None,
                });
            }
        }
    }
    Device {
        schema: plans::SCHEMA,
        name: "oneplus-12".to_owned(),
        fingerprint: Device::fingerprint_of(&identity),
        identity,
        provenance: Provenance {
            tool: "planner example published".to_owned(),
            origin: "published".to_owned(),
            notes: [
                "Published (PowerInfer-2): core counts and clocks, 24 GB of which 19 are usable, 43.9 GB/s of memory bandwidth for the CPU, 56 for the NPU and 59.6 for both, 770 tok/s of the NPU's prefill of a 7B model in INT4, 4 KB random reads of 1 GB/s within 128 MB and 850 MB/s across 512 MB, sequential reads of 450 MB/s at 4 KB and 4 GB/s at 512 KB.",
                "Assumed: core ids (0-1 little, 2-6 mid, 7 big) and capacities.",
                "Assumed: memory bandwidth below six threads; dense kernels reach 90 % and gathered ones 70 % of it.",
                "Assumed: 42, 14.4 and 5.3 GFLOP/s of a big, mid and little core; the big and the mid cores together give the published CPU prefill of a 7B model, 8 tok/s. Cores claim pieces of the work, so their rates add up.",
                "Assumed: reads/s between the published blocks, 20 % of them at depth 1 and 70 % at depth 8; spans above 512 MB read like 512 MB.",
                "Assumed: two 4 KB reads are as fast as one of 8 KB, the least that `two beat one` allows.",
                "Derived: 3.8 us of CPU per read from the published 1076 MB/s of 4 KB reads issued by the big core.",
                "Derived: 11 TFLOP/s of the NPU from that prefill. Assumed: the same from 512 tokens on, and less with fewer, down to what its memory bandwidth needs with one; 25 us to hand a matrix over.",
                "Assumed: 5 % of compute speed lost while reads are in flight; 3 to 10 us to start all threads; 48 MiB for the process and 256 KiB for a thread.",
            ]
            .map(String::from)
            .to_vec(),
        },
        capacity: Capacity {
            ram_bytes: 24 << 30,
            cgroup_limit_bytes: None,
            lockable_bytes: None,
            system_reserve_bytes: 5 << 30,
            process_bytes: 48 << 20,
            thread_bytes: 256 << 10,
        },
        memory: Memory {
            stream_bytes_per_second: stream.to_vec(),
            gather_bytes_per_second: stream.map(|rate| 0.7 * rate).to_vec(),
            gather_row_bytes: 3 * ROW,
            spread_fraction: None,
            fresh_bytes_per_second: None,
        },
        storage: Storage {
            file_system: "f2fs".to_owned(),
            direct: true,
            cpu_seconds_per_read: 3.8e-6,
            io_uring: None,
            best_core: 7,
            interference_fraction: 0.05,
            wake_seconds: None,
            completed_together_fraction: None,
            check_bytes_per_second: None,
            reads,
        },
        cores: vec![
            class("big", &[7], 1024, 3300, 42e9),
            class("mid", &[2, 3, 4, 5, 6], 870, 3000, 14.4e9),
            class("little", &[0, 1], 310, 2200, 5.3e9),
        ],
        kernels: vec![KernelSpeed {
            format: "Q4_0".to_owned(),
            instruction_set: "neon".to_owned(),
            flops_per_second: flops,
            dense_bytes_per_second: stream.map(|rate| 0.9 * rate).to_vec(),
            sparse_bytes_per_second: stream.map(|rate| 0.7 * rate).to_vec(),
            sparse_down_bytes_per_second: None,
            sparse_down_group_seconds: None,
            prompt_flops_per_second: None,
            prompt_few_flops_per_second: None,
            prompt_sparse_flops_per_second: None,
            attention_flops_per_second: None,
            short_dense_row_seconds: None,
            short_dot_row_seconds: None,
            short_add_row_seconds: None,
            dispatch_seconds: (0..8).map(|i| 3e-6 + 1e-6 * f64::from(i)).collect(),
            spread_fraction: None,
        }],
        units: vec![Unit::cpu(), npu()],
    }
}

/// The NPU of a Snapdragon 8 Gen 3.
fn npu() -> Unit {
    let rates = UnitRates {
        adapter: None,
        process_bytes: 0,
        formats: vec!["Q4_0".to_owned()],
        tokens: vec![1, 32, 128, 512],
        flops_per_second: vec![0.4e12, 4e12, 9e12, 11e12],
        stream_bytes_per_second: 56e9,
        shared_stream_bytes_per_second: Some(59.6e9),
        dispatch_seconds: 25e-6,
        own_memory: None,
    };
    Unit { name: "npu".to_owned(), rates: Some(rates) }
}

/// Against a OnePlus 12: memory, computing and flash of an Ace 2.
const ACE_2: [f64; 3] = [0.75, 0.8, 0.5];

/// Makes an Ace 2 of a OnePlus 12.
fn ace_2(device: &mut Device) {
    let [memory, compute, flash] = ACE_2;
    let scale = |rates: &mut [f64], times: f64| rates.iter_mut().for_each(|rate| *rate *= times);
    device.name = "oneplus-ace-2".to_owned();
    device.identity.cpu = "Snapdragon 8+ Gen 1".to_owned();
    device.identity.core_classes =
        ["1 x 3000 MHz", "3 x 2500 MHz", "4 x 1800 MHz"].map(String::from).to_vec();
    device.identity.ram_gib = 16;
    device.identity.storage = "UFS 3.1".to_owned();
    device.provenance.notes = [
        "Published (PowerInfer-2): 16 GB of which 11 are usable, UFS 3.1. Published by its maker: core counts and clocks.",
        "Assumed: 0.75 of a OnePlus 12's memory bandwidth (LPDDR5 against LPDDR5X), 0.8 of its computing, half of its flash; everything else as there.",
    ]
    .map(String::from)
    .to_vec();
    device.capacity.ram_bytes = 16 << 30;
    scale(&mut device.memory.stream_bytes_per_second, memory);
    scale(&mut device.memory.gather_bytes_per_second, memory);
    for kernel in &mut device.kernels {
        scale(&mut kernel.flops_per_second, compute);
        scale(&mut kernel.dense_bytes_per_second, memory);
        scale(&mut kernel.sparse_bytes_per_second, memory);
    }
    device.storage.reads.iter_mut().for_each(|read| read.reads_per_second *= flash);
    device.storage.cpu_seconds_per_read /= compute;
    device.cores = vec![
        class("big", &[7], 1024, 3000, compute * 42e9),
        class("mid", &[4, 5, 6], 870, 2500, compute * 14.4e9),
        class("little", &[0, 1, 2, 3], 310, 1800, compute * 5.3e9),
    ];
    device.kernels[0].flops_per_second =
        added(&[(1, compute * 42e9), (3, compute * 14.4e9), (4, compute * 5.3e9)]);
    for rates in device.units.iter_mut().filter_map(|unit| unit.rates.as_mut()) {
        scale(&mut rates.flops_per_second, compute);
        rates.stream_bytes_per_second *= memory;
        rates.shared_stream_bytes_per_second = rates.shared_stream_bytes_per_second.map(|rate| rate * memory);
    }
}

/// FLOP/s of one thread, of two, and so on: the speeds of the fastest cores, added up.
fn added(classes: &[(usize, f64)]) -> Vec<f64> {
    let cores = classes.iter().flat_map(|&(count, flops)| std::iter::repeat_n(flops, count));
    cores
        .scan(0.0, |sum, flops| {
            Some({
                *sum += flops;
                *sum
            })
        })
        .collect()
}

fn class(name: &str, ids: &[u32], capacity: u32, clock_mhz: u32, flops_per_second: f64) -> CoreClass {
    CoreClass { name: name.to_owned(), ids: ids.to_vec(), capacity, clock_mhz, flops_per_second }
}
