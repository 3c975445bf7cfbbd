//! Tables: those of the terminal as HTML, and the boxes that wide ones scroll in.

use maud::{Markup, html};

use super::text::Said;

/// A table of the terminal's report. Its first column names the rows; those after the first
/// `words` columns hold numbers.
pub(super) fn of_terminal(table: &comfy_table::Table, caption: &str, words: usize) -> Markup {
    let header: Vec<String> = table
        .header()
        .map(|row| row.cell_iter().map(comfy_table::Cell::content).collect())
        .unwrap_or_default();
    let class = |column: usize| (column >= words).then_some("n");
    scrolling(
        caption,
        html! {
            table {
                caption { span { (caption) } }
                thead { tr {
                    @for (column, name) in header.iter().enumerate() {
                        @if name.is_empty() { td {} } @else {
                            th scope="col" class=[class(column)] { (Said(name)) }
                        }
                    }
                } }
                tbody { @for row in table.row_iter() { tr {
                    @for (column, cell) in row.cell_iter().enumerate() {
                        @let text = cell.content();
                        @if column == 0 { th scope="row" { (Said(&text)) } }
                        @else { td class=[class(column)] { (Said(&text)) } }
                    }
                } } }
            }
        },
    )
}

/// The table of a plot's points (`content` is its head and body), which the page's script
/// walks along.
pub(super) fn of_points(name: &str, content: Markup) -> Markup {
    scrolling(
        name,
        html! {
            table data-points="" {
                caption { span { (name) } }
                (content)
            }
        },
    )
}

/// A box that scrolls sideways where its content is wider than the page, by keyboard too.
pub(super) fn scrolling(label: &str, content: Markup) -> Markup {
    html! { div.scroll tabindex="0" role="group" aria-label=(format!("{label}, scrolls sideways")) { (content) } }
}

/// What stands in the place of something that an input lacks.
pub(super) fn lacking(text: &str) -> Markup {
    html! { p.lacking { span.sign aria-hidden="true" { "–" } " " (Said(text)) } }
}

/// A bar of so many percent, in a table's cell beside its number.
pub(super) fn bar(from: f64, to: f64, class: &str) -> Markup {
    use super::text::place;
    let (from, to) = (
        from.min(to).clamp(0.0, 100.0),
        from.max(to).clamp(0.0, 100.0),
    );
    html! {
        svg.bar width="100%" height="10" aria-hidden="true" focusable="false" {
            rect.track width="100%" height="10" {}
            rect class=(class) x=(place(from) + "%") width=(place((to - from).max(0.4)) + "%") height="10" {}
        }
    }
}
