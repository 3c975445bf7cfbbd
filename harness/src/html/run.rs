//! All that is shown of one run.

use maud::{Markup, html};

use super::input::ShownRun;
use super::table::{lacking, of_terminal, scrolling};
use super::text::{Said, Unit, shell};
use super::{flame, heat, memory, peak, verdict};
use crate::explain::Site;
use crate::machine::Machine;
use crate::report;
use crate::run::Run;
use crate::verdict::words::{count, many, size_u64};

/// Call sites that are shown with their stacks.
const SITES: usize = 10;
/// Frames of a stack that are shown.
const FRAMES: usize = 40;

/// The sections of a run, after its heading.
pub(super) fn sections(id: &str, shown: &ShownRun) -> Markup {
    let run = &shown.run;
    let books = run.books();
    let moments = shown.moments.as_ref().map_err(String::as_str);
    let measured = books.rounds.len().saturating_sub(books.warmup as usize);
    html! {
        p.meta {
            (many(measured, "round")) " after " (books.warmup.min(books.rounds.len() as u32)) " of warm-up · "
            "tidegate " (Said(&run.tidegate)) " · " (ended(run.ended_at))
        }
        (verdict::banner(run))
        (section(id, "evidence", "Evidence", verdict::evidence(run)))
        (section(id, "time", "Memory over time", memory::over_time(&format!("{id}-time-plot"), books, moments)))
        (section(id, "rounds", "Round by round", memory::by_round(&format!("{id}-rounds-plot"), books)))
        (section(id, "survivors", "Survivors", heat::survivors(&format!("{id}-heat"), books, run.explanation())))
        (section(id, "flame", "Where they were allocated", html! {
            (flame::graph(&format!("{id}-flame-plot"), run))
            (sites(run))
        }))
        (section(id, "peak", "The peak, taken apart", peak::taken_apart(books, moments)))
        (section(id, "traffic", "Layers and phases", html! {
            (of_terminal(&report::layers(books), "Each layer over the measured rounds: by the ledger, then by the system's gauges", 1))
            (of_terminal(&report::phases(books), "Traffic of each phase over the measured rounds", 2))
        }))
        (section(id, "reconciliation", "Reconciliation", reconciliation(run)))
        (section(id, "machine", "Machine", machine(&run.machine)))
        (section(id, "replay", "Again", replay(shown)))
    }
}

pub(super) fn section(id: &str, part: &str, title: &str, content: Markup) -> Markup {
    let id = format!("{id}-{part}");
    html! { section { h3 id=(id) { (title) } (content) } }
}

fn ended(seconds: u64) -> String {
    let at = i64::try_from(seconds)
        .ok()
        .and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    match at {
        Some(at) if seconds > 0 => format!("ended {} UTC", at.strftime("%Y-%m-%d %H:%M")),
        _ => "it is not known when it ended".to_owned(),
    }
}

fn sites(run: &Run) -> Markup {
    let Some(explanation) = run.explanation() else {
        return html! {};
    };
    let more = explanation
        .sites_exist
        .saturating_sub(explanation.sites.len().min(SITES) as u64);
    html! {
        @for site in explanation.sites.iter().take(SITES) { (stack(site)) }
        @if more > 0 { p { (count(i64::try_from(more).unwrap_or(i64::MAX), "more site")) ", by size." } }
        ul.notes {
            @for covered in explanation.coverage.iter().filter(|covered| covered.explained != covered.grown) {
                li {
                    "the sites hold " (crate::verdict::words::amount(covered.explained)) " of "
                    (crate::verdict::words::amount(covered.grown)) " that grew in " (covered.layer.name())
                    " memory of phase " (Said(&covered.phase))
                }
            }
            @for missing in &explanation.missing { li { b { "missing: " } (Said(missing)) } }
        }
    }
}

fn stack(site: &Site) -> Markup {
    let (name, place) = heat::site_in_words(site);
    let frames = site.frames_of_interest();
    html! {
        details.site {
            summary {
                b { (Unit::Bytes.signed(site.grown.bytes)) } " in " (count(site.grown.blocks, "block")) " · "
                code { (Said(&name)) } span.where { (Said(&place)) }
            }
            ol.stack { @for frame in frames.iter().take(FRAMES) {
                li.yours[site.line().is_some_and(|line| std::ptr::eq(line, frame))] {
                    code { (Said(&frame.function)) }
                    span.where { (Said(&frame.place().unwrap_or_else(|| format!("in {}", frame.object)))) }
                    @if let Some(source) = &frame.source { code.source { (Said(source.trim())) } }
                }
            } }
            @if frames.len() > FRAMES || site.cut { p.small { "The stack goes on beyond this." } }
        }
    }
}

fn reconciliation(run: &Run) -> Markup {
    let tables = run.reconciliation.tables();
    html! {
        @if tables.is_empty() {
            (lacking("Resident memory could not be told apart page by page, or this run is of before that was done: nothing to reconcile."))
        }
        @for table in &tables { (of_terminal(table, "What explains the memory that is taken, and what does not", 1)) }
        @if !tables.is_empty() { ul.notes { @for sentence in run.reconciliation.sentences() { li { (Said(&sentence)) } } } }
    }
}

/// A machine's fingerprint.
pub(super) fn machine(machine: &Machine) -> Markup {
    let fingerprint = machine.fingerprint();
    let counts = |field: &str| {
        match fingerprint.get(field) {
            "" => "not known",
            value => value,
        }
        .to_owned()
    };
    let memory = match machine.memory_bytes {
        0 => "not known".to_owned(),
        bytes => size_u64(bytes),
    };
    html! {
        (scrolling("The machine's fingerprint", html! {
            table.fields {
                caption { span { "The machine's fingerprint: numbers of another one are not compared with these" } }
                thead { tr { th scope="col" { "field" } th scope="col" { "value" } } }
                tbody { @for (name, field) in FIELDS { tr { th scope="row" { (name) } td { (Said(&counts(field))) } } } }
            }
        }))
        p.small { "Memory, which does not count: " (memory) ". Kernel in full: " (Said(&machine.kernel)) "." }
    }
}

const FIELDS: [(&str, &str); 7] = [
    ("CPUs", "cpus"),
    ("kernel", "kernel"),
    ("C library", "libc"),
    ("allocator", "allocator"),
    ("transparent huge pages", "thp"),
    ("cards", "gpus"),
    ("cards' driver", "driver"),
];

fn replay(shown: &ShownRun) -> Markup {
    let plan = &shown.run.plan;
    let path = shown.path.display().to_string();
    html! {
        p { "Judge these books again, with the engine of today:" }
        pre tabindex="0" { code { (Said(&shell(["cargo", "tidegate", "replay", &path]))) } }
        @if plan.command.is_empty() {
            p {
                "To run it again, run the test that has the scenario " code { (Said(&plan.name)) }
                ": the run does not say which one that is."
            }
        } @else if shown.run.books().gauges_only {
            p { "It was watched as it ran, so that there is no command that runs it again." }
        } @else {
            p { "Run it again:" }
            pre tabindex="0" { code { (Said(&shell(again(&shown.run).iter().map(String::as_str)))) } }
        }
        @if !plan.environment.is_empty() {
            p { "With, in its environment: " @for (name, value) in &plan.environment { code { (Said(name)) "=" (Said(value)) } " " } }
        }
    }
}

/// The command line that makes a run like this one.
fn again(run: &Run) -> Vec<String> {
    let plan = &run.plan;
    let mut words: Vec<String> = ["cargo", "tidegate", "run"].map(str::to_owned).into();
    let mut option = |name: &str, value: Option<String>| {
        // One word, that a value which begins with a dash is one.
        words.extend(value.map(|value| format!("{name}={value}")));
    };
    let unless = |value: u64, usual: u64| (value != usual).then(|| format!("{value}ms"));
    option("--warmup", Some(plan.warmup.to_string()));
    option("--log", plan.round_file.clone());
    option("--round-on", plan.round_on.clone());
    option("--every", plan.round_every_ms.map(|ms| format!("{ms}ms")));
    option(
        "--rounds",
        plan.end_after_rounds.map(|rounds| rounds.to_string()),
    );
    option("--for", plan.end_after_ms.map(|ms| format!("{ms}ms")));
    option("--limit", plan.limit_bytes.map(|bytes| format!("{bytes}B")));
    option("--hang-after", unless(plan.hang_ms, 120_000));
    option("--sample-every", unless(plan.sample_ms, 10));
    option(
        "--queue-capacity",
        plan.queue.map(|queue| queue.capacity.to_string()),
    );
    option(
        "--producers",
        plan.queue.map(|queue| queue.producers.to_string()),
    );
    words.push("--".to_owned());
    words.extend(plan.command.iter().cloned());
    words
}
