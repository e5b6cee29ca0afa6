//! The stages between a model and its first token: device profile, model profile, plan, run.
//!
//! A stage is left out where its file fits: machine and model have not changed, and the plan was made from these two profiles.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use plans::expectation::with_priors;
use plans::file::{hash_file, read};
use plans::plan::Plan;
use plans::size::show;
use plans::{ContractError, Device, Model as ModelProfile};
use terminal::say;

use crate::cli::{ModelArgs, Thoroughness};
use crate::home::{Home, Place};
use crate::learned;
use crate::machine;
use crate::model::{Model, SourceFile};
use crate::programs::{Ended, Program, Programs};

/// The exit code of a plan that does not fit this machine or model.
const DOES_NOT_FIT: u8 = 2;

/// A model that is being prepared.
#[derive(Debug)]
struct Stages<'a> {
    programs: &'a Programs,
    arguments: &'a ModelArgs,
    model: &'a Model,
    place: &'a Place,
    /// Whether `run` will answer requests.
    serves: bool,
}

/// Prepares a model, and starts `run` with these options: to answer requests if it `serves`.
///
/// # Errors
/// The error of a stage; [`Ended`] where a program has said why.
pub(crate) fn start(arguments: &ModelArgs, serves: bool, options: &[OsString]) -> anyhow::Result<u8> {
    let programs = Programs::find()?;
    let model = Model::named(&arguments.model)?;
    let place = Home::find()?.place(&model)?;
    let stages = Stages { programs: &programs, arguments, model: &model, place: &place, serves };
    let device = stages.device()?;
    let profile = stages.model()?;
    let plan = stages.plan(&device, &profile)?;
    let mut words: Vec<OsString> = vec!["--plan".into(), plan.into()];
    if place.storage != place.folder {
        words.extend(["--model".into(), place.storage.join(&profile.container.file).into()]);
    }
    if arguments.no_learn {
        words.push("--no-learn".into());
    }
    words.extend(options.iter().cloned());
    let code = programs.start(Program::Run, &words)?;
    if code == DOES_NOT_FIT {
        say(
            "flashplan: if the machine or the model has changed, the same command with --fresh measures them again",
        );
    }
    Ok(code)
}

/// The machine's profile, for the disk of a model; measured if there is none.
///
/// # Errors
/// `profile` failed.
pub(crate) fn device_file(programs: &Programs, model: &Model) -> anyhow::Result<PathBuf> {
    measured(programs, &Home::find()?.place(model)?, false, true)
}

/// The machine's profile, measured if there is none, or `fresh` asks for it.
fn measured(programs: &Programs, place: &Place, fresh: bool, quiet: bool) -> anyhow::Result<PathBuf> {
    let file = place.device.join("device.toml");
    if fresh || !is_readable(read::<Device>(&file).map(drop))? {
        let words = [
            "--quick".into(),
            "--out".into(),
            place.device.clone().into(),
            "--storage".into(),
            place.disk.clone().into(),
        ];
        stage(programs, Program::Profile, &words, quiet)?;
    }
    Ok(file)
}

fn stage(programs: &Programs, program: Program, words: &[OsString], quiet: bool) -> anyhow::Result<()> {
    match programs.stage(program, words, quiet)? {
        0 => Ok(()),
        code => Err(Ended(code).into()),
    }
}

impl Stages<'_> {
    /// The machine's profile, measured if there is none, and a copy of it beside the model's.
    fn device(&self) -> anyhow::Result<Device> {
        let file = measured(self.programs, self.place, self.arguments.fresh, !self.arguments.verbose)?;
        let folder = &self.place.folder;
        fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
        let own = self.place.folder.join("device.toml");
        if hash_file(&own).ok() != Some(hash_file(&file)?) {
            plans::file::write_bytes(&own, plans::file::kind::<Device>(), &fs::read(&file)?)?;
        }
        Ok(read::<Device>(&file)?.value)
    }

    /// The model's profile, made if there is none, or the model's file has changed, or a more thorough one is wanted.
    fn model(&self) -> anyhow::Result<ModelProfile> {
        let file = self.place.folder.join("model.toml");
        let source = self.model.source();
        let known = SourceFile::read(&self.place.folder);
        let changed = known.as_ref().is_some_and(|known| *known != source);
        if changed {
            say(format_args!("{} has changed since it was profiled, and is profiled again", source.model));
        }
        let wanted = self.arguments.profile;
        let found = if self.arguments.fresh || changed || !is_readable(read::<ModelProfile>(&file).map(drop))?
        {
            None
        } else {
            Some(read::<ModelProfile>(&file)?.value)
        };
        if let Some(found) =
            found.filter(|found| wanted.is_none_or(|wanted| Thoroughness::of(found) >= wanted))
        {
            return Ok(found);
        }
        let how = wanted.unwrap_or_default();
        let mut words: Vec<OsString> = how.options();
        words.extend(self.profile_words());
        if file.exists() {
            words.push("--replace".into());
        }
        self.stage(Program::Profile, &words)?;
        // only now: the profile of a file that changed is not believed before it is replaced
        self.model.source().write(&self.place.folder)?;
        let made = read::<ModelProfile>(&file)?.value;
        if how == Thoroughness::Instant {
            let why = if made.architecture.always_fires() {
                "has measured misses"
            } else {
                "skips neurons at zero"
            };
            say(format_args!(
                "profile: from priors; a full profile {why}, and takes minutes: {}",
                self.programs.line(Program::Profile, &self.profile_words())
            ));
        }
        Ok(made)
    }

    /// Arguments of `profile` for this model.
    fn profile_words(&self) -> Vec<OsString> {
        let mut words = vec![
            "--model".into(),
            self.model.argument().into(),
            "--out".into(),
            self.place.folder.clone().into(),
        ];
        if self.place.storage != self.place.folder {
            words.extend(["--storage".into(), self.place.storage.clone().into()]);
        }
        words
    }

    /// A plan within the limits, made if there is none from these profiles.
    fn plan(&self, device: &Device, profile: &ModelProfile) -> anyhow::Result<PathBuf> {
        let folder = &self.place.folder;
        let limit = self.arguments.mem.unwrap_or_else(|| default_limit(device));
        let options = self.plan_options(limit);
        let file = folder.join(plan_name(limit, &options));
        let inputs = [folder.join("device.toml"), folder.join("model.toml")];
        let hashes = [hash_file(&inputs[0])?, hash_file(&inputs[1])?];
        let fits = |plan: &Plan| {
            [&plan.provenance.device_toml, &plan.provenance.model_toml] == [&hashes[0], &hashes[1]]
        };
        let words = |output: &Path, more: &[OsString]| -> Vec<OsString> {
            let [device, model] = inputs.each_ref().map(OsString::from);
            let first =
                ["--device".into(), device, "--model".into(), model, "--mem".into(), short(limit).into()];
            first.iter().chain(&options).chain(more).chain(&["-o".into(), output.into()]).cloned().collect()
        };
        let known = read::<Plan>(&file).ok().filter(|known| fits(&known.value));
        if known.is_none() {
            let planned = self.stage(Program::Plan, &words(&file, &["--no-learn".into()]));
            if planned.is_err() && profile.has_priors() && !profile.architecture.always_fires() {
                say(
                    "flashplan: many neurons of this model are zero, and an instant profile does not skip them: try --profile quick",
                );
            }
            planned?;
        }
        let plan = known.map_or_else(|| read::<Plan>(&file), Ok)?.value;
        let quality = ["--quality".into(), file.clone().into()];
        let learned = self.learned(profile, &file, fits, |output| words(output, &quality));
        let (file, plan) = learned.unwrap_or((file, plan));
        let speed = plan.expected.decode_tokens_per_second;
        let [least, most] = with_priors(speed);
        let between =
            if plan.provenance.priors { format!(" ({least:.1} to {most:.1})") } else { String::new() };
        say(format_args!(
            "plan: {speed:.1} tok/s{between} expected, {} of {}, level `{}`",
            show(plan.expected.memory_peak_bytes),
            show(plan.memory.limit_bytes),
            plan.quality.level
        ));
        Ok(file)
    }

    /// The plan beside `file` that has the counts of earlier runs, if it pays; made if there is none that `fits`.
    fn learned(
        &self,
        profile: &ModelProfile,
        file: &Path,
        fits: impl Fn(&Plan) -> bool,
        words: impl Fn(&Path) -> Vec<OsString>,
    ) -> Option<(PathBuf, Plan)> {
        let counted = learned::counted(&self.place.folder, profile).filter(|_| !self.arguments.no_learn)?;
        let output = learned::beside(file);
        let known = read::<Plan>(&output).ok().map(|known| known.value);
        let plan = match known.filter(|known| fits(known) && !learned::is_stale(known, counted)) {
            Some(known) => known,
            None => {
                self.stage(Program::Plan, &words(&output)).ok()?;
                read::<Plan>(&output).ok()?.value
            }
        };
        if !learned::pays(&plan) {
            return None;
        }
        say(learned::gain(&plan));
        Some((output, plan))
    }

    /// The options of `plan` besides files and the limit.
    fn plan_options(&self, limit: u64) -> Vec<OsString> {
        let ModelArgs { min_speed, context, slots, reserve, max_loss, .. } = self.arguments;
        let reserve = reserve.or_else(|| self.serves.then(|| default_reserve(limit)));
        let options = [
            ("--min-speed", min_speed.map(|it| it.to_string())),
            ("--context", context.map(|it| it.to_string())),
            ("--slots", slots.map(|it| it.to_string())),
            ("--reserve", reserve.filter(|&bytes| bytes > 0).map(short)),
            ("--max-loss", max_loss.map(|it| it.to_string())),
        ];
        let given = options.into_iter().filter_map(|(name, value)| Some((name, value?)));
        given.flat_map(|(name, value)| [name.into(), value.into()]).collect()
    }

    fn stage(&self, program: Program, words: &[OsString]) -> anyhow::Result<()> {
        stage(self.programs, program, words, !self.arguments.verbose)
    }
}

/// Whether a file could be read; one that is missing, damaged or of another version is made again.
fn is_readable(found: Result<(), ContractError>) -> anyhow::Result<bool> {
    match found {
        Ok(()) => Ok(true),
        Err(ContractError::Missing { .. }) => Ok(false),
        Err(error @ ContractError::Io { .. }) => Err(error).context("the files of this model cannot be used"),
        Err(error) => {
            say(format_args!("{error}: it is made again"));
            Ok(false)
        }
    }
}

/// The memory limit without `--mem`: three quarters of what the machine can give, or what is free where that is less.
fn default_limit(device: &Device) -> u64 {
    let most = device.capacity.plannable_bytes();
    let wanted = rounded(most / 4 * 3);
    match machine::available_bytes().map(|free| rounded(free / 10 * 9)) {
        Some(free) if free < wanted => {
            say(format_args!(
                "other programs use memory: planning for {}; --mem SIZE plans for more",
                show(free)
            ));
            free
        }
        _ => wanted,
    }
}

/// Whole GiB, or below 4 GiB whole multiples of 256 MiB: limits of two starts should be the same.
fn rounded(bytes: u64) -> u64 {
    let step = if bytes >= 4 << 30 { 1 << 30 } else { 256 << 20 };
    (bytes / step * step).max(256 << 20)
}

/// A size as short as it can be written exactly.
fn short(bytes: u64) -> String {
    let units = [(30, "G"), (20, "M"), (10, "K")];
    let whole = units.into_iter().find(|(shift, _)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    whole.map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

/// Memory for requests without `--reserve`: enough for an agent's tools and schemas, and in whole MiB.
fn default_reserve(limit: u64) -> u64 {
    (64 << 20).min(limit / 16) >> 20 << 20
}

/// The file of a plan: its limit, and the other options in the order of [`Stages::plan_options`].
fn plan_name(limit: u64, options: &[OsString]) -> String {
    let mut name = format!("plan-{}", short(limit));
    for option in options {
        let option = option.to_string_lossy();
        name = name + "-" + option.strip_prefix("--").unwrap_or(&option);
    }
    name + ".toml"
}

/// Files of a prepared model, for `flashplan list`.
pub(crate) fn plans_in(folder: &Path) -> Vec<Plan> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.sort();
    let is_plan =
        |path: &&PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"plan-"));
    files.iter().filter(is_plan).filter_map(|path| Some(read::<Plan>(path).ok()?.value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_named_by_its_limits() {
        let options = ["--min-speed", "8", "--context", "8192"].map(OsString::from);
        assert_eq!(plan_name(12 << 30, &[]), "plan-12G.toml");
        assert_eq!(plan_name(2600 << 20, &options), "plan-2600M-min-speed-8-context-8192.toml");
        assert_eq!(plan_name(12_000_000_000, &[]), "plan-11718750K.toml");
        assert_eq!(plan_name(4097, &[]), "plan-4097.toml");
    }

    #[test]
    fn a_default_limit_is_a_round_number() {
        assert_eq!(rounded((17 << 30) + 5), 17 << 30);
        assert_eq!(rounded((3 << 30) + (300 << 20)), (3 << 30) + (256 << 20));
        assert_eq!(rounded(1), 256 << 20);
        assert_eq!([12 << 30, 40 << 20, 1 << 20].map(default_reserve), [64 << 20, 2 << 20, 0]);
    }
}
