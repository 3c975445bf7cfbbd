//! The flame graph of what was left: from the layer and phase down to the line that
//! allocates, each as wide as what it holds.
//!
//! inferno's SVG, which `explain` writes, brings a script and event handlers of its own. This
//! one has none: frames are boxes placed by percent, so that text keeps its size, the figure
//! bends to the page, and the page's policy needs no exception.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};
use std::path::PathBuf;

use maud::{Markup, html};

use super::plot::walk;
use super::table::{lacking, of_points};
use super::text::{Said, Unit, place, share};
use crate::explain::{Explanation, Frame, FrameKind, Site};
use crate::run::Run;
use crate::verdict::words::{count, size};

/// Frames at most, the widest first.
const FRAMES: usize = 400;
/// Frames of one stack at most, from the outside.
const DEEP: usize = 48;
/// What is narrower than this share is not drawn.
const NARROW: f64 = 0.002;
/// Height of a frame, in pixels.
const HIGH: usize = 19;

/// A frame with all that was called from it.
#[derive(Default)]
struct Node {
    name: String,
    place: String,
    yours: bool,
    bytes: i64,
    /// By name and place.
    below: BTreeMap<(String, String), Node>,
}

/// A frame as it is drawn.
struct Drawn<'a> {
    node: &'a Node,
    depth: usize,
    from: f64,
    wide: f64,
}

/// The flame graph of a run's second run.
pub(super) fn graph(id: &str, run: &Run) -> Markup {
    let Some(explanation) = run.explanation() else {
        return lacking("This run has no call stacks, so that there is no flame graph.");
    };
    let root = tree(explanation);
    if root.bytes <= 0 {
        return lacking("No call site grew, so that there is nothing to draw.");
    }
    let mut drawn = Vec::new();
    lay(&root, 0, 0.0, 1.0, &mut drawn);
    let all = frames_of(&root);
    drawn.sort_by(|a, b| b.wide.total_cmp(&a.wide).then(a.depth.cmp(&b.depth)));
    drawn.truncate(FRAMES);
    drawn.sort_by(|a, b| a.depth.cmp(&b.depth).then(a.from.total_cmp(&b.from)));
    let deep = drawn.last().map_or(0, |frame| frame.depth) + 1;
    let title = format!("Flame graph of the {} that are left", size(root.bytes));
    html! {
        figure.plot.flame data-walk="" id=(id) {
            figcaption {
                "Where what is left was allocated, over the measured rounds of the second run: each box is as \
                 wide as what it holds, and calls the boxes below it. Bold: your own code. "
                (left_out(run, explanation, root.bytes, all - drawn.len()))
            }
            svg role="img" aria-labelledby=(format!("{id}-title")) width="100%" height=(deep * HIGH) {
                title id=(format!("{id}-title")) { (title) }
                @for (number, frame) in drawn.iter().enumerate() {
                    svg.frame.yours[frame.node.yours] data-i=(number)
                        x=(place(frame.from * 100.0) + "%") width=(place(frame.wide * 100.0) + "%")
                        y=(frame.depth * HIGH) height=(HIGH - 1) {
                        rect width="100%" height="100%" {}
                        @if frame.wide > 0.02 { text x="4" y="13" { (Said(&frame.node.name)) } }
                    }
                }
            }
            (walk(id, "frame", drawn.len()))
            details {
                summary { "All " (drawn.len()) " boxes as a table" }
                (boxes(&drawn, root.bytes))
            }
        }
    }
}

fn boxes(drawn: &[Drawn<'_>], all: i64) -> Markup {
    let name = "Every box of the flame graph";
    of_points(
        name,
        html! {
            thead { tr {
                th scope="col" { "frame" }
                th.n scope="col" { "depth" }
                th.n scope="col" { "bytes" }
                th.n scope="col" { "of all" }
                th scope="col" { "place" }
            } }
            tbody { @for frame in drawn { tr {
                th scope="row" { (Said(&frame.node.name)) }
                td.n { (frame.depth) }
                td.n { (Unit::Bytes.short(frame.node.bytes)) }
                td.n { (share(frame.node.bytes as f64, all as f64)) }
                td { (Said(&frame.node.place)) }
            } } }
        },
    )
}

fn left_out(run: &Run, explanation: &Explanation, drawn: i64, narrow: usize) -> String {
    let mut text = String::new();
    let more = explanation
        .sites_exist
        .saturating_sub(explanation.sites.len() as u64);
    if more > 0 {
        let more = count(i64::try_from(more).unwrap_or(i64::MAX), "smaller site");
        text = match of_all_sites(run) {
            Some(all) => format!(
                "{more} of together {} are not drawn. ",
                size(all.saturating_sub(drawn))
            ),
            None => {
                format!("{more} are not drawn; how much they hold is not stored with the run. ")
            }
        };
    }
    if narrow > 0 {
        text.push_str(&format!(
            "{} too narrow or too deep to draw. ",
            count(narrow as i64, "frame")
        ));
    }
    text
}

/// What all sites grew by, from the exported stacks in the run's folder.
fn of_all_sites(run: &Run) -> Option<i64> {
    /// More than this is not one of ours.
    const MOST: u64 = 256 << 20;
    let mut exports: std::vec::IntoIter<PathBuf> = run.exports().into_iter();
    let file = exports.find(|file| file.ends_with("left.folded"))?;
    let mut lines = BufReader::new(File::open(file).ok()?.take(MOST)).lines();
    lines.try_fold(0_i64, |sum, line| {
        let line = line.ok()?;
        let (_, value) = line.rsplit_once(' ')?;
        Some(sum.saturating_add(value.parse().ok()?))
    })
}

fn tree(explanation: &Explanation) -> Node {
    let mut root = Node {
        name: "all".to_owned(),
        ..Node::default()
    };
    for site in explanation.sites.iter().filter(|site| site.grown.bytes > 0) {
        root.bytes = root.bytes.saturating_add(site.grown.bytes);
        let mut at = &mut root;
        for step in steps(site) {
            let key = (step.name.clone(), step.place.clone());
            at = at.below.entry(key).or_insert(step);
            at.bytes = at.bytes.saturating_add(site.grown.bytes);
        }
    }
    root
}

/// From the outside in: the layer, the phase, then the stack.
fn steps(site: &Site) -> impl Iterator<Item = Node> {
    let named = |name: &str| Node {
        name: name.to_owned(),
        ..Node::default()
    };
    let frame = |frame: &Frame| Node {
        name: frame.function.clone(),
        place: frame
            .place()
            .unwrap_or_else(|| format!("in {}", frame.object)),
        yours: frame.kind == FrameKind::Yours,
        ..Node::default()
    };
    let outer = [named(site.layer.name()), named(&site.phase)];
    outer
        .into_iter()
        .chain(site.frames_of_workload().iter().rev().map(frame))
        .take(DEEP)
}

fn lay<'a>(node: &'a Node, depth: usize, from: f64, wide: f64, drawn: &mut Vec<Drawn<'a>>) {
    if wide < NARROW {
        return;
    }
    drawn.push(Drawn {
        node,
        depth,
        from,
        wide,
    });
    let mut below: Vec<&Node> = node.below.values().collect();
    below.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.name.cmp(&b.name)));
    let mut at = from;
    for child in below {
        let share = wide * child.bytes as f64 / node.bytes as f64;
        lay(child, depth + 1, at, share, drawn);
        at += share;
    }
}

fn frames_of(node: &Node) -> usize {
    1 + node.below.values().map(frames_of).sum::<usize>()
}
