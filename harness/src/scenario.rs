//! Scenarios: what a user writes.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::books::QueueDesign;
use crate::control::{Channel, Order, Report};
use crate::error::Error;
use crate::explain::{Again, Explain, Request, Second};
use crate::run::Run;
use crate::suppressions::Suppressions;
use crate::verdict::Settings;
use crate::{explain, supervisor, sys};

/// Names the scenario that a child process is to run.
pub(crate) const SCENARIO_VARIABLE: &str = "TIDEGATE_SCENARIO";
/// Names the control channel's descriptor in a child process.
pub(crate) const CONTROL_VARIABLE: &str = "TIDEGATE_CONTROL_FD";
/// Gives a child the run folders of the scenarios that ran before it in the
/// same test, as a JSON object.
pub(crate) const FINISHED_VARIABLE: &str = "TIDEGATE_FINISHED";

/// A workload that is a round trip: it takes memory, works, and gives all back.
///
/// [`run`](Self::run) starts this very test again in a supervised child process
/// that does nothing but the scenario's rounds, keeps exact books of every
/// allocation there, and judges them.
///
/// ```no_run
/// #[global_allocator]
/// static ALLOC: tidegate::Alloc = tidegate::Alloc::system();
///
/// # fn prove(partitions: u32) {}
/// #[test]
/// fn proving_gives_everything_back() {
///     tidegate::Scenario::new("proving")
///         .rounds(8)
///         .run(|_round| prove(4))
///         .assert_passes();
/// }
/// # fn main() {}
/// ```
///
/// Code of the test before `run` runs in the child too. Scenario names must be
/// unique within a test.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub(crate) plan: Plan,
    pub(crate) test: Option<String>,
    pub(crate) folder: Option<PathBuf>,
    pub(crate) explain: Explain,
    pub(crate) suppressions: Option<Suppressions>,
}

/// What a scenario was asked to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Plan {
    /// The scenario's name.
    pub name: String,
    /// Rounds before the measured ones.
    pub warmup: u32,
    /// Measured rounds at least.
    pub rounds: u32,
    /// Measured rounds at most: more than `rounds` are done while it is unclear.
    pub rounds_at_most: u32,
    /// How long the books must stand still to be settled, in milliseconds.
    pub quiet_ms: u64,
    /// How long a round's settling may take, in milliseconds.
    pub settle_ms: u64,
    /// How long what is left after the last round is waited for, in milliseconds.
    pub patience_ms: u64,
    /// The memory limit in bytes.
    pub limit_bytes: Option<u64>,
    /// Whether the samples enforce the limit, also where a memory cgroup could.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub limit_by_samples: bool,
    /// Time between samples, in milliseconds.
    pub sample_ms: u64,
    /// Without progress for so long, the workload hangs; in milliseconds.
    pub hang_ms: u64,
    /// A round that takes longer hangs, whatever it does; in milliseconds.
    pub round_ms: Option<u64>,
    /// The program that was run and its arguments; empty for a scenario of a test.
    #[serde(default)]
    pub command: Vec<String>,
    /// The pattern of the lines that end a round of a program.
    #[serde(default)]
    pub round_on: Option<String>,
    /// The file whose lines end a round of a program, where it is not its output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_file: Option<String>,
    /// The clock's time of a round of a program, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_every_ms: Option<u64>,
    /// A program is told to end after so many measured rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_after_rounds: Option<u32>,
    /// A program is told to end after so many milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_after_ms: Option<u64>,
    /// Environment variables that the workload gets beside the test's own.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// How many items may wait in the workload's queue by design, if it says.
    pub queue: Option<QueueDesign>,
}

impl Scenario {
    /// A scenario of 2 warm-up rounds and 8 measured ones.
    pub fn new(name: impl Into<String>) -> Self {
        let plan = Plan {
            name: name.into(),
            warmup: 2,
            rounds: 8,
            rounds_at_most: 8,
            quiet_ms: 25,
            settle_ms: 2_000,
            patience_ms: 1_500,
            limit_bytes: None,
            limit_by_samples: false,
            sample_ms: 10,
            hang_ms: 120_000,
            round_ms: None,
            command: Vec::new(),
            round_on: None,
            round_file: None,
            round_every_ms: None,
            end_after_rounds: None,
            end_after_ms: None,
            environment: BTreeMap::new(),
            queue: None,
        };
        Self {
            plan,
            test: None,
            folder: None,
            explain: Explain::default(),
            suppressions: None,
        }
    }

    /// Rounds before the measured ones, whose growth is recorded and not judged.
    #[must_use]
    pub fn warmup(mut self, rounds: u32) -> Self {
        self.plan.warmup = rounds;
        self
    }

    /// Measured rounds.
    #[must_use]
    pub fn rounds(mut self, rounds: u32) -> Self {
        self.plan.rounds = rounds;
        self.plan.rounds_at_most = self.plan.rounds_at_most.max(rounds);
        self
    }

    /// Measured rounds at most: more than [`rounds`](Self::rounds) are done while it is unclear.
    #[must_use]
    pub fn extend_to(mut self, rounds: u32) -> Self {
        self.plan.rounds_at_most = rounds.max(self.plan.rounds);
        self
    }

    /// How long the books must stand still to be settled, and how long to wait
    /// for that after each round.
    #[must_use]
    pub fn settle(mut self, quiet: Duration, at_most: Duration) -> Self {
        self.plan.quiet_ms = milliseconds(quiet);
        self.plan.settle_ms = milliseconds(at_most);
        self
    }

    /// How long what is left after the last round is waited for, counted from
    /// the last change.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.plan.patience_ms = milliseconds(patience);
        self
    }

    /// Kills the workload when it takes more than so many bytes.
    #[must_use]
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.plan.limit_bytes = Some(bytes);
        self
    }

    /// Time between samples; 10 ms unless set.
    #[must_use]
    pub fn sample_every(mut self, interval: Duration) -> Self {
        self.plan.sample_ms = milliseconds(interval).max(1);
        self
    }

    /// Without progress (no allocation, no CPU, no end of a round) for so long,
    /// the workload hangs and is killed; 2 minutes unless set.
    #[must_use]
    pub fn hang_after(mut self, idle: Duration) -> Self {
        self.plan.hang_ms = milliseconds(idle);
        self
    }

    /// A round that takes longer hangs, however busy it is.
    #[must_use]
    pub fn round_at_most(mut self, time: Duration) -> Self {
        self.plan.round_ms = Some(milliseconds(time));
        self
    }

    /// How many items the workload's queue is meant to hold, and how many producers
    /// may each hold one more while it is full. More waiting items than that are a
    /// backlog. Items are counted with [`produced`](crate::produced) and
    /// [`consumed`](crate::consumed).
    #[must_use]
    pub fn queue(mut self, capacity: u64, producers: u64) -> Self {
        self.plan.queue = Some(QueueDesign {
            capacity,
            producers,
        });
        self
    }

    /// Sets an environment variable for the workload alone.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.plan.environment.insert(name.into(), value.into());
        self
    }

    /// The name of the test that reaches this scenario, where it cannot be found out:
    /// when `run` is called on a thread that the test started itself.
    #[must_use]
    pub fn in_test(mut self, name: impl Into<String>) -> Self {
        self.test = Some(name.into());
        self
    }

    /// Keeps the run in this folder instead of one under the target directory.
    #[must_use]
    pub fn keep_in(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// When to run again for call stacks: on a leak unless set, for every
    /// allocation, or never. `TIDEGATE_EXPLAIN` in the environment goes before it.
    #[must_use]
    pub fn explain(mut self, explain: Explain) -> Self {
        self.explain = explain;
        self
    }

    /// Lets known leaks through: those that a rule matches which has not expired.
    ///
    /// A rule that names a stack needs the second run (see [`explain`](Self::explain)),
    /// which then does as many rounds as the first; without one it lets nothing through.
    #[must_use]
    pub fn suppressions(mut self, suppressions: Suppressions) -> Self {
        self.suppressions = Some(suppressions);
        self
    }

    /// Runs the scenario in a child process, and judges it.
    ///
    /// `body` does one round. It returns nothing, or a result whose error marks
    /// the round as failed: the next round is done all the same.
    ///
    /// # Panics
    /// If tidegate itself fails: the child cannot be started, does not reach this
    /// scenario, or the run cannot be stored. What the workload does, crashing
    /// included, is a verdict and no panic.
    #[track_caller]
    pub fn run<R: Outcome>(self, body: impl FnMut(&Round) -> R) -> Run {
        let name = self.plan.name.clone();
        match self.try_run(body) {
            Ok(run) => run,
            Err(error) => panic!("scenario `{name}` could not be run: {}", error.chain()),
        }
    }

    /// As [`run`](Self::run), with tidegate's own failures as an error.
    ///
    /// # Errors
    /// If tidegate itself fails; see [`Error`].
    pub fn try_run<R: Outcome>(self, body: impl FnMut(&Round) -> R) -> Result<Run, Error> {
        let wanted = std::env::var(SCENARIO_VARIABLE).ok();
        match wanted {
            None => {
                let (run, _) = supervisor::supervise(&self, None)?;
                let explain = Explain::from_environment().unwrap_or(self.explain);
                let run = explain::explained(run, explain, &self)?;
                remember(&self.plan.name, &run);
                Ok(run)
            }
            Some(wanted) if wanted == self.plan.name => do_rounds(&self.plan, body),
            Some(wanted) => finished_before(&self.plan.name, &wanted),
        }
    }

    /// The engine's settings for this plan.
    pub(crate) fn settings(&self) -> Settings {
        settings(&self.plan)
    }
}

impl Again for Scenario {
    fn settings(&self) -> Settings {
        self.settings()
    }

    fn suppressions(&self) -> Option<&Suppressions> {
        self.suppressions.as_ref()
    }

    fn run_again(&self, rounds: u32, request: &Request, folder: &Path) -> Result<Second, Error> {
        let mut again = self.clone();
        again.folder = Some(folder.to_owned());
        again.plan.rounds = rounds;
        again.plan.rounds_at_most = rounds;
        // What would still come back has been waited for in the first run.
        again.plan.patience_ms = again.plan.patience_ms.min(100);
        let (run, stacks) = supervisor::supervise(&again, Some(request))?;
        Ok(Second {
            run,
            stacks,
            settings: again.settings(),
        })
    }
}

/// The engine's settings for a scenario's plan.
pub(crate) fn settings(plan: &Plan) -> Settings {
    Settings {
        max_rounds: plan.warmup.saturating_add(plan.rounds_at_most),
        limit_bytes: plan.limit_bytes,
        ..Settings::default()
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// One execution of a scenario's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    number: u32,
    warmup: u32,
}

impl Round {
    /// The round's number, from 1; warm-up rounds come first.
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Whether this is a warm-up round.
    pub const fn is_warmup(&self) -> bool {
        self.number <= self.warmup
    }
}

/// What a body may return: nothing, or a result.
pub trait Outcome {
    /// Why the round failed, if it did.
    fn failure(self) -> Option<String>;
}

impl Outcome for () {
    fn failure(self) -> Option<String> {
        None
    }
}

impl<T, E: fmt::Display> Outcome for Result<T, E> {
    fn failure(self) -> Option<String> {
        self.err().map(|error| error.to_string())
    }
}

/// Where there is a GPU of NVIDIA's with a driver, there is this.
#[cfg(feature = "gpu")]
const GPU_DEVICE: &str = "/dev/nvidiactl";

/// The child's side: does what the supervisor orders. Never returns to the test
/// unless the channel cannot be had.
fn do_rounds<R: Outcome>(plan: &Plan, mut body: impl FnMut(&Round) -> R) -> Result<Run, Error> {
    let channel = open_channel()?;
    let talk = |report: &Report| {
        let _meter = tidegate_hook::as_meter();
        channel.report(report).is_ok()
    };
    #[cfg(feature = "gpu")]
    if std::path::Path::new(GPU_DEVICE).exists() {
        tidegate_hook::gpu::attach();
    }
    let mut going = talk(&Report::Ready);
    while going {
        match channel.next_order() {
            Ok(Some(Order::Begin(number))) => {
                tidegate_hook::begin_round(number);
                let round = Round {
                    number,
                    warmup: plan.warmup,
                };
                let done = std::panic::catch_unwind(AssertUnwindSafe(|| body(&round).failure()));
                #[cfg(feature = "gpu")]
                tidegate_hook::gpu::ask_pools(number);
                match done {
                    Ok(failed) => going = talk(&Report::RoundEnded { failed }),
                    Err(payload) => {
                        talk(&Report::Panicked(panic_message(payload.as_ref())));
                        // As libtest does for a failed test.
                        std::process::exit(101);
                    }
                }
            }
            Ok(Some(Order::Trim)) => {
                sys::trim_heap();
                going = talk(&Report::Trimmed);
            }
            Ok(Some(Order::Finish)) => std::process::exit(0),
            // The supervisor is gone: nobody wants this any more.
            Ok(None) | Err(_) => going = false,
        }
    }
    std::process::exit(1)
}

fn open_channel() -> Result<Channel, Error> {
    let value = std::env::var(CONTROL_VARIABLE).unwrap_or_default();
    let fd = value.parse().map_err(|_| Error::BadChild {
        problem: format!("{CONTROL_VARIABLE} is {value:?} and not a descriptor's number"),
    })?;
    let fd = sys::inherited(fd).map_err(|source| Error::System {
        what: "open the control channel".into(),
        source,
    })?;
    Ok(Channel::from_fd(fd))
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a value that is no text".to_owned())
}

/// Run folders of the scenarios that ended in this process, by test and name.
static FINISHED: Mutex<BTreeMap<(String, String), PathBuf>> = Mutex::new(BTreeMap::new());

/// The test that the calling thread runs, or "" in a plain program.
pub(crate) fn this_test() -> String {
    match std::thread::current().name() {
        None | Some("main") => String::new(),
        Some(name) => name.to_owned(),
    }
}

fn remember(name: &str, run: &Run) {
    let mut finished = FINISHED.lock().unwrap_or_else(PoisonError::into_inner);
    finished.insert((this_test(), name.to_owned()), run.folder().to_owned());
}

/// What ran before in this test, by scenario name, for a child to look up.
pub(crate) fn finished_in_this_test() -> BTreeMap<String, PathBuf> {
    let test = this_test();
    let finished = FINISHED.lock().unwrap_or_else(PoisonError::into_inner);
    finished
        .iter()
        .filter(|((in_test, _), _)| *in_test == test)
        .map(|((_, name), folder)| (name.clone(), folder.clone()))
        .collect()
}

/// In a child that is on its way to another scenario: the run that the parent has
/// of this one, so that the test goes the same way here as it went there.
fn finished_before(name: &str, wanted: &str) -> Result<Run, Error> {
    let text = std::env::var(FINISHED_VARIABLE).unwrap_or_default();
    let finished: BTreeMap<String, PathBuf> = serde_json::from_str(&text).unwrap_or_default();
    match finished.get(name) {
        Some(folder) => Run::read(folder),
        None => Err(Error::BadChild {
            problem: format!(
                "the child process that was to run scenario `{wanted}` reached `{name}` first, \
                 which has not run before it in this test; a test must come to its scenarios in \
                 the same order each time, and their names must differ"
            ),
        }),
    }
}
