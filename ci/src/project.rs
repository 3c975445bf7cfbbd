//! The project that a command is called in: its policy, its baselines, the runs given.

use std::path::{Path, PathBuf};

use clap::Args;
use tidegate::baseline::{FOLDER, Store};
use tidegate::policy::{POLICY_FILE, Policy};
use tidegate::{Day, Error, Run};

use crate::Failure;

/// Where a project's policy and baselines are.
#[derive(Debug, Args)]
pub(crate) struct Project {
    /// The policy; unless given, `tidegate.toml` here or in the nearest folder above.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// The folder of baselines; unless given, `tidegate/baselines` beside the policy, or
    /// in the root of the workspace.
    #[arg(long, value_name = "FOLDER")]
    baselines: Option<PathBuf>,
}

impl Project {
    /// Reads the policy; without one it is the default.
    pub(crate) fn policy(&self, as_of: Option<Day>) -> Result<Policy, Failure> {
        let file = self
            .policy
            .clone()
            .or_else(|| above(POLICY_FILE).map(|root| root.join(POLICY_FILE)));
        let policy = match file {
            Some(file) => Policy::read(&file).map_err(bad_input)?,
            None => Policy::default(),
        };
        Ok(match as_of {
            Some(day) => policy.as_of(day),
            None => policy,
        })
    }

    /// Reads the baselines.
    pub(crate) fn store(&self) -> Result<Store, Failure> {
        let folder = match (&self.baselines, &self.policy) {
            (Some(folder), _) => folder.clone(),
            (None, Some(policy)) => policy.parent().unwrap_or(Path::new("")).join(FOLDER),
            (None, None) => {
                let root = above(POLICY_FILE).or_else(|| above("Cargo.lock"));
                root.unwrap_or_default().join(FOLDER)
            }
        };
        Store::read(&folder).map_err(bad_input)
    }
}

/// The nearest folder, from here upwards, that holds this file; as a relative path where
/// it is this one.
fn above(file: &str) -> Option<PathBuf> {
    if Path::new(file).is_file() {
        return Some(PathBuf::new());
    }
    let here = std::env::current_dir().ok()?;
    let found = here
        .ancestors()
        .skip(1)
        .find(|folder| folder.join(file).is_file());
    found.map(Path::to_owned)
}

/// The root of the repository that the command is called in; without one that of the
/// policy or of the workspace, or the folder itself.
pub(crate) fn root() -> PathBuf {
    let here = std::env::current_dir().unwrap_or_default();
    // A worktree has a file there.
    let repository = here.ancestors().find(|folder| folder.join(".git").exists());
    let project = || above(POLICY_FILE).or_else(|| above("Cargo.lock"));
    match repository.map(Path::to_owned).or_else(project) {
        Some(root) if root != Path::new("") => root,
        _ => here,
    }
}

/// Reads runs from their folders or files.
pub(crate) fn read_runs(paths: &[PathBuf]) -> Result<Vec<(PathBuf, Run)>, Failure> {
    let read = |path: &PathBuf| {
        let run = Run::read(path);
        Ok((path.clone(), run.map_err(bad_input)?))
    };
    paths.iter().map(read).collect()
}

/// A failure because of what was given.
pub(crate) fn bad_input(error: Error) -> Failure {
    Failure::of_usage(error.chain())
}
