//! A clock that is set while the run goes on, to and fro by hours at each look, for the
//! supervisor and for what it measures: nothing is decided by it.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

/// The time of day as the C library tells it, set by up to 36 hours at each look.
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static _Atomic unsigned looks;
int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    if (clock == CLOCK_REALTIME)
        time->tv_sec += 3600 * (long)(looks++ * 29 % 73) - 36 * 3600 + 86400 * 365;
    return result;
}
"#;

/// Twenty rounds, each of which keeps so many bytes; the first ends once a sample was taken.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
int main(int count, char **arguments) {
    static void *volatile kept;
    size_t bytes = (size_t)atoi(arguments[1]);
    struct stat samples = {0};
    while (stat(arguments[2], &samples) || !samples.st_size)
        nanosleep(&(struct timespec){0, 1000000}, 0);
    for (int round = 1; round <= 20 && count == 3; ++round) {
        free(malloc(100000));
        if (bytes) kept = malloc(bytes);
        printf("round %d done\n", round);
        fflush(stdout);
        nanosleep(&(struct timespec){0, 30000000}, 0);
    }
    return 0;
}
"#;

#[test]
fn a_clock_that_is_set_to_and_fro_changes_no_verdict() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    compile(
        folder,
        "clock.c",
        CLOCK,
        &["-shared", "-fPIC", "-o", "clock.so"],
    );
    compile(folder, "keeps.c", PROGRAM, &["-o", "keeps"]);
    let now = std::time::SystemTime::now();
    let now = now.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    for (bytes, code, class) in [("0", 0, "clean"), ("4000", 3, "leak")] {
        let samples = folder.join(bytes).join("samples.jsonl");
        let done = Command::new(env!("CARGO_BIN_EXE_cargo-tidegate"))
            .args(["run", "--round-on", "^round", "--warmup", "3"])
            .args([
                "--explain",
                "never",
                "--json",
                "run.json",
                "--keep-in",
                bytes,
            ])
            .args(["--", "./keeps", bytes])
            .arg(&samples)
            .env("LD_PRELOAD", folder.join("clock.so"))
            .current_dir(folder)
            .output()
            .unwrap();
        let words = String::from_utf8_lossy(&done.stdout);
        assert_eq!(done.status.code(), Some(code), "{words}");
        let run = common::parsed(&fs::read_to_string(folder.join("run.json")).unwrap());
        assert_eq!(run["verdict"]["class"], class, "{words}");
        let wrong = run["ended_at"].as_u64().unwrap().abs_diff(now);
        assert!(wrong > 86400, "the clock was not set: {wrong} s");

        // All times of a run are told by a clock that cannot be set.
        let rounds = run["books"]["rounds"].as_array().unwrap();
        assert_eq!(rounds.len(), 20);
        are_in_order(rounds.iter().map(|round| &round["at_seconds"]));
        let samples = fs::read_to_string(samples).unwrap();
        let samples: Vec<serde_json::Value> = samples
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        are_in_order(samples.iter().map(|sample| &sample["t"]));
        // The first round goes on from the beginning.
        assert_eq!(samples[0]["round"], 1);
        are_in_order(samples.iter().map(|sample| &sample["round"]));
    }
}

fn are_in_order<'a>(seconds: impl Iterator<Item = &'a serde_json::Value>) {
    let seconds: Vec<f64> = seconds.map(|at| at.as_f64().unwrap()).collect();
    assert!(seconds.is_sorted() && seconds[0] >= 0.0, "{seconds:?}");
    assert!(seconds[seconds.len() - 1] < 3600.0, "{seconds:?}");
}

fn compile(folder: &Path, name: &str, source: &str, options: &[&str]) {
    fs::write(folder.join(name), source).unwrap();
    let built = Command::new("cc")
        .args(["-O1", name])
        .args(options)
        .current_dir(folder)
        .status()
        .unwrap();
    assert!(built.success());
}
