//! Everything that was found in the books, before one class is chosen.

use super::backlog::{self, Backlog, Queue};
use std::collections::BTreeMap;

use super::class::Class;
use super::finding::{Confirmation, Driver, Finding, Note};
use super::fingerprint::fingerprint;
use super::leaks::{self, Leaks};
use super::ledger::{self, Growth, Ledger, Outcome, Row};
use super::resident::{self, Resident, signed};
use super::threads::Threads;
use super::words;
use super::{Judged, Power, Settings, Tried, Verdict};
use crate::books::{Amount, Books, Ending, Gauges, Layer, LimitKind, Probe, ProbeKind, RoundBook};

/// Reads one gauge.
type ReadGauge = fn(&Gauges) -> i64;

/// What was found.
pub(super) struct Evidence<'a> {
    pub(super) books: &'a Books,
    pub(super) settings: &'a Settings,
    pub(super) ledger: Ledger<'a>,
    pub(super) leaks: Leaks,
    /// Counted things that rise for good, from gauges and from the ledger.
    pub(super) handles: Vec<Finding>,
    /// Counted gauges that rose, and it cannot be told how it goes on.
    pub(super) unclear_handles: Vec<(Layer, u32)>,
    pub(super) refused: Vec<Finding>,
    pub(super) queue: Queue,
    pub(super) resident: Resident,
    pub(super) dwell: Option<Dwell>,
    threads: Threads,
    notes: Vec<Note>,
}

/// Memory that came back after its round had ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Dwell {
    /// The most that came back late, in bytes.
    pub(super) bytes: i64,
    /// In so many of the measured rounds.
    pub(super) rounds: usize,
    /// The longest wait, in seconds.
    pub(super) seconds: f64,
}

impl<'a> Evidence<'a> {
    /// Looks at every book.
    pub(super) fn gather(books: &'a Books, settings: &'a Settings) -> Self {
        let ledger = Ledger::read(books, settings);
        let leaks = leaks::find(books, &ledger, settings);
        let resident = resident::judge(books, &ledger, settings);
        let mut evidence = Self {
            books,
            settings,
            leaks,
            handles: Vec::new(),
            unclear_handles: Vec::new(),
            refused: Vec::new(),
            queue: backlog::judge(books, settings),
            resident,
            dwell: dwell(books, settings),
            threads: Threads::seen(books),
            notes: Vec::new(),
            ledger,
        };
        evidence.count_handles();
        evidence.find_refusals();
        evidence.explain_by_threads();
        evidence.explain_by_handles();
        evidence.note_what_passes();
        evidence
    }

    /// Threads and descriptors, as exact series of counts.
    fn count_handles(&mut self) {
        let (handles, memory) = std::mem::take(&mut self.leaks.leaks)
            .into_iter()
            .partition(|finding| finding.class == Class::HandleLeak);
        self.leaks.leaks = memory;
        self.handles = handles;
        let gauges: [(Layer, ReadGauge); 2] = [
            (Layer::Threads, |g| signed(g.threads)),
            (Layer::Fds, |g| signed(g.fds)),
        ];
        for (layer, of) in gauges {
            let booked = self.ledger.layers.iter().any(|row| row.layer == layer);
            let Some(values) = resident::gauge(self.books, self.ledger.base, of) else {
                continue;
            };
            if booked
                || self.is_aside(layer, "")
                || self.ledger.steps < self.wide(self.settings.min_rounds)
            {
                continue;
            }
            let values: Vec<Amount> = values.iter().map(|n| Amount::new(0, *n)).collect();
            let born = vec![Amount::ZERO; self.ledger.steps];
            let outcome = ledger::outcome(
                layer,
                &values,
                &born,
                &self.ledger.happened,
                self.settings,
                false,
            );
            match outcome {
                Outcome::Leak(Growth { total, .. })
                | Outcome::Unclear { total, .. }
                | Outcome::Stopped { total, .. }
                    if self.went_late(of, &values, total) =>
                {
                    self.notes.push(Note {
                        class: Some(Class::Dwell),
                        layer: Some(layer),
                        phase: None,
                        amount: total,
                        sentence: format!(
                            "{} came with the rounds and were gone after idling",
                            leaks::amount(layer, total)
                        ),
                    });
                }
                Outcome::Leak(growth) => {
                    let row = Row::counted(layer, values);
                    let (finding, _) = leaks::finding(self.books, &self.ledger, &row, &growth);
                    self.handles.push(finding);
                }
                Outcome::Unclear { more, .. } => self.unclear_handles.push((layer, more)),
                Outcome::Stopped { total, .. } => self.notes.push(Note {
                    class: Some(Class::Cache),
                    layer: Some(layer),
                    phase: None,
                    amount: total,
                    sentence: format!(
                        "{} came and stayed, then it stopped",
                        leaks::amount(layer, total)
                    ),
                }),
                Outcome::Flat | Outcome::Below(_) | Outcome::Moved => {}
            }
        }
    }

    /// Whether what no series shows of this layer and phase is set aside.
    fn is_aside(&self, layer: Layer, phase: &str) -> bool {
        let mut aside = self.books.aside.iter();
        aside.any(|aside| (aside.layer, aside.phase.as_str()) == (layer, phase))
    }

    /// Whether half of what a gauge counted more of was gone after idling.
    fn went_late(&self, of: ReadGauge, values: &[Amount], total: Amount) -> bool {
        let last = values.last().map_or(0, |value| value.blocks);
        let waits = |probe: &&Probe| matches!(probe.kind, ProbeKind::Idle | ProbeKind::Drain);
        let mut after = self
            .books
            .probes
            .iter()
            .filter(waits)
            .filter_map(|p| p.after.as_ref());
        total.blocks > 0
            && after.any(|gauges| last.saturating_sub(of(gauges)).saturating_mul(2) >= total.blocks)
    }

    fn wide(&self, n: u32) -> usize {
        usize::try_from(n).unwrap_or(usize::MAX)
    }

    /// Refused releases: the cause of a leak in their layer, or a leak of their
    /// own where no book shows the layer and it happened in two rounds or more.
    fn find_refusals(&mut self) {
        let first = self
            .books
            .rounds
            .get(self.ledger.base + 1)
            .map_or(0, |round| round.round);
        let mut groups: BTreeMap<_, (Vec<u32>, u64)> = BTreeMap::new();
        for refusal in &self.books.refusals {
            if refusal.count > 0 {
                let group = groups
                    .entry((
                        refusal.layer,
                        refusal.phase.as_str(),
                        refusal.call.as_str(),
                        refusal.status.as_str(),
                    ))
                    .or_default();
                group.0.push(refusal.round);
                group.1 = group.1.saturating_add(refusal.count);
            }
        }
        for ((layer, phase, call, status), (mut rounds, count)) in groups {
            rounds.sort_unstable();
            rounds.dedup();
            let times = words::count(i64::try_from(count).unwrap_or(i64::MAX), "time");
            let cause = format!("{call} was refused {times}: {status}");
            let mut explains = false;
            for finding in self.leaks.leaks.iter_mut().chain(&mut self.handles) {
                if finding.layer == layer && finding.cause.is_none() {
                    finding.cause = Some(cause.clone());
                    finding.confirmed.push(Confirmation::RefusedRelease);
                    finding.confirmed.sort_unstable();
                    finding.sentence = format!("{}; {cause}", finding.sentence);
                    explains = true;
                }
            }
            let booked = self.ledger.layers.iter().any(|row| row.layer == layer);
            let measured: Vec<u32> = rounds.into_iter().filter(|round| *round >= first).collect();
            if explains || booked || measured.len() < 2 || self.is_aside(layer, phase) {
                if !explains {
                    self.notes.push(Note {
                        class: None,
                        layer: Some(layer),
                        phase: Some(phase.to_owned()),
                        amount: Amount::ZERO,
                        sentence: format!("in phase {phase}, {cause}"),
                    });
                }
                continue;
            }
            let class = if layer.is_counted() {
                Class::HandleLeak
            } else {
                Class::Leak
            };
            self.refused.push(Finding {
                class,
                layer,
                phase: phase.to_owned(),
                site: None,
                driver: Driver::Unknown,
                per_driver: None,
                also_fits: Vec::new(),
                since_round: measured.first().copied(),
                over_rounds: u32::try_from(self.ledger.steps).unwrap_or(u32::MAX),
                total: Amount::new(0, i64::try_from(count).unwrap_or(i64::MAX)),
                per_item: None,
                confirmed: vec![Confirmation::RefusedRelease],
                fingerprint: fingerprint(layer, phase, None),
                sentence: format!(
                    "{layer} memory of phase {phase} is not released, because {cause}, in rounds {}",
                    words::rounds(&measured)
                ),
                cause: Some(cause),
                born_in: measured,
            });
        }
    }

    /// A lost handle keeps a little heap of its own: told once, with the handle.
    fn explain_by_handles(&mut self) {
        let keeps: i128 = self
            .handles
            .iter()
            .map(|finding| {
                let each = match finding.layer {
                    Layer::Fds => self.settings.handle_keeps_bytes / 4,
                    _ => self.settings.handle_keeps_bytes,
                };
                i128::from(finding.total.blocks) * i128::from(each)
            })
            .sum();
        let leaked: i128 = self
            .leaks
            .leaks
            .iter()
            .map(|f| i128::from(f.total.bytes))
            .sum();
        if keeps > 0 && leaked <= keeps {
            for finding in std::mem::take(&mut self.leaks.leaks) {
                self.notes.push(Note {
                    class: Some(Class::Leak),
                    layer: Some(finding.layer),
                    phase: Some(finding.phase),
                    amount: finding.total,
                    sentence: format!(
                        "{}; small enough to be what the lost handles keep",
                        finding.sentence
                    ),
                });
            }
        }
    }

    /// Blocks that the C library keeps with the stacks of threads that are gone are told
    /// and are no leak.
    fn explain_by_threads(&mut self) {
        let found = std::mem::take(&mut self.leaks.leaks);
        let records = |finding: &Finding| {
            let rows = self.ledger.rows.iter().filter(|row| row.site.is_none());
            rows.filter(|row| (row.layer, row.phase) == (finding.layer, finding.phase.as_str()))
                .any(|row| self.are_records_of_threads(row))
        };
        let (kept, leaks) = found.into_iter().partition::<Vec<_>, _>(records);
        self.leaks.leaks = leaks;
        self.notes.extend(kept.into_iter().map(|finding| Note {
            class: Some(Class::Leak),
            layer: Some(finding.layer),
            phase: Some(finding.phase),
            amount: finding.total,
            sentence: format!("{}; {KEPT_FOR_THREADS}", finding.sentence),
        }));
    }

    /// Whether all that a series still has of the measured rounds is kept by the C
    /// library with the stacks of threads that are gone, for ones to come.
    fn are_records_of_threads(&self, row: &Row<'_>) -> bool {
        self.threads.explain(row, self.ledger.base, self.settings)
    }

    /// Growth at round ends that goes with the items still waiting then.
    pub(super) fn waiting_explains_growth(&self) -> bool {
        let Queue::Backlog(queue) = self.queue else {
            return false;
        };
        let at_end = |round: u32| {
            self.books
                .queue
                .iter()
                .rfind(|s| s.round == round)
                .map(|s| s.produced.saturating_sub(s.consumed))
        };
        let rounds = self
            .books
            .rounds
            .get(self.ledger.base..)
            .unwrap_or_default();
        let (Some(first), Some(last)) = (rounds.first(), rounds.last()) else {
            return false;
        };
        let (Some(first), Some(last)) = (at_end(first.round), at_end(last.round)) else {
            return false;
        };
        let waits = last.saturating_sub(first) as f64 * queue.bytes_each;
        let grown: f64 = self.leaks.leaks.iter().map(|f| f.total.bytes as f64).sum();
        last > first && waits >= 0.5 * grown
    }

    fn note_what_passes(&mut self) {
        let ledger = &self.ledger;
        for row in ledger.rows.iter().filter(|row| row.site.is_none()) {
            let (class, total, sentence) = match &row.outcome {
                Outcome::Stopped { total, last } => {
                    let round = self
                        .books
                        .rounds
                        .get(ledger.base + 1 + last)
                        .map_or(0, |round| round.round);
                    (
                        Some(Class::Cache),
                        *total,
                        format!(
                            "{} memory of phase {} grew by {} and stopped after round {round}",
                            row.layer,
                            row.phase,
                            leaks::amount(row.layer, *total)
                        ),
                    )
                }
                Outcome::Below(total) => (
                    None,
                    *total,
                    format!(
                        "{} memory of phase {} grew by {} in {}, which is below the floor of {} per round",
                        row.layer,
                        row.phase,
                        leaks::amount(row.layer, *total),
                        words::many(ledger.steps, "round"),
                        words::size_u64(self.settings.floor_bytes_per_round)
                    ),
                ),
                Outcome::Unclear { .. } if self.are_records_of_threads(row) => {
                    let left: Amount = row.born.iter().copied().sum();
                    let sentence = format!(
                        "{} memory of phase {} grew by {}; {KEPT_FOR_THREADS}",
                        row.layer,
                        row.phase,
                        leaks::amount(row.layer, left)
                    );
                    (None, left, sentence)
                }
                Outcome::Moved => (
                    None,
                    Amount::ZERO,
                    format!(
                        "{} memory of phase {} grew by what another phase gave up",
                        row.layer, row.phase
                    ),
                ),
                _ => continue,
            };
            self.notes.push(Note {
                class,
                layer: Some(row.layer),
                phase: Some(row.phase.to_owned()),
                amount: total,
                sentence,
            });
        }
        if let Some(note) = self.driver_residue() {
            self.notes.push(note);
        }
        if let Some(dwell) = self.dwell {
            self.notes.push(Note {
                class: Some(Class::Dwell),
                layer: None,
                phase: None,
                amount: Amount::new(dwell.bytes, 0),
                sentence: dwell.sentence(),
            });
        }
        if let Some(kept) = self.resident.kept {
            let (class, sentence) = kept_sentence(kept);
            self.notes.push(Note {
                class,
                layer: Some(Layer::Anon),
                phase: None,
                amount: Amount::new(kept.bytes, 0),
                sentence,
            });
        }
        if self.resident.file_growth > signed(self.settings.gauge_floor_bytes) {
            self.notes.push(Note {
                class: None,
                layer: Some(Layer::File),
                phase: None,
                amount: Amount::new(self.resident.file_growth, 0),
                sentence: format!(
                    "resident file pages grew by {}; the kernel can take them back",
                    words::size(self.resident.file_growth)
                ),
            });
        }
        if let Some(note) = self.others_on_the_card() {
            self.notes.push(note);
        }
        let health = &self.books.health;
        if health.crossed_releases > 0 {
            let blocks = i64::try_from(health.crossed_releases).unwrap_or(i64::MAX);
            self.notes.push(Note {
                class: None,
                layer: Some(Layer::NativeHeap),
                phase: None,
                amount: Amount::new(0, blocks),
                sentence: format!(
                    "crossed allocators: {} of malloc's given to Rust's allocator, which did \
                     not make them; malloc never got them back",
                    words::count(blocks, "block")
                ),
            });
        }
        if health.samples_missed > health.samples {
            self.notes.push(Note {
                class: None,
                layer: None,
                phase: None,
                amount: Amount::ZERO,
                sentence: format!(
                    "{} of {} samples were missed; peaks between them were not seen",
                    health.samples_missed,
                    health.samples.saturating_add(health.samples_missed)
                ),
            });
        }
    }

    /// Other processes on the cards, whose memory is in what the cards have in use.
    fn others_on_the_card(&self) -> Option<Note> {
        let others = |round: &RoundBook| Some(round.gauges?.card?.others);
        let shared = self.books.rounds.iter().filter_map(|round| {
            let others = others(round).filter(|others| *others > 0)?;
            Some((round.round, others))
        });
        let (rounds, others): (Vec<u32>, Vec<u64>) = shared.unzip();
        let most = others.iter().max()?;
        let who = match most {
            1 => "1 other process".to_owned(),
            _ => format!("up to {} other processes", words::grouped(signed(*most))),
        };
        let round = if rounds.len() == 1 { "round" } else { "rounds" };
        Some(Note {
            class: None,
            layer: Some(Layer::Device),
            phase: None,
            amount: Amount::ZERO,
            sentence: format!(
                "the card is shared: {who} computed on it after {round} {}; what the card has \
                 in use is not the workload's alone",
                words::rounds(&rounds),
            ),
        })
    }

    /// What the GPU's driver kept more of for itself, over the measured rounds.
    fn driver_residue(&self) -> Option<Note> {
        let rows = &self.ledger.layers;
        let driver = rows.iter().find(|row| row.layer == Layer::DriverHeap)?;
        let grown = *driver.values.last()? - *driver.values.first()?;
        (grown.bytes > 0).then(|| Note {
            class: None,
            layer: Some(Layer::DriverHeap),
            phase: None,
            amount: grown,
            sentence: format!(
                "the GPU's driver kept {} more of heap for itself; that is its residue, \
                 and not judged",
                words::amount(grown)
            ),
        })
    }

    /// Every memory or handle finding that fails, the gravest first.
    fn exact_findings(&self) -> Vec<Finding> {
        [&self.leaks.leaks, &self.refused, &self.handles]
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }

    fn trusted(&self) -> bool {
        let health = &self.books.health;
        health.attached && health.lost == 0 && self.ledger.broken == 0
    }

    /// The sentence of a hang.
    pub(super) fn hang(&self, idle_seconds: f64, busy: bool) -> String {
        let what = if busy {
            "no round ended, though it was busy"
        } else {
            "no round ended, nothing was allocated, no CPU was used"
        };
        format!(
            "no progress for {idle_seconds:.0} s after {}: {what}",
            words::many(self.books.rounds.len(), "round")
        )
    }

    /// The sentence of a crash.
    pub(super) fn crash(&self) -> String {
        let how = match &self.books.ending {
            Ending::Signal { signal } => match signal {
                9 => "was killed by signal 9 (SIGKILL), not by this run's limit".to_owned(),
                6 => "aborted (signal 6)".to_owned(),
                11 => "died of signal 11 (segmentation fault)".to_owned(),
                signal => format!("died of signal {signal}"),
            },
            Ending::Exited { code } => {
                format!("exited with status {code} before its rounds were done")
            }
            Ending::Panicked { message } => format!("panicked: {message}"),
            _ => "died".to_owned(),
        };
        format!(
            "the workload {how}; {} had ended and {} booked",
            words::many(self.books.rounds.len(), "round"),
            if self.books.rounds.len() == 1 {
                "is"
            } else {
                "are"
            },
        )
    }

    /// Class and sentence of a run that was killed for its memory.
    pub(super) fn killed(&self) -> (Class, String) {
        let killed = match &self.books.ending {
            Ending::Limit {
                limit_bytes,
                peak_bytes,
                enforced_by,
            } => {
                let by = match enforced_by {
                    LimitKind::CgroupV1 | LimitKind::CgroupV2 => "its cgroup",
                    LimitKind::Watchdog => "the watchdog",
                };
                format!(
                    "killed by {by} at {} with a limit of {}",
                    words::size_u64(*peak_bytes),
                    words::size_u64(*limit_bytes)
                )
            }
            _ => "killed by the kernel for lack of memory".to_owned(),
        };
        if let Queue::Backlog(queue) = &self.queue
            && (self.leaks.leaks.is_empty() || self.waiting_explains_growth())
        {
            return (Class::Backlog, format!("{}; {killed}", queue.sentence()));
        }
        if self.trusted()
            && let Some(leak) = self.leaks.leaks.first().or(self.refused.first())
        {
            return (Class::Leak, format!("{}; {killed}", leak.sentence));
        }
        let steps = self.ledger.steps;
        let floor = if steps == 0 {
            "no two rounds ended that could tell whether the floor is flat".to_owned()
        } else {
            format!(
                "what is alive after a round did not rise for good over {}",
                words::many(steps + 1, "round")
            )
        };
        (
            Class::Ceiling,
            format!("the peak passes the limit: {killed}; {floor}"),
        )
    }

    /// Class, sentence and what is missing, of a run that ended as told.
    pub(super) fn completed(&self) -> (Class, String, Vec<String>) {
        let hard = self.untrusted();
        if !hard.is_empty() {
            let sentence = format!("no verdict: {}", hard.join("; "));
            return (Class::Inconclusive, sentence, hard);
        }
        if let Some((class, sentence)) = self.failing() {
            return (class, sentence, Vec::new());
        }
        let missing = self.unclear();
        if !missing.is_empty() {
            let sentence = format!("no verdict: {}", missing.join("; "));
            return (Class::Inconclusive, sentence, missing);
        }
        let (class, sentence) = self.passing();
        (class, sentence, Vec::new())
    }

    /// Class, sentence and what is missing, of a process of which only gauges are known.
    pub(super) fn by_gauges_alone(&self) -> (Class, String, Vec<String>) {
        let read = self.books.rounds.len();
        let needed = self.wide(self.settings.gauge_rounds) + 1;
        if read < needed {
            let missing = format!(
                "{} of the gauges, {} more would do",
                words::many(read, "reading"),
                needed - read
            );
            let sentence = format!("no verdict: {missing}");
            return (Class::Inconclusive, sentence, vec![missing]);
        }
        let minutes = match (self.books.rounds.first(), self.books.rounds.last()) {
            (Some(first), Some(last)) => (last.at_seconds - first.at_seconds) / 60.0,
            _ => 0.0,
        };
        if let Some(finding) = self.handles.first() {
            let sentence = format!(
                "the number of {}s rises for good: {} more in {minutes:.1} minutes",
                leaks::thing(finding.layer),
                finding.total.blocks
            );
            return (Class::HandleLeak, sentence, Vec::new());
        }
        if let Some(growing) = self
            .resident
            .growing
            .iter()
            .find(|growing| !growing.too_few)
        {
            let a_minute = self.ledger.steps as f64 / minutes.max(f64::MIN_POSITIVE);
            let size = |per_round: f64| words::size((per_round * a_minute) as i64);
            let sentence = format!(
                "resident {} memory grows by {} a minute ({} to {}), by {} in {minutes:.1} \
                 minutes{}; whether it is needed no gauge can tell",
                growing.layer,
                size(growing.per_round),
                size(growing.lower),
                size(growing.upper),
                words::size(growing.total),
                match growing.maps.as_slice() {
                    [] if growing.by_allocator => ", in mappings of malloc's".to_owned(),
                    [] => String::new(),
                    maps => format!(", in {}", words::list(maps)),
                },
            );
            return (Class::UnexplainedGrowth, sentence, Vec::new());
        }
        let missing = "a ledger: a leak that is fed from memory which the allocator keeps shows \
                       in no gauge; `cargo tidegate run` keeps one";
        let sentence = format!(
            "nothing grows that gauges show, over {} in {minutes:.1} minutes (by {} or more they \
             would); that is no proof that nothing leaks",
            words::many(read, "reading"),
            words::size_u64(self.settings.gauge_floor_bytes),
        );
        (Class::Inconclusive, sentence, vec![missing.to_owned()])
    }

    /// What makes the exact books worthless.
    fn untrusted(&self) -> Vec<String> {
        let health = &self.books.health;
        let mut missing = Vec::new();
        if !health.attached {
            missing.push("the workload never reported to the ledger".to_owned());
        }
        if health.lost > 0 {
            missing.push(format!(
                "{} could not be booked",
                words::count(i64::try_from(health.lost).unwrap_or(i64::MAX), "operation")
            ));
        }
        if self.ledger.broken > 0 {
            missing.push(format!(
                "{} of the ledger do not have a value for each round",
                words::many(self.ledger.broken, "series").replace("seriess", "series")
            ));
        }
        let steps = self.ledger.steps;
        let needed = self.wide(self.settings.min_rounds);
        if steps < needed {
            missing.push(format!(
                "{} could be judged, {} more would do",
                words::many(steps, "round"),
                words::many(needed - steps, "round"),
            ));
        }
        missing
    }

    fn failing(&self) -> Option<(Class, String)> {
        let queue = match &self.queue {
            Queue::Backlog(queue) => Some(queue),
            _ => None,
        };
        if let Some(queue) = queue
            && self.waiting_explains_growth()
        {
            return Some((Class::Backlog, queue.sentence()));
        }
        if let Some(finding) = self.exact_findings().first() {
            return Some((finding.class, finding.sentence.clone()));
        }
        if let Some(late) = self.leaks.late.first() {
            return Some((Class::Backlog, late.sentence.clone()));
        }
        if let Some(queue) = queue {
            return Some((Class::Backlog, queue.sentence()));
        }
        let proven = self
            .resident
            .growing
            .iter()
            .find(|growing| growing.witness.is_some() && !growing.too_few);
        if let Some(growing) = proven {
            return Some((
                Class::UnexplainedGrowth,
                growing.sentence(self.ledger.steps),
            ));
        }
        self.ceiling().map(|sentence| (Class::Ceiling, sentence))
    }

    fn ceiling(&self) -> Option<String> {
        let limit = self.books.limit_bytes.or(self.settings.limit_bytes)?;
        let peak = self
            .books
            .rounds
            .iter()
            // Memory that was asked for and never touched is not used; nor are
            // file pages, which the kernel takes back, or the ledger's own.
            .filter_map(|round| {
                let gauges = round.gauges.as_ref()?;
                let others = gauges.rss_file.saturating_add(self.books.health.own_bytes);
                Some((gauges.rss_peak.saturating_sub(others), round.round))
            })
            .max_by_key(|(peak, round)| (*peak, std::cmp::Reverse(*round)))?;
        (peak.0 > limit).then(|| {
            format!(
                "the peak passes the limit: {} in round {} with a limit of {}, and what is alive after a round does not rise for good",
                words::size_u64(peak.0),
                peak.1,
                words::size_u64(limit)
            )
        })
    }

    /// What a pass would need.
    fn unclear(&self) -> Vec<String> {
        let mut missing = Vec::new();
        for row in self.ledger.rows.iter().filter(|row| row.site.is_none()) {
            if let Outcome::Unclear {
                total,
                more,
                slowing,
            } = &row.outcome
                && !(*slowing && self.replay_adds_nothing())
                && !leaks::came_back(self.books, row, 0, *total)
                && !self.are_records_of_threads(row)
            {
                let why = if *slowing {
                    "ever less, as a cache does that still fills"
                } else {
                    "over too few rounds to call it a leak or a cache"
                };
                missing.push(format!(
                    "{} memory of phase {} still grows ({} in {}), {why}; {} more would decide",
                    row.layer,
                    row.phase,
                    leaks::amount(row.layer, *total),
                    words::many(self.ledger.steps, "round"),
                    words::count(i64::from(*more), "round"),
                ));
            }
        }
        for (layer, more) in &self.unclear_handles {
            missing.push(format!(
                "the number of {}s still grows; {} more would decide",
                leaks::thing(*layer),
                words::count(i64::from(*more), "round"),
            ));
        }
        let warmup = self.wide(self.books.warmup).min(self.books.rounds.len());
        if ledger::mostly_unsettled(self.books, warmup) {
            missing.push("the books did not settle after most rounds".to_owned());
        }
        if ledger::mostly_late(self.books, warmup) {
            missing.push(
                "most rounds were over before the line that ended the one before had been read, \
                 so what they keep cannot be told apart; let longer rounds count (every \
                 hundredth line, say), or let the program say its rounds with tidegate.h"
                    .to_owned(),
            );
        }
        for what in &self.books.health.unreadable {
            missing.push(format!("unreadable: {what}"));
        }
        if self.resident.read * 2 < self.resident.rounds {
            missing.push(format!(
                "resident memory could be read after {} of {}",
                self.resident.read,
                words::many(self.resident.rounds, "round")
            ));
        }
        for growing in &self.resident.growing {
            if !growing.too_few && growing.witness.is_none() && !growing.by_allocator {
                missing.push(format!(
                    "{}, and no second witness (a trim probe, the mappings) was heard",
                    growing.sentence(self.ledger.steps)
                ));
            }
        }
        missing
    }

    fn replay_adds_nothing(&self) -> bool {
        self.books
            .probes
            .iter()
            .any(|p| p.kind == ProbeKind::Replay && (p.live_after - p.live_before).bytes <= 0)
    }

    /// The class that passes: late releases first; else whichever keeps the most.
    fn passing(&self) -> (Class, String) {
        if let Some(dwell) = self.dwell {
            return (Class::Dwell, dwell.sentence());
        }
        let cached: Amount = self
            .ledger
            .rows
            .iter()
            .filter(|row| row.site.is_none() && !row.layer.is_counted())
            .filter_map(|row| match &row.outcome {
                Outcome::Stopped { total, .. } | Outcome::Unclear { total, .. } => Some(*total),
                _ => None,
            })
            .sum();
        let grown = self.settings.matters(cached, 1);
        if let Some(kept) = self.resident.kept
            && kept.bytes > cached.bytes
            && let (Some(class), sentence) = kept_sentence(kept)
        {
            return (class, sentence);
        }
        if grown {
            let what = self
                .notes
                .iter()
                .filter(|note| note.class == Some(Class::Cache))
                .max_by_key(|note| self.settings.cost(note.amount))
                .map_or_else(String::new, |note| format!(": {}", note.sentence));
            return (
                Class::Cache,
                format!("live memory grew once and stopped{what}"),
            );
        }
        (
            Class::Clean,
            format!(
                "as much memory came back as was taken, in each of {}{}",
                words::many(self.ledger.steps, "measured round"),
                if self.books.aside.is_empty() {
                    ""
                } else {
                    ", but for what is set aside"
                }
            ),
        )
    }

    /// Puts it all together.
    pub(super) fn into_verdict(
        self,
        class: Class,
        sentence: String,
        missing: Vec<String>,
    ) -> Verdict {
        let mut findings = Vec::new();
        if self.trusted() && self.ledger.steps >= self.wide(self.settings.min_rounds) {
            findings = self.exact_findings();
        }
        findings.extend(self.leaks.late.iter().cloned().map(|mut late| {
            late.class = Class::Backlog;
            late.confirmed.push(Confirmation::GoneAfterDraining);
            late
        }));
        if let Queue::Backlog(queue) = &self.queue {
            findings.push(queue.finding());
        }
        for growing in &self.resident.growing {
            if growing.witness.is_some() && !growing.too_few {
                findings.push(growing.finding(self.ledger.steps));
            }
        }
        // The finding that decided comes first.
        findings.sort_by_key(|finding| finding.class != class);
        let tried = self.tried();
        let judged = self.judged();
        let power = self.power();
        Verdict {
            class,
            sentence,
            findings,
            notes: self.notes,
            judged,
            power,
            tried,
            missing,
        }
    }

    fn judged(&self) -> Judged {
        let books = self.books;
        let booked = books.series.len() + books.sites.len();
        let gauges = if self.resident.read > 0 && self.resident.read * 2 >= self.resident.rounds {
            GAUGES
        } else {
            0
        };
        let judged = if self.books.health.attached {
            booked - self.ledger.broken + gauges
        } else {
            gauges
        };
        Judged {
            series_judged: judged as u64,
            series_exist: (booked + GAUGES) as u64,
            rounds_judged: self.ledger.steps as u64,
            rounds_ended: books.rounds.len() as u64,
        }
    }

    /// What the noise of this run hides: a loss must outgrow twice the deepest
    /// fall of any series that does not leak.
    fn power(&self) -> Option<Power> {
        let steps = self.ledger.steps;
        if !self.trusted() || steps < self.wide(self.settings.min_rounds) {
            return None;
        }
        let rows = self.ledger.rows.iter().filter(|row| row.site.is_none());
        let fall = rows.fold(Amount::ZERO, |deepest, row| {
            let fall = ledger::deepest_falls(&row.values);
            Amount::new(
                deepest.bytes.max(fall.bytes),
                deepest.blocks.max(fall.blocks),
            )
        });
        let hides = |fall: i64| fall.unsigned_abs().saturating_mul(2).div_ceil(steps as u64);
        let settings = self.settings;
        let gauge = (steps >= self.wide(settings.gauge_even_rounds) && self.resident.read > 0)
            .then(|| settings.gauge_floor_bytes.div_ceil(steps as u64));
        let by_cost = settings
            .floor_bytes_per_round
            .div_ceil(settings.block_cost.max(1));
        Some(Power {
            blocks_per_round: hides(fall.blocks).max(by_cost).max(1),
            bytes_per_round: hides(fall.bytes).max(settings.floor_bytes_per_round),
            gauge_bytes_per_round: gauge,
        })
    }

    fn tried(&self) -> Vec<Tried> {
        let mut tried = Vec::new();
        let rounds = &self.books.rounds;
        if !rounds.is_empty() {
            let settled = rounds.iter().filter(|round| round.settle.settled).count();
            tried.push(Tried {
                what: "waiting after each round for the books to settle".to_owned(),
                showed: format!(
                    "{settled} of {} settled",
                    words::many(rounds.len(), "round")
                ),
            });
        }
        if let Some(settle) = self.books.final_settle {
            let fell = settle.before - settle.after;
            tried.push(Tried {
                what: format!("waiting {:.1} s after the last round", settle.seconds),
                showed: live_change(fell),
            });
        }
        tried.extend(self.books.probes.iter().map(|probe| {
            let what = match probe.kind {
                ProbeKind::Idle => "idling without work",
                ProbeKind::Trim => "malloc_trim(0)",
                ProbeKind::Replay => "the same inputs again",
                ProbeKind::Drain => "stopping the producers and emptying the queue",
            };
            Tried {
                what: what.to_owned(),
                showed: showed(probe),
            }
        }));
        tried
    }
}

const KEPT_FOR_THREADS: &str =
    "that is what the C library keeps with the stacks of threads that are gone";

/// Gauges that count as series of their own: private, file, shared and huge
/// pages, swap, threads, file descriptors.
const GAUGES: usize = 7;

fn live_change(fell: Amount) -> String {
    if fell.bytes > 0 {
        format!("live memory fell by {}", words::count(fell.bytes, "byte"))
    } else if fell.bytes < 0 {
        format!(
            "live memory rose by {}",
            words::count(fell.bytes.saturating_neg(), "byte")
        )
    } else {
        "live memory did not move".to_owned()
    }
}

fn showed(probe: &Probe) -> String {
    let live = live_change(probe.live_before - probe.live_after);
    match (&probe.before, &probe.after) {
        (Some(before), Some(after)) => {
            let fell = resident::private(before).saturating_sub(resident::private(after));
            let resident = if fell >= 0 {
                format!("fell by {}", words::size(fell))
            } else {
                format!("rose by {}", words::size(fell.saturating_neg()))
            };
            format!("{live}, resident memory {resident}")
        }
        _ => format!("{live}, resident memory could not be read"),
    }
}

/// Memory that came back late: in half of the measured rounds, or in the last long wait.
fn dwell(books: &Books, settings: &Settings) -> Option<Dwell> {
    let warmup = usize::try_from(books.warmup).unwrap_or(usize::MAX);
    let measured = books.rounds.get(warmup..).unwrap_or_default();
    let peak = books
        .rounds
        .iter()
        .map(|round| round.peak_bytes)
        .max()
        .unwrap_or(0);
    let floor = (peak as f64 * settings.dwell_floor_share).max(settings.dwell_floor_bytes as f64);
    let late = |settle: &crate::books::Settle| {
        let bytes = (settle.before - settle.after).bytes;
        ((bytes as f64) >= floor).then_some((bytes, settle.seconds))
    };
    let rounds: Vec<(i64, f64)> = measured.iter().filter_map(|r| late(&r.settle)).collect();
    let last = books.final_settle.as_ref().and_then(late);
    let idle = books
        .probes
        .iter()
        .filter(|p| p.kind == ProbeKind::Idle)
        .find_map(|p| {
            let bytes = (p.live_before - p.live_after).bytes;
            ((bytes as f64) >= floor).then_some((bytes, p.seconds))
        });
    let often = !rounds.is_empty() && rounds.len() * 2 >= measured.len();
    if !often && last.is_none() && idle.is_none() {
        return None;
    }
    let all = || rounds.iter().chain(&last).chain(&idle);
    Some(Dwell {
        bytes: all().map(|(bytes, _)| *bytes).max().unwrap_or(0),
        rounds: rounds.len(),
        seconds: all()
            .map(|(_, s)| *s)
            .filter(|s| s.is_finite())
            .fold(0.0, f64::max),
    })
}

impl Dwell {
    fn sentence(&self) -> String {
        let when = if self.rounds > 0 {
            format!("after {} had ended", words::many(self.rounds, "round"))
        } else {
            "after the last round had ended".to_owned()
        };
        format!(
            "all memory came back, but late: up to {} were released {when}, within {:.1} s",
            words::size(self.bytes),
            self.seconds
        )
    }
}

fn kept_sentence(kept: resident::Kept) -> (Option<Class>, String) {
    let above = format!(
        "resident memory stays {} above live memory",
        words::size(kept.bytes)
    );
    match kept.trim {
        None => (None, format!("{above}; a trim would tell why")),
        Some(trim) if trim.most => (
            Some(Class::Retention),
            format!(
                "live memory is flat and the allocator keeps what was freed: {above}, and a trim returned {}",
                words::size(trim.returned)
            ),
        ),
        Some(trim) => (
            Some(Class::Fragmentation),
            format!(
                "live memory is flat and the allocator cannot give back what was freed: {above}, and a trim returned only {}",
                words::size(trim.returned.max(0))
            ),
        ),
    }
}

impl Backlog {
    fn sentence(&self) -> String {
        let allowed = match self.allowed {
            Some(allowed) => format!(
                "where {} may wait by design",
                i64::try_from(allowed).unwrap_or(i64::MAX)
            ),
            None => "more than half of the round's".to_owned(),
        };
        format!(
            "finished items pile up in front of their consumer: {} waited at once in round {}, {allowed}, each holding about {}{}",
            words::count(i64::try_from(self.most).unwrap_or(i64::MAX), "item"),
            self.round,
            words::size(self.bytes_each as i64),
            if self.drained {
                "; all was back when the queue was empty"
            } else {
                ""
            },
        )
    }

    fn finding(&self) -> Finding {
        let mut confirmed = vec![Confirmation::FollowsWaitingItems];
        if self.drained {
            confirmed.push(Confirmation::GoneAfterDraining);
        }
        Finding {
            class: Class::Backlog,
            layer: Layer::RustHeap,
            phase: String::new(),
            site: None,
            driver: Driver::Unknown,
            per_driver: None,
            also_fits: Vec::new(),
            born_in: vec![self.round],
            since_round: Some(self.round),
            over_rounds: 1,
            total: Amount::new((self.bytes_each * self.most as f64) as i64, 0),
            per_item: None,
            cause: None,
            confirmed,
            fingerprint: "backlog".to_owned(),
            sentence: self.sentence(),
        }
    }
}

impl resident::Growing {
    fn sentence(&self, steps: usize) -> String {
        let maps = if self.maps.is_empty() {
            String::new()
        } else {
            format!(" in {}", words::list(&self.maps))
        };
        format!(
            "{} memory grows by about {} per round ({} to {}; {} in {}){maps}, and no ledger explains it",
            self.layer,
            words::size(self.per_round as i64),
            words::size(self.lower as i64),
            words::size(self.upper as i64),
            words::size(self.total),
            words::many(steps, "round"),
        )
    }

    fn finding(&self, steps: usize) -> Finding {
        let site = (!self.maps.is_empty()).then(|| self.maps.join(";"));
        Finding {
            class: Class::UnexplainedGrowth,
            layer: self.layer,
            phase: String::new(),
            driver: Driver::PerRound,
            per_driver: None,
            also_fits: Vec::new(),
            born_in: Vec::new(),
            since_round: None,
            over_rounds: u32::try_from(steps).unwrap_or(u32::MAX),
            total: Amount::new(self.total, 0),
            per_item: None,
            cause: None,
            confirmed: self.witness.into_iter().collect(),
            fingerprint: fingerprint(self.layer, "", site.as_deref()),
            sentence: self.sentence(steps),
            site,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::judge;
    use super::super::simulated::{FOR_EVER, Program, trim};
    use super::*;
    use crate::books::{
        Aside, MapKind, MapSeries, QueueDesign, QueueSample, Refusal, Series, Settle, SiteSeries,
    };

    const HEAP: Layer = Layer::RustHeap;
    const MIB: i64 = 1 << 20;

    fn verdict(books: &Books) -> Verdict {
        judge(books, &Settings::default())
    }

    fn sentences(verdict: &Verdict) -> Vec<&str> {
        let notes = verdict.notes.iter();
        notes.map(|note| note.sentence.as_str()).collect()
    }

    fn clean() -> Books {
        Program::new(1, 8).books()
    }

    fn leak(bytes: i64) -> Program {
        let mut program = Program::new(1, 8);
        program.keeps(HEAP, "ntt", |_| (bytes, 1));
        program
    }

    /// A run after whose rounds there were so many threads.
    fn threads(counts: &[u64]) -> Program {
        let mut program = Program::new(1, counts.len() as u32);
        let gauges = |threads: &u64| Gauges {
            rss_anon: 2 << 20,
            threads: *threads,
            fds: 5,
            ..Gauges::default()
        };
        program.gauges = counts.iter().map(gauges).collect();
        program
    }

    fn probe(kind: ProbeKind, before: i64, after: i64) -> Probe {
        Probe {
            kind,
            seconds: 2.0,
            live_before: Amount::new(before, 1),
            live_after: Amount::new(after, 1),
            before: None,
            after: None,
        }
    }

    #[test]
    fn counted_things_are_judged_from_four_rounds_on_and_once() {
        assert_eq!(
            verdict(&threads(&[3, 4, 5, 6, 7]).books()).class,
            Class::HandleLeak
        );
        let pool = verdict(&threads(&[3, 4, 5, 6, 7, 8, 8, 8, 8, 8, 8, 8, 8]).books());
        assert_eq!(
            sentences(&pool),
            ["5 threads came and stayed, then it stopped"]
        );
        // The ledger counts them too.
        let mut booked = threads(&[3, 4, 5, 6, 7, 8, 9, 10]);
        booked.keeps(Layer::Threads, "ntt", |_| (0, 1));
        let found = verdict(&booked.books()).findings;
        let phases: Vec<_> = found.iter().map(|finding| finding.phase.as_str()).collect();
        assert_eq!(phases, ["ntt"]);
        // Set aside.
        let mut books = threads(&[3, 4, 5, 6, 7, 8, 9, 10]).books();
        let aside = |layer| Aside {
            layer,
            phase: String::new(),
            site: None,
            live: Vec::new(),
            left: Vec::new(),
        };
        books.aside = vec![aside(Layer::Fds)];
        assert_eq!(verdict(&books).class, Class::HandleLeak);
        books.aside = vec![aside(Layer::Threads)];
        let found = verdict(&books);
        assert_eq!(found.class, Class::Clean);
        assert_eq!(
            found.sentence,
            "as much memory came back as was taken, in each of 7 measured rounds, but for what is \
             set aside"
        );
    }

    #[test]
    fn handles_of_which_half_are_gone_after_a_wait_only_came_late() {
        let after = |kind, threads_left| {
            let mut books = threads(&[3, 4, 5, 6, 7, 8, 9, 10]).books();
            let gauges = Gauges {
                threads: threads_left,
                ..Gauges::default()
            };
            books.probes = vec![Probe {
                after: Some(gauges),
                ..probe(kind, 0, 0)
            }];
            verdict(&books).class
        };
        assert_eq!(after(ProbeKind::Idle, 6), Class::Clean);
        assert_eq!(after(ProbeKind::Idle, 7), Class::HandleLeak);
        assert_eq!(after(ProbeKind::Drain, 6), Class::Clean);
        assert_eq!(after(ProbeKind::Trim, 6), Class::HandleLeak);
    }

    fn refusal(layer: Layer, round: u32, call: &str, count: u64) -> Refusal {
        Refusal {
            round,
            layer,
            phase: "msm".to_owned(),
            call: call.to_owned(),
            status: "800".to_owned(),
            count,
        }
    }

    #[test]
    fn releases_refused_in_two_measured_rounds_are_a_leak_where_no_book_shows_it() {
        let of = |refusals: &[(u32, u64)], layer| {
            let mut books = clean();
            let refused = |(round, count): &(u32, u64)| refusal(layer, *round, "free", *count);
            books.refusals = refusals.iter().map(refused).collect();
            verdict(&books)
        };
        let found = of(&[(5, 2), (1, 1), (3, 1), (5, 1), (6, 0)], Layer::Pinned);
        assert_eq!(found.class, Class::Leak);
        assert_eq!(
            found.sentence,
            "pinned memory of phase msm is not released, because free was refused 5 times: 800, \
             in rounds 3 and 5"
        );
        let finding = &found.findings[0];
        assert_eq!(finding.born_in, [3, 5]);
        assert_eq!((finding.since_round, finding.over_rounds), (Some(3), 7));
        assert_eq!(finding.total, Amount::new(0, 5));
        let handles = of(&[(3, 1), (5, 1)], Layer::GpuStreams);
        assert_eq!(handles.class, Class::HandleLeak);
        // In one measured round, which may be the first.
        for rounds in [[(1, 1), (3, 1)], [(1, 1), (2, 1)]] {
            let once = of(&rounds, Layer::Pinned);
            assert_eq!(once.class, Class::Clean);
            assert_eq!(
                sentences(&once),
                ["in phase msm, free was refused 2 times: 800"]
            );
        }
        assert_eq!(of(&[(2, 1), (3, 1)], Layer::Pinned).class, Class::Leak);
    }

    #[test]
    fn the_first_refusal_is_the_cause_of_a_leak_and_others_are_noted() {
        let mut program = Program::new(1, 8);
        program.keeps(Layer::Pinned, "msm", |_| (4096, 1));
        let mut books = program.books();
        books.refusals = vec![
            refusal(Layer::Pinned, 3, "a", 1),
            refusal(Layer::Pinned, 3, "b", 1),
        ];
        let found = verdict(&books);
        let cause = found.findings[0].cause.as_deref();
        assert_eq!(cause, Some("a was refused 1 time: 800"));
        assert!(
            found.findings[0]
                .confirmed
                .contains(&Confirmation::RefusedRelease)
        );
        assert_eq!(
            sentences(&found),
            ["in phase msm, b was refused 1 time: 800"]
        );
        // A phase that is booked and kept nothing; a phase that is set aside.
        let mut program = Program::new(1, 8);
        program.rolls(Layer::Pinned, "msm", |_| (4096, 1));
        let mut books = program.books();
        books.refusals = (2..8).map(|n| refusal(Layer::Pinned, n, "a", 1)).collect();
        assert_eq!(verdict(&books).class, Class::Clean);
        books.series.clear();
        books.survivors.clear();
        assert_eq!(verdict(&books).class, Class::Leak);
        books.aside = vec![Aside {
            layer: Layer::Pinned,
            phase: "msm".to_owned(),
            site: None,
            live: Vec::new(),
            left: Vec::new(),
        }];
        assert_eq!(verdict(&books).class, Class::Clean);
    }

    #[test]
    fn a_lost_handle_explains_64_kibibytes_of_heap_and_a_descriptor_16() {
        let with = |bytes: i64, threads: u64, fds: u64| {
            let mut program = leak(bytes);
            program.gauges = (0..8)
                .map(|round| Gauges {
                    rss_anon: 2 << 20,
                    threads: 3 + threads * round,
                    fds: 5 + fds * round,
                    ..Gauges::default()
                })
                .collect();
            verdict(&program.books())
        };
        let thread = with(64 << 10, 1, 0);
        assert_eq!(thread.class, Class::HandleLeak);
        assert!(sentences(&thread)[0].ends_with("small enough to be what the lost handles keep"));
        assert_eq!(with((64 << 10) + 1, 1, 0).class, Class::Leak);
        assert_eq!(with(16 << 10, 0, 1).class, Class::HandleLeak);
        assert_eq!(with((16 << 10) + 1, 0, 1).class, Class::Leak);
        assert_eq!(with(80 << 10, 1, 1).class, Class::HandleLeak);
    }

    /// One more item waits after each round, and each holds a mebibyte.
    fn waiting() -> Vec<QueueSample> {
        let sample = |half: u32| QueueSample {
            at_seconds: f64::from(half) / 2.0,
            round: half.div_ceil(2),
            produced: u64::from(half / 2),
            consumed: 0,
            live_bytes: u64::from(half / 2 + 4) << 20,
        };
        (1..=16).map(sample).collect()
    }

    #[test]
    fn waiting_items_explain_growth_of_twice_what_they_hold() {
        let class = |bytes: i64, change: fn(&mut Books)| {
            let mut books = leak(bytes).books();
            books.queue = waiting();
            books.queue_design = Some(QueueDesign {
                capacity: 1,
                producers: 1,
            });
            change(&mut books);
            verdict(&books).class
        };
        assert_eq!(class(2 * MIB - 100, |_| {}), Class::Backlog);
        assert_eq!(class(2 * MIB + 100, |_| {}), Class::Leak);
        // As many wait at the end as in the beginning.
        let drained = |books: &mut Books| books.queue[15].consumed = 7;
        assert_eq!(class(MIB, drained), Class::Leak);
        // Of the last round there is no sample.
        let unknown = |books: &mut Books| books.queue.retain(|sample| sample.round < 8);
        assert_eq!(class(MIB, unknown), Class::Leak);
        let killed = |books: &mut Books| books.ending = Ending::OomKilled;
        assert_eq!(class(MIB, killed), Class::Backlog);
        assert_eq!(class(2 * MIB + 100, killed), Class::Leak);
    }

    #[test]
    fn what_passes_is_noted_with_its_amount_and_its_rounds() {
        let mut program = Program::new(1, 20);
        program.block(HEAP, "ntt", 5, FOR_EVER, 5000, 7);
        assert_eq!(
            sentences(&verdict(&program.books())),
            [
                "rust-heap memory of phase ntt grew by 5,000 bytes in 7 blocks and stopped after \
              round 5"
            ]
        );
        let file = |bytes: u64| {
            let mut books = clean();
            let gauges = books.rounds[7].gauges.as_mut().expect("gauges");
            gauges.rss_file = bytes;
            verdict(&books).notes.len()
        };
        assert_eq!((file(4 << 20), file((4 << 20) + 1)), (0, 1));
        let missed = |samples, samples_missed| {
            let mut books = clean();
            books.health.samples = samples;
            books.health.samples_missed = samples_missed;
            let verdict = verdict(&books);
            sentences(&verdict).join("")
        };
        assert_eq!(missed(5, 5), "");
        assert_eq!(
            missed(4, 6),
            "6 of 10 samples were missed; peaks between them were not seen"
        );
        let mut program = Program::new(1, 8);
        program.block(Layer::DriverHeap, "msm", 1, FOR_EVER, 880, 3);
        assert!(verdict(&program.books()).notes.is_empty());
    }

    #[test]
    fn an_end_is_told_by_its_signal_status_or_message() {
        let told = |ending, rounds: usize| {
            let mut books = clean();
            books.rounds.truncate(rounds);
            books.series.clear();
            books.ending = ending;
            verdict(&books).sentence
        };
        let signal = |signal| told(Ending::Signal { signal }, 2);
        assert!(signal(9).contains("was killed by signal 9 (SIGKILL), not by this run's limit"));
        assert!(signal(6).contains("aborted (signal 6)"));
        assert!(signal(11).contains("died of signal 11 (segmentation fault)"));
        assert_eq!(
            signal(15),
            "the workload died of signal 15; 2 rounds had ended and are booked"
        );
        assert_eq!(
            told(Ending::Exited { code: 3 }, 1),
            "the workload exited with status 3 before its rounds were done; 1 round had ended \
             and is booked"
        );
        let message = "index out of bounds".to_owned();
        assert!(told(Ending::Panicked { message }, 1).contains("panicked: index out of bounds"));
        let hang = |busy| {
            let idle_seconds = 30.0;
            told(Ending::Hang { idle_seconds, busy }, 2)
        };
        assert_eq!(
            hang(true),
            "no progress for 30 s after 2 rounds: no round ended, though it was busy"
        );
        assert!(hang(false).ends_with("nothing was allocated, no CPU was used"));
        let limit = |enforced_by| Ending::Limit {
            limit_bytes: 1 << 30,
            peak_bytes: 5 << 28,
            enforced_by,
        };
        assert_eq!(
            told(limit(LimitKind::CgroupV2), 8),
            "the peak passes the limit: killed by its cgroup at 1.2 GiB with a limit of 1.0 \
             GiB; what is alive after a round did not rise for good over 8 rounds"
        );
        assert!(told(limit(LimitKind::Watchdog), 8).contains("killed by the watchdog"));
        assert_eq!(
            told(Ending::OomKilled, 1),
            "the peak passes the limit: killed by the kernel for lack of memory; no two rounds \
             ended that could tell whether the floor is flat"
        );
        // A leak of books that are not trusted is none.
        let mut books = leak(96).books();
        books.ending = Ending::OomKilled;
        assert_eq!(verdict(&books).class, Class::Leak);
        books.health.lost = 1;
        assert_eq!(verdict(&books).class, Class::Ceiling);
    }

    #[test]
    fn gauges_alone_need_25_readings_and_prove_only_what_grows() {
        let of = |readings: u64, threads: u64, step: u64| {
            let mut program = Program::new(1, readings as u32);
            program.seconds = (0..readings).map(|at| 90.0 + 30.0 * at as f64).collect();
            program.gauges = (0..readings)
                .map(|at| Gauges {
                    rss_anon: (60 << 20) + at * step,
                    threads: 3 + at * threads,
                    fds: 5,
                    ..Gauges::default()
                })
                .collect();
            let mut books = program.books();
            books.gauges_only = true;
            books.health.attached = false;
            verdict(&books)
        };
        let few = of(24, 1, 0);
        assert_eq!(few.class, Class::Inconclusive);
        assert_eq!(
            few.sentence,
            "no verdict: 24 readings of the gauges, 1 more would do"
        );
        let handles = of(25, 1, 0);
        assert_eq!(handles.class, Class::HandleLeak);
        assert_eq!(
            handles.sentence,
            "the number of threads rises for good: 24 more in 12.0 minutes"
        );
        let grows = of(25, 0, 1 << 20);
        assert_eq!(grows.class, Class::UnexplainedGrowth);
        assert_eq!(
            grows.sentence,
            "resident anon memory grows by 2.0 MiB a minute (2.0 MiB to 2.0 MiB), by 24.0 MiB in \
             12.0 minutes; whether it is needed no gauge can tell"
        );
        let nothing = of(25, 0, 0);
        assert_eq!(nothing.class, Class::Inconclusive);
        assert_eq!(
            nothing.sentence,
            "nothing grows that gauges show, over 25 readings in 12.0 minutes (by 4.0 MiB or \
             more they would); that is no proof that nothing leaks"
        );
        assert!(nothing.missing[0].starts_with("a ledger: "));
    }

    #[test]
    fn what_a_verdict_lacks_is_counted() {
        let lacks = |change: &dyn Fn(&mut Books)| {
            let mut books = leak(96).books();
            books.series.push(clean_series());
            change(&mut books);
            verdict(&books).missing
        };
        fn clean_series() -> crate::books::Series {
            crate::books::Series {
                layer: HEAP,
                phase: "finish".to_owned(),
                live: vec![Amount::ZERO; 8],
            }
        }
        let broken = |books: &mut Books| {
            books.series[1].live.pop();
        };
        assert_eq!(
            lacks(&broken),
            ["1 series of the ledger do not have a value for each round"]
        );
        let short = |books: &mut Books| {
            books.rounds.truncate(4);
            books.series.clear();
        };
        assert_eq!(
            lacks(&short),
            ["3 rounds could be judged, 1 round more would do"]
        );
        let unread = |of: usize| {
            let mut books = clean();
            for round in &mut books.rounds[..of] {
                round.gauges = None;
            }
            verdict(&books).missing
        };
        assert_eq!(unread(4), Vec::<String>::new());
        assert_eq!(
            unread(5),
            ["resident memory could be read after 3 of 8 rounds"]
        );
        assert_eq!(
            verdict(&threads(&[3, 4, 6, 7, 10, 12, 13, 17, 19]).books()).missing,
            ["the number of threads still grows; 4 rounds more would decide"]
        );
    }

    #[test]
    fn a_replay_that_adds_nothing_makes_of_a_slow_cache_a_cache() {
        let mut program = Program::new(1, 13);
        let steps = [0, 20, 18, 16, 10, 8, 7, 6, 5, 4, 4, 3, 3];
        program.keeps(HEAP, "ntt", |round| {
            let n = steps[round as usize - 1];
            (100 * n, n)
        });
        let class = |after| {
            let mut books = program.books();
            books.probes = vec![probe(ProbeKind::Replay, 1000, after)];
            verdict(&books)
        };
        let fills = class(1001);
        assert_eq!(fills.class, Class::Inconclusive);
        assert_eq!(sentences(&fills), Vec::<&str>::new());
        assert_eq!(
            fills.missing,
            [
                "rust-heap memory of phase ntt still grows (10,400 bytes in 104 blocks in 12 \
              rounds), ever less, as a cache does that still fills; 12 rounds more would decide"
            ]
        );
        assert_eq!(class(1000).class, Class::Cache);
        assert_eq!(class(999).class, Class::Cache);
    }

    #[test]
    fn the_largest_cache_gives_its_name_unless_the_allocator_keeps_more() {
        let mut program = Program::new(1, 20);
        program
            .block(HEAP, "ntt", 5, FOR_EVER, 20 * MIB, 1)
            .block(HEAP, "finish", 6, FOR_EVER, MIB, 1);
        let mut books = program.books();
        // The same again, by site.
        books.sites = vec![SiteSeries {
            layer: HEAP,
            phase: "ntt".to_owned(),
            site: "a".to_owned(),
            live: books.series[1].live.clone(),
        }];
        let found = verdict(&books);
        assert_eq!(found.class, Class::Cache);
        assert_eq!(
            found.sentence,
            "live memory grew once and stopped: rust-heap memory of phase ntt grew by \
             20,971,520 bytes in 1 block and stopped after round 5"
        );
        for (resident, class) in [(42, Class::Cache), (43, Class::Retention)] {
            for round in &mut books.rounds {
                round.gauges.as_mut().expect("gauges").rss_anon = resident << 20;
            }
            books.probes = vec![trim(&books, 21 << 20)];
            assert_eq!(verdict(&books).class, class, "{resident} MiB");
        }
    }

    #[test]
    fn memory_came_back_late_in_half_of_the_rounds_or_in_a_long_wait() {
        let settle = |bytes: i64| Settle {
            settled: true,
            seconds: 0.5,
            before: Amount::new(bytes, 1),
            after: Amount::ZERO,
        };
        let rounds = |late: usize, bytes: i64, peak: u64| {
            let mut program = Program::new(1, 9);
            program.gauges = Vec::new();
            let mut books = program.books();
            for round in &mut books.rounds {
                round.peak_bytes = peak;
            }
            for round in &mut books.rounds[9 - late..] {
                round.settle = settle(bytes);
            }
            verdict(&books).sentence
        };
        let late = "all memory came back, but late: up to 64.0 KiB were released after 4 rounds \
                    had ended, within 0.5 s";
        assert_eq!(rounds(4, 64 << 10, MIB as u64), late);
        let clean = "as much memory came back as was taken, in each of 8 measured rounds";
        assert_eq!(rounds(3, 64 << 10, MIB as u64), clean);
        assert_eq!(rounds(4, (64 << 10) - 1, MIB as u64), clean);
        // A twentieth of the peak.
        assert_ne!(rounds(4, MIB, 20 * MIB as u64), clean);
        assert_eq!(rounds(4, MIB - 100, 20 * MIB as u64), clean);
        let mut books = self::clean();
        books.final_settle = Some(settle(100 << 10));
        assert_eq!(
            verdict(&books).sentence,
            "all memory came back, but late: up to 100.0 KiB were released after the last round \
             had ended, within 0.5 s"
        );
        let mut books = self::clean();
        books.probes = vec![probe(ProbeKind::Idle, 64 << 10, 0)];
        assert_eq!(verdict(&books).class, Class::Dwell);
        books.probes = vec![probe(ProbeKind::Idle, (64 << 10) - 1, 0)];
        assert_eq!(verdict(&books).class, Class::Clean);
        books.probes = vec![probe(ProbeKind::Replay, 64 << 10, 0)];
        assert_eq!(verdict(&books).class, Class::Clean);
        books.probes = vec![probe(ProbeKind::Idle, 40 << 10, 30 << 10)];
        assert_eq!(verdict(&books).class, Class::Clean);
        books.final_settle = Some(Settle {
            settled: true,
            seconds: 0.5,
            before: Amount::new(40 << 10, 1),
            after: Amount::new(30 << 10, 1),
        });
        let verdict = verdict(&books);
        assert_eq!(verdict.class, Class::Clean);
        assert_eq!(verdict.tried[1].what, "waiting 0.5 s after the last round");
        assert_eq!(verdict.tried[1].showed, "live memory fell by 10,240 bytes");
    }

    #[test]
    fn the_peak_of_a_ceiling_is_the_first_highest_without_files_and_our_own() {
        let mut books = clean();
        books.limit_bytes = Some(3 << 20);
        books.health.own_bytes = 100;
        for (at, round) in books.rounds.iter_mut().enumerate() {
            let gauges = round.gauges.as_mut().expect("gauges");
            gauges.rss_file = 1 << 20;
            gauges.rss_peak = (4 << 20) + if at == 3 || at == 5 { 100 } else { 0 };
        }
        assert_eq!(verdict(&books).class, Class::Clean);
        books.health.own_bytes = 99;
        let found = verdict(&books);
        assert_eq!(found.class, Class::Ceiling);
        assert!(
            found.sentence.contains("3.0 MiB in round 4"),
            "{}",
            found.sentence
        );
        books.limit_bytes = None;
        assert_eq!(verdict(&books).class, Class::Clean);
        let settings = Settings {
            limit_bytes: Some(3 << 20),
            ..Settings::default()
        };
        assert_eq!(judge(&books, &settings).class, Class::Ceiling);
    }

    #[test]
    fn a_loss_must_outgrow_twice_the_deepest_fall() {
        let mut program = Program::new(1, 9);
        program.rolls(HEAP, "ntt", |round| match round % 3 {
            0 => (1000, 10),
            _ => (0, 0),
        });
        let power = |program: &Program, settings: &Settings| {
            judge(&program.books(), settings)
                .power
                .expect("a whole run")
        };
        let settings = Settings::default();
        // Over eight steps: 20 blocks, and 2,000 bytes.
        let found = power(&program, &settings);
        assert_eq!((found.blocks_per_round, found.bytes_per_round), (3, 250));
        let power_of = |books: &Books| judge(books, &Settings::default()).power;
        assert!(power_of(&Program::new(1, 5).books()).is_some());
        assert!(power_of(&Program::new(1, 4).books()).is_none());
        let mut unread = Program::new(1, 9).books();
        unread
            .rounds
            .iter_mut()
            .for_each(|round| round.gauges = None);
        let found = power_of(&unread).expect("the ledger is there");
        assert_eq!(found.gauge_bytes_per_round, None);
        let coarse = Settings {
            floor_bytes_per_round: 100,
            ..settings
        };
        let found = power(&Program::new(1, 9), &coarse);
        assert_eq!((found.blocks_per_round, found.bytes_per_round), (7, 100));
    }

    #[test]
    fn books_that_lost_an_operation_give_no_findings() {
        let mut books = leak(96).books();
        assert_eq!(verdict(&books).findings.len(), 1);
        books.health.lost = 1;
        assert!(verdict(&books).findings.is_empty());
    }

    #[test]
    fn blocks_lost_while_another_shrinks_are_a_leak_though_bytes_fall() {
        let lost = [3, 5, 4, 7, 2, 6, 3, 5, 8, 4, 6, 5, 7, 3, 4, 6, 2, 5, 3, 4];
        let mut live = vec![Amount::new(100_000, 100)];
        for blocks in lost {
            live.push(live[live.len() - 1] + Amount::new(-40, blocks));
        }
        let mut books = Program::new(1, 21).books();
        books.series = vec![Series {
            layer: HEAP,
            phase: "ntt".to_owned(),
            live,
        }];
        let found = verdict(&books);
        assert_eq!(found.class, Class::Leak, "{}", found.sentence);
        assert!(found.findings[0].total.bytes < 0);
    }

    #[test]
    fn a_series_that_cannot_be_judged_is_not_counted_as_judged() {
        let judged = |books: &Books| {
            let judged = verdict(books).judged;
            (judged.series_judged, judged.series_exist)
        };
        let mut books = leak(96).books();
        assert_eq!(judged(&books), (8, 8));
        for round in &mut books.rounds[..4] {
            round.gauges = None;
        }
        assert_eq!(judged(&books), (8, 8));
        books.rounds[4].gauges = None;
        assert_eq!(judged(&books), (1, 8));
        books.series[0].live.pop();
        assert_eq!(judged(&books), (0, 8));
        books.health.attached = false;
        assert_eq!(judged(&books), (0, 8));
        assert_eq!(judged(&Books::default()), (0, 7));
    }

    #[test]
    fn a_backlog_is_told_by_its_items_and_what_they_hold() {
        let backlog = Backlog {
            most: 12,
            round: 4,
            allowed: Some(5),
            bytes_each: 2.0 * MIB as f64,
            correlation: 0.9,
            drained: true,
        };
        assert_eq!(
            backlog.sentence(),
            "finished items pile up in front of their consumer: 12 items waited at once in round \
             4, where 5 may wait by design, each holding about 2.0 MiB; all was back when the \
             queue was empty"
        );
        let finding = backlog.finding();
        assert_eq!(finding.total, Amount::new(24 * MIB, 0));
        assert_eq!((finding.since_round, finding.born_in), (Some(4), vec![4]));
        let both = [
            Confirmation::FollowsWaitingItems,
            Confirmation::GoneAfterDraining,
        ];
        assert_eq!(finding.confirmed, both);
        let stays = Backlog {
            allowed: None,
            drained: false,
            ..backlog
        };
        assert!(stays.sentence().ends_with(
            "12 items waited at once in round 4, more than half of the round's, each holding \
             about 2.0 MiB"
        ));
        assert_eq!(stays.finding().confirmed, both[..1]);
    }

    #[test]
    fn what_decided_comes_first_among_the_findings() {
        let mut books = leak(200 << 10).books();
        books.queue = waiting();
        books.queue_design = Some(QueueDesign {
            capacity: 1,
            producers: 1,
        });
        let classes = |books: &Books| {
            let verdict = verdict(books);
            let findings = verdict.findings.iter();
            (verdict.class, findings.map(|f| f.class).collect::<Vec<_>>())
        };
        let both = vec![Class::Backlog, Class::Leak];
        assert_eq!(classes(&books), (Class::Backlog, both));
        books.queue[15].consumed = 7;
        let both = vec![Class::Leak, Class::Backlog];
        assert_eq!(classes(&books), (Class::Leak, both));
        // Of too few rounds, none is exact.
        books.rounds.truncate(4);
        books.series.clear();
        books.queue.clear();
        assert_eq!(classes(&books), (Class::Inconclusive, Vec::new()));
    }

    #[test]
    fn releases_that_came_late_are_findings_of_a_backlog_that_drained() {
        let mut books = clean();
        books.series.push(crate::books::Series {
            layer: HEAP,
            phase: "dealloc".to_owned(),
            live: (1..=8).map(|n| Amount::new(n << 20, n)).collect(),
        });
        books.final_settle = Some(Settle {
            settled: true,
            seconds: 4.0,
            before: Amount::new(8 << 20, 8),
            after: Amount::ZERO,
        });
        let finding = &verdict(&books).findings[0];
        assert_eq!(finding.class, Class::Backlog);
        assert!(finding.confirmed.contains(&Confirmation::GoneAfterDraining));
        assert!(!finding.confirmed.contains(&Confirmation::OutlastsSettling));
    }

    #[test]
    fn unexplained_growth_is_told_with_its_bounds_and_its_mappings() {
        let mut program = Program::new(1, 13);
        program.gauges = (1..=13)
            .map(|round| Gauges {
                rss_anon: (60 + round) << 20,
                threads: 3,
                fds: 5,
                ..Gauges::default()
            })
            .collect();
        let mut books = program.books();
        let grows = "anon memory grows by about 1.0 MiB per round (1.0 MiB to 1.0 MiB; 12.0 MiB \
                     in 12 rounds)";
        assert_eq!(
            verdict(&books).missing,
            [format!(
                "{grows}, and no ledger explains it, and no second witness (a trim probe, the \
                 mappings) was heard"
            )]
        );
        assert!(verdict(&books).findings.is_empty());
        for name in ["b", "a"] {
            books.maps.push(MapSeries {
                name: name.to_owned(),
                kind: MapKind::Anon,
                resident: (1..=13).map(|round| round << 20).collect(),
            });
        }
        let found = verdict(&books);
        assert_eq!(found.class, Class::UnexplainedGrowth);
        assert_eq!(
            found.sentence,
            format!("{grows} in a and b, and no ledger explains it")
        );
        let finding = &found.findings[0];
        assert_eq!(finding.site.as_deref(), Some("a;b"));
        assert_eq!(
            (finding.over_rounds, finding.total),
            (12, Amount::new(12 * MIB, 0))
        );
    }
}
