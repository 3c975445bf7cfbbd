//! What a verdict rests on: what grew, where, by how much per what, and since when.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Class;
use super::fingerprint::fingerprint;
use super::words;
use crate::books::{Amount, Layer};

/// The phase named by a finding that no single phase carries.
pub const SEVERAL_PHASES: &str = "several phases";

/// One thing that was found, with its evidence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// What it is.
    pub class: Class,
    /// Where the memory lives, or what is counted.
    pub layer: Layer,
    /// The phase in which it was born; [`SEVERAL_PHASES`] where none alone carries it,
    /// empty where the layer has no phases (gauges).
    pub phase: String,
    /// The site that allocates it, where sites were recorded.
    pub site: Option<String>,
    /// What it grows with.
    pub driver: Driver,
    /// Exactly how much per driver, where that is constant.
    pub per_driver: Option<Amount>,
    /// Other drivers that explain the same numbers as well.
    pub also_fits: Vec<Driver>,
    /// The rounds that bore what is left, or in which it grew.
    pub born_in: Vec<u32>,
    /// The first of these rounds.
    pub since_round: Option<u32>,
    /// The rounds over which [`Self::total`] came together.
    pub over_rounds: u32,
    /// How much in all.
    pub total: Amount,
    /// The share of single items, where items were named.
    pub per_item: Option<ItemLoss>,
    /// A release that was attempted and refused: the cause.
    pub cause: Option<String>,
    /// What bears it out.
    pub confirmed: Vec<Confirmation>,
    /// The same for the same layer, phase and site in every build.
    pub fingerprint: String,
    /// All of it in a sentence.
    pub sentence: String,
}

impl Finding {
    /// What it is one with in other runs and builds: its layer, phase and, where that is
    /// known, site. Where the site is not, all sites of the phase and layer are one.
    pub fn identity(&self) -> String {
        fingerprint(self.layer, &self.phase, self.site.as_deref())
    }
}

/// What growth goes with.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Driver {
    /// Each round adds to it.
    PerRound,
    /// Each thread that the workload creates adds to it.
    PerThread,
    /// Each failed round or reported error adds to it.
    PerError,
    /// Each second of wall clock adds to it, work or not.
    PerSecond,
    /// It grows once in so many rounds, or by a pattern that repeats after so many.
    EveryKthRound(u32),
    /// It grows, and none of the others explains when.
    Unknown,
}

impl Driver {
    /// How an amount per driver ends: `per round`, `in every 4th round`.
    pub fn words(self) -> String {
        match self {
            Self::PerRound => "per round".to_owned(),
            Self::PerThread => "per thread created".to_owned(),
            Self::PerError => "per error".to_owned(),
            Self::PerSecond => "per second".to_owned(),
            Self::EveryKthRound(k) => format!("in every {} round", words::ordinal(k)),
            Self::Unknown => "at no fixed step".to_owned(),
        }
    }
}

/// What single items lost of what they allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ItemLoss {
    /// Exactly how much each losing item lost, where all lost the same.
    pub each: Option<Amount>,
    /// Items that lost something (the last round, which may hold what the next replaces, is left out).
    pub losing: u64,
    /// Items of these rounds.
    pub items: u64,
}

/// What bears a finding out.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Confirmation {
    /// Live memory after the rounds had settled rises for good.
    LiveRises,
    /// Blocks of the rounds named are alive at the end.
    SurvivorsOfEachRound,
    /// The same exact step each time.
    ConstantStep,
    /// It is still there after the last long wait.
    OutlastsSettling,
    /// Idle time without work adds nothing.
    IdleAddsNothing,
    /// Idle time without work adds to it.
    IdleAdds,
    /// The same inputs again add to it.
    ReplayAdds,
    /// A release was attempted and refused.
    RefusedRelease,
    /// A trim could not return it.
    OutlastsTrim,
    /// A trim returned it.
    TrimReturnsIt,
    /// Mappings that no ledger books grow with it.
    MappingsGrow,
    /// Live memory goes up and down with the number of waiting items.
    FollowsWaitingItems,
    /// Gone when the producers had stopped and the queue was empty.
    GoneAfterDraining,
}

/// Something that passes, and that a reader should know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Note {
    /// What it would be called if it decided.
    pub class: Option<Class>,
    /// The layer, where it is about one.
    pub layer: Option<Layer>,
    /// The phase, where it is about one.
    pub phase: Option<String>,
    /// How much, where it is an amount.
    pub amount: Amount,
    /// What was seen, in a sentence.
    pub sentence: String,
}
