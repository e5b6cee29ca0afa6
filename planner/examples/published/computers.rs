//! Computers that people own, described by published figures and by what was measured on the machines of `plans`.

use plans::Backend;
use plans::device::{
    Capacity, CoreClass, Device, Identity, KernelSpeed, Memory, OwnMemory, Provenance, ReadCost, ReadSpeed,
    Storage, Unit, UnitRates,
};

/// A core, measured or derived: FLOP/s of `Q4_K` and `Q6_K`, of prompts, and of prompts of few tokens.
#[derive(Clone, Copy)]
struct Core {
    decode: [f64; 2],
    prompt: f64,
    few: f64,
}

/// Measured: one core of `amd-epyc-zen5-2c-24g`.
const ZEN_5: Core = Core { decode: [98e9, 104e9], prompt: 300e9, few: 188e9 };
/// Measured: one core of `amd-epyc-2c-24g`.
const ZEN_3: Core = Core { decode: [35e9, 28e9], prompt: 103e9, few: 60e9 };
/// Assumed: 0.75 of a Zen 5 core.
const ZEN_4: Core = Core { decode: [73e9, 78e9], prompt: 225e9, few: 141e9 };
/// Assumed: 9 GFLOP/s, 0.8 of a phone's middle core by clock and again by generation.
const A76: Core = Core { decode: [9e9, 9e9], prompt: 20e9, few: 12e9 };

/// A disk: seconds of a read by itself, most reads a second, most bytes a second.
#[derive(Clone, Copy)]
struct Disk {
    name: &'static str,
    latency_seconds: f64,
    reads_per_second: f64,
    bytes_per_second: f64,
}

const PCIE_4: Disk =
    Disk { name: "NVMe PCIe 4", latency_seconds: 60e-6, reads_per_second: 400e3, bytes_per_second: 5.9e9 };
const QLC_PCIE_3: Disk = Disk {
    name: "NVMe PCIe 3 QLC",
    latency_seconds: 90e-6,
    reads_per_second: 150e3,
    bytes_per_second: 1.5e9,
};
const PI_HAT: Disk =
    Disk { name: "NVMe PCIe 3 x1", latency_seconds: 100e-6, reads_per_second: 50e3, bytes_per_second: 0.7e9 };

/// A computer.
struct Computer {
    name: &'static str,
    cpu: &'static str,
    cores: (u32, u32, Core),
    vectors: &'static [&'static str],
    ram_gib: u64,
    reserve_gib: u64,
    /// Bytes a second of one core, and of all.
    stream: [f64; 2],
    disk: Disk,
    gpu: Option<UnitRates>,
    sources: &'static [&'static str],
}

/// A GPU's rates for these tokens together: FLOP/s at one token are what its memory allows.
fn gpu(stream: f64, flops: f64, shared: Option<f64>, own_memory: Option<OwnMemory>) -> UnitRates {
    // 4.5 bits a weight, multiplied and added
    let one = stream / 0.5625 * 2.0;
    UnitRates {
        adapter: None,
        process_bytes: 0,
        formats: ["Q4_K", "Q6_K"].map(String::from).to_vec(),
        tokens: vec![1, 32, 128, 512],
        flops_per_second: vec![one, (8.0 * one).min(0.5 * flops), 0.7 * flops, 0.8 * flops],
        stream_bytes_per_second: stream,
        shared_stream_bytes_per_second: shared,
        dispatch_seconds: 30e-6,
        own_memory,
    }
}

fn all() -> [Computer; 5] {
    let own = |gib: u64, copy_bytes_per_second| Some(OwnMemory { bytes: gib << 30, copy_bytes_per_second });
    [
        Computer {
            name: "pc-32g-rtx-4060",
            cpu: "AMD Ryzen 7 7700",
            cores: (8, 5300, ZEN_4),
            vectors: &["scalar", "avx2", "avx512"],
            ram_gib: 32,
            reserve_gib: 4,
            stream: [30e9, 62e9],
            disk: PCIE_4,
            gpu: Some(gpu(0.85 * 272e9, 15.1e12, None, own(7, 12e9))),
            sources: &[
                "Published (AMD): 8 cores at up to 5.3 GHz. Published (JEDEC): two channels of DDR5-5200 move 83 GB/s. Assumed: all cores reach 0.75 of it, one core 30 GB/s.",
                "Assumed: a Zen 4 core computes 0.75 of what a Zen 5 core does, which was measured (amd-epyc-zen5-2c-24g).",
                "Published (NVIDIA): 8 GB, 272 GB/s, 15.1 TFLOP/s. Assumed: 7 GiB to use, 0.85 of the bandwidth, 0.8 of the FLOP/s with 512 tokens. 12 GB/s over PCIe 4 x8, as others measured of PCIe 3 x16.",
            ],
        },
        Computer {
            name: "pc-64g-rtx-5070",
            cpu: "AMD Ryzen 7 9700X",
            cores: (8, 5500, ZEN_5),
            vectors: &["scalar", "avx2", "avx512"],
            ram_gib: 64,
            reserve_gib: 4,
            stream: [40e9, 67e9],
            disk: PCIE_4,
            gpu: Some(gpu(0.85 * 672e9, 30.9e12, None, own(11, 25e9))),
            sources: &[
                "Published (AMD): 8 cores at up to 5.5 GHz. Published (JEDEC): two channels of DDR5-5600 move 90 GB/s. Assumed: all cores reach 0.75 of it. Measured (amd-epyc-zen5-2c-24g): one core reaches 40 GB/s.",
                "Measured (amd-epyc-zen5-2c-24g): FLOP/s of a Zen 5 core.",
                "Published (NVIDIA): 12 GB, 672 GB/s, 30.9 TFLOP/s. Assumed: 11 GiB to use, 0.85 of the bandwidth, 0.8 of the FLOP/s with 512 tokens. 25 GB/s over PCIe 4 x16, as others measured.",
            ],
        },
        Computer {
            name: "mini-pc-32g",
            cpu: "AMD Ryzen AI Max 385",
            cores: (8, 5000, ZEN_5),
            vectors: &["scalar", "avx2", "avx512"],
            ram_gib: 32,
            reserve_gib: 4,
            stream: [40e9, 115e9],
            disk: PCIE_4,
            gpu: Some(gpu(200e9, 14.8e12, Some(220e9), None)),
            sources: &[
                "Published (AMD): 8 Zen 5 cores at up to 5.0 GHz, 256 GB/s of LPDDR5X-8000 that cores and GPU share, 32 compute units. Assumed: cores reach 0.45 of the bandwidth, the GPU 0.78, both together 0.86.",
                "Measured (amd-epyc-zen5-2c-24g): FLOP/s and bandwidth of a Zen 5 core. Derived: 14.8 TFLOP/s of 32 units with 64 lanes, two results and two operations each at 1.8 GHz sustained; assumed: 0.8 of it with 512 tokens.",
            ],
        },
        Computer {
            name: "laptop-16g",
            cpu: "AMD Ryzen 5 7430U",
            cores: (6, 4300, ZEN_3),
            vectors: &["scalar", "avx2"],
            ram_gib: 16,
            reserve_gib: 3,
            stream: [16.6e9, 36e9],
            disk: QLC_PCIE_3,
            gpu: None,
            sources: &[
                "Published (AMD): 6 Zen 3 cores at up to 4.3 GHz. Published (JEDEC): two channels of DDR4-3200 move 51 GB/s. Assumed: all cores reach 0.7 of it. Measured (amd-epyc-2c-24g): one core reaches 16.6 GB/s.",
                "Measured (amd-epyc-2c-24g): FLOP/s of a Zen 3 core with AVX2. Assumed: 0.6 of it in prompts of few tokens. Its own GPU is left out.",
            ],
        },
        Computer {
            name: "raspberry-pi-5-16g",
            cpu: "Broadcom BCM2712",
            cores: (4, 2400, A76),
            vectors: &["scalar", "neon"],
            ram_gib: 16,
            reserve_gib: 1,
            stream: [7e9, 10.2e9],
            disk: PI_HAT,
            gpu: None,
            sources: &[
                "Published (Raspberry Pi): 4 Cortex-A76 at 2.4 GHz, 16 GB of LPDDR4X-4267 on 32 bits, 17 GB/s. Assumed: all cores reach 0.6 of it, one core 7 GB/s.",
                "Assumed: 9 GFLOP/s a core, 20 in prompts; a phone's middle core has 14.4 (oneplus-12), here 0.8 of it by clock and 0.8 by generation.",
            ],
        },
    ]
}

/// Sources of what all of them have in common.
const COMMON: [&str; 3] = [
    "Described, not measured: profile the machine itself before plans are believed.",
    "Published by users of such disks: bytes/s of long reads (PCIe 4 5.9 GB/s, PCIe 3 QLC 1.5, a Raspberry Pi 5's lane 0.7). Assumed: 60 to 100 us for a read by itself and 50,000 to 400,000 reads a second at most; between these a read takes its latency and its bytes.",
    "Measured (amd-epyc-zen5-2c-24g): CPU time and interference of reads, memory of the process and of a thread; dense kernels reach 0.9 and gathered ones 0.6 of the bandwidth. Assumed: 3 to 10 us to start all threads, 30 us to hand a matrix to a GPU.",
];

/// All computers.
pub(crate) fn devices() -> Vec<Device> {
    all().into_iter().map(device).collect()
}

fn device(c: Computer) -> Device {
    let (count, clock_mhz, core) = c.cores;
    let identity = Identity {
        cpu: c.cpu.to_owned(),
        core_classes: vec![format!("{count} x {clock_mhz} MHz")],
        instruction_sets: c.vectors.iter().copied().map(String::from).collect(),
        ram_gib: c.ram_gib,
        storage: c.disk.name.to_owned(),
    };
    let threads = 1..=count;
    let by_thread = |of_one: f64, most: f64| -> Vec<f64> {
        threads.clone().map(|n| (f64::from(n) * of_one).min(most)).collect()
    };
    let stream = by_thread(c.stream[0], c.stream[1]);
    let scaled = |by: f64| stream.iter().map(|rate| by * rate).collect::<Vec<_>>();
    let added = |of_one: f64| by_thread(of_one, f64::INFINITY);
    let kernel = |(format, flops): (&str, f64)| KernelSpeed {
        format: format.to_owned(),
        instruction_set: c.vectors[c.vectors.len() - 1].to_owned(),
        flops_per_second: added(flops),
        dense_bytes_per_second: scaled(0.9),
        sparse_bytes_per_second: scaled(0.6),
        sparse_down_bytes_per_second: None,
        sparse_down_group_seconds: None,
        prompt_flops_per_second: Some(added(core.prompt)),
        prompt_few_flops_per_second: Some(added(core.few)),
        prompt_sparse_flops_per_second: None,
        attention_flops_per_second: None,
        short_dense_row_seconds: None,
        short_dot_row_seconds: None,
        short_add_row_seconds: None,
        dispatch_seconds: threads.clone().map(|n| 2e-6 + 1e-6 * f64::from(n)).collect(),
        spread_fraction: None,
    };
    let kernels = ["Q4_K", "Q6_K"].into_iter().zip(core.decode).map(kernel).collect();
    let mut notes: Vec<String> = c.sources.iter().copied().map(String::from).collect();
    notes.splice(0..0, COMMON[..1].iter().copied().map(String::from));
    notes.extend(COMMON[1..].iter().copied().map(String::from));
    let mut units = vec![Unit::cpu()];
    units.extend(c.gpu.map(|rates| Unit { name: "gpu".to_owned(), rates: Some(rates) }));
    Device {
        schema: plans::SCHEMA,
        name: c.name.to_owned(),
        fingerprint: Device::fingerprint_of(&identity),
        identity,
        provenance: Provenance {
            tool: "planner example published".to_owned(),
            origin: "published".to_owned(),
            notes,
        },
        capacity: Capacity {
            ram_bytes: c.ram_gib << 30,
            cgroup_limit_bytes: None,
            lockable_bytes: None,
            system_reserve_bytes: c.reserve_gib << 30,
            process_bytes: 14 << 20,
            thread_bytes: 64 << 10,
        },
        memory: Memory {
            gather_bytes_per_second: scaled(0.6),
            stream_bytes_per_second: stream.clone(),
            gather_row_bytes: 4096,
            spread_fraction: None,
            fresh_bytes_per_second: None,
        },
        storage: Storage {
            file_system: "ext4".to_owned(),
            direct: true,
            cpu_seconds_per_read: 1.07e-5,
            io_uring: Some(ReadCost {
                cpu_seconds_per_read: 2.5e-6,
                interference_fraction: 0.11,
                completed_together_fraction: Some(1.0),
            }),
            best_core: count - 1,
            interference_fraction: 0.34,
            wake_seconds: None,
            completed_together_fraction: None,
            check_bytes_per_second: None,
            reads: reads(c.disk),
        },
        cores: vec![CoreClass {
            name: "core".to_owned(),
            ids: (0..count).collect(),
            capacity: 1024,
            clock_mhz,
            flops_per_second: core.decode[0],
        }],
        kernels,
        units,
    }
}

/// Reads a second: as many as are in flight over the time of one, as far as the disk goes.
fn reads(disk: Disk) -> Vec<ReadSpeed> {
    let mut reads = Vec::new();
    for backend in Backend::ALL {
        for pattern in ["random", "sequential"] {
            for depth in [1, 4, 16, 64] {
                for block_bytes in [4096, 16384, 65536, 262_144, 1 << 20] {
                    let bytes_seconds = block_bytes as f64 / disk.bytes_per_second;
                    let rate = f64::from(depth) / (disk.latency_seconds + bytes_seconds);
                    reads.push(ReadSpeed {
                        backend,
                        direct: true,
                        pattern: pattern.to_owned(),
                        block_bytes,
                        depth,
                        span_bytes: 16 << 30,
                        reads_per_second: rate.min(disk.reads_per_second).min(1.0 / bytes_seconds),
                        spread_fraction: None,
                    });
                }
            }
        }
    }
    reads
}
