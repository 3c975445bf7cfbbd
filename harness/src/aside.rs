//! What grows and does not fail a run: leaks that a suppression lets through, and what
//! runtimes keep for themselves.
//!
//! It is taken out of the books that are judged, never out of a verdict: what remains
//! is judged as if it had never been there. A leak by a rule's layer and phase alone
//! goes from the first run's books. One by its stack is looked for in the second run,
//! and the first run's finding goes only if the second run, judged without what was
//! set aside, shows nothing of it any more, and if nine tenths of it were found
//! again. Whatever cannot be had (the second run, a stack) sets nothing aside.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::books::{Amount, Aside, Books, Ending, Layer};
use crate::explain::{Site, belongs, growth, is_explainable};
use crate::run::Run;
use crate::suppressions::{Rule, Suppressions};
use crate::verdict::words::{amount, count};
use crate::verdict::{Class, Finding, Note, SEVERAL_PHASES, Settings, Verdict, judge};

/// What grew and does not fail the run, and what the suppressions came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SetAside {
    /// Each rule of the suppressions, in the file's order.
    pub suppressions: Vec<SuppressionUse>,
    /// What of the growth belongs to runtimes (driver, rayon, tokio, standard library).
    pub residue: Vec<Residue>,
    /// The findings that the run would have without suppressions and residue, and has not.
    pub findings: Vec<Finding>,
}

/// One rule, and what it came to in this run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SuppressionUse {
    /// The rule as written: `leak:PATTERN`.
    pub rule: String,
    /// The file that it stands in.
    pub file: String,
    /// The line there, from 1.
    pub line: u32,
    /// Why the leak is let through.
    pub reason: String,
    /// The last day on which it is, as YYYY-MM-DD (UTC).
    pub until: String,
    /// The layer that it is narrowed to.
    pub layer: Option<Layer>,
    /// The phase that it is narrowed to.
    pub phase: Option<String>,
    /// What it came to.
    pub came_to: CameTo,
    /// Growth over the measured rounds that it matched, of the run in which it did:
    /// the second one where stacks decided.
    pub matched: Amount,
}

/// What a suppression came to in one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CameTo {
    /// It matched something that leaks.
    Used,
    /// It matched nothing that leaks.
    Unused,
    /// There is a leak, and no stacks to match; it lets nothing through.
    Unchecked,
    /// Its last day has passed; it lets nothing through.
    Expired,
}

/// Growth that belongs to a runtime.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Residue {
    /// The runtime: `driver`, `std`, or the crate's name.
    pub runtime: String,
    /// The layer.
    pub layer: Layer,
    /// The phase in which it was born.
    pub phase: String,
    /// The site's identity.
    pub site: String,
    /// Growth over the measured rounds of the second run.
    pub grown: Amount,
    /// Whether all residue together is so little that it fails no run.
    pub is_let_through: bool,
}

impl SetAside {
    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.suppressions.is_empty() && self.residue.is_empty() && self.findings.is_empty()
    }

    /// The part of a report that tells of it.
    pub(crate) fn terminal(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for rule in &self.suppressions {
            let at = format!("{} ({}:{})", rule.rule, rule.file, rule.line);
            lines.push(match rule.came_to {
                CameTo::Used => format!(
                    "suppressed by {at} until {}: {}; {}",
                    rule.until,
                    amount(rule.matched),
                    rule.reason
                ),
                CameTo::Unused => {
                    format!("suppression {at} is unused: nothing that it matches leaked")
                }
                CameTo::Unchecked => {
                    format!("suppression {at} was not checked: there are no stacks to match")
                }
                CameTo::Expired => format!(
                    "suppression {at} has expired on {} and lets nothing through",
                    rule.until
                ),
            });
        }
        if let Some(first) = self.residue.first() {
            let mut text = String::from("residue of runtimes, not of the application");
            text.push_str(if first.is_let_through {
                ":"
            } else {
                ", too much to let through:"
            });
            for (at, residue) in self.residue.iter().enumerate() {
                let _ = write!(
                    text,
                    "{} {} by {} in {} memory of phase {}",
                    if at == 0 { "" } else { "," },
                    amount(residue.grown),
                    residue.runtime,
                    residue.layer,
                    residue.phase
                );
            }
            lines.push(text);
        }
        lines
    }
}

/// Sets aside what the rules suppress by layer and phase alone, and says of every rule
/// what it came to so far. Returns whether rules wait for stacks.
pub(crate) fn by_place(run: &mut Run, suppressions: &Suppressions, settings: &Settings) -> bool {
    let today = suppressions.today(run.ended_at);
    let leaks = failing_leaks(&run.verdict);
    let mut aside = Vec::new();
    let mut gone = vec![false; leaks.len()];
    let mut waits = false;
    for rule in suppressions.rules() {
        let mut matched = Amount::ZERO;
        let came_to = if rule.until < today {
            CameTo::Expired
        } else if !rule.is_by_place() {
            let may = |finding: &Finding| {
                is_explainable(finding) && (any_phase(finding) || covers(rule, finding))
            };
            if leaks.iter().any(may) {
                waits = true;
                CameTo::Unchecked
            } else {
                CameTo::Unused
            }
        } else {
            let mut used = false;
            for (finding, gone) in leaks.iter().zip(&mut gone) {
                // What several phases lost together may be this one's in part.
                let share = covers(rule, finding)
                    || (finding.phase == SEVERAL_PHASES
                        && rule.layer.is_none_or(|of| of == finding.layer));
                *gone |= share;
                used |= share;
                if share && !in_series(&run.books, finding.layer) {
                    aside.push(without_series(finding));
                    matched += finding.total;
                }
            }
            if used {
                let of = |layer, phase: &str| rule.covers(layer, phase);
                matched += take_rows(&run.books, of, &mut aside);
                CameTo::Used
            } else {
                CameTo::Unused
            }
        };
        let told = told(suppressions, rule, came_to, matched);
        run.set_aside.suppressions.push(told);
    }
    if !aside.is_empty() {
        run.books.aside = aside;
        run.verdict = judge(&run.books, settings);
        let (leaks, gone) = (leaks.into_iter(), gone.into_iter());
        let candidates = leaks
            .zip(gone)
            .filter_map(|(leak, gone)| gone.then_some(leak));
        tell_gone(run, candidates);
    }
    waits
}

/// A second run that took stacks.
pub(crate) struct Second<'a> {
    pub books: &'a Books,
    /// All its sites.
    pub sites: &'a [Site],
    pub settings: &'a Settings,
}

/// Sets aside what stacks show to be suppressed, or a runtime's residue. Returns for
/// each site of the second run whether it was set aside.
pub(crate) fn by_stack(
    run: &mut Run,
    second: &Second<'_>,
    suppressions: Option<&Suppressions>,
    settings: &Settings,
) -> Vec<bool> {
    let today = suppressions.map(|all| all.today(run.ended_at));
    let open: Vec<Finding> = failing_leaks(&run.verdict)
        .into_iter()
        .filter(is_explainable)
        .collect();
    let rules = suppressions.map_or(&[][..], Suppressions::rules);
    let mut matched = vec![None; rules.len()];
    let mut aside = vec![false; second.sites.len()];
    let grows = |site: &Site| site.grown.bytes > 0 || site.grown.blocks > 0;
    let leaks = |site: &Site| open.iter().any(|finding| belongs(site, finding));
    let mut residue = Vec::new();
    for (at, site) in second
        .sites
        .iter()
        .enumerate()
        .filter(|(_, site)| grows(site))
    {
        let rule = rules.iter().position(|rule| {
            leaks(site)
                && today.is_some_and(|today| rule.until >= today)
                && rule.covers(site.layer, &site.phase)
                && rule.matches(site.frames_of_interest())
        });
        if let Some(rule) = rule {
            *matched[rule].get_or_insert(Amount::ZERO) += site.grown;
            aside[at] = true;
        } else if let Some(runtime) = &site.runtime {
            residue.push((at, runtime));
        }
    }
    let rounds = measured(second.books);
    let all: Amount = residue.iter().map(|(at, _)| second.sites[*at].grown).sum();
    let is_let_through = !settings.is_more_than_residue(all, rounds);
    for (at, runtime) in residue {
        let site = &second.sites[at];
        aside[at] = is_let_through && leaks(site);
        run.set_aside.residue.push(Residue {
            runtime: runtime.clone(),
            layer: site.layer,
            phase: site.phase.clone(),
            site: site.site.clone(),
            grown: site.grown,
            is_let_through,
        });
    }
    for (told, (rule, matched)) in run
        .set_aside
        .suppressions
        .iter_mut()
        .zip(rules.iter().zip(matched))
    {
        if told.came_to == CameTo::Unchecked && !rule.is_by_place() {
            told.came_to = if matched.is_some() {
                CameTo::Used
            } else {
                CameTo::Unused
            };
            told.matched = matched.unwrap_or_default();
        }
    }
    if aside.contains(&true) {
        settle(run, second, &open, &aside, settings);
    }
    aside
}

/// Takes from the first run's books the findings of which the second run shows nothing
/// but what is set aside.
fn settle(
    run: &mut Run,
    second: &Second<'_>,
    open: &[Finding],
    aside: &[bool],
    settings: &Settings,
) {
    let sites = || {
        let sites = second.sites.iter().zip(aside);
        sites.filter_map(|(site, aside)| aside.then_some(site))
    };
    let mut books = second.books.clone();
    books.aside = sites().map(of_site).collect();
    let rest = judge(&books, second.settings);
    let can_tell = books.ending == Ending::Completed
        && rest.power.is_some()
        && rest.class != Class::Inconclusive;
    let rounds = measured(&books);
    let mut rows = Vec::new();
    let (mut gone, mut partly) = (Vec::new(), Vec::new());
    for finding in open {
        let ours = || sites().filter(|site| belongs(site, finding));
        let found: Amount = ours().map(|site| site.grown).sum();
        if ours().next().is_none() {
            continue;
        }
        let remains = rest
            .findings
            .iter()
            .find(|left| left.layer == finding.layer && overlap(left, finding));
        // As much per round as the first run lost, to within a tenth.
        let rate = |total: Amount, rounds: u32| settings.cost(total) * i128::from(rounds);
        let all = rate(found, finding.over_rounds) * 10 >= rate(finding.total, rounds) * 9;
        // What a runtime keeps comes by chance, here more and there less.
        let is_residue = ours().all(|site| site.runtime.is_some())
            && is_alike(found, finding.total)
            && !settings.is_more_than_residue(finding.total, finding.over_rounds);
        if can_tell && remains.is_none() && (all || is_residue) {
            let here = |layer, phase: &str| {
                layer == finding.layer && (any_phase(finding) || phase == finding.phase)
            };
            take_rows(&run.books, here, &mut rows);
            gone.push(finding.clone());
        } else {
            let why = match remains {
                Some(left) => format!("without it, {}", left.sentence),
                None if can_tell => "the first run lost more".to_owned(),
                None => format!("the rest could not be judged: {}", rest.sentence),
            };
            partly.push(Note {
                class: None,
                layer: Some(finding.layer),
                phase: Some(finding.phase.clone()),
                amount: found,
                sentence: format!(
                    "of what {} memory of phase {} lost, {} in {} of the second run are set aside; {why}",
                    finding.layer,
                    finding.phase,
                    amount(found),
                    count(i64::from(rounds), "round"),
                ),
            });
        }
    }
    if !rows.is_empty() {
        run.books.aside.extend(rows);
        run.verdict = judge(&run.books, settings);
        tell_gone(run, gone.into_iter());
    }
    run.verdict.notes.extend(partly);
}

/// Whether both are blocks of one size, on the average exactly.
fn is_alike(a: Amount, b: Amount) -> bool {
    let cross = |a: Amount, b: Amount| i128::from(a.bytes) * i128::from(b.blocks);
    a.blocks > 0 && b.blocks > 0 && cross(a, b) == cross(b, a)
}

/// The findings that fail a run as leaks of memory or handles.
fn failing_leaks(verdict: &Verdict) -> Vec<Finding> {
    let of = |class| matches!(class, Class::Leak | Class::HandleLeak);
    if !of(verdict.class) {
        return Vec::new();
    }
    let findings = verdict.findings.iter();
    findings
        .filter(|finding| of(finding.class))
        .cloned()
        .collect()
}

fn any_phase(finding: &Finding) -> bool {
    finding.phase.is_empty() || finding.phase == SEVERAL_PHASES
}

fn overlap(a: &Finding, b: &Finding) -> bool {
    any_phase(a) || any_phase(b) || a.phase == b.phase
}

fn covers(rule: &Rule, finding: &Finding) -> bool {
    rule.covers(finding.layer, &finding.phase)
}

fn measured(books: &Books) -> u32 {
    let rounds = u32::try_from(books.rounds.len()).unwrap_or(u32::MAX);
    rounds.saturating_sub(books.warmup).max(1)
}

/// Takes all of the series of some layers and phases, unless they are taken already.
/// Returns by how much they grew.
fn take_rows(books: &Books, of: impl Fn(Layer, &str) -> bool, aside: &mut Vec<Aside>) -> Amount {
    let mut grown = Amount::ZERO;
    for series in &books.series {
        let (layer, phase) = (series.layer, series.phase.as_str());
        let is_it = |of: &Aside| (of.layer, of.phase.as_str()) == (layer, phase);
        if !of(layer, phase) || aside.iter().chain(&books.aside).any(is_it) {
            continue;
        }
        let left = books.survivors.iter();
        let left = left.filter(|left| (left.layer, left.phase.as_str()) == (layer, phase));
        aside.push(Aside {
            layer,
            phase: phase.to_owned(),
            site: None,
            live: series.live.clone(),
            left: left.map(|left| (left.round, left.left)).collect(),
        });
        grown += growth(&series.live, books.warmup);
    }
    grown
}

fn in_series(books: &Books, layer: Layer) -> bool {
    books.series.iter().any(|series| series.layer == layer)
}

/// A finding from a gauge or from refused releases is in no series.
fn without_series(finding: &Finding) -> Aside {
    Aside {
        layer: finding.layer,
        phase: finding.phase.clone(),
        site: None,
        live: Vec::new(),
        left: Vec::new(),
    }
}

fn of_site(site: &Site) -> Aside {
    Aside {
        layer: site.layer,
        phase: site.phase.clone(),
        site: Some(site.site.clone()),
        live: site.live.clone(),
        left: site
            .left
            .iter()
            .map(|born| (born.round, born.amount))
            .collect(),
    }
}

/// Keeps the findings that the run has no more, and notes each.
fn tell_gone(run: &mut Run, candidates: impl Iterator<Item = Finding>) {
    for finding in candidates {
        let mut left = run.verdict.findings.iter();
        if left.any(|left| left.fingerprint == finding.fingerprint) {
            continue;
        }
        run.verdict.notes.push(Note {
            class: Some(finding.class),
            layer: Some(finding.layer),
            phase: Some(finding.phase.clone()),
            amount: finding.total,
            sentence: format!("set aside: {}", finding.sentence),
        });
        run.set_aside.findings.push(finding);
    }
}

fn told(all: &Suppressions, rule: &Rule, came_to: CameTo, matched: Amount) -> SuppressionUse {
    SuppressionUse {
        rule: rule.text.clone(),
        file: all.file().display().to_string(),
        line: rule.line,
        reason: rule.reason.clone(),
        until: rule.until.to_string(),
        layer: rule.layer,
        phase: rule.phase.clone(),
        came_to,
        matched,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::{BornIn, Frame, FrameKind};
    use crate::scenario::Scenario;
    use crate::verdict::simulated::Program;

    const ROUNDS: u32 = 10;

    /// Each round loses so many bytes in one block.
    fn books(each: i64) -> Books {
        let mut program = Program::new(2, ROUNDS);
        program.keeps(Layer::NativeHeap, "msm", |_| (each, 1));
        program.books()
    }

    fn run(books: Books) -> Run {
        let settings = Settings::default();
        let verdict = judge(&books, &settings);
        let plan = Scenario::new("planted").plan;
        Run::new(plan, None, books, verdict)
    }

    /// A site that loses a block of so many bytes in each round.
    fn site(function: &str, each: i64) -> Site {
        let frame = Frame {
            function: function.to_owned(),
            file: Some("/src/app.cpp".to_owned()),
            line: None,
            column: None,
            inlined: false,
            object: "app".to_owned(),
            kind: FrameKind::Yours,
            source: None,
        };
        let measured = i64::from(ROUNDS - 2);
        Site {
            layer: Layer::NativeHeap,
            phase: "msm".to_owned(),
            site: function.to_owned(),
            frames: vec![frame],
            cut: false,
            runtime: None,
            yours: Some(0),
            allocated: Amount::ZERO,
            live: (1..=i64::from(ROUNDS))
                .map(|round| Amount::new(each * round, round))
                .collect(),
            grown: Amount::new(each * measured, measured),
            per_round: Some(Amount::new(each, 1)),
            left: (1..=ROUNDS)
                .map(|round| BornIn {
                    round,
                    amount: Amount::new(each, 1),
                })
                .collect(),
        }
    }

    fn known() -> Suppressions {
        let text = "#: reason = known\n#: until = 2026-06-15\nleak:known\n";
        let read = Suppressions::parse(text, "known.supp").expect("a rule");
        read.as_of("2026-06-15".parse().expect("a day"))
    }

    /// The first run's books, then the second's with its sites.
    fn settled(first: Books, second: Books, sites: &[Site]) -> Run {
        let (settings, known) = (Settings::default(), known());
        let mut run = run(first);
        assert_eq!(run.verdict.class, Class::Leak);
        assert!(by_place(&mut run, &known, &settings));
        let second = Second {
            books: &second,
            sites,
            settings: &settings,
        };
        by_stack(&mut run, &second, Some(&known), &settings);
        run
    }

    #[test]
    fn a_leak_that_is_all_of_known_stacks_goes() {
        let run = settled(books(64), books(64), &[site("known", 64)]);
        assert_eq!(run.verdict.class, Class::Clean, "{}", run.verdict.sentence);
        assert_eq!(run.set_aside.findings.len(), 1);
        assert_eq!(run.set_aside.suppressions[0].came_to, CameTo::Used);
    }

    #[test]
    fn a_leak_stays_where_the_second_run_lost_less_or_cannot_tell() {
        let known = [site("known", 64)];
        let more = settled(books(640), books(64), &known);
        let mut died = books(64);
        died.ending = Ending::Signal { signal: 9 };
        let died = settled(books(64), died, &known);
        let mut lost = books(64);
        lost.health.lost = 1;
        let lost = settled(books(64), lost, &known);
        let other = settled(books(64), books(64), &[site("other", 64)]);
        let none = settled(books(64), books(64), &[]);
        // Of 64 bytes a round, the stacks know 40; the rest has none.
        let unknown = settled(books(64), books(64), &[site("known", 40)]);
        for run in [more, died, lost, other, none, unknown] {
            assert_eq!(run.verdict.class, Class::Leak, "{:?}", run.verdict.notes);
            assert_eq!(run.set_aside.findings, []);
        }
    }

    #[test]
    fn what_is_suppressed_still_explains_what_is_resident() {
        let mut program = Program::new(2, 40);
        program.keeps(Layer::NativeHeap, "msm", |_| (4 << 20, 1));
        program.gauges = (1..=40_u64)
            .map(|round| crate::books::Gauges {
                rss_anon: round * (4 << 20),
                threads: 3,
                fds: 5,
                ..Default::default()
            })
            .collect();
        let mut run = run(program.books());
        let text = "#: reason = known\n#: until = 2026-06-15\n#: phase = msm\nleak:*\n";
        let known = Suppressions::parse(text, "known.supp").expect("a rule");
        let known = known.as_of("2026-06-15".parse().expect("a day"));
        by_place(&mut run, &known, &Settings::default());
        assert!(run.verdict.class.passes(), "{}", run.verdict.sentence);
        assert_eq!(
            run.set_aside.suppressions[0].matched,
            Amount::new(38 * (4 << 20), 38)
        );
    }

    #[test]
    fn residue_is_let_through_up_to_its_floor_and_listed_beyond() {
        let of = |each: i64| {
            let mut site = site("known only to the driver", each);
            site.runtime = Some("driver".to_owned());
            site.frames.clear();
            let run = settled(books(each), books(each), &[site]);
            (run.verdict.class, run.set_aside.residue[0].is_let_through)
        };
        // A block counts 16 bytes more than it holds.
        assert_eq!(of(512 - 16), (Class::Clean, true));
        assert_eq!(of(512 - 15), (Class::Leak, false));
    }

    #[test]
    fn residue_that_comes_by_chance_is_let_through_where_it_is_of_the_same_blocks() {
        // The first run loses a block of 96 bytes in each round, the second less often.
        let of = |size: i64, second: i64, runtime: bool| {
            let mut site = site("known only to the driver", size);
            site.grown = Amount::new(second * size, second);
            site.runtime = runtime.then(|| "driver".to_owned());
            site.frames.clear();
            let mut program = Program::new(2, 26);
            program.keeps(Layer::NativeHeap, "msm", |round| match round % 8 {
                0 => (size, 1),
                _ => (0, 0),
            });
            settled(books(96), program.books(), &[site]).verdict.class
        };
        assert_eq!(of(96, 3, true), Class::Clean);
        assert_eq!(of(80, 3, true), Class::Leak, "other blocks");
        assert_eq!(of(96, 3, false), Class::Leak, "the application's");
        // What a rule names must come back whole: chance excuses runtimes alone.
        let mut known = site("known", 96);
        known.grown = Amount::new(3 * 96, 3);
        let run = settled(books(96), books(96), &[known]);
        assert_eq!(run.verdict.class, Class::Leak, "{:?}", run.set_aside);
    }
}
