//! JSON schemas of the files that are read and written.

use schemars::{Schema, schema_for};

use crate::compare::{StoredComparison, Sweep};
use crate::diff::Diff;
use crate::policy::Policy;
use crate::run::Run;
use crate::{gate, sampler};

/// The schema of each format, by the name of the file that holds it (without
/// `.schema.json`): a run and a line of its samples, what `ab`, `sweep`, `diff` and `gate`
/// write, and the policy.
pub fn schemas() -> [(&'static str, Schema); 7] {
    [
        ("run", schema_for!(Run)),
        ("sample", schema_for!(sampler::Sample)),
        ("ab", schema_for!(StoredComparison)),
        ("sweep", schema_for!(Sweep)),
        ("diff", schema_for!(Diff)),
        ("gate", schema_for!(gate::Report)),
        ("tidegate.toml", schema_for!(Policy)),
    ]
}
