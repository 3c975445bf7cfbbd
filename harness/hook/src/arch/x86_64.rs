//! x86-64.

use std::arch::{asm, global_asm};
use std::ffi::CStr;

use super::THREAD_BYTES;

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;

/// The version that glibc gives the symbols it has had from the start on this architecture.
pub(crate) const GLIBC_BASE_VERSION: &CStr = c"GLIBC_2.2.5";

// Rust's own thread-locals are reached through a function call when they are in
// a shared object. This one is laid out by hand so that it can be reached the
// way that is meant for objects which are there when the program starts
// ("initial exec"): through an offset that the loader fills in once. In an
// executable the linker turns that into a constant.
global_asm!(
    ".pushsection .tbss.tidegate_hook_thread, \"awT\", @nobits",
    ".balign 64",
    ".globl tidegate_hook_thread",
    ".hidden tidegate_hook_thread",
    ".type tidegate_hook_thread, @object",
    ".size tidegate_hook_thread, {bytes}",
    "tidegate_hook_thread:",
    ".zero {bytes}",
    ".popsection",
    bytes = const THREAD_BYTES,
);

/// The calling thread's block of [`THREAD_BYTES`] bytes, zero when the thread
/// begins, aligned to 64, and gone with the thread.
#[inline(always)]
pub(crate) fn thread_block() -> *const u8 {
    let block: *const u8;
    // SAFETY: reads the thread pointer and the block's offset from it, both of
    // which never change for a thread; writes nothing but the output register
    // and the flags.
    unsafe {
        asm!(
            "mov {block}, qword ptr fs:[0]",
            "add {block}, qword ptr [rip + tidegate_hook_thread@GOTTPOFF]",
            block = out(reg) block,
            options(pure, nomem, nostack),
        );
    }
    block
}
