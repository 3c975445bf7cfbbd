//! From which line of code: a second run that takes stacks.
//!
//! The gate runs without stacks. When it finds a leak, the scenario or program is
//! run once more, and the hook takes the stack of those allocations only that match
//! what the first run found: the phase, the layer, and the sizes that the survivors
//! can have. The stacks become part of the ledger's own books, so that the bytes
//! and blocks of each are exact.
//!
//! Stacks are resolved after the workload is gone, in this process, from the
//! files that it had loaded.

mod dhat;
mod flame;
mod folded;
mod frames;
mod identity;
mod pprof;
mod recorder;
mod request;
mod runtime;
mod show;
mod source;
mod symbols;
mod written;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::aside;
use crate::books::{Amount, Ending, Layer};
use crate::error::{Error, failed_to};
use crate::folder::RunFolder;
use crate::run::Run;
use crate::suppressions::Suppressions;
use crate::verdict::{Class, Finding, SEVERAL_PHASES, Settings, judge};

pub use dhat::{dhat_allocated, dhat_left};
pub use flame::flame_graph;
pub use folded::folded;
pub(crate) use frames::Kinded;
pub use frames::{Frame, FrameKind};
pub(crate) use identity::tell;
pub use pprof::pprof;
pub(crate) use recorder::growth;
pub(crate) use recorder::{Booked, Recorder, Stacks};
pub(crate) use request::Request;
pub(crate) use show::terminal;
pub(crate) use written::{Written, without_address};

/// Sets [`Explain`] from outside, for all scenarios: `never`, `on-leak`, `every-site`.
pub const EXPLAIN_VARIABLE: &str = "TIDEGATE_EXPLAIN";

/// The folder within a run's that holds the second run, and what was exported of it.
const FOLDER: &str = "explain";

/// Sites that `run.json` and the report keep; the exported files hold all.
const KEPT_SITES: usize = 100;

/// When a scenario is run again for its call stacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Explain {
    /// Not at all.
    Never,
    /// When the first run found a leak, for what can have leaked.
    #[default]
    OnLeak,
    /// Always, for every allocation.
    EverySite,
}

impl Explain {
    /// What the environment says, if it says anything that makes sense.
    pub(crate) fn from_environment() -> Option<Self> {
        match std::env::var(EXPLAIN_VARIABLE).ok()?.trim() {
            "never" | "0" | "off" => Some(Self::Never),
            "on-leak" | "1" | "on" => Some(Self::OnLeak),
            "every-site" | "full" | "all" => Some(Self::EverySite),
            _ => None,
        }
    }
}

/// What a second run with stacks has shown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Explanation {
    /// Whether every allocation's stack was taken, or only what can have leaked.
    pub every_site: bool,
    /// How long the second run took, symbols included, in seconds.
    pub seconds: f64,
    /// Its warm-up rounds.
    pub warmup: u32,
    /// All its rounds.
    pub rounds: u32,
    /// Stacks that were taken.
    pub captures: u64,
    /// Stacks that the table had no room for; their blocks are in no site.
    pub dropped: u64,
    /// How much of each leak the sites account for.
    pub coverage: Vec<Coverage>,
    /// The sites, the largest growth first; at most 100 of [`Self::sites_exist`].
    pub sites: Vec<Site>,
    /// How many there are.
    pub sites_exist: u64,
    /// What could not be had, in words: files without symbols, sources that are not here.
    pub missing: Vec<String>,
}

/// How much of one finding the sites account for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Coverage {
    /// The finding's layer.
    pub layer: Layer,
    /// The finding's phase.
    pub phase: String,
    /// Growth over the measured rounds of the second run.
    pub grown: Amount,
    /// Of this, the growth of sites.
    pub explained: Amount,
}

/// One place in the code that allocates, and what became of what it allocated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Site {
    /// The layer.
    pub layer: Layer,
    /// The phase in which the blocks were born.
    pub phase: String,
    /// The site's identity: the same in every build that has it, without lines,
    /// addresses and hashes. Names from the innermost, joined by `;`.
    pub site: String,
    /// The stack, innermost first, inlined frames included.
    pub frames: Vec<Frame>,
    /// Whether the stack went on beyond what was kept.
    pub cut: bool,
    /// The runtime that this is all of (`driver`, `std`, or the crate's name), where no
    /// code of yours asked for the memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    /// Which frame is the first of your own code, if any is.
    pub yours: Option<usize>,
    /// Allocated over the measured rounds.
    pub allocated: Amount,
    /// Alive after each round, warm-up included.
    pub live: Vec<Amount>,
    /// Growth over the measured rounds.
    pub grown: Amount,
    /// What each measured round added, if each added the same.
    pub per_round: Option<Amount>,
    /// What was left at the end, by the round that bore it.
    pub left: Vec<BornIn>,
}

/// What is left of one round's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BornIn {
    /// The round; 0 is before the first.
    pub round: u32,
    /// How much.
    pub amount: Amount,
}

impl Site {
    /// The frame of your own code that allocates, if there is one.
    pub fn line(&self) -> Option<&Frame> {
        self.frames.get(self.yours?)
    }

    /// What was left at the end of what measured rounds bore.
    pub fn left_of_rounds(&self, warmup: u32) -> Amount {
        let measured = self.left.iter().filter(|born| born.round > warmup);
        measured.map(|born| born.amount).sum()
    }

    /// The frames of the workload: without the harness's and those outside of it.
    pub fn frames_of_workload(&self) -> &[Frame] {
        frames::of_workload(&self.frames)
    }

    /// The frames worth reading: without the allocator's at the inner end and the
    /// harness's at the outer end.
    pub fn frames_of_interest(&self) -> &[Frame] {
        frames::of_interest(&self.frames)
    }
}

/// What was run and can be run again with stacks.
pub(crate) trait Again {
    /// What its run is judged with.
    fn settings(&self) -> Settings;

    /// Known leaks to let through.
    fn suppressions(&self) -> Option<&Suppressions>;

    /// Runs it again, with as many measured rounds where that is ours to say, and keeps
    /// the run in `folder`.
    ///
    /// # Errors
    /// If tidegate itself fails.
    fn run_again(&self, rounds: u32, request: &Request, folder: &Path) -> Result<Second, Error>;
}

/// A second run.
pub(crate) struct Second {
    pub run: Run,
    pub stacks: Option<Stacks>,
    /// What it is judged with.
    pub settings: Settings,
}

/// A run with its explanation, if one is wanted: runs it again for stacks.
pub(crate) fn explained(
    mut run: Run,
    explain: Explain,
    workload: &impl Again,
) -> Result<Run, Error> {
    let mut waits = false;
    if let Some(suppressions) = workload.suppressions() {
        waits = aside::by_place(&mut run, suppressions, &workload.settings());
    }
    let Some(request) = Request::after(&run, explain) else {
        return Ok(keep(run));
    };
    let begun = Instant::now();
    match explain_run(workload, &mut run, &request, waits) {
        Ok(mut explanation) => {
            explanation.seconds = begun.elapsed().as_secs_f64();
            run.explanation = Some(explanation);
        }
        // The verdict stands without it.
        Err(error) => {
            run.explanation = Some(Explanation {
                missing: vec![format!("the second run failed: {}", error.chain())],
                ..Explanation::default()
            });
        }
    }
    Ok(keep(run))
}

fn keep(run: Run) -> Run {
    RunFolder::of(run.folder()).keep(run)
}

fn explain_run(
    workload: &impl Again,
    first: &mut Run,
    request: &Request,
    suppressions_wait: bool,
) -> Result<Explanation, Error> {
    let folder = first.folder().join(FOLDER);
    // What remains without the suppressed must be judged as surely as the first run was.
    let rounds = if suppressions_wait {
        measured_rounds(first)
    } else {
        request.rounds(first)
    };
    let Second {
        mut run,
        stacks,
        settings,
    } = workload.run_again(rounds, request, &folder)?;
    let Some(stacks) = stacks else {
        return Err(Error::BadChild {
            problem: "the ledger has no stacks".into(),
        });
    };
    let mut missing = Vec::new();
    if run.books.ending != Ending::Completed {
        missing.push(format!(
            "the second run did not end as the first: {}",
            run.verdict.sentence
        ));
    }
    let mut sites = stacks.resolve(&run.books, &mut missing);
    if !request.every_site {
        sites.retain(|site| site.grown.bytes > 0 || site.grown.blocks > 0);
    }
    run.books.sites = sites.iter().map(Site::series).collect();
    run.verdict = judge(&run.books, &settings);
    let run = RunFolder::of(&folder).keep(run);
    store(&folder, &sites, &run)?;
    let coverage = first
        .verdict
        .findings
        .iter()
        .filter(|finding| is_explainable(finding))
        .map(|finding| coverage(finding, &sites, &run))
        .collect();
    let second = aside::Second {
        books: &run.books,
        sites: &sites,
        settings: &settings,
    };
    let suppressions = workload.suppressions();
    let is_aside = aside::by_stack(first, &second, suppressions, &workload.settings());
    let blamed: Vec<&Site> = sites
        .iter()
        .zip(&is_aside)
        .filter_map(|(site, aside)| (!aside).then_some(site))
        .collect();
    name_sites(&mut first.verdict.findings, &blamed);
    let sites_exist = sites.len() as u64;
    sites.truncate(KEPT_SITES);
    if stacks.dropped() > 0 {
        missing.push("stacks that the table of sites had no room for".to_owned());
    }
    Ok(Explanation {
        every_site: request.every_site,
        seconds: 0.0,
        warmup: run.books.warmup,
        rounds: run.books.rounds.len() as u32,
        captures: stacks.captures(),
        dropped: stacks.dropped(),
        coverage,
        sites,
        sites_exist,
        missing,
    })
}

fn measured_rounds(run: &Run) -> u32 {
    let rounds = u32::try_from(run.books.rounds.len()).unwrap_or(u32::MAX);
    rounds.saturating_sub(run.books.warmup).max(1)
}

/// Whether stacks can say more of a finding.
pub(crate) fn is_explainable(finding: &Finding) -> bool {
    finding.class == Class::Leak
        && matches!(
            finding.layer,
            Layer::RustHeap | Layer::NativeHeap | Layer::Anon
        )
}

/// Whether a site can be one of a finding's.
pub(crate) fn belongs(site: &Site, finding: &Finding) -> bool {
    let any_phase = finding.phase.is_empty() || finding.phase == SEVERAL_PHASES;
    site.layer == finding.layer && (any_phase || site.phase == finding.phase)
}

fn coverage(finding: &Finding, sites: &[Site], run: &Run) -> Coverage {
    let any_phase = finding.phase.is_empty() || finding.phase == SEVERAL_PHASES;
    let grown = run
        .books
        .series
        .iter()
        .filter(|series| {
            series.layer == finding.layer && (any_phase || series.phase == finding.phase)
        })
        .map(|series| recorder::growth(&series.live, run.books.warmup))
        .sum();
    let ours = sites.iter().filter(|site| belongs(site, finding));
    Coverage {
        layer: finding.layer,
        phase: finding.phase.clone(),
        grown,
        explained: ours.map(|site| site.grown).sum(),
    }
}

/// Gives each leak its site, where one carries nine tenths of what the sites carry.
fn name_sites(findings: &mut [Finding], sites: &[&Site]) {
    for finding in findings
        .iter_mut()
        .filter(|finding| is_explainable(finding))
    {
        let ours = || sites.iter().filter(|site| belongs(site, finding));
        let Some(first) = ours().next() else { continue };
        let all: Amount = ours().map(|site| site.grown).sum();
        let same: Amount = ours()
            .filter(|site| site.site == first.site)
            .map(|site| site.grown)
            .sum();
        let carries = same.bytes.saturating_mul(10) >= all.bytes.saturating_mul(9)
            && same.blocks.saturating_mul(10) >= all.blocks.saturating_mul(9);
        if carries && finding.site.is_none() {
            finding.site = Some(first.site.clone());
        }
    }
}

/// The files that a second run is exported to.
mod export {
    pub const LEFT_DHAT: &str = "left.dhat.json";
    pub const ALLOCATED_DHAT: &str = "allocated.dhat.json";
    pub const LEFT_FOLDED: &str = "left.folded";
    pub const LEFT_PPROF: &str = "left.pb.gz";
    pub const LEFT_GRAPH: &str = "left.svg";
}

/// The exported files of the run in this folder, as far as there are any.
pub(crate) fn exports(run_folder: &Path) -> Vec<PathBuf> {
    let names = [
        export::LEFT_DHAT,
        export::ALLOCATED_DHAT,
        export::LEFT_FOLDED,
        export::LEFT_PPROF,
        export::LEFT_GRAPH,
    ];
    let files = names.map(|name| run_folder.join(FOLDER).join(name));
    files.into_iter().filter(|file| file.is_file()).collect()
}

/// Writes the sites in the formats that other tools open.
fn store(folder: &Path, sites: &[Site], run: &Run) -> Result<(), Error> {
    let command = &run.plan.name;
    let mut files: Vec<(&str, Vec<u8>)> = vec![
        (export::LEFT_DHAT, dhat_left(sites, command).into_bytes()),
        (
            export::ALLOCATED_DHAT,
            dhat_allocated(sites, command).into_bytes(),
        ),
        (
            export::LEFT_FOLDED,
            folded(sites, |site| site.grown.bytes).into_bytes(),
        ),
        (export::LEFT_PPROF, pprof(sites)),
    ];
    if let Some(graph) = flame_graph(sites, &run.plan.name, |site| site.grown.bytes) {
        files.push((export::LEFT_GRAPH, graph.into_bytes()));
    }
    for (name, content) in files {
        let path = folder.join(name);
        fs::write(&path, content).map_err(failed_to(format!("write {}", path.display())))?;
    }
    Ok(())
}
