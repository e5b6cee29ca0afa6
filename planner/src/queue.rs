//! Ways in the order of their bounds, the lowest first. Most are never bounded one by one: what no way of a group can be
//! below dismisses all of it at once.
//!
//! ```text
//! all core sets of a level, with reads that differ in depth and buffers   split in halves, down to
//! a few core sets with these reads                                         split into
//! the same with one way of reading                                         split into single sets, and these into
//! ways: one core set, one way of reading, one prompt                       bounded way of caching by way of caching
//! ```
//!
//! A group is looked into when nothing that is left has a lower bound. So ways come in the order in which sorting all of
//! them by their own bounds would bring them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

use plans::Device;

use crate::curve::LeastTime;
use crate::room::Room;
use crate::space::{Cheapest, Group, GroupBounds, Sets, Space, Way};

/// Core sets that are not split further before their reads are.
const SETS_MIN: usize = 8;

/// A group, which is looked into before a way of the same bound is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    Group(Group),
    /// Of a group.
    Sets(Sets, Group),
    Way(Way),
}

/// Ways with their bounds, the lowest first.
pub(crate) struct Queue<'q, P, B, L> {
    space: &'q Space<'q>,
    device: &'q Device,
    regions: i64,
    any: bool,
    prompts: P,
    bound: B,
    /// Bytes with which all layers' caches are bounded, of the same things as the bound.
    place: L,
    heap: BinaryHeap<Reverse<(usize, i64, Node)>>,
}

/// Prompts that can keep the limits, the least memory first, each with the fewest bytes of pinned neurons with which it does.
pub(crate) type Prompts = Rc<[(usize, i64)]>;

impl<'q, P, B, L> Queue<'q, P, B, L>
where
    P: Fn(usize, usize, bool) -> Prompts,
    B: Fn(i64, Room, i64, &dyn LeastTime) -> Option<i64>,
    L: Fn(i64, Room, &dyn LeastTime) -> Option<i64>,
{
    /// Of all ways of a space within so many bytes of regions. `prompts` are those of a level and a way of reading, with rows
    /// of the token embedding being read or not. `bound` is that of what has so many ticks that nothing overlaps, such room,
    /// so many bytes of pinned neurons at least, and such a curve; `None` if it cannot keep the limits; `place` are the bytes at which it asks for the curve. With `any` they come in no order, as soon as may be.
    pub(crate) fn new(
        space: &'q Space<'q>,
        device: &'q Device,
        (regions, any): (i64, bool),
        prompts: P,
        (bound, place): (B, L),
    ) -> Self {
        let mut queue = Self { space, device, regions, any, prompts, bound, place, heap: BinaryHeap::new() };
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

    /// A group's least ticks that nothing overlaps, the most room of any of its ways, the fewest bytes of pinned neurons, and its bounds; `None` where
    /// nothing of it fits.
    fn bounded(&self, group: Group) -> Option<(i64, Room, i64, Rc<GroupBounds>)> {
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
            return None;
        }
        let pinned = all().map(|&(_, pinned)| pinned).min().unwrap_or(0);
        let bounds = space.group_bounds(group, &compute, &reads);
        Some((space.ticks(compute.serial), room, pinned, bounds))
    }

    fn push(&mut self, group: Group) {
        if let Some((serial, room, pinned, bounds)) = self.bounded(group)
            && let Some(bound) = (self.bound)(serial, room, pinned, &bounds.curve)
        {
            self.enter(usize::MAX, bound, Node::Group(group));
        }
    }

    /// A group's bounds, and its bands where it is bounded.
    fn cheapest(&self, group: Group) -> Option<(Rc<GroupBounds>, Cheapest)> {
        let (serial, room, _, bounds) = self.bounded(group)?;
        let cheapest = bounds.cheapest((self.place)(serial, room, &bounds.curve)?);
        Some((bounds, cheapest))
    }

    /// Halves of a group, and of one that is small enough each way of reading.
    fn split(&mut self, group: Group) {
        let Group { level, reads, sets } = group;
        if let Some(halves) = halved(sets, SETS_MIN) {
            halves.into_iter().for_each(|sets| self.push(Group { level, reads, sets }));
            return;
        }
        let space = self.space;
        let Some((bounds, cheapest)) = self.cheapest(group) else { return };
        // two take no longer to look at than their better
        let at_once = if sets.1 - sets.0 == 2 { 1 } else { sets.1 - sets.0 };
        for &read in &space.groups[level].reads[reads] {
            for first in (sets.0..sets.1).step_by(at_once) {
                let at = Sets { level, read, sets: (first, first + at_once) };
                self.push_sets(at, group, &bounds, &cheapest);
            }
        }
    }

    /// Each set of those with a way of reading.
    fn split_sets(&mut self, at: Sets, of: Group) {
        let Some((bounds, cheapest)) = self.cheapest(of) else { return };
        for set in at.sets.0..at.sets.1 {
            self.push_sets(Sets { sets: (set, set + 1), ..at }, of, &bounds, &cheapest);
        }
    }

    fn prompts_of(&self, Sets { level, read, .. }: Sets) -> [Prompts; 2] {
        [false, true].map(|rows| (self.prompts)(level, read, rows))
    }

    fn push_sets(&mut self, at: Sets, of: Group, bounds: &GroupBounds, cheapest: &Cheapest) {
        let space = self.space;
        let ways = &space.ways[at.level];
        let prompts = self.prompts_of(at);
        if prompts.iter().all(|prompts| prompts.is_empty()) {
            return;
        }
        let line = space.line(at, bounds, cheapest, false);
        let (compute, reads) = (space.compute_group(at.level, at.sets), ways.read_group(&[at.read]));
        let all = || prompts.iter().flat_map(|prompts| prompts.iter());
        let room = ways.room_of_group(
            self.device,
            self.regions,
            &compute,
            &reads,
            all().map(|&(prompt, _)| &space.prompts[prompt]),
        );
        let pinned = all().map(|&(_, pinned)| pinned).min().unwrap_or(0);
        if let Some(bound) = (self.bound)(space.ticks(compute.serial), room, pinned, &line) {
            self.enter(at.sets.1 - at.sets.0, bound, Node::Sets(at, of));
        }
    }

    /// All ways of one set, each with the bound of its own room.
    fn push_ways(&mut self, at: Sets, of: Group) {
        let Some((bounds, cheapest)) = self.cheapest(of) else { return };
        let space = self.space;
        let ways = &space.ways[at.level];
        let (prompts, line) = (self.prompts_of(at), space.line(at, &bounds, &cheapest, true));
        for &compute in &space.groups[at.level].sets[at.sets.0] {
            let of_compute = &ways.computes[compute];
            let serial = space.ticks(of_compute.serial);
            for &(prompt, pinned) in prompts[usize::from(of_compute.embedding_rows)].iter() {
                let way = Way { level: at.level, compute, read: at.read, prompt };
                let room = space.room(self.device, way, self.regions);
                let bound = (self.bound)(serial, room, pinned, &line);
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

impl<P, B, L> Iterator for Queue<'_, P, B, L>
where
    P: Fn(usize, usize, bool) -> Prompts,
    B: Fn(i64, Room, i64, &dyn LeastTime) -> Option<i64>,
    L: Fn(i64, Room, &dyn LeastTime) -> Option<i64>,
{
    type Item = (i64, Way);

    fn next(&mut self) -> Option<(i64, Way)> {
        loop {
            let Reverse((_, bound, node)) = self.heap.pop()?;
            match node {
                Node::Way(way) => return Some((bound, way)),
                Node::Group(group) => self.split(group),
                Node::Sets(at, of) if at.sets.1 - at.sets.0 > 1 => self.split_sets(at, of),
                Node::Sets(at, of) => self.push_ways(at, of),
            }
        }
    }
}
