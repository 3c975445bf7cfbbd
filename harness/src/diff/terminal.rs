//! A diff on a terminal.

use std::fmt::Write as _;

use super::{Body, Change, Counts, Diff, Entry, Side, Standing};
use crate::profile::{Basis, Metric, Value};
use crate::report::{bullet, paragraph};
use crate::verdict::words::{count, grouped, size};

/// Frames of a site that are shown.
const FRAMES: usize = 8;
/// The longest name of a phase, in characters.
const NAME: usize = 48;
/// The longest frame, in characters.
const FRAME: usize = 72;

/// The whole diff, plain text of 80 columns.
pub(super) fn show(diff: &Diff) -> String {
    let mut out = String::new();
    side(&mut out, "OLD", &diff.old);
    side(&mut out, "NEW", &diff.new);
    out.push_str(&lines(&diff.body, diff.new.rounds.is_some()));
    out
}

/// What changed.
pub(super) fn lines(body: &Body, per_round: bool) -> String {
    let mut out = String::new();
    let Body {
        whole,
        phases,
        sites,
        phase_counts,
        site_counts,
        notes,
    } = body;
    if !whole.is_empty() {
        out.push('\n');
        row(
            &mut out,
            "all together",
            ["old", "new", "change", ""].map(str::to_owned),
        );
        for change in whole {
            let [what, cells @ ..] = cells(change, per_round);
            row(&mut out, &what, cells);
        }
    }
    if per_round {
        out.push('\n');
        paragraph(
            &mut out,
            "",
            &counted("phase and layer", "phases and layers", phase_counts),
        );
        for entry in phases {
            phase(&mut out, entry);
        }
    }
    if site_counts.old + site_counts.new > 0 {
        out.push('\n');
        paragraph(&mut out, "", &counted("site", "sites", site_counts));
        for entry in sites {
            site(&mut out, entry, per_round);
        }
        let told =
            site_counts.changed + site_counts.appeared + site_counts.gone + site_counts.moved;
        let more = told.saturating_sub(sites.len() as u64);
        if more > 0 {
            let _ = writeln!(out, "\n  {} more (see --top)", grouped_u64(more));
        }
    }
    if !notes.is_empty() {
        out.push('\n');
        notes.iter().for_each(|note| bullet(&mut out, &plain(note)));
    }
    out
}

fn side(out: &mut String, name: &str, side: &Side) {
    let mut text = format!("{name}  {}", plain(&side.path.display().to_string()));
    let what = shortened(&plain(&side.what), 60);
    let _ = write!(text, ": {}", side.kind.name());
    if !what.is_empty() {
        let _ = write!(text, " of {what}");
    }
    if let Some(rounds) = side.rounds {
        let runs = count(i64::from(side.runs), "run");
        let _ = write!(
            text,
            ", {runs} of {}",
            format_args!("{rounds} measured rounds")
        );
    }
    let options = textwrap::Options::new(80).subsequent_indent("     ");
    let _ = writeln!(out, "{}", textwrap::fill(&text, options));
}

/// How many there are of each kind, in a sentence.
pub(super) fn counted(one: &str, many: &str, counts: &Counts) -> String {
    let Counts {
        old,
        new,
        changed,
        appeared,
        gone,
        moved,
        other_lines,
    } = counts;
    let name = if *new == 1 { one } else { many };
    let mut text = format!("{} {name}", grouped_u64(*new));
    if old != new {
        let _ = write!(text, " ({} before)", grouped_u64(*old));
    }
    let kinds = [
        (changed, "changed"),
        (appeared, "new"),
        (gone, "gone"),
        (moved, "moved"),
    ];
    let kinds: Vec<String> = kinds
        .into_iter()
        .filter(|(number, _)| **number > 0)
        .map(|(number, kind)| format!("{} {kind}", grouped_u64(*number)))
        .collect();
    match kinds.is_empty() {
        true => text.push_str(": nothing changed"),
        false => {
            let _ = write!(text, ": {}", kinds.join(", "));
        }
    }
    if *other_lines > 0 {
        let _ = write!(text, "; {} at other lines", grouped_u64(*other_lines));
    }
    text
}

fn grouped_u64(number: u64) -> String {
    grouped(i64::try_from(number).unwrap_or(i64::MAX))
}

/// A line of numbers under each other, as wide as a terminal for all but monsters.
fn row(out: &mut String, what: &str, [old, new, change, share]: [String; 4]) {
    let line = format!("  {what:<14}{old:>15}{new:>15}{change:>15}  {share}");
    let _ = writeln!(out, "{}", line.trim_end());
}

fn phase(out: &mut String, entry: &Entry) {
    let name = entry.phase.as_deref().unwrap_or_default();
    let layer = entry.layer.map_or("", |layer| layer.name());
    let is = match entry.standing {
        Standing::New => " (new)",
        Standing::Gone => " (gone)",
        _ => "",
    };
    let _ = writeln!(
        out,
        "\n  {layer} of phase {}{is}",
        shortened(&plain(name), NAME)
    );
    for change in told(entry) {
        let [what, cells @ ..] = cells(change, true);
        row(out, &what, cells);
    }
}

/// The changes worth a line: those that are one, and all that is not nothing of what
/// is new or gone.
pub(super) fn told(entry: &Entry) -> impl Iterator<Item = &Change> {
    let sided = matches!(entry.standing, Standing::New | Standing::Gone);
    entry.changes.iter().filter(move |change| {
        change.is_change() || (sided && change.old != change.new && change.old.is_some())
    })
}

fn site(out: &mut String, entry: &Entry, per_round: bool) {
    let mut head = match &entry.standing {
        Standing::Changed => "changed",
        Standing::New => "new",
        Standing::Gone => "gone",
        Standing::Moved { .. } => "moved",
    }
    .to_owned();
    if let (Some(phase), Some(layer)) = (&entry.phase, entry.layer) {
        let _ = write!(
            head,
            ", {layer} of phase {}",
            shortened(&plain(phase), NAME)
        );
    }
    let changes: Vec<String> = told(entry)
        .map(|change| {
            let [what, old, new, amount, share] = cells(change, per_round);
            match entry.standing {
                Standing::New => format!("{what} {new}"),
                Standing::Gone => format!("{what} {old}"),
                _ if share.is_empty() => format!("{what} {old} to {new} ({amount})"),
                _ => format!("{what} {old} to {new} ({amount}, {share})"),
            }
        })
        .collect();
    if !changes.is_empty() {
        let _ = write!(head, ": {}", changes.join(", "));
    }
    out.push('\n');
    paragraph(out, "  ", &head);
    frames(out, &entry.frames);
    if let Standing::Moved { from } = &entry.standing {
        let _ = writeln!(out, "    before:");
        frames(out, from);
    }
}

fn frames(out: &mut String, frames: &[String]) {
    for frame in frames.iter().take(FRAMES) {
        let _ = writeln!(out, "      {}", shortened(&plain(frame), FRAME));
    }
    if frames.len() > FRAMES {
        let _ = writeln!(out, "      ({} more)", frames.len() - FRAMES);
    }
}

/// What, old, new, change, share.
pub(super) fn cells(change: &Change, per_round: bool) -> [String; 5] {
    let side =
        |value: Option<Value>| value.map_or("?".to_owned(), |value| shown(change.metric, value));
    let amount = change.amount();
    let mut signed = match amount {
        0.0 => "0".to_owned(),
        _ => shown_f64(change.metric, amount),
    };
    if amount > 0.0 {
        signed.insert(0, '+');
    }
    let share = match change.share() {
        _ if !change.is_change() && amount != 0.0 => "within the spread".to_owned(),
        Some(share) if amount != 0.0 => percent(share),
        _ => String::new(),
    };
    let share = match change.tolerance.map(|tolerance| tolerance.basis) {
        Some(Basis::NeverVaried) if change.is_change() && share.is_empty() => {
            "never varied".to_owned()
        }
        _ => share,
    };
    [
        label(change.metric, per_round).to_owned(),
        side(change.old),
        side(change.new),
        signed,
        share,
    ]
}

/// A share as people say it.
fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent.abs() >= 1000.0 {
        format!("x{:.0}", share + 1.0)
    } else if percent.abs() >= 0.05 {
        format!("{percent:+.1} %")
    } else {
        String::new()
    }
}

/// What a metric is called in tables.
const fn label(metric: Metric, per_round: bool) -> &'static str {
    match (metric, per_round) {
        (Metric::Blocks, true) => "blocks/round",
        (Metric::Blocks, false) => "blocks",
        (Metric::Bytes, true) => "bytes/round",
        (Metric::Bytes, false) => "bytes",
        (Metric::LeftBlocks, _) => "blocks left",
        (Metric::LeftBytes, _) => "bytes left",
        (Metric::Peak, _) => "peak",
        (Metric::Held, _) => "byte-seconds",
        (Metric::Dwell, _) => "mean held",
        (Metric::Resident, _) => "resident",
        (Metric::Card, _) => "the card's",
        (Metric::AtPeak, _) => "at the peak",
    }
}

/// A value with its unit.
pub(crate) fn shown(metric: Metric, value: Value) -> String {
    match metric {
        Metric::Peak if value == Value::ZERO => "<64 KiB".to_owned(),
        _ => shown_f64(metric, value.as_f64()),
    }
}

/// The same for a difference, or a bound.
pub(crate) fn shown_f64(metric: Metric, value: f64) -> String {
    match metric {
        Metric::Blocks | Metric::LeftBlocks => number(value),
        Metric::Dwell => microseconds(value),
        Metric::Held => format!("{}·s", bytes(value)),
        _ => bytes(value),
    }
}

fn number(value: f64) -> String {
    if value.fract() == 0.0 {
        grouped(value as i64)
    } else {
        format!("{value:.1}")
    }
}

fn bytes(value: f64) -> String {
    if value.abs() < 1024.0 && value.fract() != 0.0 {
        return format!("{value:.1} B");
    }
    let text = size(value as i64);
    match text
        .strip_suffix(" bytes")
        .or_else(|| text.strip_suffix(" byte"))
    {
        Some(number) => format!("{number} B"),
        None => text,
    }
}

fn microseconds(value: f64) -> String {
    match value.abs() {
        0.0..10_000.0 => format!("{value:.0} µs"),
        10_000.0..10_000_000.0 => format!("{:.0} ms", value / 1e3),
        _ => format!("{:.0} s", value / 1e6),
    }
}

/// Text without what a terminal would obey, and what would make it read otherwise: what
/// turns the direction of writing, ends lines, or has no width.
pub(crate) fn plain(text: &str) -> String {
    let is_plain = |c: char| {
        let hides = matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}');
        !c.is_control() && !hides
    };
    text.chars()
        .map(|c| if is_plain(c) { c } else { '\u{fffd}' })
        .collect()
}

/// A text of so many characters at most, its middle left out.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    let length = text.chars().count();
    if length <= most {
        return text.to_owned();
    }
    let head = (most - 1) / 2;
    let tail = most - 1 - head;
    let begin: String = text.chars().take(head).collect();
    let end: String = text.chars().skip(length - tail).collect();
    format!("{begin}…{end}")
}
