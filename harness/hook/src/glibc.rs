//! The allocator underneath: glibc's own entry points, and where its blocks end.

use std::ffi::{CStr, c_char, c_void};

use crate::arch::GLIBC_BASE_VERSION;

unsafe extern "C" {
    pub(crate) fn __libc_malloc(size: usize) -> *mut c_void;
    pub(crate) fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    pub(crate) fn __libc_realloc(block: *mut c_void, size: usize) -> *mut c_void;
    pub(crate) fn __libc_free(block: *mut c_void);
    pub(crate) fn __libc_memalign(alignment: usize, size: usize) -> *mut c_void;

    // Declared here, and not taken from the libc crate, which has them for glibc alone:
    // elsewhere this crate has one error, the one that says why.
    fn gnu_get_libc_version() -> *const c_char;
    fn dlvsym(handle: *mut c_void, symbol: *const c_char, version: *const c_char) -> *mut c_void;
}

/// Usable bytes of a block of glibc's.
///
/// `malloc_usable_size` itself is one of the functions that this crate defines,
/// and glibc has no second name for it, so the chunk header is read: the word
/// before the block holds the chunk's size and, in its lowest three bits, flags.
/// A chunk of its own mapping (flag 2) has a header of 16 bytes, any other can
/// use the first word of the next chunk. [`layout_is_known`] compares this with
/// what glibc says, once per process.
///
/// # Safety
/// `block` was returned by one of the functions above and not released since.
#[inline(always)]
pub(crate) unsafe fn usable_size(block: *const c_void) -> usize {
    const FLAGS: usize = 7;
    const IS_MAPPED: usize = 2;
    // SAFETY: every block of glibc's has its chunk header before it.
    let head = unsafe { block.cast::<usize>().sub(1).read() };
    let overhead = 8 + (head & IS_MAPPED) * 4; // 8 or 16, without a branch.
    (head & !FLAGS).wrapping_sub(overhead)
}

/// Bytes of the mapping that malloc made for this block alone; 0 if it lies in an arena.
///
/// # Safety
/// As [`usable_size`].
pub(crate) unsafe fn own_mapping(block: *const c_void) -> usize {
    const FLAGS: usize = 7;
    const IS_MAPPED: usize = 2;
    // SAFETY: every block of glibc's has its chunk header before it: what lies before it in
    // its mapping, then its size and flags.
    let (before, head) = unsafe {
        let header = block.cast::<usize>();
        (header.sub(2).read(), header.sub(1).read())
    };
    match head & IS_MAPPED {
        0 => 0,
        _ => before + (head & !FLAGS),
    }
}

/// Whether this glibc's `aligned_alloc` refuses an alignment that is no power of two.
#[cold]
pub(crate) fn refuses_odd_alignments() -> bool {
    // SAFETY: the function returns a static C string.
    let version = unsafe { CStr::from_ptr(gnu_get_libc_version()) };
    is_at_least_2_38(version.to_bytes())
}

fn is_at_least_2_38(version: &[u8]) -> bool {
    let Some(minor) = version.strip_prefix(b"2.") else {
        return true;
    };
    let digits = minor.iter().take_while(|digit| digit.is_ascii_digit());
    let minor = digits.fold(0_u32, |minor, digit| {
        minor.wrapping_mul(10).wrapping_add(u32::from(digit - b'0'))
    });
    minor >= 38
}

/// Whether [`usable_size`] agrees with the C library's own `malloc_usable_size`.
///
/// Cold: called once, before the first block is metered.
pub(crate) fn layout_is_known() -> bool {
    type UsableSize = unsafe extern "C" fn(*mut c_void) -> usize;
    // SAFETY: dlsym with a C string; the symbol, if it is there, has the type that
    // the manual gives. The blocks are released before the end.
    unsafe {
        // By version, so that another copy of this crate is not taken for the C library.
        let symbol = dlvsym(
            libc::RTLD_NEXT,
            c"malloc_usable_size".as_ptr(),
            GLIBC_BASE_VERSION.as_ptr(),
        );
        if symbol.is_null() {
            return false;
        }
        let theirs = std::mem::transmute::<*mut c_void, UsableSize>(symbol);
        let mut known = true;
        // The last one has a mapping of its own, and is larger than those whose release has
        // malloc take later blocks of that size from its arenas: the program's are to be
        // made as they would be without the hook.
        for size in [1, 24, 25, 1000, 5000, 40 << 20] {
            let block = __libc_malloc(size);
            if block.is_null() {
                continue;
            }
            known &= usable_size(block) == theirs(block) && usable_size(block) >= size;
            __libc_free(block);
        }
        let aligned = __libc_memalign(4096, 100);
        if !aligned.is_null() {
            known &= usable_size(aligned) == theirs(aligned);
            __libc_free(aligned);
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn glibc_2_38_and_later_are_told_from_earlier_ones() {
        for earlier in ["2.36", "2.37", "2.37.9000", "2.4"] {
            assert!(!is_at_least_2_38(earlier.as_bytes()), "{earlier}");
        }
        for later in ["2.38", "2.39", "2.41.9000", "3.0"] {
            assert!(is_at_least_2_38(later.as_bytes()), "{later}");
        }
    }
}
