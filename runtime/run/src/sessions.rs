//! Prompts that last: their keys and values lie on disk by prefix. Neither a restart nor another conversation with the same beginning
//! prefills them again.
//!
//! ```text
//! prompt     [ block 0 | block 1 | ... | rest ]     32 tokens each; the rest is always prefilled
//! key 0      BLAKE3(root, tokens of block 0)        root: all that can change a bit of keys and values
//! key n      BLAKE3(key n - 1, tokens of block n)   names its file, and says all that stands before it
//! ```
//!
//! Prompts with a common beginning share files (`block`), and a look-up opens a file by its name. The `folder` is bounded: it evicts the
//! least recently used prompt first, and the end of a prompt before its beginning. Only prefilled tokens are kept, and nothing after a
//! decoded token: the folder changes no bit of an answer. Memory does not grow: keys and values pass through one small buffer, between two
//! answers, block by block.
//!
//! A recurrent state belongs to one position and is not cut. Models with such a state store each prompt whole in one file: keys and values
//! of all tokens, and the last state. A prompt that continues a stored one restores all of it.

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
use super::session::RunningPlan;
use super::{Failure, failure};

/// Tokens of a block: of a prompt of 1,000 at most 31 are prefilled again.
const BLOCK: usize = 32;
/// Changes when a file of the same key would hold something else.
const VERSION: u32 = 2;

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
    /// Bytes of a token's keys and values.
    token_bytes: u64,
    /// Bytes of a recurrent state; 0 where there is none, and prompts lie on disk by blocks.
    state_bytes: u64,
    /// Nothing is kept any more: the folder takes nothing.
    full: bool,
}

impl Sessions {
    /// The folder, made if there is none, which is to hold `bytes_max` at most.
    ///
    /// # Errors
    /// If it cannot be made or written to, or has no room for a single block.
    pub(super) fn open(folder: &Path, bytes_max: u64, session: &RunningPlan<'_>) -> Result<Self, Failure> {
        let name = folder.display();
        let folder = Folder::open(folder, bytes_max).map_err(|error| {
            failure(format!("--sessions {name}: {error}; name a folder that can be written to"))
        })?;
        let (token_bytes, state_bytes) = (session.kv_bytes_per_token() as u64, session.state_bytes() as u64);
        let least = block::file_bytes(BLOCK, BLOCK as u64 * token_bytes + state_bytes);
        if least > bytes_max {
            return Err(failure(format!(
                "--sessions-size {}: {BLOCK} tokens of this model take {}; give at least as much",
                show(bytes_max),
                show(least)
            )));
        }
        let root = root(session.plan, token_bytes, state_bytes);
        Ok(Self { folder, root, token_bytes, state_bytes, full: false })
    }

    /// Restores a prompt's beginning from disk, where that is more than its sequence holds. Damaged files are reported and removed.
    ///
    /// # Errors
    /// If there is no such sequence.
    pub(super) fn restore(
        &mut self,
        session: &mut RunningPlan<'_>,
        sequence: usize,
        held: &mut Held,
        prompt: &[u32],
        wanted: &dyn Fn() -> bool,
    ) -> Result<(), Failure> {
        if self.state_bytes > 0 {
            return self.restore_whole(session, sequence, held, prompt);
        }
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

    /// [`Self::restore`] of a model with recurrent state: the longest prompt on disk with which this one begins.
    fn restore_whole(
        &self,
        session: &mut RunningPlan<'_>,
        sequence: usize,
        held: &mut Held,
        prompt: &[u32],
    ) -> Result<(), Failure> {
        // one token is left to be prefilled, for the logits after it
        let most = prompt.len().saturating_sub(1);
        let same = session.kept_of(sequence, held.same(prompt).min(most));
        let found = self.wholes(&prompt[..most]).skip(same).filter(|whole| self.folder.has(whole)).last();
        let Some(whole) = found else { return Ok(()) };
        session.forget(sequence, 0)?;
        held.truncate(0);
        match self.load(session, sequence, &whole) {
            Ok(()) => held.read(whole.tokens),
            Err(problem) => self.refuse(&whole, &problem),
        }
        Ok(())
    }

    /// Puts on disk what was prefilled and does not lie there yet; what lies there has been used.
    pub(super) fn keep(&mut self, session: &mut RunningPlan<'_>, sequence: usize, held: &Held) {
        let mut keeping = Keeping::begin();
        while self.keep_next(session, sequence, held, &mut keeping) {}
    }

    /// [`Self::keep`] of one block more; whether it may not have been the last.
    pub(super) fn keep_next(
        &mut self,
        session: &mut RunningPlan<'_>,
        sequence: usize,
        held: &Held,
        keeping: &mut Keeping,
    ) -> bool {
        if self.full {
            return false;
        }
        let kept = match self.state_bytes {
            0 => self.keep_block(session, sequence, held, keeping),
            _ => self.keep_whole(session, sequence, held, keeping).map(|()| false),
        };
        kept.unwrap_or_else(|error| {
            self.full = true;
            warn(format_args!("no more prompts are kept in {}: {error}", self.folder.path().display()));
            false
        })
    }

    fn keep_block(
        &self,
        session: &mut RunningPlan<'_>,
        sequence: usize,
        held: &Held,
        keeping: &mut Keeping,
    ) -> Result<bool, Problem> {
        let file_bytes = block::file_bytes(BLOCK, BLOCK as u64 * self.token_bytes);
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

    /// Writes to disk the prompt whose recurrent state is kept. A prompt prefilled after a decoded token is left out: no prefill makes its
    /// state. A prompt shorter than a block is left out, too: prefilling it again is as fast.
    fn keep_whole(
        &self,
        session: &mut RunningPlan<'_>,
        sequence: usize,
        held: &Held,
        keeping: &Keeping,
    ) -> Result<(), Problem> {
        let tokens = held.prefilled();
        let Some(whole) = self.wholes(tokens).last().filter(|_| tokens.len() >= BLOCK) else { return Ok(()) };
        let file_bytes = block::file_bytes(tokens.len(), whole.bytes);
        if session.state_at(sequence) != tokens.len()
            || file_bytes > self.folder.bytes_max()
            || self.folder.touch(&whole, keeping.since)
        {
            return Ok(());
        }
        self.folder.make_room(file_bytes)?;
        self.folder.write(&whole, keeping.since, |file| {
            session.keys_and_values(sequence, 0..tokens.len(), |bytes| file.put(bytes))
        })
    }

    fn load(&self, session: &mut RunningPlan<'_>, sequence: usize, block: &Block<'_>) -> Result<(), Problem> {
        let mut file = self.folder.read(block)?;
        session.restore(sequence, block.tokens.len(), |bytes| file.fill(bytes))?;
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
        let (mut key, bytes) = (self.root, BLOCK as u64 * self.token_bytes);
        tokens.chunks_exact(BLOCK).map(move |tokens| {
            key = key.followed_by(tokens);
            Block { key, tokens, bytes }
        })
    }

    /// Prompts that these tokens begin with, each whole with the state behind it, the shortest first.
    fn wholes<'t>(&self, tokens: &'t [u32]) -> impl Iterator<Item = Block<'t>> + use<'t> {
        let (token_bytes, state_bytes) = (self.token_bytes, self.state_bytes);
        self.root.followed_by_each(tokens).zip(1..).map(move |(key, count)| Block {
            key,
            tokens: &tokens[..count],
            bytes: count as u64 * token_bytes + state_bytes,
        })
    }
}

fn warn(what: fmt::Arguments<'_>) {
    terminal::say(format_args!("warning: {what}"));
}

/// Everything that can change a bit of keys and values, and this program's format for them. This covers the model, the quality keys, and
/// the context, since rotary embeddings may scale with it.
fn root(plan: &Plan, token_bytes: u64, state_bytes: u64) -> Key {
    let quality = serde_json::to_string(&plan.quality).unwrap_or_default();
    Key::root(&[
        "flashplan's keys and values",
        env!("CARGO_PKG_VERSION"),
        &VERSION.to_string(),
        &plan.target.model_fingerprint,
        &plan.target.container_fingerprint,
        &quality,
        &plan.context.tokens.to_string(),
        &token_bytes.to_string(),
        &state_bytes.to_string(),
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
            root(&plan, 1, 0)
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
        assert_ne!(root(&plan(), 2, 0), same);
        assert_ne!(root(&plan(), 1, 1), same);
        // keys that change speed and memory alone do not
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
