//! Splits of few layers, against trying every choice.

use proptest::prelude::*;

use super::{Budget, CHOICES_MAX, CLOSE, Found, Item, NEVER, Split, Wanted, split};
use crate::room::{Need, Room};

/// A page.
const PAGE: i64 = 4096;

/// A layer of up to five items whose prompts take nearly as long, so that all is within a 4096th and prices are high.
fn layer() -> impl Strategy<Value = Vec<Item>> {
    let ticks = prop_oneof![0..1000i64, 0..1i64 << 30];
    let item = (0..PAGE / 16, 0..PAGE / 16, 0..8i64, prop::array::uniform2(0..1000i64), ticks);
    prop::collection::vec(item, 1..6).prop_map(|items| {
        let item = |(hot, cold, tables, prompts, ticks): (i64, i64, i64, [i64; 2], i64)| Item {
            cached: 0,
            need: Need { hot: 32 * hot, cold: 32 * cold, tables: 32 * tables },
            ticks: (1 << 30) + ticks,
            prompts: prompts.map(|ticks| (1 << 38) + ticks),
        };
        let mut items: Vec<Item> = items.into_iter().map(item).collect();
        items.sort_by_key(|item| (item.need.bytes(), item.ticks));
        items
    })
}

/// Every choice of an item of each layer.
fn all(items: &[Vec<Item>]) -> Vec<Found> {
    let chosen = items.iter().fold(vec![Vec::new()], |all: Vec<Vec<usize>>, items| {
        let more = |chosen: &Vec<usize>| {
            let chosen = chosen.clone();
            (0..items.len()).map(move |item| [chosen.clone(), vec![item]].concat())
        };
        all.iter().flat_map(more).collect()
    });
    chosen.into_iter().map(|chosen| Found::of(items, chosen)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    /// The limits are those of one of all choices, or a little less: what is kept is found, and what is refused is not there.
    #[test]
    fn a_split_that_keeps_the_limits_on_prompts_is_found_where_there_is_one(
        items in prop::collection::vec(layer(), 1..5),
        (place, less, second) in (any::<prop::sample::Index>(), prop::array::uniform3(0..2i64), any::<bool>()),
        (rows, tables) in (0..6 * PAGE, 0..PAGE),
    ) {
        let all = all(&items);
        let one = &all[place.index(all.len())];
        let prompts = one.prompts(&items);
        let room = Room { bytes: 0, rows, tables };
        let room = Room { bytes: room.taken(one.need) - less[2], ..room };
        let second = if second { prompts[1] - less[1] } else { NEVER };
        let budget = Budget { room, prompts: [prompts[0] - less[0], second], choices_max: CHOICES_MAX };
        let kept: Vec<&Found> = all.iter().filter(|found| found.keeps(&items, &budget)).collect();
        match split(&items, &budget, None, Wanted::Any) {
            None => prop_assert!(kept.is_empty(), "refused, but {kept:?}"),
            Some(Split { found, .. }) => {
                let found = found.expect("so few choices are decided");
                prop_assert!(found.keeps(&items, &budget), "{found:?}");
            }
        }
        // one that gives up at once refuses nothing that is there, and bounds what it did not find
        let soon = Budget { choices_max: 0, ..budget };
        match split(&items, &soon, None, Wanted::Any) {
            None => prop_assert!(kept.is_empty()),
            Some(Split { found: None, least, .. }) => {
                prop_assert!(kept.is_empty() || least < NEVER, "proven that there is none of {kept:?}");
            }
            Some(_) => {}
        }
        for wanted in [Wanted::Best, Wanted::Any] {
            let split = split(&items, &budget, None, wanted);
            let found = split.as_ref().and_then(|split| split.found.as_ref());
            prop_assert_eq!(found.is_some(), !kept.is_empty());
            let least = split.as_ref().map_or(NEVER, |split| split.least);
            prop_assert!(kept.iter().all(|kept| kept.ticks >= least), "{kept:?} below {least}");
        }
        // and with a token in mind none is faster, but for what is left open
        let split_of = |to_beat| split(&items, &budget, to_beat, Wanted::Best);
        let split = split_of(None);
        if let (Some(fastest), Some(Split { found: Some(found), least, .. })) =
            (kept.iter().map(|kept| kept.ticks).min(), &split)
        {
            prop_assert!(found.keeps(&items, &budget), "{found:?}");
            prop_assert!(found.ticks <= fastest + fastest / CLOSE + 1, "{found:?}, and {fastest}");
            prop_assert!(found.ticks <= least + least / CLOSE + 1, "{split:?}");
            // what is to be beaten is beaten where it can be
            let asked = split_of(Some(fastest + fastest / 64));
            let least = asked.as_ref().map_or(NEVER, |split| split.least);
            prop_assert!(least <= fastest, "{asked:?}, and {fastest}");
            let found = asked.and_then(|split| split.found).map_or(NEVER, |found| found.ticks);
            prop_assert!(found <= fastest + fastest / CLOSE + 1, "{found}, and {fastest}");
        }
    }
}
