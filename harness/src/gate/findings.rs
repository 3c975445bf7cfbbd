//! Findings of several runs, each once: new, known, suppressed or let through.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;

use super::{Line, lines};
use crate::aside::CameTo;
use crate::baseline::Known;
use crate::books::{Amount, Layer};
use crate::explain::{Site, belongs};
use crate::policy::Policy;
use crate::profile::Value;
use crate::run::Run;
use crate::suppressions::{Rule, Suppressions};
use crate::verdict::{Class, Finding, SEVERAL_PHASES, Settings};

/// One finding of a scenario's runs.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct GateFinding {
    /// Its class.
    pub class: Class,
    /// What it is one with in other runs and builds: its layer, phase and site, or its class.
    pub identity: String,
    /// The layer, where it is in one.
    pub layer: Option<Layer>,
    /// The phase, where it is of one.
    pub phase: Option<String>,
    /// The site, where it is known.
    pub site: Option<String>,
    /// The lines of your own code that allocate it, the one that lost most first; empty
    /// where no second run has shown them.
    pub lines: Vec<Line>,
    /// Bytes per measured round, of the run that found most.
    #[schemars(with = "f64")]
    pub bytes: Value,
    /// Blocks per measured round, of the run that found most.
    #[schemars(with = "f64")]
    pub blocks: Value,
    /// All of it in a sentence, of the run that found most.
    pub sentence: String,
    /// Whether it was there before.
    pub status: Status,
    /// Why it is let through, if it is.
    pub because: Option<String>,
    /// Whether it stops the change.
    pub fails: bool,
    /// Runs that found it.
    pub in_runs: u32,
    /// Runs that were given.
    pub of_runs: u32,
}

/// Whether a finding was there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// No baseline knows it.
    New,
    /// The baseline knows it with less per round.
    Worse,
    /// The baseline knows it.
    Known,
    /// A suppression lets it through.
    Suppressed,
    /// The policy lets its class through.
    Allowed,
}

impl Status {
    /// The status in words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Worse => "worse than known",
            Self::Known => "known",
            Self::Suppressed => "suppressed",
            Self::Allowed => "let through by the policy",
        }
    }
}

impl GateFinding {
    /// Whether it stops the change by its class alone.
    pub fn fails_by_verdict(&self) -> bool {
        self.fails && self.class.exit_code() == 3
    }

    /// Whether it stops the change because the policy says so of its class.
    pub fn fails_by_policy(&self) -> bool {
        self.fails && self.class.exit_code() != 3
    }
}

/// What a suppression of the policy came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Suppressed {
    /// The rule as written: `leak:PATTERN`.
    pub rule: String,
    /// The file that it stands in.
    pub file: PathBuf,
    /// The line there, from 1.
    pub line: u32,
    /// Why the leak is let through.
    pub reason: String,
    /// The last day on which it is, as YYYY-MM-DD (UTC).
    pub until: String,
    /// What it came to in all runs together.
    pub came_to: CameTo,
}

/// What the policy's suppressions have come to so far.
pub(super) struct Uses<'a> {
    rules: Vec<(&'a Suppressions, &'a Rule, CameTo)>,
}

impl<'a> Uses<'a> {
    pub fn of(policy: &'a Policy) -> Self {
        let rules = policy.suppressions().iter();
        let rules = rules.flat_map(|file| {
            file.rules()
                .iter()
                .map(move |rule| (file, rule, CameTo::Unused))
        });
        Self {
            rules: rules.collect(),
        }
    }

    pub fn told(self) -> Vec<Suppressed> {
        let rules = self.rules.into_iter();
        rules
            .map(|(file, rule, came_to)| Suppressed {
                rule: rule.text.clone(),
                file: file.file().to_owned(),
                line: rule.line,
                reason: rule.reason.clone(),
                until: rule.until.to_string(),
                came_to,
            })
            .collect()
    }

    /// Why a finding is let through, if rules that hold let all of it through but what is
    /// below the floor.
    fn suppress(&mut self, run: &Run, finding: &Finding, settings: &Settings) -> Option<String> {
        let mut because = None;
        let mut seen: Vec<&Site> = Vec::new();
        let mut matched = Amount::ZERO;
        for (file, rule, came_to) in &mut self.rules {
            let may = rule.layer.is_none_or(|layer| layer == finding.layer)
                && (finding.phase == SEVERAL_PHASES || rule.covers(finding.layer, &finding.phase));
            if !may {
                continue;
            }
            if rule.until < file.today(run.ended_at) {
                if *came_to == CameTo::Unused {
                    *came_to = CameTo::Expired;
                }
                continue;
            }
            let told = || {
                format!(
                    "{} ({}:{}) until {}: {}",
                    rule.text,
                    file.file().display(),
                    rule.line,
                    rule.until,
                    rule.reason
                )
            };
            if rule.is_by_place() {
                // What several phases lost together is one phase's in part at most.
                if rule.covers(finding.layer, &finding.phase) {
                    *came_to = CameTo::Used;
                    return Some(told());
                }
                continue;
            }
            let Some(explanation) = run.explanation() else {
                if *came_to == CameTo::Unused {
                    *came_to = CameTo::Unchecked;
                }
                continue;
            };
            for site in &explanation.sites {
                let is_seen = seen.iter().any(|known| std::ptr::eq(*known, site));
                if !is_seen
                    && belongs(site, finding)
                    && rule.covers(site.layer, &site.phase)
                    && rule.matches(site.frames_of_interest())
                {
                    seen.push(site);
                    matched += site.grown;
                    *came_to = CameTo::Used;
                    because.get_or_insert_with(told);
                }
            }
        }
        let explanation = run.explanation()?;
        let covered = explanation.coverage.iter().find(|coverage| {
            (coverage.layer, &coverage.phase) == (finding.layer, &finding.phase)
        })?;
        let rounds = explanation.rounds.saturating_sub(explanation.warmup);
        let rest = covered.grown - matched;
        because.filter(|_| !settings.matters(rest, rounds as usize))
    }
}

/// The findings of a scenario's runs, those that fail first.
pub(super) fn of(
    runs: &[(&PathBuf, Run)],
    policy: &Policy,
    known: &[Known],
    uses: &mut Uses<'_>,
) -> Vec<GateFinding> {
    let settings = policy.settings(Settings::default()).unwrap_or_default();
    let mut all: Vec<GateFinding> = Vec::new();
    for (_, run) in runs {
        for one in of_run(run, policy, known, &settings, uses) {
            let same = |other: &&mut GateFinding| {
                (other.class, &other.identity) == (one.class, &one.identity)
            };
            match all.iter_mut().find(same) {
                None => all.push(one),
                Some(other) => {
                    let runs = other.in_runs + 1;
                    let mut lines = std::mem::take(&mut other.lines);
                    // Of the one that fails, or that lost more, the rest is told.
                    if (one.fails, one.bytes, one.blocks) > (other.fails, other.bytes, other.blocks)
                    {
                        *other = one;
                    } else if lines.is_empty() {
                        lines = one.lines;
                    }
                    // Not each run was done again for them.
                    if other.lines.is_empty() {
                        other.lines = lines;
                    }
                    other.in_runs = runs;
                }
            }
        }
    }
    for finding in &mut all {
        finding.of_runs = u32::try_from(runs.len()).unwrap_or(u32::MAX);
    }
    all.sort_by_key(|finding| (!finding.fails, finding.class));
    all
}

fn of_run(
    run: &Run,
    policy: &Policy,
    known: &[Known],
    settings: &Settings,
    uses: &mut Uses<'_>,
) -> Vec<GateFinding> {
    let verdict = &run.verdict;
    let mut all = Vec::new();
    // A run that decides nothing has findings that prove nothing.
    if matches!(verdict.class, Class::Inconclusive | Class::Crash) {
        return all;
    }
    for finding in &verdict.findings {
        let one = Known::of(finding);
        let before = known.iter().find(|before| before.is(&one));
        let suppressed = match finding.class {
            Class::Leak | Class::HandleLeak => uses.suppress(run, finding, settings),
            _ => None,
        };
        let (status, because) = match (suppressed, before) {
            (Some(because), _) => (Status::Suppressed, Some(because)),
            _ if !policy.fails(finding.class) => (Status::Allowed, None),
            (None, Some(before)) if before.holds(&one) => (Status::Known, None),
            (None, Some(_)) => (Status::Worse, None),
            (None, None) => (Status::New, None),
        };
        all.push(GateFinding {
            class: finding.class,
            identity: one.identity,
            layer: Some(finding.layer),
            phase: Some(finding.phase.clone()).filter(|phase| !phase.is_empty()),
            site: finding.site.clone(),
            lines: lines::of(run, finding),
            bytes: one.bytes.highest(),
            blocks: one.blocks.highest(),
            sentence: finding.sentence.clone(),
            status,
            because,
            fails: matches!(status, Status::New | Status::Worse),
            in_runs: 1,
            of_runs: 1,
        });
    }
    let has = |all: &[GateFinding], class| all.iter().any(|finding| finding.class == class);
    let mut by_class = |class: Class, sentence: &str| {
        if !has(&all, class) && (policy.fails(class) || class.exit_code() == 3) {
            let status = match policy.fails(class) {
                true => Status::New,
                false => Status::Allowed,
            };
            all.push(GateFinding {
                class,
                identity: class.name().to_owned(),
                layer: None,
                phase: None,
                site: None,
                lines: Vec::new(),
                bytes: Value::ZERO,
                blocks: Value::ZERO,
                sentence: sentence.to_owned(),
                status,
                because: None,
                fails: status == Status::New,
                in_runs: 1,
                of_runs: 1,
            });
        }
    };
    // Classes that have no findings of their own, and those that only the policy fails.
    by_class(verdict.class, &verdict.sentence);
    for note in &verdict.notes {
        if let Some(class) = note.class {
            by_class(class, &note.sentence);
        }
    }
    all
}

/// Findings that a baseline accepted and that no run has any more, in words.
pub(super) fn gone(runs: &[(&PathBuf, Run)], known: &[Known]) -> Vec<String> {
    let found = |before: &&Known| {
        runs.iter().any(|(_, run)| {
            let findings = run.verdict.findings.iter();
            findings.map(Known::of).any(|one| one.is(before))
        })
    };
    let gone = known.iter().filter(|before| !found(before));
    gone.map(|before| format!("{} in {}", before.class, before.identity))
        .collect()
}
