//! Comparing a run with a profile that is kept in the project.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use super::{Basis, Metric, Profile};
use crate::diff::{self, Change, Diff, Entry};

/// How far a profile may be from one that was made of a single run.
///
/// A profile of several runs needs none: its own spread says what is no change.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Leeway {
    share: f64,
    share_of_blocks: Option<f64>,
    few: f64,
    noisy: Option<f64>,
}

impl Leeway {
    /// None at all: exact metrics must be the same. What is measured (peaks, time held)
    /// is not compared.
    pub fn none() -> Self {
        Self::default()
    }

    /// Exact metrics may differ by this share: 0.02 is 2 %.
    #[must_use]
    pub fn share(mut self, share: f64) -> Self {
        self.share = share;
        self
    }

    /// The blocks allocated per round may differ by this share instead. Where threads take
    /// work from each other, a scheduler's small blocks come by chance and hardly weigh: the
    /// bytes can be held to a far smaller share.
    #[must_use]
    pub fn share_of_blocks(mut self, share: f64) -> Self {
        self.share_of_blocks = Some(share);
        self
    }

    /// Exact metrics may differ by so much (blocks a round, bytes a round, blocks, bytes),
    /// however small they are.
    #[must_use]
    pub fn few(mut self, few: f64) -> Self {
        self.few = few;
        self
    }

    /// Compares what is measured, too: it may differ by this share.
    #[must_use]
    pub fn noisy(mut self, share: f64) -> Self {
        self.noisy = Some(share);
        self
    }

    /// Whether a change is one that this lets through.
    fn lets(&self, change: &Change) -> bool {
        if !change.is_change() {
            return true;
        }
        let one_run = change
            .tolerance
            .is_none_or(|tolerance| tolerance.basis == Basis::OneRun);
        if !one_run {
            return false;
        }
        let old = change.old.map_or(0.0, |old| old.as_f64().abs());
        let share = match change.metric {
            Metric::Blocks => self.share_of_blocks.unwrap_or(self.share),
            _ => self.share,
        };
        let most = match (change.metric.is_exact(), self.noisy) {
            (true, _) => self.few.max(share * old),
            (false, Some(share)) => share * old,
            (false, None) => f64::INFINITY,
        };
        change.amount().abs() <= most
    }
}

impl Profile {
    /// Compares with the profile in a file of the project (`tidegate/proving.profile`; a
    /// path that begins nowhere begins in the crate's folder).
    ///
    /// Where the file is missing, or the profile differs, the new one is written beside it
    /// as `….new`, for you to look at and to move over it. In CI (`CI` is set) nothing is
    /// written.
    ///
    /// # Panics
    /// If there is no such file, if it is no profile, or if this one differs, with what does.
    #[track_caller]
    pub fn assert_matches(&self, file: impl AsRef<Path>, leeway: Leeway) {
        let file = in_crate(file.as_ref());
        let new = new_file(&file);
        if !file.exists() {
            let kept = keep(&new, self);
            panic!("there is no profile in {}\n{kept}", file.display());
        }
        let committed = match Self::read(&file) {
            Ok(committed) => committed,
            Err(error) => panic!("{}", error.chain()),
        };
        match self.difference_from(&committed, leeway) {
            None => {
                // One from an earlier failure is out of date.
                let _ = fs::remove_file(new);
            }
            Some(difference) => {
                let kept = keep(&new, self);
                panic!(
                    "the profile differs from {}\n\n{difference}\n{kept}",
                    file.display()
                );
            }
        }
    }

    /// What differs from a profile that was kept, in words; `None` if nothing does that
    /// the old one's spread, or the leeway, does not let through.
    pub fn difference_from(&self, kept: &Self, leeway: Leeway) -> Option<String> {
        let options = diff::Options {
            top: usize::MAX,
            by: None,
        };
        let mut body = diff::of_profiles(kept, self, &options);
        let changed = |entry: &Entry| entry.changes.iter().any(|change| !leeway.lets(change));
        body.phases.retain(changed);
        body.sites.retain(changed);
        body.whole.retain(|change| !leeway.lets(change));
        let other = kept.scenario != self.scenario;
        if body.phases.is_empty() && body.sites.is_empty() && body.whole.is_empty() && !other {
            return None;
        }
        Some(Diff::lines_of(&body))
    }
}

fn in_crate(file: &Path) -> PathBuf {
    match std::env::var_os("CARGO_MANIFEST_DIR") {
        Some(folder) if file.is_relative() => Path::new(&folder).join(file),
        _ => file.to_owned(),
    }
}

fn new_file(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// Writes what was found, where nobody else runs this, and says so.
fn keep(file: &Path, profile: &Profile) -> String {
    let mut said = String::new();
    if crate::is_ci() {
        said.push_str("nothing is written in CI; the profile is\n");
        said.push_str(&profile.text());
        return said;
    }
    let folder = file.parent().unwrap_or(Path::new("."));
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(file, profile.text()));
    let _ = match written {
        Ok(()) => write!(
            said,
            "this run's is in {}; if it is right, move it to its place",
            file.display()
        ),
        Err(error) => write!(said, "{} cannot be written: {error}", file.display()),
    };
    said
}

#[cfg(test)]
mod tests {
    use super::super::{Metric, Place, Rounds, Row, Sites, Spread, Value};
    use super::*;
    use crate::books::Layer;

    fn profile(values: &[(Metric, i64)]) -> Profile {
        let place = Place {
            phase: "ntt".into(),
            layer: Layer::RustHeap,
            site: None,
        };
        let row: Row = values
            .iter()
            .map(|(metric, value)| (*metric, Spread::of(Value::whole(*value))))
            .collect();
        Profile {
            scenario: "s".into(),
            runs: 1,
            rounds: Rounds::of(8),
            sites: Sites::None,
            whole: Row::new(),
            rows: [(place, row)].into(),
        }
    }

    #[test]
    fn a_leeway_lets_exact_metrics_move_so_far_and_no_further() {
        let kept = profile(&[(Metric::Blocks, 1000), (Metric::Peak, 1 << 20)]);
        let leeway = Leeway::none().share(0.02).few(3.0);
        let differs = |blocks, peak| {
            let now = profile(&[(Metric::Blocks, blocks), (Metric::Peak, peak)]);
            now.difference_from(&kept, leeway)
        };
        assert_eq!(
            differs(1020, 9 << 20),
            None,
            "what is measured is not compared"
        );
        let text = differs(1021, 1 << 20).expect("a difference");
        assert!(text.contains("ntt") && text.contains("1,021"), "{text}");
        let noisy = profile(&[(Metric::Blocks, 1000), (Metric::Peak, 2 << 20)]);
        assert_eq!(noisy.difference_from(&kept, leeway.noisy(1.0)), None);
        assert!(noisy.difference_from(&kept, leeway.noisy(0.5)).is_some());
    }

    #[test]
    fn blocks_have_a_share_of_their_own_where_they_are_given_one() {
        let now = |blocks, bytes| profile(&[(Metric::Blocks, blocks), (Metric::Bytes, bytes)]);
        let kept = now(1000, 1000);
        let leeway = Leeway::none().share(0.02).share_of_blocks(0.1);
        let differs = |blocks, bytes| now(blocks, bytes).difference_from(&kept, leeway);
        assert_eq!(differs(1100, 1020), None);
        assert!(differs(1101, 1020).is_some());
        assert!(differs(1100, 1021).is_some());
    }

    #[test]
    fn a_profile_of_several_runs_knows_what_varies_and_needs_no_leeway() {
        let runs =
            [100, 101, 102].map(|blocks| profile(&[(Metric::Blocks, blocks), (Metric::Bytes, 7)]));
        let kept = Profile::merged(runs).expect("runs of one scenario");
        let now = |blocks, bytes| profile(&[(Metric::Blocks, blocks), (Metric::Bytes, bytes)]);
        assert_eq!(now(103, 7).difference_from(&kept, Leeway::none()), None);
        assert!(
            now(103, 8)
                .difference_from(&kept, Leeway::none().share(1.0))
                .is_some()
        );
        assert!(
            now(200, 7)
                .difference_from(&kept, Leeway::none().share(1.0))
                .is_some()
        );
    }

    #[test]
    fn a_row_that_is_new_or_gone_differs() {
        let kept = profile(&[(Metric::Blocks, 1)]);
        let mut now = kept.clone();
        now.rows.clear();
        assert!(now.difference_from(&kept, Leeway::none()).is_some());
        assert!(kept.difference_from(&now, Leeway::none()).is_some());
    }
}
