//! Runs this test program again, or any other program, with a ledger.

#![allow(dead_code, reason = "no test uses all of it")]

pub mod two_layers;

use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use tidegate_hook::{Account, Capacity, Counters, HookLayer, Ledger, Snapshot, library, preload};

const DEED: &str = "TIDEGATE_TEST_DEED";

/// Whether this is the metered child of a test.
pub fn in_child() -> bool {
    std::env::var_os(DEED).is_some()
}

/// Waits until the calling thread is the only one, or one of the two that libtest
/// has. A scope ends with its threads' work, and a thread that is just giving its
/// shard back when its process ends may leave a count half-moved.
pub fn wait_for_threads() {
    let threads = || fs::read_dir("/proc/self/task").unwrap().count();
    let with_libtest = match std::thread::current().name() {
        Some("main") => 1,
        _ => 2,
    };
    while threads() > with_libtest {
        std::thread::yield_now();
    }
}

/// Runs the test `name` of this program again in a metered child, in which
/// [`in_child`] holds, and returns the books when it has ended well.
pub fn again(name: &str) -> Snapshot {
    again_with(name, Capacity::default(), |_| {}).snapshot()
}

/// As [`again`], with a ledger of another capacity and changes to the command.
pub fn again_with(name: &str, capacity: Capacity, change: impl FnOnce(&mut Command)) -> Ledger {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(DEED, name);
    change(&mut command);
    let (ledger, output) = with_ledger(capacity, command);
    assert!(
        output.status.success(),
        "{}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    ledger
}

/// Runs a program with the hook preloaded.
pub fn preloaded(mut command: Command) -> (Ledger, Output) {
    let value = preload(&library().unwrap(), None).unwrap();
    command.env("LD_PRELOAD", value);
    with_ledger(Capacity::default(), command)
}

/// Runs a program that can find a ledger.
pub fn with_ledger(capacity: Capacity, mut command: Command) -> (Ledger, Output) {
    let ledger = Ledger::create(capacity).unwrap();
    let fd = ledger.as_fd().as_raw_fd();
    command.envs(ledger.variables());
    // SAFETY: between fork and exec only one system call is made.
    unsafe {
        command.pre_exec(move || match libc::fcntl(fd, libc::F_SETFD, 0) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let output = command.output().unwrap();
    (ledger, output)
}

/// `sh -c script`.
pub fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

/// The sum of all accounts that are `wanted`.
pub fn sum(snapshot: &Snapshot, wanted: impl Fn(&Account) -> bool) -> Counters {
    let mut sum = Counters::default();
    snapshot
        .accounts
        .iter()
        .filter(|account| wanted(account))
        .for_each(|account| sum.add(account.counters));
    sum
}

/// What was booked in a phase and layer on threads that have entered the phase with
/// an item. Libtest's own threads may inherit the phase, but no item.
pub fn in_phase(snapshot: &Snapshot, phase: &str, layer: HookLayer) -> Counters {
    sum(snapshot, |account| {
        snapshot.phases[account.phase as usize] == phase
            && account.layer == layer
            && account.item.is_some()
    })
}

/// Allocated blocks and bytes, released blocks and bytes.
pub fn counters(allocated: (u64, u64), released: (u64, u64)) -> Counters {
    Counters {
        allocated_blocks: allocated.0,
        allocated_bytes: allocated.1,
        released_blocks: released.0,
        released_bytes: released.1,
    }
}

/// Blocks that a ledger has seen born, in all processes, ended ones too.
pub fn blocks(snapshot: &Snapshot) -> u64 {
    let ended = &snapshot.ended;
    let gone = ended.layers;
    sum(snapshot, |_| true).allocated_blocks + gone.iter().map(|c| c.allocated_blocks).sum::<u64>()
}

/// Processes that a ledger has seen.
pub fn processes(snapshot: &Snapshot) -> u64 {
    snapshot.processes.len() as u64 + snapshot.ended.processes
}

/// Whether a program can be found.
pub fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .any(|folder| fs::metadata(folder.join(program)).is_ok_and(|found| found.is_file()))
}
