//! Keys and values that later blocks read, beside a stream's rows: of each token the owners' keys and values, owner after owner.

use flashplan::internals::model::config::Config;
use flashplan::internals::reference::Past;

/// The blocks whose keys and values later ones read, and the width of keys.
fn owners(c: &Config) -> Vec<(usize, usize)> {
    let mut owners: Vec<usize> = c.attentions().filter_map(|attention| attention.shares).collect();
    owners.sort_unstable();
    owners.dedup();
    owners.into_iter().map(|owner| (owner, c.attention(owner).kv_width())).collect()
}

/// Values of a token's shared keys and values.
pub(super) fn shared_width(c: &Config) -> usize {
    owners(c).into_iter().map(|(_, width)| 2 * width).sum()
}

/// The place of a block's keys in a row, and their width, if later blocks read them; values follow.
fn place(c: &Config, block: usize) -> Option<(usize, usize)> {
    let owners = owners(c);
    let (at, &(_, width)) = owners.iter().enumerate().find(|(_, (owner, _))| *owner == block)?;
    Some((owners[..at].iter().map(|(_, width)| 2 * width).sum(), width))
}

/// The keys and values that a block reads of an earlier one, window after window from token `start` on; none if it has its own.
pub(super) fn of_owner(
    c: &Config,
    block: usize,
    shared: &[f32],
    start: usize,
    windows: &[usize],
) -> Vec<Past> {
    let owner = c.blocks[block].attention().and_then(|attention| attention.shares);
    let Some((at, width)) = owner.and_then(|owner| place(c, owner)) else { return Vec::new() };
    let mut rows = shared.chunks(shared_width(c)).skip(start);
    let of_window = |&window: &usize| {
        let mut past = Past::default();
        for row in rows.by_ref().take(window) {
            past.keys.extend(&row[at..][..width]);
            past.values.extend(&row[at + width..][..width]);
        }
        past
    };
    windows.iter().map(of_window).collect()
}

/// Keeps a block's keys and values from token `start` on, if later blocks read them.
pub(super) fn share(c: &Config, block: usize, pasts: &[Past], shared: &mut [f32], start: usize) {
    let Some((at, width)) = place(c, block) else { return };
    let keys = pasts.iter().flat_map(|past| past.keys.chunks(width).zip(past.values.chunks(width)));
    for (row, (key, value)) in shared.chunks_mut(shared_width(c)).skip(start).zip(keys) {
        row[at..][..width].copy_from_slice(key);
        row[at + width..][..width].copy_from_slice(value);
    }
}
