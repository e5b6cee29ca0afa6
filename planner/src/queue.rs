//! Ways in the order of their bounds, the lowest first. Most are never bounded one by one: what no way of a group can be
//! below dismisses all of it at once.
//!
//! ```text
//! all core sets of a level, with reads that differ in depth and buffers   split in halves, down to
//! one or two core sets with these reads                                    split into
//! ways: one core set, one way of reading, one prompt
//! ```
//!
//! A group is looked into when nothing that is left has a lower bound. So ways come in the order in which sorting all of
//! them by their own bounds would bring them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use plans::Device;

use crate::curve::Curve;
use crate::room::Room;
use crate::space::{Group, Space, Way};

/// Core sets that are not split further before their reads are.
const SETS_MIN: usize = 2;

/// A group, which is looked into before a way of the same bound is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    Group(Group),
    Way(Way),
}

/// Ways with their bounds, the lowest first.
pub(crate) struct Queue<'q, B> {
    space: &'q Space<'q>,
    device: &'q Device,
    regions: i64,
    /// How many of the prompts are told apart.
    prompts: usize,
    bound: B,
    heap: BinaryHeap<Reverse<(i64, Node)>>,
}

impl<'q, B: Fn(i64, Room, &Curve) -> Option<i64>> Queue<'q, B> {
    /// Of all ways of a space within so many bytes of regions, with the first so many of its prompts. `bound` is that of what
    /// has so many ticks that nothing overlaps, such room, and such a curve; `None` if it cannot keep the limits.
    pub(crate) fn new(
        space: &'q Space<'q>,
        device: &'q Device,
        regions: i64,
        prompts: usize,
        bound: B,
    ) -> Self {
        let mut queue = Self { space, device, regions, prompts, bound, heap: BinaryHeap::new() };
        for (level, groups) in space.groups.iter().enumerate() {
            for reads in 0..groups.reads.len() {
                queue.push(Group { level, reads, sets: (0, groups.sets.len()) });
            }
        }
        queue
    }

    fn push(&mut self, group: Group) {
        let space = self.space;
        let (ways, groups) = (&space.ways[group.level], &space.groups[group.level]);
        let reads = ways.read_group(&groups.reads[group.reads]);
        let compute = ways.compute_group(&groups.sets[group.sets.0..group.sets.1].concat());
        let curve = space.curve_of_group(group, &compute, &reads);
        let prompts = &space.prompts[..self.prompts];
        let room = ways.room_of_group(self.device, self.regions, &compute, &reads, prompts);
        if let Some(bound) = (self.bound)(space.ticks(compute.serial), room, &curve) {
            self.heap.push(Reverse((bound, Node::Group(group))));
        }
    }

    fn split(&mut self, Group { level, reads, sets: (first, end) }: Group) {
        if end - first > SETS_MIN {
            let middle = first + (end - first) / 2;
            for sets in [(first, middle), (middle, end)] {
                self.push(Group { level, reads, sets });
            }
            return;
        }
        let (space, prompts) = (self.space, self.prompts);
        let (ways, groups) = (&space.ways[level], &space.groups[level]);
        for &read in &groups.reads[reads] {
            let mut least = None;
            for set in first..end {
                let curve = space.curve(level, read, set, &mut least);
                let computes = groups.sets[set].iter();
                let all = computes.flat_map(|&compute| (0..prompts).map(move |prompt| (compute, prompt)));
                for (compute, prompt) in all {
                    let way = Way { level, compute, read, prompt };
                    let serial = space.ticks(ways.computes[compute].serial);
                    let bound = (self.bound)(serial, space.room(self.device, way, self.regions), &curve);
                    self.heap.extend(bound.map(|bound| Reverse((bound, Node::Way(way)))));
                }
            }
        }
    }
}

impl<B: Fn(i64, Room, &Curve) -> Option<i64>> Iterator for Queue<'_, B> {
    type Item = (i64, Way);

    fn next(&mut self) -> Option<(i64, Way)> {
        loop {
            let Reverse((bound, node)) = self.heap.pop()?;
            match node {
                Node::Way(way) => return Some((bound, way)),
                Node::Group(group) => self.split(group),
            }
        }
    }
}
