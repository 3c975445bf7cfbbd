//! A gate's report on a terminal.

use std::fmt::Write as _;

use super::{AgainstBaseline, Answer, Report, Root, Scenario, Stands};
use crate::aside::CameTo;
use crate::diff::{plain, shortened};
use crate::report::{bullet, paragraph};
use crate::verdict::words::{list, many};

/// Changes against a baseline that are shown of a scenario, those that fail aside.
const DRIFTS: usize = 5;

/// Characters of a path that are shown.
const PATH: usize = 240;

/// The answer in a sentence.
pub(super) fn sentence(answer: Answer, scenarios: &[Scenario]) -> String {
    let of_answer = scenarios
        .iter()
        .filter(|scenario| scenario.answer == answer);
    let names: Vec<String> = of_answer
        .map(|scenario| format!("`{}`", plain(&scenario.name)))
        .collect();
    let judged = scenarios
        .iter()
        .filter(|scenario| scenario.missing.is_empty())
        .count();
    let judged = format!("{judged} of {} judged", many(scenarios.len(), "scenario"));
    match answer {
        Answer::Pass => format!("pass: {judged}"),
        _ if names.is_empty() => "inconclusive: there is nothing to judge".to_owned(),
        _ => format!("{}: {}; {judged}", answer.words(), list(&names)),
    }
}

/// The whole report, plain text of 80 columns.
pub(super) fn show(report: &Report, root: &Root) -> String {
    let mut out = String::new();
    paragraph(&mut out, "", &format!("gate: {}", report.sentence));
    for scenario in &report.scenarios {
        show_scenario(&mut out, scenario, root);
    }
    let told: Vec<String> = report
        .suppressions
        .iter()
        .filter_map(|rule| {
            let at = format!(
                "suppression {} ({}:{})",
                plain(&rule.rule),
                rule.file.display(),
                rule.line
            );
            match rule.came_to {
                CameTo::Used => None,
                CameTo::Unused => Some(format!("{at} is unused: nothing that it matches leaked")),
                CameTo::Unchecked => Some(format!(
                    "{at} was not checked: there are no stacks to match"
                )),
                CameTo::Expired => Some(format!(
                    "{at} has expired on {} and lets nothing through",
                    rule.until
                )),
            }
        })
        .collect();
    if !told.is_empty() {
        out.push('\n');
        told.iter().for_each(|line| bullet(&mut out, line));
    }
    out
}

fn show_scenario(out: &mut String, scenario: &Scenario, root: &Root) {
    let mut head = format!("{} · {}", scenario.answer.words(), plain(&scenario.name));
    if !scenario.runs.is_empty() {
        let _ = write!(head, " · {}", many(scenario.runs.len(), "run"));
    }
    if let Some(class) = scenario.class {
        let _ = write!(head, " · {class}");
    }
    if let Some(runner) = &scenario.runner {
        let _ = write!(head, " · on {}", plain(runner));
    }
    out.push('\n');
    paragraph(out, "", &head);
    let listed = |sentence: &str| {
        let mut findings = scenario.findings.iter();
        findings.any(|finding| finding.sentence == sentence)
    };
    if let Some(sentence) = scenario
        .sentence
        .as_ref()
        .filter(|sentence| !listed(sentence))
    {
        paragraph(out, "  ", &plain(sentence));
    }
    for finding in &scenario.findings {
        let mut text = format!("{} ({}", finding.class, finding.status.words());
        if finding.of_runs > 1 {
            let _ = write!(text, ", in {} of {} runs", finding.in_runs, finding.of_runs);
        }
        let _ = write!(text, "): {}", plain(&finding.sentence));
        if let Some(because) = &finding.because {
            let _ = write!(text, "; {}", plain(because));
        }
        bullet(out, &text);
        for line in &finding.lines {
            let place = plain(&shortened(&root.shown(line), PATH));
            // A path is not broken: people copy it.
            let _ = writeln!(out, "    at {place}");
        }
    }
    for budget in &scenario.budgets {
        let text = match budget.stands {
            Stands::Within => format!("budget kept: {}", budget.sentence),
            // What is unknown is told among what is missing.
            Stands::Unknown => continue,
            _ => format!("budget: {}", budget.sentence),
        };
        bullet(out, &text);
    }
    show_baseline(out, &scenario.baseline);
    for missing in &scenario.missing {
        bullet(out, &format!("missing: {}", plain(missing)));
    }
}

fn show_baseline(out: &mut String, baseline: &AgainstBaseline) {
    let AgainstBaseline::Compared {
        file,
        runs,
        metrics_judged,
        metrics_exist,
        drift,
        gone,
        notes,
        ..
    } = baseline
    else {
        return;
    };
    let failing = drift.iter().filter(|drift| drift.fails).count();
    let noted = drift.len() - failing;
    let mut text = format!(
        "against the baseline of {}: {metrics_judged} of {metrics_exist} metrics judged",
        many(*runs as usize, "run")
    );
    let _ = match drift.len() {
        0 => write!(text, ", none outside of its spread"),
        _ => write!(
            text,
            ", {failing} outside of their spread and not let through, {noted} noted"
        ),
    };
    let _ = write!(text, " ({})", file.display());
    bullet(out, &text);
    for drift in drift.iter().take(failing + DRIFTS) {
        let mark = if drift.fails {
            "not let through"
        } else {
            "noted"
        };
        bullet(out, &format!("{mark}: {}", drift.sentence));
    }
    if noted > DRIFTS {
        bullet(out, &format!("{} more noted", noted - DRIFTS));
    }
    for note in notes {
        bullet(out, &plain(note));
    }
    for gone in gone {
        bullet(
            out,
            &format!(
                "a known finding is gone, bless to forget it: {}",
                plain(gone)
            ),
        );
    }
}
