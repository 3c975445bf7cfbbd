//! The survivors, by the round that bore them: a table whose cells are shaded by how much
//! is left. The number is in each cell, so that the shade is never the only sign.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::table::{lacking, scrolling};
use super::text::{Said, Unit};
use crate::books::{Amount, Books, Layer};
use crate::explain::{Explanation, Site};
use crate::verdict::words::{amount, count, grouped};

/// Columns at most: of more rounds, neighbours share one.
const COLUMNS: u64 = 16;
/// Rows at most; the others are summed.
const ROWS: usize = 15;
/// Shades from the smallest to the largest.
const SHADES: f64 = 5.0;

/// What one place left behind.
struct Row {
    name: String,
    /// Where that is, in small letters.
    place: String,
    unit: Unit,
    left: BTreeMap<u32, Amount>,
}

impl Row {
    fn total(&self) -> i64 {
        self.left
            .values()
            .map(|amount| value(self.unit, *amount))
            .fold(0, i64::saturating_add)
    }
}

fn value(unit: Unit, amount: Amount) -> i64 {
    match unit {
        Unit::Bytes => amount.bytes,
        Unit::Things => amount.blocks,
    }
}

/// The survivors of a run by phase and layer, and those of its second run by site.
pub(super) fn survivors(id: &str, books: &Books, explanation: Option<&Explanation>) -> Markup {
    html! {
        @match explanation {
            Some(explanation) if !explanation.sites.is_empty() => {
                (by_site(id, explanation))
                (by_place(id, books))
            }
            Some(_) => {
                (lacking("The second run found no site that kept anything: survivors by phase and layer only."))
                (by_place(id, books))
            }
            None => {
                (lacking("This run has no call stacks, so that survivors are told by phase and layer, not by line. cargo tidegate explain takes stacks."))
                (by_place(id, books))
            }
        }
    }
}

fn by_place(id: &str, books: &Books) -> Markup {
    let mut rows: BTreeMap<(Layer, &str), BTreeMap<u32, Amount>> = BTreeMap::new();
    for left in &books.survivors {
        let row = rows.entry((left.layer, &left.phase)).or_default();
        *row.entry(left.round).or_default() += left.left;
    }
    if rows.is_empty() {
        return lacking(if books.gauges_only {
            "There was no ledger, so that it is not known what survived."
        } else if books.health.attached {
            "Nothing was alive at the end."
        } else {
            "The program never reported to the ledger, so that it is not known what survived."
        });
    }
    let rows = rows.into_iter().map(|((layer, phase), left)| Row {
        name: phase.to_owned(),
        place: layer.name().to_owned(),
        unit: if layer.is_counted() {
            Unit::Things
        } else {
            Unit::Bytes
        },
        left,
    });
    let caption = "What is left at the end, by the round that allocated it: phase and layer";
    heat_map(
        &format!("{id}-by-phase"),
        caption,
        "phase and layer",
        rows.collect(),
        rounds_of(books),
    )
}

fn rounds_of(books: &Books) -> u32 {
    u32::try_from(books.rounds.len()).unwrap_or(u32::MAX)
}

fn by_site(id: &str, explanation: &Explanation) -> Markup {
    let row = |site: &Site| {
        let mut left = BTreeMap::new();
        for born in &site.left {
            *left.entry(born.round).or_default() += born.amount;
        }
        let (name, place) = site_in_words(site);
        Row {
            name,
            place,
            unit: Unit::Bytes,
            left,
        }
    };
    let rows: Vec<Row> = explanation.sites.iter().map(row).collect();
    let more = explanation.sites_exist.saturating_sub(rows.len() as u64);
    let caption = format!(
        "What is left at the end of the second run, by the round that allocated it: call site{}",
        match more {
            0 => String::new(),
            more => format!(
                ". {} more are not stored with the run; all are in its folder explain",
                count(i64::try_from(more).unwrap_or(i64::MAX), "site")
            ),
        }
    );
    heat_map(
        &format!("{id}-by-site"),
        &caption,
        "call site",
        rows,
        explanation.rounds,
    )
}

/// The function that a site is named by, and its place in the source.
pub(super) fn site_in_words(site: &Site) -> (String, String) {
    let frame = site.line().or_else(|| site.frames_of_interest().first());
    let name = frame.map_or_else(|| site.site.clone(), |frame| frame.function.clone());
    let place = frame.and_then(crate::explain::Frame::place);
    let place = place.or_else(|| frame.map(|frame| format!("in {}", frame.object)));
    (
        name,
        format!(
            "{} · {} · {}",
            place.unwrap_or_default(),
            site.phase,
            site.layer
        ),
    )
}

fn heat_map(id: &str, caption: &str, what: &str, mut rows: Vec<Row>, rounds: u32) -> Markup {
    rows.sort_by_key(|row| (row.unit == Unit::Things, std::cmp::Reverse(row.total())));
    let last = rows
        .iter()
        .filter_map(|row| row.left.keys().next_back())
        .max()
        .copied();
    let columns = Columns::new(last.unwrap_or(0).max(rounds));
    let rest = rows.split_off(rows.len().min(ROWS));
    for unit in [Unit::Bytes, Unit::Things] {
        let of_unit = || rest.iter().filter(|row| row.unit == unit);
        if let Some(others) = Some(of_unit().count()).filter(|others| *others > 0) {
            let mut left = BTreeMap::<u32, Amount>::new();
            for (round, amount) in of_unit().flat_map(|row| &row.left) {
                *left.entry(*round).or_default() += *amount;
            }
            let name = format!("{} others together", grouped(others as i64));
            rows.push(Row {
                name,
                place: String::new(),
                unit,
                left,
            });
        }
    }
    let cells: Vec<Vec<Amount>> = rows.iter().map(|row| columns.of(&row.left)).collect();
    let ends = |unit: Unit| {
        let of_unit = rows.iter().zip(&cells).filter(|(row, _)| row.unit == unit);
        let values = of_unit
            .flat_map(|(_, cells)| cells)
            .map(|cell| value(unit, *cell));
        let values: Vec<i64> = values.filter(|value| *value > 0).collect();
        (
            values.iter().min().copied().unwrap_or(1),
            values.iter().max().copied().unwrap_or(1),
        )
    };
    let (bytes, things) = (ends(Unit::Bytes), ends(Unit::Things));
    html! {
        figure.heat-figure data-heat="" {
            (scrolling(caption, html! {
                table.heat id=(id) {
                    caption { span { (Said(caption)) ". The stronger the shade, the more is left, on a logarithmic scale." } }
                    thead { tr {
                        th scope="col" { (what) }
                        @for name in columns.names() { th scope="col" { (name) } }
                        th.n scope="col" { "all" }
                    } }
                    tbody { @for (row, cells) in rows.iter().zip(&cells) { tr {
                        th scope="row" {
                            span.what { (Said(&row.name)) }
                            @if !row.place.is_empty() { span.where { (Said(&row.place)) } }
                        }
                        @for cell in cells {
                            @let (least, most) = if row.unit == Unit::Bytes { bytes } else { things };
                            (cell_of(row.unit, *cell, least, most))
                        }
                        td.n.sum { (row.unit.short(row.total())) }
                    } } }
                }
            }))
            output.told {}
        }
    }
}

fn cell_of(unit: Unit, cell: Amount, least: i64, most: i64) -> Markup {
    let number = value(unit, cell);
    let exactly = match unit {
        Unit::Bytes => amount(cell),
        Unit::Things => grouped(number),
    };
    html! {
        td class=(format!("n h{}", shade(number, least, most))) data-said=(exactly) { (unit.short(number)) }
    }
}

/// 0 for nothing, else from 1 to 5 by the number's logarithm.
fn shade(number: i64, least: i64, most: i64) -> u32 {
    if number <= 0 {
        return 0;
    }
    let (number, least, most) = (number as f64, least.max(1) as f64, most.max(1) as f64);
    if most <= least {
        return 3;
    }
    let share = (number / least).ln() / (most / least).ln();
    (1.0 + (share * (SHADES - 1.0)).round()).clamp(1.0, SHADES) as u32
}

/// What rounds stand in which column: 0 in one of its own, then as many each as it takes.
struct Columns {
    each: u64,
    rounds: u64,
}

impl Columns {
    fn new(rounds: u32) -> Self {
        let rounds = u64::from(rounds);
        Self {
            each: rounds.div_ceil(COLUMNS).max(1),
            rounds,
        }
    }

    fn count(&self) -> usize {
        1 + self.rounds.div_ceil(self.each) as usize
    }

    fn names(&self) -> Vec<String> {
        let of = |column: u64| match (
            (column - 1) * self.each + 1,
            (column * self.each).min(self.rounds),
        ) {
            (from, to) if from >= to => to.to_string(),
            (from, to) => format!("{from}–{to}"),
        };
        let rounds = (1..self.count() as u64).map(of);
        std::iter::once("before".to_owned()).chain(rounds).collect()
    }

    fn of(&self, left: &BTreeMap<u32, Amount>) -> Vec<Amount> {
        let mut cells = vec![Amount::ZERO; self.count()];
        for (round, amount) in left {
            let column = u64::from(*round).div_ceil(self.each) as usize;
            if let Some(cell) = cells.get_mut(column) {
                *cell += *amount;
            }
        }
        cells
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_has_its_column_and_many_share_them() {
        let few = Columns::new(3);
        assert_eq!(few.names(), ["before", "1", "2", "3"]);
        let many = Columns::new(40);
        assert_eq!(many.names()[..3], ["before", "1–3", "4–6"]);
        assert_eq!(many.names().last().unwrap(), "40");
        let left = [0, 1, 3, 4, 40]
            .map(|round| (round, Amount::new(1, 1)))
            .into();
        let cells = many.of(&left);
        assert_eq!((cells[0].bytes, cells[1].bytes, cells[2].bytes), (1, 2, 1));
        assert_eq!(cells.last().unwrap().bytes, 1);
        assert_eq!(Columns::new(u32::MAX).count() as u64, COLUMNS + 1);
        assert_eq!(Columns::new(0).names(), ["before"]);
    }

    #[test]
    fn a_shade_tells_more_from_less() {
        assert_eq!(shade(0, 1, 1000), 0);
        assert_eq!(
            [1, 30, 1000].map(|number| shade(number, 1, 1000)),
            [1, 3, 5]
        );
        assert_eq!(shade(7, 7, 7), 3, "all alike are neither little nor much");
    }

    #[test]
    fn what_has_no_row_is_in_the_sum_of_the_others() {
        let row = |n: i64| Row {
            name: format!("site {n}"),
            place: String::new(),
            unit: Unit::Bytes,
            left: [(1, Amount::new(n, 1))].into(),
        };
        let html = heat_map("h", "c", "site", (1..=10_000).map(row).collect(), 4).into_string();
        assert!(html.contains("9,985 others together"), "{html}");
        let sum = (1..=9_985_i64).sum::<i64>();
        assert!(html.contains(&amount(Amount::new(sum, 9_985))), "{html}");
        assert!(html.len() < 20_000);
    }
}
