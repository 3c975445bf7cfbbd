//! A report as one HTML file that needs nothing else: no network, no fonts, no other files.
//!
//! [`Page::read`] takes runs, comparisons and sweeps, [`Page::html`] writes them down. What
//! an input lacks (samples, call stacks, rounds) is said in its place. The page is whole
//! without its script, which only adds a walk along the plots by keyboard, a grid that arrow
//! keys move in, and a switch between light and dark.
//!
//! Everything that is shown comes from files that may be hostile. All text is escaped by type
//! (`maud`), invisible characters are written out, no data reaches the script but through
//! the tables that everybody sees, and a content security policy lets nothing run or load but
//! the page's own style and script, by their hashes. Lists are cut with the sum of what is
//! left out, and samples are thinned so that peaks are kept, so that a page of a huge run is
//! a few hundred kilobytes.

mod ab;
mod flame;
mod heat;
mod input;
mod memory;
mod moments;
mod peak;
mod plot;
mod run;
mod sweep;
mod table;
#[cfg(test)]
mod tests;
mod text;
mod verdict;

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use self::input::{Input, Kind};
use self::text::{Said, visible};
use self::verdict::{Outcome, badge};
use crate::error::Error;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// What is shown on one page, in the order in which it was given.
#[derive(Debug)]
pub struct Page {
    inputs: Vec<Input>,
}

/// What a page says of one input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Where it was read from.
    pub path: PathBuf,
    /// `run`, `comparison` or `sweep`.
    pub kind: &'static str,
    /// The run's scenario or program, the candidate, the parameter.
    pub name: String,
    /// A run's class, a comparison's decision, whether a sweep's line holds.
    pub answer: String,
    /// The answer's reason in a sentence.
    pub sentence: String,
    #[serde(skip)]
    outcome: Outcome,
}

impl Entry {
    /// It in a line, for a terminal.
    pub fn line(&self) -> String {
        let [name, answer, sentence] =
            [&self.name, &self.answer, &self.sentence].map(|text| visible(text));
        format!("{answer} · {name}: {sentence}")
    }
}

impl Page {
    /// Reads runs (folders, or their `run.json`) and what `ab --json` and `sweep --json` wrote.
    ///
    /// # Errors
    /// If one of them cannot be read, or is none of these.
    pub fn read(paths: &[PathBuf]) -> Result<Self, Error> {
        let inputs = paths
            .iter()
            .map(|path: &PathBuf| Input::read(Path::new(path)));
        Ok(Self {
            inputs: inputs.collect::<Result<_, _>>()?,
        })
    }

    /// What the page says of each input, in their order.
    pub fn entries(&self) -> Vec<Entry> {
        self.inputs.iter().map(Input::entry).collect()
    }

    /// The page.
    pub fn html(&self) -> String {
        let entries = self.entries();
        let title = match &entries[..] {
            [only] => format!("{}: {}", only.answer, visible(&only.name)),
            entries => format!("{} results", entries.len()),
        };
        // The browser runs and applies what has these hashes, and nothing else.
        let hash =
            |text: &str| format!("'sha256-{}'", BASE64_STANDARD.encode(Sha256::digest(text)));
        let policy = format!(
            "default-src 'none'; style-src {}; script-src {}; base-uri 'none'; form-action 'none'",
            hash(STYLE),
            hash(SCRIPT)
        );
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta http-equiv="Content-Security-Policy" content=(policy);
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    meta name="referrer" content="no-referrer";
                    title { (title) " · Tidegate" }
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    a.skip href="#main" { "To the report" }
                    header.top {
                        p.brand { b { "Tidegate" } " report" }
                        button type="button" id="theme" hidden { "Dark" }
                    }
                    main id="main" {
                        @if entries.len() == 1 { h1 { (Said(&entries[0].name)) } }
                        @else {
                            h1 { (title) }
                            (contents(&entries))
                        }
                        @for (number, (input, entry)) in self.inputs.iter().zip(&entries).enumerate() {
                            (article(number + 1, entries.len() > 1, input, entry))
                        }
                    }
                    footer.bottom { p { "Written by tidegate " (env!("CARGO_PKG_VERSION")) ". This file needs no network." } }
                    script { (PreEscaped(SCRIPT)) }
                }
            }
        };
        page.into_string()
    }
}

/// The table of contents: each answer at a glance.
fn contents(entries: &[Entry]) -> Markup {
    html! {
        nav aria-label="Contents" {
            (table::scrolling("Contents", html! {
                // Narrow pages lay the cells out as blocks, and the roles keep it a table.
                table.contents role="table" {
                    caption { span { "What each was found to be" } }
                    thead role="rowgroup" { tr role="row" {
                        @for name in ["result", "answer", "why"] { th scope="col" role="columnheader" { (name) } }
                    } }
                    tbody role="rowgroup" { @for (number, entry) in entries.iter().enumerate() { tr role="row" {
                        th scope="row" role="rowheader" {
                            a href=(format!("#r{}", number + 1)) { (Said(&entry.name)) }
                            span.where { (entry.kind) " · " (Said(&entry.path.display().to_string())) }
                        }
                        td role="cell" { (badge(entry.outcome, &entry.answer)) }
                        td.why role="cell" { (Said(&entry.sentence)) }
                    } } }
                }
            }))
        }
    }
}

fn article(number: usize, one_of_several: bool, input: &Input, entry: &Entry) -> Markup {
    let id = format!("r{number}");
    html! {
        article id=(id) {
            h2 class=[(!one_of_several).then_some("vh")] {
                @if one_of_several { (Said(&entry.name)) } @else { "The " (entry.kind) }
            }
            p.meta { code { (Said(&input.path.display().to_string())) } }
            @match &input.kind {
                Kind::Run(shown) => { (run::sections(&id, shown)) }
                Kind::Comparison(stored) => { (ab::sections(&id, stored)) }
                Kind::Sweep(swept) => { (sweep::sections(&id, swept)) }
            }
        }
    }
}

impl Input {
    fn entry(&self) -> Entry {
        let entry =
            |kind, name: &str, (outcome, answer): (Outcome, &str), sentence: String| Entry {
                path: self.path.clone(),
                kind,
                name: name.to_owned(),
                answer: answer.to_owned(),
                sentence,
                outcome,
            };
        match &self.kind {
            Kind::Run(shown) => {
                let verdict = shown.run.verdict();
                let answer = (Outcome::of(verdict.class), verdict.class.name());
                entry(
                    "run",
                    &shown.run.plan.name,
                    answer,
                    verdict.sentence.clone(),
                )
            }
            Kind::Comparison(stored) => {
                let command = &stored.candidate.command;
                let name = match command.is_empty() {
                    true => "candidate compared with baseline".to_owned(),
                    false => format!("{} compared with its baseline", command.join(" ")),
                };
                entry(
                    "comparison",
                    &name,
                    ab::outcome(stored.comparison.decision),
                    ab::sentence(stored),
                )
            }
            Kind::Sweep(swept) => {
                let name = format!("peak over {}", swept.plan.parameter);
                entry(
                    "sweep",
                    &name,
                    sweep::outcome(swept),
                    sweep::sentence(swept),
                )
            }
        }
    }
}
