//! The numbers that the engine decides by, each with its reason.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::books::{Amount, ProbeKind};

/// Floors and bounds of the engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Growth below so many bytes per round, on average, is noted and never failed.
    ///
    /// A block counts [`Self::block_cost`] bytes more than it holds. With the
    /// defaults, one lost block of 24 bytes per round (40) is far above the
    /// floor, and the healthy prover's block of 104 bytes in every 13th round
    /// (9) is below it.
    pub floor_bytes_per_round: u64,
    /// What runtimes (the GPU driver, rayon, tokio, the standard library) keep for
    /// themselves fails no run below so many bytes per round, on average, all of them
    /// together. A clean GPU program's driver keeps 50 to 250 bytes of heap a round.
    pub residue_floor_bytes_per_round: u64,
    /// What a block costs beside the bytes that were asked for: the
    /// allocator's header and rounding, 16 bytes in glibc.
    pub block_cost: u64,
    /// Fewer rounds measured (after the warm-up) than this: inconclusive.
    ///
    /// Four equal steps are the least that tell a constant from a coincidence.
    pub min_rounds: u32,
    /// Growth that differs from round to round needs so many measured rounds
    /// before it is called steady: over fewer, a cache that fills ever slower
    /// looks the same.
    pub uneven_rounds: u32,
    /// [`next_step`](super::next_step) lets a leak prove itself over so many
    /// measured rounds, where `max_rounds` allows, because a cache that fills
    /// by the same amount in each round looks like a leak until it is full.
    pub confirm_rounds: u32,
    /// The most rounds, warm-up included, that `next_step` asks for.
    pub max_rounds: u32,
    /// Probes that the supervisor can run; `next_step` asks for no other.
    pub probes: Vec<ProbeKind>,
    /// The memory limit in bytes, where the books carry none.
    pub limit_bytes: Option<u64>,
    /// Freed after the end of the round, in bytes: below, it is no dwell.
    /// Ending threads hold a score of small blocks a moment longer.
    pub dwell_floor_bytes: u64,
    /// Freed after the end of the round, as a share of the peak: below, it is no dwell.
    pub dwell_floor_share: f64,
    /// Resident above live, in bytes: below, the allocator's keepings are not mentioned.
    pub resident_floor_bytes: u64,
    /// Resident above live, as a share of the peak of live memory: below, they
    /// are not mentioned.
    pub resident_floor_share: f64,
    /// A gauge that grows by less than this in all is never unexplained growth, in bytes.
    pub gauge_floor_bytes: u64,
    /// The same as a share of the gauge's first value.
    pub gauge_floor_share: f64,
    /// Measured rounds that a gauge needs which grows by the same amount in each.
    pub gauge_even_rounds: u32,
    /// Measured rounds that a gauge needs otherwise. Warm allocators grow
    /// for tens of rounds, ever slower.
    pub gauge_rounds: u32,
    /// The memory of the waiting items, in bytes: below, a queue is no backlog.
    pub backlog_floor_bytes: u64,
    /// A lost handle may keep so many bytes of heap (the library's own record
    /// of it); more is a leak of its own, beside the handle's.
    pub handle_keeps_bytes: u64,
    /// The C library may keep so many bytes of heap for a thread that is gone,
    /// with its stack, for one to come (glibc: 288 in a small program, 16 more for each
    /// library with thread-local storage).
    pub ended_thread_keeps_bytes: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            floor_bytes_per_round: 16,
            residue_floor_bytes_per_round: 512,
            block_cost: 16,
            min_rounds: 4,
            uneven_rounds: 12,
            confirm_rounds: 24,
            max_rounds: 60,
            probes: vec![ProbeKind::Idle, ProbeKind::Trim],
            limit_bytes: None,
            dwell_floor_bytes: 64 << 10,
            dwell_floor_share: 0.05,
            resident_floor_bytes: 16 << 20,
            resident_floor_share: 0.25,
            gauge_floor_bytes: 4 << 20,
            gauge_floor_share: 0.02,
            gauge_even_rounds: 8,
            gauge_rounds: 24,
            backlog_floor_bytes: 256 << 10,
            handle_keeps_bytes: 64 << 10,
            ended_thread_keeps_bytes: 1 << 10,
        }
    }
}

impl Settings {
    /// What an amount costs: its bytes, and [`Self::block_cost`] for each block.
    pub(crate) fn cost(&self, amount: Amount) -> i128 {
        i128::from(amount.bytes) + i128::from(self.block_cost) * i128::from(amount.blocks)
    }

    /// Whether so much growth over so many rounds is worth failing a run.
    pub(crate) fn matters(&self, total: Amount, rounds: usize) -> bool {
        rounds > 0
            && self.cost(total)
                >= i128::from(self.floor_bytes_per_round).saturating_mul(rounds as i128)
    }

    /// Whether so much growth over so many rounds is more than runtimes may keep.
    pub(crate) fn is_more_than_residue(&self, total: Amount, rounds: u32) -> bool {
        self.cost(total)
            > i128::from(self.residue_floor_bytes_per_round).saturating_mul(i128::from(rounds))
    }

    /// Whether the supervisor can run this probe.
    pub(super) fn can(&self, probe: ProbeKind) -> bool {
        self.probes.contains(&probe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_costs_its_bytes_and_sixteen_for_each_block() {
        let settings = Settings::default();
        assert_eq!(settings.cost(Amount::new(24, 2)), 56);
        assert_eq!(settings.cost(Amount::new(-24, 1)), -8);
    }

    #[test]
    fn growth_matters_from_the_floor_on_and_is_residue_up_to_it() {
        let settings = Settings::default();
        assert!(settings.matters(Amount::new(48, 0), 3));
        assert!(!settings.matters(Amount::new(47, 0), 3));
        assert!(!settings.matters(Amount::new(48, 0), 0));
        assert!(!settings.is_more_than_residue(Amount::new(1536, 0), 3));
        assert!(settings.is_more_than_residue(Amount::new(1537, 0), 3));
        assert!(settings.is_more_than_residue(Amount::new(1521, 1), 3));
    }

    #[test]
    fn only_the_probes_that_are_named_can_be_run() {
        let settings = Settings::default();
        assert!(settings.can(ProbeKind::Idle) && settings.can(ProbeKind::Trim));
        assert!(!settings.can(ProbeKind::Replay) && !settings.can(ProbeKind::Drain));
    }
}
