//! Two versions of a program compared, and one program over the values of a parameter.
//!
//! Pure, like [`verdict`](crate::verdict): runs in, words and numbers out, no clock and no
//! system. [`Measures`] are what one run says. [`Comparison`] judges the runs of a baseline
//! and a candidate, metric by metric, and [`Why`] takes the difference of their peaks apart
//! so that the parts add up. [`Forecast`] draws a line of the peak over a parameter and says
//! which value still fits a budget; [`Sweep`] is how its runs are stored, shared among
//! machines and put together again.
//!
//! # How it is decided
//!
//! Fresh runs of both versions are made in pairs, in alternating order. After 6 pairs, and
//! whenever half as many again are there, each metric is looked at: the shift of the pairs'
//! differences (Hodges and Lehmann) with bounds that a permutation test gives (Wilcoxon's
//! signed ranks). The bounds of all looks together miss the true shift with a probability
//! of 5 % at most, because what each look may miss is taken off one budget. A metric is
//! `more` or `less` when its bounds lie wholly beyond the tolerance, `same` when they lie
//! wholly within it, and `undecided` otherwise. Each of the three can be wrong only where
//! the bounds are. The decision page 0010 says what that costs, and why not otherwise.
//!
//! The error is that of one metric's verdict. Of several metrics that are all noise beyond
//! the tolerance, one is wrongly called worse the more often the more there are.

mod judge;
mod line;
mod looks;
mod measures;
mod parts;
mod ranks;
pub(crate) mod report;
mod stored;
mod sweep;
mod why;

pub use judge::{Change, Compared, Comparison, Decision, Metric, Runs, Shift, Spread, Terms};
pub use line::{Largest, Line};
pub use measures::{Measures, Unit};
pub use parts::{MergeError, Part, PeakOf, SWEEP_SCHEMA, Sweep, SweepPlan, SweepRun};
pub use stored::{COMPARISON_SCHEMA, StoredComparison, Version};
pub use sweep::{Budget, Checked, Drawn, Expected, Forecast, Instead, Peak, Seen, Steepest};
pub use why::{PeakKind, PhaseShift, Term, TermPart, Why};
