//! When the pairs are looked at, and how much of the error each look may spend.
//!
//! Looking again and again at growing data and stopping at the first difference finds
//! differences where there are none. So the error is a budget that is spent look by look
//! (Slud and Wei, JASA 77, 1982; Lan and DeMets, Biometrika 70, 1983), and the bounds of
//! all looks together miss the truth with at most that probability: they are repeated
//! confidence intervals (Jennison and Turnbull, Controlled Clinical Trials 5, 1984).
//! What one look spends is taken off the next ones by the inequality of Bonferroni,
//! not by the looks' joint distribution: that costs some pairs more, and holds whatever
//! the noise is like.

use super::ranks::smallest_size;

/// The first look: with fewer pairs, not even all of them pointing one way say anything at
/// an error of 5 %.
pub(super) const FIRST: usize = 6;
/// The share of the error that is there for the first look: 3.125 % of 5 %, which is the
/// probability of six pairs all pointing one way.
const FIRST_SHARE: f64 = 0.625;

/// One look.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Look {
    /// After so many pairs.
    pub(super) pairs: usize,
    /// The error that may have been spent once it is done.
    pub(super) budget: f64,
}

/// The looks of a comparison that makes so many pairs at most: each at half as many pairs
/// again as the one before.
pub(super) fn looks(at_most: usize, error: f64) -> Vec<Look> {
    let mut pairs = vec![FIRST.min(at_most)];
    while let Some(last) = pairs.last().copied().filter(|last| *last < at_most) {
        pairs.push((last + last.div_ceil(2)).min(at_most));
    }
    let later = pairs.len() - 1;
    let budget = |look: usize| match later {
        0 => error,
        _ => error * (FIRST_SHARE + (1.0 - FIRST_SHARE) * look as f64 / later as f64),
    };
    let pairs = pairs.into_iter().enumerate();
    pairs
        .map(|(look, pairs)| Look {
            pairs,
            budget: budget(look),
        })
        .collect()
}

/// The fewest pairs from which anything can be said at this error.
pub(super) fn fewest(error: f64) -> usize {
    (1..=64)
        .find(|pairs| smallest_size(*pairs) <= error)
        .unwrap_or(64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_looks_end_at_the_bound_and_spend_all_of_the_error() {
        for at_most in 1..=100 {
            let looks = looks(at_most, 0.05);
            let last = looks.last().unwrap();
            assert_eq!(last.pairs, at_most);
            assert!((last.budget - 0.05).abs() < 1e-12);
            let grows =
                |pair: &[Look]| pair[0].pairs < pair[1].pairs && pair[0].budget < pair[1].budget;
            assert!(looks.windows(2).all(grows), "{looks:?}");
        }
        let pairs: Vec<usize> = looks(20, 0.05).iter().map(|look| look.pairs).collect();
        assert_eq!(pairs, [6, 9, 14, 20]);
    }

    #[test]
    fn six_pairs_that_all_point_one_way_may_end_it() {
        assert_eq!(fewest(0.05), FIRST);
        assert!(smallest_size(FIRST) <= looks(20, 0.05)[0].budget + 1e-12);
        assert!(smallest_size(FIRST - 1) > 0.05);
    }
}
