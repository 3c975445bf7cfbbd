//! What a team lets through, in `tidegate.toml`.
//!
//! ```toml
//! suppressions = "tidegate/known.supp"
//!
//! [classes]                    # what passes or fails otherwise than by default
//! retention = "fail"
//!
//! [floors]                     # growth below them is noted
//! bytes-per-round = 16
//!
//! [baselines]
//! fails-on = ["peak", "left-bytes"]
//!
//! [[budget]]                   # of a whole scenario
//! scenario = "proving"
//! resident = "12GiB"
//!
//! [[budget]]                   # of a phase and layer, on one class of runners
//! scenario = "prov*"
//! phase = "msm_g1"
//! layer = "device"
//! runner = "h200"
//! peak = "4GiB"
//! bytes = "+5%"
//!
//! [[suppression]]
//! leak = "^load_kernels$"
//! reason = "the kernels' table lives as long as the process, ticket 812"
//! until = "2027-03-31"
//!
//! [runner.h200]
//! gpus = "NVIDIA H200*"
//! ```
//!
//! Whatever is not understood is an error with its file, line and column: a misspelt
//! budget limits nothing.

mod limit;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use toml::Spanned;

use crate::books::Layer;
use crate::error::Error;
use crate::machine::Fingerprint;
use crate::profile::{Metric, text_of};
use crate::suppressions::{Day, Suppressions};
use crate::verdict::{Class, Settings};

use limit::{Bytes, Limit, Things, Time};
pub use limit::{Most, Pattern};

/// The name of a project's policy.
pub const POLICY_FILE: &str = "tidegate.toml";

/// What a team lets through.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[schemars(title = "tidegate.toml")]
pub struct Policy {
    /// A file of known leaks (LeakSanitizer's `leak:` lines with a reason and a last day
    /// above each), beside this one.
    suppressions: Option<PathBuf>,
    /// What fails and what passes, where that is not the default.
    pub classes: Classes,
    /// Growth below these is noted, and fails nothing.
    pub floors: Floors,
    /// How runs are compared with baselines.
    pub baselines: Baselines,
    /// What may be taken at most.
    #[schemars(with = "Vec<Budget>")]
    budget: Vec<Spanned<Budget>>,
    /// Known leaks that are let through for a while.
    #[schemars(with = "Vec<Suppression>")]
    suppression: Vec<Spanned<Suppression>>,
    /// Classes of machines.
    runner: BTreeMap<String, Runner>,
    #[serde(skip)]
    rules: Vec<Suppressions>,
    #[serde(skip)]
    file: PathBuf,
}

/// What fails and what passes. `crash` and `inconclusive` never pass, and `clean` never
/// fails.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Classes {
    cache: Option<Does>,
    retention: Option<Does>,
    fragmentation: Option<Does>,
    dwell: Option<Does>,
    leak: Option<Does>,
    handle_leak: Option<Does>,
    backlog: Option<Does>,
    unexplained_growth: Option<Does>,
    ceiling: Option<Does>,
    hang: Option<Does>,
}

/// What a class does to a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Does {
    /// It stops the change.
    Fail,
    /// It lets it through, and is noted.
    Pass,
}

/// Growth below these is noted, and fails nothing.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Floors {
    /// Of live memory, in bytes per round on average; a block counts 16 more than it holds.
    bytes_per_round: Option<u64>,
    /// Of what is freed late, in bytes.
    dwell_bytes: Option<u64>,
    /// Of what the allocator keeps beyond live memory, in bytes.
    resident_bytes: Option<u64>,
    /// Of a gauge that no ledger explains, in bytes in all.
    gauge_bytes: Option<u64>,
    /// Of the memory of waiting items, in bytes.
    backlog_bytes: Option<u64>,
}

/// How runs are compared with baselines.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Baselines {
    /// Whether a scenario without a baseline is inconclusive; true unless set.
    pub required: bool,
    /// Metrics that fail when they are above what the baseline's spread lets them be. More
    /// allocations cost time and no memory, so that unless set only `peak` and `left-bytes` do.
    pub fails_on: BTreeSet<Metric>,
}

impl Default for Baselines {
    fn default() -> Self {
        Self {
            required: true,
            fails_on: [Metric::Peak, Metric::LeftBytes].into(),
        }
    }
}

/// What a scenario, a phase or a layer may take at most.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Budget {
    /// The scenario, `*` for anything; every scenario unless given.
    pub scenario: Option<Pattern>,
    /// The phase; all phases together unless given.
    pub phase: Option<String>,
    /// The layer; all layers together unless given.
    pub layer: Option<Layer>,
    /// The class of runners; any machine unless given.
    #[schemars(with = "Option<String>")]
    pub runner: Option<Spanned<String>>,
    blocks: Option<Limit<Things>>,
    bytes: Option<Limit<Bytes>>,
    left_blocks: Option<Limit<Things>>,
    left_bytes: Option<Limit<Bytes>>,
    peak: Option<Limit<Bytes>>,
    dwell: Option<Limit<Time>>,
    resident: Option<Limit<Bytes>>,
    card: Option<Limit<Bytes>>,
}

impl Budget {
    /// What it limits.
    pub fn limits(&self) -> impl Iterator<Item = (Metric, Most)> {
        let of = |limit: Option<Limit<Bytes>>| limit.map(|limit| limit.most);
        let limits = [
            (Metric::Blocks, self.blocks.map(|limit| limit.most)),
            (Metric::Bytes, of(self.bytes)),
            (Metric::LeftBlocks, self.left_blocks.map(|limit| limit.most)),
            (Metric::LeftBytes, of(self.left_bytes)),
            (Metric::Peak, of(self.peak)),
            (Metric::Dwell, self.dwell.map(|limit| limit.most)),
            (Metric::Resident, of(self.resident)),
            (Metric::Card, of(self.card)),
        ];
        limits
            .into_iter()
            .filter_map(|(metric, most)| Some((metric, most?)))
    }

    /// Whether it is about this scenario on such a machine.
    pub fn is_about(&self, scenario: &str, runner: Option<&str>) -> bool {
        self.scenario
            .as_ref()
            .is_none_or(|pattern| pattern.matches(scenario))
            && self.runner().is_none_or(|wanted| Some(wanted) == runner)
    }

    /// The class of runners that it is about.
    pub fn runner(&self) -> Option<&str> {
        self.runner.as_ref().map(|runner| runner.get_ref().as_str())
    }

    /// What it is about, in words: `peak of phase msm_g1, device`.
    pub fn place(&self) -> String {
        let phase = self.phase.as_ref().map(|phase| format!("phase {phase}"));
        let layer = self.layer.map(|layer| layer.name().to_owned());
        let words: Vec<String> = phase.into_iter().chain(layer).collect();
        match words.is_empty() {
            true => "the whole scenario".to_owned(),
            false => words.join(", "),
        }
    }
}

/// A known leak that is let through for a while.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Suppression {
    /// Looked for in the function, source file and object of every frame, as
    /// LeakSanitizer does: `*` is anything, `^` the beginning and `$` the end of a name.
    leak: String,
    /// Why it is let through.
    reason: String,
    /// The last day on which it is (UTC), as 2027-03-31.
    #[schemars(regex(pattern = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"))]
    until: String,
    /// The layer that it is narrowed to.
    #[serde(default)]
    layer: Option<Layer>,
    /// The phase that it is narrowed to.
    #[serde(default)]
    phase: Option<String>,
}

/// A class of machines: those that match in all that is given, `*` for anything.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Runner {
    /// Logical CPUs.
    cpus: Option<u32>,
    /// The kernel's series, as 6.18.
    kernel: Option<Pattern>,
    /// The C library, as `glibc 2.39`.
    libc: Option<Pattern>,
    /// The allocator.
    allocator: Option<Pattern>,
    /// Transparent huge pages.
    thp: Option<Pattern>,
    /// The cards' names, joined by `, `.
    gpus: Option<Pattern>,
    /// The series of the cards' driver, as 580.159.
    driver: Option<Pattern>,
}

impl Runner {
    /// Whether a machine is one of these.
    pub fn is(&self, machine: &Fingerprint) -> bool {
        let patterns = [
            ("kernel", &self.kernel),
            ("libc", &self.libc),
            ("allocator", &self.allocator),
            ("thp", &self.thp),
            ("gpus", &self.gpus),
            ("driver", &self.driver),
        ];
        self.cpus
            .is_none_or(|cpus| machine.get("cpus") == cpus.to_string())
            && patterns.into_iter().all(|(field, pattern)| {
                pattern
                    .as_ref()
                    .is_none_or(|pattern| pattern.matches(machine.get(field)))
            })
    }
}

impl Policy {
    /// Reads a policy from its file, and the file of suppressions that it names.
    ///
    /// # Errors
    /// If it cannot be read, or holds anything that is not understood, with its place.
    pub fn read(file: &Path) -> Result<Self, Error> {
        let mut policy = Self::parse(&text_of(file)?, file)?;
        if let Some(suppressions) = &policy.suppressions {
            let beside = file.parent().unwrap_or(Path::new("")).join(suppressions);
            policy.rules.push(Suppressions::read(beside)?);
        }
        Ok(policy)
    }

    /// Reads the text of a policy; `file` names it in messages. A file of suppressions
    /// that it names is not read.
    ///
    /// # Errors
    /// If it holds anything that is not understood, with its place.
    pub fn parse(text: &str, file: &Path) -> Result<Self, Error> {
        let bad = |at: usize, problem: String| bad(text, file, at, problem);
        let mut policy: Self = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            bad(at, error.message().trim().replace('\n', ", "))
        })?;
        policy.check().map_err(|(at, problem)| bad(at, problem))?;
        file.clone_into(&mut policy.file);
        for suppression in std::mem::take(&mut policy.suppression) {
            let at = suppression.span().start;
            let line = place(text, at).0;
            let rules = suppression.into_inner().rule(file, line);
            policy
                .rules
                .push(rules.map_err(|problem| bad(at, problem))?);
        }
        Ok(policy)
    }

    /// What the types do not say.
    fn check(&self) -> Result<(), (usize, String)> {
        for budget in &self.budget {
            let at = budget.span().start;
            let budget = budget.get_ref();
            let Some(_) = budget.limits().next() else {
                let metrics = "blocks, bytes, left-blocks, left-bytes, peak, dwell, resident, card";
                return Err((
                    at,
                    format!("this budget limits nothing; it can limit {metrics}"),
                ));
            };
            let whole = budget.phase.is_none() && budget.layer.is_none();
            for (metric, _) in budget.limits() {
                if !whole && matches!(metric, Metric::Resident | Metric::Card) {
                    return Err((
                        at,
                        format!(
                            "`{metric}` is known of a whole process only; give it a budget without \
                             `phase` and `layer`"
                        ),
                    ));
                }
                let counted = budget.layer.is_some_and(Layer::is_counted);
                if counted && !matches!(metric, Metric::Blocks | Metric::LeftBlocks) {
                    return Err((
                        at,
                        format!(
                            "this layer counts things: limit `blocks` or `left-blocks`, not `{metric}`"
                        ),
                    ));
                }
            }
            if let Some(runner) = &budget.runner
                && !self.runner.contains_key(runner.get_ref())
            {
                let known: Vec<&str> = self.runner.keys().map(String::as_str).collect();
                let known = match known.is_empty() {
                    true => "none is given".to_owned(),
                    false => format!("there are {}", known.join(", ")),
                };
                return Err((
                    runner.span().start,
                    format!(
                        "`{}` is no class of runners; {known} (`[runner.NAME]`)",
                        runner.get_ref()
                    ),
                ));
            }
        }
        Ok(())
    }

    /// The file that it was read from; empty if it is the default.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The budgets.
    pub fn budgets(&self) -> impl Iterator<Item = &Budget> {
        self.budget.iter().map(Spanned::get_ref)
    }

    /// Known leaks that are let through.
    pub(crate) fn suppressions(&self) -> &[Suppressions] {
        &self.rules
    }

    /// Takes this day for today, where it is asked whether a suppression has expired.
    #[must_use]
    pub fn as_of(mut self, today: Day) -> Self {
        let rules = std::mem::take(&mut self.rules).into_iter();
        self.rules = rules.map(|rules| rules.as_of(today)).collect();
        self
    }

    /// The class of runners that a machine is of; of several the first by name.
    pub fn runner_of(&self, machine: &Fingerprint) -> Option<&str> {
        let mut runners = self.runner.iter();
        runners
            .find(|(_, runner)| runner.is(machine))
            .map(|(name, _)| name.as_str())
    }

    /// Whether a class stops a change.
    pub fn fails(&self, class: Class) -> bool {
        let Classes {
            cache,
            retention,
            fragmentation,
            dwell,
            leak,
            handle_leak,
            backlog,
            unexplained_growth,
            ceiling,
            hang,
        } = self.classes;
        let said = match class {
            Class::Cache => cache,
            Class::Retention => retention,
            Class::Fragmentation => fragmentation,
            Class::Dwell => dwell,
            Class::Leak => leak,
            Class::HandleLeak => handle_leak,
            Class::Backlog => backlog,
            Class::UnexplainedGrowth => unexplained_growth,
            Class::Ceiling => ceiling,
            Class::Hang => hang,
            Class::Clean | Class::Crash | Class::Inconclusive => None,
        };
        match said {
            Some(does) => does == Does::Fail,
            None => class.exit_code() == 3,
        }
    }

    /// The engine's settings with this policy's floors; `None` if it sets none.
    pub(crate) fn settings(&self, settings: Settings) -> Option<Settings> {
        let Floors {
            bytes_per_round,
            dwell_bytes,
            resident_bytes,
            gauge_bytes,
            backlog_bytes,
        } = self.floors;
        let floored = Settings {
            floor_bytes_per_round: bytes_per_round.unwrap_or(settings.floor_bytes_per_round),
            dwell_floor_bytes: dwell_bytes.unwrap_or(settings.dwell_floor_bytes),
            resident_floor_bytes: resident_bytes.unwrap_or(settings.resident_floor_bytes),
            gauge_floor_bytes: gauge_bytes.unwrap_or(settings.gauge_floor_bytes),
            backlog_floor_bytes: backlog_bytes.unwrap_or(settings.backlog_floor_bytes),
            ..settings.clone()
        };
        (floored != settings).then_some(floored)
    }
}

impl Suppression {
    fn rule(self, file: &Path, line: usize) -> Result<Suppressions, String> {
        let until = self.until.parse()?;
        Suppressions::of_one(
            file,
            line,
            &self.leak,
            self.reason,
            until,
            self.layer,
            self.phase,
        )
    }
}

/// The line and the byte within it of a place in a text, both from 1.
fn place(text: &str, at: usize) -> (usize, usize) {
    let before = text.as_bytes().get(..at).unwrap_or(text.as_bytes());
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    let column = before
        .iter()
        .rev()
        .take_while(|byte| **byte != b'\n')
        .count()
        + 1;
    (line, column)
}

fn bad(text: &str, file: &Path, at: usize, problem: String) -> Error {
    let (line, column) = place(text, at);
    Error::BadFile {
        file: file.to_owned(),
        line,
        column,
        problem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Policy, String> {
        Policy::parse(text, Path::new("tidegate.toml")).map_err(|error| error.chain())
    }

    const WHOLE: &str = r#"
suppressions = "tidegate/known.supp"

[classes]
retention = "fail"
handle-leak = "pass"

[floors]
bytes-per-round = 64

[baselines]
required = false
fails-on = ["blocks", "dwell"]

[[budget]]
resident = "1.5GiB"
blocks = 12

[[budget]]
scenario = "prov*"
phase = "msm_g1"
layer = "device"
runner = "h200"
peak = "4GiB"
bytes = "+5%"
dwell = "50ms"

[[suppression]]
leak = "^load_kernels$"
reason = "ticket 812"
until = "2027-03-31"
layer = "native-heap"

[runner.h200]
gpus = "NVIDIA H200*"
cpus = 16
"#;

    #[test]
    fn a_policy_says_what_it_says() {
        let policy = parse(WHOLE).expect("a policy");
        assert!(policy.fails(Class::Retention) && policy.fails(Class::Leak));
        assert!(!policy.fails(Class::HandleLeak) && !policy.fails(Class::Cache));
        let settings = policy
            .settings(Settings::default())
            .expect("floors are set");
        assert_eq!(settings.floor_bytes_per_round, 64);
        assert!(!policy.baselines.required);
        let budgets: Vec<&Budget> = policy.budgets().collect();
        let limits = |at: usize| budgets[at].limits().collect::<Vec<_>>();
        assert_eq!(
            limits(0),
            [
                (Metric::Blocks, Most::Absolute(12.0)),
                (
                    Metric::Resident,
                    Most::Absolute(1.5 * 1024.0 * 1024.0 * 1024.0)
                ),
            ]
        );
        assert_eq!(
            limits(1),
            [
                (Metric::Bytes, Most::Relative(0.05)),
                (Metric::Peak, Most::Absolute(4.0 * 1024.0 * 1024.0 * 1024.0)),
                (Metric::Dwell, Most::Absolute(50_000.0)),
            ]
        );
        assert!(budgets[1].is_about("proving", Some("h200")));
        assert!(
            !budgets[1].is_about("proving", None) && !budgets[1].is_about("other", Some("h200"))
        );
        let mut machine = Fingerprint::default();
        machine.set("cpus", "16").expect("a field");
        assert_eq!(policy.runner_of(&machine), None);
        machine.set("gpus", "NVIDIA H200 NVL").expect("a field");
        assert_eq!(policy.runner_of(&machine), Some("h200"));
        let [rules] = policy.suppressions() else {
            panic!("one rule")
        };
        assert_eq!(rules.rules()[0].line, 28);
    }

    #[test]
    fn an_empty_policy_is_the_default() {
        let policy = parse("").expect("a policy");
        for class in Class::ALL {
            assert_eq!(policy.fails(class), class.exit_code() == 3, "{class}");
        }
        assert_eq!(policy.settings(Settings::default()), None);
        assert!(policy.baselines.required);
    }

    #[test]
    fn what_is_not_understood_is_told_with_its_place_and_what_was_expected() {
        for (text, place, expected) in [
            (
                "x = 1",
                "1:1",
                "unknown field `x`, expected one of `suppressions`, `classes`",
            ),
            (
                "[classes]\nleek = \"fail\"",
                "2:1",
                "unknown field `leek`, expected one of `cache`",
            ),
            (
                "[classes]\ninconclusive = \"pass\"",
                "2:1",
                "unknown field `inconclusive`",
            ),
            (
                "[classes]\nleak = \"warn\"",
                "2:8",
                "unknown variant `warn`, expected `fail` or `pass`",
            ),
            ("[floors]\nbytes-per-round = -1", "2:19", "expected u64"),
            (
                "[[budget]]\n\npeek = \"1GiB\"\n",
                "3:1",
                "unknown field `peek`, expected one of `scenario`",
            ),
            (
                "[[budget]]\npeak = \"1 parsec\"",
                "2:8",
                "`1 parsec` is not an amount of bytes such as \"512MiB\"",
            ),
            (
                "[[budget]]\npeak = \"-5%\"",
                "2:8",
                "or \"+5%\" over the baseline",
            ),
            (
                "[[budget]]\npeak = true",
                "2:8",
                "expected an amount of bytes",
            ),
            (
                "[[budget]]\nblocks = \"12\"",
                "2:10",
                "`12` is not a number such as 12",
            ),
            (
                "[[budget]]\nblocks = -1",
                "2:10",
                "`-1` is not a number such as 12",
            ),
            (
                "[[budget]]\ndwell = 50",
                "2:9",
                "`50` is not a time such as \"50ms\"",
            ),
            (
                "[[budget]]\nscenario = \"a\"",
                "1:1",
                "this budget limits nothing; it can limit blocks",
            ),
            (
                "[[budget]]\nlayer = \"heap\"\npeak = 1",
                "2:9",
                "unknown variant `heap`, expected one of `rust-heap`",
            ),
            (
                "[[budget]]\nphase = \"a\"\ncard = 1",
                "1:1",
                "`card` is known of a whole process only",
            ),
            (
                "[[budget]]\nlayer = \"threads\"\npeak = 1",
                "1:1",
                "this layer counts things",
            ),
            (
                "[[budget]]\nrunner = \"big\"\npeak = 1",
                "2:10",
                "`big` is no class of runners; none is given",
            ),
            (
                "[runner.h200]\ngpu = \"x\"",
                "2:1",
                "unknown field `gpu`, expected one of `cpus`",
            ),
            (
                "[[suppression]]\nleak = \"f\"",
                "1:1",
                "missing field `reason`",
            ),
            (
                "[[suppression]]\nleak = \"*\"\nreason = \"r\"\nuntil = \"2027-01-01\"",
                "1:1",
                "lets every leak through",
            ),
            (
                "[[suppression]]\nleak = \"f\"\nreason = \" \"\nuntil = \"2027-01-01\"",
                "1:1",
                "the reason is empty",
            ),
            (
                "[[suppression]]\nleak = \"f\"\nreason = \"r\"\nuntil = \"soon\"",
                "1:1",
                "`soon` is no day",
            ),
            (
                "[baselines]\nfails-on = [\"peek\"]",
                "2:13",
                "unknown variant `peek`, expected one of `blocks`",
            ),
            ("[classes\n", "1:9", "unclosed table"),
        ] {
            let error = parse(text).expect_err(text);
            let head = format!("tidegate.toml:{place}: ");
            assert!(
                error.starts_with(&head) && error.contains(expected),
                "{text:?} gave {error:?}"
            );
        }
    }
}
