//! The report of a run on a terminal: the verdict in a sentence, then what it rests on.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};

use crate::books::{Amount, Books, Ending, Gauges, Layer, LimitKind, PhaseBook};
use crate::explain;
use crate::run::Run;
use crate::verdict::words::{grouped, many, size, size_u64};

/// Columns of a terminal that everybody has.
const WIDTH: usize = 80;

/// The whole report, plain text of 80 columns.
pub(crate) fn terminal(run: &Run) -> String {
    let mut out = String::new();
    let books = &run.books;
    let verdict = &run.verdict;
    let measured = books.rounds.len().saturating_sub(books.warmup as usize);
    let headline = format!(
        "{} · {} · {} after {} of warm-up",
        verdict.class,
        run.plan.name,
        many(measured, "round"),
        books.warmup.min(books.rounds.len() as u32),
    );
    paragraph(&mut out, "", &headline);
    paragraph(&mut out, "  ", &verdict.sentence);
    for finding in &verdict.findings {
        if finding.sentence != verdict.sentence {
            bullet(&mut out, &finding.sentence);
        }
    }
    for line in run.set_aside.terminal() {
        bullet(&mut out, &line);
    }
    for missing in &verdict.missing {
        bullet(&mut out, &format!("missing: {missing}"));
    }
    if let Some(output) = last_words(run) {
        paragraph(&mut out, "", "The workload's last output:");
        for line in output.lines() {
            let _ = writeln!(out, "  | {line}");
        }
    }
    out.push_str(&explain::terminal(run));
    table(&mut out, &layers(books));
    table(&mut out, &phases(books));
    for of in run.reconciliation.tables() {
        table(&mut out, &of);
    }
    for sentence in run.reconciliation.sentences() {
        bullet(&mut out, &sentence);
    }
    for note in &verdict.notes {
        bullet(&mut out, &format!("note: {}", note.sentence));
    }
    for tried in &verdict.tried {
        bullet(&mut out, &format!("tried {}: {}", tried.what, tried.showed));
    }
    out.push('\n');
    paragraph(&mut out, "  ", &footer(run));
    out
}

pub(crate) fn paragraph(out: &mut String, indent: &str, text: &str) {
    let options = textwrap::Options::new(WIDTH)
        .initial_indent(indent)
        .subsequent_indent(indent);
    let _ = writeln!(out, "{}", textwrap::fill(text, options));
}

pub(crate) fn bullet(out: &mut String, text: &str) {
    let options = textwrap::Options::new(WIDTH)
        .initial_indent("  - ")
        .subsequent_indent("    ");
    let _ = writeln!(out, "{}", textwrap::fill(text, options));
}

pub(crate) fn table(out: &mut String, table: &Table) {
    if table.row_count() > 0 {
        out.push('\n');
        for line in table.lines() {
            let _ = writeln!(out, "  {}", line.trim_end());
        }
    }
}

/// A table with a header; all columns but the first `words` hold numbers.
pub(crate) fn new_table(header: &[&str], words: usize) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_header(header.to_vec());
    for (index, column) in table.column_iter_mut().enumerate() {
        let right = index >= words;
        column.set_padding((0, 2));
        column.set_cell_alignment(if right {
            CellAlignment::Right
        } else {
            CellAlignment::Left
        });
    }
    table
}

/// Layers: what the ledger books exactly, then what the system says.
pub(crate) fn layers(books: &Books) -> Table {
    let header = [
        "layer",
        "allocated",
        "released",
        "first",
        "last",
        "change",
        "peak",
    ];
    let mut table = new_table(&header, 1);
    let first = (books.warmup as usize).min(books.rounds.len().saturating_sub(1));
    let mut heap: Vec<Layer> = books.phases.iter().map(|phase| phase.layer).collect();
    heap.sort_unstable();
    heap.dedup();
    for layer in heap {
        let of_layer = || books.phases.iter().filter(|phase| phase.layer == layer);
        let allocated: Amount = of_layer().map(|phase| phase.allocated).sum();
        let released: Amount = of_layer().map(|phase| phase.released).sum();
        let live_at = |at: usize| -> Amount {
            let series = books.series.iter().filter(|series| series.layer == layer);
            series
                .filter_map(|series| series.live.get(at))
                .copied()
                .sum()
        };
        let last = live_at(books.rounds.len().saturating_sub(1));
        if layer.is_counted() {
            let first = live_at(first).blocks;
            table.add_row([
                layer.name().to_owned(),
                grouped(allocated.blocks),
                grouped(released.blocks),
                grouped(first),
                grouped(last.blocks),
                change_of(last.blocks.saturating_sub(first)),
            ]);
            continue;
        }
        table.add_row([
            layer.name().to_owned(),
            size(allocated.bytes),
            size(released.bytes),
            size(live_at(first).bytes),
            size(last.bytes),
            signed(last.bytes.saturating_sub(live_at(first).bytes)),
            of_layer()
                .map(|phase| phase.peak_bytes)
                .max()
                .map(size_u64)
                .unwrap_or_default(),
        ]);
    }
    let gauge = |at: usize| books.rounds.get(at).and_then(|round| round.gauges);
    let (Some(start), Some(end)) = (gauge(first), gauge(books.rounds.len().saturating_sub(1)))
    else {
        return table;
    };
    type Read = fn(&Gauges) -> u64;
    let bytes: [(&str, Read); 7] = [
        ("resident anon", |gauges| gauges.rss_anon),
        ("resident file", |gauges| gauges.rss_file),
        ("resident shmem", |gauges| gauges.rss_shmem),
        ("huge pages", |gauges| gauges.hugetlb),
        ("swap", |gauges| gauges.swap),
        ("the card's", |gauges| {
            gauges.card.map_or(0, |card| card.process)
        }),
        ("the card's, others' too", |gauges| {
            let shared = gauges.card.filter(|card| card.others > 0);
            shared.map_or(0, |card| card.used)
        }),
    ];
    for (name, read) in bytes {
        if read(&start) != 0 || read(&end) != 0 {
            let change = (read(&end) as i64).saturating_sub(read(&start) as i64);
            row(
                &mut table,
                name,
                size_u64(read(&start)),
                size_u64(read(&end)),
                signed(change),
            );
        }
    }
    let counts: [(&str, Read); 2] = [
        ("threads", |gauges| gauges.threads),
        ("fds", |gauges| gauges.fds),
    ];
    for (name, read) in counts {
        let (from, to) = (read(&start) as i64, read(&end) as i64);
        row(
            &mut table,
            name,
            grouped(from),
            grouped(to),
            change_of(to.saturating_sub(from)),
        );
    }
    table
}

fn change_of(count: i64) -> String {
    match count {
        0 => "0".to_owned(),
        change => format!("{change:+}"),
    }
}

fn row(table: &mut Table, name: &str, first: String, last: String, change: String) {
    table.add_row([
        name.to_owned(),
        String::new(),
        String::new(),
        first,
        last,
        change,
    ]);
}

fn signed(bytes: i64) -> String {
    match bytes {
        0 => "0".to_owned(),
        1.. => format!("+{}", size(bytes)),
        _ => size(bytes),
    }
}

/// Phases: exact traffic of the measured rounds.
pub(crate) fn phases(books: &Books) -> Table {
    let header = [
        "phase",
        "layer",
        "blocks",
        "released",
        "left",
        "bytes left",
        "peak",
        "held",
    ];
    let mut table = new_table(&header, 2);
    let mut phases: Vec<&PhaseBook> = books
        .phases
        .iter()
        .filter(|phase| phase.allocated.blocks != 0)
        .collect();
    phases.sort_by_key(|phase| std::cmp::Reverse(phase.allocated.bytes));
    for phase in phases {
        let left = phase.allocated - phase.released;
        table.add_row([
            phase.phase.clone(),
            phase.layer.name().to_owned(),
            grouped(phase.allocated.blocks),
            grouped(phase.released.blocks),
            grouped(left.blocks),
            if left.bytes == 0 {
                "0".to_owned()
            } else {
                grouped(left.bytes)
            },
            if phase.peak_bytes < HELD_BACK {
                "<64 KiB".to_owned()
            } else {
                size_u64(phase.peak_bytes)
            },
            mean_held(phase),
        ]);
    }
    table
}

/// A thread keeps changes of a phase's live bytes to itself up to this size, so that
/// below it a peak and a mean say nothing.
const HELD_BACK: u64 = 64 << 10;

/// Mean seconds that a byte was held: byte-seconds over bytes (Little's law).
fn mean_held(phase: &PhaseBook) -> String {
    if phase.allocated.bytes <= 0 || phase.peak_bytes < HELD_BACK {
        return String::new();
    }
    let seconds = phase.byte_seconds / phase.allocated.bytes as f64;
    format!("{:.0} ms", seconds * 1000.0)
}

/// What a workload that died said last.
fn last_words(run: &Run) -> Option<String> {
    const LINES: usize = 12;
    if matches!(run.books.ending, Ending::Completed | Ending::Limit { .. }) {
        return None;
    }
    let text = std::fs::read(run.folder().join("stderr.log")).ok()?;
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let tail = &lines[lines.len().saturating_sub(LINES)..];
    (!tail.is_empty()).then(|| tail.join("\n"))
}

pub(crate) fn footer(run: &Run) -> String {
    let health = &run.books.health;
    let judged = &run.verdict.judged;
    let live_blocks: i64 = run
        .books
        .series
        .iter()
        .filter_map(|series| series.live.last())
        .fold(0, |sum, amount| sum.saturating_add(amount.blocks));
    let mut text = format!(
        "{} of {} series judged{}. Peaks are exact to {}. The meter took {} for its books and {} in \
         the blocks. {}",
        judged.series_judged,
        judged.series_exist,
        match &run.verdict.power {
            Some(power) => format!(
                "; a loss of {} or of {} a round would have been seen",
                many(
                    usize::try_from(power.blocks_per_round).unwrap_or(usize::MAX),
                    "block"
                ),
                size_u64(power.bytes_per_round),
            ),
            None => String::new(),
        },
        size_u64(health.peak_error_bytes),
        size_u64(health.own_bytes),
        size(live_blocks.saturating_mul(8)),
        many(
            usize::try_from(health.samples).unwrap_or(usize::MAX),
            "sample"
        ),
    );
    if health.samples_missed > 0 {
        let _ = write!(text, " ({} missed)", health.samples_missed);
    }
    if let (Some(limit), Some(kind)) = (run.plan.limit_bytes, run.limit_enforced_by) {
        let by = match kind {
            LimitKind::CgroupV1 => "a memory cgroup (v1)",
            LimitKind::CgroupV2 => "a memory cgroup (v2)",
            LimitKind::Watchdog if run.plan.limit_by_samples => "the sampler, as was asked",
            LimitKind::Watchdog => "the sampler, for want of a memory cgroup",
        };
        let _ = write!(text, "; limit {} kept by {by}", size_u64(limit));
    }
    match run.not_stored() {
        None => drop(write!(text, ". Kept in {}", run.folder().display())),
        Some(why) => drop(write!(text, ". NOT STORED: {why}")),
    }
    text
}
