//! Whether and to what this process's books are attached.
//!
//! Decided at the process's first call of the malloc family, again in the child
//! of a fork at its first call, and never otherwise.

use std::ffi::{CStr, c_int};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use crate::arch::PAGE;
use crate::layout::{Capacity, Header, MAGIC, VERSION};
use crate::processes::{self, Ancestry, Arrival, Claim, Identity};
use crate::{context, ledger, mappings, sites};

/// Environment variable that names the ledger's file descriptor in the workload.
pub const FD_VARIABLE: &CStr = c"TIDEGATE_LEDGER_FD";
/// Environment variable that names a file through which the ledger can be
/// opened, for programs that were started with all descriptors closed.
pub const PATH_VARIABLE: &CStr = c"TIDEGATE_LEDGER_PATH";

/// Why a hook does not meter the process it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Refused {
    /// This C library does not lay its blocks out as glibc does.
    UnknownAllocator = 1,
}

/// No decision yet: the environment could not be read so early, or this is a
/// process that was just forked off.
const UNDECIDED: u8 = 0;
/// There is no ledger; calls pass through.
const OFF: u8 = 1;
/// Metered.
const ON: u8 = 2;
/// One thread is deciding; it and others pass through unmetered meanwhile.
const DECIDING: u8 = 3;

/// The decision, alone on a page that the kernel wipes in the child of every
/// fork, also of a bare `clone` that no handler is told of.
#[repr(C, align(4096))]
struct State {
    state: AtomicU8,
    rest: [u8; PAGE - 1],
}

static STATE: State = State {
    state: AtomicU8::new(UNDECIDED),
    rest: [0; PAGE - 1],
};

/// Slots of the processes that this one was forked from since it last executed a program.
static ANCESTRY: Ancestry = Ancestry::new();

/// Id of the process that decided last, for [`after_fork`].
static DECIDED_BY: AtomicU32 = AtomicU32::new(0);

/// Whether this process is metered; decides it on the first call.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    let state = STATE.state.load(Ordering::Acquire);
    if state == ON {
        true
    } else {
        state != OFF && decide()
    }
}

/// Whether it is settled that this process is metered.
#[inline(always)]
pub(crate) fn is_known_on() -> bool {
    STATE.state.load(Ordering::Acquire) == ON
}

/// Whether it is settled that this process is not metered and never will be.
#[inline(always)]
pub(crate) fn is_off() -> bool {
    !is_on() && STATE.state.load(Ordering::Acquire) == OFF
}

/// Decides whether this process is metered. Returns whether it is.
#[cold]
#[inline(never)]
fn decide() -> bool {
    unsafe extern "C" {
        static environ: *const *const libc::c_char;
    }
    // SAFETY: reads one pointer of the C library, which is null until its own
    // initialisation has run.
    if unsafe { environ.is_null() } {
        return false;
    }
    let state = &STATE.state;
    if state
        .compare_exchange(UNDECIDED, DECIDING, Ordering::AcqRel, Ordering::Acquire)
        .is_err()
    {
        return state.load(Ordering::Acquire) == ON;
    }
    // SAFETY: the C library's address of the calling thread's errno, which
    // `free` must not change.
    let on = unsafe {
        let errno = *libc::__errno_location();
        DECIDED_BY.store(libc::getpid() as u32, Ordering::Relaxed);
        let on = match ledger::header() {
            Some(header) => attach_child(header),
            None => attach(),
        };
        *libc::__errno_location() = errno;
        on
    };
    state.store(if on { ON } else { OFF }, Ordering::Release);
    on
}

/// Maps the ledger that the environment names, and takes a process slot in it.
fn attach() -> bool {
    let Some((header, capacity)) = find_ledger() else {
        return false;
    };
    let base: *const u8 = (&raw const *header).cast();
    // SAFETY: `map` checked that the mapping is as large as the capacity says.
    unsafe {
        ledger::is_mapped_at(base, capacity);
        sites::attach(base, capacity);
    }
    let arrival = Arrival::Executed(processes::image());
    let slot = match processes::claim(ledger::view(header), Identity::current(), arrival) {
        Claim::Slot(slot) => slot,
        Claim::Full => 0,
        Claim::KeptByAnother => {
            // SAFETY: nothing refers to the mapping but the pointers that are
            // only used once `begin` was called.
            unsafe { libc::syscall(libc::SYS_munmap, base, capacity.bytes()) };
            return false;
        }
    };
    if !crate::glibc::layout_is_known() {
        if let Some(process) = header.processes.get(slot as usize) {
            let why = Refused::UnknownAllocator as u32;
            process.refused.store(why, Ordering::Release);
        }
        return false;
    }
    if !ledger::watch_threads() {
        return false;
    }
    #[cfg(feature = "gpu")]
    crate::gpu::threads::prepare();
    // SAFETY: plain calls of the C library with valid arguments: the page is all
    // of `STATE` and nothing else. Where the kernel cannot wipe it, the handler
    // does; where the handler cannot be had either, a fork goes unnoticed.
    unsafe {
        let page = (&raw const STATE).cast_mut();
        libc::madvise(page.cast(), PAGE, libc::MADV_WIPEONFORK);
        libc::pthread_atfork(None, None, Some(after_fork));
    }
    ledger::begin(header, slot);
    true
}

/// The function that begins the GPU's books, of the copy of this crate that keeps this
/// process's in the place of this one.
#[cfg(feature = "gpu")]
pub(crate) fn begin_gpu_of_keeper() -> Option<fn()> {
    let (header, capacity) = find_ledger()?;
    let begin = processes::begin_gpu(header, Identity::current());
    // SAFETY: mapped just now, and nothing else refers to it.
    unsafe { libc::syscall(libc::SYS_munmap, &raw const *header, capacity.bytes()) };
    let begin = begin.filter(|begin| {
        let mut found = std::mem::MaybeUninit::uninit();
        // SAFETY: dladdr takes any address, and only writes to `found`.
        unsafe { libc::dladdr(begin.cast(), found.as_mut_ptr()) != 0 }
    })?;
    // SAFETY: this very process said so of itself, and it lies in what is loaded.
    Some(unsafe { std::mem::transmute::<*const (), fn()>(begin) })
}

/// In the child of a fork: what its thread had belongs to the parent.
fn attach_child(header: &'static Header) -> bool {
    ANCESTRY.add(ledger::process());
    let arrival = Arrival::Forked(&ANCESTRY);
    let slot = match processes::claim(ledger::view(header), Identity::current(), arrival) {
        Claim::Slot(slot) => slot,
        Claim::Full | Claim::KeptByAnother => 0,
    };
    ledger::begin_again(slot);
    context::forget_other_threads();
    true
}

/// Runs in the child of a fork, for kernels that do not wipe the page.
unsafe extern "C" fn after_fork() {
    // SAFETY: getpid has no preconditions.
    let me = unsafe { libc::getpid() } as u32;
    // Where the page was wiped, an earlier handler's malloc may have decided already.
    if ledger::header().is_some() && DECIDED_BY.load(Ordering::Relaxed) != me {
        STATE.state.store(UNDECIDED, Ordering::Release);
        mappings::forget_all();
    }
}

/// The ledger through the descriptor that was inherited, or else through the file.
fn find_ledger() -> Option<(&'static Header, Capacity)> {
    variable(FD_VARIABLE)
        .and_then(|text| number(text.to_bytes()))
        .and_then(map)
        .or_else(|| {
            let path = variable(PATH_VARIABLE)?;
            let flags = libc::O_RDWR | libc::O_CLOEXEC;
            // SAFETY: a C string; the descriptor is closed again below. The bare
            // system call: no thread is cancelled in it.
            let fd =
                unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
            let fd = c_int::try_from(fd).ok().filter(|fd| *fd >= 0)?;
            let mapped = map(fd);
            // SAFETY: opened above; the mapping stays.
            unsafe { libc::syscall(libc::SYS_close, fd) };
            mapped
        })
}

fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: getenv of a C string returns null or a C string; nobody changes the
    // environment this early.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value))
    }
}

fn number(digits: &[u8]) -> Option<c_int> {
    let mut number: c_int = 0;
    if digits.is_empty() {
        return None;
    }
    for &digit in digits {
        let digit = c_int::from(digit.wrapping_sub(b'0'));
        if digit > 9 {
            return None;
        }
        number = number.checked_mul(10)?.checked_add(digit)?;
    }
    Some(number)
}

/// Maps the ledger behind a descriptor, which may be something else entirely: a
/// program can have closed it and opened another file.
fn map(fd: c_int) -> Option<(&'static Header, Capacity)> {
    // SAFETY: `stat` is written by fstat before it is read; the file can never
    // shrink, as the seal says; it is checked for its size before anything past
    // the header is used. The mapping is made by the bare system call, so that
    // it is not booked.
    unsafe {
        let seals = libc::fcntl(fd, libc::F_GET_SEALS);
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
            return None;
        }
        let mut stat: libc::stat = std::mem::zeroed();
        if libc::fstat(fd, &raw mut stat) != 0 {
            return None;
        }
        let bytes = usize::try_from(stat.st_size).ok()?;
        if bytes < size_of::<Header>() {
            return None;
        }
        let at = libc::syscall(
            libc::SYS_mmap,
            null_mut::<u8>(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            fd,
            0_usize,
        );
        if at == -1 {
            count_unmapped(fd);
            return None;
        }
        let header = &*(at as *const Header);
        let capacity = Capacity {
            contexts: header.contexts.load(Ordering::Acquire),
            shards: header.shards.load(Ordering::Acquire),
            sites: header.sites.load(Ordering::Acquire),
        };
        let ours = header.magic.load(Ordering::Acquire) == MAGIC
            && header.version.load(Ordering::Acquire) == VERSION
            && capacity.contexts <= Capacity::MAX_CONTEXTS
            && capacity.shards <= Capacity::MAX_SHARDS
            && capacity.sites <= Capacity::MAX_SITES
            && capacity.bytes() == bytes;
        if !ours {
            libc::syscall(libc::SYS_munmap, at, bytes);
            return None;
        }
        Some((header, capacity))
    }
}

/// Says in the ledger that it could not be mapped here (most often because of
/// `RLIMIT_AS`): a process that is not metered must not look like a frugal one.
#[cold]
fn count_unmapped(fd: c_int) {
    let mut first = [0_u8; size_of::<u64>()];
    let offset = std::mem::offset_of!(Header, unmapped) as i64;
    // SAFETY: both calls get a buffer with its length. Two processes at once may
    // count as one; that it is not 0 is what matters.
    unsafe {
        let read = libc::pread(fd, first.as_mut_ptr().cast(), first.len(), 0);
        if read == 8 && u64::from_ne_bytes(first) == MAGIC {
            let mut count = [0_u8; 8];
            libc::pread(fd, count.as_mut_ptr().cast(), 8, offset);
            let count = (u64::from_ne_bytes(count) + 1).to_ne_bytes();
            libc::pwrite(fd, count.as_ptr().cast(), 8, offset);
        }
    }
}
