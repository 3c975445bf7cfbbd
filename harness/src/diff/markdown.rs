//! A diff as Markdown, for a pull request or a job's summary.

use std::fmt::Write as _;

use super::terminal::{cells, counted, plain, shortened, told};
use super::{Change, Diff, Entry, Standing};

/// Frames of a site that are shown.
const FRAMES: usize = 12;

/// The whole diff.
pub(super) fn show(diff: &Diff) -> String {
    let mut out = String::new();
    let per_round = diff.new.rounds.is_some();
    for (name, side) in [("old", &diff.old), ("new", &diff.new)] {
        let _ = write!(
            out,
            "- **{name}**: {} {}",
            side.kind.name(),
            code(&side.path.display().to_string())
        );
        if !side.what.is_empty() {
            let _ = write!(out, " of {}", code(&shortened(&side.what, 80)));
        }
        if let Some(rounds) = side.rounds {
            let _ = write!(out, ", {} × {rounds} measured rounds", side.runs);
        }
        out.push('\n');
    }
    let body = &diff.body;
    if !body.whole.is_empty() {
        out.push_str("\n| all together | old | new | change | |\n|---|--:|--:|--:|--:|\n");
        for change in &body.whole {
            row(&mut out, &[], change, per_round, None);
        }
    }
    if per_round {
        let counts = counted("phase and layer", "phases and layers", &body.phase_counts);
        let _ = writeln!(out, "\n{counts}");
        if !body.phases.is_empty() {
            out.push_str("\n| phase | layer | what | old | new | change | |\n");
            out.push_str("|---|---|---|--:|--:|--:|--:|\n");
        }
        for entry in &body.phases {
            let layer = entry.layer.map_or("", |layer| layer.name());
            let place = [
                text(entry.phase.as_deref().unwrap_or_default()),
                text(layer),
            ];
            for change in told(entry) {
                row(&mut out, &place, change, true, Some(&entry.standing));
            }
        }
    }
    let counts = &body.site_counts;
    if counts.old + counts.new > 0 {
        let _ = writeln!(out, "\n{}", counted("site", "sites", counts));
        body.sites
            .iter()
            .for_each(|entry| site(&mut out, entry, per_round));
    }
    if !body.notes.is_empty() {
        out.push('\n');
    }
    for note in &body.notes {
        let _ = writeln!(out, "- {}", text(note));
    }
    out
}

fn row(
    out: &mut String,
    place: &[String],
    change: &Change,
    per_round: bool,
    is: Option<&Standing>,
) {
    let mut cells = cells(change, per_round);
    match is {
        Some(Standing::New) => "new".clone_into(&mut cells[4]),
        Some(Standing::Gone) => "gone".clone_into(&mut cells[4]),
        _ => {}
    }
    let cells = place.iter().cloned().chain(cells.map(|cell| text(&cell)));
    let _ = writeln!(out, "| {} |", cells.collect::<Vec<_>>().join(" | "));
}

fn site(out: &mut String, entry: &Entry, per_round: bool) {
    let what = match entry.standing {
        Standing::Changed => "",
        Standing::New => "new: ",
        Standing::Gone => "gone: ",
        Standing::Moved { .. } => "moved: ",
    };
    let first = entry.frames.first().map_or("", String::as_str);
    let changes = told(entry).map(|change| {
        let [what, old, new, amount, share] = cells(change, per_round);
        text(&format!(
            "{what} {old} → {new} ({amount}{}{share})",
            if share.is_empty() { "" } else { ", " }
        ))
    });
    let changes = changes.collect::<Vec<_>>().join("; ");
    let _ = writeln!(
        out,
        "\n<details><summary>{what}<code>{}</code>: {changes}</summary>\n",
        html(first)
    );
    frames(out, &entry.frames);
    if let Standing::Moved { from } = &entry.standing {
        out.push_str("\nbefore:\n\n");
        frames(out, from);
    }
    out.push_str("\n</details>\n");
}

fn frames(out: &mut String, frames: &[String]) {
    for frame in frames.iter().take(FRAMES) {
        let _ = writeln!(out, "1. <code>{}</code>", html(frame));
    }
    if frames.len() > FRAMES {
        let _ = writeln!(out, "1. ({} more)", frames.len() - FRAMES);
    }
}

/// Text that is nothing but text, wherever it stands.
pub(crate) fn text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in plain(text).chars() {
        if "\\`*_{}[]()#+!|~@".contains(c) {
            out.push('\\');
        }
        escape(&mut out, c);
        // GitHub finds mentions and issues in what was escaped, too; not across a joiner.
        if matches!(c, '@' | '#') {
            out.push('\u{2060}');
        }
    }
    out
}

/// Text as code, in a paragraph or a table of Markdown.
pub(crate) fn code(text: &str) -> String {
    format!("<code>{}</code>", html(text))
}

/// Text within an element of HTML, in a paragraph of Markdown.
fn html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in plain(text).chars() {
        match c {
            // What Markdown, or GitHub, would still read.
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '~' | '@' | '#' | '!' | ':' => {
                let _ = write!(out, "&#{};", u32::from(c));
            }
            c => escape(&mut out, c),
        }
    }
    out
}

fn escape(out: &mut String, c: char) {
    match c {
        '<' => out.push_str("&lt;"),
        '>' => out.push_str("&gt;"),
        '&' => out.push_str("&amp;"),
        c => out.push(c),
    }
}
