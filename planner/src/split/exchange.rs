//! Better splits by changes of two layers at once: where limits bind, one layer gives up what another one needs.

use super::items::{Budget, Found, Item, LIMITS, priced};

/// Items of a layer that are tried, those of the least reduced cost.
const TRIED: usize = 48;

impl Found {
    /// Changes two layers at a time, what saves most ticks first, as long as the limits are kept and more than `enough` ticks are
    /// taken. What is tried are the items that cost least at `prices`, the bound's.
    pub(super) fn exchanged(
        mut self,
        items: &[Vec<Item>],
        budget: &Budget,
        prices: [f64; LIMITS],
        enough: i64,
    ) -> Self {
        let cost = |item: &Item| {
            item.ticks as f64 + prices[0] * item.need.bytes() as f64 + priced(item.weights(), prices)
        };
        // per layer: the cheapest, the fewest ticks first
        let cheapest = |items: &Vec<Item>| {
            let mut places: Vec<usize> = (0..items.len()).collect();
            if places.len() > TRIED {
                places.select_nth_unstable_by(TRIED, |&a, &b| cost(&items[a]).total_cmp(&cost(&items[b])));
                places.truncate(TRIED);
            }
            places.sort_by_key(|&place| (items[place].ticks, place));
            places
        };
        let tried: Vec<Vec<usize>> = items.iter().map(cheapest).collect();
        let mut prompts = self.prompts(items);
        while self.ticks > enough {
            let Some((_, changes)) = self.best_exchange(items, &tried, budget, prompts) else { break };
            for (layer, place) in changes {
                let (now, item) = (&items[layer][self.chosen[layer]], &items[layer][place]);
                self.need = self.need.with(item.need).with(now.need.negated());
                prompts = [0, 1].map(|k| prompts[k] + item.prompts[k] - now.prompts[k]);
                (self.ticks, self.chosen[layer]) = (self.ticks + item.ticks - now.ticks, place);
            }
        }
        self
    }

    /// The items of two layers that save most ticks, and how many.
    fn best_exchange(
        &self,
        items: &[Vec<Item>],
        tried: &[Vec<usize>],
        budget: &Budget,
        prompts: [i64; 2],
    ) -> Option<(i64, [(usize, usize); 2])> {
        let mut best: Option<(i64, [(usize, usize); 2])> = None;
        let now = |layer: usize| &items[layer][self.chosen[layer]];
        for first in 0..items.len() {
            for &a in &tried[first] {
                let (item, of_first) = (&items[first][a], now(first));
                let need = self.need.with(item.need).with(of_first.need.negated());
                let with_first = [0, 1].map(|k| prompts[k] + item.prompts[k] - of_first.prompts[k]);
                let saved = of_first.ticks - item.ticks;
                for second in first + 1..items.len() {
                    let of_second = now(second);
                    for &b in &tried[second] {
                        let item = &items[second][b];
                        let saved = saved + of_second.ticks - item.ticks;
                        // those that follow take more ticks
                        if saved <= best.map_or(0, |(most, _)| most) {
                            break;
                        }
                        let both = [0, 1].map(|k| with_first[k] + item.prompts[k] - of_second.prompts[k]);
                        if budget.keeps(need.with(item.need).with(of_second.need.negated()), both) {
                            best = Some((saved, [(first, a), (second, b)]));
                            break;
                        }
                    }
                }
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::super::items::NEVER;
    use super::*;
    use crate::room::{Need, Room};

    #[test]
    fn a_layer_gives_up_what_another_one_needs_where_no_single_change_helps() {
        const PAGE: i64 = 4096;
        let layer = |of: [(i64, i64, i64); 3]| {
            let item = |(pages, ticks, prompt): (i64, i64, i64)| Item {
                cached: 0,
                need: Need { hot: pages * PAGE, ..Need::default() },
                ticks,
                prompts: [prompt, 0],
            };
            of.map(item).to_vec()
        };
        // the last item of the first layer would be best of all, but for the prompt
        let items = [layer([(2, 10, 1), (4, 4, 1), (4, 1, 9)]), layer([(2, 8, 1), (4, 5, 1), (5, 4, 1)])];
        let room = Room { bytes: 6 * PAGE, rows: 0, tables: 0 };
        let budget = Budget { room, prompts: [4, NEVER], choices_max: 0 };
        let start = Found::of(&items, vec![0, 1]);
        assert_eq!(start.clone().filled(&items, &budget), start, "no single change helps");
        let better = start.clone().exchanged(&items, &budget, [0.0; LIMITS], 0);
        assert_eq!((better.chosen.as_slice(), better.ticks), ([1, 0].as_slice(), 12));
        assert_eq!(better, Found::of(&items, vec![1, 0]));
        // what is enough is left as it is
        assert_eq!(start.clone().exchanged(&items, &budget, [0.0; LIMITS], 15), start);
    }
}
