//! Writing the container, from the source and the finished parts of every layer.

use std::fs::File;
use std::io;
use std::path::Path;

use anyhow::{Context as _, bail};
use flashplan::internals::container::{
    Checksums, Contents, LevelSource, PredictorSource, PredictorSources, SetSource, SliceSums, Written,
    WrittenLayers,
};
use flashplan::internals::model::source::SourceModel;
use flashplan::internals::model::tokenizer::TokenizerData;
use plans::model::LevelKind;
use plans::size;

use super::consume::Consumption;
use super::level::{Menu, signs};
use super::order::NeuronOrder;
use super::work::{FinishedParts, numbers};
use crate::{Context, ProfileError, Stopped};

/// A container to be written: the source, and the finished parts of every layer.
#[derive(Debug)]
pub struct Conversion<'a> {
    /// The model's short name.
    pub name: &'a str,
    /// The source's fingerprint.
    pub fingerprint: &'a str,
    /// The source.
    pub source: &'a SourceModel<'a>,
    /// The source's tokenizer.
    pub tokenizer: &'a TokenizerData,
    /// The finished parts.
    pub work: &'a FinishedParts,
    /// The levels.
    pub menu: &'a Menu,
    /// The order of each layer's neurons.
    pub orders: &'a [NeuronOrder],
    /// Checksums of an index's slices, by layer, where a pass over the files has found them.
    pub sums: Option<Vec<Vec<SliceSums>>>,
    /// Frees the source's bytes, layer after layer, with `--consume-model`.
    pub consumption: Option<&'a Consumption>,
}

/// Finished predictors, read one at a time.
#[derive(Debug)]
struct Kept<'a> {
    kind: LevelKind,
    of: &'a Conversion<'a>,
}

impl PredictorSources for Kept<'_> {
    fn predictor(&self, layer: usize, expert: usize) -> io::Result<PredictorSource> {
        let &Conversion { source, work, menu, orders, consumption, .. } = self.of;
        if self.kind == LevelKind::Sign {
            let made = || signs(source.ffn_gate(layer, expert), &orders[layer].experts()[expert]);
            // else the gate rows may be gone after a restart
            if consumption.is_none() {
                return Ok(PredictorSource::Sign(made()));
            }
            let name = format!("signs-{layer:04}-{expert:04}");
            let kept = work.load(&name).map_err(io::Error::other)?;
            if let Some(kept) = kept {
                return Ok(PredictorSource::Sign(numbers(&kept)));
            }
            let signs = made();
            work.save(&name, &[bytemuck::cast_slice(&signs)]).map_err(io::Error::other)?;
            return Ok(PredictorSource::Sign(signs));
        }
        let kept = menu.kept(work, layer, expert).map_err(io::Error::other)?;
        let kept = kept.ok_or_else(|| lost(work))?;
        Ok(PredictorSource::LowRank { rank: kept.rank, fc1: kept.fc1, fc2: kept.fc2 })
    }
}

fn lost(work: &FinishedParts) -> io::Error {
    let folder = work.folder().display();
    io::Error::other(format!("a predictor is damaged in {folder}: remove the folder and start again"))
}

/// The layers of the unfinished container.
struct Layers<'a> {
    of: &'a Conversion<'a>,
    /// The unfinished container.
    part: &'a Path,
}

impl WrittenLayers for Layers<'_> {
    fn load(&self, layer: usize) -> io::Result<Option<Vec<Checksums>>> {
        let kept = self.of.work.load(&format!("bundles-{layer:04}")).map_err(io::Error::other)?;
        Ok(kept.map(|bytes| numbers(&bytes)))
    }

    fn save(&mut self, layer: usize, checksums: &[Checksums]) -> io::Result<()> {
        let name = format!("bundles-{layer:04}");
        self.of.work.save(&name, &[bytemuck::cast_slice(checksums)]).map_err(io::Error::other)?;
        let Some(consumption) = self.of.consumption else { return Ok(()) };
        // the copy of the model's bytes must survive a crash of the machine
        File::open(self.part)?.sync_data()?;
        consumption.layer(self.of.source, layer)
    }

    fn gives_back(&self) -> bool {
        self.of.consumption.is_some()
    }

    fn given_back(&self, layer: usize) -> bool {
        self.gives_back() && self.load(layer).is_ok_and(|kept| kept.is_some())
    }
}

impl Conversion<'_> {
    /// Writes the container or the index to `path`; a container has about `estimated_bytes`.
    ///
    /// # Errors
    /// [`Stopped`], and the system's, such as a full disk.
    pub fn write(&self, context: &Context, path: &Path, estimated_bytes: u64) -> anyhow::Result<Written> {
        let &Self { name, fingerprint, source, tokenizer, work, menu, orders, ref sums, consumption } = self;
        let levels = levels(work, source, menu, orders)?;
        let kept = |kind| Kept { kind, of: self };
        let predictors = [("sign", kept(LevelKind::Sign)), ("low-rank", kept(LevelKind::LowRank))];
        let sets: Vec<SetSource<'_>> = (predictors.iter())
            .filter(|_| menu.predicts)
            .map(|(name, predictors)| SetSource {
                name,
                kind: predictors.kind,
                format: menu.format,
                hidden: menu.hidden,
                predictors,
            })
            .collect();
        let orders: Vec<Vec<u32>> = orders.iter().map(|order| order.sources.clone()).collect();
        let part = path.with_file_name(work.folder().with_extension("part").file_name().unwrap_or_default());
        let bar = if menu.index {
            context.bytes_bar(source.gguf().file_bytes() as u64, "indexing the model's file")
        } else {
            context.bytes_bar(estimated_bytes, "writing container")
        };
        let mut reached = 0;
        let mut progress = |bytes| {
            reached = bytes;
            bar.set_position(bytes);
            context.stopped().is_ok()
        };
        let contents = Contents {
            name,
            source_fingerprint: fingerprint,
            source,
            tokenizer: tokenizer.clone(),
            down_format: menu.down,
            slice_neurons: menu.slice_neurons,
            orders: &orders,
            sets: &sets,
            levels: &levels,
        };
        let written = if menu.index {
            flashplan::internals::container::write_index(
                path,
                &part,
                contents,
                sums.as_deref(),
                &mut progress,
            )
        } else {
            let mut layers = Layers { of: self, part: &part };
            flashplan::internals::container::write(path, &part, contents, &mut layers, &mut progress)
        };
        drop(bar);
        match written {
            Ok(written) => Ok(written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => bail!(Stopped),
            Err(error) if error.kind() == io::ErrorKind::StorageFull && consumption.is_some() => bail!(
                "the disk of {} is full after {} of the container, which stays there, since the model has given back what is \
                 in it; make room and start again",
                path.display(),
                size::show(reached)
            ),
            Err(error) if error.kind() == io::ErrorKind::StorageFull => bail!(
                "the disk of {} is full after {} of the container, which has been removed; make room or name another \
                 folder with --storage",
                path.display(),
                size::show(reached)
            ),
            Err(source) => Err(ProfileError::Io { action: "write", path: path.to_owned(), source })
                .context("the container was not made"),
        }
    }
}

/// The levels, with their finished thresholds.
fn levels(
    work: &FinishedParts,
    source: &SourceModel<'_>,
    menu: &Menu,
    orders: &[NeuronOrder],
) -> anyhow::Result<Vec<LevelSource>> {
    let config = source.config();
    let mut thresholds = vec![vec![Vec::new(); config.layers()]; menu.levels.len()];
    for layer in 0..config.layers() {
        for expert in (0..config.experts()).filter(|_| menu.has_thresholds()) {
            let kept = menu.kept(work, layer, expert)?.ok_or_else(|| lost(work))?;
            for (thresholds, level) in thresholds.iter_mut().zip(&menu.levels) {
                match (level.kind, level.cut) {
                    (LevelKind::Sign, _) => {
                        thresholds[layer].push(kept.differences.iter().map(|&d| d as f32).collect());
                    }
                    (_, Some(cut)) => thresholds[layer].push(kept.thresholds[cut].clone()),
                    _ => {}
                }
            }
        }
    }
    let levels = menu.levels.iter().zip(thresholds).map(|(level, thresholds)| {
        let set = Menu::set(level.kind);
        LevelSource {
            name: level.name.clone(),
            kind: level.kind,
            set,
            thresholds: (set.is_some() || level.cut.is_some()).then_some(thresholds),
            always_on: orders.iter().map(|order| set.map_or(0, |_| order.hot())).collect(),
        }
    });
    Ok(levels.collect())
}
