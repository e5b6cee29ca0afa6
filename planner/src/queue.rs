//! Branch and bound: configurations in the order of their lower bounds.
//!
//! A node's relaxation is solved when no other node has a lower bound; until then the node has its parent's bound. A node that can
//! hold nothing better than the incumbent is pruned; any other is halved, down to configurations.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use plans::plan::Objective;

use crate::pricing::Pricing;
use crate::relax::{self, Relaxation};
use crate::room::Room;
use crate::space::{Configuration, Node};

/// A node or a configuration that waits.
#[derive(Debug)]
enum Entry {
    /// A node whose relaxation is not solved.
    Open(Node),
    /// A node of several ways of reading whose relaxation was solved.
    Group(Node),
    Configuration(Configuration),
}

/// Configurations with their bounds, the lowest first.
pub(crate) struct Queue<'q> {
    pricing: &'q Pricing<'q>,
    objective: Objective,
    regions: i64,
    wanted: &'q Cell<i64>,
    heap: BinaryHeap<Reverse<(i64, usize)>>,
    /// Entries by their number in the heap, until they are taken.
    entries: Vec<Option<Entry>>,
}

impl<'q> Queue<'q> {
    /// All configurations within so many bytes of regions, as long as the bound of their objective is at most `wanted`.
    pub(crate) fn new(
        pricing: &'q Pricing<'q>,
        objective: Objective,
        regions: i64,
        wanted: &'q Cell<i64>,
    ) -> Self {
        let (heap, entries) = (BinaryHeap::new(), Vec::new());
        let mut queue = Self { pricing, objective, regions, wanted, heap, entries };
        for root in pricing.space.roots() {
            let least = match objective {
                Objective::Speed => relax::computing(pricing.space, root),
                Objective::Memory => 0,
            };
            queue.enter(least, Entry::Open(root));
        }
        queue
    }

    fn enter(&mut self, bound: i64, entry: Entry) {
        if bound <= self.wanted.get() {
            self.heap.push(Reverse((bound, self.entries.len())));
            self.entries.push(Some(entry));
        }
    }

    /// Solves a node's relaxation, unless the node leaves no room or no prompt keeps the limits. No entry holds it: it is large.
    fn relax(&mut self, known: i64, node: Node) {
        let room = relax::room(self.pricing.space, self.pricing.question.device, node, self.regions);
        let Some(pinned) = self.pinned_least(node, room.budgets()[0]) else { return };
        let relaxation = self.pricing.space.relaxation(node);
        if let Some(bound) = self.bound(room, pinned, &relaxation) {
            let bound = bound.max(known);
            if node.is_single() {
                self.configurations(bound, node, &relaxation);
            } else {
                self.enter(bound, Entry::Group(node));
            }
        }
    }

    fn bound(&self, room: Room, pinned: i64, relaxation: &Relaxation) -> Option<i64> {
        self.pricing.least(self.objective, self.regions, room, pinned, relaxation)
    }

    /// The fewest bytes of pinned neurons with which a prompt of a node keeps the limits within so many bytes; `None` where none
    /// does.
    fn pinned_least(&self, node: Node, bytes: i64) -> Option<i64> {
        let space = self.pricing.space;
        let options = &space.options[node.level];
        let computes = space.computes_of(node);
        let mut rows: Vec<bool> =
            computes.iter().map(|&compute| options.computes[compute].embedding_rows).collect();
        rows.sort_unstable();
        rows.dedup();
        let members =
            space.reads_of(node).iter().flat_map(|&read| rows.iter().map(move |&rows| (read, rows)));
        let fewest = |(read, rows): (usize, bool)| {
            let prompts = self.pricing.limited.useful(node.level, read, rows);
            let fit = |&&(prompt, pinned): &&(usize, i64)| space.prompts[prompt].rows_bytes + pinned <= bytes;
            prompts.iter().filter(fit).map(|&(_, pinned)| pinned).min()
        };
        members.filter_map(fewest).min()
    }

    /// The configurations of a single node.
    fn configurations(&mut self, known: i64, node: Node, relaxation: &Relaxation) {
        let (space, read) = (self.pricing.space, self.pricing.space.reads_of(node)[0]);
        let options = &space.options[node.level];
        for compute in space.computes_of(node) {
            let rows = options.computes[compute].embedding_rows;
            let serial = (options.computes[compute].serial / space.tick_seconds) as i64;
            let own = relaxation.with_serial(serial);
            for &(prompt, pinned) in self.pricing.limited.useful(node.level, read, rows).iter() {
                let config = Configuration { level: node.level, compute, read, prompt };
                let room = self.pricing.room(config, self.regions);
                if pinned > room.budgets()[1] {
                    continue;
                }
                if let Some(bound) = self.bound(room, pinned, &own) {
                    self.enter(bound.max(known), Entry::Configuration(config));
                }
            }
        }
    }
}

impl Iterator for Queue<'_> {
    type Item = (i64, Configuration);

    fn next(&mut self) -> Option<(i64, Configuration)> {
        loop {
            let Reverse((bound, place)) = self.heap.pop()?;
            if bound > self.wanted.get() {
                return None;
            }
            match self.entries[place].take()? {
                Entry::Configuration(config) => return Some((bound, config)),
                Entry::Open(node) => self.relax(bound, node),
                Entry::Group(node) => {
                    node.halves().into_iter().for_each(|half| self.enter(bound, Entry::Open(half)));
                }
            }
        }
    }
}
