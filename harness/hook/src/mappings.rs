//! Private anonymous mappings that a program makes itself, booked as the layer
//! [`Anon`](crate::HookLayer::Anon).
//!
//! What counts is memory that can be used: a mapping is born when it is made with
//! any access, or when `mprotect` first gives a reserved one (`PROT_NONE`) access. It
//! is released when it is unmapped or another mapping takes its place. `madvise` and
//! taking access away release nothing: they give back pages, not the mapping,
//! and the gauges of resident memory tell of pages.
//!
//! A mapping that is unmapped in part is released in part: its bytes go, and the
//! last part takes the block along. One that a hole makes two counts as two.
//! `mremap` is a release and a birth as `realloc` is, but for a tail that is cut off.
//!
//! Not seen are the C library's own mappings, which it does not make through the
//! functions that can be interposed: malloc's arenas and large blocks (booked as
//! blocks), threads' stacks, and what the loader maps. What an allocator under
//! [`Alloc`](crate::Alloc) maps while it is asked for a block is booked as
//! [`Meter`](crate::HookLayer::Meter), since its blocks are booked themselves.
//!
//! # Implementation
//!
//! There is no trailer in a mapping, so there is a table of [`Ranges`], in memory
//! that is the process's own and that the kernel wipes in the child of a fork:
//! copies that a fork made are not the child's to release. A lock keeps it, also
//! across the system call where an address can be given to another thread in
//! between. Whoever holds it has all signals blocked, so that no handler on the
//! same thread waits for it. All this is next to a system call, not in malloc.

use std::ffi::{c_int, c_long, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::arch::PAGE;
use crate::ledger;
use crate::ranges::{Cut, Range, Ranges};

/// Ranges that are told apart; above what the kernel allows by default.
const CAPACITY: usize = 1 << 16;

/// The label of a range that is reserved and not usable.
const RESERVED: u32 = 0;

#[repr(C)]
struct Table {
    lock: AtomicU32,
    used: usize,
    slots: [Range; CAPACITY],
}

static TABLE: AtomicPtr<Table> = AtomicPtr::new(null_mut());

/// The table while it is locked, with all signals blocked.
struct Locked {
    table: *mut Table,
    signals: u64,
}

impl Locked {
    fn lock() -> Option<Self> {
        let table = table()?;
        let mut locked = Self { table, signals: 0 };
        let all = u64::MAX;
        // SAFETY: both sets have the eight bytes that the kernel is told of.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigprocmask,
                libc::SIG_SETMASK,
                &raw const all,
                &raw mut locked.signals,
                size_of::<u64>(),
            );
        }
        let lock = locked.lock_word();
        let mut tries = 0_u32;
        while lock
            .compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            tries += 1;
            match tries < 100 {
                true => std::hint::spin_loop(),
                false => ledger::sleep_a_moment(),
            }
        }
        Some(locked)
    }

    fn lock_word(&self) -> &AtomicU32 {
        // SAFETY: the table is never unmapped; the lock is an atomic.
        unsafe { &(*self.table).lock }
    }

    fn ranges(&mut self) -> Ranges<'_> {
        // SAFETY: the lock makes this the only reference; zeros are valid ranges.
        unsafe {
            Ranges {
                used: &mut (*self.table).used,
                slots: &mut (*self.table).slots,
            }
        }
    }

    /// Books that nothing is left of what lay in `start..end`.
    fn release(&mut self, start: usize, end: usize) {
        self.ranges().take(start, end, |piece, cut| {
            if piece.label == RESERVED {
                return;
            }
            let more = match cut {
                Cut::SplitAndLost(bytes) => bytes,
                _ => 0,
            };
            ledger::count_allocator_mapping(piece.label, -((piece.bytes() + more) as i64));
            match cut {
                Cut::Whole => ledger::book_release(piece.label, piece.bytes()),
                Cut::Trimmed => ledger::book_trim(piece.label, piece.bytes(), 0),
                Cut::Split => ledger::book_trim(piece.label, piece.bytes(), 1),
                Cut::SplitAndLost(bytes) => {
                    ledger::book_trim(piece.label, piece.bytes() + bytes, 0);
                    ledger::count_lost();
                }
            }
        });
    }

    /// Books a mapping that is usable from now on.
    fn enter(&mut self, start: usize, end: usize) {
        let label = ledger::book_mapping(end - start);
        let range = Range { start, end, label };
        if !self.ranges().add(range) {
            ledger::book_release(label, range.bytes());
            return ledger::count_lost();
        }
        ledger::count_allocator_mapping(label, range.bytes() as i64);
    }

    fn reserve(&mut self, start: usize, end: usize) {
        let label = RESERVED;
        if !self.ranges().add(Range { start, end, label }) {
            ledger::count_lost();
        }
    }

    /// What lies in `start..end` is usable from now on.
    fn give_access(&mut self, start: usize, end: usize) {
        // Pieces are entered one by one, since entering changes the table.
        let mut from = start;
        while from < end {
            let Some(range) = self.ranges().find(RESERVED, from, end) else {
                break;
            };
            let (first, last) = (range.start.max(from), range.end.min(end));
            let mut lost = false;
            self.ranges().take(first, last, |_, cut| {
                lost |= matches!(cut, Cut::SplitAndLost(_))
            });
            if lost {
                ledger::count_lost();
            }
            self.enter(first, last);
            from = last;
        }
    }

    /// The label of the first range in `start..end`.
    fn label_in(&mut self, start: usize, end: usize) -> Option<u32> {
        self.ranges().first(start, end).map(|range| range.label)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        self.lock_word().store(0, Ordering::Release);
        // SAFETY: puts back the eight bytes that the kernel gave.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigprocmask,
                libc::SIG_SETMASK,
                &raw const self.signals,
                null_mut::<u64>(),
                size_of::<u64>(),
            );
        }
    }
}

fn table() -> Option<*mut Table> {
    let known = TABLE.load(Ordering::Acquire);
    if !known.is_null() {
        return Some(known);
    }
    // SAFETY: plain system calls: a new mapping of the table's size, all zeros.
    unsafe {
        let new = libc::syscall(
            libc::SYS_mmap,
            null_mut::<c_void>(),
            size_of::<Table>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0_usize,
        );
        if new == -1 {
            ledger::count_lost();
            return None;
        }
        libc::madvise(
            new as *mut c_void,
            size_of::<Table>(),
            libc::MADV_WIPEONFORK,
        );
        let new = new as *mut Table;
        match TABLE.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Some(new),
            Err(known) => {
                libc::syscall(libc::SYS_munmap, new, size_of::<Table>());
                Some(known)
            }
        }
    }
}

/// In the child of a fork, where the kernel could not wipe the table: there are
/// no mappings that the child made, and nobody holds the lock.
pub(crate) fn forget_all() {
    let table = TABLE.load(Ordering::Acquire);
    if !table.is_null() {
        // SAFETY: the child of a fork has one thread.
        unsafe {
            (*table).used = 0;
            (*table).lock.store(0, Ordering::Release);
        }
    }
}

/// Bytes that the kernel makes of a length.
fn whole_pages(length: usize, flags: c_int) -> usize {
    let page = if flags & libc::MAP_HUGETLB == 0 {
        PAGE
    } else {
        match flags >> libc::MAP_HUGE_SHIFT & libc::MAP_HUGE_MASK {
            0 => 2 << 20,
            power => 1_usize << power,
        }
    };
    length.checked_next_multiple_of(page).unwrap_or(length)
}

/// Runs `act` without a change of errno.
fn keeping_errno(act: impl FnOnce()) {
    // SAFETY: the C library's address of the calling thread's errno.
    unsafe {
        let errno = *libc::__errno_location();
        act();
        *libc::__errno_location() = errno;
    }
}

/// Defines `mmap`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    length: usize,
    access: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    let call = || {
        // SAFETY: the caller's arguments.
        let at =
            unsafe { libc::syscall(libc::SYS_mmap, address, length, access, flags, fd, offset) };
        at as *mut c_void
    };
    let fixed = flags & libc::MAP_FIXED != 0;
    let is_private = flags & 0xf == libc::MAP_PRIVATE && flags & libc::MAP_ANONYMOUS != 0;
    if !(fixed || is_private) || !ledger::is_on() {
        return call();
    }
    let mut table = if fixed { Locked::lock() } else { None };
    let at = call();
    if at == libc::MAP_FAILED {
        return at;
    }
    keeping_errno(|| {
        let Some(mut table) = table.take().or_else(Locked::lock) else {
            return;
        };
        let (start, end) = (at as usize, at as usize + whole_pages(length, flags));
        if fixed {
            table.release(start, end);
        }
        match (is_private, access) {
            (true, libc::PROT_NONE) => table.reserve(start, end),
            (true, _) => table.enter(start, end),
            (false, _) => {}
        }
    });
    at
}

/// Defines `mmap64`, which is the same.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    length: usize,
    access: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off64_t,
) -> *mut c_void {
    // SAFETY: the caller's promise is the same.
    unsafe { mmap(address, length, access, flags, fd, offset) }
}

/// Defines `munmap`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(address: *mut c_void, length: usize) -> c_int {
    // SAFETY: the caller's arguments.
    let call = || unsafe { libc::syscall(libc::SYS_munmap, address, length) } as c_int;
    if !ledger::is_on() || TABLE.load(Ordering::Acquire).is_null() {
        return call();
    }
    let Some(mut table) = Locked::lock() else {
        return call();
    };
    let status = call();
    if status == 0 {
        keeping_errno(|| {
            let start = address as usize;
            table.release(start, start + whole_pages(length, 0));
        });
    }
    status
}

/// Defines `mremap`. C declares the last argument as optional; it is passed where
/// a fifth one is.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_length: usize,
    new_length: usize,
    flags: c_int,
    wanted: *mut c_void,
) -> *mut c_void {
    let call = || {
        // SAFETY: the caller's arguments.
        let at: c_long =
            unsafe { libc::syscall(libc::SYS_mremap, old, old_length, new_length, flags, wanted) };
        at as *mut c_void
    };
    if !ledger::is_on() || TABLE.load(Ordering::Acquire).is_null() {
        return call();
    }
    let Some(mut table) = Locked::lock() else {
        return call();
    };
    let at = call();
    if at == libc::MAP_FAILED || old_length == 0 {
        return at;
    }
    keeping_errno(|| {
        let was = old as usize..old as usize + whole_pages(old_length, 0);
        let is = at as usize..at as usize + whole_pages(new_length, 0);
        let label = table.label_in(was.start, was.end);
        if is.start == was.start && is.end <= was.end {
            table.release(is.end, was.end);
            return;
        }
        if is.start != was.start {
            table.release(is.start, is.end); // What it was moved onto.
        }
        if flags & libc::MREMAP_DONTUNMAP == 0 {
            table.release(was.start, was.end);
        }
        match label {
            Some(RESERVED) => table.reserve(is.start, is.end),
            Some(_) => table.enter(is.start, is.end),
            None => {} // A file's, or the parent's.
        }
    });
    at
}

/// Defines `mprotect`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mprotect(address: *mut c_void, length: usize, access: c_int) -> c_int {
    // SAFETY: the caller's arguments.
    let status = unsafe { libc::syscall(libc::SYS_mprotect, address, length, access) } as c_int;
    if status == 0
        && access != libc::PROT_NONE
        && ledger::is_on()
        && !TABLE.load(Ordering::Acquire).is_null()
    {
        keeping_errno(|| {
            if let Some(mut table) = Locked::lock() {
                let start = address as usize;
                table.give_access(start, start + whole_pages(length, 0));
            }
        });
    }
    status
}

// The table is used as it comes from the kernel: zeros.
const _: () = {
    // SAFETY: a range is three integers.
    let zeros: Range = unsafe { MaybeUninit::zeroed().assume_init() };
    assert!(zeros.label == RESERVED);
};
