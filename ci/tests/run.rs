//! `cargo tidegate run` over programs that know nothing of it: each test runs the
//! command on a small shell program in a folder of its own, and looks at what a user
//! would: the exit code, the words, the JSON.

use std::path::Path;
use std::process::{Command, Output};

/// Runs the command on a shell program; `before` are the options before `--`.
fn run(folder: &Path, before: &[&str], program: &str) -> (i32, String, serde_json::Value) {
    let json = folder.join("run.json");
    let output = command(folder)
        .args(["run", "--round-on", "^round [0-9]+ done$", "--json"])
        .arg(&json)
        .args(before)
        .args(["--", "sh", "-c", program])
        .output()
        .unwrap();
    let words = text(&output);
    let stored = std::fs::read(&json).unwrap_or_else(|error| panic!("{error}\n{words}"));
    let run = serde_json::from_slice(&stored).unwrap();
    (output.status.code().unwrap(), words, run)
}

fn command(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cargo-tidegate"));
    command
        .current_dir(folder)
        .env("TIDEGATE_RUNS", folder.join("runs"));
    command
}

fn text(output: &Output) -> String {
    let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}", words(&output.stdout), words(&output.stderr))
}

fn class(run: &serde_json::Value) -> &str {
    run["verdict"]["class"].as_str().unwrap()
}

/// Thirty rounds of `body`, with a moment after each. A shell has done with a round a
/// moment after its line, so that its blocks come and go between rounds by chance.
fn rounds(body: &str) -> String {
    format!("for i in $(seq 30); do {body}; echo round $i done; sleep 0.05; done; sleep 0.2")
}

#[test]
fn a_program_that_keeps_nothing_passes_and_its_output_goes_through() {
    let folder = tempfile::tempdir().unwrap();
    let (code, words, run) = run(
        folder.path(),
        &["--warmup", "3"],
        &rounds("x=$(echo hello)"),
    );
    assert_eq!(
        (code, run["verdict"]["sentence"].is_string()),
        (0, true),
        "{words}"
    );
    assert!(words.contains("round 30 done"), "{words}");
    let judged = run["verdict"]["judged"]["rounds_judged"].as_u64().unwrap();
    assert!(judged >= 8, "{judged} rounds\n{words}");
}

#[test]
fn a_program_of_many_short_lived_children_is_judged_and_not_left_open() {
    let folder = tempfile::tempdir().unwrap();
    let children = "for k in $(seq 25); do /bin/true; /bin/true & done; wait";
    let (code, words, run) = run(folder.path(), &["--warmup", "3"], &rounds(children));
    assert_eq!(code, 0, "{words}");
    let unreadable = &run["books"]["health"]["unreadable"];
    assert_eq!(unreadable, &serde_json::json!([]), "{words}");
}

#[test]
fn a_string_that_grows_by_as_much_in_each_round_is_a_leak() {
    let folder = tempfile::tempdir().unwrap();
    let grow = "x=$x$(head -c 10000 /dev/zero | tr '\\0' x)";
    let (code, words, run) = run(folder.path(), &["--warmup", "3"], &rounds(grow));
    assert_eq!((code, class(&run)), (3, "leak"), "{words}");
    assert_eq!(
        run["verdict"]["findings"][0]["layer"], "native-heap",
        "{words}"
    );
}

#[test]
fn a_program_that_is_killed_is_a_crash_and_its_books_are_stored() {
    let folder = tempfile::tempdir().unwrap();
    let (code, words, run) = run(
        folder.path(),
        &["--warmup", "1"],
        "echo round 1 done; sleep 0.2; kill -9 $$",
    );
    assert_eq!((code, class(&run)), (6, "crash"), "{words}");
    assert_eq!(run["books"]["ending"]["signal"], 9, "{words}");
}

#[test]
fn too_few_rounds_are_inconclusive() {
    let folder = tempfile::tempdir().unwrap();
    let (code, words, run) = run(
        folder.path(),
        &["--warmup", "1"],
        "echo round 1 done; sleep 0.3; echo round 2 done",
    );
    assert_eq!((code, class(&run)), (5, "inconclusive"), "{words}");
    assert!(
        !run["verdict"]["missing"].as_array().unwrap().is_empty(),
        "{words}"
    );
}

#[test]
fn a_program_over_its_limit_is_a_ceiling() {
    let folder = tempfile::tempdir().unwrap();
    let program = "echo round 1 done; sleep 0.2; x=$(head -c 300000000 /dev/zero | tr '\\0' a); echo round 2 done";
    let (code, words, run) = run(
        folder.path(),
        &["--warmup", "0", "--limit", "64MiB"],
        program,
    );
    assert_eq!((code, class(&run)), (3, "ceiling"), "{words}");
}

#[test]
fn the_run_follows_the_committed_schema() {
    let folder = tempfile::tempdir().unwrap();
    let (_, words, run) = run(folder.path(), &["--warmup", "3"], &rounds("true"));
    let schema = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/run.schema.json");
    let schema: serde_json::Value =
        serde_json::from_slice(&std::fs::read(schema).unwrap()).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let problems: Vec<String> = validator
        .iter_errors(&run)
        .map(|problem| problem.to_string())
        .collect();
    assert!(problems.is_empty(), "{problems:#?}\n{words}");
}

#[test]
fn a_program_that_is_not_there_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let output = command(folder.path())
        .args([
            "run",
            "--round-on",
            "x",
            "--json",
            "run.json",
            "--",
            "no-such-program-here",
        ])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(
        text(&output).contains("failed to start no-such-program-here"),
        "{}",
        text(&output)
    );
    assert!(!folder.path().join("run.json").exists(), "no half a result");
}

#[test]
fn a_bad_pattern_or_size_is_a_usage_error_that_says_which() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |arguments: &[&str]| {
        let output = command(folder.path())
            .arg("run")
            .args(arguments)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        text(&output)
    };
    let words = refused(&["--round-on", "(", "--", "true"]);
    assert!(
        words.contains("--round-on") && words.contains("unclosed group"),
        "{words}"
    );
    let words = refused(&["--round-on", "x", "--limit", "many", "--", "true"]);
    assert!(words.contains("--limit"), "{words}");
    let words = refused(&["--round-on", "x"]);
    assert!(words.contains("CMD"), "{words}");
}

#[test]
fn known_leaks_are_let_through_until_their_last_day() {
    let folder = tempfile::tempdir().unwrap();
    let known = folder.path().join("known.supp");
    std::fs::write(
        &known,
        "#: reason = the shell keeps its strings\n#: until = 2026-03-31\n\
         #: layer = native-heap\nleak:*\n",
    )
    .unwrap();
    let known = known.to_str().unwrap();
    let grow = "x=$x$(head -c 10000 /dev/zero | tr '\\0' x)";
    let on = |day: &str| {
        let options = ["--warmup", "3", "--suppressions", known, "--as-of", day];
        run(folder.path(), &options, &rounds(grow))
    };
    let (code, words, last_day) = on("2026-03-31");
    assert_eq!(code, 0, "{words}");
    let told = &last_day["set_aside"]["suppressions"][0];
    assert_eq!(told["came_to"], "used", "{words}");
    assert_eq!(last_day["set_aside"]["findings"][0]["class"], "leak");
    let (code, words, day_after) = on("2026-04-01");
    assert_eq!((code, class(&day_after)), (3, "leak"), "{words}");
    let told = &day_after["set_aside"]["suppressions"][0];
    assert_eq!(told["came_to"], "expired", "{words}");
}

#[test]
fn a_mistake_in_suppressions_is_a_usage_error_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let known = folder.path().join("known.supp");
    std::fs::write(&known, "# known\n#: reason = ticket 812\nleak:f\n").unwrap();
    let output = command(folder.path())
        .args(["run", "--round-on", "x", "--suppressions"])
        .arg(&known)
        .args(["--", "touch", "started"])
        .output()
        .unwrap();
    let words = text(&output);
    assert_eq!(output.status.code(), Some(2), "{words}");
    assert!(
        words.contains("known.supp:3: `leak:f` has no until"),
        "{words}"
    );
    assert!(!folder.path().join("started").exists(), "nothing is run");
}
