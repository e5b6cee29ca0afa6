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
use std::collections::{BinaryHeap, HashMap};
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
    /// With the fewest bytes of pinned neurons.
    Way(Way, i64),
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
    /// Ways with such cores and reads that are still to come.
    to_come: HashMap<Sets, usize>,
}

/// A bound, and the bytes at which the curve decides it.
pub(crate) type Bound = (i64, i64);

/// Prompts that can keep the limits, the least memory first, each with the fewest bytes of pinned neurons with which it does.
pub(crate) type Prompts = Rc<[(usize, i64)]>;

impl<'q, P, B> Queue<'q, P, B>
where
    P: Fn(usize, usize, bool) -> Prompts,
    B: Fn(i64, Room, i64, &Curve) -> Option<Bound>,
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
        let mut queue = Self {
            space,
            device,
            regions,
            any,
            prompts,
            bound,
            heap: BinaryHeap::new(),
            to_come: HashMap::new(),
        };
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
        if let Some((bound, _)) = (self.bound)(space.ticks(compute.serial), room, pinned, &curve) {
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
        let prompts = self.prompts_of(at);
        if prompts.iter().all(|prompts| prompts.is_empty()) {
            return;
        }
        if at.sets.1 - at.sets.0 > 1 {
            if let Some((bound, _)) = self.bound_of_sets(at) {
                self.enter(at.sets.1 - at.sets.0, bound, Node::Sets(at));
            }
            return;
        }
        let ways = &self.space.ways[at.level];
        for &compute in &self.space.groups[at.level].sets[at.sets.0] {
            let rows = usize::from(ways.computes[compute].embedding_rows);
            for &(prompt, pinned) in prompts[rows].iter() {
                let way = Way { level: at.level, compute, read: at.read, prompt };
                if let Some((bound, _)) = self.bound_of_way(at, way, pinned) {
                    self.enter(0, bound, Node::Way(way, pinned));
                    *self.to_come.entry(at).or_default() += 1;
                }
            }
        }
    }

    fn bound_of_sets(&self, at: Sets) -> Option<Bound> {
        let (space, prompts) = (self.space, self.prompts_of(at));
        let ways = &space.ways[at.level];
        let (compute, reads) = (space.compute_group(at.level, at.sets), ways.read_group(&[at.read]));
        let all = || prompts.iter().flat_map(|prompts| prompts.iter());
        let of_all = all().map(|&(prompt, _)| &space.prompts[prompt]);
        let room = ways.room_of_group(self.device, self.regions, &compute, &reads, of_all);
        let pinned = all().map(|&(_, pinned)| pinned).min().unwrap_or(0);
        (self.bound)(space.ticks(compute.serial), room, pinned, &space.curve(at))
    }

    fn bound_of_way(&self, at: Sets, way: Way, pinned: i64) -> Option<Bound> {
        let space = self.space;
        let serial = space.ticks(space.ways[way.level].computes[way.compute].serial);
        let room = space.room(self.device, way, self.regions);
        (self.bound)(serial, room, pinned, &space.curve(at)).filter(|_| pinned <= room.budgets()[1])
    }

    /// A node's bound by what is known of its curve now, but for groups.
    fn bound_of(&self, node: Node) -> Option<Bound> {
        match node {
            Node::Group(_) => None,
            Node::Sets(at) => self.bound_of_sets(at),
            Node::Way(way, pinned) => self.bound_of_way(self.space.sets_of(way), way, pinned),
        }
    }

    /// Whether a node's bound is as high as the curve of its ways of caching makes it; if not, it enters again with a better one.
    fn is_exact(&mut self, size: usize, bound: i64, node: Node) -> bool {
        let at = match node {
            Node::Group(_) => return true,
            Node::Sets(at) => at,
            Node::Way(way, _) => self.space.sets_of(way),
        };
        // the curve may be better than when it was asked last
        let now = self.bound_of(node);
        if now.is_some_and(|(now, bytes)| now == bound && !self.space.refine(at, bytes)) {
            return true;
        }
        match self.bound_of(node) {
            Some((bound, _)) => self.enter(size, bound, node),
            None => self.done(node),
        }
        false
    }

    /// Nothing more comes of a node: once it was the last way with its cores and reads, little is kept of these.
    fn done(&mut self, node: Node) {
        let at = match node {
            Node::Group(_) => return,
            Node::Sets(at) => at,
            Node::Way(way, _) => self.space.sets_of(way),
        };
        if let Some(left) = self.to_come.get_mut(&at) {
            *left -= 1;
            if *left > 0 {
                return;
            }
        }
        self.space.settle(at);
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
    B: Fn(i64, Room, i64, &Curve) -> Option<Bound>,
{
    type Item = (i64, Way);

    fn next(&mut self) -> Option<(i64, Way)> {
        loop {
            let Reverse((size, bound, node)) = self.heap.pop()?;
            if !self.is_exact(size, bound, node) {
                continue;
            }
            match node {
                Node::Way(way, _) => {
                    self.done(node);
                    return Some((bound, way));
                }
                Node::Group(group) => self.split(group),
                Node::Sets(at) => {
                    self.done(node);
                    let halves = halved(at.sets, 1).into_iter().flatten();
                    halves.for_each(|sets| self.push_sets(Sets { sets, ..at }));
                }
            }
        }
    }
}
