//! Programs of many processes: each is metered, none is lost, and what has ended
//! makes room.

mod metered;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use metered::{blocks, is_there, preloaded, processes, shell};
use tidegate_hook::{HookLayer, Snapshot};

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

/// Whether there is a python3; says so if not.
fn has_python() -> bool {
    let found = is_there("python3");
    if !found {
        eprintln!("not tested: python3 is not installed");
    }
    found
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
    assert!(snapshot.ended.of(HookLayer::Native).allocated_blocks > 0);
}

#[test]
fn children_that_were_started_with_all_descriptors_closed_are_metered() {
    if !has_python() {
        return;
    }
    let script = "import subprocess, os
os.closerange(3, 10000)
for _ in range(3): subprocess.run(['sort', '/dev/null'], close_fds=True, check=True)";
    let (snapshot, _) = run(python(script));
    assert!(processes(&snapshot) >= 4, "{snapshot:#?}");
}

#[test]
fn a_bare_clone_under_preload_is_a_process_of_its_own() {
    if !has_python() {
        return;
    }
    let script = |clone: &str| {
        python(&format!(
            "import ctypes, os
pid = {clone}
if pid == 0:
    kept = [bytearray(100000) for _ in range(10)]
    os._exit(0)
if pid: os.waitpid(pid, 0)"
        ))
    };
    let without = run(script("None")).0;
    let with = run(script("ctypes.CDLL(None).syscall(56, 17, 0, 0, 0, 0)")).0; // clone, SIGCHLD
    assert_eq!(processes(&with), processes(&without) + 1);
}

#[test]
fn a_daemon_that_closes_all_it_has_is_metered_and_so_is_what_it_starts() {
    if !has_python() {
        return;
    }
    let done = Path::new(env!("CARGO_TARGET_TMPDIR")).join("daemon-done");
    let _ = std::fs::remove_file(&done);
    let mut command = python(
        "import os, subprocess, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.closerange(0, 5000)
for fd in range(3): os.open('/dev/null', os.O_RDWR)
before = [bytearray(1000000) for _ in range(50)]
subprocess.run(['sort', '/dev/null'], check=True)
del before
open(os.environ['DONE'] + '.new', 'w').close()
os.rename(os.environ['DONE'] + '.new', os.environ['DONE'])
time.sleep(100)",
    );
    command.env("DONE", &done);
    let (ledger, output) = preloaded(command);
    assert!(output.status.success(), "{output:?}");
    let since = Instant::now();
    while !done.exists() {
        assert!(since.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
    ledger.close_ended();
    let books = ledger.snapshot();
    let daemon = books.processes.last().unwrap();
    let held = metered::sum(&books, |account| account.process == daemon.slot);
    // SAFETY: the daemon is this test's.
    unsafe { libc::kill(daemon.pid as i32, libc::SIGKILL) };
    assert_eq!((books.lost, books.unmapped), (0, 0));
    assert!(held.allocated_bytes > 50_000_000, "{held:?}");
    let left = held.allocated_bytes - held.released_bytes;
    assert!(left < 20_000_000, "{held:?}");
    assert!(processes(&books) >= 4, "{books:#?}");
}

#[test]
fn what_a_process_held_leaves_the_live_counters_when_it_has_ended() {
    if !has_python() {
        return;
    }
    // Each child ends with 20 MB in its hands; at most two live at one time.
    let script = "import os
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        kept = bytearray(20_000_000)
        os._exit(0)
    os.waitpid(pid, 0)";
    let (ledger, output) = preloaded(python(script));
    assert!(output.status.success(), "{output:?}");
    assert!(
        ledger.snapshot().peak < 60_000_000,
        "{}",
        ledger.snapshot().peak
    );
    assert!(ledger.live() >= 20_000_000, "the last one's books are open");
    let closed = ledger.close_ended();
    assert!(closed >= 1);
    assert!(ledger.live() < 10_000_000, "{}", ledger.live());
    let books = ledger.snapshot();
    assert!(
        books.ended.of(HookLayer::Native).allocated_bytes > 400_000_000,
        "{books:?}"
    );
    assert!(books.ended.processes >= 20);
}

#[test]
fn a_program_that_runs_as_another_user_is_metered() {
    if !has_python() {
        return;
    }
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("not tested: only root may become another user");
        return;
    }
    let script = "import os, subprocess
os.setgroups([]); os.setgid(65534); os.setuid(65534)
print(os.getuid(), subprocess.run(['sort', '/dev/null'], close_fds=False).returncode)";
    let (ledger, output) = preloaded(python(script));
    if !output.status.success() {
        eprintln!("not tested: {output:?}");
        return;
    }
    let books = ledger.snapshot();
    assert_eq!(output.stdout, b"65534 0\n");
    if output.stderr.is_empty() {
        assert!(processes(&books) >= 2, "{books:#?}");
    } else {
        // The other user may not read the shared object where this tree lies;
        // the loader says so and the program goes on.
        eprintln!("not tested: {}", String::from_utf8_lossy(&output.stderr));
    }
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
