//! The memory limit of a run: a memory cgroup where one can be made, else the
//! sampler's watchdog.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::books::LimitKind;

/// A memory cgroup that holds the workload. Removed when dropped.
#[derive(Debug)]
pub(crate) struct Cgroup {
    folder: PathBuf,
    kind: LimitKind,
}

impl Cgroup {
    /// Makes a cgroup of version 1 below this process's own, or of version 2 below the
    /// nearest one that gives its children a memory controller, with a limit in bytes.
    ///
    /// # Errors
    /// If this process may not, or the memory controller is not there.
    pub fn with_limit(limit_bytes: u64) -> io::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let (parent, kind) = parent_of_limited()?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = parent.join(format!("tidegate-{}-{number}", std::process::id()));
        fs::create_dir(&folder)?;
        let cgroup = Self { folder, kind };
        let limit = limit_bytes.to_string();
        match kind {
            LimitKind::CgroupV2 => {
                cgroup.write("memory.max", &limit)?;
                let _ = cgroup.write("memory.swap.max", "0");
            }
            LimitKind::CgroupV1 | LimitKind::Watchdog => {
                cgroup.write("memory.limit_in_bytes", &limit)?;
                let _ = cgroup.write("memory.memsw.limit_in_bytes", &limit);
            }
        }
        Ok(cgroup)
    }

    /// Which version it is.
    pub fn kind(&self) -> LimitKind {
        self.kind
    }

    /// The list of processes, opened for a child to write itself into.
    pub fn entrance(&self) -> io::Result<OwnedFd> {
        let file = fs::OpenOptions::new()
            .write(true)
            .open(self.folder.join("cgroup.procs"))?;
        Ok(file.into())
    }

    /// How often the kernel killed something in here for want of memory.
    pub fn kills(&self) -> u64 {
        let file = match self.kind {
            LimitKind::CgroupV2 => "memory.events",
            LimitKind::CgroupV1 | LimitKind::Watchdog => "memory.oom_control",
        };
        let text = fs::read_to_string(self.folder.join(file)).unwrap_or_default();
        counter(&text, "oom_kill").unwrap_or(0)
    }

    /// The highest use in bytes, as the kernel counts it.
    pub fn peak(&self) -> Option<u64> {
        let file = match self.kind {
            LimitKind::CgroupV2 => "memory.peak",
            LimitKind::CgroupV1 | LimitKind::Watchdog => "memory.max_usage_in_bytes",
        };
        fs::read_to_string(self.folder.join(file))
            .ok()?
            .trim()
            .parse()
            .ok()
    }

    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        fs::write(self.folder.join(file), text)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A cgroup can be removed once its last process has been reaped, which may take a moment.
        for _ in 0..50 {
            match fs::remove_dir(&self.folder) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
                _ => return,
            }
        }
    }
}

/// The folder of the cgroup below which a limited one can be made.
fn parent_of_limited() -> io::Result<(PathBuf, LimitKind)> {
    let groups = fs::read_to_string("/proc/self/cgroup")?;
    if let Some(path) = path_of(&groups, "memory") {
        let root = Path::new("/sys/fs/cgroup/memory");
        return Ok((below(root, path), LimitKind::CgroupV1));
    }
    let path = path_of(&groups, "").ok_or(io::ErrorKind::NotFound)?;
    let root = Path::new("/sys/fs/cgroup");
    let folder = with_memory_controller(root, below(root, path))?;
    Ok((folder, LimitKind::CgroupV2))
}

/// The nearest cgroup of version 2, from `own` upwards to the `root` that is mounted, whose
/// children have a memory controller and may be given this process's children.
///
/// It is hardly ever `own`: one that holds processes gives its children no controller.
fn with_memory_controller(root: &Path, own: PathBuf) -> io::Result<PathBuf> {
    let up_to_root = own
        .ancestors()
        .take_while(|folder| folder.starts_with(root));
    for folder in up_to_root {
        let enabled = fs::read_to_string(folder.join("cgroup.subtree_control"))?;
        if !enabled.split_whitespace().any(|name| name == "memory") {
            continue;
        }
        // Whoever moves a process must be allowed to write there, where both cgroups meet.
        let meeting = folder.join("cgroup.procs");
        rustix::fs::access(&meeting, rustix::fs::Access::WRITE_OK)?;
        return Ok(folder.to_owned());
    }
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "the memory controller is not delegated",
    ))
}

/// The path of a controller's cgroup in `/proc/self/cgroup` ("" for version 2).
fn path_of<'a>(groups: &'a str, controller: &str) -> Option<&'a str> {
    groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let controllers = parts.next()?;
        let path = parts.next()?;
        controllers
            .split(',')
            .any(|name| name == controller)
            .then_some(path)
    })
}

/// A cgroup's folder. In a container the path can be the host's: then the root that is mounted here.
fn below(root: &Path, path: &str) -> PathBuf {
    let folder = root.join(path.trim_start_matches('/'));
    if folder.is_dir() {
        folder
    } else {
        root.to_owned()
    }
}

fn counter(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        line.strip_prefix(name)?
            .strip_prefix(' ')?
            .trim()
            .parse()
            .ok()
    })
}

/// How often the kernel's out-of-memory killer has struck on this machine.
pub(crate) fn kernel_kills() -> Option<u64> {
    counter(&fs::read_to_string("/proc/vmstat").ok()?, "oom_kill")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_is_found_in_both_versions() {
        let v1 = "9:name=systemd:/\n4:cpu,memory:/a/b:c\n0::/\n";
        assert_eq!(path_of(v1, "memory"), Some("/a/b:c"));
        let v2 = "0::/user.slice\n";
        assert_eq!(path_of(v2, "memory"), None);
        assert_eq!(path_of(v2, ""), Some("/user.slice"));
    }

    #[test]
    fn the_nearest_cgroup_of_version_2_that_gives_its_children_memory_is_taken() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let own = root.join("slice/service");
        fs::create_dir_all(&own).unwrap();
        let gives = |folder: &str, controllers: &str| {
            let folder = root.join(folder);
            fs::write(folder.join("cgroup.subtree_control"), controllers).unwrap();
            fs::write(folder.join("cgroup.procs"), "").unwrap();
        };
        let taken = || with_memory_controller(root, own.clone());
        assert_eq!(taken().unwrap_err().kind(), io::ErrorKind::NotFound);
        gives("slice/service", "");
        gives("slice", "cpu memory pids\n");
        gives("", "cpu memory pids\n");
        assert_eq!(taken().unwrap(), root.join("slice"));
        gives("slice", "cpu pids memory_of_another_kind\n");
        assert_eq!(taken().unwrap(), root);
        gives("", "\n");
        assert_eq!(taken().unwrap_err().kind(), io::ErrorKind::Unsupported);
        gives("", "memory\n");
        fs::remove_file(root.join("cgroup.procs")).unwrap();
        assert_eq!(taken().unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_counter_is_not_taken_for_one_with_a_longer_name() {
        let text = "oom 3\noom_kill_disable 1\noom_kill 2\n";
        assert_eq!(counter(text, "oom_kill"), Some(2));
        assert_eq!(counter(text, "oom"), Some(3));
        assert_eq!(counter("", "oom"), None);
    }
}
