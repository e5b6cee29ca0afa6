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
use std::rc::Rc;

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
pub(crate) struct Queue<'q, P, B> {
    space: &'q Space<'q>,
    device: &'q Device,
    regions: i64,
    prompts: P,
    bound: B,
    heap: BinaryHeap<Reverse<(i64, Node)>>,
}

/// Prompts that can keep the limits, the least memory first, each with the fewest bytes of pinned neurons with which it does.
pub(crate) type Prompts = Rc<[(usize, i64)]>;

impl<'q, P, B> Queue<'q, P, B>
where
    P: Fn(usize, usize, bool) -> Prompts,
    B: Fn(i64, Room, &Curve) -> Option<i64>,
{
    /// Of all ways of a space within so many bytes of regions. `prompts` are those of a level and a way of reading, with rows
    /// of the token embedding being read or not. `bound` is that of what has so many ticks that nothing overlaps, such room,
    /// and such a curve; `None` if it cannot keep the limits.
    pub(crate) fn new(space: &'q Space<'q>, device: &'q Device, regions: i64, prompts: P, bound: B) -> Self {
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
        let members = &groups.reads[group.reads];
        let reads = ways.read_group(members);
        let compute = ways.compute_group(&groups.sets[group.sets.0..group.sets.1].concat());
        let rows = [false, true].into_iter().zip(compute.embedding_rows).filter(|(_, some)| *some);
        let of_members = rows.flat_map(|(rows, _)| members.iter().map(move |&read| (read, rows)));
        let prompts: Vec<Prompts> =
            of_members.map(|(read, rows)| (self.prompts)(group.level, read, rows)).collect();
        let all = || prompts.iter().flat_map(|prompts| prompts.iter());
        let room = ways.room_of_group(
            self.device,
            self.regions,
            &compute,
            &reads,
            all().map(|&(prompt, _)| &space.prompts[prompt]),
        );
        let beside = all().map(|&(prompt, pinned)| space.prompts[prompt].rows_bytes + pinned).min();
        if beside.is_none_or(|beside| beside > room.budgets()[0]) {
            return;
        }
        let curve = space.curve_of_group(group, &compute, &reads);
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
        let space = self.space;
        let (ways, groups) = (&space.ways[level], &space.groups[level]);
        for &read in &groups.reads[reads] {
            let mut least = None;
            let prompts = [false, true].map(|rows| (self.prompts)(level, read, rows));
            if prompts.iter().all(|prompts| prompts.is_empty()) {
                continue;
            }
            for set in first..end {
                let curve = space.curve(level, read, set, &mut least);
                for &compute in &groups.sets[set] {
                    let of_compute = &ways.computes[compute];
                    let serial = space.ticks(of_compute.serial);
                    for &(prompt, pinned) in prompts[usize::from(of_compute.embedding_rows)].iter() {
                        let way = Way { level, compute, read, prompt };
                        let room = space.room(self.device, way, self.regions);
                        let bound = (self.bound)(serial, room, &curve);
                        let bound = bound.filter(|_| pinned <= room.budgets()[1]);
                        self.heap.extend(bound.map(|bound| Reverse((bound, Node::Way(way)))));
                    }
                }
            }
        }
    }
}

impl<P, B> Iterator for Queue<'_, P, B>
where
    P: Fn(usize, usize, bool) -> Prompts,
    B: Fn(i64, Room, &Curve) -> Option<i64>,
{
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
