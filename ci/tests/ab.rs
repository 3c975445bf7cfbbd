//! `cargo tidegate ab` over small programs whose memory is known: each test runs the
//! command in a folder of its own, and looks at the exit code, the words and the JSON.

mod common;

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const MIB: f64 = (1 << 20) as f64;

/// Three rounds of ten blocks of 4 MiB. Each block is kept until so many later ones are
/// there: twice as many keep each twice as long, at the same pace.
const HOLDER: &str = r#"
import sys, time
from collections import deque
for r in range(1, 4):
    held = deque(maxlen=int(sys.argv[1]))
    for i in range(10):
        held.append(bytearray(b"x") * (4 << 20))
        time.sleep(0.015)
    held.clear()
    print("round", r, "done", flush=True)
    time.sleep(0.02)
time.sleep(0.2)
"#;

fn ab(folder: &Path, arguments: &[&str]) -> (i32, String) {
    std::fs::write(folder.join("holder.py"), HOLDER).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_cargo-tidegate"))
        .current_dir(folder)
        .env("TIDEGATE_RUNS", folder.join("runs"))
        .arg("ab")
        .args(arguments)
        .output()
        .unwrap();
    (output.status.code().unwrap(), text(&output))
}

fn text(output: &Output) -> String {
    let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}", words(&output.stdout), words(&output.stderr))
}

/// What is said, wherever its lines are broken.
fn in_one_line(words: &str) -> String {
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn json(folder: &Path) -> Value {
    common::parsed(&std::fs::read_to_string(folder.join("ab.json")).unwrap())
}

fn metric<'a>(report: &'a Value, name: &str) -> &'a Value {
    let metrics = report["comparison"]["metrics"].as_array().unwrap();
    metrics
        .iter()
        .find(|metric| metric["metric"] == name)
        .unwrap()
}

#[test]
fn a_candidate_that_keeps_each_block_twice_as_long_is_worse_for_that_reason() {
    let folder = tempfile::tempdir().unwrap();
    let (code, words) = ab(
        folder.path(),
        &[
            "--baseline",
            "python3 'holder.py' 3",
            "--candidate",
            "python3 holder.py 6",
            "--round-on",
            "^round",
            "--warmup",
            "1",
            "--judge",
            "peak,live-peak,floor",
            "--json",
            "ab.json",
            "--keep-in",
            "kept",
        ],
    );
    assert_eq!(code, 3, "{words}");
    let report = json(folder.path());
    assert_eq!(
        report["runs"]["baseline"].as_array().unwrap().len(),
        6,
        "no more than it takes"
    );
    assert_eq!(metric(&report, "floor")["change"], "same", "{words}");
    for peak in ["peak", "live-peak"] {
        assert_eq!(metric(&report, peak)["change"], "more", "{words}");
        let shift = metric(&report, peak)["shift"]["estimate"].as_f64().unwrap();
        assert!(
            (shift / MIB - 12.0).abs() < 1.0,
            "three blocks more: {shift}\n{words}"
        );
    }
    let why = &report["comparison"]["why"];
    let part = |term: &str| {
        let parts = why["parts"].as_array().unwrap();
        parts.iter().find(|part| part["term"] == term).unwrap()
    };
    let bytes = |part: &Value| part["bytes"].as_i64().unwrap();
    let difference = why["candidate"].as_i64().unwrap() - why["baseline"].as_i64().unwrap();
    let sum: i64 = why["parts"].as_array().unwrap().iter().map(bytes).sum();
    assert_eq!(sum + bytes(&why["remainder"]), difference, "{words}");
    let held = part("seconds-held");
    let longer = held["candidate"].as_f64().unwrap() / held["baseline"].as_f64().unwrap();
    assert!(longer > 1.4 && longer < 2.2, "{longer}\n{words}");
    assert!(2 * bytes(held) > difference, "{words}");
    let of_size = bytes(part("bytes-per-item")).abs();
    assert!(4 * of_size < difference, "{of_size}\n{words}");
    assert!(in_one_line(&words).contains("each byte is held"), "{words}");

    // The runs that were kept say the same once more, and nothing is run.
    let kept =
        |side: &str| -> Vec<String> { (1..=6).map(|pair| format!("kept/{side}-{pair}")).collect() };
    let (baseline, candidate) = (kept("baseline"), kept("candidate"));
    let mut arguments = vec!["--judge", "peak", "--json", "ab.json", "--baseline-run"];
    arguments.extend(baseline.iter().map(String::as_str));
    arguments.push("--candidate-run");
    arguments.extend(candidate.iter().map(String::as_str));
    let (code, words) = ab(folder.path(), &arguments);
    assert_eq!(code, 3, "{words}");
    let again = json(folder.path());
    assert_eq!(again["runs"]["baseline"], report["runs"]["baseline"]);
    assert_eq!(again["comparison"]["why"], report["comparison"]["why"]);

    // One run of each is no evidence, and says why all the same.
    let one = [
        "--judge",
        "peak",
        "--json",
        "ab.json",
        "--baseline-run",
        "kept/baseline-1",
        "--candidate-run",
        "kept/candidate-1",
    ];
    let (code, words) = ab(folder.path(), &one);
    assert_eq!(code, 5, "{words}");
    assert_eq!(
        metric(&json(folder.path()), "peak")["would_decide"],
        4,
        "{words}"
    );
    assert!(in_one_line(&words).contains("each byte is held"), "{words}");
}

#[test]
fn a_program_compared_with_itself_is_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let program = "python3 holder.py 3";
    let (code, words) = ab(
        folder.path(),
        &[
            "--baseline",
            program,
            "--candidate",
            program,
            "--round-on",
            "^round",
            "--warmup",
            "1",
            "--judge",
            "peak,live-peak,floor",
            "--pairs-at-most",
            "6",
            "--json",
            "ab.json",
        ],
    );
    assert_eq!(code, 0, "{words}");
    for name in ["peak", "live-peak", "floor"] {
        assert_eq!(
            metric(&json(folder.path()), name)["change"],
            "same",
            "{words}"
        );
    }
    assert!(
        !words.contains("round 1 done"),
        "their output is not ours: {words}"
    );
}

#[test]
fn a_candidate_that_dies_at_the_limit_has_a_lower_bound_for_a_peak() {
    let folder = tempfile::tempdir().unwrap();
    let (code, words) = ab(
        folder.path(),
        &[
            "--baseline",
            "python3 holder.py 2",
            "--candidate",
            "python3 holder.py 10",
            "--round-on",
            "^round",
            "--warmup",
            "1",
            "--limit",
            "34MiB",
            "--pairs-at-most",
            "1",
            "--json",
            "ab.json",
        ],
    );
    assert_eq!(code, 5, "one pair decides nothing: {words}");
    let report = json(folder.path());
    let candidate = &metric(&report, "peak")["candidate"];
    assert_eq!(candidate["killed"], 1, "{words}");
    assert!(
        candidate["median"].as_f64().unwrap() >= 34.0 * MIB,
        "{words}"
    );
    assert_eq!(report["candidate"]["classes"]["ceiling"], 1, "{words}");
    assert!(words.contains("≥"), "{words}");
    assert!(
        report["comparison"]["why"].is_null(),
        "nobody knows the candidate's peak"
    );
}

#[test]
fn a_run_that_crashes_ends_it_and_is_named_with_its_last_words() {
    let folder = tempfile::tempdir().unwrap();
    let (code, words) = ab(
        folder.path(),
        &[
            "--baseline",
            "sh -c 'echo round 1 done'",
            "--candidate",
            "sh -c 'echo no such proof >&2; exit 7'",
            "--round-on",
            "^round",
            "--json",
            "ab.json",
        ],
    );
    assert_eq!(code, 6, "{words}");
    assert!(
        words.contains("the candidate broke off in run 1"),
        "{words}"
    );
    assert!(words.contains("no such proof"), "{words}");
    assert!(!folder.path().join("ab.json").exists(), "no half a result");
}

#[test]
fn mistakes_are_usage_errors_that_say_which() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |arguments: &[&str], word: &str| {
        let (code, words) = ab(folder.path(), arguments);
        assert!(code == 2 && words.contains(word), "{code} {words}");
    };
    refused(&["--baseline", "true", "--round-on", "x"], "--candidate");
    refused(
        &[
            "--baseline",
            "echo 'open",
            "--candidate",
            "true",
            "--round-on",
            "x",
        ],
        "--baseline",
    );
    refused(
        &[
            "--baseline",
            "true",
            "--candidate",
            "true",
            "--round-on",
            "x",
            "--tolerance",
            "2",
        ],
        "such as 2%",
    );
    refused(
        &[
            "--baseline",
            "true",
            "--candidate",
            "true",
            "--round-on",
            "x",
            "--judge",
            "speed",
        ],
        "throughput",
    );
    refused(
        &["--baseline-run", "nowhere", "--candidate-run", "nowhere"],
        "nowhere",
    );
}
