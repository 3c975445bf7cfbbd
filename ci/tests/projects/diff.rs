//! `cargo tidegate diff` over runs, profiles and files in DHAT's format.

use crate::common::parsed;
use crate::project::{Project, expect, phase_book};
use serde_json::{Value, json};

/// A file in DHAT's format: points as bytes, blocks and frames.
fn dhat(points: &[(u64, u64, &[&str])]) -> Value {
    let mut table = vec![json!("[root]")];
    let mut pps = Vec::new();
    for (bytes, blocks, frames) in points {
        let mut fs = Vec::new();
        for frame in *frames {
            let at = table
                .iter()
                .position(|known| known == frame)
                .unwrap_or_else(|| {
                    table.push(json!(frame));
                    table.len() - 1
                });
            fs.push(at);
        }
        pps.push(json!({
            "tb": bytes, "tbk": blocks, "tl": 10, "mb": 0, "mbk": 0,
            "gb": 0, "gbk": 0, "eb": 0, "ebk": 0, "fs": fs,
        }));
    }
    json!({
        "dhatFileVersion": 2, "mode": "rust-heap", "verb": "Allocated", "bklt": true,
        "bkacc": false, "tu": "µs", "Mtu": "s", "tuth": 10, "cmd": "prover", "pid": 1,
        "tg": 5, "te": 9, "pps": pps, "ftbl": table,
    })
}

fn diff(project: &Project, words: &[&str]) -> Value {
    let all: Vec<&str> = ["diff", "--json"]
        .into_iter()
        .chain(words.iter().copied())
        .collect();
    let (code, words) = project.call(&all);
    assert_eq!(code, 0, "{words}");
    parsed(&words)
}

fn names(entry: &Value) -> &str {
    entry["frames"][0].as_str().unwrap()
}

#[test]
fn sites_of_dhat_files_are_new_gone_moved_or_changed_the_biggest_first() {
    let project = Project::new();
    let main = "0x1: prover::main (src/main.rs:3:1)";
    let old = dhat(&[
        (1000, 10, &["0x2: prover::grow (src/a.rs:1:1)", main]),
        (500, 5, &["0x3: prover::gone (src/a.rs:2:1)", main]),
        (77, 7, &["0x4: prover::helper (src/a.rs:3:1)", main]),
        (9, 1, &["0x5: prover::same (src/a.rs:4:1)", main]),
    ]);
    // Addresses and lines are others; `helper` is called by another function.
    let new = dhat(&[
        (9, 1, &["0xa: prover::same (src/a.rs:44:1)", main]),
        (3000, 30, &["0xb: prover::grow (src/a.rs:1:1)", main]),
        (
            77,
            7,
            &[
                "0xc: prover::helper (src/a.rs:3:1)",
                "0xd: prover::caller (src/b.rs:1:1)",
                main,
            ],
        ),
        (600, 6, &["0xe: prover::fresh (src/c.rs:1:1)", main]),
    ]);
    project.write("old.json", &old.to_string());
    project.write("new.json", &serde_json::to_string_pretty(&new).unwrap());
    let found = diff(&project, &["old.json", "new.json"]);
    let counts = json!({
        "old": 4, "new": 4, "changed": 1, "appeared": 1, "gone": 1, "moved": 1, "other_lines": 1,
    });
    assert_eq!(found["site_counts"], counts);
    let sites: Vec<(&str, &str)> = found["sites"]
        .as_array()
        .unwrap()
        .iter()
        .map(|site| (names(site), site["standing"]["is"].as_str().unwrap()))
        .collect();
    assert_eq!(
        sites,
        [
            ("prover::grow (src/a.rs:1:1)", "changed"),
            ("prover::fresh (src/c.rs:1:1)", "new"),
            ("prover::gone (src/a.rs:2:1)", "gone"),
            ("prover::helper (src/a.rs:3:1)", "moved"),
        ]
    );
    let bytes = &found["sites"][0]["changes"][1];
    assert_eq!(
        (&bytes["metric"], &bytes["old"], &bytes["new"]),
        (&json!("bytes"), &json!(1000), &json!(3000))
    );
    assert_eq!(found["whole"][1]["new"], 3686, "the sum of all");

    let done = project.call(&["diff", "old.json", "new.json", "--top", "1"]);
    expect(
        &done,
        0,
        &[
            "4 sites: 1 changed, 1 new, 1 gone, 1 moved; 1 at other lines",
            "changed: blocks 10 to 30 (+20, +200.0 %), bytes 1,000 B to 2.9 KiB (+2.0 KiB, +200.0 %)",
            "prover::grow (src/a.rs:1:1)",
            "3 more (see --top)",
        ],
    );
}

#[test]
fn names_in_markdown_and_on_a_terminal_are_text_and_nothing_else() {
    let project = Project::new();
    project.write("old.json", &dhat(&[]).to_string());
    let evil = "0x1: f</code><script>|`@everyone`\u{1b}[2J\n# head (a.rs:1:1)";
    project.write("new.json", &dhat(&[(1, 1, &[evil])]).to_string());
    let (code, markdown) = project.call(&["diff", "old.json", "new.json", "--markdown"]);
    assert_eq!(code, 0, "{markdown}");
    for bad in [
        "<script",
        "</code><",
        "`@",
        "@everyone",
        "\u{1b}",
        "\n# head",
        "script>|",
    ] {
        assert!(!markdown.contains(bad), "{bad:?} in\n{markdown}");
    }
    assert!(markdown.contains("1 site (0 before): 1 new"), "{markdown}");
    let (_, terminal) = project.call(&["diff", "old.json", "new.json"]);
    assert!(
        !terminal.contains('\u{1b}') && !terminal.contains("\n# head"),
        "{terminal}"
    );
}

#[test]
fn runs_are_compared_by_phase_and_layer() {
    let project = Project::new();
    project.run("old", "clean", |_| {});
    project.run("new", "device", |_| {});
    let found = diff(&project, &["old", "new/run.json"]);
    let first = &found["phases"][0];
    assert_eq!(
        (&first["phase"], &first["layer"]),
        (&json!("unattributed"), &json!("device"))
    );
    let left = first["changes"].as_array().unwrap();
    let left = left
        .iter()
        .find(|change| change["metric"] == "left-bytes")
        .unwrap();
    assert_eq!(
        (&left["old"], &left["new"], &left["outcome"]),
        (&json!(0), &json!(16_777_216), &json!("above"))
    );
    let done = project.call(&["diff", "old", "new"]);
    expect(
        &done,
        0,
        &[
            "device of phase unattributed",
            "bytes left 0 B 16.0 MiB +16.0 MiB",
            "OLD is one run",
        ],
    );
}

#[test]
fn what_several_old_runs_vary_by_is_no_change_and_what_never_varied_is() {
    let project = Project::new();
    project.three_clean("a");
    project.run("new", "clean", |run| {
        run["plan"]["name"] = "a".into();
        *crate::project::phase(run, "device") = 1_100_000.into();
        phase_book(run, "device")["allocated"]["blocks"] = 48.into();
    });
    let found = diff(&project, &["a1", "a2", "a3", "new"]);
    assert_eq!(found["old"]["runs"], 3);
    let changes = found["phases"][0]["changes"].as_array().unwrap();
    let of = |metric: &str| {
        changes
            .iter()
            .find(|change| change["metric"] == metric)
            .unwrap()
    };
    assert_eq!(of("peak")["outcome"], "within");
    assert_eq!(of("peak")["tolerance"]["basis"], "spread");
    assert_eq!(of("blocks")["outcome"], "above");
    assert_eq!(of("blocks")["tolerance"]["basis"], "never-varied");
    assert_eq!(found["notes"], json!([]));
}

#[test]
fn what_cannot_be_compared_or_read_is_refused_with_what_can() {
    let project = Project::new();
    project.run("run", "clean", |_| {});
    project.write("one.json", &dhat(&[]).to_string());
    let mut copies = dhat(&[]);
    copies["mode"] = "copy".into();
    project.write("copy.json", &copies.to_string());
    project.write("notes.txt", "hello");
    project.write("cut.json", &dhat(&[]).to_string()[..100]);
    project.write("cut.profile", "tidegate-profile 1\nscenario a\nruns x\n");
    project.write("run.json", "{\"schema\": \"tidegate.run/99\"}");
    for (words, message) in [
        (
            &["run", "one.json"][..],
            "compare runs with runs, or DHAT files with DHAT files",
        ),
        (
            &["one.json", "run"],
            "compare runs with runs, or DHAT files with DHAT files",
        ),
        (
            &["one.json", "one.json", "one.json"],
            "several OLD can be profiles, baselines and runs",
        ),
        (
            &["one.json", "copy.json"],
            "a profile of `rust-heap` and the other of `copy`",
        ),
        (
            &["one.json", "notes.txt"],
            "notes.txt:1:1: this is no profile or baseline",
        ),
        (&["one.json", "missing.json"], "failed to read missing.json"),
        (
            &["one.json", "cut.json"],
            "cut.json:1:101: the file is cut off here",
        ),
        (
            &["run", "cut.profile"],
            "cut.profile:3:1: `x` is no number of runs",
        ),
        (&["run", "run.json"], "is of format \"tidegate.run/99\""),
        (&["one.json"], "NEW"),
    ] {
        let words: Vec<&str> = ["diff"].into_iter().chain(words.iter().copied()).collect();
        let (code, told) = project.call(&words);
        assert_eq!(code, 2, "{words:?}: {told}");
        assert!(
            crate::project::flat(&told).contains(message),
            "{words:?}: {told}"
        );
    }
}
