//! Baselines: what repeated runs of a scenario gave on one kind of machine, kept in the
//! user's repository.
//!
//! A baseline is the [`Profile`] of these runs, with the machine's fingerprint, the reason
//! for which somebody blessed it, and the findings that were accepted with it. It is a text
//! like a profile's, in `tidegate/baselines/SCENARIO/MACHINE.baseline`.

mod store;

use std::fmt::Write as _;
use std::path::Path;

use crate::books::Amount;
use crate::error::Error;
use crate::machine::Fingerprint;
use crate::profile::{
    Lines, Metric, Profile, Spread, Tolerance, Value, quoted, read_runs, read_spread, text_of,
    unquoted, words, written,
};
use crate::run::Run;
use crate::verdict::{Class, Finding};

pub use store::{FOLDER, Found, Store};

/// What a baseline begins with.
pub(crate) const NAME: &str = "tidegate-baseline";
/// The first line of a baseline.
const HEAD: &str = "tidegate-baseline 1";

/// What repeated runs of a scenario gave on one kind of machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Baseline {
    /// Why it is what it is.
    pub reason: String,
    /// The machine that the runs were made on.
    pub machine: Fingerprint,
    /// Findings that were accepted.
    pub known: Vec<Known>,
    /// What the runs gave.
    pub profile: Profile,
}

/// A finding that was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Its class.
    pub class: Class,
    /// Its layer, phase and site: [`Finding::identity`].
    pub identity: String,
    /// Bytes per measured round, of each run that found it.
    pub bytes: Spread,
    /// Blocks per measured round, of each run that found it.
    pub blocks: Spread,
}

impl Known {
    /// What a run has found.
    pub fn of(finding: &Finding) -> Self {
        let Amount { bytes, blocks } = finding.total;
        let each = |total| Spread::of(Value::per_round(total, finding.over_rounds));
        Self {
            class: finding.class,
            identity: finding.identity(),
            bytes: each(bytes),
            blocks: each(blocks),
        }
    }

    /// Whether it is one with another, whatever their amounts.
    pub fn is(&self, other: &Self) -> bool {
        self.class == other.class && self.identity == other.identity
    }

    /// Whether another's amounts are no more than what these runs say that it may be.
    pub fn holds(&self, other: &Self) -> bool {
        let within = |metric, known: &Spread, now: &Spread| {
            now.highest().as_f64() <= Tolerance::of(metric, known).high
        };
        within(Metric::LeftBytes, &self.bytes, &other.bytes)
            && within(Metric::LeftBlocks, &self.blocks, &other.blocks)
    }
}

impl Baseline {
    /// The baseline that runs of one scenario on one kind of machine make together.
    ///
    /// # Errors
    /// In words, if there is no run, or if they make no common profile.
    pub fn of(runs: &[&Run], reason: &str) -> Result<Self, String> {
        let profile = Profile::merged(runs.iter().map(|run| run.profile()))?;
        let machine = runs.first().map(|run| run.machine.fingerprint());
        let mut known: Vec<Known> = Vec::new();
        for finding in runs.iter().flat_map(|run| &run.verdict.findings) {
            let one = Known::of(finding);
            match known.iter_mut().find(|other| other.is(&one)) {
                Some(other) => {
                    other.bytes.add_all(&one.bytes);
                    other.blocks.add_all(&one.blocks);
                }
                None => known.push(one),
            }
        }
        known.sort_by(|one, other| (one.class, &one.identity).cmp(&(other.class, &other.identity)));
        Ok(Self {
            reason: reason.trim().to_owned(),
            machine: machine.unwrap_or_default(),
            known,
            profile,
        })
    }

    /// The baseline as text; equal baselines give equal texts.
    pub fn text(&self) -> String {
        let mut out = format!("{HEAD}\nreason {}\nmachine", quoted(&self.reason));
        for (field, value) in self.machine.fields() {
            let _ = write!(out, " {field}={}", quoted(value));
        }
        out.push('\n');
        for Known {
            class,
            identity,
            bytes,
            blocks,
        } in &self.known
        {
            let runs = bytes.runs();
            let _ = writeln!(
                out,
                "known class={class} runs={runs} bytes={} blocks={} in={}",
                written(Metric::LeftBytes, bytes, runs),
                written(Metric::LeftBlocks, blocks, runs),
                quoted(identity)
            );
        }
        self.profile.write_body(&mut out);
        out
    }

    /// Reads a baseline from its file.
    ///
    /// # Errors
    /// If there is none, or if it is not one, with the line.
    pub fn read(file: &Path) -> Result<Self, Error> {
        Self::parse(&text_of(file)?, file)
    }

    /// Reads the text of a baseline; `file` names it in messages.
    ///
    /// # Errors
    /// If it is not one, with the line.
    pub fn parse(text: &str, file: &Path) -> Result<Self, Error> {
        let mut lines = Lines::of(text);
        let read = lines.head(HEAD).and_then(|()| Self::read_body(&mut lines));
        read.map_err(|problem| lines.error(file, problem))
    }

    fn read_body(lines: &mut Lines<'_>) -> Result<Self, String> {
        let reason = unquoted(lines.keyed("reason")?)?;
        if reason.trim().is_empty() {
            return Err("the reason is empty".to_owned());
        }
        let mut machine = Fingerprint::default();
        for word in words(lines.keyed("machine")?) {
            let (field, value) = word?;
            machine.set(field, &value)?;
        }
        let mut known = Vec::new();
        while let Some(line) = lines.next_if(|line| line.starts_with("known ")) {
            known.push(Known::read(line.strip_prefix("known ").unwrap_or(line))?);
        }
        Ok(Self {
            reason,
            machine,
            known,
            profile: Profile::read_body(lines)?,
        })
    }
}

impl Known {
    fn read(line: &str) -> Result<Self, String> {
        const KEYS: [&str; 5] = ["class", "runs", "bytes", "blocks", "in"];
        let mut values: [Option<String>; KEYS.len()] = Default::default();
        for word in words(line) {
            let (key, value) = word?;
            let at = KEYS.iter().position(|known| *known == key);
            let at =
                at.ok_or_else(|| format!("`{key}` is unknown; there are {}", KEYS.join(", ")))?;
            if values[at].replace(value).is_some() {
                return Err(format!("`{key}` is given twice"));
            }
        }
        let [
            Some(class),
            Some(runs),
            Some(bytes),
            Some(blocks),
            Some(identity),
        ] = values
        else {
            return Err(format!("a known finding has {}", KEYS.join(", ")));
        };
        let runs = read_runs(&runs)?;
        Ok(Self {
            class: read_class(&class)?,
            identity,
            bytes: read_spread(Metric::LeftBytes, &bytes, runs)?,
            blocks: read_spread(Metric::LeftBlocks, &blocks, runs)?,
        })
    }
}

fn read_class(name: &str) -> Result<Class, String> {
    let found = Class::ALL.into_iter().find(|class| class.name() == name);
    found.ok_or_else(|| {
        let names = Class::ALL.map(Class::name).join(", ");
        format!("`{name}` is no class; there are {names}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "tidegate-baseline 1
reason \"the kernels' table moved to pinned memory\"
machine cpus=16 kernel=6.18 libc=\"glibc 2.39\" thp=madvise
known class=leak runs=3 bytes=96 blocks=1/2*2,1 in=native-heap/finish/a;b
# blocks, bytes and held are per measured round; peaks have 3 digits, held and dwell 2
scenario proving
runs 3
rounds 8
sites none
whole
row phase=ntt layer=rust-heap blocks=1*2,2
end
";

    fn parse(text: &str) -> Result<Baseline, String> {
        Baseline::parse(text, Path::new("b")).map_err(|error| error.chain())
    }

    #[test]
    fn a_baseline_is_written_as_it_was_read() {
        let baseline = parse(TEXT).expect("a baseline");
        assert_eq!(baseline.text(), TEXT);
        assert_eq!(baseline.machine.get("kernel"), "6.18");
        assert_eq!(baseline.known[0].blocks.median(), Value::per_round(1, 2));
    }

    #[test]
    fn a_known_finding_holds_what_its_runs_vary_by_and_no_more() {
        let known = |text: &str| Known::read(text).expect("a finding");
        let exact = known("class=leak runs=3 bytes=96 blocks=1 in=a");
        let now = |bytes: &str| known(&format!("class=leak runs=1 bytes={bytes} blocks=1 in=a"));
        assert!(exact.holds(&now("96")) && exact.holds(&now("95")) && !exact.holds(&now("97")));
        let varied = known("class=leak runs=3 bytes=94,96,98 blocks=1 in=a");
        assert!(varied.holds(&now("100")) && !varied.holds(&now("200")));
    }

    #[test]
    fn what_is_no_baseline_is_refused_with_its_line() {
        for (from, to, message) in [
            (
                "reason \"the kernels' table moved to pinned memory\"",
                "reason \" \"",
                "b:2:1: the reason is empty",
            ),
            (
                "cpus=16",
                "cores=16",
                "b:3:1: `cores` is unknown; there are cpus, kernel",
            ),
            (
                "cpus=16",
                "cpus=16 cpus=2",
                "b:3:1: `cpus` is empty, or given twice",
            ),
            ("class=leak", "class=loss", "b:4:1: `loss` is no class"),
            (
                " in=native-heap/finish/a;b",
                "",
                "b:4:1: a known finding has",
            ),
            ("runs=3", "runs=0", "b:4:1: `0` is no number of runs"),
            (
                "blocks=1/2*2,1",
                "blocks=1/2*2,1*2",
                "is not how the values of 3 runs are written",
            ),
            ("blocks=1*2,2", "blocks=x", "b:11:1: `x` is no number here"),
            (
                "-baseline 1",
                "-profile 1",
                "b:1:1: the first line is not `tidegate-baseline 1`",
            ),
        ] {
            let error = parse(&TEXT.replacen(from, to, 1)).expect_err(to);
            assert!(error.contains(message), "{to:?} gave {error:?}");
        }
    }
}
