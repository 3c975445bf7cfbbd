//! What can go wrong in tidegate itself.

use std::io;
use std::path::PathBuf;

/// A failure of tidegate, not of the workload.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused something that a run needs.
    #[error("failed to {what}")]
    System {
        /// What was tried, as a verb and its object.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The name of the test that calls `run` cannot be found out.
    #[error(
        "cannot tell which test this is, because `run` was called on the thread {thread:?}; \
         call it on the test's own thread, or name the test with `Scenario::in_test`"
    )]
    UnknownTest {
        /// The thread's name.
        thread: String,
    },
    /// The child process did not do what it was started for.
    #[error("{problem}")]
    BadChild {
        /// What it did instead.
        problem: String,
    },
    /// A stored run cannot be used.
    #[error("cannot use the run in {}: {problem}", file.display())]
    BadRun {
        /// Its file.
        file: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A file holds nothing that a page can show.
    #[error("cannot show {}: {problem}", file.display())]
    NotShown {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A file of suppressions holds something that is not understood.
    #[error("{}:{line}: {problem}", file.display())]
    BadSuppressions {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// A file holds something that is not understood.
    #[error("{}:{line}:{column}: {problem}", file.display())]
    BadFile {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The byte within the line, from 1.
        column: usize,
        /// What is wrong there.
        problem: String,
    },
    /// Two things cannot be compared.
    #[error("cannot compare {one} with {other}: {problem}")]
    NotComparable {
        /// The one.
        one: String,
        /// The other.
        other: String,
        /// Why not, and what can be.
        problem: String,
    },
    /// A plan that cannot be followed.
    #[error("{problem}")]
    BadPlan {
        /// What is wrong with it.
        problem: String,
    },
}

impl Error {
    /// The error with its causes, in one line.
    pub fn chain(&self) -> String {
        use std::error::Error as _;
        let mut text = self.to_string();
        let mut next = self.source();
        while let Some(cause) = next {
            text.push_str(": ");
            text.push_str(&cause.to_string());
            next = cause.source();
        }
        text
    }
}

/// Turns a system error into an [`Error`] that says what was tried.
pub(crate) fn failed_to(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    let what = what.into();
    move |source| Error::System { what, source }
}
