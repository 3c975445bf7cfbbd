//! Where baselines are kept.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::Baseline;
use crate::error::{Error, failed_to};
use crate::folder::as_file_name;
use crate::machine::Fingerprint;

/// The folder of baselines in a project.
pub const FOLDER: &str = "tidegate/baselines";
/// How the files' names end.
const EXTENSION: &str = "baseline";

/// The baselines of a project.
#[derive(Clone, Debug, Default)]
pub struct Store {
    folder: PathBuf,
    baselines: Vec<(PathBuf, Baseline)>,
}

/// What a store has for a scenario on a machine.
#[derive(Clone, Copy, Debug)]
pub enum Found<'a> {
    /// The baseline of such a machine.
    Same(&'a Path, &'a Baseline),
    /// Only those of other machines; this one is alike in most.
    Other(&'a Path, &'a Baseline),
    /// None at all.
    Nothing,
}

impl Store {
    /// Reads the baselines in a folder; without one there are none.
    ///
    /// # Errors
    /// If one cannot be read, or is damaged, with the line.
    pub fn read(folder: &Path) -> Result<Self, Error> {
        let mut files = Vec::new();
        let list = |folder: &Path| -> io::Result<Vec<PathBuf>> {
            match fs::read_dir(folder) {
                Ok(entries) => entries
                    .map(|entry| entry.map(|entry| entry.path()))
                    .collect(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
                Err(error) => Err(error),
            }
        };
        let what = |folder: &Path| format!("list the baselines in {}", folder.display());
        for scenario in list(folder).map_err(failed_to(what(folder)))? {
            if scenario.is_dir() {
                files.extend(list(&scenario).map_err(failed_to(what(&scenario)))?);
            }
        }
        files.retain(|file| {
            file.extension()
                .is_some_and(|extension| extension == EXTENSION)
        });
        files.sort();
        let baselines = files.into_iter().map(|file| {
            let baseline = Baseline::read(&file)?;
            Ok((file, baseline))
        });
        Ok(Self {
            folder: folder.to_owned(),
            baselines: baselines.collect::<Result<_, Error>>()?,
        })
    }

    /// All baselines, each with its file.
    pub fn all(&self) -> &[(PathBuf, Baseline)] {
        &self.baselines
    }

    /// What there is for a scenario on a machine.
    pub fn find(&self, scenario: &str, machine: &Fingerprint) -> Found<'_> {
        let of_scenario = || {
            let all = self.baselines.iter();
            all.filter(|(_, baseline)| baseline.profile.scenario == scenario)
        };
        let differ = |baseline: &Baseline| baseline.machine.differences(machine).len();
        match of_scenario().min_by_key(|(_, baseline)| differ(baseline)) {
            Some((path, baseline)) if differ(baseline) == 0 => Found::Same(path, baseline),
            Some((path, baseline)) => Found::Other(path, baseline),
            None => Found::Nothing,
        }
    }

    /// The file for a baseline: where it is, or where a new one goes.
    pub fn file_for(&self, scenario: &str, machine: &Fingerprint) -> PathBuf {
        if let Found::Same(path, _) = self.find(scenario, machine) {
            return path.to_owned();
        }
        let folder = self.folder.join(as_file_name(scenario));
        let mut name = machine.file_name();
        // Another scenario's, or machine's, may have come to the same name.
        let taken = |name: &str| {
            let file = folder.join(format!("{name}.{EXTENSION}"));
            self.baselines.iter().any(|(path, _)| *path == file)
        };
        while taken(&name) {
            name.push('+');
        }
        folder.join(format!("{name}.{EXTENSION}"))
    }

    /// Writes a baseline, whole or not at all, and returns its file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, baseline: &Baseline) -> Result<PathBuf, Error> {
        let file = self.file_for(&baseline.profile.scenario, &baseline.machine);
        let folder = file.parent().unwrap_or(&self.folder);
        let write = || -> io::Result<()> {
            fs::create_dir_all(folder)?;
            let mut new = tempfile::NamedTempFile::new_in(folder)?;
            new.write_all(baseline.text().as_bytes())?;
            // A temporary file is its owner's alone, and this one is everybody's.
            let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o644);
            new.as_file().set_permissions(permissions)?;
            new.persist(&file)?;
            Ok(())
        };
        write().map_err(failed_to(format!("write {}", file.display())))?;
        Ok(file)
    }
}
