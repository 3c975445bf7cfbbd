//! The ledger where allocators break: before `main` and after it, in signal
//! handlers, around forks, in ending threads, and when its tables are full.

mod metered;

use std::ffi::{CString, c_int, c_void};
use std::hint::black_box;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use metered::{
    again, again_with, counters, in_child, preloaded, processes, shell, sum, wait_for_threads,
};
use tidegate_hook::{
    Alloc, Capacity, Counters, HookLayer, Ledger, Snapshot, Whereabouts, begin_round, phase,
    produced,
};

#[global_allocator]
static ALLOC: Alloc = Alloc::system();

fn enter(name: &str) -> impl Drop {
    Whereabouts::changed(phase(name), Some(1)).enter()
}

/// What C asked for in a phase, on threads that entered it.
fn booked(snapshot: &Snapshot, name: &str) -> Counters {
    sum(snapshot, |account| {
        snapshot.phases[account.phase as usize] == name
            && account.layer == HookLayer::Native
            && account.item.is_some()
    })
}

fn malloc(size: usize) -> *mut c_void {
    // SAFETY: malloc has no preconditions.
    black_box(unsafe { libc::malloc(size) })
}

fn free(block: *mut c_void) {
    // SAFETY: each test frees its own blocks once.
    unsafe { libc::free(block) }
}

/// Waits for a child process and returns how it ended.
fn wait_for(pid: libc::pid_t) -> c_int {
    let mut status = 0;
    // SAFETY: the status is written to a local.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    status
}

// --- before main, after main -----------------------------------------------------

static BEFORE_MAIN: AtomicUsize = AtomicUsize::new(0);

extern "C" fn before_main() {
    if in_child_of("constructors_and_exit_handlers_may_allocate") {
        BEFORE_MAIN.store(malloc(77_777) as usize, Ordering::Relaxed);
    }
}

/// `in_child`, without allocating.
fn in_child_of(name: &str) -> bool {
    // SAFETY: getenv of a C string; nothing changes the environment so early.
    unsafe {
        let value = libc::getenv(c"TIDEGATE_TEST_DEED".as_ptr());
        !value.is_null() && std::ffi::CStr::from_ptr(value).to_bytes() == name.as_bytes()
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = before_main;

extern "C" fn after_main() {
    free(BEFORE_MAIN.load(Ordering::Relaxed) as *mut c_void);
    malloc(33_333);
}

#[test]
fn constructors_and_exit_handlers_may_allocate() {
    const NAME: &str = "constructors_and_exit_handlers_may_allocate";
    if in_child() {
        // SAFETY: a function of the right type.
        unsafe { libc::atexit(after_main) };
        return;
    }
    let books = again(NAME);
    assert_eq!((books.lost, books.foreign), (0, 0));
    let large =
        |account: &tidegate_hook::Account| account.layer == HookLayer::Native && account.round == 0;
    let all = sum(&books, large);
    assert!(all.allocated_bytes >= 77_777 + 33_333, "{all:?}");
    assert!(all.released_bytes >= 77_777, "{all:?}");
}

#[test]
fn what_thread_locals_allocate_and_free_as_their_thread_ends_is_booked() {
    const NAME: &str = "what_thread_locals_allocate_and_free_as_their_thread_ends_is_booked";
    struct Late(*mut c_void);
    impl Drop for Late {
        fn drop(&mut self) {
            free(self.0);
            free(malloc(2000));
        }
    }
    thread_local!(static LATE: Late = Late(malloc(1000)));
    /// A key's destructor, which runs in the last pass that POSIX promises.
    unsafe extern "C" fn last(value: *mut c_void) {
        free(value);
        free(malloc(500));
    }
    if in_child() {
        let mut key = 0;
        // SAFETY: a key with a destructor of the right type.
        unsafe { libc::pthread_key_create(&raw mut key, Some(last)) };
        let place = Whereabouts::changed(phase("late"), Some(1));
        for _ in 0..200 {
            std::thread::spawn(move || {
                place.replace(); // Never left: the thread ends there.
                LATE.with(|late| assert!(!late.0.is_null()));
                // SAFETY: the block is freed by the destructor.
                unsafe { libc::pthread_setspecific(key, malloc(300)) };
            })
            .join()
            .unwrap();
        }
        return;
    }
    let books = again(NAME);
    assert_eq!((books.lost, books.foreign), (0, 0));
    let late = booked(&books, "late");
    let bytes = 200 * (1000 + 2000 + 300 + 500);
    // glibc itself may keep and release a few blocks in the same place.
    assert!(
        late.allocated_bytes >= bytes && late.allocated_blocks >= 800,
        "{late:?}"
    );
    assert_eq!(late.allocated_bytes, late.released_bytes);
}

// --- threads -----------------------------------------------------------------------

#[test]
fn blocks_of_threads_that_have_ended_are_freed_by_others_exactly() {
    const NAME: &str = "blocks_of_threads_that_have_ended_are_freed_by_others_exactly";
    if in_child() {
        let place = Whereabouts::changed(phase("ended"), Some(1));
        let (send, receive) = std::sync::mpsc::channel::<usize>();
        let freer = std::thread::spawn(move || {
            receive
                .into_iter()
                .for_each(|block| free(block as *mut c_void));
        });
        for _ in 0..50 {
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    let send = send.clone();
                    scope.spawn(move || {
                        let _place = place.enter();
                        for size in 0..100 {
                            send.send(malloc(size) as usize).unwrap();
                        }
                    });
                }
            });
        }
        drop(send);
        freer.join().unwrap();
        wait_for_threads();
        return;
    }
    let books = again(NAME);
    assert_eq!((books.lost, books.foreign), (0, 0));
    let (blocks, bytes) = (200 * 100, 200 * 4950);
    assert_eq!(
        booked(&books, "ended"),
        counters((blocks, bytes), (blocks, bytes))
    );
}

/// Runs `count` threads, a few at a time, that each do something and end.
fn short_threads(count: usize) {
    extern "C" fn life(_: *mut c_void) -> *mut c_void {
        free(malloc(100));
        null_mut()
    }
    const AT_ONCE: usize = 8;
    for _ in 0..count.div_ceil(AT_ONCE) {
        // SAFETY: threads of a function of the right type, all waited for.
        unsafe {
            let mut threads: [libc::pthread_t; AT_ONCE] = std::mem::zeroed();
            for thread in &mut threads {
                assert_eq!(libc::pthread_create(thread, null(), life, null_mut()), 0);
            }
            for thread in threads {
                libc::pthread_join(thread, null_mut());
            }
        }
    }
}

fn assert_flat(books: &Snapshot, threads: u64) {
    assert_eq!((books.lost, books.foreign, books.moving), (0, 0, 0));
    assert!(books.threads >= threads, "{}", books.threads);
    assert!(
        books.own_bytes < 1 << 20,
        "{} KiB for the books",
        books.own_bytes / 1024
    );
}

#[test]
fn two_hundred_thousand_short_threads_leave_the_meter_as_small_as_ten() {
    const NAME: &str = "two_hundred_thousand_short_threads_leave_the_meter_as_small_as_ten";
    if in_child() {
        short_threads(200_000);
        return;
    }
    assert_flat(&again(NAME), 200_000);
}

/// The long one. Under nextest: `-E 'test(a_million_short_threads)'`.
#[test]
fn a_million_short_threads_leave_the_meter_as_small_as_ten() {
    const NAME: &str = "a_million_short_threads_leave_the_meter_as_small_as_ten";
    if in_child() {
        short_threads(1_000_000);
        return;
    }
    if std::env::var_os("TIDEGATE_LONG").is_none() {
        eprintln!("not tested: takes half a minute; set TIDEGATE_LONG=1");
        return;
    }
    assert_flat(&again(NAME), 1_000_000);
}

// --- fork --------------------------------------------------------------------------

#[test]
fn children_of_a_program_whose_threads_allocate_neither_hang_nor_disturb_its_books() {
    const NAME: &str =
        "children_of_a_program_whose_threads_allocate_neither_hang_nor_disturb_its_books";
    const FORKS: usize = 300;
    if in_child() {
        let stop = AtomicBool::new(false);
        let place = Whereabouts::changed(phase("busy"), Some(1));
        let before: Vec<usize> = {
            let _place = enter("before");
            (0..100).map(|size| malloc(size) as usize).collect()
        };
        let total = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let _place = place.enter();
                    let mut count = 0;
                    while !stop.load(Ordering::Relaxed) {
                        free(malloc(50));
                        count += 1;
                    }
                    total.fetch_add(count, Ordering::Relaxed);
                });
            }
            for _ in 0..FORKS {
                // SAFETY: the child allocates, releases and leaves.
                let pid = unsafe { libc::fork() };
                if pid == 0 {
                    before.iter().for_each(|block| free(*block as *mut c_void));
                    let _place = enter("child");
                    for size in 1..=10 {
                        malloc(size);
                    }
                    free(malloc(90));
                    // SAFETY: ends the child at once.
                    unsafe { libc::_exit(0) };
                }
                assert_eq!(wait_for(pid), 0);
            }
            stop.store(true, Ordering::Relaxed);
        });
        wait_for_threads();
        produced(total.load(Ordering::Relaxed));
        return;
    }
    let ledger = again_with(NAME, Capacity::default(), |_| {});
    let books = ledger.snapshot();
    assert_eq!((books.lost, books.foreign), (0, 0));
    assert_eq!(booked(&books, "before"), counters((100, 4950), (0, 0)));
    let (busy, _) = ledger.queue();
    assert_eq!(
        booked(&books, "busy"),
        counters((busy, 50 * busy), (busy, 50 * busy))
    );
    // All children but those still in a slot have been closed.
    let mut children = booked(&books, "child");
    children.add(books.ended.of(HookLayer::Native));
    let forks = FORKS as u64;
    assert_eq!(
        children,
        counters((11 * forks, 145 * forks), (forks, 90 * forks))
    );
    assert_eq!(processes(&books), forks + 1);
}

#[test]
fn a_bare_clone_that_no_handler_is_told_of_gets_books_of_its_own() {
    const NAME: &str = "a_bare_clone_that_no_handler_is_told_of_gets_books_of_its_own";
    if in_child() {
        {
            let _place = enter("parent");
            malloc(700);
        }
        // SAFETY: as fork; the child allocates with what its one thread has, and leaves.
        unsafe {
            let pid = libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0);
            if pid == 0 {
                let _place = enter("clone");
                free(malloc(300));
                malloc(200);
                libc::_exit(0);
            }
            let _place = enter("parent");
            for _ in 0..1000 {
                free(malloc(7));
            }
            assert_eq!(wait_for(pid as libc::pid_t), 0);
        }
        return;
    }
    let books = again(NAME);
    assert_eq!((books.lost, books.foreign), (0, 0));
    assert_eq!(processes(&books), 2);
    assert_eq!(
        booked(&books, "parent"),
        counters((1001, 7700), (1000, 7000))
    );
    assert_eq!(booked(&books, "clone"), counters((2, 500), (1, 300)));
}

#[test]
fn a_grandchild_never_books_what_its_ancestors_bore_even_when_their_slots_are_free() {
    const NAME: &str =
        "a_grandchild_never_books_what_its_ancestors_bore_even_when_their_slots_are_free";
    if in_child() {
        // Each generation bears a block, forks and ends; the next one frees all
        // that it has copies of.
        let mut blocks = Vec::with_capacity(20);
        let (mut ends, mut status) = ([0; 2], 0_u8);
        // SAFETY: a pipe, forks whose children allocate and fork again, and leave.
        unsafe {
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            for generation in 0..20 {
                let pid = libc::fork();
                if pid != 0 {
                    if generation == 0 {
                        libc::close(ends[1]);
                        libc::read(ends[0], (&raw mut status).cast(), 1);
                        assert_eq!(status, 1);
                        return;
                    }
                    libc::_exit(0);
                }
                libc::usleep(5000); // The parent has ended by now.
                let _place = enter("line");
                blocks.iter().for_each(|block| free(*block as *mut c_void));
                blocks.clear();
                blocks.push(malloc(100 + generation) as usize);
            }
            status = 1;
            libc::write(ends[1], (&raw const status).cast(), 1);
            libc::_exit(0);
        }
    }
    let books = again(NAME);
    assert_eq!((books.lost, books.foreign), (0, 0));
    let mut all = booked(&books, "line");
    all.add(books.ended.of(HookLayer::Native));
    assert_eq!(all, counters((20, 20 * 100 + 190), (0, 0)));
}

#[test]
fn posix_spawn_and_vfork_leave_the_parents_books_alone() {
    const NAME: &str = "posix_spawn_and_vfork_leave_the_parents_books_alone";
    if in_child() {
        for _ in 0..50 {
            // Rust's way to start a program is posix_spawn where it can be.
            assert!(Command::new("true").status().unwrap().success());
            let _place = enter("between");
            free(malloc(60));
        }
        return;
    }
    let books = again(NAME);
    assert_eq!((books.lost, books.foreign), (0, 0));
    assert_eq!(booked(&books, "between"), counters((50, 3000), (50, 3000)));
}

// --- signals -----------------------------------------------------------------------

/// Signal handlers run at each instruction of this program's code, the hook's
/// included (the C library's own code is another matter: it may not be entered twice).
#[cfg(target_arch = "x86_64")]
mod at_each_instruction {
    use super::*;

    static STEPS: AtomicU64 = AtomicU64::new(0);

    unsafe extern "C" {
        static __executable_start: u8;
        static etext: u8;
    }

    unsafe extern "C" fn step(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: the kernel passes a context; the symbols are the program's bounds.
        let (at, start, end) = unsafe {
            let context = &*context.cast::<libc::ucontext_t>();
            (
                context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize,
                (&raw const __executable_start) as usize,
                (&raw const etext) as usize,
            )
        };
        if (start..end).contains(&at) {
            free(malloc(77));
            STEPS.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn single_step(on: bool) {
        // SAFETY: changes the trap flag alone.
        unsafe {
            if on {
                std::arch::asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq");
            } else {
                std::arch::asm!("pushfq", "and qword ptr [rsp], ~0x100", "popfq");
            }
        }
    }

    #[test]
    fn a_handler_that_allocates_at_any_instruction_of_the_hook_costs_no_count() {
        const NAME: &str = "at_each_instruction::\
            a_handler_that_allocates_at_any_instruction_of_the_hook_costs_no_count";
        const ROUNDS: u32 = 40;
        if in_child() {
            // SAFETY: a handler of the right type.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = step as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO;
                libc::sigaction(libc::SIGTRAP, &raw const action, null_mut());
            }
            let place = Whereabouts::changed(phase("steps"), Some(1));
            extern "C" fn life(place: *mut c_void) -> *mut c_void {
                // SAFETY: the place outlives the thread.
                let place = unsafe { *place.cast::<Whereabouts>() };
                place.replace();
                single_step(true);
                for round in 1..=ROUNDS {
                    begin_round(round); // A new context each, that collides with the first.
                    let block = malloc(1000);
                    // SAFETY: the block is live.
                    let block = black_box(unsafe { libc::realloc(block, 70_000) });
                    free(malloc(0));
                    free(block);
                }
                single_step(false);
                Whereabouts::default().replace();
                null_mut()
            }
            // SAFETY: a thread, waited for; it has no shard at first.
            unsafe {
                let mut thread = std::mem::zeroed();
                let place = (&raw const place).cast_mut().cast();
                libc::pthread_create(&raw mut thread, null(), life, place);
                libc::pthread_join(thread, null_mut());
            }
            produced(STEPS.load(Ordering::Relaxed));
            return;
        }
        let ledger = again_with(NAME, Capacity::default(), |_| {});
        let books = ledger.snapshot();
        assert_eq!((books.lost, books.foreign), (0, 0));
        let (steps, _) = ledger.queue();
        assert!(steps > 5000, "{steps} steps");
        let blocks = u64::from(ROUNDS) * 3 + steps;
        let bytes = u64::from(ROUNDS) * 71_000 + 77 * steps;
        assert_eq!(
            booked(&books, "steps"),
            counters((blocks, bytes), (blocks, bytes))
        );
    }
}

// --- dlopen ------------------------------------------------------------------------

#[test]
fn libraries_come_and_go_while_threads_allocate() {
    const NAME: &str = "libraries_come_and_go_while_threads_allocate";
    const TIMES: usize = 500;
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plugin.so");
    if in_child() {
        let stop = AtomicBool::new(false);
        let path = CString::new(library.as_os_str().as_bytes()).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        free(malloc(123));
                    }
                });
            }
            let _place = enter("plugin");
            for _ in 0..TIMES {
                // SAFETY: the library's function has this type.
                unsafe {
                    let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
                    assert!(!handle.is_null());
                    let work = libc::dlsym(handle, c"plugin_work".as_ptr());
                    let work = std::mem::transmute::<*mut c_void, extern "C" fn() -> c_int>(work);
                    assert_eq!(work(), 7);
                    libc::dlclose(handle);
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        return;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/native/plugin.c");
    let built = Command::new("gcc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(&source)
        .status();
    if built.is_err() {
        eprintln!("not tested: gcc is not installed");
        return;
    }
    let books = again(NAME);
    assert_eq!((books.lost, books.foreign), (0, 0));
    let plugin = booked(&books, "plugin");
    let times = TIMES as u64;
    assert!(plugin.allocated_bytes >= times * 3505, "{plugin:?}");
    // The loader may keep a little, once.
    let left = plugin.allocated_bytes - plugin.released_bytes;
    assert!(left < 20_000, "{left}");
}

// --- limits ------------------------------------------------------------------------

fn limit_address_space(command: &mut Command, bytes: u64) {
    use std::os::unix::process::CommandExt;
    // SAFETY: one system call between fork and exec.
    unsafe {
        command.pre_exec(move || {
            let limit = libc::rlimit {
                rlim_cur: bytes,
                rlim_max: bytes,
            };
            match libc::setrlimit(libc::RLIMIT_AS, &raw const limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
}

#[test]
fn malloc_fails_as_it_should_when_the_address_space_is_limited() {
    const NAME: &str = "malloc_fails_as_it_should_when_the_address_space_is_limited";
    if in_child() {
        let _place = enter("limited");
        let mut blocks = [null_mut(); 1000];
        let mut count = 0;
        loop {
            let block = malloc(10 << 20);
            if block.is_null() {
                break;
            }
            blocks[count] = block;
            count += 1;
        }
        assert_eq!(
            std::io::Error::last_os_error().raw_os_error(),
            Some(libc::ENOMEM)
        );
        assert!((10..200).contains(&count), "{count}");
        // SAFETY: the block is live; it stays where it is when it cannot grow.
        assert!(unsafe { libc::realloc(blocks[0], 1 << 30) }.is_null());
        blocks[..count].iter().for_each(|block| free(*block));
        produced(count as u64);
        return;
    }
    let ledger = again_with(NAME, Capacity::default(), |command| {
        limit_address_space(command, 1 << 30);
    });
    let books = ledger.snapshot();
    let (count, _) = ledger.queue();
    let bytes = count * (10 << 20);
    assert_eq!((books.lost, books.unmapped), (0, 0));
    assert_eq!(
        booked(&books, "limited"),
        counters((count, bytes), (count, bytes))
    );
}

#[test]
fn a_process_that_cannot_map_the_ledger_works_and_is_counted_as_not_metered() {
    let mut command = shell("printf 'b\\na\\n' | LC_ALL=C sort -S 1M");
    limit_address_space(&mut command, 64 << 20);
    let (ledger, output) = preloaded(command);
    assert_eq!(output.stdout, b"a\nb\n", "{output:?}");
    let books = ledger.snapshot();
    assert!(books.unmapped >= 1, "{books:?}");
    assert!(books.processes.is_empty());
}

#[test]
fn full_tables_show_as_lost_and_break_nothing() {
    const NAME: &str = "full_tables_show_as_lost_and_break_nothing";
    if in_child() {
        for round in 1..=100 {
            begin_round(round);
            free(malloc(40));
        }
        return;
    }
    let few = |contexts, shards| Capacity {
        contexts,
        shards,
        ..Capacity::default()
    };
    let books = |capacity| again_with(NAME, capacity, |_| {}).snapshot();
    assert!(books(few(8, 2048)).lost > 50);
    assert!(books(few(1, 0)).lost > 50);
    let without_shards = books(few(1 << 20, 0));
    assert_eq!(without_shards.lost, 0, "slower, but nothing is lost");
    let native = sum(&without_shards, |account| account.round > 0);
    assert!(native.allocated_blocks >= 100);
}

#[test]
fn more_processes_at_one_time_than_there_are_slots_show_as_lost() {
    const NAME: &str = "more_processes_at_one_time_than_there_are_slots_show_as_lost";
    const CHILDREN: usize = 4100;
    if in_child() {
        let _place = enter("crowd");
        let mut ready = [0; 2];
        let mut done = [0; 2];
        // SAFETY: two pipes; children that allocate, say so, wait and leave.
        unsafe {
            assert_eq!(libc::pipe(ready.as_mut_ptr()), 0);
            assert_eq!(libc::pipe(done.as_mut_ptr()), 0);
            let mut pids = Vec::with_capacity(CHILDREN);
            for _ in 0..CHILDREN {
                let pid = libc::fork();
                if pid < 0 {
                    break; // The system allows no more.
                }
                if pid == 0 {
                    libc::close(done[1]);
                    free(malloc(10));
                    let mut byte = 0_u8;
                    libc::write(ready[1], (&raw const byte).cast(), 1);
                    libc::read(done[0], (&raw mut byte).cast(), 1);
                    libc::_exit(0);
                }
                pids.push(pid);
            }
            for _ in 0..pids.len() {
                let mut byte = 0_u8;
                libc::read(ready[0], (&raw mut byte).cast(), 1);
            }
            libc::close(done[1]);
            for pid in &pids {
                wait_for(*pid);
            }
            produced(pids.len() as u64);
        }
        return;
    }
    let ledger: Ledger = again_with(NAME, Capacity::default(), |_| {});
    let (forked, _) = ledger.queue();
    if forked < CHILDREN as u64 {
        eprintln!("not tested: the system allows only {forked} processes");
        return;
    }
    let books = ledger.snapshot();
    let in_slots = sum(&books, |account| account.counters.allocated_bytes == 10);
    // One slot is the parent's; each child without one loses at least its birth.
    assert_eq!(in_slots.allocated_blocks, 4094);
    assert!(books.lost >= 6, "{}", books.lost);
}

#[test]
fn phases_of_a_forked_child_are_its_own_and_its_parents_threads_are_forgotten() {
    const NAME: &str = "phases_of_a_forked_child_are_its_own_and_its_parents_threads_are_forgotten";
    if in_child() {
        let [parents, childs] = [phase("of the parent"), phase("of the child")];
        let _place = Whereabouts::changed(parents, None).enter();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Threads that enter and leave phases all the time, so that a fork
            // finds the count of active phases in use.
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        drop(Whereabouts::changed(parents, Some(9)).enter());
                    }
                });
            }
            for _ in 0..200 {
                // SAFETY: the child starts a thread, waits for it, and leaves.
                let pid = unsafe { libc::fork() };
                if pid == 0 {
                    Whereabouts::changed(childs, None).replace();
                    extern "C" fn life(_: *mut c_void) -> *mut c_void {
                        malloc(1111); // Inherits the only phase of this process.
                        null_mut()
                    }
                    // SAFETY: a thread, waited for; then the child ends at once.
                    unsafe {
                        let mut thread = std::mem::zeroed();
                        libc::pthread_create(&raw mut thread, null(), life, null_mut());
                        libc::pthread_join(thread, null_mut());
                        libc::_exit(0);
                    }
                }
                assert_eq!(wait_for(pid), 0);
            }
            stop.store(true, Ordering::Relaxed);
        });
        return;
    }
    let books = again(NAME);
    assert_eq!((books.lost, books.foreign), (0, 0));
    // The last child's books are open still.
    let last = books.processes.last().unwrap().slot;
    let in_phase = |name: &str| {
        sum(&books, |account| {
            account.process == last
                && account.layer == HookLayer::Native
                && books.phases[account.phase as usize] == name
        })
    };
    assert!(in_phase("of the child").allocated_bytes >= 1111);
    assert!(in_phase("of the parent").allocated_bytes < 1111);
}
