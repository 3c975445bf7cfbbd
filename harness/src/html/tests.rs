use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::*;
use crate::books::{
    Amount, Books, Ending, Gauges, Health, Layer, PhaseBook, RoundBook, Series, Survivors,
};
use crate::compare::{
    Comparison, Measures, Peak, PeakOf, Runs, StoredComparison, Sweep, SweepPlan, SweepRun, Terms,
    Version,
};
use crate::explain::{BornIn, Explanation, Frame, FrameKind, Site};
use crate::machine::Machine;
use crate::run::{RUN_FILE, Run};
use crate::sampler::SAMPLES_FILE;
use crate::scenario::Scenario;
use crate::verdict::{Settings, judge};

const EVIL: &str =
    "</script><script>alert(1)</script>\"'><img src=x onerror=alert(1)>\u{2028}\u{202e}";

/// Books of a program that loses 96 bytes a round in phase `finish`.
fn books(rounds: u32) -> Books {
    let each = |round: u32| RoundBook {
        round,
        at_seconds: f64::from(round) / 10.0,
        allocated: Amount::new(8 << 20, 10),
        peak_bytes: (9 << 20) + u64::from(round) * 96,
        gauges: Some(Gauges {
            rss_anon: 12 << 20,
            rss_file: 2 << 20,
            threads: 1,
            fds: 3,
            ..Gauges::default()
        }),
        settle: crate::books::Settle {
            settled: true,
            ..Default::default()
        },
        ..RoundBook::default()
    };
    let lost = |round: u32| Amount::new(96 * i64::from(round), i64::from(round));
    let phase = |phase: &str, bytes: i64, left: i64| PhaseBook {
        layer: Layer::NativeHeap,
        phase: phase.to_owned(),
        allocated: Amount::new(bytes, 8),
        released: Amount::new(bytes - left, 8 - left / 96),
        peak_bytes: bytes.unsigned_abs() / 4,
        byte_seconds: 1e6,
    };
    Books {
        warmup: 2,
        rounds: (1..=rounds).map(each).collect(),
        series: vec![Series {
            layer: Layer::NativeHeap,
            phase: "finish".to_owned(),
            live: (1..=rounds).map(lost).collect(),
        }],
        survivors: (1..=rounds)
            .map(|round| Survivors {
                round,
                layer: Layer::NativeHeap,
                phase: "finish".to_owned(),
                left: lost(1),
            })
            .collect(),
        phases: vec![phase("synthesis", 64 << 20, 0), phase("finish", 768, 768)],
        health: Health {
            attached: true,
            samples: 3,
            ..Health::default()
        },
        peak_bytes: Some(9 << 20),
        ..Books::default()
    }
}

fn run_of(books: Books) -> Run {
    let verdict = judge(&books, &Settings::default());
    Run {
        machine: Machine {
            cpus: 2,
            memory_bytes: 8 << 30,
            kernel: "6.18.0-test".to_owned(),
            libc: "glibc 2.36".to_owned(),
            thp: "madvise".to_owned(),
            allocator: "malloc".to_owned(),
            ..Machine::default()
        },
        ended_at: 1_800_000_000,
        ..Run::new(Scenario::new("proving").plan, None, books, verdict)
    }
}

/// The site of the loss.
fn explanation(rounds: u32) -> Explanation {
    let frame = |function: &str, file: &str, line: u32, kind| Frame {
        function: function.to_owned(),
        file: Some(file.to_owned()),
        line: Some(line),
        column: None,
        inlined: false,
        object: "prove".to_owned(),
        kind,
        source: Some("char *result = malloc(96);".to_owned()),
    };
    let site = Site {
        layer: Layer::NativeHeap,
        phase: "finish".to_owned(),
        site: "finish;main".to_owned(),
        frames: vec![
            frame("malloc", "malloc.c", 1, FrameKind::Plumbing),
            frame("finish", "src/finish.c", 12, FrameKind::Yours),
            frame("main", "src/main.c", 40, FrameKind::Yours),
        ],
        cut: false,
        runtime: None,
        yours: Some(1),
        allocated: Amount::new(576, 6),
        live: Vec::new(),
        grown: Amount::new(576, 6),
        per_round: Some(Amount::new(96, 1)),
        left: (1..=rounds)
            .map(|round| BornIn {
                round,
                amount: Amount::new(96, 1),
            })
            .collect(),
    };
    Explanation {
        warmup: 2,
        rounds,
        captures: 8,
        sites_exist: 1,
        sites: vec![site],
        ..Explanation::default()
    }
}

fn samples(count: u64) -> String {
    let line = |n: u64| {
        let sample = crate::sampler::Sample {
            layers: BTreeMap::from([(Layer::NativeHeap, 6_000_000), (Layer::RustHeap, 1_000_000)]),
            phases: BTreeMap::from([("synthesis".to_owned(), 7_000_000)]),
            ..super::moments::tests::sample(n, 7_000_000 + n as i64)
        };
        serde_json::to_string(&sample).unwrap() + "\n"
    };
    (0..count).map(line).collect()
}

/// A folder with a run, its path, and its page.
struct Shown {
    folder: tempfile::TempDir,
    page: Page,
}

impl Shown {
    fn new(run: &Value, samples: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(RUN_FILE), run.to_string()).unwrap();
        if let Some(samples) = samples {
            fs::write(folder.path().join(SAMPLES_FILE), samples).unwrap();
        }
        let page = Page::read(&[folder.path().to_owned()]).unwrap();
        Self { folder, page }
    }

    fn of(run: &Run, samples: Option<&str>) -> Self {
        Self::new(&serde_json::to_value(run).unwrap(), samples)
    }

    /// What a reader reads, a line for each heading, row and paragraph.
    fn text(&self) -> String {
        let html = self.page.html();
        let path = self.folder.path().display().to_string();
        let version = env!("CARGO_PKG_VERSION");
        text_of(&html)
            .replace(&path, "FOLDER")
            .replace(version, "VERSION")
    }
}

/// A page without its shapes, which are one within another.
fn without_shapes(html: &str) -> String {
    let mut text = String::new();
    let mut depth = 0;
    for (at, part) in html.split("<svg").enumerate() {
        depth += usize::from(at > 0);
        let mut ends = part.split("</svg>");
        let own = ends.next().unwrap_or_default();
        text.push_str(if depth == 0 { own } else { "" });
        for rest in ends {
            depth -= 1;
            text.push_str(if depth == 0 { rest } else { "" });
        }
    }
    text
}

/// The text of a page, one line for each block.
fn text_of(html: &str) -> String {
    let drop = regex::Regex::new(r"(?s)<(style|script)>.*?</(style|script)>").unwrap();
    let mut text = without_shapes(&drop.replace_all(html, ""));
    for (tag, with) in [
        (r"</t[hd]>", " | "),
        (
            r"</?(p|h\d|tr|caption|li|dt|dd|figcaption|summary|div|table|pre|title|ol|ul)\b[^>]*>",
            "\n",
        ),
        (r"<[^>]*>", ""),
    ] {
        text = regex::Regex::new(tag)
            .unwrap()
            .replace_all(&text, with)
            .into_owned();
    }
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("\n")
}

fn leaking() -> Run {
    let mut run = run_of(books(8));
    run.explanation = Some(explanation(8));
    run
}

#[test]
fn a_report_tells_what_was_kept_where_since_when_and_from_which_line() {
    let shown = Shown::of(&leaking(), Some(&samples(3)));
    insta::assert_snapshot!(shown.text());
    let [entry] = &shown.page.entries()[..] else {
        panic!("there is one input");
    };
    assert_eq!((entry.kind, entry.answer.as_str()), ("run", "leak"));
    assert_eq!(entry.path, shown.folder.path());
}

#[test]
fn what_a_run_lacks_is_said_in_its_place() {
    let text = Shown::of(&run_of(books(8)), None).text();
    for said in [
        "There is no file samples.jsonl beside the run",
        "This run has no call stacks, so that survivors are told by phase and layer",
        "This run has no call stacks, so that there is no flame graph",
        "not known: this run has no call stacks",
        "nothing to reconcile",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
}

#[test]
fn a_run_that_crashed_before_its_first_round_has_a_page() {
    let mut run = run_of(Books {
        ending: Ending::Signal { signal: 6 },
        ..Books::default()
    });
    for samples in [None, Some(""), Some("not a sample\n")] {
        let text = Shown::of(&run, samples).text();
        assert!(text.contains("? crash"), "{text}");
        assert!(text.contains("No round ended"), "{text}");
        assert!(text.contains("never reported to the ledger"), "{text}");
    }
    run.explanation = Some(Explanation::default());
    let text = Shown::of(&run, None).text();
    assert!(
        text.contains("The second run found no site that kept anything"),
        "{text}"
    );
}

#[test]
fn too_few_rounds_are_no_pass() {
    let shown = Shown::of(&run_of(books(3)), Some(&samples(1)));
    let text = shown.text();
    assert!(text.contains("? inconclusive"), "{text}");
    assert!(text.contains("neither passes nor fails"), "{text}");
    assert!(text.contains("Its one sample is drawn."), "{text}");
}

/// Every string that may be any string, replaced by one that is markup.
fn poisoned(value: Value, key: &str) -> Value {
    const OF_A_TYPE: [&str; 12] = [
        "schema",
        "class",
        "layer",
        "kind",
        "how",
        "driver",
        "confirmed",
        "also_fits",
        "until",
        "came_to",
        "enforced_by",
        "contexts_by",
    ];
    match value {
        Value::Object(map) => map
            .into_iter()
            .map(|(name, inner)| {
                let inner = poisoned(inner, &name);
                (name, inner)
            })
            .collect(),
        Value::Array(list) => list.into_iter().map(|inner| poisoned(inner, key)).collect(),
        Value::String(text) if !OF_A_TYPE.contains(&key) => Value::String(format!("{EVIL}{text}")),
        other => other,
    }
}

#[test]
fn a_hostile_run_is_shown_as_text() {
    let mut run = leaking();
    run.plan.command = vec!["prove".into(), "--all".into()];
    run.plan.round_on = Some("^round".into());
    run.plan.environment = BTreeMap::from([(EVIL.into(), EVIL.into())]);
    let hostile = samples(3).replace("synthesis", "<img src=x onerror=alert(1)>");
    let shown = Shown::new(
        &poisoned(serde_json::to_value(&run).unwrap(), ""),
        Some(&hostile),
    );
    let html = shown.page.html();
    assert_eq!(html.matches("<script").count(), 1, "the page's own");
    assert_eq!(html.matches("<img").count(), 0);
    assert!(
        html.matches("&lt;img src=x onerror").count() > 20,
        "it is there, as text"
    );
    assert!(!html.contains('\u{202e}') && !html.contains('\u{2028}'));
    // No attribute was left: what follows a quote in a tag is a space, a slash or the end.
    let tags = regex::Regex::new(r#"<[a-z][^<>]*>"#).unwrap();
    let whole = regex::Regex::new(r#"^<[a-zA-Z0-9]+( [a-zA-Z0-9-]+(="[^"]*")?)*>$"#).unwrap();
    let attribute = regex::Regex::new(r#" [a-zA-Z0-9-]+=""#).unwrap();
    let body = &html[html.find("<body").unwrap()..html.rfind("<script").unwrap()];
    for tag in tags.find_iter(body) {
        assert!(whole.is_match(tag.as_str()), "{}", tag.as_str());
        assert!(!tag.as_str().contains("onerror="), "{}", tag.as_str());
        // A browser takes the first of two, so that the second says nothing.
        let mut names: Vec<&str> = attribute
            .find_iter(tag.as_str())
            .map(|name| name.as_str())
            .collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all, "{}", tag.as_str());
    }
}

#[test]
fn absurd_numbers_break_nothing() {
    let mut run = serde_json::to_value(leaking()).unwrap();
    run["books"]["rounds"][0]["at_seconds"] = 1e308.into();
    run["books"]["rounds"][1]["at_seconds"] = (-1e308).into();
    run["books"]["rounds"][2]["peak_bytes"] = u64::MAX.into();
    run["books"]["series"][0]["live"][4]["bytes"] = i64::MIN.into();
    run["books"]["series"][0]["live"][5]["bytes"] = i64::MAX.into();
    run["books"]["survivors"][0]["round"] = u32::MAX.into();
    run["books"]["survivors"][1]["left"]["bytes"] = i64::MIN.into();
    run["explanation"]["sites"][0]["grown"]["bytes"] = i64::MAX.into();
    run["explanation"]["sites"][0]["yours"] = 99.into();
    run["verdict"]["findings"][0]["total"]["blocks"] = i64::MIN.into();
    run["ended_at"] = u64::MAX.into();
    for (round, bytes) in [(2, 1_u64 << 63), (7, (1 << 63) - 1)] {
        run["books"]["rounds"][round]["gauges"]["rss_anon"] = bytes.into();
        run["books"]["rounds"][round]["gauges"]["threads"] = bytes.into();
    }
    let huge = serde_json::json!({"bytes": i64::MAX, "blocks": i64::MAX});
    for phase in ["p", "q"] {
        let live = vec![huge.clone(); 8];
        let series = serde_json::json!({"layer": "anon", "phase": phase, "live": live});
        run["books"]["series"].as_array_mut().unwrap().push(series);
    }
    let strange = samples(2).replace("\"t\":0.01", "\"t\":1e300");
    for warmup in [0, 2, u32::MAX] {
        run["books"]["warmup"] = warmup.into();
        let html = Shown::new(&run, Some(&strange)).page.html();
        assert!(!html.contains("NaN") && !html.contains("inf%"));
    }
}

#[test]
fn a_huge_run_is_a_page_of_a_few_hundred_kilobytes_and_says_what_it_leaves_out() {
    let mut run = run_of(books(2_000));
    let explained = explanation(2_000);
    let site = |n: i64| {
        let mut site = explained.sites[0].clone();
        site.frames[1].function = format!("finish_{n}");
        site.grown = Amount::new(96 * n, n);
        site.left.truncate(12);
        site
    };
    run.explanation = Some(Explanation {
        sites: (1..=10_000).map(site).collect(),
        sites_exist: 12_000,
        ..explained
    });
    let shown = Shown::of(&run, Some(&samples(5_000)));
    let html = shown.page.html();
    assert!(html.len() < 2_000_000, "{}", html.len());
    let text = shown.text();
    for said in [
        "Of 5,000 samples",
        "9,985 others together",
        "Of 2,000 rounds",
        "2,000 smaller sites",
        "11,990 more sites",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
}

fn measures(mib: u64) -> Measures {
    Measures {
        peak_live: Some(mib << 20),
        peak_resident: Some((mib + 2) << 20),
        floor: Some(1 << 20),
        allocated: Some(10 * (mib << 20)),
        byte_seconds: Some((mib << 20) as f64 * 5.0),
        seconds: Some(10.0),
        wall_seconds: 11.0,
        rounds: 10,
        ..Measures::default()
    }
}

fn stored(name: &str, content: &impl Serialize) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, serde_json::to_string(content).unwrap()).unwrap();
    (folder, path)
}

fn comparison() -> StoredComparison {
    let runs = Runs {
        baseline: (0..6).map(|n| measures(20 + n % 2)).collect(),
        candidate: (0..6).map(|n| measures(32 + n % 2)).collect(),
        paired: true,
    };
    let version = |word: &str| Version {
        command: vec![word.to_owned(), "--workers=4".to_owned()],
        ..Version::default()
    };
    let comparison = Comparison::judge(&runs, &Terms::default());
    StoredComparison::new([version("old"), version("new")], comparison, runs)
}

fn sweep(off: u64) -> Sweep {
    let plan = SweepPlan {
        parameter: "workers".into(),
        values: ["1", "2", "4", "5", "6", "8"].map(str::to_owned).into(),
        repeat: 1,
        command: vec!["prove".into(), "{workers}".into()],
        environment: None,
        warmup: 1,
        limit_bytes: None,
        of: PeakOf::Resident,
        fit_on: None,
        budget_bytes: Some(100 << 20),
    };
    let run = |value: u64| SweepRun {
        value: value as f64,
        run: 1,
        peak: Some(Peak::Exactly(
            ((20 + 8 * value + if value == 6 { off } else { 0 }) << 20) + value % 3 * 1000,
        )),
        class: None,
        problem: None,
        measures: None,
    };
    Sweep::of(plan, Vec::new(), [1, 2, 4, 5, 6, 8].map(run).into())
}

#[test]
fn a_comparison_is_taken_apart_into_parts_that_add_up() {
    let (_folder, path) = stored("ab.json", &comparison());
    let page = Page::read(std::slice::from_ref(&path)).unwrap();
    let entry = &page.entries()[0];
    assert_eq!((entry.kind, entry.answer.as_str()), ("comparison", "worse"));
    let text = text_of(&page.html());
    for said in [
        "Why the peak moved. The mean resident peak rose from 22.5 MiB to 34.5 MiB",
        "remainder: bunching",
        "pair 6 | 23.0 MiB | 35.0 MiB |",
        "joined by a line",
        "new --workers=4",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
}

#[test]
fn a_value_that_contradicts_the_line_is_marked_by_shape_and_word() {
    let page = |off: u64| {
        let (_folder, path) = stored("sweep.json", &sweep(off));
        Page::read(&[path]).unwrap()
    };
    let (holds, fails) = (page(0), page(60));
    assert_eq!(holds.entries()[0].answer, "the line holds");
    assert!(!holds.html().contains("contradicts the line"));
    assert_eq!(fails.entries()[0].answer, "the line is contradicted");
    let html = fails.html();
    assert!(html.contains(r#"path class="contradicts""#));
    assert!(text_of(&html).contains("workers = 6 contradicts the line, so do not trust it."));
    assert!(
        text_of(&html).contains("workers = 6 | 128.0 MiB"),
        "{}",
        text_of(&html)
    );
}

#[test]
fn several_results_begin_with_each_answer() {
    let shown = Shown::of(&leaking(), None);
    let (_ab, ab) = stored("ab.json", &comparison());
    let (_sweep, sweep) = stored("sweep.json", &sweep(0));
    let page = Page::read(&[shown.folder.path().to_owned(), ab, sweep]).unwrap();
    let html = page.html();
    let contents = &html[html.find("<nav").unwrap()..html.find("</nav>").unwrap()];
    for said in ["#r1", "#r2", "#r3", "leak", "worse", "the line holds"] {
        assert!(contents.contains(said), "{said}: {contents}");
    }
    for id in ["r1", "r2", "r3"] {
        assert_eq!(html.matches(&format!("<article id=\"{id}\"")).count(), 1);
    }
    let ids = regex::Regex::new(r#" id="([^"]+)""#).unwrap();
    let mut ids: Vec<&str> = ids
        .captures_iter(&html)
        .map(|found| found.get(1).unwrap().as_str())
        .collect();
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all, "each id is there once");
}

#[test]
fn what_is_none_of_these_is_refused_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    for (content, reason) in [
        ("", "it is no run, comparison or sweep"),
        (
            "{\"schema\":\"tidegate.gate/1\"}",
            "it is of format \"tidegate.gate/1\"",
        ),
        ("{\"schema\":\"tidegate.ab/1\"}", "it is not a whole one"),
        ("{\"schema\":\"tidegate.run/1\"}", "not a whole one"),
    ] {
        let path = folder.path().join("x.json");
        fs::write(&path, content).unwrap();
        let error = Page::read(&[path]).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    let missing = Page::read(&[folder.path().join("nothing")]).unwrap_err();
    assert!(
        missing.to_string().contains("it cannot be read"),
        "{missing}"
    );
}
