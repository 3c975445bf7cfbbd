//! Blocks that the GPU's driver takes on threads of its own, with a library that stands in
//! for the driver by its name.
#![cfg(feature = "gpu")]

mod metered;

use std::ffi::{CString, c_void};
use std::hint::black_box;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use metered::{again_with, counters, in_child, preloaded, sum, wait_for_threads};
use tidegate_hook::{Alloc, Capacity, Counters, HookLayer, Snapshot, begin_round};

#[global_allocator]
static ALLOC: Alloc = Alloc::system();

const LIBRARY: &str = "TIDEGATE_TEST_LIBRARY";
/// What the library keeps for itself, and what it gives back.
const ITS_OWN: Counters = Counters {
    allocated_blocks: 3,
    allocated_bytes: 96 + 31 + 1000,
    released_blocks: 1,
    released_bytes: 1000,
};
/// What the application's function keeps on that thread.
const C_BLOCK: usize = 777;
const RUST_BLOCK: usize = 5_555;

/// The source, compiled under this name.
fn compiled(source: &str, name: &str, options: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("driver_threads");
    std::fs::create_dir_all(&folder).unwrap();
    let built = folder.join(name);
    let source = format!("{}/tests/native/{source}", env!("CARGO_MANIFEST_DIR"));
    let status = Command::new("cc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&built)
        .arg(source)
        .args(options)
        .status()
        .unwrap();
    assert!(status.success());
    built
}

fn library(name: &str) -> PathBuf {
    compiled("driver_thread.c", name, &["-shared", "-fPIC", "-lpthread"])
}

extern "C" fn host() {
    // SAFETY: malloc has no preconditions.
    black_box(unsafe { libc::malloc(C_BLOCK) });
    std::mem::forget(black_box(vec![0_u8; RUST_BLOCK]));
}

/// In the child: loads the library and has it work.
fn work_on_a_thread() {
    let path = std::env::var_os(LIBRARY).unwrap();
    let path = CString::new(path.as_bytes()).unwrap();
    // SAFETY: the library that this test has compiled, and its function's type.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
        let work = libc::dlsym(library, c"work_on_a_thread".as_ptr());
        assert!(!work.is_null());
        let work = std::mem::transmute::<*mut c_void, extern "C" fn(extern "C" fn())>(work);
        begin_round(7);
        work(host);
        begin_round(8);
    }
    wait_for_threads();
}

fn books_with(test: &str, library: &Path) -> Snapshot {
    let change = |command: &mut Command| {
        command.env(LIBRARY, library);
    };
    again_with(test, Capacity::default(), change).snapshot()
}

fn of(snapshot: &Snapshot, layer: HookLayer) -> Counters {
    sum(snapshot, |account| {
        account.round == 7 && account.layer == layer
    })
}

#[test]
fn what_the_driver_takes_on_its_own_thread_is_its_and_what_it_calls_there_is_not() {
    if in_child() {
        return work_on_a_thread();
    }
    let test = "what_the_driver_takes_on_its_own_thread_is_its_and_what_it_calls_there_is_not";
    let books = books_with(test, &library("libcuda.so.1"));
    assert_eq!((books.lost, books.moving), (0, 0));
    assert_eq!(of(&books, HookLayer::Driver), ITS_OWN);
    let rust = of(&books, HookLayer::Rust);
    assert_eq!(rust, counters((1, RUST_BLOCK as u64), (0, 0)));
    // The application's, and the C library's record of the thread.
    let native = of(&books, HookLayer::Native);
    assert_eq!(native.released_blocks, 0, "{native:?}");
    let record = native.allocated_bytes - C_BLOCK as u64;
    assert!(
        native.allocated_blocks == 2 && (256..1024).contains(&record),
        "{native:?}"
    );
}

#[test]
fn a_thread_of_another_librarys_is_the_applications() {
    if in_child() {
        return work_on_a_thread();
    }
    let test = "a_thread_of_another_librarys_is_the_applications";
    let books = books_with(test, &library("libother.so.1"));
    assert_eq!(of(&books, HookLayer::Driver), Counters::default());
    let native = of(&books, HookLayer::Native);
    assert_eq!(
        native.allocated_blocks,
        2 + ITS_OWN.allocated_blocks,
        "{native:?}"
    );
}

#[test]
fn it_is_so_in_a_program_that_nobody_has_built_for_it() {
    let program = compiled("calls_driver.c", "calls-driver", &["-ldl"]);
    let mut command = Command::new(program);
    command.arg(library("libcuda.so.580.1"));
    let (ledger, output) = preloaded(command);
    assert!(output.status.success(), "{output:?}");
    let books = ledger.snapshot();
    let driver = sum(&books, |account| account.layer == HookLayer::Driver);
    assert_eq!(driver, ITS_OWN);
    let native = sum(&books, |account| account.layer == HookLayer::Native);
    assert!(native.allocated_bytes - native.released_bytes >= C_BLOCK as u64);
}
