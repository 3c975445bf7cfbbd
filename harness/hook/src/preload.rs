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
/// in `deps` itself), or in a `lib` beside it (an installed program lies in `bin`). Of
/// several it is the newest: Cargo copies it out of `deps` only when this crate itself
/// is built, and leaves an older copy there else.
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
    if let Some(found) = newest_in(&folders) {
        return fs::canonicalize(found);
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

/// The newest `libtidegate_hook.so` or `libtidegate_hook-*.so` (Cargo adds a hash to
/// the name when the crate comes from a registry); of equals the first.
fn newest_in(folders: &[PathBuf]) -> Option<PathBuf> {
    let mut newest = None;
    let entries = folders.iter().flat_map(fs::read_dir).flatten().flatten();
    for entry in entries.filter(|entry| is_library(&entry.file_name())) {
        // Followed, if it is a link.
        let Ok(modified) = fs::metadata(entry.path()).and_then(|data| data.modified()) else {
            continue;
        };
        if newest.as_ref().is_none_or(|(known, _)| modified > *known) {
            newest = Some((modified, entry.path()));
        }
    }
    newest.map(|(_, path)| path)
}

fn is_library(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name.strip_prefix(STEM)
        .and_then(|rest| rest.strip_suffix(".so"))
        .is_some_and(|hash| hash.is_empty() || hash.starts_with('-'))
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
    fn the_newest_of_several_copies_is_taken_wherever_it_lies() {
        let root = env::temp_dir().join(format!("tidegate-preload-{}", std::process::id()));
        let folders = ["debug", "debug/deps", "missing"].map(|name| root.join(name));
        fs::create_dir_all(&folders[1]).unwrap();
        let write = |folder: &Path, name: &str, seconds: u64| {
            let file = fs::File::create(folder.join(name)).unwrap();
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            file.set_modified(time).unwrap();
            folder.join(name)
        };
        let copy = write(&folders[0], "libtidegate_hook.so", 1000);
        write(&folders[0], "libtidegate_hooks.so", 9000);
        write(&folders[1], "libtidegate_hook.d", 9000);
        assert_eq!(newest_in(&folders), Some(copy.clone()));
        let built = write(&folders[1], "libtidegate_hook.so", 2000);
        assert_eq!(newest_in(&folders), Some(built));
        let hashed = write(&folders[1], "libtidegate_hook-0123.so", 3000);
        assert_eq!(newest_in(&folders), Some(hashed));
        let copy = write(&folders[0], "libtidegate_hook.so", 3001);
        assert_eq!(newest_in(&folders), Some(copy));
        fs::remove_dir_all(root).unwrap();
    }

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
