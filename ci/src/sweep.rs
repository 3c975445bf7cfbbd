//! `cargo tidegate sweep`: the peak over the values of a parameter.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use bytesize::ByteSize;
use clap::{Args, ValueEnum};
use tidegate::Machine;
use tidegate::compare::{Part, Peak, PeakOf, Sweep, SweepPlan, SweepRun};

use crate::Failure;
use crate::fresh::Fresh;
use crate::store::store_json;
use crate::workload::Options;

/// Runs a program with several values of a parameter, each in a fresh process, and draws a
/// line of its peak: which value still fits a budget, how sure that is, and which values
/// contradict the line.
///
/// The value stands for `{NAME}` in the program's arguments, or is given to it as the
/// environment variable that `--as-env` names. A run that is killed at `--limit` counts as
/// "at least so much", and no line is drawn through it.
///
/// Exits with 0 if the line holds, with 5 if it cannot be drawn, is contradicted, or a part is
/// missing, and with 6 if a run crashed.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The parameter and its values: NAME=1,2,4,8.
    #[arg(long, value_name = "NAME=V,V,…", required_unless_present = "table")]
    param: Option<Parameter>,
    /// The environment variable that has the value.
    #[arg(long, value_name = "VARIABLE", conflicts_with = "table")]
    as_env: Option<String>,
    /// Read published peaks from this file, and run nothing: `value,peak` lines under a
    /// line with the parameter's name, such as `12,373 to 400 GiB`.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["param", "command"])]
    table: Option<PathBuf>,
    /// Draw the line through these values only, and hold the others against it.
    #[arg(long, value_name = "V,V,…", value_delimiter = ',')]
    fit_on: Option<Vec<f64>>,
    /// Say which is the largest value whose peak fits so much memory, such as 755GiB.
    #[arg(long, value_name = "SIZE")]
    budget: Option<ByteSize>,
    /// Runs of each value.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeat: u32,
    /// Which peak is looked at.
    #[arg(long, value_name = "KIND", default_value = "resident")]
    peak: Kind,
    /// Make only this share of the runs, such as 2/3, and leave it to `merge` to judge all.
    #[arg(long, value_name = "K/N", requires = "json", conflicts_with = "table")]
    partition: Option<Partition>,
    /// Write the sweep here as JSON, whole or not at all.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keep the runs in folders in this one.
    #[arg(long, value_name = "FOLDER")]
    keep_in: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
    /// The program and its arguments, after `--`.
    #[arg(last = true, value_name = "CMD", required_unless_present = "table")]
    command: Vec<String>,
}

/// A parameter and its values, as they were written.
#[derive(Clone, Debug)]
struct Parameter {
    name: String,
    values: Vec<String>,
}

impl FromStr for Parameter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, values) = text
            .split_once('=')
            .filter(|(name, _)| !name.is_empty() && !name.contains(['{', '}']))
            .ok_or("write it as NAME=1,2,4,8")?;
        let values: Vec<String> = values
            .split(',')
            .map(|value| value.trim().to_owned())
            .collect();
        let mut numbers = Vec::new();
        for value in &values {
            let number = number(value).ok_or_else(|| format!("{value:?} is no number"))?;
            if numbers.contains(&number) {
                return Err(format!("{value} is there twice"));
            }
            numbers.push(number);
        }
        Ok(Self {
            name: name.to_owned(),
            values,
        })
    }
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

/// One share of the runs.
#[derive(Clone, Copy, Debug)]
struct Partition {
    number: u32,
    of: u32,
}

impl FromStr for Partition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('/').and_then(|(number, of)| {
            Some(Self {
                number: number.parse().ok()?,
                of: of.parse().ok()?,
            })
        });
        parsed
            .filter(|part| (1..=part.of).contains(&part.number) && part.of <= 1000)
            .ok_or_else(|| "write it as 1/3, 2/3 and 3/3".to_owned())
    }
}

/// Which peak is looked at.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// Resident memory, which a limit counts.
    Resident,
    /// Live memory of the ledger.
    Live,
    /// Live memory of the card.
    Card,
}

impl From<Kind> for PeakOf {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Resident => Self::Resident,
            Kind::Live => Self::Live,
            Kind::Card => Self::Card,
        }
    }
}

pub(crate) fn sweep(arguments: Arguments) -> Result<u8, Failure> {
    let (sweep, crashed) = match (&arguments.table, &arguments.param) {
        (Some(table), _) => (published(table, &arguments)?, false),
        (None, Some(parameter)) => measured(parameter, &arguments)?,
        (None, None) => return Err(Failure::of_usage("--param is missing")),
    };
    if let Some(path) = &arguments.json {
        store_json(path, &sweep)?;
    }
    let code = if crashed { 6 } else { 0 };
    if let Some(part) = arguments.partition {
        println!(
            "Part {} of {}: {} runs made. `cargo tidegate merge` judges all parts together.",
            part.number,
            part.of,
            sweep.runs.len()
        );
        return Ok(code);
    }
    print!("{sweep}");
    Ok(if crashed || sweep.is_conclusive() {
        code
    } else {
        5
    })
}

/// Makes this share of the runs, and says whether one crashed.
fn measured(parameter: &Parameter, arguments: &Arguments) -> Result<(Sweep, bool), Failure> {
    let placeholder = format!("{{{}}}", parameter.name);
    let is_in_arguments = arguments
        .command
        .iter()
        .any(|word| word.contains(&placeholder));
    if !is_in_arguments && arguments.as_env.is_none() {
        return Err(Failure::of_usage(format!(
            "nothing that is run depends on {}: write {placeholder} where its value belongs in the \
             program's arguments, or name an environment variable with --as-env",
            parameter.name
        )));
    }
    let plan = SweepPlan {
        parameter: parameter.name.clone(),
        values: parameter.values.clone(),
        repeat: arguments.repeat,
        command: arguments.command.clone(),
        environment: arguments.as_env.clone(),
        warmup: arguments.options.warmup(),
        limit_bytes: arguments.options.limit_bytes(),
        of: arguments.peak.into(),
        fit_on: arguments.fit_on.clone(),
        budget_bytes: arguments.budget.map(|budget| budget.as_u64()),
    };
    let Partition { number: part, of } = arguments
        .partition
        .unwrap_or(Partition { number: 1, of: 1 });
    let fresh = Fresh::new(&arguments.options, arguments.keep_in.clone());
    let mut crashed = false;
    let mut runs = Vec::new();
    for (value, run) in plan.share(part, of) {
        let text = &plan.values[value];
        let words = plan
            .command
            .iter()
            .map(|word| word.replace(&placeholder, text));
        let environment = plan
            .environment
            .as_deref()
            .map(|variable| (variable, text.as_str()));
        let name = format!("{}-{text}-{run}", as_file_name(&plan.parameter));
        let words = words.map(OsString::from).collect();
        let Some(ran) = fresh.run(&name, words, environment)? else {
            break;
        };
        crashed |= ran.problem.is_some();
        let whole = ran.problem.is_none();
        let peak = plan.of.of(&ran.measures).filter(|_| whole);
        let problem = ran.problem.or_else(|| {
            let missing = ran.measures.missing.first().filter(|_| peak.is_none());
            missing.cloned()
        });
        runs.push(SweepRun {
            value: number(text).unwrap_or_default(),
            run,
            peak,
            class: Some(ran.class),
            problem,
            measures: Some(ran.measures),
        });
    }
    drop(fresh);
    let parts = vec![Part {
        number: part,
        of,
        machine: Machine::this(),
    }];
    Ok((Sweep::of(plan, parts, runs), crashed))
}

fn as_file_name(name: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || c == '_' {
            c
        } else {
            '-'
        }
    };
    name.chars().map(plain).collect()
}

/// Reads a table of published peaks.
fn published(path: &Path, arguments: &Arguments) -> Result<Sweep, Failure> {
    let bad = |problem: String| Failure::of_usage(format!("{}{problem}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| bad(format!(": {error}")))?;
    let lines = text.lines().zip(1..).map(|(line, at)| (line.trim(), at));
    let mut lines =
        lines.filter(|(line, _): &(&str, u32)| !line.is_empty() && !line.starts_with('#'));
    let name = lines
        .next()
        .and_then(|(line, _)| line.split_once(','))
        .ok_or_else(|| bad(": the first line must be the parameter's name and `peak`".to_owned()))?
        .0
        .trim();
    let mut runs = Vec::new();
    let mut values = Vec::new();
    for (line, at) in lines {
        let row = line.split_once(',').and_then(|(value, peak)| {
            Some((
                value.trim(),
                number(value.trim())?,
                size_or_range(peak.trim())?,
            ))
        });
        let (text, value, peak) = row.ok_or_else(|| {
            bad(format!(
                ":{at}: {line:?} is no value and peak, such as `12,373 to 400 GiB`"
            ))
        })?;
        if !values.iter().any(|known| known == text) {
            values.push(text.to_owned());
        }
        runs.push(SweepRun {
            value,
            run: 1,
            peak: Some(peak),
            class: None,
            problem: None,
            measures: None,
        });
    }
    let plan = SweepPlan {
        parameter: name.to_owned(),
        values,
        repeat: 1,
        command: Vec::new(),
        environment: None,
        warmup: 0,
        limit_bytes: None,
        of: arguments.peak.into(),
        fit_on: arguments.fit_on.clone(),
        budget_bytes: arguments.budget.map(|budget| budget.as_u64()),
    };
    Ok(Sweep::of(plan, Vec::new(), runs))
}

/// `457 GiB`, `373 GiB to 400 GiB`, `373 to 400 GiB`, or `> 700 GiB` of a run that was killed.
fn size_or_range(text: &str) -> Option<Peak> {
    let size = |text: &str| {
        text.trim()
            .parse::<ByteSize>()
            .ok()
            .map(|size| size.as_u64())
    };
    if let Some(least) = text.strip_prefix('>') {
        return Some(Peak::AtLeast(size(least)?));
    }
    let Some((low, high)) = text.split_once(" to ") else {
        return Some(Peak::Exactly(size(text)?));
    };
    let unit = high
        .trim()
        .trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let low = match number(low.trim()) {
        Some(_) => size(&format!("{low} {unit}"))?,
        None => size(low)?,
    };
    let high = size(high)?;
    (low <= high).then_some(Peak::Between(low, high))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn published_peaks_are_sizes_or_ranges_of_them() {
        assert_eq!(size_or_range("457 GiB"), Some(Peak::Exactly(457 * GIB)));
        assert_eq!(
            size_or_range("373 to 400 GiB"),
            Some(Peak::Between(373 * GIB, 400 * GIB))
        );
        assert_eq!(
            size_or_range("512MiB to 1GiB"),
            Some(Peak::Between(GIB / 2, GIB))
        );
        assert_eq!(size_or_range("> 755GiB"), Some(Peak::AtLeast(755 * GIB)));
        for wrong in ["", "much", "400 to 373 GiB", "1 to", "to 5 GiB", "-3 GiB"] {
            assert_eq!(size_or_range(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_parameter_has_a_name_and_different_numbers() {
        let parameter: Parameter = "workers=1, 2,4.5".parse().unwrap();
        assert_eq!(
            (parameter.name.as_str(), parameter.values.len()),
            ("workers", 3)
        );
        for wrong in [
            "workers", "=1,2", "w=1,x", "w=", "w=1,1.0", "{w}=1", "w=inf",
        ] {
            assert!(wrong.parse::<Parameter>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_share_is_one_of_several() {
        let part: Partition = "2/3".parse().unwrap();
        assert_eq!((part.number, part.of), (2, 3));
        for wrong in ["0/3", "4/3", "2", "2/", "a/b", "1/0"] {
            assert!(wrong.parse::<Partition>().is_err(), "{wrong:?}");
        }
    }
}
