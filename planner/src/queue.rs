//! Ways in the order of their bounds, the lowest first. Most are never bounded one by one: what no way of a group can be
//! below dismisses all of it at once.
//!
//! ```text
//! all core sets of a level, with reads that differ in depth and buffers   split in halves, down to
//! a few core sets with these reads                                         split into
//! the same with one way of reading                                         split in halves, down to
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
use crate::space::{Group, Sets, Space, Way};

/// Core sets that are not split further before their reads are.
const SETS_MIN: usize = 8;

/// A group, which is looked into before a way of the same bound is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    Group(Group),
    Sets(Sets),
    Way(Way),
}

/// Ways with their bounds, the lowest first.
pub(crate) struct Queue<'q, P, B> {
    space: &'q Space<'q>,
    device: &'q Device,
    regions: i64,
    any: bool,
    prompts: P,
    bound: B,
    heap: BinaryHeap<Reverse<(usize, i64, Node)>>,
}

/// Prompts that can keep the limits, the least memory first, each with the fewest bytes of pinned neurons with which it does.
pub(crate) type Prompts = Rc<[(usize, i64)]>;

impl<'q, P, B> Queue<'q, P, B>
where
    P: Fn(usize, usize, bool) -> Prompts,
    B: Fn(i64, Room, i64, &Curve) -> Option<i64>,
{
    /// Of all ways of a space within so many bytes of regions. `prompts` are those of a level and a way of reading, with rows
    /// of the token embedding being read or not. `bound` is that of what has so many ticks that nothing overlaps, such room,
    /// so many bytes of pinned neurons at least, and such a curve; `None` if it cannot keep the limits. With `any` they come in no order, as soon as may be.
    pub(crate) fn new(
        space: &'q Space<'q>,
        device: &'q Device,
        (regions, any): (i64, bool),
        prompts: P,
        bound: B,
    ) -> Self {
        let mut queue = Self { space, device, regions, any, prompts, bound, heap: BinaryHeap::new() };
        for (level, groups) in space.groups.iter().enumerate() {
            for reads in 0..groups.reads.len() {
                queue.push(Group { level, reads, sets: (0, groups.sets.len()) });
            }
        }
        queue
    }

    /// The smaller of two nodes comes first where no order is asked for.
    fn enter(&mut self, size: usize, bound: i64, node: Node) {
        self.heap.push(Reverse((if self.any { size } else { 0 }, bound, node)));
    }

    fn push(&mut self, group: Group) {
        let space = self.space;
        let (ways, groups) = (&space.ways[group.level], &space.groups[group.level]);
        let members = &groups.reads[group.reads];
        let reads = ways.read_group(members);
        let compute = space.compute_group(group.level, group.sets);
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
        let pinned = all().map(|&(_, pinned)| pinned).min().unwrap_or(0);
        let curve = space.curve_of_group(group, &compute, &reads);
        if let Some(bound) = (self.bound)(space.ticks(compute.serial), room, pinned, &curve) {
            self.enter(usize::MAX, bound, Node::Group(group));
        }
    }

    /// Halves of a group, and of one that is small enough each way of reading.
    fn split(&mut self, Group { level, reads, sets }: Group) {
        if let Some(halves) = halved(sets, SETS_MIN) {
            halves.into_iter().for_each(|sets| self.push(Group { level, reads, sets }));
            return;
        }
        let space = self.space;
        for &read in &space.groups[level].reads[reads] {
            self.push_sets(Sets { level, read, sets });
        }
    }

    fn prompts_of(&self, Sets { level, read, .. }: Sets) -> [Prompts; 2] {
        [false, true].map(|rows| (self.prompts)(level, read, rows))
    }

    fn push_sets(&mut self, at: Sets) {
        if at.sets.1 - at.sets.0 == 2 {
            // both take no longer to look at than their better
            let halves = halved(at.sets, 1).into_iter().flatten();
            return halves.for_each(|sets| self.push_sets(Sets { sets, ..at }));
        }
        let space = self.space;
        let ways = &space.ways[at.level];
        let prompts = self.prompts_of(at);
        if prompts.iter().all(|prompts| prompts.is_empty()) {
            return;
        }
        let curve = space.curve(at);
        if at.sets.1 - at.sets.0 > 1 {
            let (compute, reads) = (space.compute_group(at.level, at.sets), ways.read_group(&[at.read]));
            let all = || prompts.iter().flat_map(|prompts| prompts.iter());
            let prompts = all().map(|&(prompt, _)| &space.prompts[prompt]);
            let room = ways.room_of_group(self.device, self.regions, &compute, &reads, prompts);
            let pinned = all().map(|&(_, pinned)| pinned).min().unwrap_or(0);
            let bound = (self.bound)(space.ticks(compute.serial), room, pinned, &curve);
            if let Some(bound) = bound {
                self.enter(at.sets.1 - at.sets.0, bound, Node::Sets(at));
            }
            return;
        }
        for &compute in &space.groups[at.level].sets[at.sets.0] {
            let of_compute = &ways.computes[compute];
            let serial = space.ticks(of_compute.serial);
            for &(prompt, pinned) in prompts[usize::from(of_compute.embedding_rows)].iter() {
                let way = Way { level: at.level, compute, read: at.read, prompt };
                let room = space.room(self.device, way, self.regions);
                let bound = (self.bound)(serial, room, pinned, &curve);
                if let Some(bound) = bound.filter(|_| pinned <= room.budgets()[1]) {
                    self.enter(0, bound, Node::Way(way));
                }
            }
        }
    }
}

/// Both halves of a range that is longer than `most`.
fn halved((first, end): (usize, usize), most: usize) -> Option<[(usize, usize); 2]> {
    let middle = first + (end - first) / 2;
    (end - first > most).then_some([(first, middle), (middle, end)])
}

impl<P, B> Iterator for Queue<'_, P, B>
where
    P: Fn(usize, usize, bool) -> Prompts,
    B: Fn(i64, Room, i64, &Curve) -> Option<i64>,
{
    type Item = (i64, Way);

    fn next(&mut self) -> Option<(i64, Way)> {
        loop {
            let Reverse((_, bound, node)) = self.heap.pop()?;
            match node {
                Node::Way(way) => return Some((bound, way)),
                Node::Group(group) => self.split(group),
                Node::Sets(at) => {
                    let halves = halved(at.sets, 1).into_iter().flatten();
                    halves.for_each(|sets| self.push_sets(Sets { sets, ..at }));
                }
            }
        }
    }
}
