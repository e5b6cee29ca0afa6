//! The device half: cores, memory, flash and what of them can be taken.
