//! How far two versions are apart, by ranks alone.
//!
//! Both tests permute: under the null hypothesis the two runs of a pair could have been
//! swapped (Wilcoxon's signed ranks), or the runs of both groups be dealt anew (Wilcoxon's
//! rank sum). Their distributions are counted, not approximated and not drawn, so that no
//! seed is needed. The estimate is that of Hodges and Lehmann (Annals of Mathematical
//! Statistics 34, 1963): the median of what two pairs, or two runs, say together; its
//! bounds are the shifts that the test does not reject (Hollander and Wolfe, Nonparametric
//! Statistical Methods, chapters 3 and 4). Nothing is assumed of the noise but that it
//! is the same on both sides.

/// Sizes are compared with what may be spent up to this: both are sums of binary fractions.
const EPSILON: f64 = 1e-12;
/// Of more pairs than this only the first are looked at: counting takes time.
const MOST_PAIRS: usize = 200;
/// The same of the runs on a side.
const MOST_RUNS: usize = 50;

/// What was observed of one metric.
#[derive(Clone, Copy, Debug)]
pub(super) enum Observed<'a> {
    /// Candidate minus baseline, pair by pair.
    Pairs(&'a [f64]),
    /// Baseline and candidate, each by itself.
    Groups(&'a [f64], &'a [f64]),
}

/// A shift with its bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bounded {
    pub(super) estimate: f64,
    /// The least shift that the test does not reject; minus infinity where it rejects none.
    pub(super) lower: f64,
    /// The greatest.
    pub(super) upper: f64,
    /// The probability that the bounds miss the shift: at most what was allowed.
    pub(super) size: f64,
}

impl Observed<'_> {
    /// The shift, with bounds that miss it with probability `allowed` at most; `None`
    /// where nothing was observed.
    pub(super) fn shift(self, allowed: f64) -> Option<Bounded> {
        let (mut shifts, null) = match self {
            Self::Pairs(differences) => {
                let differences = &differences[..differences.len().min(MOST_PAIRS)];
                let null = distribution(&(1..=differences.len()).collect::<Vec<_>>());
                (walsh_averages(differences), null)
            }
            Self::Groups(baseline, candidate) => {
                let baseline = &baseline[..baseline.len().min(MOST_RUNS)];
                let candidate = &candidate[..candidate.len().min(MOST_RUNS)];
                let ranks: Vec<usize> = (1..=baseline.len() + candidate.len()).collect();
                let mut null = sums_of(&ranks, candidate.len());
                // From the sum of ranks to the pairs in which the candidate is higher.
                null.drain(..candidate.len() * (candidate.len() + 1) / 2);
                let differences = candidate
                    .iter()
                    .flat_map(|b| baseline.iter().map(move |a| b - a));
                (differences.collect(), null)
            }
        };
        shifts.sort_unstable_by(f64::total_cmp);
        let estimate = median(&shifts)?;
        let mut bounded = Bounded {
            estimate,
            lower: f64::NEG_INFINITY,
            upper: f64::INFINITY,
            size: 0.0,
        };
        let mut tail = 0.0;
        for (critical, probability) in null.iter().enumerate() {
            tail += probability;
            let (low, high) = (shifts.get(critical), shifts.len().checked_sub(critical + 1));
            match (low, high.and_then(|at| shifts.get(at))) {
                (Some(lower), Some(upper)) if 2.0 * tail <= allowed + EPSILON && lower <= upper => {
                    bounded.lower = *lower;
                    bounded.upper = *upper;
                    bounded.size = 2.0 * tail;
                }
                _ => break,
            }
        }
        Some(bounded)
    }

    /// The probability of ranks as far apart as these, or farther, where nothing differs;
    /// ties share their ranks, pairs without a difference say nothing. 1 where nothing
    /// was observed.
    pub(super) fn p(self) -> f64 {
        match self {
            Self::Pairs(differences) => {
                let differing: Vec<f64> = differences
                    .iter()
                    .copied()
                    .filter(|difference| *difference != 0.0)
                    .take(MOST_PAIRS)
                    .collect();
                let sizes: Vec<f64> = differing.iter().map(|d| d.abs()).collect();
                let ranks = doubled_ranks(&sizes);
                let positive = ranks.iter().zip(&differing).filter(|(_, d)| **d > 0.0);
                let seen: usize = positive.map(|(rank, _)| rank).sum();
                two_sided(&distribution(&ranks), seen)
            }
            Self::Groups(baseline, candidate) => {
                let baseline = &baseline[..baseline.len().min(MOST_RUNS)];
                let candidate = &candidate[..candidate.len().min(MOST_RUNS)];
                let all: Vec<f64> = candidate.iter().chain(baseline).copied().collect();
                let ranks = doubled_ranks(&all);
                let seen: usize = ranks[..candidate.len()].iter().sum();
                two_sided(&sums_of(&ranks, candidate.len()), seen)
            }
        }
    }
}

/// The smallest error that bounds can have, of so many pairs: that of all pointing one way.
pub(super) fn smallest_size(pairs: usize) -> f64 {
    2.0 * 0.5_f64.powi(i32::try_from(pairs).unwrap_or(i32::MAX))
}

/// The middle of sorted numbers.
pub(super) fn median(sorted: &[f64]) -> Option<f64> {
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = *sorted.get((sorted.len() / 2).checked_sub(1)?)?;
    Some(lower + (upper - lower) / 2.0)
}

/// The means of all two differences, each with itself too.
fn walsh_averages(differences: &[f64]) -> Vec<f64> {
    let mut averages = Vec::with_capacity(differences.len() * (differences.len() + 1) / 2);
    for (at, a) in differences.iter().enumerate() {
        averages.extend(differences[at..].iter().map(|b| a + (b - a) / 2.0));
    }
    averages
}

/// Twice the rank of each value, so that those of ties (the mean of their places) are whole.
fn doubled_ranks(values: &[f64]) -> Vec<usize> {
    values
        .iter()
        .map(|value| {
            let below = values.iter().filter(|other| *other < value).count();
            let ties = values.iter().filter(|other| *other == value).count();
            2 * below + ties + 1
        })
        .collect()
}

/// How likely each sum is of the ranks whose sign is positive, all signs being fair coins.
fn distribution(ranks: &[usize]) -> Vec<f64> {
    let mut probability = vec![1.0];
    for rank in ranks {
        let mut next = vec![0.0; probability.len() + rank];
        for (sum, share) in probability.iter().enumerate() {
            next[sum] += share / 2.0;
            next[sum + rank] += share / 2.0;
        }
        probability = next;
    }
    probability
}

/// How likely each sum is of `chosen` of the ranks, all choices being equally likely.
fn sums_of(ranks: &[usize], chosen: usize) -> Vec<f64> {
    let highest: usize = ranks.iter().sum();
    // Choices, by how many were chosen of the ranks so far and by their sum.
    let mut choices = vec![vec![0.0; highest + 1]; chosen + 1];
    choices[0][0] = 1.0;
    for (before, rank) in ranks.iter().enumerate() {
        for count in (1..=chosen.min(before + 1)).rev() {
            let (fewer, more) = choices.split_at_mut(count);
            for sum in (*rank..=highest).rev() {
                more[0][sum] += fewer[count - 1][sum - rank];
            }
        }
    }
    let row = choices.swap_remove(chosen);
    let all: f64 = row.iter().sum();
    row.into_iter().map(|count| count / all).collect()
}

/// The probability of a sum as far out as `seen` on either side.
fn two_sided(distribution: &[f64], seen: usize) -> f64 {
    let below: f64 = distribution.iter().take(seen + 1).sum();
    let above: f64 = distribution.iter().skip(seen).sum();
    (2.0 * below.min(above)).min(1.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn close(value: f64, expected: f64) {
        assert!((value - expected).abs() < 1e-9, "{value} is not {expected}");
    }

    /// Darwin's maize, in eighths of an inch: crossed less self-fertilised, 15 pairs.
    const MAIZE: [f64; 15] = [
        49.0, -67.0, 8.0, 16.0, 6.0, 23.0, 28.0, 41.0, 14.0, 29.0, 56.0, 24.0, 75.0, 60.0, -48.0,
    ];

    /// All sums of signs, one by one.
    fn by_enumeration(differences: &[f64]) -> f64 {
        let sizes: Vec<f64> = differences.iter().map(|d| d.abs()).collect();
        let ranks = doubled_ranks(&sizes);
        let seen: usize = ranks
            .iter()
            .zip(differences)
            .filter(|(_, d)| **d > 0.0)
            .map(|(r, _)| r)
            .sum();
        let all = 1_u32 << ranks.len();
        let (mut below, mut above) = (0, 0);
        for signs in 0..all {
            let positive = ranks
                .iter()
                .enumerate()
                .filter(|(at, _)| signs >> at & 1 == 1);
            let sum: usize = positive.map(|(_, rank)| rank).sum();
            below += u32::from(sum <= seen);
            above += u32::from(sum >= seen);
        }
        (2.0 * f64::from(below.min(above)) / f64::from(all)).min(1.0)
    }

    #[test]
    fn signed_ranks_of_darwins_maize_are_as_in_the_books() {
        // The sum of positive ranks is 96, and P(W ≥ 96) is 0.0206.
        let p = Observed::Pairs(&MAIZE).p();
        assert!((p - 0.0413).abs() < 5e-5, "{p}");
        close(p, by_enumeration(&MAIZE));
        let shift = Observed::Pairs(&MAIZE).shift(0.05).unwrap();
        // P(W ≤ 25) is 0.02396 and P(W ≤ 26) is 0.02768: the bounds are the 26th of the 120
        // means from either end; 24.5 and 25.5 are in the middle.
        let bounds = (shift.lower, shift.upper);
        assert_eq!((shift.estimate, bounds), (25.0, (4.0, 41.5)));
        assert!((shift.size - 0.047_91).abs() < 1e-5, "{shift:?}");
    }

    #[test]
    fn ties_share_their_ranks_and_pairs_without_a_difference_say_nothing() {
        assert_eq!(doubled_ranks(&[3.0, 1.0, 3.0, 2.0]), [7, 2, 7, 4]);
        let tied = [2.0, 2.0, -2.0, 5.0, 5.0, -1.0];
        close(Observed::Pairs(&tied).p(), by_enumeration(&tied));
        close(Observed::Pairs(&[2.0, 0.0, 2.0, 0.0]).p(), 0.5);
        close(Observed::Pairs(&[0.0; 8]).p(), 1.0);
        close(Observed::Pairs(&[]).p(), 1.0);
    }

    #[test]
    fn rank_sums_are_counted_over_all_ways_to_deal_the_runs() {
        // 3 of 6 above all others: 1 of the 20 ways, on either side.
        let apart = Observed::Groups(&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0]);
        close(apart.p(), 0.1);
        let shift = apart.shift(0.1).unwrap();
        assert_eq!((shift.estimate, shift.lower, shift.upper), (3.0, 1.0, 5.0));
        close(shift.size, 0.1);
        close(Observed::Groups(&[1.0; 4], &[1.0; 4]).p(), 1.0);
        // U = 25 of 1..=5 and 6..=10 is 1 of 252 ways; U = 24, 1 more.
        close(
            Observed::Groups(&[1.0, 2.0, 3.0, 4.0, 5.0], &[6.0, 7.0, 8.0, 9.0, 10.0]).p(),
            2.0 / 252.0,
        );
        close(
            Observed::Groups(&[1.0, 2.0, 3.0, 4.0, 6.0], &[5.0, 7.0, 8.0, 9.0, 10.0]).p(),
            4.0 / 252.0,
        );
    }

    #[test]
    fn too_few_observations_have_no_bounds() {
        let shift = Observed::Pairs(&[1.0, 2.0, 3.0]).shift(0.05).unwrap();
        assert_eq!(
            (shift.estimate, shift.lower, shift.size),
            (2.0, f64::NEG_INFINITY, 0.0)
        );
        assert_eq!(Observed::Pairs(&[]).shift(0.05), None);
        assert_eq!(Observed::Groups(&[1.0], &[]).shift(0.05), None);
        let one_each = Observed::Groups(&[1.0], &[4.0]).shift(0.05).unwrap();
        assert_eq!((one_each.estimate, one_each.upper), (3.0, f64::INFINITY));
        let unanimous = Observed::Pairs(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
            .shift(0.05)
            .unwrap();
        assert_eq!((unanimous.lower, unanimous.upper), (1.0, 6.0));
        close(unanimous.size, smallest_size(6));
    }

    #[test]
    fn more_observations_than_are_counted_are_no_trouble() {
        let many: Vec<f64> = (0..1000).map(f64::from).collect();
        assert!(Observed::Pairs(&many).shift(0.05).is_some());
        assert!(Observed::Groups(&many, &many).p() > 0.9);
    }

    proptest! {
        #[test]
        fn bounds_hold_the_estimate_and_move_with_the_data(
            differences in prop::collection::vec(-1e3..1e3_f64, 6..30),
            by in -1e3..1e3_f64,
        ) {
            let shift = Observed::Pairs(&differences).shift(0.05).unwrap();
            prop_assert!(shift.lower <= shift.estimate && shift.estimate <= shift.upper);
            prop_assert!(shift.size <= 0.05 + 1e-12);
            let moved: Vec<f64> = differences.iter().map(|d| d + by).collect();
            let moved = Observed::Pairs(&moved).shift(0.05).unwrap();
            prop_assert!((moved.lower - shift.lower - by).abs() < 1e-6);
            let negated: Vec<f64> = differences.iter().map(|d| -d).collect();
            let negated = Observed::Pairs(&negated).shift(0.05).unwrap();
            prop_assert!((negated.upper + shift.lower).abs() < 1e-9);
        }

        #[test]
        fn the_order_of_observations_does_not_matter(
            mut differences in prop::collection::vec(-5..5_i32, 1..20),
        ) {
            let as_numbers = |d: &[i32]| d.iter().map(|d| f64::from(*d)).collect::<Vec<_>>();
            let before = as_numbers(&differences);
            differences.sort_unstable();
            let after = as_numbers(&differences);
            prop_assert_eq!(Observed::Pairs(&before).shift(0.05), Observed::Pairs(&after).shift(0.05));
            prop_assert!((Observed::Pairs(&before).p() - Observed::Pairs(&after).p()).abs() < 1e-12);
        }

        #[test]
        fn p_is_that_of_trying_all_signs(differences in prop::collection::vec(-4..5_i32, 1..10)) {
            let differing: Vec<f64> = differences.iter().filter(|d| **d != 0).map(|d| f64::from(*d)).collect();
            let all: Vec<f64> = differences.iter().map(|d| f64::from(*d)).collect();
            let expected = if differing.is_empty() { 1.0 } else { by_enumeration(&differing) };
            prop_assert!((Observed::Pairs(&all).p() - expected).abs() < 1e-12);
        }
    }
}
