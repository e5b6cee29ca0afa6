//! What the solver chooses among, in whole numbers.
//!
//! A *mode* is one quality level with one set of cores and one choice of reads. For each mode there is the
//! least time that all layers take together, against the memory that their neurons may fill: a convex curve, given by
//! lines, below every split of that memory. Since hulls add up exactly, splitting the layers into groups here would
//! prove nothing more. Nothing is divided and speed is never a variable.
//!
//! | quantity | unit |
//! |---|---|
//! | time | a *tick*: 2^-30 of the fastest token that these cores could compute |
//! | memory | a page |

use crate::curve::{Curve, div_up, meeting};

/// Bytes of a page.
pub const PAGE: i64 = plans::PAGE_BYTES as i64;
/// How far lines may lie below a curve, as a share of its fall.
const CLOSE: i64 = 2000;

/// The least time of all layers, against the pages that their neurons fill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    /// Fewest pages that do anything.
    pub least: i64,
    /// Most pages that are of use.
    pub most: i64,
    /// Ticks at that end.
    pub floor: i64,
    /// Lines through pairs of points; the time lies on or above each.
    pub lines: Vec<[(i64, i64); 2]>,
}

impl Bound {
    /// Of a curve.
    pub fn of(curve: &Curve) -> Self {
        let (first, last) = (curve.corners[0], curve.corners[curve.corners.len() - 1]);
        Self {
            least: first.0,
            most: last.0,
            floor: last.1,
            lines: curve.lines(((first.1 - last.1) / CLOSE).max(1)),
        }
    }

    /// Corners of a curve nowhere above the bound: where its lines meet, rounded down.
    pub fn corners(&self) -> Vec<(i64, i64)> {
        let level = [(self.least, self.floor), (self.most.max(self.least + 1), self.floor)];
        let lines: Vec<_> = self.lines.iter().chain([&level]).collect();
        let meet = |pair: &[&[(i64, i64); 2]]| {
            meeting(*pair[0], *pair[1]).map(|(x, y)| (x.floor() as i64, y.floor() as i64))
        };
        let first = (self.least, self.ticks(self.least));
        std::iter::once(first)
            .chain(lines.windows(2).filter_map(meet))
            .chain([(self.most, self.floor)])
            .collect()
    }

    /// Ticks with so many pages, rounded up.
    pub fn ticks(&self, pages: i64) -> i64 {
        let line = |&[(x0, y0), (x1, y1)]: &[(i64, i64); 2]| y0 + div_up((y1 - y0) * (pages - x0), x1 - x0);
        self.lines.iter().map(line).fold(self.floor, i64::max)
    }
}

/// One configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mode {
    /// Ticks that nothing overlaps.
    pub serial: i64,
    /// Pages besides the neurons.
    pub pages: i64,
    /// Cores in use.
    pub cores: i64,
    /// Time of a long prompt, in hundredths of its logarithm.
    pub prompt: i64,
    /// Fewest ticks and fewest pages that are possible within the limits: what the exact split says.
    pub least: (i64, i64),
    /// Pages that limits on time take at least.
    pub needs: Vec<Need>,
    /// The layers.
    pub layers: Bound,
}

/// The fewest pages, in all, that a mode takes to keep some limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Need {
    /// The limits.
    pub limits: Vec<&'static str>,
    /// Pages; `None` where no memory is enough.
    pub pages: Option<i64>,
}

/// A problem of choosing, in integers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tables {
    /// The modes among which the solver chooses; of equals, the first.
    pub modes: Vec<Mode>,
    /// Pages that the regions may add up to under the user's limit, page tables taken off.
    pub user_pages: Option<i64>,
    /// Pages that the regions may add up to under the machine's limit, page tables taken off.
    pub machine_pages: i64,
    /// Most ticks of a token.
    pub time_max: Option<i64>,
    /// Ticks above the fewest that are as good.
    pub time_slack: i64,
    /// Pages above the fewest that are as good.
    pub memory_slack: i64,
}

/// One point of the choice space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Index into `modes`.
    pub mode: usize,
    /// Pages for neurons.
    pub pages: i64,
}

/// The least that a choice costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Price {
    /// Mean ticks of a token.
    pub time: i64,
    /// Pages of the regions, without page tables.
    pub memory: i64,
    /// Hundredths of the logarithm of a long prompt's time.
    pub prompt: i64,
    /// Cores in use.
    pub cores: i64,
}

impl Mode {
    /// The most pages that any of the limits on time is known to need.
    pub fn pages_needed(&self) -> i64 {
        self.needs.iter().filter_map(|need| need.pages).max().unwrap_or(0)
    }
}

impl Tables {
    /// The price of a choice: the definition that the solver's constraints must agree with.
    pub fn price(&self, choice: &Choice) -> Price {
        let mode = &self.modes[choice.mode];
        Price {
            time: (mode.serial + mode.layers.ticks(choice.pages)).max(mode.least.0),
            memory: (mode.pages + choice.pages).max(mode.least.1).max(mode.pages_needed()),
            prompt: mode.prompt,
            cores: mode.cores,
        }
    }

    /// Whether a choice keeps every limit.
    pub fn allows(&self, choice: &Choice) -> bool {
        let (mode, price) = (&self.modes[choice.mode], self.price(choice));
        (mode.layers.least..=mode.layers.most).contains(&choice.pages)
            && mode.needs.iter().all(|need| need.pages.is_some())
            && price.memory <= self.pages()
            && price.time <= self.time_max.unwrap_or(i64::MAX)
    }

    /// The smaller of the two memory limits.
    pub fn pages(&self) -> i64 {
        self.machine_pages.min(self.user_pages.unwrap_or(i64::MAX))
    }
}
