//! Mappings: what of a process's resident memory lies where, by the kernel's own
//! account, so that growth which no ledger books can be named.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use crate::books::{MapKind, MapSeries};

/// Resident bytes by who made the mapping and by its name.
type Resident = BTreeMap<(MapKind, String), u64>;

/// Readings take no more than one part in so many of the time between them.
const SHARE: u32 = 20;

/// The mappings after each round.
#[derive(Debug, Default)]
pub(crate) struct Maps {
    rounds: Vec<Resident>,
    last: Option<(Instant, Duration)>,
    /// Whether one of the processes ever had the GPU's driver mapped.
    saw_gpu: bool,
}

impl Maps {
    /// Reads the mappings of these processes, as a round has ended.
    ///
    /// The kernel walks every page for that, which takes a second or so for a
    /// process of a terabyte: where it would take too large a part of the run, the
    /// last reading stands.
    pub fn round_ended(&mut self, processes: impl Iterator<Item = u32>) {
        let begun = Instant::now();
        let too_soon = self
            .last
            .is_some_and(|(at, took)| begun.duration_since(at) < took * SHARE);
        if too_soon && took_long(self.last) {
            let before = self.rounds.last().cloned().unwrap_or_default();
            self.rounds.push(before);
            return;
        }
        let mut resident = Resident::new();
        for pid in processes {
            // A process that is gone has no mappings.
            if let Ok(text) = fs::read(format!("/proc/{pid}/smaps")) {
                let text = String::from_utf8_lossy(&text);
                self.saw_gpu |= text.contains(" /dev/nvidia");
                add_all(&mut resident, &text);
            }
        }
        self.rounds.push(resident);
        let now = Instant::now();
        self.last = Some((now, now.duration_since(begun)));
    }

    /// Leaves every second reading out.
    pub fn thin(&mut self) {
        let mut is_kept = false;
        self.rounds.retain(|_| {
            is_kept = !is_kept;
            is_kept
        });
    }

    /// Whether one of the processes uses a GPU: its driver's devices are mapped then.
    pub fn saw_gpu(&self) -> bool {
        self.saw_gpu
    }

    /// What grew or shrank, as series of one value for each round.
    pub fn series(&self) -> Vec<MapSeries> {
        let all: BTreeSet<&(MapKind, String)> =
            self.rounds.iter().flat_map(BTreeMap::keys).collect();
        all.into_iter()
            .map(|key| MapSeries {
                kind: key.0,
                name: key.1.clone(),
                resident: self
                    .rounds
                    .iter()
                    .map(|resident| resident.get(key).copied().unwrap_or(0))
                    .collect(),
            })
            .filter(|series| series.resident.windows(2).any(|pair| pair[0] != pair[1]))
            .collect()
    }
}

fn took_long(last: Option<(Instant, Duration)>) -> bool {
    last.is_some_and(|(_, took)| took > Duration::from_millis(5))
}

/// One mapping of `/proc/PID/smaps`.
struct Mapping<'a> {
    start: u64,
    end: u64,
    permissions: &'a str,
    name: &'a str,
    /// Whether the mapping just below it is a guard, as a thread's stack has one.
    guarded: bool,
}

fn add_all(resident: &mut Resident, text: &str) {
    let mut mapping: Option<Mapping<'_>> = None;
    let (mut rss, mut anonymous) = (0, 0);
    let mut flush = |mapping: &Option<Mapping<'_>>, rss: u64, anonymous: u64| {
        if let Some(mapping) = mapping {
            for (key, bytes) in parts(mapping, rss, anonymous) {
                if bytes > 0 {
                    *resident.entry(key).or_default() += bytes;
                }
            }
        }
    };
    for line in text.lines() {
        if let Some(next) = header(line, mapping.as_ref()) {
            flush(&mapping, rss, anonymous);
            mapping = Some(next);
            (rss, anonymous) = (0, 0);
        } else if let Some(size) = line.strip_prefix("Rss:") {
            rss = bytes(size);
        } else if let Some(size) = line.strip_prefix("Anonymous:") {
            anonymous = bytes(size);
        }
    }
    flush(&mapping, rss, anonymous);
}

/// A mapping's first line, `START-END PERMISSIONS OFFSET DEVICE INODE NAME`.
fn header<'a>(line: &'a str, below: Option<&Mapping<'_>>) -> Option<Mapping<'a>> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    let permissions = rest.split(' ').next()?;
    // The name may hold spaces: it is what follows the fourth field after the range.
    let mut name = rest;
    for _ in 0..4 {
        name = name
            .trim_start()
            .split_once(' ')
            .map_or("", |(_, rest)| rest);
    }
    let guarded = below.is_some_and(|below| {
        below.end == start && below.permissions.starts_with("---") && below.name.is_empty()
    });
    Some(Mapping {
        start,
        end,
        permissions,
        name: name.trim(),
        guarded,
    })
}

/// "   1024 kB" in bytes.
fn bytes(size: &str) -> u64 {
    let number = size.trim().strip_suffix(" kB").unwrap_or("0");
    number.trim().parse::<u64>().unwrap_or(0) * 1024
}

/// What of a mapping is whose: its anonymous pages, and those of a file or of shared memory.
fn parts(mapping: &Mapping<'_>, rss: u64, anonymous: u64) -> Vec<((MapKind, String), u64)> {
    let name = mapping.name;
    let others = rss.saturating_sub(anonymous);
    let is_shmem = ["/memfd:", "/dev/zero", "/dev/shm/", "/SYSV"]
        .iter()
        .any(|prefix| name.starts_with(prefix));
    let kind = if is_shmem {
        MapKind::Shmem
    } else {
        MapKind::File
    };
    let mut parts = Vec::new();
    // The ledger's own pages are no doing of the workload's.
    if !name.starts_with("/memfd:tidegate") && !name.is_empty() && !name.starts_with('[') {
        let private = format!("written copies of {name}");
        parts.push(((kind, name.to_owned()), others));
        parts.push(((MapKind::Anon, private), anonymous));
        return parts;
    }
    let (kind, name) = match name {
        "[heap]" => (MapKind::Allocator, "[heap]"),
        _ if name.starts_with("[stack") => (MapKind::Stack, "[stack]"),
        "" if is_arena(mapping) => (MapKind::Allocator, "an arena of malloc"),
        "" if mapping.guarded => (MapKind::Stack, "a thread's stack"),
        "" => (MapKind::Anon, "anonymous mappings"),
        _ if name.starts_with("[anon") => (MapKind::Anon, name),
        _ => return parts,
    };
    parts.push(((kind, name.to_owned()), rss));
    parts
}

/// Whether an unnamed mapping lies as glibc lays its arenas: from a multiple of
/// 64 MiB on, and within that.
fn is_arena(mapping: &Mapping<'_>) -> bool {
    const ARENA: u64 = 64 << 20;
    mapping.start.is_multiple_of(ARENA)
        && mapping.end - mapping.start <= ARENA
        && mapping.permissions.starts_with("rw-p")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0                          [heap]
Rss:                 100 kB
Anonymous:           100 kB
7f5a00000000-7f5a00800000 rw-p 00000000 00:00 0 
Rss:                 640 kB
Anonymous:           640 kB
7f5a10000000-7f5a10001000 ---p 00000000 00:00 0 
Rss:                   0 kB
7f5a10001000-7f5a10801000 rw-p 00000000 00:00 0 
Rss:                  12 kB
Anonymous:            12 kB
7f5a20123000-7f5a20323000 rw-p 00000000 00:00 0 
Rss:                2048 kB
Anonymous:          2048 kB
7f5a30000000-7f5a30100000 rw-p 00000000 08:01 77                         /tmp/a file (deleted)
Rss:                1024 kB
Anonymous:           512 kB
7f5a40000000-7f5a40100000 rw-s 00000000 00:01 9                          /dev/zero (deleted)
Rss:                1024 kB
Anonymous:             0 kB
7f5a50000000-7f5a50100000 rw-s 00000000 00:01 9                          /memfd:tidegate-ledger (deleted)
Rss:                1024 kB
Anonymous:             0 kB
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
Rss:                  16 kB
Anonymous:            16 kB
";

    #[test]
    fn each_mapping_is_told_by_who_made_it() {
        let mut resident = Resident::new();
        add_all(&mut resident, SMAPS);
        let told: Vec<(MapKind, &str, u64)> = resident
            .iter()
            .map(|((kind, name), bytes)| (*kind, name.as_str(), bytes / 1024))
            .collect();
        assert_eq!(
            told,
            [
                (MapKind::Allocator, "[heap]", 100),
                (MapKind::Allocator, "an arena of malloc", 640),
                (MapKind::Stack, "[stack]", 16),
                (MapKind::Stack, "a thread's stack", 12),
                (MapKind::File, "/tmp/a file (deleted)", 512),
                (MapKind::Shmem, "/dev/zero (deleted)", 1024),
                (MapKind::Anon, "anonymous mappings", 2048),
                (
                    MapKind::Anon,
                    "written copies of /tmp/a file (deleted)",
                    512
                ),
            ]
        );
    }

    #[test]
    fn a_mapping_of_this_process_is_read_and_its_growth_told() {
        let mut maps = Maps::default();
        let this = || std::iter::once(std::process::id());
        maps.round_ended(this());
        let large = vec![1_u8; 48 << 20];
        maps.round_ended(this());
        let grown = |series: &MapSeries| series.resident[1].saturating_sub(series.resident[0]);
        let series = maps.series();
        let most = series.iter().max_by_key(|series| grown(series)).unwrap();
        assert_eq!(most.kind, MapKind::Anon, "{series:?}");
        assert!(grown(most) >= 48 << 20, "{most:?}");
        drop(large);
    }
}
