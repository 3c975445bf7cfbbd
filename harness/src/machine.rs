//! The machine that a run was made on, as far as it matters to memory.

use std::fs;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::card;

/// What makes two machines' numbers comparable, or not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Machine {
    /// Logical CPUs that this process may use.
    pub cpus: u32,
    /// Memory of the machine in bytes.
    pub memory_bytes: u64,
    /// The kernel's release.
    pub kernel: String,
    /// The C library and its version.
    pub libc: String,
    /// Transparent huge pages: `always`, `madvise` or `never`.
    pub thp: String,
    /// What answers `malloc` for a program that brings no allocator of its own, with what
    /// the environment sets it to: `malloc`, `libjemalloc.so.2`, `malloc, MALLOC_ARENA_MAX=1`.
    #[serde(default)]
    pub allocator: String,
    /// The cards' names.
    #[serde(default)]
    pub gpus: Vec<String>,
    /// The version of the cards' driver; empty where there is none.
    #[serde(default)]
    pub gpu_driver: String,
}

/// What must be the same for two machines' numbers to be comparable.
///
/// Of the kernel and the GPU's driver the first two parts of the version count
/// (6.18, 580.159): patches of one series change no allocator. The machine's memory does
/// not count, for what a program takes does not depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub struct Fingerprint(Vec<(String, String)>);

impl Machine {
    /// This machine. What cannot be read is left empty.
    pub fn this() -> Self {
        let (gpus, gpu_driver) = card::names();
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let memory = read("/proc/meminfo")
            .lines()
            .find_map(|line| {
                line.strip_prefix("MemTotal:")?
                    .trim()
                    .strip_suffix(" kB")?
                    .parse()
                    .ok()
            })
            .unwrap_or(0_u64);
        let thp = read("/sys/kernel/mm/transparent_hugepage/enabled");
        let chosen = thp
            .split_once('[')
            .and_then(|(_, rest)| rest.split_once(']'));
        Self {
            cpus: std::thread::available_parallelism().map_or(0, |cpus| cpus.get() as u32),
            memory_bytes: memory.saturating_mul(1024),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            libc: format!("glibc {}", crate::sys::glibc_version()),
            thp: chosen.map(|(thp, _)| thp.to_owned()).unwrap_or_default(),
            allocator: allocator(|name| std::env::var(name).ok(), std::env::vars()),
            gpus,
            gpu_driver,
        }
    }

    /// What must be the same for another machine's numbers to be comparable.
    pub fn fingerprint(&self) -> Fingerprint {
        let series = |version: &str| {
            let parts: Vec<&str> = version.splitn(3, ['.', '-']).take(2).collect();
            parts.join(".")
        };
        let mut gpus = self.gpus.clone();
        gpus.sort();
        let fields = [
            ("cpus", self.cpus.to_string()),
            ("kernel", series(&self.kernel)),
            ("libc", self.libc.clone()),
            ("allocator", self.allocator.clone()),
            ("thp", self.thp.clone()),
            ("gpus", gpus.join(", ")),
            ("driver", series(&self.gpu_driver)),
        ];
        // What is not there, or not known, is no difference from what is not said.
        let fields = fields.into_iter().filter(|(_, value)| !value.is_empty());
        Fingerprint(
            fields
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
        )
    }
}

impl Fingerprint {
    /// The names of all fields, in their order.
    pub(crate) const FIELDS: [&str; 7] = [
        "cpus",
        "kernel",
        "libc",
        "allocator",
        "thp",
        "gpus",
        "driver",
    ];

    /// The fields that are known, with their values.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The value of a field; empty if it is not known.
    pub fn get(&self, field: &str) -> &str {
        let mut fields = self.fields();
        fields
            .find(|(name, _)| *name == field)
            .map_or("", |(_, value)| value)
    }

    /// Adds a field.
    pub(crate) fn set(&mut self, field: &str, value: &str) -> Result<(), String> {
        let place = |name: &str| Self::FIELDS.iter().position(|known| *known == name);
        let at = place(field).ok_or_else(|| {
            format!(
                "`{field}` is unknown; there are {}",
                Self::FIELDS.join(", ")
            )
        })?;
        if value.is_empty() || self.0.iter().any(|(name, _)| name == field) {
            return Err(format!("`{field}` is empty, or given twice"));
        }
        let before = self
            .0
            .iter()
            .filter(|(name, _)| place(name) < Some(at))
            .count();
        self.0.insert(before, (field.to_owned(), value.to_owned()));
        Ok(())
    }

    /// What differs, in words: `kernel 6.1 and 6.18`.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let said = |value: &str| match value {
            "" => "none".to_owned(),
            value => value.to_owned(),
        };
        let fields = Self::FIELDS.iter().filter_map(|field| {
            let (one, another) = (self.get(field), other.get(field));
            (one != another).then(|| format!("{field} {} and {}", said(one), said(another)))
        });
        fields.collect()
    }

    /// The fingerprint as a file's name.
    pub(crate) fn file_name(&self) -> String {
        let values = self.fields().map(|(name, value)| match name {
            "cpus" => format!("{value}-cpus"),
            "kernel" => format!("linux-{value}"),
            "thp" => format!("thp-{value}"),
            _ => value.to_owned(),
        });
        let mut out = String::new();
        for c in values.collect::<Vec<_>>().join("_").chars() {
            match c {
                c if c.is_ascii_alphanumeric() || "-._=".contains(c) => out.push(c),
                _ if out.ends_with('-') => {}
                _ => out.push('-'),
            }
        }
        // Shorter than what any file system takes; the file holds it in full.
        out.chars().take(160).collect()
    }
}

/// What answers `malloc`, by the environment that a workload inherits.
fn allocator(
    variable: impl Fn(&str) -> Option<String>,
    all: impl Iterator<Item = (String, String)>,
) -> String {
    let preloaded = variable("LD_PRELOAD").unwrap_or_default();
    let mut words: Vec<String> = preloaded
        .split([':', ' '])
        .filter_map(|path| path.rsplit('/').next())
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect();
    if words.is_empty() {
        words.push("malloc".to_owned());
    }
    let sets = |name: &str| name == "GLIBC_TUNABLES" || name.starts_with("MALLOC_");
    let mut settings: Vec<String> = all
        .filter(|(name, _)| sets(name))
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    settings.sort();
    words.extend(settings);
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            cpus: 16,
            memory_bytes: 1 << 37,
            kernel: "6.18.44-fc-v657-gpu".into(),
            libc: "glibc 2.39".into(),
            thp: "madvise".into(),
            allocator: "malloc".into(),
            gpus: vec!["NVIDIA H200".into()],
            gpu_driver: "580.159.03".into(),
        }
    }

    #[test]
    fn patches_of_the_kernel_and_the_driver_and_the_memory_do_not_matter() {
        let mut patched = machine();
        patched.kernel = "6.18.45".into();
        patched.gpu_driver = "580.159.11".into();
        patched.memory_bytes = 1;
        assert_eq!(machine().fingerprint(), patched.fingerprint());
    }

    #[test]
    fn all_else_matters_and_is_told() {
        let mut other = machine();
        other.cpus = 2;
        other.kernel = "6.1.0-32-amd64".into();
        other.libc = "glibc 2.36".into();
        other.thp = "always".into();
        other.allocator = "libjemalloc.so.2".into();
        other.gpus.clear();
        other.gpu_driver.clear();
        assert_eq!(
            machine().fingerprint().differences(&other.fingerprint()),
            [
                "cpus 16 and 2",
                "kernel 6.18 and 6.1",
                "libc glibc 2.39 and glibc 2.36",
                "allocator malloc and libjemalloc.so.2",
                "thp madvise and always",
                "gpus NVIDIA H200 and none",
                "driver 580.159 and none",
            ]
        );
    }

    #[test]
    fn a_fingerprint_names_a_file() {
        assert_eq!(
            machine().fingerprint().file_name(),
            "16-cpus_linux-6.18_glibc-2.39_malloc_thp-madvise_NVIDIA-H200_580.159"
        );
    }

    #[test]
    fn the_allocator_is_what_the_environment_makes_of_it() {
        let of = |variables: &[(&str, &str)]| {
            let pairs = || {
                variables
                    .iter()
                    .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
            };
            let find = |name: &str| {
                pairs()
                    .find(|(known, _)| known == name)
                    .map(|(_, value)| value)
            };
            allocator(find, pairs())
        };
        assert_eq!(of(&[("HOME", "/root")]), "malloc");
        assert_eq!(
            of(&[("MALLOC_ARENA_MAX", "1")]),
            "malloc, MALLOC_ARENA_MAX=1"
        );
        assert_eq!(
            of(&[("LD_PRELOAD", "/usr/lib/libjemalloc.so.2")]),
            "libjemalloc.so.2"
        );
    }
}
