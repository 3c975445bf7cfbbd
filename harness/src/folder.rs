//! Run folders: where a run's samples, output and books are kept.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::{Error, failed_to};
use crate::run::{RUN_FILE, Run};

/// Runs of one scenario that are kept.
const KEPT: usize = 5;
/// Names a folder for all runs, in place of the one under the target directory.
const RUNS_VARIABLE: &str = "TIDEGATE_RUNS";

/// The folder of a run that is going on.
#[derive(Debug)]
pub(crate) struct RunFolder {
    path: PathBuf,
}

impl RunFolder {
    /// Makes a new folder for a run of the scenario `name`, and removes old runs of it.
    pub fn create(name: &str, asked: Option<&Path>) -> Result<Self, Error> {
        if let Some(path) = asked {
            let what = format!("make the run folder {}", path.display());
            fs::create_dir_all(path).map_err(failed_to(what))?;
            return Ok(Self {
                path: path.to_owned(),
            });
        }
        let all = runs_folder();
        let what = format!("make a run folder in {}", all.display());
        let prefix = format!("{}.", as_file_name(name));
        let make = || -> io::Result<PathBuf> {
            fs::create_dir_all(&all)?;
            remove_old(&all, &prefix);
            Ok(tempfile::Builder::new()
                .prefix(&prefix)
                .tempdir_in(&all)?
                .keep())
        };
        Ok(Self {
            path: make().map_err(failed_to(what))?,
        })
    }

    /// The folder of a run that has been made.
    pub fn of(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
        }
    }

    /// Makes a file in the folder.
    pub fn create_file(&self, name: &str) -> Result<File, Error> {
        let path = self.path.join(name);
        File::create(&path).map_err(failed_to(format!("make {}", path.display())))
    }

    /// Makes a folder in the folder.
    pub fn create_folder(&self, name: &str) -> Result<PathBuf, Error> {
        let path = self.path.join(name);
        let what = format!("make {}", path.display());
        fs::create_dir_all(&path).map_err(failed_to(what))?;
        Ok(path)
    }

    /// The end of what the workload printed, for a person.
    pub fn tail_of_output(&self) -> String {
        ["stdout.log", "stderr.log"]
            .map(|name| tail(&self.path.join(name)))
            .concat()
    }

    /// Stores a run, whole or not at all. That it cannot be stored (the disk is full, the
    /// folder is gone and cannot be made again) does not lose it: the run says so.
    pub fn keep(&self, mut run: Run) -> Run {
        let path = self.path.join(RUN_FILE);
        let store = || -> io::Result<()> {
            // Somebody may have removed it.
            fs::create_dir_all(&self.path)?;
            let mut file = tempfile::NamedTempFile::new_in(&self.path)?;
            serde_json::to_writer_pretty(&mut file, &run)?;
            file.write_all(b"\n")?;
            file.persist(&path)?;
            Ok(())
        };
        run.not_stored = store()
            .err()
            .map(|error| format!("failed to store the run in {}: {error}", path.display()));
        run.folder = self.path.clone();
        run
    }
}

/// Where runs are kept: beside the build, as the target directory is what a
/// checkout ignores and `cargo clean` removes.
fn runs_folder() -> PathBuf {
    if let Some(folder) = std::env::var_os(RUNS_VARIABLE).filter(|folder| !folder.is_empty()) {
        return folder.into();
    }
    let program = std::env::current_exe().unwrap_or_default();
    // target/PROFILE/deps/PROGRAM, or target/PROFILE/PROGRAM.
    let is_profile = |folder: &&Path| {
        folder
            .parent()
            .is_some_and(|target| target.join("CACHEDIR.TAG").exists())
            || folder.join("deps").is_dir()
    };
    match program.ancestors().find(is_profile).and_then(Path::parent) {
        Some(target) => target.join("tidegate"),
        None => std::env::temp_dir().join("tidegate"),
    }
}

/// A name without what a file's name should not hold.
pub(crate) fn as_file_name(name: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || c == '-' {
            c
        } else {
            '_'
        }
    };
    name.chars().take(80).map(plain).collect()
}

/// Removes all but the latest ended runs. What cannot be removed stays.
fn remove_old(all: &Path, prefix: &str) {
    let Ok(entries) = fs::read_dir(all) else {
        return;
    };
    let mut ended: Vec<(SystemTime, PathBuf)> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .filter_map(|entry| {
            let stored = fs::metadata(entry.path().join(RUN_FILE)).ok()?;
            Some((stored.modified().ok()?, entry.path()))
        })
        .collect();
    ended.sort();
    let surplus = (ended.len() + 1).saturating_sub(KEPT);
    for (_, path) in ended.into_iter().take(surplus) {
        let _ = fs::remove_dir_all(path);
    }
}

fn tail(path: &Path) -> String {
    const LONGEST: u64 = 4096;
    let read = || -> io::Result<String> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LONGEST)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().unwrap_or_default()
}
