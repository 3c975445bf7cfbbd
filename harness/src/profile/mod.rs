//! A profile: what a scenario allocates, by phase, layer and site, in a file that people
//! read, compare and commit.
//!
//! [`Run::profile`](crate::Run::profile) makes one. Its text has one row a line, sorted,
//! with nothing in it that changes though the program did not:
//!
//! ```text
//! tidegate-profile 1
//! # blocks, bytes and held are per measured round; peaks have 3 digits, held and dwell 2
//! scenario "proving, split"
//! runs 1
//! rounds 8
//! sites none
//! whole peak=4120KiB resident=18200KiB
//! row phase=ntt layer=rust-heap blocks=135 bytes=268616 left-blocks=0 left-bytes=0
//! end
//! ```
//!
//! What the ledger counts is exact: a whole number, or a fraction of rounds (`193+7/8`).
//! What is measured is rounded to the digits that the second line states.
//! [`Profile::merged`] joins the profiles of repeated runs into one that keeps every
//! run's value, so that what varies is known and not guessed: see [`Tolerance`].
//!
//! # In tests
//!
//! [`Profile::assert_matches`] compares a run with a file in the project, `tidegate/…`
//! by convention. With the feature `insta` a profile can be a snapshot: `Comparator`
//! compares with a [`Leeway`].

mod collected;
#[cfg(feature = "insta")]
mod comparator;
mod matches;
mod spread;
mod text;
mod value;

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::books::Layer;

#[cfg(feature = "insta")]
pub use comparator::Comparator;
pub use matches::Leeway;
pub use spread::{Basis, Spread, Tolerance};
pub(crate) use text::{
    Lines, NAME, quoted, read_runs, read_spread, text_of, unquoted, words, written,
};
pub use value::{Metric, Value};

/// What one scenario allocated, over one run or several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The scenario's name.
    pub scenario: String,
    /// Runs that this was made of, at least 1.
    pub runs: u32,
    /// Measured rounds of the runs.
    pub rounds: Rounds,
    /// Which sites have rows of their own.
    pub sites: Sites,
    /// What belongs to no phase and layer: peaks of all.
    pub whole: Row,
    /// A row for each phase and layer, and for each site within them.
    pub rows: BTreeMap<Place, Row>,
}

/// Where memory was allocated.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub struct Place {
    /// The phase.
    pub phase: String,
    /// The layer.
    pub layer: Layer,
    /// The site's identity (names from the innermost, joined by `;`); `None` for all
    /// sites of the phase and layer.
    pub site: Option<String>,
}

/// The metrics of one place.
pub type Row = BTreeMap<Metric, Spread>;

/// Which sites have rows of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Sites {
    /// None: no run took stacks.
    None,
    /// Those of what had leaked, from a second run.
    Leaking,
    /// All, from a second run; of very many, those that grew or allocated most.
    Every,
}

impl Sites {
    const ALL: [Self; 3] = [Self::None, Self::Leaking, Self::Every];

    /// The name in files.
    const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Leaking => "leaking",
            Self::Every => "every",
        }
    }
}

/// How many rounds runs measured: a run may do more while it is unclear.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Rounds {
    /// Of the shortest run.
    pub fewest: u32,
    /// Of the longest run, no less.
    pub most: u32,
}

impl Rounds {
    /// So many in every run.
    pub const fn of(rounds: u32) -> Self {
        Self {
            fewest: rounds,
            most: rounds,
        }
    }

    /// Those of both.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            fewest: self.fewest.min(other.fewest),
            most: self.most.max(other.most),
        }
    }

    /// Whether no run of the one did as many as a run of the other.
    pub fn differ(self, other: Self) -> bool {
        self.most < other.fewest || other.most < self.fewest
    }
}

impl fmt::Display for Rounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fewest == self.most {
            true => write!(f, "{}", self.most),
            false => write!(f, "{} to {}", self.fewest, self.most),
        }
    }
}

impl Profile {
    /// The same with these metrics only.
    ///
    /// `[Metric::Blocks, Metric::Bytes]` is what is alike on every machine and in every
    /// number of rounds, so that it can be a snapshot.
    #[must_use]
    pub fn with_metrics(mut self, metrics: &[Metric]) -> Self {
        for row in self.rows.values_mut().chain([&mut self.whole]) {
            row.retain(|metric, _| metrics.contains(metric));
        }
        self.rows.retain(|_, row| !is_empty(row));
        self
    }

    /// The same with these layers only.
    #[must_use]
    pub fn of_layers(mut self, layers: &[Layer]) -> Self {
        self.rows.retain(|place, _| layers.contains(&place.layer));
        self
    }

    /// One profile of repeated runs of the same scenario: every run's value is kept.
    /// What a run has no row for was nothing there.
    ///
    /// Sites are kept if all have the same kind of them.
    ///
    /// # Errors
    /// In words, if there is none, or if they are of different scenarios.
    pub fn merged(profiles: impl IntoIterator<Item = Self>) -> Result<Self, String> {
        let mut profiles = profiles.into_iter();
        let Some(mut all) = profiles.next() else {
            return Err("there is no profile to merge".to_owned());
        };
        for one in profiles {
            all.add(one)?;
        }
        Ok(all)
    }

    fn add(&mut self, mut other: Self) -> Result<(), String> {
        if self.scenario != other.scenario {
            return Err(format!(
                "runs of two scenarios, `{}` and `{}`, make no common profile",
                self.scenario, other.scenario
            ));
        }
        self.rounds = self.rounds.and(other.rounds);
        if self.sites != other.sites {
            for profile in [&mut *self, &mut other] {
                profile.sites = Sites::None;
                profile.rows.retain(|place, _| place.site.is_none());
            }
        }
        let (runs, more) = (self.runs, other.runs);
        for (place, row) in &mut self.rows {
            match other.rows.remove(place) {
                Some(theirs) => add_row(row, theirs),
                None => add_nothing(row, more),
            }
        }
        for (place, mut row) in other.rows {
            add_nothing(&mut row, runs);
            self.rows.insert(place, row);
        }
        add_row(&mut self.whole, other.whole);
        self.runs = runs.saturating_add(more);
        Ok(())
    }
}

fn add_row(row: &mut Row, other: Row) {
    for (metric, spread) in other {
        match row.get_mut(&metric) {
            Some(known) => known.add_all(&spread),
            None => {
                row.insert(metric, spread);
            }
        }
    }
}

/// Adds runs in which the place held nothing. How long nothing was held is unknown.
fn add_nothing(row: &mut Row, runs: u32) {
    for (metric, spread) in row {
        if *metric != Metric::Dwell {
            spread.add(Value::ZERO, runs);
        }
    }
}

/// Whether every value is nothing.
fn is_empty(row: &Row) -> bool {
    row.values()
        .all(|spread| spread.only() == Some(Value::ZERO))
}
