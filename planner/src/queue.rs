//! Ways in the order of their bounds, the lowest first. Most are never bounded one by one: what no way of a part can be
//! below dismisses all of it at once.
//!
//! ```text
//! all core sets of a level, with reads that differ in depth and buffers   split in halves, down to
//! a few core sets with these reads, the reads split in halves, down to
//! a few core sets with one way of reading, split in halves, down to
//! ways: one core set, one way of reading, one prompt
//! ```
//!
//! A part is looked into when nothing that is left has a lower bound. So ways come in the order in which sorting all of
//! them by their own bounds would bring them. Before a part is split its bound is made as good as pricing its ways of caching makes
//! it: that costs as much as for one way, and dismisses many.

use crate::ways::Asked;
use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::rc::Rc;

use plans::Device;

use crate::room::Room;
use crate::space::{self, Part, Range, Space, Way};
use crate::split::NEVER;

/// Core sets that are not split further before their reads are.
const SETS_MIN: usize = 8;

/// A part, which is looked into before a way of the same bound is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    Part(Part),
    /// With the fewest bytes of pinned neurons.
    Way(Way, i64),
}

/// Ways with their bounds, the lowest first.
pub(crate) struct Queue<'q, P, B> {
    space: &'q Space<'q>,
    device: &'q Device,
    regions: i64,
    sought: Sought,
    prompts: P,
    bound: B,
    /// Whether prompts are limited.
    limited: bool,
    wanted: &'q Cell<Wanted>,
    heap: BinaryHeap<Reverse<(usize, i64, Node)>>,
    /// Of parts that are in the heap what no way of them has less of.
    least: HashMap<Part, Least>,
    /// Ways of a part that are still to come, where it was split into ways.
    to_come: HashMap<Part, usize>,
}

/// What no way of a part has less of: ticks that nothing overlaps, and bytes of pinned neurons; and the most room.
#[derive(Debug, Clone, Copy)]
struct Least {
    serial: i64,
    room: Room,
    pinned: i64,
}

/// What is still wanted: at most so many ticks, within so many bytes of regions. What was found may make it less.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) ticks: i64,
    pub(crate) regions: i64,
}

/// In which order ways are sought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sought {
    /// By bounds on ticks.
    Fastest,
    /// By bounds on bytes.
    Smallest,
    /// As soon as may be; bounds are on ticks.
    Any,
}

/// A bound, and the bytes at which the curve decides it.
pub(crate) type Bound = (i64, i64);

/// Prompts that can keep the limits, the least memory first, each with the fewest bytes of pinned neurons with which it does.
pub(crate) type Prompts = Rc<[(usize, i64)]>;

impl<'q, P, B> Queue<'q, P, B>
where
    P: Fn(usize, usize, bool) -> Prompts,
    B: Fn(i64, Room, i64, &space::Bound) -> Option<Bound>,
{
    /// Of all ways of a space within so many bytes of regions. `prompts` are those of a level and a way of reading, with rows
    /// of the token embedding being read or not. `bound` is that of what has so many ticks that nothing overlaps, such room,
    /// so many bytes of pinned neurons at least, and such a curve; `None` if it cannot keep the limits. If any is sought they come in no order, as soon as may be.
    /// Of ways that are alike in all that is `wanted` but memory only the smallest need come; prompts may be `limited`.
    pub(crate) fn new(
        space: &'q Space<'q>,
        device: &'q Device,
        (regions, sought): (i64, Sought),
        (prompts, limited): (P, bool),
        bound: B,
        wanted: &'q Cell<Wanted>,
    ) -> Self {
        let mut queue = Self {
            space,
            device,
            regions,
            sought,
            prompts,
            bound,
            limited,
            wanted,
            heap: BinaryHeap::new(),
            least: HashMap::new(),
            to_come: HashMap::new(),
        };
        for (level, groups) in space.groups.iter().enumerate() {
            for (group, reads) in groups.reads.iter().enumerate() {
                let all = Part { level, group, reads: (0, reads.len()), sets: (0, groups.sets.len()) };
                queue.push(all, None);
            }
        }
        queue
    }

    /// Where no order is asked for ways come first, and then what has few of them.
    fn enter(&mut self, bound: i64, node: Node) {
        let size = match node {
            _ if self.sought != Sought::Any => 0,
            Node::Way(..) => 0,
            Node::Part(part) if part.counts()[0] == 1 => part.counts()[1],
            Node::Part(_) => usize::MAX,
        };
        self.heap.push(Reverse((size, bound, node)));
    }

    /// A part of a whole, or by itself.
    fn push(&mut self, part: Part, whole: Option<Part>) {
        match part.counts() {
            [1, 1] => self.push_ways(part, whole),
            // both take no longer to look at than their better
            [1, 2] | [2, 1] => self.split(part, Asked::ANYTHING, whole),
            _ => {
                let Some(least) = self.least_of(part) else { return };
                self.least.insert(part, least);
                self.space.bound_in(part, whole);
                match self.bound_of(Node::Part(part)) {
                    Some((bound, _)) => self.enter(bound, Node::Part(part)),
                    None => self.done(Node::Part(part)),
                }
            }
        }
    }

    /// What no way of a part has less of; `None` where none keeps the limits on prompts.
    fn least_of(&self, part: Part) -> Option<Least> {
        let space = self.space;
        let (ways, members) = (&space.ways[part.level], space.reads_of(part));
        let (reads, compute) = (ways.read_group(members), space.compute_group(part.level, part.sets));
        let rows = [false, true].into_iter().zip(compute.embedding_rows).filter(|(_, some)| *some);
        let of_members = rows.flat_map(|(rows, _)| members.iter().map(move |&read| (read, rows)));
        let prompts: Vec<Prompts> =
            of_members.map(|(read, rows)| (self.prompts)(part.level, read, rows)).collect();
        let all = || prompts.iter().flat_map(|prompts| prompts.iter());
        let of_all = all().map(|&(prompt, _)| &space.prompts[prompt]);
        let room = ways.room_of_group(self.device, self.regions, &compute, &reads, of_all);
        let beside = all().map(|&(prompt, pinned)| space.prompts[prompt].rows_bytes + pinned).min()?;
        let pinned = all().map(|&(_, pinned)| pinned).min()?;
        let serial = space.ticks(compute.serial);
        (beside <= room.budgets()[0]).then_some(Least { serial, room, pinned })
    }

    /// Halves of a part: of its core sets as long as they are many, then of its reads. A half of which no more is asked
    /// is left out where others are as good in less memory.
    fn split(&mut self, part: Part, asked: Asked, whole: Option<Part>) {
        let Part { reads, sets, .. } = part;
        let [of_reads, of_sets] = part.counts();
        let halves = if of_reads == 1 || of_sets > SETS_MIN {
            halved(sets).map(|sets| Part { sets, ..part })
        } else {
            halved(reads).map(|reads| Part { reads, ..part })
        };
        for half in halves {
            if !self.space.has_smaller(half, asked, self.limited) {
                self.push(half, whole);
            }
        }
    }

    /// What is asked of reads in anything that is wanted of a node, as far as its curve says.
    fn asked(&self, node: Node) -> Asked {
        let Some((_, decided_at)) = self.bound_of(node) else { return Asked::ANYTHING };
        let (Least { serial, room, .. }, Wanted { ticks, regions }) = (self.least(node), self.wanted.get());
        let bytes = room.budgets()[0] - (self.regions - regions);
        self.space.asked_within(self.part_of(node), decided_at, (ticks - serial, bytes))
    }

    /// The ways of one way of reading with one core set.
    fn push_ways(&mut self, part: Part, whole: Option<Part>) {
        self.space.bound_in(part, whole);
        let (space, read) = (self.space, self.space.reads_of(part)[0]);
        for &compute in &space.groups[part.level].sets[part.sets.0] {
            let rows = space.ways[part.level].computes[compute].embedding_rows;
            for &(prompt, pinned) in (self.prompts)(part.level, read, rows).iter() {
                let node = Node::Way(Way { level: part.level, compute, read, prompt }, pinned);
                if let Some((bound, _)) = self.bound_of(node) {
                    self.enter(bound, node);
                    *self.to_come.entry(part).or_default() += 1;
                }
            }
        }
    }

    /// A node's bound by what is known of its curve now.
    fn bound_of(&self, node: Node) -> Option<Bound> {
        let Least { serial, room, pinned } = self.least(node);
        let bound = (self.bound)(serial, room, pinned, &self.space.bound(self.part_of(node)));
        bound.filter(|_| matches!(node, Node::Part(_)) || pinned <= room.budgets()[1])
    }

    /// What no way of a node has less of.
    fn least(&self, node: Node) -> Least {
        match node {
            Node::Part(part) => self.least[&part],
            Node::Way(way, pinned) => Least {
                serial: self.space.ticks(self.space.ways[way.level].computes[way.compute].serial),
                room: self.space.room(self.device, way, self.regions),
                pinned,
            },
        }
    }

    /// Whether a node's bound is as high as the curve of its ways of caching makes it; if not, it enters again with a better one.
    fn is_exact(&mut self, bound: i64, node: Node) -> bool {
        // the curve may be better than when it was asked last
        let now = self.bound_of(node);
        let (part, serial) = (self.part_of(node), self.least(node).serial);
        let most = match self.sought {
            Sought::Smallest => i64::MAX,
            Sought::Fastest | Sought::Any => self.wanted.get().ticks,
        };
        // what is a bound is a tick less than the curve
        let enough = most.saturating_sub(serial).saturating_add(1);
        if self.sought == Sought::Any && most >= NEVER {
            // no curve is of use
            return now.is_some();
        }
        if now.is_some_and(|(now, bytes)| now == bound && !self.space.refine(part, bytes, enough)) {
            return true;
        }
        match self.bound_of(node) {
            Some((bound, _)) if bound <= most => self.enter(bound, node),
            _ => self.done(node),
        }
        false
    }

    fn part_of(&self, node: Node) -> Part {
        match node {
            Node::Part(part) => part,
            Node::Way(way, _) => self.space.part_of(way),
        }
    }

    /// Nothing more comes of a node: once it was the last way of its part, little is kept of that.
    fn done(&mut self, node: Node) {
        let part = self.part_of(node);
        if let Some(left) = self.to_come.get_mut(&part) {
            *left -= 1;
            if *left > 0 {
                return;
            }
        }
        self.least.remove(&part);
        self.space.settle(part);
    }
}

/// Both halves of a range of several.
fn halved((first, end): Range) -> [Range; 2] {
    let middle = first + (end - first) / 2;
    [(first, middle), (middle, end)]
}

impl<P, B> Iterator for Queue<'_, P, B>
where
    P: Fn(usize, usize, bool) -> Prompts,
    B: Fn(i64, Room, i64, &space::Bound) -> Option<Bound>,
{
    type Item = (i64, Way);

    fn next(&mut self) -> Option<(i64, Way)> {
        loop {
            let Reverse((_, bound, node)) = self.heap.pop()?;
            if !self.is_exact(bound, node) {
                continue;
            }
            let asked = self.asked(node);
            if let Node::Part(part) = node {
                self.split(part, asked, Some(part));
            }
            self.done(node);
            match node {
                Node::Way(way, _) if !self.space.has_smaller(self.part_of(node), asked, self.limited) => {
                    return Some((bound, way));
                }
                _ => {}
            }
        }
    }
}
