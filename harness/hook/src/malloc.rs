//! The malloc family, with glibc's semantics and every block in the ledger.
//!
//! Linked into an executable or preloaded, these definitions take the place of
//! the C library's for the whole process: Rust, C, C++ (whose `operator new`
//! calls `malloc`) and the C library itself.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use crate::glibc::{
    __libc_calloc, __libc_free, __libc_malloc, __libc_memalign, __libc_realloc, own_mapping,
    refuses_odd_alignments, usable_size,
};
use crate::layout::HookLayer;
use crate::ledger;
use crate::trailer::{self, Maker};

fn set_errno(error: c_int) {
    // SAFETY: the C library's address of the calling thread's errno.
    unsafe { *libc::__errno_location() = error };
}

/// `size` with room for the trailer; `None` (and `ENOMEM`) if that is too large for any object.
#[inline(always)]
fn with_trailer(size: usize) -> Option<usize> {
    if size <= isize::MAX as usize - 4096 {
        Some(size + trailer::BYTES)
    } else {
        set_errno(libc::ENOMEM);
        None
    }
}

/// Enters a new block into the ledger.
///
/// # Safety
/// `block` is null or was just allocated with at least `size` bytes and room for a trailer.
#[inline(always)]
unsafe fn enter(layer: HookLayer, block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe {
        if block.is_null() {
            return block;
        }
        match ledger::quick_birth(layer, size) {
            Some(context) => mark(block, size, context),
            None => slow_enter(layer, block, size),
        }
    }
}

/// [`enter`] where something rare has to be done. By the C ABI, as are the others like
/// it: what cannot unwind can be jumped to.
///
/// # Safety
/// As [`enter`], and `block` is not null.
#[cold]
#[inline(never)]
unsafe extern "C" fn slow_enter(layer: HookLayer, block: *mut c_void, size: usize) -> *mut c_void {
    let context = ledger::slow_birth(layer, block.cast(), size);
    // SAFETY: the caller's promise.
    unsafe {
        ledger::count_block_mapping(context, mapping_of(block, size) as i64);
        mark(block, size, context)
    }
}

/// Bytes of the mapping that malloc made for this block alone, if the block is so large
/// that its birth and release are never booked the quick way; else 0.
///
/// # Safety
/// `block` is a live block of `size` bytes.
#[inline(always)]
unsafe fn mapping_of(block: *const c_void, size: usize) -> usize {
    match size >= ledger::NEVER_QUICK {
        // SAFETY: the caller's promise.
        true => unsafe { own_mapping(block) },
        false => 0,
    }
}

/// Writes the trailer of a new block.
///
/// # Safety
/// As [`enter`], and `block` is not null.
#[inline(always)]
unsafe fn mark(block: *mut c_void, size: usize, context: u32) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe {
        let usable = usable_size(block);
        trailer::write(Maker::Malloc, block.cast(), usable, size, context);
    }
    block
}

/// Defines `malloc`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { malloc_in(HookLayer::Native, size) }
}

/// `malloc`, booked under `layer`.
#[inline(always)]
pub(crate) unsafe fn malloc_in(layer: HookLayer, size: usize) -> *mut c_void {
    // SAFETY: passes the caller's arguments on; `enter` gets a block of that size.
    unsafe {
        // What is too large without wrapping around, malloc itself refuses.
        let (total, is_too_large) = size.overflowing_add(trailer::BYTES);
        if !ledger::is_known_on() || is_too_large {
            return slow_malloc(layer, size);
        }
        enter(layer, __libc_malloc(total), size)
    }
}

/// [`malloc_in`] where something rare has to be done, from the start.
///
/// # Safety
/// As [`malloc`].
#[cold]
#[inline(never)]
unsafe extern "C" fn slow_malloc(layer: HookLayer, size: usize) -> *mut c_void {
    // SAFETY: as in `malloc_in`.
    unsafe {
        if !ledger::is_on() {
            return __libc_malloc(size);
        }
        let Some(total) = with_trailer(size) else {
            return null_mut();
        };
        enter(layer, __libc_malloc(total), size)
    }
}

/// Defines `calloc`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { calloc_in(HookLayer::Native, count, size) }
}

/// `calloc`, booked under `layer`.
#[inline(always)]
pub(crate) unsafe fn calloc_in(layer: HookLayer, count: usize, size: usize) -> *mut c_void {
    // SAFETY: as in `malloc_in`.
    unsafe {
        if !ledger::is_on() {
            return __libc_calloc(count, size);
        }
        let Some(size) = count.checked_mul(size) else {
            set_errno(libc::ENOMEM);
            return null_mut();
        };
        let Some(total) = with_trailer(size) else {
            return null_mut();
        };
        enter(layer, __libc_calloc(1, total), size)
    }
}

/// Defines `realloc`. A block that moves or grows is released and born again:
/// its new birth is in the round and phase of the call.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { realloc_in(HookLayer::Native, block, size) }
}

/// `realloc`, booked under `layer`.
#[inline(always)]
pub(crate) unsafe fn realloc_in(layer: HookLayer, block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: as in `malloc_in`; the old trailer is read before the block can move.
    unsafe {
        if !ledger::is_on() {
            return __libc_realloc(block, size);
        }
        if block.is_null() {
            return malloc_in(layer, size);
        }
        if size == 0 {
            free(block);
            return null_mut();
        }
        let Some(total) = with_trailer(size) else {
            return null_mut();
        };
        let old = trailer::read(Maker::Malloc, block.cast(), usable_size(block));
        let mapping = old.map_or(0, |old| mapping_of(block, old.size));
        let new = __libc_realloc(block, total);
        if new.is_null() {
            return null_mut();
        }
        match old {
            Some(old) => {
                ledger::book_release(old.context, old.size);
                ledger::count_block_mapping(old.context, -(mapping as i64));
            }
            None => ledger::book_foreign_release(),
        }
        enter(layer, new, size)
    }
}

/// Defines `reallocarray`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(
    block: *mut c_void,
    count: usize,
    size: usize,
) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: as in `realloc`.
        Some(size) => unsafe { realloc(block, size) },
        None => {
            set_errno(libc::ENOMEM);
            null_mut()
        }
    }
}

/// Defines `free`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut c_void) {
    if block.is_null() {
        return;
    }
    // SAFETY: the caller gives back a block of this allocator's.
    unsafe {
        if !ledger::is_known_on() {
            return slow_free(block);
        }
        let usable = usable_size(block);
        let Some(old) = trailer::read(Maker::Malloc, block.cast(), usable) else {
            return slow_free(block);
        };
        if !ledger::quick_release(old.context, old.size) {
            return slow_free(block);
        }
        trailer::erase(block.cast(), usable);
        __libc_free(block);
    }
}

/// [`free`] where something rare has to be done, from the start. Apart, so that the
/// quick way needs no registers that are kept through calls.
///
/// # Safety
/// As [`free`], and `block` is not null.
#[cold]
#[inline(never)]
unsafe extern "C" fn slow_free(block: *mut c_void) {
    // SAFETY: the caller gives back a block of this allocator's. One that has no
    // trailer was born before the ledger or in another allocator.
    unsafe {
        if ledger::is_on() {
            let usable = usable_size(block);
            match trailer::read(Maker::Malloc, block.cast(), usable) {
                Some(old) => {
                    ledger::slow_release(old.context, old.size);
                    let mapping = mapping_of(block, old.size);
                    ledger::count_block_mapping(old.context, -(mapping as i64));
                    trailer::erase(block.cast(), usable);
                }
                None => ledger::book_foreign_release(),
            }
        }
        __libc_free(block);
    }
}

/// Defines `cfree`, which old programs call.
///
/// # Safety
/// As [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cfree(block: *mut c_void) {
    // SAFETY: the caller's promise is the same.
    unsafe { free(block) };
}

/// Defines `memalign`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memalign(alignment: usize, size: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { memalign_in(HookLayer::Native, alignment, size) }
}

/// `memalign`, booked under `layer`.
#[inline(always)]
pub(crate) unsafe fn memalign_in(layer: HookLayer, alignment: usize, size: usize) -> *mut c_void {
    // SAFETY: as in `malloc_in`.
    unsafe {
        if !ledger::is_on() {
            return __libc_memalign(alignment, size);
        }
        let Some(total) = with_trailer(size) else {
            return null_mut();
        };
        enter(layer, __libc_memalign(alignment, total), size)
    }
}

/// Defines `aligned_alloc`. An alignment that is no power of two is refused
/// with `EINVAL` where this glibc does so (from 2.38 on), and else rounded up.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    if !alignment.is_power_of_two() && refuses_odd_alignments() {
        set_errno(libc::EINVAL);
        return null_mut();
    }
    // SAFETY: as in `malloc`.
    unsafe { memalign(alignment, size) }
}

/// Defines `posix_memalign`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(
    out: *mut *mut c_void,
    alignment: usize,
    size: usize,
) -> c_int {
    if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    // SAFETY: `out` is the caller's; errno is put back, for this function must not change it.
    unsafe {
        let errno = *libc::__errno_location();
        let block = memalign(alignment, size);
        set_errno(errno);
        if block.is_null() {
            return libc::ENOMEM;
        }
        *out = block;
        0
    }
}

/// Whether a function that begins here is the one that others call, or stands on
/// the stack in its place.
#[cfg(feature = "gpu")]
pub(crate) fn is_entry(start: usize) -> bool {
    [
        malloc as *const () as usize,
        calloc as *const () as usize,
        realloc as *const () as usize,
        reallocarray as *const () as usize,
        memalign as *const () as usize,
        aligned_alloc as *const () as usize,
        posix_memalign as *const () as usize,
        valloc as *const () as usize,
        pvalloc as *const () as usize,
        slow_malloc as *const () as usize,
        slow_enter as *const () as usize,
    ]
    .contains(&start)
}

fn page_size() -> usize {
    // SAFETY: sysconf has no preconditions; x86-64 has no other answer to fall back on.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Defines `valloc`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn valloc(size: usize) -> *mut c_void {
    // SAFETY: as in `malloc`.
    unsafe { memalign(page_size(), size) }
}

/// Defines `pvalloc`: `valloc` of whole pages.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvalloc(size: usize) -> *mut c_void {
    let page = page_size();
    match size.checked_next_multiple_of(page) {
        // SAFETY: as in `malloc`.
        Some(size) => unsafe { memalign(page, size) },
        None => {
            set_errno(libc::ENOMEM);
            null_mut()
        }
    }
}

/// Defines `malloc_usable_size`. For a metered block that is exactly what was
/// asked for, so that a program that uses all of it leaves the trailer whole.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
    if block.is_null() {
        return 0;
    }
    // SAFETY: the caller names a live block of this allocator's.
    unsafe {
        let usable = usable_size(block);
        if ledger::is_on()
            && let Some(known) = trailer::read(Maker::Malloc, block.cast(), usable)
        {
            return known.size;
        }
        usable
    }
}
