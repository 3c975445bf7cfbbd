//! A run that has ended: what was asked, what was measured, what was found.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::aside::SetAside;
use crate::books::{Books, LimitKind};
use crate::error::Error;
use crate::explain::Explanation;
use crate::machine::Machine;
use crate::reconcile::{Reconciliation, reconcile};
use crate::scenario::Plan;
use crate::verdict::{Class, Verdict, judge, unmatched_releases};
use crate::{explain, program, report, scenario};

/// Name of a run's file in its folder.
pub const RUN_FILE: &str = "run.json";
/// Name and version of the format of [`RUN_FILE`].
pub const RUN_SCHEMA: &str = "tidegate.run/1";

/// A run that has ended, as stored in `run.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Run {
    /// Name and version of this format: `tidegate.run/1`.
    pub schema: String,
    /// The version of tidegate that made the run.
    pub tidegate: String,
    /// When the run ended, in seconds since 1970.
    pub ended_at: u64,
    /// The machine it was made on.
    pub machine: Machine,
    /// What was asked.
    pub plan: Plan,
    /// What enforced the memory limit, if there was one.
    pub limit_enforced_by: Option<LimitKind>,
    /// What was found.
    pub verdict: Verdict,
    /// What was measured.
    pub books: Books,
    /// The lines of code behind the verdict, where the scenario was run again for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explanation: Option<Explanation>,
    /// What grew and does not fail the run, and what the suppressions came to.
    #[serde(default, skip_serializing_if = "SetAside::is_empty")]
    pub set_aside: SetAside,
    /// What explains resident memory and the card's, and what does not. No verdict
    /// depends on it.
    #[serde(default)]
    pub reconciliation: Reconciliation,
    /// The folder that holds the run.
    #[serde(skip)]
    pub(crate) folder: PathBuf,
    /// Why it could not be stored there.
    #[serde(skip)]
    pub(crate) not_stored: Option<String>,
}

impl Run {
    pub(crate) fn new(
        plan: Plan,
        limit_enforced_by: Option<LimitKind>,
        books: Books,
        verdict: Verdict,
    ) -> Self {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let reconciliation = reconcile(&books);
        Self {
            schema: RUN_SCHEMA.to_owned(),
            tidegate: env!("CARGO_PKG_VERSION").to_owned(),
            ended_at: since.as_secs(),
            machine: Machine::this(),
            plan,
            limit_enforced_by,
            verdict,
            books,
            explanation: None,
            set_aside: SetAside::default(),
            reconciliation,
            folder: PathBuf::new(),
            not_stored: None,
        }
    }

    /// Reads a stored run from its folder, or from its file.
    ///
    /// # Errors
    /// If there is none, or if it is not whole, or of another version.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let file = match path.is_dir() {
            true => path.join(RUN_FILE),
            false => path.to_owned(),
        };
        let bad = |problem: String| Error::BadRun {
            file: file.clone(),
            problem,
        };
        let text = fs::read_to_string(&file).map_err(|error| {
            bad(format!(
                "it cannot be read ({error}); a run that was broken off has no {RUN_FILE}"
            ))
        })?;
        #[derive(Deserialize)]
        struct Head {
            schema: String,
        }
        let head: Head = serde_json::from_str(&text)
            .map_err(|error| bad(format!("it is no run, or not a whole one: {error}")))?;
        if head.schema != RUN_SCHEMA {
            return Err(bad(format!(
                "it is of format {:?}, and this tidegate reads {RUN_SCHEMA:?}",
                head.schema
            )));
        }
        let run: Self = serde_json::from_str(&text)
            .map_err(|error| bad(format!("it is no run, or not a whole one: {error}")))?;
        Ok(Self {
            folder: file.parent().unwrap_or(Path::new(".")).to_owned(),
            ..run
        })
    }

    /// Judges the stored books again, with today's engine.
    ///
    /// What was set aside (suppressed leaks, what runtimes keep) stays so: that was told
    /// from call stacks, which are not stored.
    #[must_use]
    pub fn judged_again(&self) -> Self {
        let settings = match self.plan.command.is_empty() {
            true => scenario::settings(&self.plan),
            false => program::settings(&self.plan),
        };
        Self {
            verdict: judge(&self.books, &settings),
            ..self.clone()
        }
    }

    /// The folder that holds the run: its samples, its output, `run.json`.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Why the run could not be stored in its folder, if so. Then it is here alone: a gate
    /// does not pass by it.
    pub fn not_stored(&self) -> Option<&str> {
        self.not_stored.as_deref()
    }

    /// What was found.
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// The lines of code behind the verdict, where the scenario was run again for them.
    pub fn explanation(&self) -> Option<&Explanation> {
        self.explanation.as_ref()
    }

    /// The files that a second run for call stacks was exported to, in formats that other
    /// tools open: DHAT JSON, folded stacks, pprof, a flame graph. Empty where there was none.
    pub fn exports(&self) -> Vec<PathBuf> {
        match self.explanation {
            Some(_) => explain::exports(&self.folder),
            None => Vec::new(),
        }
    }

    /// What was measured.
    pub fn books(&self) -> &Books {
        &self.books
    }

    /// Asserts that the verdict is one that a gate lets through, and that the run is stored.
    ///
    /// # Panics
    /// If it is not, with the report.
    #[track_caller]
    pub fn assert_passes(&self) -> &Self {
        let passes = self.verdict.class.passes() && self.not_stored.is_none();
        assert!(passes, "\n{self}");
        self
    }

    /// Asserts that the verdict is of this class.
    ///
    /// # Panics
    /// If it is not, with the report.
    #[track_caller]
    pub fn assert_class(&self, class: Class) -> &Self {
        assert!(self.verdict.class == class, "expected `{class}`\n{self}");
        self
    }

    /// Asserts that for each item and phase of the measured rounds, all blocks
    /// that were allocated were released.
    ///
    /// # Panics
    /// If they were not, with each difference, or if no item was named in the run.
    #[track_caller]
    pub fn assert_releases_match(&self) -> &Self {
        assert!(
            self.books
                .items
                .iter()
                .any(|item| item.round > self.books.warmup),
            "no item was named in a measured round, so there is nothing to match; \
             name items with `tidegate::item` or a span's field\n{self}"
        );
        let mismatches = unmatched_releases(&self.books);
        if !mismatches.is_empty() {
            let lines: Vec<String> = mismatches.iter().map(ToString::to_string).collect();
            panic!(
                "{} of {} item and phase pairs do not match:\n{}\n{self}",
                lines.len(),
                self.books.items.len(),
                lines.join("\n")
            );
        }
        self
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&report::terminal(self))
    }
}
