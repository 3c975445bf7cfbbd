//! What can be compared, read from where it is.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Serialize;

use super::dhat::{self, Dhat, Keys};
use super::{Body, DIFF_SCHEMA, Diff, Options, profiles, sites};
use crate::baseline::{self, Baseline};
use crate::error::{Error, failed_to};
use crate::machine::Fingerprint;
use crate::profile::{self, Profile, Rounds};
use crate::run::{RUN_FILE, Run};

/// Bytes at the beginning of a file that tell what it is.
const HEAD: u64 = 4096;

/// One side of a comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Side {
    /// Where it was read from; of several files the first.
    pub path: PathBuf,
    /// What it is.
    pub kind: Kind,
    /// The scenario's name, or the command of a file in DHAT's format.
    pub what: String,
    /// Runs that it holds.
    pub runs: u32,
    /// Their measured rounds; `None` where all of a process is one.
    pub rounds: Option<Rounds>,
}

/// What was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A profile of ours.
    Profile,
    /// A baseline.
    Baseline,
    /// A run.
    Run,
    /// A file in DHAT's format: dhat-rs, Valgrind, `explain`.
    Dhat,
}

impl Kind {
    /// How messages call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Profile => "a profile",
            Self::Baseline => "a baseline",
            Self::Run => "a run",
            Self::Dhat => "a DHAT file",
        }
    }
}

/// Something to compare.
enum Input {
    Profile {
        kind: Kind,
        profile: Profile,
        machine: Option<Fingerprint>,
    },
    Dhat(Dhat),
}

/// Compares what is in the files, or folders of runs: `new` with what `old` give together.
///
/// # Errors
/// If one of them cannot be read, is none of the formats or damaged, or if they hold what
/// cannot be compared.
pub fn compare(old: &[PathBuf], new: &Path, options: &Options) -> Result<Diff, Error> {
    let (old_read, new_read) = std::thread::scope(|scope| {
        let new_read = scope.spawn(|| Input::read(new));
        let old_read: Result<Vec<Input>, Error> =
            old.iter().map(|path| Input::read(path)).collect();
        (old_read, new_read.join())
    });
    // A panic there is one here.
    let new_read = new_read.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    let mut old_read = old_read?;
    let first = old.first().map_or(Path::new(""), PathBuf::as_path);
    let refused = |problem: String| Error::NotComparable {
        one: first.display().to_string(),
        other: new.display().to_string(),
        problem,
    };
    let sides = |inputs: &[Input]| Side::of(first, inputs);
    let (old_side, new_side) = (
        sides(&old_read),
        Side::of(new, std::slice::from_ref(&new_read)),
    );
    let body = match new_read {
        Input::Dhat(after) => {
            let before = match (old_read.pop(), old_read.is_empty()) {
                (Some(Input::Dhat(before)), true) => before,
                (Some(Input::Dhat(_)), false) => {
                    return Err(refused(
                        "several OLD can be profiles, baselines and runs, and no DHAT files"
                            .to_owned(),
                    ));
                }
                (old, _) => {
                    let kind = old.map_or(Kind::Profile, |old| old.kind());
                    return Err(refused(mixed(kind.name(), "the other")));
                }
            };
            compare_dhat(before, after, options).map_err(refused)?
        }
        Input::Profile {
            kind,
            profile,
            machine,
        } => {
            let mut merged = Vec::with_capacity(old_read.len());
            let mut machines = Vec::new();
            for input in old_read {
                match input {
                    Input::Profile {
                        profile, machine, ..
                    } => {
                        merged.push(profile);
                        machines.extend(machine);
                    }
                    Input::Dhat(_) => return Err(refused(mixed(kind.name(), "OLD"))),
                }
            }
            let merged = Profile::merged(merged).map_err(refused)?;
            let mut body = profiles::body(&merged, &profile, options);
            let differs = machines.iter().zip(&machine).find_map(|(one, other)| {
                let differs = one.differences(other);
                (!differs.is_empty()).then_some(differs)
            });
            if let Some(differs) = differs {
                body.notes
                    .push(format!("these are two machines: {}", differs.join("; ")));
            }
            body
        }
    };
    Ok(Diff {
        schema: DIFF_SCHEMA.to_owned(),
        old: old_side,
        new: new_side,
        body,
    })
}

fn mixed(kind: &str, dhat: &str) -> String {
    format!(
        "the one is {kind}, with amounts per measured round, and {dhat} is in DHAT's format, with \
         amounts of a whole process; compare runs with runs, or DHAT files with DHAT files \
         (`cargo tidegate explain --full -o DIR` writes them for a program)"
    )
}

fn compare_dhat(old: Dhat, new: Dhat, options: &Options) -> Result<Body, String> {
    if let Some(problem) = sites::refusal(&old.head, &new.head) {
        return Err(problem);
    }
    let keys = Keys::random();
    let (old, new) = std::thread::scope(|scope| {
        let new = scope.spawn(|| new.sites(&keys));
        (old.sites(&keys), new.join())
    });
    let new = new.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    Ok(sites::body(&old, &new, options))
}

impl Side {
    fn of(path: &Path, inputs: &[Input]) -> Self {
        let mut side = Self {
            path: path.to_owned(),
            kind: inputs.first().map_or(Kind::Profile, Input::kind),
            what: String::new(),
            runs: 0,
            rounds: None,
        };
        for input in inputs {
            match input {
                Input::Profile { profile, .. } => {
                    side.what.clone_from(&profile.scenario);
                    side.runs = side.runs.saturating_add(profile.runs);
                    let known = side.rounds.unwrap_or(profile.rounds);
                    side.rounds = Some(known.and(profile.rounds));
                }
                Input::Dhat(dhat) => {
                    side.what.clone_from(&dhat.head.command);
                    side.runs += 1;
                }
            }
        }
        side
    }
}

impl Input {
    const fn kind(&self) -> Kind {
        match self {
            Self::Profile { kind, .. } => *kind,
            Self::Dhat(_) => Kind::Dhat,
        }
    }

    fn read(path: &Path) -> Result<Self, Error> {
        if path.is_dir() {
            return Ok(Self::of_run(&Run::read(path)?));
        }
        let what = || format!("read {}", path.display());
        let mut head = Vec::new();
        File::open(path)
            .and_then(|file| file.take(HEAD).read_to_end(&mut head))
            .map_err(failed_to(what()))?;
        let head = String::from_utf8_lossy(&head);
        let of_profile = |kind, profile, machine| Self::Profile {
            kind,
            profile,
            machine,
        };
        if head.starts_with(profile::NAME) {
            return Ok(of_profile(Kind::Profile, Profile::read(path)?, None));
        }
        if head.starts_with(baseline::NAME) {
            let Baseline {
                profile, machine, ..
            } = Baseline::read(path)?;
            return Ok(of_profile(Kind::Baseline, profile, Some(machine)));
        }
        if head.contains("\"dhatFileVersion\"") {
            return Ok(Self::Dhat(dhat::read(path)?));
        }
        if head.trim_start().starts_with('{') {
            return Ok(Self::of_run(&Run::read(path)?));
        }
        Err(Error::BadFile {
            file: path.to_owned(),
            line: 1,
            column: 1,
            problem: format!(
                "this is no profile or baseline of tidegate's, no run (a folder, or its {RUN_FILE}), \
                 and no file in DHAT's format"
            ),
        })
    }

    fn of_run(run: &Run) -> Self {
        Self::Profile {
            kind: Kind::Run,
            profile: run.profile(),
            machine: Some(run.machine.fingerprint()),
        }
    }
}
