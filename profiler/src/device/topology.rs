//! The machine's cores in the contract's terms, and a name for it.

use flashplan::internals::machine::Machine;

/// The usable cores, fastest first.
pub fn ids(machine: &Machine) -> Vec<u32> {
    machine.allowed_classes().iter().flat_map(|class| class.cores.iter().map(|core| core.id)).collect()
}

/// A short name such as `amd-epyc-2c-24g`: processor, cores and memory, without the host's name.
pub fn slug(machine: &Machine) -> String {
    let cores: usize = machine.classes.iter().map(|class| class.cores.len()).sum();
    let mut words: Vec<String> = machine
        .cpu
        .to_lowercase()
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !matches!(*word, "" | "r" | "tm" | "cpu" | "processor" | "with" | "core"))
        .take(4)
        .map(str::to_owned)
        .collect();
    words.push(format!("{cores}c"));
    words.push(format!("{}g", (machine.ram_bytes + (1 << 29)) >> 30));
    words.join("-")
}
