//! Metering programs that were not built with this crate: the shared object for
//! `LD_PRELOAD`, and the environment that takes a ledger to a process.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use crate::attach::{FD_VARIABLE, PATH_VARIABLE};
use crate::reader::Ledger;

/// Environment variable that names the shared object, for whoever keeps it
/// where [`library`] does not look.
pub const LIBRARY_VARIABLE: &str = "TIDEGATE_HOOK_LIBRARY";

const STEM: &str = "libtidegate_hook";

/// The shared object `libtidegate_hook.so`, which Cargo builds beside every
/// program that depends on this crate.
///
/// It is the file that [`LIBRARY_VARIABLE`] names; else it lies in the folder of
/// the running program, in that folder's `deps`, in the folder above (a test lies
/// in `deps` itself), or in a `lib` beside it (an installed program lies in `bin`).
///
/// # Errors
/// If it is not there; the message says where it was looked for.
pub fn library() -> io::Result<PathBuf> {
    if let Some(named) = env::var_os(LIBRARY_VARIABLE) {
        return fs::canonicalize(&named).map_err(|error| {
            let named = Path::new(&named).display();
            let problem = format!("{LIBRARY_VARIABLE} names {named}, which is not there: {error}");
            io::Error::new(error.kind(), problem)
        });
    }
    let program = env::current_exe()?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let folders = [
        folder.to_owned(),
        folder.join("deps"),
        folder.join(".."),
        folder.join("../lib"),
    ];
    for folder in &folders {
        if let Some(found) = newest_in(folder) {
            return fs::canonicalize(found);
        }
    }
    Err(io::Error::new(
        io::ErrorKind::NotFound,
        format!(
            "{STEM}.so is neither beside {} nor in deps, .. or ../lib; build it with \
             `cargo build -p tidegate-hook`, or name it in {LIBRARY_VARIABLE}",
            program.display()
        ),
    ))
}

/// `libtidegate_hook.so`, or the newest `libtidegate_hook-*.so`: Cargo adds a hash
/// to the name when the crate comes from a registry.
fn newest_in(folder: &Path) -> Option<PathBuf> {
    let plain = folder.join(format!("{STEM}.so"));
    if plain.is_file() {
        return Some(plain);
    }
    let entries = fs::read_dir(folder).ok()?;
    let hashed = entries.flatten().filter(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.strip_prefix(STEM)
            .and_then(|rest| rest.strip_suffix(".so"))
            .is_some_and(|hash| hash.starts_with('-'))
    });
    hashed
        .max_by_key(|entry| entry.metadata().and_then(|data| data.modified()).ok())
        .map(|entry| entry.path())
}

/// The value of `LD_PRELOAD` that puts `library` before what is preloaded already.
///
/// # Errors
/// If the path holds a space or a colon, which the loader takes for the end of a name.
pub fn preload(library: &Path, already: Option<&OsStr>) -> io::Result<OsString> {
    let name = library.as_os_str();
    if name
        .as_encoded_bytes()
        .iter()
        .any(|byte| b" :".contains(byte))
    {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "{} cannot be preloaded: the path holds a space or a colon; make a symbolic link \
                 without and name it in {LIBRARY_VARIABLE}",
                library.display()
            ),
        ));
    }
    let mut value = name.to_owned();
    if let Some(already) = already.filter(|already| !already.is_empty()) {
        value.push(":");
        value.push(already);
    }
    Ok(value)
}

impl Ledger {
    /// The variables with which a process, and whatever it starts, finds this
    /// ledger: by the descriptor, which must be inherited (see [`AsFd`]), and where
    /// that was closed, by a path through this process.
    pub fn variables(&self) -> [(&'static str, String); 2] {
        let fd = self.as_fd().as_raw_fd();
        let path = format!("/proc/{}/fd/{fd}", std::process::id());
        let name = |name: &'static std::ffi::CStr| name.to_str().unwrap_or_default();
        [
            (name(FD_VARIABLE), fd.to_string()),
            (name(PATH_VARIABLE), path),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hook_is_preloaded_before_what_was_there() {
        let hook = Path::new("/a/libtidegate_hook.so");
        assert_eq!(preload(hook, None).unwrap(), "/a/libtidegate_hook.so");
        assert_eq!(
            preload(hook, Some(OsStr::new("libb.so"))).unwrap(),
            "/a/libtidegate_hook.so:libb.so"
        );
    }

    #[test]
    fn a_path_that_the_loader_would_cut_is_refused() {
        for path in ["/a b/libtidegate_hook.so", "/a:b/libtidegate_hook.so"] {
            assert!(preload(Path::new(path), None).is_err());
        }
    }
}
