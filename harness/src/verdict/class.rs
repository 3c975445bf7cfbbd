//! The classes a verdict can have, and what each means for an exit code.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a run was found to be.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Every ledger returns to its settled floor in every measured round.
    Clean,
    /// Live memory grew at first use and stopped.
    Cache,
    /// Live memory is flat, resident memory is not, and a trim returns it.
    Retention,
    /// Live memory is flat, resident memory keeps far more, and a trim cannot return it.
    Fragmentation,
    /// Freed, but late.
    Dwell,
    /// Survivors from round after round.
    Leak,
    /// Threads, file descriptors or GPU handles grow per round.
    HandleLeak,
    /// Live memory follows the items that were produced and not yet consumed.
    Backlog,
    /// A gauge grows round after round and no ledger explains it.
    UnexplainedGrowth,
    /// The peak passes the limit while the floor is flat.
    Ceiling,
    /// No progress for the watchdog's time.
    Hang,
    /// The workload died of something else than memory.
    Crash,
    /// Something is missing that a verdict needs.
    Inconclusive,
}

impl Class {
    /// Every class, in the order of the documentation.
    pub const ALL: [Self; 13] = [
        Self::Clean,
        Self::Cache,
        Self::Retention,
        Self::Fragmentation,
        Self::Dwell,
        Self::Leak,
        Self::HandleLeak,
        Self::Backlog,
        Self::UnexplainedGrowth,
        Self::Ceiling,
        Self::Hang,
        Self::Crash,
        Self::Inconclusive,
    ];

    /// The class's name, as in reports and in `run.json`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::Cache => "cache",
            Self::Retention => "retention",
            Self::Fragmentation => "fragmentation",
            Self::Dwell => "dwell",
            Self::Leak => "leak",
            Self::HandleLeak => "handle-leak",
            Self::Backlog => "backlog",
            Self::UnexplainedGrowth => "unexplained-growth",
            Self::Ceiling => "ceiling",
            Self::Hang => "hang",
            Self::Crash => "crash",
            Self::Inconclusive => "inconclusive",
        }
    }

    /// What the class means, in one fragment of a sentence.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Clean => "every ledger returns to its settled floor in every measured round",
            Self::Cache => "live memory grew at first use and stopped",
            Self::Retention => "all was freed, but the allocator keeps it; a trim returns it",
            Self::Fragmentation => {
                "all was freed, but the allocator keeps it and a trim cannot return it"
            }
            Self::Dwell => "freed, but late",
            Self::Leak => "blocks of round after round are never freed",
            Self::HandleLeak => "threads, file descriptors or GPU handles grow per round",
            Self::Backlog => "live memory follows the items produced and not yet consumed",
            Self::UnexplainedGrowth => {
                "resident memory grows round after round and no ledger explains it"
            }
            Self::Ceiling => "the peak passes the limit while the floor is flat",
            Self::Hang => "no progress for the watchdog's time",
            Self::Crash => "the workload died of something else than memory",
            Self::Inconclusive => "something is missing that a verdict needs",
        }
    }

    /// Whether a gate lets this class through.
    pub const fn passes(self) -> bool {
        matches!(
            self,
            Self::Clean | Self::Cache | Self::Retention | Self::Fragmentation | Self::Dwell
        )
    }

    /// The exit code that this class gives: 0 pass, 3 failed by the verdict,
    /// 5 inconclusive, 6 the workload crashed.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Clean | Self::Cache | Self::Retention | Self::Fragmentation | Self::Dwell => 0,
            Self::Leak
            | Self::HandleLeak
            | Self::Backlog
            | Self::UnexplainedGrowth
            | Self::Ceiling
            | Self::Hang => 3,
            Self::Inconclusive => 5,
            Self::Crash => 6,
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::Class;

    #[test]
    fn every_class_is_stored_under_the_name_it_is_shown_by() {
        for class in Class::ALL {
            let stored = serde_json::to_string(&class).expect("a class is a string");
            assert_eq!(stored, format!("\"{}\"", class.name()));
        }
    }

    #[test]
    fn every_class_has_a_meaning_of_its_own_and_is_shown_in_columns() {
        let mut meanings = Class::ALL.map(Class::meaning).to_vec();
        assert!(meanings.contains(&"freed, but late"));
        meanings.sort_unstable();
        meanings.dedup();
        assert_eq!(meanings.len(), Class::ALL.len());
        assert_eq!(
            format!("{:>6}|{}", Class::Leak, Class::Dwell),
            "  leak|dwell"
        );
    }

    #[test]
    fn only_a_passing_class_exits_with_zero() {
        for class in Class::ALL {
            assert_eq!(class.exit_code() == 0, class.passes(), "{class}");
        }
        assert_eq!(Class::Leak.exit_code(), 3);
        assert_eq!(Class::Ceiling.exit_code(), 3);
        assert_eq!(Class::Inconclusive.exit_code(), 5);
        assert_eq!(Class::Crash.exit_code(), 6);
    }
}
