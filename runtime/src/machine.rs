//! What a machine is and what of it this process may use, as `/proc` and `/sys` tell it.

/// Why the machine cannot be described.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {}
