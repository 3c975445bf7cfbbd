//! A gate's report as Markdown, for a job's summary or a comment.
//!
//! What a run says is shown as code, where no mention, link, image or HTML means anything:
//! GitHub looks for mentions and numbers of issues in whatever else there is, escaped or not.

use std::fmt::Write as _;

use super::{AgainstBaseline, Answer, GateFinding, Report, Root, Scenario, Stands};
use crate::diff::markdown::code;
use crate::diff::shortened;
use crate::verdict::words::{grouped, many, size};

/// Rows of one table; GitHub takes a megabyte of a step.
const ROWS: usize = 40;
/// Scenarios whose plot is shown.
const PLOTS: usize = 10;
/// Characters of one text.
const LONGEST: usize = 600;

/// The report; `docs` is where the book is, as a URL.
pub(super) fn show(report: &Report, root: &Root, docs: Option<&str>) -> String {
    let mut out = format!(
        "### {} Memory: {}\n\n{}\n",
        mark(report.answer),
        report.answer.words(),
        told(&report.sentence),
    );
    scenarios(&mut out, report, docs);
    findings(&mut out, report, root);
    let mut lines: Vec<String> = Vec::new();
    for scenario in &report.scenarios {
        let of = |line: &str| format!("{}: {}", code(&scenario.name), told(line));
        for budget in &scenario.budgets {
            match budget.stands {
                Stands::Over => lines.push(of(&format!("over budget: {}", budget.sentence))),
                Stands::WithinSpread => lines.push(of(&budget.sentence)),
                Stands::Within | Stands::Unknown => {}
            }
        }
        if let AgainstBaseline::Compared { drift, gone, .. } = &scenario.baseline {
            for drift in drift.iter().filter(|drift| drift.fails) {
                lines.push(of(&format!("above the baseline: {}", drift.sentence)));
            }
            for gone in gone {
                lines.push(of(&format!(
                    "a known finding is gone, bless to forget it: {gone}"
                )));
            }
        }
        for missing in &scenario.missing {
            lines.push(of(&format!("not judged to the end: {missing}")));
        }
    }
    list(&mut out, &lines);
    plots(&mut out, report);
    out
}

fn mark(answer: Answer) -> &'static str {
    match answer {
        Answer::Pass => "✅",
        Answer::Inconclusive => "❔",
        Answer::Crash | Answer::FailedByPolicy | Answer::FailedByVerdict => "❌",
    }
}

fn scenarios(out: &mut String, report: &Report, docs: Option<&str>) {
    if report.scenarios.is_empty() {
        return;
    }
    out.push_str("\n| scenario | gate | verdict | runs | what was found |\n");
    out.push_str("|---|---|---|--:|---|\n");
    for scenario in report.scenarios.iter().take(ROWS) {
        let class = match (scenario.class, docs) {
            (Some(class), Some(docs)) => {
                let docs = docs.trim_end_matches('/');
                format!("[{class}]({docs}/verdicts/{class}.md)")
            }
            (Some(class), None) => class.to_string(),
            (None, _) => "not run".to_owned(),
        };
        let _ = writeln!(
            out,
            "| {} | {} | {class} | {} | {} |",
            code(&shortened(&scenario.name, 80)),
            scenario.answer.words(),
            scenario.runs.len(),
            told(scenario.sentence.as_deref().unwrap_or_default()),
        );
    }
    rest(out, report.scenarios.len());
}

fn findings(out: &mut String, report: &Report, root: &Root) {
    let all: Vec<(&Scenario, &GateFinding)> = report
        .scenarios
        .iter()
        .flat_map(|scenario| {
            let findings = scenario.findings.iter();
            findings.map(move |finding| (scenario, finding))
        })
        .collect();
    if all.is_empty() {
        return;
    }
    out.push_str("\n| scenario | finding | standing | bytes per round | in | line |\n");
    out.push_str("|---|---|---|--:|---|---|\n");
    for (scenario, finding) in all.iter().take(ROWS) {
        let lines = finding.lines.iter().map(|line| {
            let place = code(&shortened(&root.shown(line), 120));
            format!("{place} {}", code(&shortened(&line.function, 80)))
        });
        let lines: Vec<String> = lines.collect();
        let place = [
            finding.phase.as_deref(),
            finding.layer.map(|layer| layer.name()),
        ];
        let place: Vec<String> = place.into_iter().flatten().map(code).collect();
        let mut standing = finding.status.words().to_owned();
        if let Some(because) = &finding.because {
            let _ = write!(standing, ": {}", told(because));
        }
        let _ = writeln!(
            out,
            "| {} | {} | {standing} | {} | {} | {} |",
            code(&shortened(&scenario.name, 80)),
            finding.class,
            bytes(finding),
            place.join(" "),
            match lines.is_empty() {
                true => "not known".to_owned(),
                false => lines.join("<br>"),
            },
        );
    }
    rest(out, all.len());
}

/// Bytes per round of a finding; of what has none, nothing.
fn bytes(finding: &GateFinding) -> String {
    let bytes = finding.bytes.as_f64();
    match bytes > 0.0 {
        true => grouped(bytes.round() as i64),
        false => String::new(),
    }
}

fn plots(out: &mut String, report: &Report) {
    let with_plot = report.scenarios.iter().filter(|scenario| {
        let mut live = scenario.live.iter();
        live.any(|live| live.after_rounds.len() > 1)
    });
    for scenario in with_plot.take(PLOTS) {
        let longest = scenario.live.iter().map(|live| live.after_rounds.len());
        let rounds = longest.max().unwrap_or_default();
        let _ = writeln!(
            out,
            "\nAlive after each of {} of {}, {} of them to warm up; each line from its lowest to \
             its highest:\n\n```text",
            many(rounds, "round"),
            code(&shortened(&scenario.name, 80)),
            scenario.warmup,
        );
        for live in &scenario.live {
            let amount = |value: Option<&i64>| {
                let value = value.copied().unwrap_or_default();
                match live.layer.is_counted() {
                    true => grouped(value),
                    false => size(value),
                }
            };
            let _ = writeln!(
                out,
                "{:<13} {}  {}",
                live.layer.name(),
                live.plot(),
                match (
                    live.after_rounds.iter().min(),
                    live.after_rounds.iter().max()
                ) {
                    (lowest, highest) if lowest == highest => amount(lowest),
                    (lowest, highest) => format!("{} to {}", amount(lowest), amount(highest)),
                },
            );
        }
        out.push_str("```\n");
    }
}

fn list(out: &mut String, lines: &[String]) {
    if !lines.is_empty() {
        out.push('\n');
    }
    for line in lines.iter().take(ROWS) {
        let _ = writeln!(out, "- {line}");
    }
    rest(out, lines.len());
}

fn rest(out: &mut String, all: usize) {
    if let Some(more) = all.checked_sub(ROWS).filter(|more| *more > 0) {
        let _ = writeln!(out, "\n{more} more are in the report.");
    }
}

fn told(sentence: &str) -> String {
    match sentence.is_empty() {
        true => String::new(),
        false => code(&shortened(sentence, LONGEST)),
    }
}
