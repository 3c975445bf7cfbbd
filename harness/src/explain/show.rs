//! The part of a report that says which lines of code leak.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::frames::{Frame, FrameKind, of_interest};
use super::{Explanation, Site};
use crate::run::Run;
use crate::verdict::words;

/// Sites that are shown.
const SHOWN: usize = 5;
/// Frames of a site that are shown.
const FRAMES: usize = 12;

/// The explanation of a run for a terminal; nothing if there is none.
pub(crate) fn terminal(run: &Run) -> String {
    let mut out = String::new();
    let Some(explanation) = &run.explanation else {
        return out;
    };
    let here = workspace();
    let _ = writeln!(
        out,
        "\n  Run again with stacks: {} in {:.1} s, {} taken.",
        words::count(i64::from(explanation.rounds), "round"),
        explanation.seconds,
        words::count(
            i64::try_from(explanation.captures).unwrap_or(i64::MAX),
            "stack"
        ),
    );
    for site in explanation.sites.iter().take(SHOWN) {
        show_site(&mut out, site, explanation, here.as_deref());
    }
    let more = explanation.sites_exist as usize;
    if more > SHOWN.min(explanation.sites.len()) {
        let _ = writeln!(
            out,
            "\n  {} more in {}",
            words::many(more - SHOWN.min(explanation.sites.len()), "site"),
            run.folder().join("explain").display()
        );
    }
    for covered in &explanation.coverage {
        if covered.explained != covered.grown {
            let _ = writeln!(
                out,
                "  - the sites hold {} of {} that grew in {} memory of phase {}",
                words::amount(covered.explained),
                words::amount(covered.grown),
                covered.layer,
                covered.phase
            );
        }
    }
    for missing in &explanation.missing {
        let _ = writeln!(out, "  - missing: {missing}");
    }
    out
}

fn show_site(out: &mut String, site: &Site, explanation: &Explanation, here: Option<&Path>) {
    let rounds = explanation.rounds.saturating_sub(explanation.warmup).max(1);
    let amount = match site.per_round {
        Some(each) => format!("{} per round", words::amount(each)),
        None => format!(
            "{} over {}",
            words::amount(site.grown),
            words::count(i64::from(rounds), "round")
        ),
    };
    let _ = writeln!(out, "\n  {} of phase {}: {amount}", site.layer, site.phase);
    if let Some(line) = site.line() {
        let _ = writeln!(out, "  at {}", shown_place(line, here).unwrap_or_default());
        if let Some(source) = &line.source {
            let _ = writeln!(out, "     | {source}");
        }
    }
    let frames = of_interest(&site.frames);
    let inner = frames.as_ptr_range().start;
    let within = |frame: &&Frame| !std::ptr::eq(*frame, inner);
    let folded = site.frames.iter().take_while(within).count();
    if folded > 0 && !frames.is_empty() {
        let _ = writeln!(
            out,
            "     ({} down to the allocator)",
            words::many(folded, "frame")
        );
    }
    let mut passed = 0;
    for frame in frames.iter().take(FRAMES) {
        if frame.kind == FrameKind::Std {
            passed += 1;
            continue;
        }
        if passed > 0 {
            let _ = writeln!(
                out,
                "     ({} of the standard library)",
                words::many(passed, "frame")
            );
            passed = 0;
        }
        let mark = if site.line().is_some_and(|line| std::ptr::eq(line, frame)) {
            '>'
        } else {
            ' '
        };
        let _ = writeln!(out, "   {mark} {}", frame.function);
        if let Some(place) = shown_place(frame, here) {
            let _ = writeln!(out, "         {place}");
        }
    }
    if frames.len() > FRAMES {
        let _ = writeln!(
            out,
            "     ({} more)",
            words::many(frames.len() - FRAMES, "frame")
        );
    }
}

fn shown_place(frame: &Frame, here: Option<&Path>) -> Option<String> {
    let place = frame.place()?;
    let short = here.and_then(|here| Path::new(&place).strip_prefix(here).ok());
    Some(short.map_or(place.clone(), |short| short.display().to_string()))
}

/// The folder that paths are shown from: the workspace that this test is run in.
fn workspace() -> Option<PathBuf> {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from)?;
    let root = here
        .ancestors()
        .find(|folder| folder.join("Cargo.lock").exists());
    root.map(Path::to_owned)
}
