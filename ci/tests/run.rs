//! `cargo tidegate run` over programs that know nothing of it: each test runs the
//! command on a small shell program in a folder of its own, and looks at what a user
//! would: the exit code, the words, the JSON.

mod common;

use std::path::Path;
use std::process::{Command, Output};

/// Runs the command on a shell program; `before` are the options before `--`.
fn run(folder: &Path, before: &[&str], program: &str) -> (i32, String, serde_json::Value) {
    let lines = ["--round-on", "^round [0-9]+ done$"];
    run_as(
        folder,
        &[&lines[..], before, &["--", "sh", "-c", program]].concat(),
    )
}

/// Runs the command with these arguments; with its words and what it stored.
fn run_as(folder: &Path, arguments: &[&str]) -> (i32, String, serde_json::Value) {
    let json = folder.join("run.json");
    let output = command(folder)
        .args(["run", "--json"])
        .arg(&json)
        .args(arguments)
        .output()
        .unwrap();
    let words = text(&output);
    let stored = std::fs::read_to_string(&json).unwrap_or_else(|error| panic!("{error}\n{words}"));
    let run = common::parsed(&stored);
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
fn a_round_that_is_busy_for_ever_hangs_where_it_is_said_how_long_one_may_take() {
    let folder = tempfile::tempdir().unwrap();
    let busy = "for i in 1 2 3; do echo round $i done; done; while :; do :; done";
    let at_most = ["--warmup", "1", "--round-at-most", "1s"];
    let (code, words, hung) = run(folder.path(), &at_most, busy);
    assert_eq!((code, class(&hung)), (3, "hang"), "{words}");
    assert!(words.contains("though it was busy"), "{words}");

    // It is the round that is too long, not the program.
    let at_most = ["--warmup", "1", "--round-at-most", "30s"];
    let longer = rounds("x=$(echo hello)");
    let (_, words, passed) = run(folder.path(), &at_most, &longer);
    assert_ne!(class(&passed), "hang", "{words}");
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

// ---- Other sources of rounds, and other ends -------------------------------------

fn rounds_of(run: &serde_json::Value) -> usize {
    run["books"]["rounds"].as_array().unwrap().len()
}

#[test]
fn lines_of_a_log_file_end_rounds_and_those_of_the_output_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let program = "for i in $(seq 12); do echo round $i done >> server.log; echo round x done; \
                   sleep 0.05; done; sleep 0.2";
    let arguments = ["--round-on", "^round [0-9]+ done$", "--log", "server.log"];
    std::fs::write(folder.path().join("server.log"), "round 0 done\n").unwrap();
    let (_, words, run) = run_as(
        folder.path(),
        &[&arguments[..], &["--", "sh", "-c", program]].concat(),
    );
    assert_eq!(rounds_of(&run), 12, "{words}");
    assert!(words.contains("round x done"), "{words}");
}

#[test]
fn the_clock_ends_rounds_and_the_program_is_ended_and_judged() {
    let folder = tempfile::tempdir().unwrap();
    let program = "trap 'echo told; exit 9' TERM; while :; do x=$(echo y); sleep 0.01; done";
    let options = ["--every", "100ms", "--rounds", "6", "--warmup", "2"];
    let (code, words, run) = run_as(
        folder.path(),
        &[&options[..], &["--", "sh", "-c", program]].concat(),
    );
    // What status it ends with when it is told to is its own affair.
    assert_eq!(run["books"]["ending"]["how"], "completed", "{words}");
    assert_eq!(rounds_of(&run), 8, "{words}");
    assert!(words.contains("told") && code != 6, "{code} {words}");

    let options = ["--every", "100ms", "--for", "500ms"];
    let sleeper = ["--explain", "never", "--", "sleep", "1000"];
    let (code, words, run) = run_as(folder.path(), &[&options[..], &sleeper].concat());
    assert_eq!(run["books"]["ending"]["how"], "completed", "{words}");
    assert!(rounds_of(&run) <= 5, "{words}");
    assert!(code == 5 || code == 0, "{code} {words}");
}

#[test]
fn a_program_that_crashes_when_it_is_told_to_end_has_crashed() {
    let folder = tempfile::tempdir().unwrap();
    let program = "trap 'kill -SEGV $$' TERM; while :; do sleep 0.01; done";
    let options = ["--every", "50ms", "--rounds", "2", "--explain", "never"];
    let (code, words, run) = run_as(
        folder.path(),
        &[&options[..], &["--", "sh", "-c", program]].concat(),
    );
    assert_eq!(run["books"]["ending"]["signal"], 11, "{words}");
    assert_eq!((code, class(&run)), (6, "crash"), "{words}");
}

#[test]
fn a_program_that_marks_its_rounds_and_phases_is_judged_by_them() {
    let folder = tempfile::tempdir().unwrap();
    let source = r#"
        #include <stdlib.h>
        #include <string.h>
        #include <unistd.h>
        #include "tidegate.h"
        int main(void) {
            char *table = malloc(5000); /* Before the first round. */
            for (uint32_t round = 1; round <= 12; ++round) {
                tidegate_round(round);
                uint64_t before = tidegate_enter("finish");
                char *kept = malloc(96), *scratch = malloc(4096);
                memset(kept, 1, 96);
                free(scratch);
                tidegate_return(before);
                usleep(20000);
            }
            tidegate_round(13); /* Ends the twelfth. */
            usleep(200000);
            free(table);
            return 0;
        }"#;
    std::fs::write(folder.path().join("marks.c"), source).unwrap();
    let built = Command::new("cc")
        .args(["-g", "-O0", "-o", "marks", "marks.c", "-I"])
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../harness/hook/include"
        ))
        .current_dir(folder.path())
        .status()
        .unwrap();
    assert!(built.success());
    // Without a ledger the marks do nothing.
    let alone = Command::new(folder.path().join("marks")).status().unwrap();
    assert!(alone.success());

    let (code, words, run) = run_as(folder.path(), &["--", "./marks"]);
    assert_eq!(
        (code, class(&run), rounds_of(&run)),
        (3, "leak", 12),
        "{words}"
    );
    let finding = &run["verdict"]["findings"][0];
    assert_eq!(finding["phase"], "finish", "{words}");
    // Two of the twelve rounds are warm-up.
    assert_eq!(
        finding["total"],
        serde_json::json!({"bytes": 960, "blocks": 10})
    );
    let first_of_all = &run["books"]["survivors"][0];
    assert_eq!(first_of_all["round"], 0, "{words}");
}

/// Runs a program that starts this script in the background, with 0 as its argument, and is
/// gone at once. Lines of `daemon.log` end its rounds.
fn run_in_background(script: &str) -> (i32, String, serde_json::Value) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("daemon.sh"), script).unwrap();
    let start = "setsid sh daemon.sh 0 > /dev/null 2>&1 < /dev/null & exit 0";
    let options = ["--round-on", "^round", "--log", "daemon.log"];
    let rest = ["--explain", "never", "--", "sh", "-c", start];
    run_as(folder.path(), &[&options[..], &rest].concat())
}

#[test]
fn a_program_that_puts_itself_into_the_background_is_followed() {
    let (code, words, run) = run_in_background(
        "y=$(head -c 4000 /dev/zero | tr '\\0' y); for i in $(seq 30); do x=$x$y; \
         echo round $i done >> daemon.log; sleep 0.05; done; sleep 0.2",
    );
    assert_eq!(rounds_of(&run), 30, "{words}");
    assert_eq!(run["books"]["ending"]["how"], "completed", "{words}");
    // What a shell holds at a round's end goes up and down; that it was its books that were
    // kept shows in what it adds.
    let live = run["books"]["series"][0]["live"].as_array().unwrap();
    let bytes = |at: usize| live[at]["bytes"].as_i64().unwrap();
    assert!(bytes(29) - bytes(2) > 20 * 4000, "{words}");
    assert_ne!(code, 6, "{words}");
}

#[test]
fn a_program_in_the_background_that_executes_others_is_never_taken_for_gone() {
    // Between two of them nobody has the ledger mapped.
    let (code, words, run) = run_in_background(
        "if [ $1 -lt 100 ]; then exec sh daemon.sh $(($1 + 1)); fi; \
         for i in $(seq 6); do echo round $i done >> daemon.log; sleep 0.05; done",
    );
    assert_eq!(rounds_of(&run), 6, "{words}");
    assert_eq!(run["books"]["ending"]["how"], "completed", "{words}");
    assert_ne!(code, 6, "{words}");
}

#[test]
fn how_a_program_in_the_background_dies_is_known() {
    let (code, words, run) = run_in_background(
        "for i in 1 2 3; do echo round $i done >> daemon.log; sleep 0.05; done; kill -SEGV $$",
    );
    assert_eq!(run["books"]["ending"]["signal"], 11, "{words}");
    assert_eq!((code, class(&run)), (6, "crash"), "{words}");
}

#[test]
fn a_process_that_nobody_can_end_does_not_keep_the_run_from_ending() {
    let folder = tempfile::tempdir().unwrap();
    // It holds both streams open, is in no group of ours, and has no ledger.
    let program = "for i in $(seq 8); do echo round $i done; sleep 0.05; done; \
                   LD_PRELOAD= setsid sleep 300 & exit 0";
    let (_, words, run) = run(folder.path(), &[], program);
    assert_eq!(rounds_of(&run), 8, "{words}");
}

/// Starts the command on a program that prints `round N done` for ever, and returns once it
/// has printed so many rounds.
fn start_and_wait(folder: &Path, rounds: usize) -> std::process::Child {
    use std::io::{BufRead as _, BufReader};
    let program = "trap 'echo told; exit 0' TERM; i=0; \
                   while :; do i=$((i+1)); echo round $i done; sleep 0.02; done";
    let mut child = command(folder)
        .args(["run", "--round-on", "^round [0-9]+ done$", "--json"])
        .arg(folder.join("run.json"))
        .arg("--keep-in")
        .arg(folder.join("kept"))
        .args(["--", "sh", "-c", program])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..rounds {
        lines.next().unwrap().unwrap();
    }
    // Read on, so that the program is never held up.
    std::thread::spawn(move || lines.for_each(drop));
    child
}

fn send(signal: &str, process: u32) {
    let sent = Command::new("kill")
        .args([signal, &process.to_string()])
        .status();
    assert!(sent.unwrap().success());
}

#[test]
fn ctrl_c_and_sigterm_end_the_program_cleanly_and_it_is_judged() {
    for signal in ["-INT", "-TERM"] {
        let folder = tempfile::tempdir().unwrap();
        let mut child = start_and_wait(folder.path(), 14);
        send(signal, child.id());
        let code = child.wait().unwrap().code();
        let stored = std::fs::read(folder.path().join("run.json")).unwrap();
        let run: serde_json::Value = serde_json::from_slice(&stored).unwrap();
        assert!(rounds_of(&run) >= 13, "{run:#}");
        assert_eq!(run["books"]["ending"]["how"], "completed");
        assert_eq!(code, Some(0), "{}", run["verdict"]);
        let output = std::fs::read_to_string(folder.path().join("kept/stdout.log")).unwrap();
        assert!(output.ends_with("told\n"), "{output}");
    }
}

#[test]
fn a_run_whose_supervisor_was_killed_is_refused_and_its_program_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = start_and_wait(folder.path(), 5);
    send("-KILL", child.id());
    child.wait().unwrap();
    let output = command(folder.path())
        .args(["replay", "kept"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let words = text(&output);
    assert!(words.contains("broken off"), "{words}");
    let samples = std::fs::read_to_string(folder.path().join("kept/samples.jsonl")).unwrap();
    assert!(samples.lines().count() > 3, "{samples}");
}

#[test]
fn a_full_disk_loses_neither_the_verdict_nor_that_samples_are_missing() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kept");
    std::fs::create_dir(&kept).unwrap();
    for name in ["samples.jsonl", "stdout.log", "stderr.log"] {
        std::os::unix::fs::symlink("/dev/full", kept.join(name)).unwrap();
    }
    let keep = ["--keep-in", "kept"];
    let (code, words, run) = run(folder.path(), &keep, &rounds("x=$(echo hello)"));
    assert_eq!((code, class(&run)), (5, "inconclusive"), "{words}");
    assert!(
        words.contains("samples, which could not be stored"),
        "{words}"
    );
    assert!(words.contains("round 30 done"), "{words}");
}

#[test]
fn a_run_folder_that_vanishes_is_made_again_or_said_to_be_lost() {
    let folder = tempfile::tempdir().unwrap();
    let keep = ["--keep-in", "kept", "--explain", "never"];
    let vanish = format!("rm -r kept; {}", rounds("x=$(echo hello)"));
    let (code, words, _) = run(folder.path(), &keep, &vanish);
    assert_eq!(code, 0, "{words}");
    assert!(folder.path().join("kept/run.json").exists(), "{words}");

    let in_its_place = format!("rm -r kept; echo > kept; {}", rounds("x=$(echo hello)"));
    let (code, words, run) = run(folder.path(), &keep, &in_its_place);
    // The verdict is there all the same, and the gate does not pass by it.
    assert_eq!((code, class(&run)), (1, "clean"), "{words}");
    assert!(words.contains("NOT STORED"), "{words}");
}

#[test]
fn a_stored_run_is_judged_again_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let leaky = rounds("x=$x........................................");
    let (code, _, run) = run(folder.path(), &["--explain", "never"], &leaky);
    let replayed = command(folder.path())
        .args(["replay", "run.json", "--json", "again.json"])
        .output()
        .unwrap();
    assert_eq!(replayed.status.code(), Some(code));
    let words = text(&replayed);
    assert!(words.contains("the same"), "{words}");
    let again = std::fs::read(folder.path().join("again.json")).unwrap();
    let again: serde_json::Value = serde_json::from_slice(&again).unwrap();
    assert_eq!(again["verdict"], run["verdict"]);

    // Half a run is none.
    let whole = std::fs::read(folder.path().join("run.json")).unwrap();
    std::fs::write(folder.path().join("half.json"), &whole[..whole.len() / 2]).unwrap();
    let refused = command(folder.path())
        .args(["replay", "half.json"])
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        text(&refused).contains("not a whole one"),
        "{}",
        text(&refused)
    );
}

#[test]
fn a_rounds_peak_is_what_was_live_in_it_and_not_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let program = "import time\nfor i in range(8):\n    block = bytearray(8 << 20)\n    \
                   time.sleep(0.01)\n    del block\n    print('round', i, 'done', flush=True)\n    \
                   time.sleep(0.03)\ntime.sleep(0.2)";
    let arguments = ["--round-on", "^round", "--", "python3", "-c", program];
    let (_, words, run) = run_as(folder.path(), &arguments);
    for round in run["books"]["rounds"].as_array().unwrap() {
        assert!(round["peak_bytes"].as_u64().unwrap() >= 8 << 20, "{words}");
    }
    assert_eq!(rounds_of(&run), 8, "{words}");
}
