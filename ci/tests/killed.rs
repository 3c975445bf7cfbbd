//! A workload that is killed at any moment: its books add up to what it did, and every sample
//! up to the end is there. Each kill is a run of a C program that counts what it does in a
//! file of its own, for comparison.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Allocates and frees in the phase `work` until it is killed; says in a mapped file how many
/// allocations and releases it has begun and ended.
const PROGRAM: &str = r#"
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include "tidegate.h"
enum { BLOCKS = 256 };
struct counts { _Atomic uint64_t pid, begun[2], ended[2]; };
int main(void) {
    int file = open("counts", O_RDWR);
    struct counts *counts = mmap(0, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    static void *blocks[BLOCKS];
    uint64_t random = 88172645463325252u;
    uint32_t round = 1;
    tidegate_round(round);
    tidegate_enter("work");
    counts->pid = (uint64_t)getpid();
    for (uint64_t step = 1;; ++step) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        void **block = &blocks[random % BLOCKS];
        int is_release = *block != 0;
        counts->begun[is_release]++;
        if (is_release) free(*block), *block = 0;
        else *block = malloc(16 + random % 2000);
        counts->ended[is_release]++;
        if (step % 100000 == 0) tidegate_round(++round);
    }
}"#;

/// How many to kill: a few with the other tests, 200 where time is given.
fn kills() -> u64 {
    match std::env::var_os("TIDEGATE_LONG") {
        Some(_) => 200,
        None => 12,
    }
}

#[test]
fn whenever_a_workload_is_killed_the_books_add_up_and_no_sample_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("churn.c"), PROGRAM).unwrap();
    let built = Command::new("cc")
        .args(["-O1", "-o", "churn", "churn.c", "-I"])
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../harness/hook/include"
        ))
        .current_dir(folder)
        .status()
        .unwrap();
    assert!(built.success());
    let mut moments = 0x9e37_79b9_7f4a_7c15_u64;
    for kill in 0..kills() {
        moments = moments
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let after = Duration::from_micros((moments >> 33) % 150_000);
        kill_one(folder, after, kill);
    }
}

fn kill_one(folder: &Path, after: Duration, kill: u64) {
    fs::write(folder.join("counts"), [0; 40]).unwrap();
    let kept = folder.join(format!("kept-{kill}"));
    let mut supervisor = Command::new(env!("CARGO_BIN_EXE_cargo-tidegate"))
        .args([
            "run",
            "--explain",
            "never",
            "--json",
            "run.json",
            "--keep-in",
        ])
        .arg(&kept)
        .args(["--", "./churn"])
        .current_dir(folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let counts = || -> Vec<u64> {
        let bytes = fs::read(folder.join("counts")).unwrap();
        bytes
            .chunks_exact(8)
            .map(|b| u64::from_le_bytes(b.try_into().unwrap()))
            .collect()
    };
    while counts()[0] == 0 {
        assert!(supervisor.try_wait().unwrap().is_none(), "it never began");
        std::thread::yield_now();
    }
    // The moment of the kill is what is varied; nothing waits for anything here.
    std::thread::sleep(after);
    let pid = counts()[0].to_string();
    assert!(
        Command::new("kill")
            .args(["-KILL", &pid])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(supervisor.wait().unwrap().code(), Some(6));

    let run = common::parsed(&fs::read_to_string(folder.join("run.json")).unwrap());
    let books = &run["books"];
    assert_eq!(books["ending"]["signal"], 9, "{books:#}");
    assert_eq!(books["health"]["lost"], 0);
    let unreadable = books["health"]["unreadable"].as_array().unwrap();
    assert!(unreadable.is_empty(), "{unreadable:?}");

    // Survivors are what was allocated and not released, by round; the program's counts say
    // how many blocks those are, but for the one operation that the kill interrupted.
    let left: i64 = books["survivors"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|survivors| survivors["phase"] == "work")
        .map(|survivors| survivors["left"]["blocks"].as_i64().unwrap())
        .sum();
    let [
        _,
        begun_births,
        begun_releases,
        ended_births,
        ended_releases,
    ] = counts()[..]
    else {
        panic!("five counts");
    };
    let least = ended_births as i64 - begun_releases as i64;
    let most = begun_births as i64 - ended_releases as i64;
    assert!(
        (least..=most).contains(&left),
        "{least} <= {left} <= {most}, kill {kill}"
    );
    assert!(most - least <= 1);

    let samples = fs::read_to_string(kept.join("samples.jsonl")).unwrap();
    assert!(samples.ends_with('\n'), "a torn line: {samples}");
    let samples: Vec<serde_json::Value> = samples
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    common::follows("sample", &samples[0]);
    let numbers: Vec<u64> = samples
        .iter()
        .map(|sample| sample["n"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, (0..numbers.len() as u64).collect::<Vec<_>>());
    let health = &books["health"];
    let taken = health["samples"].as_u64().unwrap() + health["samples_missed"].as_u64().unwrap();
    // The last may be of the moment between the end and its discovery: no gauges, no miss.
    assert!(taken <= numbers.len() as u64 && numbers.len() as u64 <= taken + 8);
    fs::remove_dir_all(kept).unwrap();
}
