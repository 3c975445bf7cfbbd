//! Runs of a program one after the other, each in a fresh process, without its output.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use indicatif::ProgressBar;
use tidegate::compare::Measures;
use tidegate::{Class, Explain, Run, read_samples};

use crate::Failure;
use crate::workload::Options;

/// How runs are made, and where they are kept.
#[derive(Debug)]
pub(crate) struct Fresh<'a> {
    options: &'a Options,
    /// Runs are removed once they are measured, unless they are to be kept here.
    keep_in: Option<PathBuf>,
    progress: ProgressBar,
}

/// A run that has ended, as far as it went.
#[derive(Debug)]
pub(crate) struct Ran {
    /// What it says.
    pub(crate) measures: Measures,
    /// What it was judged as.
    pub(crate) class: Class,
    /// Why it says nothing, where it broke off for another reason than its memory limit.
    pub(crate) problem: Option<String>,
}

impl<'a> Fresh<'a> {
    pub(crate) fn new(options: &'a Options, keep_in: Option<PathBuf>) -> Self {
        // It draws nothing where the standard error is no terminal.
        let progress = ProgressBar::new_spinner();
        progress.enable_steady_tick(Duration::from_millis(200));
        Self {
            options,
            keep_in,
            progress,
        }
    }

    /// Runs a program to its end. `name` names the run, for a person and as a folder.
    /// `None` if somebody wants all of this to end: the run was broken off then.
    pub(crate) fn run(
        &self,
        name: &str,
        command: Vec<OsString>,
        environment: Option<(&str, &str)>,
    ) -> Result<Option<Ran>, Failure> {
        let is_to_end = crate::signals::asked_to_end()?;
        if is_to_end.load(Ordering::Relaxed) {
            return Ok(None);
        }
        self.progress.set_message(name.to_owned());
        let failed = |error: std::io::Error| {
            Failure::of_ours(format!("failed to make a folder for a run: {error}"))
        };
        let temporary = match &self.keep_in {
            None => Some(tempfile::tempdir().map_err(failed)?),
            Some(_) => None,
        };
        let kept = self.keep_in.as_ref().map(|folder| folder.join(name));
        let folder = kept.or_else(|| temporary.as_ref().map(|folder| folder.path().to_owned()));
        let mut program = self.options.program(command)?;
        if let Some((variable, value)) = environment {
            program = program.env(variable, value);
        }
        let run = program
            .quiet()
            .keep_in(folder)
            .explain(Some(Explain::Never))
            .run()
            .map_err(|error| Failure::of_ours(error.chain()))?;
        if is_to_end.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let class = run.verdict().class;
        let broke_off = matches!(class, Class::Crash | Class::Hang);
        Ok(Some(Ran {
            measures: measures(&run),
            class,
            problem: broke_off.then(|| last_words(&run)),
        }))
    }
}

impl Drop for Fresh<'_> {
    fn drop(&mut self) {
        self.progress.finish_and_clear();
    }
}

/// What a run says, with its samples where they can be read.
pub(crate) fn measures(run: &Run) -> Measures {
    let (samples, torn) = read_samples(run.folder()).unwrap_or_default();
    let mut measures = Measures::of(run.books(), &samples);
    if torn {
        let what = "samples after one that is not whole".to_owned();
        measures.missing.push(what);
    }
    measures
}

/// Why a run broke off, and what it said last.
fn last_words(run: &Run) -> String {
    const LINES: usize = 5;
    let mut words = run.verdict().sentence.clone();
    let text = std::fs::read(run.folder().join("stderr.log")).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    for line in &lines[lines.len().saturating_sub(LINES)..] {
        words.push_str("\n  | ");
        words.push_str(line);
    }
    words
}

/// Reads a stored run.
pub(crate) fn stored(path: &Path) -> Result<Run, Failure> {
    Run::read(path).map_err(|error| Failure::of_usage(error.chain()))
}
