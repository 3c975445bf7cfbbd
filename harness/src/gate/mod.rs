//! The gate: runs, a policy and baselines in; one answer out.
//!
//! [`judge`] reads nothing but its arguments. Runs of one scenario on one kind of machine
//! are judged together: each finding once, whether it is new or known, the budgets, and
//! what lies above the baseline's spread. What should have been judged and was not is said,
//! and makes the gate inconclusive.
//!
//! Exit codes: 0 pass · 3 failed by a verdict · 4 failed by policy or budget · 5
//! inconclusive · 6 the workload crashed. Of several the first in the order 3, 4, 6, 5: what
//! is proved comes before what is not known.

mod annotations;
mod bencher;
mod budgets;
mod drift;
mod findings;
mod lines;
mod live;
mod markdown;
mod remarks;
mod sarif;
mod terminal;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;

use crate::baseline::{Baseline, Found, Store};
use crate::machine::Fingerprint;
use crate::policy::Policy;
use crate::profile::Profile;
use crate::run::Run;
use crate::verdict::{Class, Settings, judge as judge_books};

pub use budgets::{Budgeted, Stands};
pub use drift::Drift;
pub use findings::{GateFinding, Status, Suppressed};
pub use lines::{Line, Root};
pub use live::Live;

/// Name and version of the format of a gate's report as JSON.
pub const GATE_SCHEMA: &str = "tidegate.gate/1";

/// What a gate says.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Report {
    /// Name and version of this format: `tidegate.gate/1`.
    pub schema: String,
    /// The answer.
    pub answer: Answer,
    /// The answer in a sentence.
    pub sentence: String,
    /// Every scenario that was given, or should have been.
    pub scenarios: Vec<Scenario>,
    /// Scenarios that were judged to the end.
    pub scenarios_judged: u64,
    /// Scenarios that exist: given, with a baseline for this machine, or named by the policy.
    pub scenarios_exist: u64,
    /// What the policy's suppressions came to.
    pub suppressions: Vec<Suppressed>,
}

/// Whether a change may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// It may.
    Pass,
    /// Something that a pass needs is missing or unclear.
    Inconclusive,
    /// The workload crashed.
    Crash,
    /// It breaks the policy: a budget, the baseline's spread, a class that the policy fails.
    FailedByPolicy,
    /// It fails by a verdict.
    FailedByVerdict,
}

impl Answer {
    /// The exit code that it gives.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Pass => 0,
            Self::FailedByVerdict => 3,
            Self::FailedByPolicy => 4,
            Self::Inconclusive => 5,
            Self::Crash => 6,
        }
    }

    /// The answer in words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::FailedByVerdict => "failed by verdict",
            Self::FailedByPolicy => "failed by policy",
            Self::Inconclusive => "inconclusive",
            Self::Crash => "the workload crashed",
        }
    }
}

/// One scenario on one kind of machine.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// The answer for it alone.
    pub answer: Answer,
    /// The gravest class of its runs; `None` where no run was given.
    pub class: Option<Class>,
    /// That run's verdict in a sentence.
    pub sentence: Option<String>,
    /// The runs' folders or files.
    pub runs: Vec<PathBuf>,
    /// The machine.
    pub machine: Fingerprint,
    /// The policy's class of runners that the machine is of.
    pub runner: Option<String>,
    /// Rounds before those that were judged, of the run whose class it is.
    pub warmup: u32,
    /// What that run held after each round, by layer.
    pub live: Vec<Live>,
    /// What was found, each once.
    pub findings: Vec<GateFinding>,
    /// The policy's budgets for it.
    pub budgets: Vec<Budgeted>,
    /// What its baseline says.
    pub baseline: AgainstBaseline,
    /// What keeps it from being judged to the end, each with what to do about it.
    pub missing: Vec<String>,
}

/// What a scenario's baseline says of its runs.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "is", rename_all = "kebab-case")]
pub enum AgainstBaseline {
    /// There is none.
    Missing,
    /// There is one of another machine, which is not compared with.
    OfAnotherMachine {
        /// Its file.
        file: PathBuf,
        /// What differs: there, and here.
        differs: Vec<String>,
    },
    /// The runs were not judged, or cannot be compared with it.
    NotCompared {
        /// Its file.
        file: PathBuf,
    },
    /// The runs were compared with it.
    Compared {
        /// Its file.
        file: PathBuf,
        /// Its runs.
        runs: u32,
        /// Why it is what it is.
        reason: String,
        /// Metrics of places that were compared.
        metrics_judged: u64,
        /// Metrics of places that exist.
        metrics_exist: u64,
        /// What is not what it was.
        drift: Vec<Drift>,
        /// Findings that it accepted and that are gone.
        gone: Vec<String>,
        /// What a reader must know of the comparison.
        notes: Vec<String>,
    },
}

/// Runs, each with where it was read from.
pub type Runs = [(PathBuf, Run)];

/// Judges runs by a policy and baselines.
pub fn judge(runs: &Runs, policy: &Policy, store: &Store) -> Report {
    let mut groups = BTreeMap::<(String, Fingerprint), Vec<(&PathBuf, Run)>>::new();
    for (path, run) in runs {
        let key = (run.plan.name.clone(), run.machine.fingerprint());
        groups
            .entry(key)
            .or_default()
            .push((path, with_floors(run, policy)));
    }
    let mut uses = findings::Uses::of(policy);
    let machines: BTreeSet<Fingerprint> =
        groups.keys().map(|(_, machine)| machine.clone()).collect();
    let given: BTreeSet<String> = groups.keys().map(|(name, _)| name.clone()).collect();
    let mut scenarios: Vec<Scenario> = groups
        .into_iter()
        .map(|((name, machine), runs)| scenario(name, machine, &runs, policy, store, &mut uses))
        .collect();
    scenarios.extend(not_given(&given, &machines, policy, store));
    scenarios.sort_by(|one, other| {
        let key = |scenario: &Scenario| (std::cmp::Reverse(scenario.answer), scenario.name.clone());
        key(one).cmp(&key(other))
    });
    let answer = scenarios.iter().map(|scenario| scenario.answer).max();
    let answer = answer.unwrap_or(Answer::Inconclusive);
    let judged = |scenario: &&Scenario| scenario.missing.is_empty();
    let scenarios_judged = scenarios.iter().filter(judged).count() as u64;
    let scenarios_exist = scenarios.len() as u64;
    Report {
        schema: GATE_SCHEMA.to_owned(),
        answer,
        sentence: terminal::sentence(answer, &scenarios),
        scenarios,
        scenarios_judged,
        scenarios_exist,
        suppressions: uses.told(),
    }
}

/// The run as the policy's floors judge it.
fn with_floors(run: &Run, policy: &Policy) -> Run {
    let mut run = run.clone();
    let mut settings = Settings {
        limit_bytes: run.plan.limit_bytes,
        ..Settings::default()
    };
    if !run.plan.command.is_empty() {
        // A program that nobody can order to do anything.
        settings.probes.clear();
    }
    if let Some(settings) = policy.settings(settings) {
        let before = std::mem::replace(&mut run.verdict, judge_books(&run.books, &settings));
        // The books do not know the sites, which a second run found.
        for finding in &mut run.verdict.findings {
            let same = before.findings.iter().find(|known| {
                (known.class, known.layer, &known.phase)
                    == (finding.class, finding.layer, &finding.phase)
            });
            if finding.site.is_none() {
                finding.site = same.and_then(|known| known.site.clone());
            }
        }
    }
    run
}

/// Runs of one scenario on one kind of machine, and what they are judged by.
struct Group<'a> {
    name: &'a str,
    machine: &'a Fingerprint,
    runs: &'a [(&'a PathBuf, Run)],
    /// Of the runs that went to their end.
    profiles: Vec<Profile>,
    policy: &'a Policy,
    found: Found<'a>,
}

impl Group<'_> {
    fn baseline(&self) -> Option<&Baseline> {
        match self.found {
            Found::Same(_, baseline) => Some(baseline),
            _ => None,
        }
    }

    /// The command that blesses these runs.
    fn blessing(&self) -> String {
        let paths = self.runs.iter().map(|(path, _)| path.display().to_string());
        let paths: Vec<String> = paths.collect();
        format!("`cargo tidegate bless {} --reason \"…\"`", paths.join(" "))
    }
}

fn scenario(
    name: String,
    machine: Fingerprint,
    runs: &[(&PathBuf, Run)],
    policy: &Policy,
    store: &Store,
    uses: &mut findings::Uses<'_>,
) -> Scenario {
    let runner = policy.runner_of(&machine).map(str::to_owned);
    // What crashed has done only part of its work.
    let profiles = runs
        .iter()
        .filter(|(_, run)| run.verdict.class != Class::Crash);
    let profiles = profiles.map(|(_, run)| run.profile());
    let group = Group {
        name: &name,
        machine: &machine,
        runs,
        profiles: profiles
            .filter(|profile| profile.rounds.fewest > 0)
            .collect(),
        policy,
        found: store.find(&name, &machine),
    };
    let mut missing: Vec<String> = runs
        .iter()
        .filter(|(_, run)| matches!(run.verdict.class, Class::Inconclusive | Class::Crash))
        .map(|(path, run)| {
            let verdict = &run.verdict;
            format!(
                "{}: {} ({})",
                path.display(),
                verdict.sentence,
                verdict.class
            )
        })
        .collect();
    let known = group.baseline().map_or(&[][..], |baseline| &baseline.known);
    let findings = findings::of(runs, policy, known, uses);
    let budgets = budgets::of(&group, runner.as_deref(), &mut missing);
    let baseline = against(&group, &budgets, &mut missing);
    let drifts = match &baseline {
        AgainstBaseline::Compared { drift, .. } => drift.iter().any(|drift| drift.fails),
        _ => false,
    };
    let over = budgets.iter().any(|budget| budget.stands == Stands::Over);
    let crashed = runs
        .iter()
        .any(|(_, run)| run.verdict.class == Class::Crash);
    let answers = [
        (
            findings.iter().any(GateFinding::fails_by_verdict),
            Answer::FailedByVerdict,
        ),
        (
            findings.iter().any(GateFinding::fails_by_policy),
            Answer::FailedByPolicy,
        ),
        (drifts || over, Answer::FailedByPolicy),
        (crashed, Answer::Crash),
        (!missing.is_empty(), Answer::Inconclusive),
    ];
    let answer = answers
        .into_iter()
        .find_map(|(is, answer)| is.then_some(answer));
    let gravest = runs
        .iter()
        .max_by_key(|(_, run)| gravity(run.verdict.class, policy));
    Scenario {
        answer: answer.unwrap_or(Answer::Pass),
        class: gravest.map(|(_, run)| run.verdict.class),
        sentence: gravest.map(|(_, run)| run.verdict.sentence.clone()),
        warmup: gravest.map_or(0, |(_, run)| run.books.warmup),
        live: gravest.map_or_else(Vec::new, |(_, run)| live::of(&run.books)),
        runs: runs.iter().map(|(path, _)| (*path).clone()).collect(),
        runner,
        findings,
        budgets,
        baseline,
        missing,
        name,
        machine,
    }
}

/// The graver a class is, the higher.
fn gravity(class: Class, policy: &Policy) -> (bool, bool, Class) {
    (policy.fails(class), !class.passes(), class)
}

fn against(group: &Group<'_>, budgets: &[Budgeted], missing: &mut Vec<String>) -> AgainstBaseline {
    let Group {
        name,
        machine,
        runs,
        profiles,
        policy,
        found,
    } = group;
    let (file, baseline): (_, &Baseline) = match found {
        Found::Same(file, baseline) => (file.to_path_buf(), baseline),
        Found::Other(file, baseline) => {
            let differs = baseline.machine.differences(machine);
            if policy.baselines.required {
                missing.push(format!(
                    "the baseline of `{name}` is of another machine, and is not compared with ({}: {}); \
                     make one of this machine with {}",
                    file.display(),
                    differs.join("; "),
                    group.blessing()
                ));
            }
            return AgainstBaseline::OfAnotherMachine {
                file: file.to_path_buf(),
                differs,
            };
        }
        Found::Nothing => {
            if policy.baselines.required {
                missing.push(format!(
                    "`{name}` has no baseline; make one with {}",
                    group.blessing()
                ));
            }
            return AgainstBaseline::Missing;
        }
    };
    if profiles.is_empty() {
        // Why there is none is said already.
        return AgainstBaseline::NotCompared { file };
    }
    let merged = match Profile::merged(profiles.iter().cloned()) {
        _ if baseline.profile.runs < 2 => Err(format!(
            "it is of one run, which says nothing of the next; bless several with {}",
            group.blessing()
        )),
        merged => merged,
    };
    let merged = match merged {
        Ok(merged) => merged,
        Err(problem) => {
            missing.push(format!("not compared with {}: {problem}", file.display()));
            return AgainstBaseline::NotCompared { file };
        }
    };
    let compared = drift::of(&baseline.profile, &merged, policy, budgets);
    AgainstBaseline::Compared {
        file,
        runs: baseline.profile.runs,
        reason: baseline.reason.clone(),
        metrics_judged: compared.judged,
        metrics_exist: compared.exist,
        drift: compared.drift,
        notes: compared.notes,
        gone: findings::gone(runs, &baseline.known),
    }
}

/// Scenarios that have a baseline for one of these machines, or that the policy names for
/// one of them, and of which no run was given.
fn not_given(
    given: &BTreeSet<String>,
    machines: &BTreeSet<Fingerprint>,
    policy: &Policy,
    store: &Store,
) -> Vec<Scenario> {
    let mut expected = BTreeMap::<&str, (String, Fingerprint)>::new();
    for (file, baseline) in store.all() {
        if machines.contains(&baseline.machine) {
            let why = format!("it has a baseline, {}", file.display());
            expected.insert(&baseline.profile.scenario, (why, baseline.machine.clone()));
        }
    }
    for budget in policy.budgets() {
        let name = budget.scenario.as_ref().and_then(|pattern| pattern.name());
        let machine = machines.iter().find(|machine| match budget.runner() {
            Some(runner) => policy.runner_of(machine) == Some(runner),
            None => true,
        });
        if let (Some(name), Some(machine)) = (name, machine) {
            let why = format!("{} has a budget for it", policy.file().display());
            expected.entry(name).or_insert((why, machine.clone()));
        }
    }
    let missing = expected
        .into_iter()
        .filter(|(name, _)| !given.contains(*name));
    missing
        .map(|(name, (why, machine))| Scenario {
            name: name.to_owned(),
            answer: Answer::Inconclusive,
            class: None,
            sentence: None,
            warmup: 0,
            live: Vec::new(),
            runs: Vec::new(),
            runner: policy.runner_of(&machine).map(str::to_owned),
            baseline: AgainstBaseline::Missing,
            machine,
            findings: Vec::new(),
            budgets: Vec::new(),
            missing: vec![format!(
                "no run of `{name}` was given, and {why}; give one, or remove that if the scenario \
                 is gone"
            )],
        })
        .collect()
}

impl Report {
    /// The report for a terminal: plain text of 80 columns, paths told from `root`.
    pub fn terminal(&self, root: &Root) -> String {
        terminal::show(self, root)
    }

    /// The report as Markdown, for a job's summary: the answer, tables, what was alive
    /// after each round. `docs` is where the book is, as a URL, for links into it.
    pub fn markdown(&self, root: &Root, docs: Option<&str>) -> String {
        markdown::show(self, root, docs)
    }

    /// The report as GitHub's workflow commands, one a line, which annotate the allocating
    /// lines: errors for what stops the change, warnings for what was not judged, notices
    /// for what is let through.
    pub fn annotations(&self, root: &Root) -> String {
        annotations::show(self, root)
    }

    /// The report as SARIF 2.1.0, for code scanning; `docs` as for [`Self::markdown`].
    pub fn sarif(&self, root: &Root, docs: Option<&str>) -> serde_json::Value {
        sarif::of(self, root, docs)
    }
}

/// What runs took, in the Bencher Metric Format: peaks, what was allocated per round, and
/// what survived, by scenario and layer, in bytes.
pub fn bencher(runs: &Runs) -> serde_json::Value {
    bencher::of(runs)
}

/// Text for a job's log in which GitHub obeys no workflow command, whatever the text says.
/// `token` must be one that who wrote the text cannot guess.
pub fn without_commands(text: &str, token: &str) -> String {
    annotations::quoted(text, token)
}
