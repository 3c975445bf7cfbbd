//! `cargo tidegate ab`: a candidate compared with its baseline.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use tidegate::compare::{
    Comparison, Decision, Measures, Metric, Runs, StoredComparison, Terms, Version,
};

use crate::Failure;
use crate::fresh::{Fresh, measures, stored};
use crate::store::store_json;
use crate::workload::Options;

/// Compares a candidate with its baseline: runs both in pairs, in alternating order, each
/// in a fresh process, as many as the decision needs. Says what changed, and why the peak
/// moved.
///
/// Exits with 0 if the candidate is not worse beyond the tolerance, with 3 if it is, with
/// 5 if that cannot be decided, and with 6 if a run crashed.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The baseline: a program and its arguments, as a shell would split them.
    #[arg(long, value_name = "CMD", requires = "candidate", conflicts_with_all = ["baseline_run", "candidate_run"],
          required_unless_present = "baseline_run")]
    baseline: Option<String>,
    /// The candidate.
    #[arg(
        long,
        value_name = "CMD",
        requires = "baseline",
        required_unless_present = "candidate_run"
    )]
    candidate: Option<String>,
    /// Folders of stored runs of the baseline; nothing is run then.
    #[arg(long, value_name = "DIR", num_args = 1.., requires = "candidate_run")]
    baseline_run: Vec<PathBuf>,
    /// Folders of stored runs of the candidate.
    #[arg(long, value_name = "DIR", num_args = 1.., requires = "baseline_run")]
    candidate_run: Vec<PathBuf>,
    /// Pairs of runs at most. With less than 6 nothing can be decided.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=200))]
    pairs_at_most: u16,
    /// A difference of bytes up to this share of the baseline is none.
    #[arg(long, value_name = "PERCENT", default_value = "2%", value_parser = percent)]
    tolerance: f64,
    /// The same for what takes time: byte-seconds and throughput.
    #[arg(long, value_name = "PERCENT", default_value = "10%", value_parser = percent)]
    time_tolerance: f64,
    /// What decides; the rest is told: peak, live-peak, card-peak, floor, byte-seconds,
    /// throughput.
    #[arg(long, value_name = "METRIC", value_delimiter = ',', value_parser = metric)]
    judge: Vec<Metric>,
    /// Write the comparison here as JSON, whole or not at all.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keep the runs in folders in this one.
    #[arg(long, value_name = "FOLDER", conflicts_with = "baseline_run")]
    keep_in: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
}

pub(crate) fn ab(arguments: Arguments) -> Result<u8, Failure> {
    let terms = Terms {
        tolerance: arguments.tolerance,
        time_tolerance: arguments.time_tolerance,
        pairs_at_most: arguments.pairs_at_most.into(),
        judged: match arguments.judge.is_empty() {
            true => Metric::ALL.to_vec(),
            false => arguments.judge.clone(),
        },
        ..Terms::default()
    };
    let (versions, runs, comparison) = match (&arguments.baseline, &arguments.candidate) {
        (Some(baseline), Some(candidate)) => {
            let versions = [
                version("--baseline", baseline)?,
                version("--candidate", candidate)?,
            ];
            let fresh = Fresh::new(&arguments.options, arguments.keep_in.clone());
            in_pairs(versions, &fresh, &terms)?
        }
        _ => of_stored(&arguments, &terms)?,
    };
    print!("{comparison}");
    let [baseline, candidate] = &versions;
    let judged = format!(
        "Judged each by itself: baseline {}; candidate {}.",
        baseline.judged_as(),
        candidate.judged_as()
    );
    println!("\n{}", textwrap::fill(&judged, 80));
    let decision = comparison.decision;
    if let Some(path) = &arguments.json {
        store_json(path, &StoredComparison::new(versions, comparison, runs))?;
    }
    Ok(match decision {
        Decision::NotWorse => 0,
        Decision::Worse => 3,
        Decision::Undecided => 5,
    })
}

type Compared = ([Version; 2], Runs, Comparison);

/// Makes pairs of runs until they decide, there are as many as may be, or somebody wants
/// this to end.
fn in_pairs(
    mut versions: [Version; 2],
    fresh: &Fresh<'_>,
    terms: &Terms,
) -> Result<Compared, Failure> {
    let mut runs = Runs {
        paired: true,
        ..Runs::default()
    };
    let mut comparison = Comparison::judge(&runs, terms);
    let mut goes_on = true;
    while goes_on && comparison.decision == Decision::Undecided {
        let pairs = runs.baseline.len();
        let Some(next) = Comparison::next_look(pairs, terms) else {
            break;
        };
        for pair in pairs + 1..=next {
            let Some([baseline, candidate]) = make_pair(pair, &mut versions, fresh)? else {
                goes_on = false;
                break;
            };
            runs.baseline.push(baseline);
            runs.candidate.push(candidate);
        }
        comparison = Comparison::judge(&runs, terms);
    }
    Ok((versions, runs, comparison))
}

/// Runs both versions. What the machine does meanwhile, and what the first run leaves in
/// its caches, shall not always meet the same one.
fn make_pair(
    pair: usize,
    versions: &mut [Version; 2],
    fresh: &Fresh<'_>,
) -> Result<Option<[Measures; 2]>, Failure> {
    const NAMES: [&str; 2] = ["baseline", "candidate"];
    let mut made = [None, None];
    for side in if pair % 2 == 1 { [0, 1] } else { [1, 0] } {
        let name = format!("{}-{pair}", NAMES[side]);
        let command = versions[side].command.iter().map(OsString::from).collect();
        let Some(ran) = fresh.run(&name, command, None)? else {
            return Ok(None);
        };
        if let Some(problem) = ran.problem {
            return Err(Failure {
                code: ran.class.exit_code(),
                message: format!("the {} broke off in run {pair}: {problem}", NAMES[side]),
            });
        }
        made[side] = Some(ran);
    }
    let [Some(baseline), Some(candidate)] = made else {
        return Ok(None);
    };
    *versions[0].classes.entry(baseline.class).or_default() += 1;
    *versions[1].classes.entry(candidate.class).or_default() += 1;
    Ok(Some([baseline.measures, candidate.measures]))
}

fn of_stored(arguments: &Arguments, terms: &Terms) -> Result<Compared, Failure> {
    let read = |folders: &[PathBuf]| -> Result<(Version, Vec<Measures>), Failure> {
        let mut version = Version {
            stored: folders.to_vec(),
            ..Version::default()
        };
        let mut made = Vec::new();
        for folder in folders {
            let run = stored(folder)?;
            *version.classes.entry(run.verdict().class).or_default() += 1;
            made.push(measures(&run));
        }
        Ok((version, made))
    };
    let (baseline, candidate) = (
        read(&arguments.baseline_run)?,
        read(&arguments.candidate_run)?,
    );
    let runs = Runs {
        baseline: baseline.1,
        candidate: candidate.1,
        paired: false,
    };
    let comparison = Comparison::judge(&runs, terms);
    Ok(([baseline.0, candidate.0], runs, comparison))
}

/// The version that `words` is the command of.
fn version(option: &str, words: &str) -> Result<Version, Failure> {
    let command = shlex::split(words).filter(|words| !words.is_empty());
    Ok(Version {
        command: command.ok_or_else(|| {
            Failure::of_usage(format!(
                "{option} is {words:?}, and that is no command: it is empty, or a quote is open"
            ))
        })?,
        ..Version::default()
    })
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text
        .strip_suffix('%')
        .map(|number| number.trim().parse::<f64>());
    match number {
        Some(Ok(number)) if number.is_finite() && number >= 0.0 => Ok(number / 100.0),
        _ => Err("write it as a percentage, such as 2%".to_owned()),
    }
}

fn metric(text: &str) -> Result<Metric, String> {
    let found = Metric::ALL.into_iter().find(|metric| metric.name() == text);
    found.ok_or_else(|| {
        let names: Vec<&str> = Metric::ALL.iter().map(|metric| metric.name()).collect();
        format!("there is no such metric; there are {}", names.join(", "))
    })
}
