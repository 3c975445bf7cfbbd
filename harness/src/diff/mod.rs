//! What changed from one profile to another: by phase and by site, the biggest first.
//!
//! [`compare`] reads profiles, baselines, runs, and files in DHAT's format (dhat-rs,
//! Valgrind). Sites match by the functions of their stacks, so that a moved line is no
//! removal and an addition. With several old runs the spread of each metric is known,
//! and what a run of the same program can give as well is no change ([`Tolerance`]).

mod dhat;
mod fast;
mod input;
pub(crate) mod markdown;
mod pieces;
mod profiles;
mod sites;
mod terminal;

use schemars::JsonSchema;
use serde::Serialize;

use crate::books::Layer;
use crate::profile::{Metric, Spread, Tolerance, Value};

pub use input::{Kind, Side, compare};
pub(crate) use profiles::body as of_profiles;
pub(crate) use terminal::{plain, shortened, shown, shown_f64};

/// Name and version of the format of a diff as JSON.
pub const DIFF_SCHEMA: &str = "tidegate.diff/1";

/// What changed.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Diff {
    /// Name and version of this format: `tidegate.diff/1`.
    pub schema: String,
    /// What was there before.
    pub old: Side,
    /// What is there now.
    pub new: Side,
    /// What changed.
    #[serde(flatten)]
    pub body: Body,
}

/// The changes of a [`Diff`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Body {
    /// Sums and peaks of all phases and sites together; those that are the same too.
    pub whole: Vec<Change>,
    /// Phases and layers that changed, the biggest change first.
    pub phases: Vec<Entry>,
    /// How many there are of each kind.
    pub phase_counts: Counts,
    /// Sites that changed, the biggest change first, as many as were asked for.
    pub sites: Vec<Entry>,
    /// How many there are of each kind.
    pub site_counts: Counts,
    /// What a reader must know of the comparison.
    pub notes: Vec<String>,
}

/// One phase and layer, or one site, that changed.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Entry {
    /// The phase, where phases are known.
    pub phase: Option<String>,
    /// The layer, where layers are known.
    pub layer: Option<Layer>,
    /// The site's frames from the innermost; none for a whole phase and layer.
    pub frames: Vec<String>,
    /// Where it is known.
    pub standing: Standing,
    /// Its metrics that are known on both sides, or were nothing on one.
    pub changes: Vec<Change>,
}

/// On which sides something is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "is", rename_all = "kebab-case")]
pub enum Standing {
    /// On both.
    Changed,
    /// On the new side only.
    New,
    /// On the old side only.
    Gone,
    /// On both, under stacks that differ: as much was allocated by the same innermost
    /// functions, or by a stack that is the same in half of its frames.
    Moved {
        /// The old frames from the innermost.
        from: Vec<String>,
    },
}

/// One metric on both sides.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Change {
    /// The metric.
    pub metric: Metric,
    /// The old value, of several runs the one in the middle.
    #[schemars(with = "Option<f64>")]
    pub old: Option<Value>,
    /// The new one.
    #[schemars(with = "Option<f64>")]
    pub new: Option<Value>,
    /// Where the new value should lie if nothing changed; `None` where no run's spread
    /// can be known.
    pub tolerance: Option<Tolerance>,
    /// What the new value is to that.
    pub outcome: Outcome,
}

/// What a new value is to the old ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The same.
    Same,
    /// Another, that a run of the same program can give as well.
    Within,
    /// More.
    Above,
    /// Less.
    Below,
}

/// How many of each kind there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Counts {
    /// On the old side.
    pub old: u64,
    /// On the new side.
    pub new: u64,
    /// On both, with a change.
    pub changed: u64,
    /// On the new side only.
    pub appeared: u64,
    /// On the old side only.
    pub gone: u64,
    /// On both, under stacks that differ.
    pub moved: u64,
    /// On both, with the same functions at other lines.
    pub other_lines: u64,
}

/// How much of a comparison is kept, and in what order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Sites that are kept.
    pub top: usize,
    /// What the biggest change is of; `None`: any amount of bytes.
    pub by: Option<Metric>,
}

impl Default for Options {
    fn default() -> Self {
        Self { top: 20, by: None }
    }
}

impl Options {
    /// How big an entry's changes are.
    fn rank(&self, changes: &[Change]) -> Rank {
        let counts = |metric: Metric| match self.by {
            Some(by) => metric == by,
            None => metric.is_bytes(),
        };
        let first = changes.iter().filter(|change| counts(change.metric));
        let bytes = first.map(Change::size).fold(0.0, f64::max);
        let all = changes.iter().map(Change::size).fold(0.0, f64::max);
        Rank(bytes, all)
    }
}

/// The size of a change: in what was asked for, then in anything.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rank(f64, f64);

impl Rank {
    /// The bigger one first.
    fn order(&self, other: &Self) -> std::cmp::Ordering {
        other.0.total_cmp(&self.0).then(other.1.total_cmp(&self.1))
    }
}

impl Change {
    /// One metric with what is known of it on both sides.
    fn of(metric: Metric, old: Option<&Spread>, new: Option<&Spread>) -> Self {
        let tolerance = old.map(|old| Tolerance::of(metric, old));
        let (old, new) = (old.map(Spread::median), new.map(Spread::median));
        let outcome = match (old, new, tolerance) {
            (Some(old), Some(new), Some(tolerance)) if old != new => {
                let now = new.as_f64();
                // What rounding alone can make of the same value is no change.
                let slack = metric.resolution(old.as_f64());
                if now > tolerance.high.max(old.as_f64() + slack) {
                    Outcome::Above
                } else if now < tolerance.low.min(old.as_f64() - slack) {
                    Outcome::Below
                } else {
                    Outcome::Within
                }
            }
            _ => Outcome::Same,
        };
        Self {
            metric,
            old,
            new,
            tolerance,
            outcome,
        }
    }

    /// One metric of two files that hold one run each.
    fn of_two(metric: Metric, old: Value, new: Value) -> Self {
        Self {
            metric,
            old: Some(old),
            new: Some(new),
            tolerance: None,
            outcome: match new.cmp(&old) {
                std::cmp::Ordering::Less => Outcome::Below,
                std::cmp::Ordering::Equal => Outcome::Same,
                std::cmp::Ordering::Greater => Outcome::Above,
            },
        }
    }

    /// New less old, in the metric's unit; 0 where one of them is not known.
    pub fn amount(&self) -> f64 {
        match (self.old, self.new) {
            (Some(old), Some(new)) => new.as_f64() - old.as_f64(),
            _ => 0.0,
        }
    }

    /// The amount as a share of the old value; `None` if that was nothing.
    pub fn share(&self) -> Option<f64> {
        let old = self.old?.as_f64();
        (old != 0.0).then(|| self.amount() / old)
    }

    /// Whether the new value is one that the old program does not give.
    pub fn is_change(&self) -> bool {
        matches!(self.outcome, Outcome::Above | Outcome::Below)
    }

    fn size(&self) -> f64 {
        match self.is_change() {
            true => self.amount().abs(),
            false => 0.0,
        }
    }
}

/// Whether two stacks are alike enough to be one that moved: the innermost frames are the
/// same, or half of all are, at the two ends.
fn alike<T: PartialEq>(one: &[T], other: &[T]) -> bool {
    let (Some(first), Some(other_first)) = (one.first(), other.first()) else {
        return false;
    };
    if first == other_first {
        return true;
    }
    let shorter = one.len().min(other.len());
    let same = one.iter().rev().zip(other.iter().rev());
    let outer = same.take_while(|(a, b)| a == b).count().min(shorter);
    outer * 2 >= one.len().max(other.len())
}

impl Diff {
    /// The diff for a terminal: plain text of 80 columns.
    pub fn terminal(&self) -> String {
        terminal::show(self)
    }

    /// What changed, without the sides: plain text of 80 columns.
    pub(crate) fn lines_of(body: &Body) -> String {
        terminal::lines(body, true)
    }

    /// The diff as Markdown, as GitHub renders it. Whatever names hold is text there.
    pub fn markdown(&self) -> String {
        markdown::show(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_with_the_same_inner_function_or_half_of_the_frames_are_alike() {
        assert!(alike(&["a", "b"], &["a", "c"]));
        assert!(alike(&["new", "b", "c"], &["b", "c"]));
        assert!(alike(&["x", "b"], &["y", "b"]));
        assert!(!alike(&["x", "y", "c"], &["z", "w", "c"]));
        assert!(!alike::<u8>(&[], &[]));
    }
}
