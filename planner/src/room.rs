//! The memory that a plan's limit leaves for neurons and for a prompt's rows, to the byte.
//!
//! A prompt's rows lie over the slots, so that the larger of the two counts. Every region is rounded up to whole pages by
//! itself. [`Room::fits`] is that arithmetic; [`Room::budgets`] is the same without the rounding: two linear limits that
//! no plan within the room exceeds.

use plans::PAGE_BYTES;
use plans::memory::page_tables_bytes;

/// Bytes of one caching, or of all layers' configurations together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Need {
    /// Pinned neurons.
    pub hot: i64,
    /// Slots.
    pub cold: i64,
    /// The slots' tables.
    pub tables: i64,
}

impl Need {
    /// Sum of both needs.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self { hot: self.hot + other.hot, cold: self.cold + other.cold, tables: self.tables + other.tables }
    }

    /// The need with all signs changed, to be taken off another.
    #[must_use]
    pub fn negated(self) -> Self {
        Self { hot: -self.hot, cold: -self.cold, tables: -self.tables }
    }

    /// All but the slots, over which a prompt's rows may lie.
    pub fn beside(self) -> i64 {
        self.hot + self.tables
    }

    /// Bytes in all.
    pub fn bytes(self) -> i64 {
        self.beside() + self.cold
    }
}

/// Bytes that a limit leaves once everything that does not depend on the neurons has its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Bytes left of the limit.
    pub bytes: i64,
    /// A prompt's rows.
    pub rows: i64,
    /// The tables' bytes that no slot changes.
    pub tables: i64,
}

impl Room {
    /// Whether all layers' cachings fit, every region rounded up to pages.
    pub fn fits(&self, need: Need) -> bool {
        self.taken(need) <= self.bytes
    }

    /// Bytes of all layers' cachings with the prompt's rows, every region rounded up to pages.
    pub fn taken(&self, need: Need) -> i64 {
        on_pages(need.hot) + on_pages(need.cold).max(self.rows) + on_pages(self.tables + need.tables)
    }

    /// The most that [`Need::bytes`] and [`Need::beside`] can be.
    pub fn budgets(&self) -> [i64; 2] {
        let left = self.bytes - self.tables;
        [left, left - self.rows]
    }
}

/// The most that all regions together may take so that they and their page tables stay within a limit.
pub fn regions_within(limit_bytes: u64) -> i64 {
    let limit = limit_bytes.min(1 << 60);
    let fits = |regions: u64| regions + page_tables_bytes(regions) <= limit;
    let (mut low, mut high) = (0, limit + 1);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle) { low = middle } else { high = middle }
    }
    low as i64
}

/// The whole of a process whose regions take so many bytes.
pub fn with_page_tables(regions: i64) -> i64 {
    regions + page_tables_bytes(regions as u64) as i64
}

/// Rounded up to whole pages.
pub fn on_pages(bytes: i64) -> i64 {
    crate::curve::div_up(bytes, PAGE_BYTES as i64) * PAGE_BYTES as i64
}

#[cfg(test)]
mod tests;
