//! The decision engine: measured books in, a verdict out.
//!
//! Pure: it reads nothing but its arguments and no clock, so that a stored run
//! is judged the same today and next year. Exact books decide; gauges witness.
//!
//! The order of decisions:
//!
//! 1. No progress: `hang`.
//! 2. Killed by the limit or by the kernel for lack of memory: `backlog` or
//!    `leak` if the books left behind prove it, else `ceiling`.
//! 3. Died of something else: `crash`.
//! 4. The ledger cannot be trusted, or too few rounds: `inconclusive`.
//! 5. Live memory rises for good: `leak`, with the refused release that caused
//!    it if there was one; unless waiting items explain it (`backlog`), or a
//!    long wait returned it (`backlog` too: of releases), or lost handles
//!    explain it (`handle-leak`).
//! 6. Counted things rise: `handle-leak`.
//! 7. More items wait than the queue was made for: `backlog`.
//! 8. A gauge rises that no ledger explains: `unexplained-growth`.
//! 9. The peak passes the limit: `ceiling`.
//! 10. Something that a pass needs is missing or unclear: `inconclusive`.
//! 11. `dwell`, `cache`, `retention` and `fragmentation` pass and are noted;
//!     else `clean`.
//!
//! Of a process that is watched without a ledger only counted things and gauges are
//! known: `handle-leak`, `unexplained-growth`, or `inconclusive`.
//!
//! A failing class comes before `dwell`, which the memory that did come back
//! late may still earn in a note: what passes must not hide what fails.

mod backlog;
mod class;
mod drivers;
mod evidence;
mod finding;
mod fingerprint;
mod gauges;
mod growth;
mod leaks;
mod ledger;
mod next;
mod releases;
mod resident;
mod settings;
mod threads;
pub(crate) mod words;

#[cfg(test)]
mod properties;
#[cfg(test)]
pub(crate) mod simulated;
#[cfg(test)]
mod simulations;
#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use class::Class;
pub use finding::{Confirmation, Driver, Finding, ItemLoss, Note, SEVERAL_PHASES};
pub(crate) use fingerprint::normalised as normalised_site;
#[cfg(feature = "html")]
pub(crate) use leaks::amount as amount_of;
pub use next::{Step, next_step};
pub use releases::{Mismatch, Releases, releases, unmatched_releases};
pub use settings::Settings;

use crate::books::{Books, Ending};
use evidence::Evidence;

/// What a run was found to be, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// The class.
    pub class: Class,
    /// The class's reason in one sentence.
    pub sentence: String,
    /// What fails the run, the gravest first.
    pub findings: Vec<Finding>,
    /// What passes and should be known.
    pub notes: Vec<Note>,
    /// How much of what was measured could be judged.
    pub judged: Judged,
    /// What a run like this one can see; `None` where it can see nothing.
    pub power: Option<Power>,
    /// What was tried, in order, and what each try showed.
    pub tried: Vec<Tried>,
    /// What an inconclusive verdict lacks.
    pub missing: Vec<String>,
}

/// How much of what was measured could be judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Judged {
    /// Series that were judged: the ledger's, those by site, and gauges.
    pub series_judged: u64,
    /// Series that exist.
    pub series_exist: u64,
    /// Rounds whose step was judged. Without a warm-up the first round is only compared with.
    pub rounds_judged: u64,
    /// Rounds that ended, warm-up included.
    pub rounds_ended: u64,
}

/// The smallest growth that a run can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Power {
    /// Blocks lost per round.
    pub blocks_per_round: u64,
    /// Bytes per round, where no new block shows it (one that only becomes larger).
    pub bytes_per_round: u64,
    /// Bytes per round of memory that no ledger books; `None` with too few rounds or no gauges.
    pub gauge_bytes_per_round: Option<u64>,
}

/// Something that was tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tried {
    /// What.
    pub what: String,
    /// What it showed.
    pub showed: String,
}

/// Judges a run by its books.
///
/// Never panics, whatever the books hold.
pub fn judge(books: &Books, settings: &Settings) -> Verdict {
    let evidence = Evidence::gather(books, settings);
    let (class, sentence, missing) = match &books.ending {
        Ending::Hang { idle_seconds, busy } => {
            let sentence = evidence.hang(*idle_seconds, *busy);
            (Class::Hang, sentence, Vec::new())
        }
        Ending::Limit { .. } | Ending::OomKilled => {
            let (class, sentence) = evidence.killed();
            (class, sentence, Vec::new())
        }
        Ending::Signal { .. } | Ending::Exited { .. } | Ending::Panicked { .. } => {
            (Class::Crash, evidence.crash(), Vec::new())
        }
        Ending::Completed if books.gauges_only => evidence.by_gauges_alone(),
        Ending::Completed => evidence.completed(),
    };
    evidence.into_verdict(class, sentence, missing)
}
