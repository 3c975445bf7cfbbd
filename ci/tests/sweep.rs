//! `cargo tidegate sweep` and `merge` over a program that takes as many times 8 MiB as it
//! is told, and over published peaks.

mod common;

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

const MIB: f64 = (1 << 20) as f64;

/// Three rounds that hold so many blocks of 8 MiB at once. As many as the argument says, or
/// where there is none, as the environment does.
const TAKER: &str = r#"
import os, sys, time
count = int(sys.argv[1] if len(sys.argv) > 1 else os.environ["WORKERS"])
for r in range(1, 4):
    blocks = [bytearray(b"x") * (8 << 20) for _ in range(count)]
    time.sleep(0.05)
    blocks.clear()
    print("round", r, "done", flush=True)
    time.sleep(0.02)
"#;

fn tidegate(folder: &Path, arguments: &[&str]) -> (i32, String) {
    std::fs::write(folder.join("taker.py"), TAKER).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_cargo-tidegate"))
        .current_dir(folder)
        .env("TIDEGATE_RUNS", folder.join("runs"))
        .env_remove("WORKERS")
        .args(arguments)
        .output()
        .unwrap();
    (output.status.code().unwrap(), text(&output))
}

fn text(output: &Output) -> String {
    let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}", words(&output.stdout), words(&output.stderr))
}

fn read(folder: &Path, file: &str) -> Value {
    common::parsed(&std::fs::read_to_string(folder.join(file)).unwrap())
}

const ROUNDS: [&str; 4] = ["--round-on", "^round", "--warmup", "1"];
const TAKE: [&str; 4] = ["--", "python3", "taker.py", "{workers}"];

#[test]
fn a_program_that_takes_8_mib_for_each_worker_is_found_to() {
    let folder = tempfile::tempdir().unwrap();
    let options = [
        "--param",
        "workers=1,2,4,6",
        "--budget",
        "100MiB",
        "--json",
        "sweep.json",
    ];
    let (code, words) = tidegate(
        folder.path(),
        &[&["sweep"], &options[..], &ROUNDS, &TAKE].concat(),
    );
    assert_eq!(code, 0, "{words}");
    let sweep = read(folder.path(), "sweep.json");
    let line = &sweep["forecast"]["line"];
    let (slope, base) = (
        line["slope"].as_f64().unwrap(),
        line["base"].as_f64().unwrap(),
    );
    assert!((slope / MIB - 8.0).abs() < 0.2, "{words}");
    // What the interpreter itself takes is the machine's affair; what fits follows from it.
    let fits = ((100.0 * MIB - base) / slope).floor() as u64;
    assert_eq!(
        sweep["forecast"]["budget"]["expected"],
        json!({"at": fits}),
        "{words}"
    );
    assert!((9..=12).contains(&fits), "{words}");
    assert!(
        words.contains(&format!("fits 100.0 MiB is {fits}")),
        "{words}"
    );
    assert!(words.contains("o measured, + the line"), "{words}");
}

#[test]
fn a_run_that_dies_at_the_limit_is_no_point_of_the_line() {
    let folder = tempfile::tempdir().unwrap();
    let options = [
        "--param",
        "workers=1,2,3,8",
        "--limit",
        "48MiB",
        "--json",
        "sweep.json",
    ];
    let (code, words) = tidegate(
        folder.path(),
        &[&["sweep"], &options[..], &ROUNDS, &TAKE].concat(),
    );
    assert_eq!(code, 0, "{words}");
    let sweep = read(folder.path(), "sweep.json");
    assert_eq!(
        sweep["forecast"]["drawn_through"],
        json!([1.0, 2.0, 3.0]),
        "{words}"
    );
    let killed = sweep["runs"][3]["peak"]["at-least"].as_f64().unwrap();
    assert!(killed >= 48.0 * MIB, "{words}");
    assert_eq!(sweep["runs"][3]["class"], "ceiling", "{words}");
    assert!(words.contains("≥"), "{words}");
}

#[test]
fn parts_that_were_made_apart_are_judged_together_and_a_missing_one_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let part = |share: &str, file: &str| {
        let options = [
            "--param",
            "workers=1,2,4",
            "--as-env",
            "WORKERS",
            "--peak",
            "live",
            "--partition",
            share,
            "--json",
            file,
        ];
        let command = ["--", "python3", "taker.py"];
        let (code, words) = tidegate(
            folder.path(),
            &[&["sweep"], &options[..], &ROUNDS, &command].concat(),
        );
        assert_eq!(code, 0, "{words}");
    };
    part("1/2", "1.json");
    part("2/2", "2.json");
    let (code, words) = tidegate(folder.path(), &["merge", "1.json", "--json", "whole.json"]);
    assert_eq!(code, 5, "{words}");
    assert!(words.contains("missing: part 2 of 2"), "{words}");
    let (code, words) = tidegate(
        folder.path(),
        &["merge", "2.json", "1.json", "--json", "whole.json"],
    );
    assert_eq!(code, 0, "{words}");
    let whole = read(folder.path(), "whole.json");
    let slope = whole["forecast"]["line"]["slope"].as_f64().unwrap();
    assert!((slope / MIB - 8.0).abs() < 0.1, "{words}");
    let parts = |file: &str| read(folder.path(), file)["runs"].as_array().unwrap().len();
    assert_eq!(
        (parts("1.json"), parts("2.json"), parts("whole.json")),
        (2, 1, 3)
    );
    let (code, words) = tidegate(folder.path(), &["merge", "1.json", "1.json"]);
    assert!(
        code == 2 && words.contains("part 1 of 2 is there twice"),
        "{words}"
    );
}

#[test]
fn what_cuzk_published_of_few_workers_is_held_against_many() {
    let folder = tempfile::tempdir().unwrap();
    let table = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../fixtures/published/cuzk-peaks.csv"
    );
    let arguments = [
        "sweep",
        "--table",
        table,
        "--fit-on",
        "1,2,5,7",
        "--budget",
        "755GiB",
        "--json",
        "sweep.json",
    ];
    let (code, words) = tidegate(folder.path(), &arguments);
    assert_eq!(code, 5, "a line that is contradicted is no basis: {words}");
    let sweep = read(folder.path(), "sweep.json");
    let gib = |bytes: &Value| (bytes.as_f64().unwrap() / (1 << 30) as f64 * 10.0).round() / 10.0;
    let line = &sweep["forecast"]["line"];
    assert_eq!((gib(&line["base"]), gib(&line["slope"])), (80.4, 18.0));
    let values = sweep["forecast"]["values"].as_array().unwrap();
    let of = |value: f64| {
        values
            .iter()
            .find(|checked| checked["value"] == value)
            .unwrap()
    };
    let predicted = [10.0, 12.0, 14.0, 16.0].map(|value| gib(&of(value)["predicted"]));
    assert_eq!(predicted, [260.6, 296.7, 332.7, 368.8]);
    let contradicts =
        [10.0, 12.0, 14.0, 16.0].map(|value| of(value)["contradicts"].as_bool().unwrap());
    assert_eq!(contradicts, [false, true, true, true]);
    let budget = &sweep["forecast"]["budget"];
    assert_eq!(
        (&budget["expected"], &budget["sure"]),
        (&json!({"at": 37}), &json!({"at": 29}))
    );
    for said in [
        "-10.3 %",
        "-23.2 %",
        "-27.2 %",
        "-27.7 %",
        "12, 14 and 16 contradict the line",
    ] {
        assert!(words.contains(said), "{said}\n{words}");
    }
}

#[test]
fn mistakes_are_usage_errors_that_say_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |arguments: &[&str], word: &str| {
        let (code, words) = tidegate(folder.path(), arguments);
        assert!(code == 2 && words.contains(word), "{code} {words}");
    };
    refused(
        &[
            "sweep",
            "--param",
            "w=1,2",
            "--round-on",
            "x",
            "--",
            "touch",
            "started",
        ],
        "--as-env",
    );
    assert!(!folder.path().join("started").exists(), "nothing is run");
    refused(
        &[
            "sweep",
            "--param",
            "w=1,x",
            "--round-on",
            "x",
            "--",
            "echo",
            "{w}",
        ],
        "no number",
    );
    refused(
        &[
            "sweep",
            "--param",
            "w=1,2",
            "--partition",
            "1/2",
            "--round-on",
            "x",
            "--",
            "echo",
            "{w}",
        ],
        "--json",
    );
    std::fs::write(
        folder.path().join("peaks.csv"),
        "# a table\nw,peak\n1,5 MiB\n2,much\n",
    )
    .unwrap();
    refused(&["sweep", "--table", "peaks.csv"], "peaks.csv:4:");
    refused(&["sweep", "--table", "nowhere.csv"], "nowhere.csv");
    std::fs::write(
        folder.path().join("other.json"),
        "{\"schema\": \"tidegate.run/1\"}",
    )
    .unwrap();
    refused(&["merge", "other.json"], "tidegate.run/1");
    std::fs::write(folder.path().join("half.json"), "{\"schema\": \"tide").unwrap();
    refused(&["merge", "half.json"], "half.json");
}
