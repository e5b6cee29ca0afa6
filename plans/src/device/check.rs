//! The ranges of the values of a `device.toml`, each by itself and beside the others.

use super::{
    Capacity, CoreClass, Device, Identity, KernelSpeed, Memory, OwnMemory, Provenance, ReadCost, ReadSpeed,
    Storage, Unit, UnitRates,
};
use crate::check::{
    At, BYTES_MAX, CONTEXT_MAX, CORE_MAX, CORES_MAX, Checked, FORMATS, INSTRUCTION_SETS, TEXT_BYTES_MAX,
    UNITS, number,
};
use crate::{Backend, SCHEMA};

/// Origins of a profile's figures.
pub(crate) const ORIGINS: [&str; 3] = ["measured", "published", "assumed"];
/// Access patterns of timed reads.
const PATTERNS: [&str; 2] = ["random", "sequential"];
/// The longest timed read, and the longest row.
const BLOCK_BYTES_MAX: u64 = 1 << 30;
/// The most timed reads in flight.
const DEPTH_MAX: u64 = 1 << 16;
/// The highest clock, in megahertz.
const CLOCK_MAX: u64 = 1_000_000;
/// The capacity of the fastest class.
const CAPACITY_FULL: u64 = 1024;
/// Upper limit of the seconds of a step, a row or a read.
const STEP_SECONDS_MAX: f64 = 1.0;
/// The largest spread of timed windows.
const SPREAD_MAX: f64 = 1e3;

/// The whole file.
pub(super) fn check(device: &Device, at: &At<'_>) -> Checked {
    let Device {
        schema,
        name,
        fingerprint,
        identity: of_identity,
        provenance: of_provenance,
        capacity: of_capacity,
        memory: of_memory,
        storage: of_storage,
        cores: of_cores,
        kernels: of_kernels,
        units: of_units,
    } = device;
    at.key("schema").count(*schema, SCHEMA.into(), SCHEMA.into())?;
    at.key("name").plain(name)?;
    identity(of_identity, &at.key("identity"))?;
    let print = at.key("fingerprint");
    print.note("the hash of `identity`");
    print.holds(*fingerprint == Device::fingerprint_of(of_identity), || {
        format!("is `{fingerprint}`, and [identity] has another; profile the device again")
    })?;
    provenance(of_provenance, &at.key("provenance"))?;
    capacity(of_capacity, of_identity, &at.key("capacity"))?;
    cores(of_cores, &at.key("cores"))?;
    let ids = device.core_ids();
    memory(of_memory, ids.len(), &at.key("memory"))?;
    storage(of_storage, &ids, &at.key("storage"))?;
    kernels(of_kernels, of_identity, ids.len(), &at.key("kernels"))?;
    units(of_units, &at.key("units"))
}

fn identity(identity: &Identity, at: &At<'_>) -> Checked {
    let Identity { cpu, core_classes, instruction_sets, ram_gib, storage } = identity;
    at.key("cpu").text(cpu)?;
    let classes = at.key("core_classes");
    classes.note("one or more");
    classes.holds(!core_classes.is_empty(), || "is empty; a machine has a core".to_owned())?;
    classes.each(core_classes, |at, class| at.text(class))?;
    let sets = at.key("instruction_sets");
    sets.note("one or more, each once");
    sets.holds(!instruction_sets.is_empty(), || "is empty; every machine has `scalar`".to_owned())?;
    sets.each(instruction_sets, |at, set| at.named(set, &INSTRUCTION_SETS))?;
    let twice = (1..instruction_sets.len()).find(|&i| instruction_sets[..i].contains(&instruction_sets[i]));
    sets.holds(twice.is_none(), || "names an instruction set twice; name each once".to_owned())?;
    at.key("ram_gib").count(*ram_gib, 0, BYTES_MAX >> 30)?;
    at.key("storage").text(storage)
}

fn provenance(provenance: &Provenance, at: &At<'_>) -> Checked {
    let Provenance { tool, origin, notes } = provenance;
    at.key("tool").text(tool)?;
    at.key("origin").named(origin, &ORIGINS)?;
    at.key("notes").note(&format!("lines of at most {TEXT_BYTES_MAX} bytes"));
    at.key("notes").each(notes, |at, note| at.text(note))
}

fn capacity(capacity: &Capacity, identity: &Identity, at: &At<'_>) -> Checked {
    let Capacity {
        ram_bytes,
        cgroup_limit_bytes,
        lockable_bytes,
        system_reserve_bytes,
        process_bytes,
        thread_bytes,
    } = *capacity;
    let ram = at.key("ram_bytes");
    ram.count(ram_bytes, 1, BYTES_MAX)?;
    ram.note("`identity.ram_gib`, to a GiB");
    ram.holds((ram_bytes >> 30).abs_diff(identity.ram_gib) <= 1, || {
        format!("is {ram_bytes}, and identity.ram_gib is {}; profile the device again", identity.ram_gib)
    })?;
    if let Some(bytes) = cgroup_limit_bytes {
        at.key("cgroup_limit_bytes").count(bytes, 1, BYTES_MAX)?;
    }
    if let Some(bytes) = lockable_bytes {
        at.key("lockable_bytes").bytes(bytes)?;
    }
    at.key("system_reserve_bytes").count(system_reserve_bytes, 0, ram_bytes - 1)?;
    at.key("system_reserve_bytes").note("less than `capacity.ram_bytes`");
    at.key("process_bytes").count(process_bytes, 0, ram_bytes)?;
    at.key("process_bytes").note("up to `capacity.ram_bytes`");
    at.key("thread_bytes").count(thread_bytes, 0, ram_bytes)?;
    at.key("thread_bytes").note("up to `capacity.ram_bytes`");
    Ok(())
}

fn cores(classes: &[CoreClass], at: &At<'_>) -> Checked {
    at.note(&format!("1 to {CORES_MAX} cores in all"));
    let count: usize = classes.iter().map(|class| class.ids.len()).sum();
    at.holds((1..=CORES_MAX).contains(&count), || {
        format!("names {count} cores; 1 to {CORES_MAX} are possible")
    })?;
    for (index, class) in classes.iter().enumerate() {
        let at = at.item(index);
        let CoreClass { name, ids, capacity, clock_mhz, flops_per_second } = class;
        at.key("name").text(name)?;
        let of_ids = at.key("ids");
        of_ids.holds(!ids.is_empty(), || "is empty; a class has a core".to_owned())?;
        of_ids.cores(ids)?;
        of_ids.note("one or more, each in one class");
        let before = classes[..index].iter().flat_map(|class| &class.ids).find(|id| ids.contains(id));
        of_ids.holds(before.is_none(), || {
            format!("names core {} of another class again; name each once", before.map_or(0, |&id| id))
        })?;
        at.key("capacity").count(*capacity, 1, CAPACITY_FULL)?;
        at.key("clock_mhz").count(*clock_mhz, 0, CLOCK_MAX)?;
        at.key("clock_mhz").note(&format!("0 (not known) to {CLOCK_MAX}"));
        at.key("flops_per_second").rate(*flops_per_second)?;
    }
    let slower = classes.windows(2).position(|pair| pair[0].capacity < pair[1].capacity);
    at.item(slower.map_or(0, |index| index + 1)).key("capacity").holds(slower.is_none(), || {
        "is above that of the class before; classes stand fastest first".to_owned()
    })
}

fn memory(memory: &Memory, threads: usize, at: &At<'_>) -> Checked {
    let Memory {
        stream_bytes_per_second,
        gather_bytes_per_second,
        gather_row_bytes,
        fresh_bytes_per_second,
        spread_fraction,
    } = memory;
    spread(*spread_fraction, at)?;
    rates(stream_bytes_per_second, threads, &at.key("stream_bytes_per_second"))?;
    rates(gather_bytes_per_second, threads, &at.key("gather_bytes_per_second"))?;
    if let Some(rate) = fresh_bytes_per_second {
        at.key("fresh_bytes_per_second").rate(*rate)?;
    }
    at.key("gather_row_bytes").count(*gather_row_bytes, 1, BLOCK_BYTES_MAX)
}

fn spread(fraction: Option<f64>, at: &At<'_>) -> Checked {
    fraction.map_or(Ok(()), |fraction| at.key("spread_fraction").number(fraction, 0.0, SPREAD_MAX))
}

fn storage(storage: &Storage, cores: &[u32], at: &At<'_>) -> Checked {
    let Storage {
        file_system,
        direct,
        cpu_seconds_per_read,
        best_core,
        interference_fraction,
        wake_seconds,
        completed_together_fraction,
        check_bytes_per_second,
        io_uring,
        reads: of_reads,
    } = storage;
    at.key("file_system").text(file_system)?;
    at.key("direct").free(*direct);
    read_cost(
        &ReadCost {
            cpu_seconds_per_read: *cpu_seconds_per_read,
            interference_fraction: *interference_fraction,
            completed_together_fraction: *completed_together_fraction,
        },
        at,
    )?;
    let best = at.key("best_core");
    best.count(*best_core, 0, CORE_MAX.into())?;
    best.note("a core in `cores[].ids`");
    best.holds(cores.contains(best_core), || format!("is {best_core}, which is not in [[cores]]"))?;
    if let Some(seconds) = wake_seconds {
        let at = at.key("wake_seconds");
        at.length(seconds.len(), cores.len(), "there are cores")?;
        at.each(seconds, |at, &seconds| at.number(seconds, 0.0, STEP_SECONDS_MAX))?;
    }
    check_bytes_per_second.map_or(Ok(()), |rate| at.key("check_bytes_per_second").rate(rate))?;
    if let Some(cost) = io_uring {
        read_cost(cost, &at.key("io_uring"))?;
    }
    reads(of_reads, io_uring.is_some(), &at.key("reads"))
}

fn read_cost(cost: &ReadCost, at: &At<'_>) -> Checked {
    let ReadCost { cpu_seconds_per_read, interference_fraction, completed_together_fraction } = *cost;
    let together = at.key("completed_together_fraction");
    completed_together_fraction.map_or(Ok(()), |fraction| together.fraction(fraction))?;
    at.key("cpu_seconds_per_read").number(cpu_seconds_per_read, 0.0, STEP_SECONDS_MAX)?;
    at.key("interference_fraction").fraction(interference_fraction)
}

fn reads(reads: &[ReadSpeed], io_uring: bool, at: &At<'_>) -> Checked {
    at.note("one or more, each point once");
    at.holds(!reads.is_empty(), || "is missing; profile the device again".to_owned())?;
    let mut points = Vec::with_capacity(reads.len());
    for (index, read) in reads.iter().enumerate() {
        let at = at.item(index);
        let ReadSpeed {
            backend,
            direct,
            pattern,
            block_bytes,
            depth,
            span_bytes,
            reads_per_second,
            spread_fraction,
        } = read;
        spread(*spread_fraction, &at)?;
        at.key("backend").one_of_its_names(*backend);
        at.key("backend").holds(io_uring || *backend == Backend::Pread, || {
            "is `io-uring`, and [storage.io_uring] says that it is refused there".to_owned()
        })?;
        at.key("direct").free(*direct);
        at.key("pattern").named(pattern, &PATTERNS)?;
        at.key("block_bytes").count(*block_bytes, 1, BLOCK_BYTES_MAX)?;
        at.key("depth").count(*depth, 1, DEPTH_MAX)?;
        at.key("span_bytes").count(*span_bytes, *block_bytes, BYTES_MAX)?;
        at.key("span_bytes").note("`block_bytes` to 2^50");
        at.key("reads_per_second").rate(*reads_per_second)?;
        points.push(((*backend as u8, *direct, pattern, *block_bytes, *depth, *span_bytes), index));
    }
    points.sort_unstable();
    let twice = points.windows(2).find(|pair| pair[0].0 == pair[1].0).map(|pair| pair[1].1);
    at.item(twice.unwrap_or(0)).holds(twice.is_none(), || {
        "is a point of the surface that stands there already; each stands once".to_owned()
    })
}

fn kernels(kernels: &[KernelSpeed], identity: &Identity, threads: usize, at: &At<'_>) -> Checked {
    at.note("one or more, each format and instruction set once");
    at.holds(!kernels.is_empty(), || "is missing; profile the device again".to_owned())?;
    for (index, kernel) in kernels.iter().enumerate() {
        let at = at.item(index);
        let KernelSpeed {
            format,
            instruction_set,
            flops_per_second,
            dense_bytes_per_second,
            sparse_bytes_per_second,
            sparse_down_bytes_per_second,
            sparse_down_group_seconds,
            prompt_flops_per_second,
            prompt_few_flops_per_second,
            prompt_sparse_flops_per_second,
            attention_flops_per_second,
            short_dense_row_seconds,
            short_dot_row_seconds,
            short_add_row_seconds,
            dispatch_seconds,
            spread_fraction,
        } = kernel;
        spread(*spread_fraction, &at)?;
        at.key("format").named(format, &FORMATS)?;
        let set = at.key("instruction_set");
        set.named(instruction_set, &INSTRUCTION_SETS)?;
        set.note("one of `identity.instruction_sets`");
        set.holds(identity.instruction_sets.contains(instruction_set), || {
            format!(
                "is `{instruction_set}`; identity.instruction_sets has {}",
                identity.instruction_sets.join(", ")
            )
        })?;
        let twice = kernels[..index]
            .iter()
            .any(|other| (&other.format, &other.instruction_set) == (format, instruction_set));
        at.key("format").holds(!twice, || {
            format!("is `{format}`, which stands there already for `{instruction_set}`; each stands once")
        })?;
        for (key, values) in [
            ("flops_per_second", Some(flops_per_second)),
            ("dense_bytes_per_second", Some(dense_bytes_per_second)),
            ("sparse_bytes_per_second", Some(sparse_bytes_per_second)),
            ("sparse_down_bytes_per_second", sparse_down_bytes_per_second.as_ref()),
            ("prompt_flops_per_second", prompt_flops_per_second.as_ref()),
            ("prompt_few_flops_per_second", prompt_few_flops_per_second.as_ref()),
            ("prompt_sparse_flops_per_second", prompt_sparse_flops_per_second.as_ref()),
            ("attention_flops_per_second", attention_flops_per_second.as_ref()),
        ] {
            values.map_or(Ok(()), |values| rates(values, threads, &at.key(key)))?;
        }
        for (key, values) in [
            ("sparse_down_group_seconds", sparse_down_group_seconds.as_ref()),
            ("short_dense_row_seconds", short_dense_row_seconds.as_ref()),
            ("short_dot_row_seconds", short_dot_row_seconds.as_ref()),
            ("short_add_row_seconds", short_add_row_seconds.as_ref()),
            ("dispatch_seconds", Some(dispatch_seconds)),
        ] {
            let Some(values) = values else { continue };
            let at = at.key(key);
            at.length(values.len(), threads, "there are cores")?;
            at.each(values, |at, &seconds| at.above_zero(seconds, STEP_SECONDS_MAX))?;
        }
    }
    Ok(())
}

fn units(units: &[Unit], at: &At<'_>) -> Checked {
    at.note("the cpu first, each once");
    at.each(units, |at, Unit { name, rates }| {
        at.key("name").named(name, &UNITS)?;
        rates.as_ref().map_or(Ok(()), |rates| unit_rates(rates, &at.key("rates")))
    })?;
    at.holds(units.first().is_some_and(|unit| unit.name == UNITS[0]), || "begins with the cpu".to_owned())?;
    for (index, Unit { name, rates }) in units.iter().enumerate() {
        let at = at.item(index);
        let twice = units[..index].iter().any(|other| other.name == *name);
        at.key("name")
            .holds(!twice, || format!("is `{name}`, which stands there already; each stands once"))?;
        at.key("rates").note("absent for the cpu, there for every other unit");
        at.key("rates").holds(rates.is_some() == (index > 0), || match index {
            0 => "stands at the cpu; its rates are those of `kernels`".to_owned(),
            _ => format!("is missing; say what the {name} gives"),
        })?;
    }
    Ok(())
}

fn unit_rates(rates: &UnitRates, at: &At<'_>) -> Checked {
    let UnitRates {
        adapter,
        formats,
        tokens,
        flops_per_second,
        stream_bytes_per_second,
        shared_stream_bytes_per_second,
        dispatch_seconds,
        process_bytes,
        own_memory,
    } = rates;
    if let Some(adapter) = adapter {
        at.key("adapter").text(adapter)?;
    }
    at.key("process_bytes").bytes(*process_bytes)?;
    at.key("formats").holds(!formats.is_empty(), || "is empty; name what it multiplies".to_owned())?;
    at.key("formats").each(formats, |at, format| at.named(format, &FORMATS))?;
    let twice = (1..formats.len()).find(|&index| formats[..index].contains(&formats[index]));
    at.key("formats").holds(twice.is_none(), || "names a format twice; each stands once".to_owned())?;
    at.key("tokens").each(tokens, |at, &tokens| at.count(u64::from(tokens), 1, u64::from(CONTEXT_MAX)))?;
    at.key("tokens").note("rising from 1");
    at.key("tokens").holds(tokens.first() == Some(&1) && tokens.is_sorted_by(|a, b| a < b), || {
        format!("is {tokens:?}; begin with 1 and rise")
    })?;
    let flops = at.key("flops_per_second");
    flops.length(flops_per_second.len(), tokens.len(), "there are `tokens`")?;
    flops.each(flops_per_second, |at, &rate| at.rate(rate))?;
    flops.holds(flops_per_second.is_sorted(), || "falls; more tokens together are no slower".to_owned())?;
    at.key("stream_bytes_per_second").rate(*stream_bytes_per_second)?;
    let shared = at.key("shared_stream_bytes_per_second");
    if let Some(rate) = shared_stream_bytes_per_second {
        shared.rate(*rate)?;
        shared.note("at least `stream_bytes_per_second`; absent beside `own_memory`");
        shared.holds(rate >= stream_bytes_per_second, || {
            format!("is {}, less than the unit moves alone", number(*rate))
        })?;
    }
    shared.holds(shared_stream_bytes_per_second.is_some() == own_memory.is_none(), || {
        "and `own_memory` exclude each other; give one of them".to_owned()
    })?;
    at.key("dispatch_seconds").above_zero(*dispatch_seconds, STEP_SECONDS_MAX)?;
    if let Some(OwnMemory { bytes, copy_bytes_per_second }) = own_memory {
        let at = at.key("own_memory");
        at.key("bytes").count(*bytes, 1, BYTES_MAX)?;
        at.key("copy_bytes_per_second").rate(*copy_bytes_per_second)?;
    }
    Ok(())
}

/// Rates by number of threads.
fn rates(values: &[f64], threads: usize, at: &At<'_>) -> Checked {
    at.length(values.len(), threads, "there are cores")?;
    at.each(values, |at, &rate| at.rate(rate))
}
