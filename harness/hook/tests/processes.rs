//! Programs of many processes: each is metered, none is lost, and what has ended
//! makes room.

mod metered;

use std::process::Command;

use metered::{blocks, preloaded, processes, shell};
use tidegate_hook::Snapshot;

fn run(command: Command) -> (Snapshot, String) {
    let (ledger, output) = preloaded(command);
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    let snapshot = ledger.snapshot();
    assert_eq!(
        (
            snapshot.lost,
            snapshot.foreign,
            snapshot.moving,
            snapshot.unmapped
        ),
        (0, 0, 0, 0)
    );
    (snapshot, String::from_utf8(output.stdout).unwrap())
}

fn python(script: &str) -> Command {
    let mut command = Command::new("python3");
    command.args(["-c", script]);
    command
}

#[test]
fn a_program_that_was_not_built_with_the_hook_is_metered() {
    let mut sort = shell("printf 'b\\na\\n' | sort");
    sort.env("LC_ALL", "C");
    let (snapshot, printed) = run(sort);
    assert_eq!(printed, "a\nb\n");
    assert!(processes(&snapshot) >= 2, "{snapshot:#?}");
    assert!(blocks(&snapshot) > 10, "{snapshot:#?}");
}

#[test]
fn a_program_that_executes_another_keeps_one_slot_and_its_first_books_are_closed() {
    let (snapshot, _) = run(shell("exec sh -c 'exec sort /dev/null'"));
    assert_eq!(snapshot.processes.len(), 1);
    assert_eq!(snapshot.ended.processes, 2);
    assert!(snapshot.ended.native.allocated_blocks > 0);
}

#[test]
fn children_that_were_started_with_all_descriptors_closed_are_metered() {
    let script = "import subprocess, os
os.closerange(3, 10000)
for _ in range(3): subprocess.run(['sort', '/dev/null'], close_fds=True, check=True)";
    let (snapshot, _) = run(python(script));
    assert!(processes(&snapshot) >= 4, "{snapshot:#?}");
}

#[test]
fn a_storm_of_thousands_of_processes_exhausts_nothing_and_loses_nobody() {
    const STORM: u64 = 6000; // More than there are slots or shards.
    let script = format!(
        "i=0; while [ $i -lt {} ]; do sort /dev/null; sort /dev/null & i=$((i+2)); [ $((i % 40)) -eq 0 ] && wait; done; wait",
        STORM
    );
    let (snapshot, _) = run(shell(&script));
    assert!(processes(&snapshot) > STORM, "{}", processes(&snapshot));
    assert!(
        snapshot.processes.len() < 200,
        "{}",
        snapshot.processes.len()
    );
    assert!(snapshot.own_bytes < 8 << 20, "{}", snapshot.own_bytes);
}
