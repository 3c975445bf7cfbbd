//! Gauges: what the system says of a process tree, read from outside.

use std::io::Read;

use procfs::process::Process;
use tidegate_hook::Ledger;

use crate::books::Gauges;

/// A process and its descendants, watched through procfs.
#[derive(Debug)]
pub(crate) struct Tree {
    root: i32,
    members: Vec<Member>,
    /// Whether the root has ended and others go on in its place.
    detached: bool,
    /// Text of the file that is read, kept for its room.
    text: Vec<u8>,
    /// Milliseconds a clock tick.
    tick_ms: u64,
}

/// A process of the tree, with what was dear to read when it was last looked for.
#[derive(Debug)]
struct Member {
    process: Process,
    fds: u64,
    cpu_ms: u64,
}

impl Tree {
    /// Watches the process `root`; descendants are looked for by [`rescan`](Self::rescan).
    pub fn of(root: i32) -> Self {
        let mut tree = Self {
            root,
            members: Vec::new(),
            detached: false,
            text: Vec::new(),
            tick_ms: 1000 / procfs::ticks_per_second().max(1),
        };
        tree.members
            .extend(Process::new(root).map(|process| tree.member(process)));
        tree
    }

    /// Looks for processes that came and went, and reads the descriptors and the CPU time of
    /// those that are there. Once the root has ended, the processes `in_its_place` are
    /// watched, with their descendants.
    pub fn rescan(&mut self, in_its_place: impl FnOnce() -> Vec<u32>) {
        let mut next = vec![self.root];
        if self.detached || Process::new(self.root).is_err() {
            next = in_its_place().into_iter().map(|pid| pid as i32).collect();
            self.detached = !next.is_empty();
        }
        let mut found: Vec<Member> = Vec::new();
        while let Some(pid) = next.pop() {
            let Ok(process) = Process::new(pid) else {
                continue;
            };
            if found.iter().any(|known| known.process.pid == pid) {
                continue;
            }
            if let Ok(tasks) = process.tasks() {
                for task in tasks.flatten() {
                    next.extend(task.children().into_iter().flatten().map(|pid| pid as i32));
                }
            }
            found.push(self.member(process));
        }
        if !found.is_empty() {
            self.members = found;
        }
    }

    /// The processes that were there when it was last looked.
    pub fn members(&self) -> impl Iterator<Item = i32> {
        self.members.iter().map(|member| member.process.pid)
    }

    /// Whether a process was there when it was last looked.
    pub fn contains(&self, pid: i32) -> bool {
        self.members().any(|member| member == pid)
    }

    /// Sums the gauges of all processes that are there: their memory and threads now, their
    /// descriptors and CPU time when they were last looked for. `None` if the root is not
    /// there, or if none is of those in its place.
    pub fn read(&mut self) -> Option<Gauges> {
        let mut sum = None;
        for (index, member) in self.members.iter().enumerate() {
            match member.read(&mut self.text) {
                Some(one) => add(sum.get_or_insert_default(), &one),
                None if index == 0 && !self.detached => return None,
                None => {}
            }
        }
        sum
    }

    fn member(&self, process: Process) -> Member {
        Member {
            fds: process.fd_count().unwrap_or(0) as u64,
            cpu_ms: process
                .stat()
                .map_or(0, |stat| (stat.utime + stat.stime) * self.tick_ms),
            process,
        }
    }
}

impl Member {
    /// Only the lines that are needed are taken: to parse all of `status` takes ten times as
    /// long as the kernel takes to write it.
    fn read(&self, text: &mut Vec<u8>) -> Option<Gauges> {
        /// Far more than the kernel writes.
        const AT_MOST: u64 = 1 << 20;
        text.clear();
        let status = self.process.open_relative("status").ok()?;
        status.take(AT_MOST).read_to_end(text).ok()?;
        let mut gauges = Gauges {
            fds: self.fds,
            cpu_ms: self.cpu_ms,
            ..Gauges::default()
        };
        let mut has_memory = false;
        for line in text.split(|&byte| byte == b'\n') {
            let Some(colon) = line.iter().position(|&byte| byte == b':') else {
                continue;
            };
            let bytes = || number(&line[colon + 1..])?.checked_mul(1024);
            match &line[..colon] {
                b"RssAnon" => {
                    gauges.rss_anon = bytes()?;
                    has_memory = true;
                }
                b"RssFile" => gauges.rss_file = bytes()?,
                b"RssShmem" => gauges.rss_shmem = bytes()?,
                b"HugetlbPages" => gauges.hugetlb = bytes()?,
                b"VmSwap" => gauges.swap = bytes()?,
                b"VmHWM" => gauges.rss_peak = bytes()?,
                b"Threads" => {
                    gauges.threads = number(&line[colon + 1..])?;
                    // Signals, capabilities and the like follow.
                    break;
                }
                _ => {}
            }
        }
        // A process that has given up its memory has no such lines.
        has_memory.then_some(gauges)
    }
}

/// The number that a line's value begins with.
fn number(value: &[u8]) -> Option<u64> {
    str::from_utf8(value)
        .ok()?
        .split_ascii_whitespace()
        .next()?
        .parse()
        .ok()
}

/// The gauges of the tree below `root` now, read for this moment and not by the
/// sampler's clock, without the ledger's own pages. `None` if they cannot be read.
pub(crate) fn gauges_now(root: i32, ledger: &Ledger) -> Option<Gauges> {
    let mut tree = Tree::of(root);
    tree.rescan(|| in_background(ledger));
    let gauges = tree.read()?;
    let rss_shmem = gauges.rss_shmem.saturating_sub(ledger.own_bytes());
    Some(Gauges {
        rss_shmem,
        card: crate::card::now(|pid| tree.contains(pid)),
        ..gauges
    })
}

/// The processes that go on in the background: those that write to the ledger, and those
/// that hold it, or will in a moment, and have become this process's children when their
/// parents ended.
pub(crate) fn in_background(ledger: &Ledger) -> Vec<u32> {
    let mut found = ledger.running();
    let tasks = Process::myself().and_then(|myself| myself.tasks());
    for task in tasks.into_iter().flatten().flatten() {
        for child in task.children().into_iter().flatten() {
            if !found.contains(&child) && ledger.is_held_by(child) {
                found.push(child);
            }
        }
    }
    found
}

/// Whether a process is on its way out: it has given up its memory, and with a card
/// or much memory it is there for a while yet.
pub(crate) fn is_ending(pid: i32) -> bool {
    match Process::new(pid).and_then(|process| process.status()) {
        Ok(status) => status.vmrss.is_none(),
        Err(_) => true,
    }
}

fn add(sum: &mut Gauges, one: &Gauges) {
    sum.rss_anon += one.rss_anon;
    sum.rss_file += one.rss_file;
    sum.rss_shmem += one.rss_shmem;
    sum.hugetlb += one.hugetlb;
    sum.swap += one.swap;
    sum.rss_peak += one.rss_peak;
    sum.threads += one.threads;
    sum.fds += one.fds;
    sum.cpu_ms += one.cpu_ms;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_gauges() {
        let mut tree = Tree::of(std::process::id() as i32);
        tree.rescan(Vec::new);
        let gauges = tree.read().unwrap();
        assert!(gauges.rss_anon > 0 && gauges.rss_file > 0, "{gauges:?}");
        assert!(
            gauges.rss_peak + procfs::page_size() >= gauges.rss_anon,
            "{gauges:?}"
        );
        assert!(gauges.threads >= 1 && gauges.fds >= 3, "{gauges:?}");
    }

    #[test]
    fn a_process_that_is_gone_has_none() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let mut tree = Tree::of(child.id() as i32);
        assert!(!is_ending(std::process::id() as i32));
        child.wait().unwrap();
        assert_eq!(tree.read(), None);
        tree.rescan(|| vec![std::process::id()]);
        assert!(tree.read().is_some(), "another one is watched in its place");
        assert!(is_ending(child.id() as i32));
    }

    #[test]
    fn a_process_that_nobody_has_waited_for_is_ending() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        while !is_ending(pid) {
            std::thread::yield_now();
        }
        assert!(child.try_wait().is_ok());
    }
}
