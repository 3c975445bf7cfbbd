//! A comparison as it is stored: what was compared, on which machine, and what each run took.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::judge::{Comparison, Runs};
use crate::machine::Machine;
use crate::verdict::Class;

/// Name and version of the format of a stored comparison.
pub const COMPARISON_SCHEMA: &str = "tidegate.ab/1";

/// Two versions compared, with all that the comparison rests on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StoredComparison {
    /// Name and version of this format: `tidegate.ab/1`.
    pub schema: String,
    /// The version of tidegate that made it.
    pub tidegate: String,
    /// The machine it was made on.
    pub machine: Machine,
    /// What was compared with.
    pub baseline: Version,
    /// What was compared.
    pub candidate: Version,
    /// What was decided.
    pub comparison: Comparison,
    /// What each run took.
    pub runs: Runs,
}

impl StoredComparison {
    /// A comparison that was made here and now.
    pub fn new([baseline, candidate]: [Version; 2], comparison: Comparison, runs: Runs) -> Self {
        Self {
            schema: COMPARISON_SCHEMA.to_owned(),
            tidegate: env!("CARGO_PKG_VERSION").to_owned(),
            machine: Machine::this(),
            baseline,
            candidate,
            comparison,
            runs,
        }
    }
}

/// One of the two versions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Version {
    /// Its program and arguments; empty for stored runs.
    pub command: Vec<String>,
    /// Where its runs were stored.
    pub stored: Vec<PathBuf>,
    /// How often it was judged as what.
    pub classes: BTreeMap<Class, u32>,
}

impl Version {
    /// How often it was judged as what, in words: `6 × clean, 1 × leak`.
    pub fn judged_as(&self) -> String {
        let of_class = |(class, runs): (&Class, &u32)| format!("{runs} × {class}");
        let classes: Vec<String> = self.classes.iter().map(of_class).collect();
        classes.join(", ")
    }
}
