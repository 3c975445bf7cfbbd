//! The hook works the same wherever its process runs: as root or as somebody else, with
//! addresses that are random or fixed; and where it cannot work, building it says so.
//! (Little address space: `safety.rs`.)

mod metered;

use std::hint::black_box;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use metered::{again_with, blocks, counters, in_child, in_phase, preloaded, shell};
use tidegate_hook::{Capacity, HookLayer, Ledger, Whereabouts, phase};

/// Bears and frees three blocks under an item, keeps one of them, and says who and where it is.
fn deed() {
    {
        let _place = Whereabouts::changed(phase("deed"), Some(1)).enter();
        // SAFETY: plain calls.
        unsafe {
            for size in [10, 1000, 200_000] {
                libc::free(black_box(libc::malloc(size)));
            }
            black_box(libc::malloc(77));
        }
    }
    // SAFETY: geteuid has no preconditions.
    println!("user {}", unsafe { libc::geteuid() });
}

fn assert_booked(ledger: &Ledger) {
    let books = ledger.snapshot();
    assert_eq!((books.lost, books.unmapped, books.crossed), (0, 0, 0));
    assert_eq!(
        in_phase(&books, "deed", HookLayer::Native),
        counters((4, 201_087), (3, 201_010))
    );
}

/// Fixes all addresses of a command's process (`setarch -R`), or leaves them random.
fn addresses(command: &mut Command, fixed: bool) {
    const ADDR_NO_RANDOMIZE: libc::c_ulong = 0x004_0000;
    if fixed {
        // SAFETY: one system call between fork and exec.
        unsafe {
            command.pre_exec(|| match libc::personality(ADDR_NO_RANDOMIZE) {
                -1 => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            });
        }
    }
}

/// Whether this system lets a process fix its addresses; some containers do not.
fn may_fix_addresses() -> bool {
    let mut command = shell("cat /proc/self/personality");
    addresses(&mut command, true);
    let output = command.output();
    let fixed = output.is_ok_and(|output| output.stdout.starts_with(b"00040000"));
    if !fixed {
        eprintln!("not tested: addresses cannot be fixed here");
    }
    fixed
}

#[test]
fn a_linked_process_is_metered_with_random_and_with_fixed_addresses() {
    const NAME: &str = "a_linked_process_is_metered_with_random_and_with_fixed_addresses";
    if in_child() {
        return deed();
    }
    for fixed in [false, true] {
        if fixed && !may_fix_addresses() {
            return;
        }
        let change = |command: &mut Command| addresses(command, fixed);
        assert_booked(&again_with(NAME, Capacity::default(), change));
    }
}

#[test]
fn a_preloaded_process_books_the_same_with_random_and_with_fixed_addresses() {
    if !may_fix_addresses() {
        return;
    }
    let [random, fixed] = [false, true].map(|fixed| {
        let mut command = shell("sort /dev/null; expr 6 '*' 7");
        addresses(&mut command, fixed);
        let (ledger, output) = preloaded(command);
        assert_eq!(output.stdout, b"42\n", "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
        let books = ledger.snapshot();
        assert_eq!((books.lost, books.unmapped), (0, 0));
        blocks(&books)
    });
    assert!(random > 10);
    assert_eq!(random, fixed);
}

#[test]
fn a_linked_process_is_metered_as_root_and_as_somebody_else() {
    const NAME: &str = "a_linked_process_is_metered_as_root_and_as_somebody_else";
    const NOBODY: u32 = 65534;
    if in_child() {
        return deed();
    }
    assert_booked(&again_with(NAME, Capacity::default(), |_| {}));
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("not tested: only root may become somebody else");
        return;
    }
    // Somebody else must be able to come to the program where it lies.
    let mut can_come = Command::new("test");
    can_come.arg("-x").arg(std::env::current_exe().unwrap());
    if !can_come.uid(NOBODY).gid(NOBODY).status().unwrap().success() {
        eprintln!("not tested: another user may not run what lies here");
        return;
    }
    let become_nobody = |command: &mut Command| {
        command.uid(NOBODY).gid(NOBODY);
    };
    assert_booked(&again_with(NAME, Capacity::default(), become_nobody));
}

#[test]
fn building_for_musl_is_refused_with_one_error_that_says_why() {
    const TARGET: &str = "x86_64-unknown-linux-musl";
    let mut rustc = Command::new("rustc");
    rustc.args(["--print", "target-libdir", "--target", TARGET]);
    let installed = rustc.output().is_ok_and(|output| {
        let folder = String::from_utf8_lossy(&output.stdout).into_owned();
        Path::new(folder.trim()).is_dir()
    });
    if !installed {
        eprintln!("not tested: rustup target add {TARGET}");
        return;
    }
    let output = Command::new("cargo")
        .args(["check", "--offline", "--lib", "--target", TARGET])
        .args(["--message-format", "short"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("CARGO_TARGET_DIR", env!("CARGO_TARGET_TMPDIR"))
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{words}");
    let errors: Vec<&str> = words
        .lines()
        .filter(|line| line.contains(": error"))
        .collect();
    assert_eq!(errors.len(), 1, "{words}");
    assert!(errors[0].contains("there is no such allocator"), "{words}");
    assert!(errors[0].contains("on musl"), "{words}");
}
