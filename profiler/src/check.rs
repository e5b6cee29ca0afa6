//! `profile --check`: settings that slow this machine down, with the command that mends each.
//!
//! It measures and changes nothing. Facts are gathered in one place, so tests can judge a machine that lacks something.

use std::io;
use std::path::{Path, PathBuf};

use flashplan::internals::flash::{self, uring::Uring};
use flashplan::internals::machine::Machine;
use plans::size::show;
use platform::Missing;
use terminal::Rows;

use crate::ProfileError;

/// Facts of a machine that decide how fast plans run.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The folder of the container.
    pub storage: PathBuf,
    /// RAM that the kernel manages.
    pub ram_bytes: u64,
    /// Cores that this process may use.
    pub cores: usize,
    /// Bytes that the process may lock; `None`: all.
    pub lockable_bytes: Option<u64>,
    /// Whether a ring can be created, or the system's error: its kind and text.
    pub io_uring: Result<(), (io::ErrorKind, String)>,
    /// `kernel.io_uring_disabled`: 0 allows all, 1 some, 2 nobody; `None` on older kernels.
    pub io_uring_disabled: Option<u32>,
    /// Whether reads in `storage` can bypass the page cache, or the system's error.
    pub direct: Result<(), String>,
    /// The text of `transparent_hugepage/enabled`; the word in brackets is the setting.
    pub huge_pages: Option<String>,
    /// The control group's folder, and its memory limit in bytes.
    pub memory_limit: Option<(PathBuf, u64)>,
    /// The file with the group's processor quota, and the quota in processors.
    pub processor_limit: Option<(PathBuf, f64)>,
    /// Guarantees that the platform cannot give.
    pub missing: &'static [Missing],
}

/// A requirement of plans, and its state on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Name of the requirement.
    pub name: &'static str,
    /// State on this machine, in words.
    pub found: String,
    /// Command or advice that mends it; `None` if it is met, or nothing can be done.
    pub remedy: Option<String>,
    /// Whether the platform has it at all.
    pub exists: bool,
}

impl Facts {
    /// Gathers the facts. It creates and removes a file in `storage`.
    ///
    /// # Errors
    /// [`ProfileError`] if the machine cannot be identified, or the folder not be written to.
    pub fn here(storage: &Path) -> Result<Self, ProfileError> {
        let machine = Machine::here(storage)?;
        let wrong = |source| ProfileError::Io { action: "write into", path: storage.to_owned(), source };
        let mut file = tempfile::NamedTempFile::new_in(storage).map_err(wrong)?;
        io::Write::write_all(&mut file, &[0; 4096]).map_err(wrong)?;
        let says = |error: io::Error| error.to_string();
        let ring = flash::open(file.path(), false).and_then(|file| Uring::new(file, false, 1, 1));
        let number = |path: &str| platform::machine::setting(path)?.trim().parse().ok();
        let group = machine.memory_group.as_ref();
        Ok(Self {
            storage: storage.to_owned(),
            ram_bytes: machine.ram_bytes,
            cores: machine.allowed.len(),
            lockable_bytes: machine.lockable_bytes,
            io_uring: ring.map(drop).map_err(|error| (error.kind(), says(error))),
            io_uring_disabled: number("/proc/sys/kernel/io_uring_disabled"),
            direct: flash::open(file.path(), true).map(drop).map_err(says),
            huge_pages: platform::machine::setting("/sys/kernel/mm/transparent_hugepage/enabled"),
            memory_limit: group.and_then(|group| Some((group.folder.clone(), group.limit_bytes?))),
            processor_limit: group.and_then(|group| {
                let (path, text) = platform::machine::processor_limit(group)?;
                Some((path, share(&text)?))
            }),
            missing: platform::MISSING,
        })
    }

    /// All requirements, each with its state on this machine, and then the guarantees that the platform cannot give.
    pub fn findings(&self) -> Vec<Finding> {
        let requirements =
            [self.locked(), self.uring(), self.direct(), self.huge(), self.memory(), self.processors()];
        let given =
            requirements.into_iter().filter(|one| self.missing.iter().all(|gap| gap.name != one.name));
        given.chain(self.missing.iter().map(Finding::absent)).collect()
    }

    fn locked(&self) -> Finding {
        let enough = self.lockable_bytes.is_none_or(|bytes| bytes >= self.ram_bytes);
        let remedy = "for this shell: sudo prlimit --pid $$ --memlock=unlimited:unlimited; for good, with the next login: \
                      echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/flashplan.conf; \
                      a container: start it with --ulimit memlock=-1";
        Finding {
            exists: true,
            name: "locked memory",
            found: self
                .lockable_bytes
                .map_or("all of it".to_owned(), |bytes| format!("at most {}", show(bytes))),
            remedy: (!enough).then(|| remedy.to_owned()),
        }
    }

    fn uring(&self) -> Finding {
        let refused = self.io_uring.as_ref().err();
        let remedy = match self.io_uring_disabled {
            Some(1 | 2) => "sudo sysctl kernel.io_uring_disabled=0",
            _ if refused.is_some_and(|(kind, _)| *kind == io::ErrorKind::OutOfMemory) => {
                "its rings are locked memory: raise the limit on that, as above; without it reads go through pread"
            }
            _ => {
                "a container's seccomp profile or an old kernel refuses it: start the container with \
                 --security-opt seccomp=unconfined, or use Linux 5.6 or later; without it reads go through pread"
            }
        };
        Finding {
            exists: true,
            name: "io_uring",
            found: refused.map_or("works".to_owned(), |(_, why)| format!("refused: {why}")),
            remedy: refused.map(|_| remedy.to_owned()),
        }
    }

    fn direct(&self) -> Finding {
        let remedy = "name a folder of a file system that has them, such as ext4, xfs, btrfs or f2fs, with --storage DIR";
        Finding {
            exists: true,
            name: "direct reads",
            found: match &self.direct {
                Ok(()) => format!("work in {}", self.storage.display()),
                Err(why) => format!("refused in {}: {why}", self.storage.display()),
            },
            remedy: self.direct.is_err().then(|| remedy.to_owned()),
        }
    }

    fn huge(&self) -> Finding {
        let holds = self.huge_pages.as_deref().and_then(|words| words.split(['[', ']']).nth(1));
        let remedy = match holds {
            Some("always" | "madvise") => None,
            Some(_) => Some("echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"),
            None => Some("this kernel has none; another one is built with CONFIG_TRANSPARENT_HUGEPAGE"),
        };
        Finding {
            exists: true,
            name: "huge pages",
            found: holds.unwrap_or("none").to_owned(),
            remedy: remedy.map(str::to_owned),
        }
    }

    fn memory(&self) -> Finding {
        let limit = self.memory_limit.as_ref().filter(|(_, bytes)| *bytes < self.ram_bytes);
        let remedy = limit.map(|(folder, bytes)| {
            format!(
                "echo max | sudo tee {} (or in a group above it, or the container's --memory); or plan with --mem below {}",
                folder.join("memory.max").display(),
                show(*bytes)
            )
        });
        Finding {
            exists: true,
            name: "memory of the control group",
            found: match limit {
                Some((_, bytes)) => format!("at most {} of {}", show(*bytes), show(self.ram_bytes)),
                None => format!("all {}", show(self.ram_bytes)),
            },
            remedy,
        }
    }

    fn processors(&self) -> Finding {
        let limit = self.processor_limit.as_ref().filter(|(_, share)| *share < self.cores as f64);
        Finding {
            exists: true,
            name: "processors of the control group",
            found: match limit {
                Some((_, share)) => format!("the time of {share:.1} of {} cores", self.cores),
                None => format!("all of {} cores", self.cores),
            },
            remedy: limit.map(|(path, _)| {
                format!("echo max | sudo tee {} (or the container's --cpus)", path.display())
            }),
        }
    }
}

impl Finding {
    /// A guarantee that the platform cannot give.
    fn absent(gap: &Missing) -> Self {
        Self { name: gap.name, found: gap.consequence.to_owned(), remedy: None, exists: false }
    }
}

/// The processors of a `cpu.max`: its quota over its period; `None` for `max`.
fn share(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
    (period > 0.0).then_some(quota / period)
}

/// A table for people, and below it the commands for what is lacking.
pub fn text(findings: &[Finding]) -> String {
    let mut rows = Rows::new().left();
    for finding in findings {
        let state = match (&finding.remedy, finding.exists) {
            (_, false) => "absent",
            (Some(_), true) => "lacks",
            (None, true) => "good",
        };
        rows.row([finding.name.to_owned(), state.to_owned(), finding.found.clone()]);
    }
    let mut text = rows.to_string();
    let lacking: Vec<&Finding> = findings.iter().filter(|finding| finding.remedy.is_some()).collect();
    if lacking.is_empty() {
        let absent = findings.iter().any(|finding| !finding.exists);
        let but = if absent {
            format!(", but {} does not have what is absent", platform::NAME)
        } else {
            String::new()
        };
        text += &format!("\n\nThis machine lacks nothing that a plan wants{but}.");
    }
    for finding in lacking {
        text += &format!("\n\n{}:\n  {}", finding.name, finding.remedy.as_deref().unwrap_or_default());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Facts {
        Facts {
            storage: PathBuf::from("/data"),
            ram_bytes: 16 << 30,
            cores: 8,
            lockable_bytes: None,
            io_uring: Ok(()),
            io_uring_disabled: Some(0),
            direct: Ok(()),
            huge_pages: Some("always [madvise] never\n".to_owned()),
            memory_limit: None,
            processor_limit: None,
            missing: &[],
        }
    }

    fn lacking(facts: &Facts) -> Vec<(&'static str, String)> {
        facts.findings().into_iter().filter_map(|finding| Some((finding.name, finding.remedy?))).collect()
    }

    #[test]
    fn a_good_machine_lacks_nothing() {
        assert_eq!(lacking(&good()), []);
        assert!(text(&good().findings()).contains("lacks nothing"));
        // limits above the machine's own do not count
        let wide = Facts {
            lockable_bytes: Some(32 << 30),
            memory_limit: Some((PathBuf::from("/g"), 16 << 30)),
            processor_limit: Some((PathBuf::from("/g/cpu.max"), 8.0)),
            huge_pages: Some("[always] madvise never".to_owned()),
            ..good()
        };
        assert_eq!(lacking(&wide), []);
    }

    #[test]
    fn each_fault_is_told_alone_with_the_command_that_mends_it() {
        let refused = || Err("Operation not permitted".to_owned());
        let no_ring = |kind: io::ErrorKind| Err((kind, kind.to_string()));
        let (forbidden, full) = (io::ErrorKind::PermissionDenied, io::ErrorKind::OutOfMemory);
        for (facts, name, words) in [
            (Facts { lockable_bytes: Some(8 << 20), ..good() }, "locked memory", "memlock=unlimited"),
            (
                Facts { io_uring: no_ring(forbidden), io_uring_disabled: Some(2), ..good() },
                "io_uring",
                "sysctl kernel.io_uring_disabled=0",
            ),
            (Facts { io_uring: no_ring(forbidden), ..good() }, "io_uring", "seccomp=unconfined"),
            (Facts { io_uring: no_ring(full), ..good() }, "io_uring", "rings are locked memory"),
            (Facts { direct: refused(), ..good() }, "direct reads", "--storage DIR"),
            (
                Facts { huge_pages: Some("always madvise [never]".to_owned()), ..good() },
                "huge pages",
                "echo madvise",
            ),
            (Facts { huge_pages: None, ..good() }, "huge pages", "CONFIG_TRANSPARENT_HUGEPAGE"),
            (
                Facts { memory_limit: Some((PathBuf::from("/g"), 4 << 30)), ..good() },
                "memory of the control group",
                "tee /g/memory.max",
            ),
            (
                Facts { processor_limit: Some((PathBuf::from("/g/cpu.max"), 2.0)), ..good() },
                "processors of the control group",
                "tee /g/cpu.max",
            ),
        ] {
            let lacking = lacking(&facts);
            assert!(
                matches!(&lacking[..], [(found, remedy)] if *found == name && remedy.contains(words)),
                "{lacking:?}"
            );
            assert!(text(&facts.findings()).contains(words));
        }
    }

    #[test]
    fn what_the_platform_cannot_give_is_named_in_place_of_a_remedy() {
        const GAPS: &[Missing] = &[
            Missing { name: "io_uring", consequence: "threads read" },
            Missing { name: "pinned threads", consequence: "speeds vary" },
        ];
        let refused = Err((io::ErrorKind::Unsupported, "not here".to_owned()));
        let facts = Facts { io_uring: refused, missing: GAPS, ..good() };
        assert_eq!(lacking(&facts), []);
        let findings = facts.findings();
        let absent: Vec<_> = findings.iter().filter(|one| !one.exists).map(|one| one.name).collect();
        assert_eq!((findings.len(), absent), (7, vec!["io_uring", "pinned threads"]));
        assert!(text(&findings).contains("speeds vary"), "{}", text(&findings));
    }

    #[test]
    fn a_share_of_the_processors_is_a_quota_over_a_period() {
        assert_eq!((share("150000 100000\n"), share("max 100000\n"), share("")), (Some(1.5), None, None));
    }

    #[test]
    fn this_machine_is_looked_at_and_nothing_is_left() {
        let folder = tempfile::tempdir().expect("a folder");
        let facts = Facts::here(folder.path()).expect("it is told");
        assert!(facts.findings().len() >= 6);
        assert_eq!(std::fs::read_dir(folder.path()).expect("it is there").count(), 0);
    }
}
