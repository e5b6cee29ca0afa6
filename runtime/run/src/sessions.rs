//! Prompts that last: their keys and values lie on disk by prefix, so that neither a restart nor another conversation with the
//! same beginning prefills them again.
//!
//! ```text
//! prompt     [ block 0 | block 1 | ... | rest ]     32 tokens each; the rest is always prefilled
//! key 0      BLAKE3(root, tokens of block 0)        root: all that can change a bit of keys and values
//! key n      BLAKE3(key n - 1, tokens of block n)   names its file, and says all that stands before it
//! ```
//!
//! Prompts that begin alike share files (`block`) so, and a look-up is a file by its name. The `folder` is bounded: who was not
//! used for longest goes first, the end of a prompt before its beginning. Only what a prefill has made is kept, and nothing that
//! follows a decoded token: what lies in the folder changes no bit of an answer. Nothing grows in memory: keys and values pass
//! through one small buffer, between two answers, block by block.

mod block;
mod folder;

use std::fmt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use plans::Plan;
use plans::size::show;

use self::block::{Block, Key, Problem};
use self::folder::Folder;
use super::held::Held;
use super::session::Session;
use super::{Failure, failure};

/// Tokens of a block: of a prompt of 1,000 at most 31 are prefilled again.
const BLOCK: usize = 32;
/// Changes when a file of the same key would hold something else.
const VERSION: u32 = 1;

/// How far a prompt has been put on disk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keeping {
    /// Blocks of it that lie there.
    blocks: usize,
    /// When it was used.
    since: SystemTime,
}

impl Keeping {
    /// Nothing of a prompt that has just been used.
    pub(super) fn begin() -> Self {
        Self { blocks: 0, since: SystemTime::now() }
    }
}

/// The prompts of one model under plans with the same quality keys.
#[derive(Debug)]
pub(super) struct Sessions {
    folder: Folder,
    root: Key,
    /// Bytes of a block's keys and values.
    bytes: u64,
    /// Nothing is kept any more: the folder takes nothing.
    full: bool,
}

impl Sessions {
    /// The folder, made if there is none, which is to hold `bytes_max` at most.
    ///
    /// # Errors
    /// If it cannot be made or written to, or has no room for a single block.
    pub(super) fn open(folder: &Path, bytes_max: u64, session: &Session<'_>) -> Result<Self, Failure> {
        let name = folder.display();
        if session.is_recurrent() {
            return Err(failure(format!(
                "--sessions {name}: {} keeps a recurrent state beside keys and values, and prompts of such models do not last; leave the option out",
                session.model.name()
            )));
        }
        let folder = Folder::open(folder, bytes_max).map_err(|error| {
            failure(format!("--sessions {name}: {error}; name a folder that can be written to"))
        })?;
        let bytes = (BLOCK * session.kv_bytes_per_token()) as u64;
        let least = block::file_bytes(BLOCK, bytes);
        if least > bytes_max {
            return Err(failure(format!(
                "--sessions-size {}: {BLOCK} tokens of this model take {}; give at least as much",
                show(bytes_max),
                show(least)
            )));
        }
        Ok(Self { folder, root: root(session.plan, bytes), bytes, full: false })
    }

    /// Takes in what lies on disk of a prompt, where that is more than its sequence holds. What is damaged is told of and removed.
    ///
    /// # Errors
    /// If there is no such sequence.
    pub(super) fn restore(
        &mut self,
        session: &mut Session<'_>,
        sequence: usize,
        held: &mut Held,
        prompt: &[u32],
        wanted: &dyn Fn() -> bool,
    ) -> Result<(), Failure> {
        let same = held.same(prompt);
        let first = same.min(held.prefilled().len()) / BLOCK;
        let there = self.blocks(prompt).skip(first).take_while(|block| self.folder.has(block)).count();
        if (first + there) * BLOCK <= same {
            return Ok(());
        }
        session.forget(sequence, first * BLOCK)?;
        held.truncate(first * BLOCK);
        for block in self.blocks(prompt).skip(first).take(there) {
            if !wanted() {
                return Ok(());
            }
            match self.load(session, sequence, &block) {
                Ok(()) => held.read(block.tokens),
                Err(problem) => {
                    session.forget(sequence, held.len())?;
                    self.refuse(&block, &problem);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Puts on disk what was prefilled and does not lie there yet; what lies there has been used.
    pub(super) fn keep(&mut self, session: &mut Session<'_>, sequence: usize, held: &Held) {
        let mut keeping = Keeping::begin();
        while self.keep_next(session, sequence, held, &mut keeping) {}
    }

    /// [`Self::keep`] of one block more; whether it may not have been the last.
    pub(super) fn keep_next(
        &mut self,
        session: &mut Session<'_>,
        sequence: usize,
        held: &Held,
        keeping: &mut Keeping,
    ) -> bool {
        if self.full {
            return false;
        }
        self.keep_block(session, sequence, held, keeping).unwrap_or_else(|error| {
            self.full = true;
            warn(format_args!("no more prompts are kept in {}: {error}", self.folder.path().display()));
            false
        })
    }

    fn keep_block(
        &self,
        session: &mut Session<'_>,
        sequence: usize,
        held: &Held,
        keeping: &mut Keeping,
    ) -> Result<bool, Problem> {
        let file_bytes = block::file_bytes(BLOCK, self.bytes);
        let most = (self.folder.bytes_max() / file_bytes) as usize;
        let blocks = self.blocks(held.prefilled()).take(most).enumerate();
        for (index, block) in blocks.skip(keeping.blocks) {
            keeping.blocks = index + 1;
            // the end of a prompt is older than its beginning, without which it is worth nothing
            let used = keeping.since - Duration::from_micros(index as u64);
            if !self.folder.touch(&block, used) {
                self.folder.make_room(file_bytes)?;
                let tokens = index * BLOCK..(index + 1) * BLOCK;
                self.folder.write(&block, used, |file| {
                    session.keys_and_values(sequence, tokens, |bytes| file.put(bytes))
                })?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn load(&self, session: &mut Session<'_>, sequence: usize, block: &Block<'_>) -> Result<(), Problem> {
        let mut file = self.folder.read(block)?;
        session.restore(sequence, BLOCK, |bytes| file.fill(bytes))?;
        file.finish()
    }

    /// A file that is not what it must be goes; one that cannot be read stays.
    fn refuse(&self, block: &Block<'_>, problem: &Problem) {
        let path = self.folder.path_of(block);
        let done = if problem.is_damage() && self.folder.remove(block) { "removed" } else { "not used" };
        warn(format_args!("{} is {done}: {problem}", path.display()));
    }

    /// The whole blocks of a prompt, in order.
    fn blocks<'t>(&self, tokens: &'t [u32]) -> impl Iterator<Item = Block<'t>> + use<'t> {
        let (mut key, bytes) = (self.root, self.bytes);
        tokens.chunks_exact(BLOCK).map(move |tokens| {
            key = key.followed_by(tokens);
            Block { key, tokens, bytes }
        })
    }
}

fn warn(what: fmt::Arguments<'_>) {
    terminal::say(format_args!("warning: {what}"));
}

/// All that can change a bit of keys and values, and this program's way to write them: the model, the quality keys, and the
/// context, by which rotary embeddings may scale.
fn root(plan: &Plan, bytes: u64) -> Key {
    let quality = serde_json::to_string(&plan.quality).unwrap_or_default();
    Key::root(&[
        "flashplan's keys and values",
        env!("CARGO_PKG_VERSION"),
        &VERSION.to_string(),
        &plan.target.model_fingerprint,
        &plan.target.container_fingerprint,
        &quality,
        &plan.context.tokens.to_string(),
        &bytes.to_string(),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_can_change_a_bit_changes_the_root() {
        type Change = fn(&mut Plan);
        let text = include_str!("../../engine/src/transformer/test_plan.toml");
        let plan = || plans::file::parse::<Plan>(text, Path::new("test_plan.toml")).unwrap();
        let of = |change: Change| {
            let mut plan = plan();
            change(&mut plan);
            root(&plan, 1)
        };
        let same = of(|_| ());
        let others: [Change; 8] = [
            |plan| plan.target.model_fingerprint += "0",
            |plan| plan.target.container_fingerprint += "0",
            |plan| plan.quality.level += "x",
            |plan| plan.quality.kv_format += "x",
            |plan| plan.quality.activations += "x",
            |plan| plan.quality.instruction_set += "x",
            |plan| plan.quality.always_on_neurons.push(1),
            |plan| plan.context.tokens += 1,
        ];
        for (index, change) in others.into_iter().enumerate() {
            assert_ne!(of(change), same, "{index}");
        }
        assert_ne!(root(&plan(), 2), same);
        // what changes speed and memory alone does not
        let speeds: [Change; 3] = [
            |plan| plan.cache.hot_neurons[0] += 1,
            |plan| plan.prefill.chunk_tokens += 1,
            |plan| plan.read.depth += 1,
        ];
        for change in speeds {
            assert_eq!(of(change), same);
        }
    }
}
