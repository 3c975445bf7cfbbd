//! The crate's only `unsafe` code: three calls that have no safe form.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::Signal;

/// What a child does for itself between fork and exec.
#[derive(Debug, Default)]
pub(crate) struct AtBirth {
    /// Descriptors that it keeps through exec.
    pub keep: Vec<RawFd>,
    /// A cgroup's list of processes that it joins, and a file descriptor of it.
    pub join: Option<OwnedFd>,
}

/// Has the child that `command` starts do `at_birth`, and die with this thread.
pub(crate) fn before_exec(command: &mut Command, at_birth: AtBirth) {
    let act = move || -> io::Result<()> {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        if let Some(processes) = &at_birth.join {
            rustix::io::write(processes, b"0")?;
        }
        for &fd in &at_birth.keep {
            // SAFETY: the supervisor holds the descriptor open while it starts the child.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec only system calls happen: no allocation, no lock.
    unsafe { command.pre_exec(act) };
}

/// Takes over a descriptor that this process inherited and that nobody else owns.
///
/// # Errors
/// If it is not open.
pub(crate) fn inherited(fd: RawFd) -> io::Result<OwnedFd> {
    use std::os::fd::FromRawFd;
    // SAFETY: fcntl tells whether it is open; the supervisor opened it for this
    // process alone, and the environment variable that names it is used once.
    unsafe {
        if libc::fcntl(fd, libc::F_GETFD) < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Asks glibc to give free pages of every arena back. Returns whether it gave any.
pub(crate) fn trim_heap() -> bool {
    // SAFETY: malloc_trim has no preconditions.
    unsafe { libc::malloc_trim(0) == 1 }
}

/// The version of the C library that this process runs on.
pub(crate) fn glibc_version() -> String {
    // SAFETY: the function returns a static C string.
    let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    version.to_string_lossy().into_owned()
}
