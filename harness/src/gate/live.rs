//! How much was alive after each round, for a small plot.

use schemars::JsonSchema;
use serde::Serialize;

use crate::books::{Books, Layer};

/// Steps of a plot, of the height of a line of text.
const STEPS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Columns of a plot at most.
const COLUMNS: usize = 60;

/// What one layer held after each round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Live {
    /// The layer.
    pub layer: Layer,
    /// Alive after each round had settled, warm-up included: bytes, or things where the
    /// layer counts things.
    pub after_rounds: Vec<i64>,
}

/// What a run's layers held, those aside that never held anything.
pub(super) fn of(books: &Books) -> Vec<Live> {
    let mut layers: Vec<Layer> = books.series.iter().map(|series| series.layer).collect();
    layers.sort_unstable();
    layers.dedup();
    let of = |layer: Layer| {
        let series = || books.series.iter().filter(move |one| one.layer == layer);
        let at = |round: usize| {
            let live = series().filter_map(move |series| series.live.get(round));
            live.fold(0_i64, |sum, amount| {
                sum.saturating_add(match layer.is_counted() {
                    true => amount.blocks,
                    false => amount.bytes,
                })
            })
        };
        Live {
            layer,
            after_rounds: (0..books.rounds.len()).map(at).collect(),
        }
    };
    let all = layers.into_iter().map(of);
    all.filter(|live| live.after_rounds.iter().any(|value| *value != 0))
        .collect()
}

impl Live {
    /// The values as a line of text, from the lowest to the highest of them: where there are
    /// many rounds, a column is the highest of several.
    pub(super) fn plot(&self) -> String {
        let values = &self.after_rounds;
        let each = values.len().div_ceil(COLUMNS).max(1);
        let columns = values.chunks(each).filter_map(|chunk| chunk.iter().max());
        let columns: Vec<i64> = columns.copied().collect();
        let lowest = columns.iter().min().copied().unwrap_or_default();
        let highest = columns.iter().max().copied().unwrap_or_default();
        let range = highest.abs_diff(lowest).max(1) as f64;
        let step = |value: i64| {
            let part = value.abs_diff(lowest) as f64 / range;
            let step = (part * (STEPS.len() - 1) as f64).round() as usize;
            STEPS[step.min(STEPS.len() - 1)]
        };
        columns.into_iter().map(step).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(values: &[i64]) -> String {
        let live = Live {
            layer: Layer::RustHeap,
            after_rounds: values.to_vec(),
        };
        live.plot()
    }

    #[test]
    fn a_plot_goes_from_the_lowest_to_the_highest_value() {
        assert_eq!(plot(&[0, 1, 2, 3, 4, 5, 6, 7]), "▁▂▃▄▅▆▇█");
        assert_eq!(plot(&[5, 5, 5]), "▁▁▁");
        assert_eq!(plot(&[]), "");
        assert_eq!(plot(&[i64::MIN, 0, i64::MAX]), "▁▅█");
    }

    #[test]
    fn many_rounds_are_a_line_all_the_same_and_a_spike_shows() {
        let mut values = vec![1; 10_000];
        values[4321] = 9;
        let plot = plot(&values);
        assert!(plot.chars().count() <= COLUMNS);
        assert_eq!(plot.matches('█').count(), 1, "{plot}");
    }
}
