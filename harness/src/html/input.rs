//! What a page is made of: runs, comparisons and sweeps, read from their files.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::moments::Moments;
use crate::compare::{COMPARISON_SCHEMA, SWEEP_SCHEMA, StoredComparison, Sweep};
use crate::error::Error;
use crate::run::{RUN_SCHEMA, Run};
use crate::sampler::SAMPLES_FILE;

/// One thing that is shown.
#[derive(Debug)]
pub(super) struct Input {
    /// Where it was read from.
    pub path: PathBuf,
    pub kind: Kind,
}

#[derive(Debug)]
pub(super) enum Kind {
    Run(Box<ShownRun>),
    Comparison(Box<StoredComparison>),
    Sweep(Box<Sweep>),
}

/// A run and its samples, or why there are none.
#[derive(Debug)]
pub(super) struct ShownRun {
    pub path: PathBuf,
    pub run: Run,
    pub moments: Result<Moments, String>,
}

impl Input {
    /// Reads a run from its folder or file, or what `ab --json` or `sweep --json` wrote.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let kind = match path.is_dir() {
            true => Kind::Run(Box::new(ShownRun::read(path)?)),
            false => Kind::read(path)?,
        };
        Ok(Self {
            path: path.to_owned(),
            kind,
        })
    }
}

impl Kind {
    fn read(path: &Path) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Head {
            schema: String,
        }
        let bad = |problem: String| Error::NotShown {
            file: path.to_owned(),
            problem,
        };
        let text = fs::read_to_string(path)
            .map_err(|error| bad(format!("it cannot be read ({error})")))?;
        let head: Head = serde_json::from_str(&text).map_err(|error| {
            bad(format!(
                "it is no run, comparison or sweep, or not a whole one: {error}"
            ))
        })?;
        let not_whole = |error: serde_json::Error| bad(format!("it is not a whole one: {error}"));
        match head.schema.as_str() {
            RUN_SCHEMA => Ok(Self::Run(Box::new(ShownRun::read(path)?))),
            COMPARISON_SCHEMA => serde_json::from_str(&text)
                .map(|read| Self::Comparison(Box::new(read)))
                .map_err(not_whole),
            SWEEP_SCHEMA => serde_json::from_str(&text)
                .map(|read| Self::Sweep(Box::new(read)))
                .map_err(not_whole),
            other => Err(bad(format!(
                "it is of format {other:?}, and this tidegate shows {RUN_SCHEMA:?}, {COMPARISON_SCHEMA:?} and {SWEEP_SCHEMA:?}"
            ))),
        }
    }
}

impl ShownRun {
    fn read(path: &Path) -> Result<Self, Error> {
        let run = Run::read(path)?;
        let moments = match Moments::read(run.folder()) {
            Ok(moments) => Ok(moments),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(format!(
                "There is no file {SAMPLES_FILE} beside the run, so that memory is known after each round only."
            )),
            Err(error) => Err(format!("The run's samples could not be read: {error}.")),
        };
        Ok(Self {
            path: path.to_owned(),
            run,
            moments,
        })
    }
}
