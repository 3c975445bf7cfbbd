//! `cargo tidegate bless`: takes runs for what is right from now on.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use tidegate::baseline::{Baseline, Found, Store};
use tidegate::profile::{Basis, Leeway, Profile, Rounds, Tolerance};
use tidegate::{Class, Fingerprint, Run, is_ci};

use crate::Failure;
use crate::project::{Project, read_runs};
use crate::store::store_json;

/// Runs that a baseline is made of at least. With fewer, nobody knows what varies.
const FEWEST: usize = 3;

/// Makes runs the baseline of their scenarios on this kind of machine, with the reason in
/// it; commit what it writes.
///
/// Give at least 3 runs of a scenario, better 5 to 10: what their metrics vary by is what
/// the gate will let through. In CI (`CI` is set) nothing is written.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Runs: their folders, or run.json.
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Why they are right; it is written into the baseline.
    #[arg(long, value_name = "WHY")]
    reason: String,
    /// Accept what they leak, too: the gate takes it for known until it grows.
    #[arg(long)]
    with_findings: bool,
    #[command(flatten)]
    project: Project,
    /// Write what was written here as JSON, whole or not at all.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A baseline that was written, as JSON.
#[derive(Serialize)]
struct Blessed<'a> {
    file: PathBuf,
    scenario: &'a str,
    machine: &'a Fingerprint,
    reason: &'a str,
    runs: u32,
    rounds: Rounds,
    /// What was accepted: classes and identities.
    known: Vec<(Class, &'a str)>,
}

/// Writes the baselines and says what is in them.
pub(crate) fn bless(arguments: &Arguments) -> Result<u8, Failure> {
    if arguments.reason.trim().is_empty() {
        return Err(Failure::of_usage(
            "the reason is empty; say why these runs are right",
        ));
    }
    let runs = read_runs(&arguments.runs)?;
    let store = arguments.project.store()?;
    let mut groups = BTreeMap::<(&str, Fingerprint), Vec<(&PathBuf, &Run)>>::new();
    for (path, run) in &runs {
        let key = (run.plan.name.as_str(), run.machine.fingerprint());
        groups.entry(key).or_default().push((path, run));
    }
    // All or none: half a blessing is hard to see.
    let mut baselines = Vec::new();
    for ((name, _), runs) in groups {
        baselines.push(baseline(name, &runs, arguments)?);
    }
    if is_ci() {
        return Err(Failure::of_usage(
            "this is CI (CI is set), where nothing is blessed: run this where the change is made, and \
             commit what it writes",
        ));
    }
    let mut written = Vec::with_capacity(baselines.len());
    for baseline in &baselines {
        let before = change(&store, baseline);
        let file = store
            .write(baseline)
            .map_err(|error| Failure::of_ours(error.chain()))?;
        print!("{}", told(baseline, &file));
        print!("{before}");
        let known = baseline.known.iter();
        written.push(Blessed {
            file,
            scenario: &baseline.profile.scenario,
            machine: &baseline.machine,
            reason: &baseline.reason,
            runs: baseline.profile.runs,
            rounds: baseline.profile.rounds,
            known: known
                .map(|known| (known.class, known.identity.as_str()))
                .collect(),
        });
    }
    if let Some(path) = &arguments.json {
        store_json(path, &written)?;
    }
    Ok(0)
}

fn baseline(
    name: &str,
    runs: &[(&PathBuf, &Run)],
    arguments: &Arguments,
) -> Result<Baseline, Failure> {
    if runs.len() < FEWEST {
        return Err(Failure::of_usage(format!(
            "{} of `{name}`, and a baseline is of at least {FEWEST} on one kind of machine: what varies \
             by itself is seen in repeated runs only",
            counted(runs.len(), "run")
        )));
    }
    for (path, run) in runs {
        let verdict = run.verdict();
        let class = verdict.class;
        let accepted =
            arguments.with_findings && class.exit_code() == 3 && !verdict.findings.is_empty();
        if !class.passes() && !accepted {
            let advice = match class.exit_code() {
                3 if !verdict.findings.is_empty() => {
                    "mend it, suppress it with a reason and a last day, or accept it with --with-findings"
                }
                _ => "such a run is no measure for others",
            };
            return Err(Failure::of_usage(format!(
                "{} is `{class}`: {}; {advice}",
                path.display(),
                verdict.sentence
            )));
        }
    }
    let all: Vec<&Run> = runs.iter().map(|(_, run)| *run).collect();
    Baseline::of(&all, &arguments.reason).map_err(Failure::of_usage)
}

/// What a baseline holds, in words.
fn told(baseline: &Baseline, file: &std::path::Path) -> String {
    let Profile {
        scenario,
        runs,
        rounds,
        rows,
        ..
    } = &baseline.profile;
    let (mut exact, mut varied) = (0, 0);
    for (metric, spread) in rows.values().flatten() {
        match Tolerance::of(*metric, spread).basis {
            Basis::NeverVaried => exact += 1,
            _ => varied += 1,
        }
    }
    let all = counted(*runs as usize, "run");
    let mut text = format!(
        "{}: `{scenario}`, {all} of {}\n",
        file.display(),
        format_args!("{rounds} measured rounds"),
    );
    let _ = writeln!(
        text,
        "  {} never varied and may not from now on, {varied} may as far as they did",
        counted(exact, "metric"),
    );
    for known in &baseline.known {
        let amount = format!(
            "{} bytes in {} blocks",
            known.bytes.highest(),
            known.blocks.highest()
        );
        let _ = writeln!(
            text,
            "  known from now on: {} in {},\n    {amount} per round",
            known.class, known.identity
        );
    }
    text
}

/// What changes against the baseline that is there, in words.
fn change(store: &Store, baseline: &Baseline) -> String {
    match store.find(&baseline.profile.scenario, &baseline.machine) {
        Found::Same(_, before) => {
            let changed = baseline
                .profile
                .difference_from(&before.profile, Leeway::none());
            match changed {
                Some(changed) => format!("{changed}\n"),
                None => "  nothing in it is outside of what the last one expected\n".to_owned(),
            }
        }
        _ => String::new(),
    }
}

fn counted(number: usize, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ => format!("{number} {noun}s"),
    }
}
