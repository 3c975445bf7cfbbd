//! What differs between architectures.

#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{GLIBC_BASE_VERSION, PAGE, thread_block};

/// Bytes of the block that [`thread_block`] returns.
pub(crate) const THREAD_BYTES: usize = 256;
