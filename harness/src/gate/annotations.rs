//! GitHub's annotations: a report as workflow commands, which show at the lines of a diff.
//!
//! A workflow command is a line of a job's log that begins with `::`. So nothing that a
//! run says may begin one, end one early, or change its properties.

use std::fmt::Write as _;

use super::remarks::{self, Remark, Weight};
use super::{Report, Root};
use crate::diff::plain;
use crate::verdict::words;

/// Annotations of a kind that GitHub shows of one step.
const AT_MOST: usize = 10;
/// Characters of a message; GitHub cuts what is much longer.
const LONGEST: usize = 1500;

/// One command before it is written.
struct Annotation {
    place: Option<(String, u32)>,
    title: String,
    message: String,
}

/// The commands, each on a line of its own; of each kind at most ten, the rest counted.
pub(super) fn show(report: &Report, root: &Root) -> String {
    let remarks = remarks::of(report);
    let of = |weight: &[Weight]| -> Vec<Annotation> {
        let of = remarks
            .iter()
            .filter(|remark| weight.contains(&remark.weight));
        of.map(|remark| annotation(remark, root)).collect()
    };
    let missing = report.scenarios.iter().flat_map(|scenario| {
        scenario.missing.iter().map(|missing| Annotation {
            place: None,
            title: format!("Not judged to the end: {}", scenario.name),
            message: missing.clone(),
        })
    });
    let mut out = String::new();
    write_all(&mut out, "error", of(&[Weight::Stops]));
    write_all(&mut out, "warning", missing.collect());
    write_all(&mut out, "notice", of(&[Weight::Known, Weight::LetThrough]));
    out
}

fn annotation(remark: &Remark<'_>, root: &Root) -> Annotation {
    let mut message = remark.sentence.clone();
    if let Some(status) = remark.status {
        let _ = write!(message, " ({})", status.words());
    }
    if let Some(because) = remark.because {
        let _ = write!(message, ": {because}");
    }
    let first = remark.lines.first();
    let path = first.and_then(|line| Some((root.path_of(line)?, line.line)));
    if let (None, Some(line)) = (&path, first) {
        let _ = write!(message, "; at {}", root.shown(line));
    }
    Annotation {
        place: path,
        title: format!("{} in {}", remark.rule, remark.scenario),
        message,
    }
}

fn write_all(out: &mut String, kind: &str, all: Vec<Annotation>) {
    let shown = match all.len() {
        many if many > AT_MOST => AT_MOST - 1,
        few => few,
    };
    for annotation in &all[..shown] {
        let mut properties = Vec::new();
        if let Some((file, line)) = &annotation.place {
            properties.push(format!("file={}", property(file)));
            properties.push(format!("line={line}"));
        }
        properties.push(format!("title={}", property(&annotation.title)));
        let _ = writeln!(
            out,
            "::{kind} {}::{}",
            properties.join(","),
            data(&annotation.message)
        );
    }
    if let Some(rest) = all.len().checked_sub(shown).filter(|rest| *rest > 0) {
        let more = words::many(rest, "more");
        let more = more.trim_end_matches('s');
        let _ = writeln!(
            out,
            "::{kind} title=Tidegate::{more} of these are in the job's summary"
        );
    }
}

/// A message as data of a command: one line, whatever is in it.
fn data(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in plain(text).chars().take(LONGEST) {
        match c {
            '%' => out.push_str("%25"),
            '\r' => out.push_str("%0D"),
            '\n' => out.push_str("%0A"),
            c => out.push(c),
        }
    }
    out
}

/// A text as a property's value.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

/// Lines for a log in which GitHub looks for commands, without any that are meant.
///
/// `token` ends what must not be read; it is to be one that nobody can guess.
pub(super) fn quoted(text: &str, token: &str) -> String {
    let end = match text.ends_with('\n') {
        true => "",
        false => "\n",
    };
    format!("::stop-commands::{token}\n{text}{end}::{token}::\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_end_a_command_or_a_property_is_escaped() {
        assert_eq!(
            data("50 % of\r\nall: a, b"),
            "50 %25 of\u{fffd}\u{fffd}all: a, b"
        );
        assert_eq!(property("a::b,line=3%0A"), "a%3A%3Ab%2Cline=3%250A");
        // Of what is left after that, no line can begin anew.
        let hostile = "x\n::error::y\u{2028}::z\u{85}::w\u{202e}";
        let told = data(hostile);
        assert_eq!(told.lines().count(), 1);
        assert!(
            !told.contains(['\n', '\r', '\u{2028}', '\u{85}', '\u{202e}']),
            "{told:?}"
        );
    }

    #[test]
    fn of_a_kind_ten_are_written_and_the_rest_is_counted() {
        let all = |number: usize| {
            let one = |at| Annotation {
                place: Some(("src/lib.rs".into(), at)),
                title: "leak in a".into(),
                message: "kept".into(),
            };
            let mut out = String::new();
            write_all(&mut out, "error", (1..=number as u32).map(one).collect());
            out
        };
        assert_eq!(all(10).lines().count(), 10);
        let many = all(1234);
        assert_eq!(many.lines().count(), 10);
        assert_eq!(
            many.lines().next(),
            Some("::error file=src/lib.rs,line=1,title=leak in a::kept")
        );
        assert_eq!(
            many.lines().last(),
            Some("::error title=Tidegate::1,225 more of these are in the job's summary")
        );
    }
}
