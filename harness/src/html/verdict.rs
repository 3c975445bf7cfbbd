//! The verdict in a sentence, what it comes down to at one glance, and its evidence.

use maud::{Markup, html};

use super::table::lacking;
use super::text::{Said, visible};
use crate::explain::{Site, belongs};
use crate::run::Run;
use crate::verdict::words::{count, rounds, size_u64};
use crate::verdict::{Class, Confirmation, Finding, amount_of};

/// Findings that are told one by one.
const FINDINGS: usize = 20;

/// What an answer means to a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Good,
    Bad,
    Unclear,
}

impl Outcome {
    pub fn of(class: Class) -> Self {
        match class {
            Class::Crash | Class::Inconclusive => Self::Unclear,
            class if class.passes() => Self::Good,
            _ => Self::Bad,
        }
    }

    pub const fn class(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Bad => "bad",
            Self::Unclear => "unclear",
        }
    }

    const fn sign(self) -> &'static str {
        match self {
            Self::Good => "✓",
            Self::Bad => "✕",
            Self::Unclear => "?",
        }
    }
}

/// An answer as a word with its sign.
pub(super) fn badge(outcome: Outcome, word: &str) -> Markup {
    html! {
        span class=(format!("badge {}", outcome.class())) {
            span aria-hidden="true" { (outcome.sign()) } " " (Said(word))
        }
    }
}

/// The verdict of a run.
pub(super) fn banner(run: &Run) -> Markup {
    let verdict = run.verdict();
    let outcome = Outcome::of(verdict.class);
    let gate = match outcome {
        Outcome::Good => "a gate lets this through",
        Outcome::Bad => "a gate stops this",
        Outcome::Unclear => "neither passes nor fails: it is not known",
    };
    html! {
        div class=(format!("verdict {}", outcome.class())) {
            p.class { (badge(outcome, verdict.class.name())) " " span.gate { (gate) } }
            p.sentence { (Said(&verdict.sentence)) }
        }
        (glance(run))
    }
}

/// What was kept, by whom, since when, from which line.
fn glance(run: &Run) -> Markup {
    let verdict = run.verdict();
    let Some(finding) = verdict.findings.first() else {
        return html! {
            dl.glance {
                div { dt { "What it means" } dd { (verdict.class.meaning()) } }
                @if let Some(power) = &verdict.power { @if verdict.class.passes() {
                    div { dt { "Would have been seen" } dd {
                        (count(i64::try_from(power.blocks_per_round).unwrap_or(i64::MAX), "block"))
                        " or " (size_u64(power.bytes_per_round)) " lost per round"
                    } }
                } }
            }
        };
    };
    let sites = || {
        run.explanation()
            .map_or(&[][..], |explanation| &explanation.sites)
    };
    let site = sites().iter().find(|site| belongs(site, finding));
    html! {
        dl.glance {
            div { dt { "What grew" } dd {
                @if let Some(each) = finding.per_driver { (amount_of(finding.layer, each)) " " (finding.driver.words()) "; " }
                (amount_of(finding.layer, finding.total)) " in " (count(i64::from(finding.over_rounds), "round"))
            } }
            div { dt { "Where" } dd { (finding.layer.name()) @if !finding.phase.is_empty() { ", phase " b { (Said(&finding.phase)) } } } }
            div { dt { "Since" } dd {
                @match finding.since_round {
                    Some(round) => { "round " (round) @if finding.born_in.len() > 1 { " (rounds " (rounds(&finding.born_in)) ")" } }
                    None => { "no one round" }
                }
            } }
            div { dt { "From which line" } dd { (from(run, finding, site)) } }
        }
    }
}

fn from(run: &Run, finding: &Finding, site: Option<&Site>) -> Markup {
    let Some(site) = site else {
        return match (&finding.site, run.explanation()) {
            (Some(site), _) => html! { code { (Said(site)) } },
            (None, Some(_)) => html! { "not known: the second run found no call site of it" },
            (None, None) => html! { "not known: this run has no call stacks" },
        };
    };
    let frame = site.line().or_else(|| site.frames_of_interest().first());
    html! {
        @match frame {
            Some(frame) => {
                code { (Said(&frame.place().unwrap_or_else(|| format!("in {}", frame.object)))) }
                span.where { (Said(&frame.function)) }
                @if let Some(source) = &frame.source { code.source { (Said(source.trim())) } }
            }
            None => { code { (Said(&site.site)) } }
        }
    }
}

/// What the verdict rests on.
pub(super) fn evidence(run: &Run) -> Markup {
    let verdict = run.verdict();
    let others = verdict.findings.len().saturating_sub(FINDINGS);
    html! {
        @if verdict.findings.is_empty() && verdict.notes.is_empty() && verdict.missing.is_empty() {
            (lacking("There is no finding and no note."))
        }
        @if !verdict.findings.is_empty() {
            ol.findings { @for finding in verdict.findings.iter().take(FINDINGS) { li { (one(finding, finding.sentence == verdict.sentence)) } } }
            @if others > 0 { p { "And " (count(others as i64, "more finding")) ", which the run's file has." } }
        }
        ul.notes {
            @for missing in &verdict.missing { li { b { "missing: " } (Said(missing)) } }
            @for note in &verdict.notes { li { b { "note: " } (Said(&note.sentence)) } }
            @for line in run.set_aside.terminal() { li { b { "set aside: " } (Said(&line)) } }
            @for tried in &verdict.tried { li { b { "tried: " } (Said(&tried.what)) ": " (Said(&tried.showed)) } }
        }
        p.small { (Said(&crate::report::footer(run))) }
    }
}

/// `is_said` where the banner has said what it is.
fn one(finding: &Finding, is_said: bool) -> Markup {
    html! {
        @if !is_said {
            p { (badge(Outcome::of(finding.class), finding.class.name())) " " (Said(&finding.sentence)) }
        }
        @if let Some(cause) = &finding.cause { p { b { "Cause: " } (Said(cause)) } }
        @if !finding.confirmed.is_empty() {
            p { b { "Borne out by: " } (finding.confirmed.iter().map(|by| words(*by)).collect::<Vec<_>>().join("; ")) "." }
        }
        @if !finding.also_fits.is_empty() {
            p { b { "Fits as well: " } (finding.also_fits.iter().map(|driver| driver.words()).collect::<Vec<_>>().join(", ")) "." }
        }
        p.small { "Fingerprint, the same in every build: " code { (visible(&finding.fingerprint)) } }
    }
}

const fn words(confirmation: Confirmation) -> &'static str {
    match confirmation {
        Confirmation::LiveRises => "live memory rises for good after rounds have settled",
        Confirmation::SurvivorsOfEachRound => "blocks of each of these rounds are alive at the end",
        Confirmation::ConstantStep => "the same exact step each time",
        Confirmation::OutlastsSettling => "it is there after the last long wait",
        Confirmation::IdleAddsNothing => "idle time without work adds nothing",
        Confirmation::IdleAdds => "idle time without work adds to it",
        Confirmation::ReplayAdds => "the same inputs again add to it",
        Confirmation::RefusedRelease => "a release was attempted and refused",
        Confirmation::OutlastsTrim => "a trim could not return it",
        Confirmation::TrimReturnsIt => "a trim returned it",
        Confirmation::MappingsGrow => "mappings that no ledger books grow with it",
        Confirmation::FollowsWaitingItems => "it goes up and down with the items that wait",
        Confirmation::GoneAfterDraining => "it was gone when the queue was empty",
    }
}
