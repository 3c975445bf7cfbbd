//! Frames, and whose they are.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One frame of a stack.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Frame {
    /// The function, demangled; the address where no name is known.
    pub function: String,
    /// The source file, if the debug information names one.
    pub file: Option<String>,
    /// The line of the call, or of the allocation.
    pub line: Option<u32>,
    /// The column there.
    pub column: Option<u32>,
    /// Whether the function was inlined into the next frame's.
    pub inlined: bool,
    /// The file name of the object that the code was in.
    pub object: String,
    /// Whose code it is.
    pub kind: FrameKind,
    /// The line of source, where the file is here and still the same length.
    pub source: Option<String>,
}

/// Whose code a frame is.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum FrameKind {
    /// Yours: its source is neither a library's nor the system's.
    Yours,
    /// A crate from a registry or a repository.
    Library,
    /// Rust's or C++'s standard library.
    Std,
    /// The way to the allocator: `malloc`, `operator new`, `__rust_alloc`, the hook.
    Plumbing,
    /// Code without a known source: the C library, an object without debug information.
    System,
    /// Tidegate's own, around the workload.
    Harness,
}

/// What names of the standard library begin with.
pub(super) const STD: [&str; 4] = ["std::", "core::", "alloc::", "test::"];

/// What whose-ness is read from.
pub(super) struct Clue<'a> {
    pub function: &'a str,
    pub file: Option<&'a str>,
}

/// Whose code a function is, as far as it alone tells.
pub(super) fn kind_of(clue: &Clue<'_>) -> FrameKind {
    let file = clue.file.unwrap_or_default();
    if is_allocator(clue.function) || is_under(file, tidegate_hook::SOURCE_FOLDER) {
        return FrameKind::Plumbing;
    }
    if is_under(file, env!("CARGO_MANIFEST_DIR")) || starts_in(clue.function, &["tidegate::"]) {
        return FrameKind::Harness;
    }
    let names_std = starts_in(clue.function, &STD);
    let in_std = file.contains("/rustc/") && file.contains("/library/")
        || file.contains("/rustlib/src/rust/library/")
        || file.contains("/include/c++/")
        || file.starts_with("/usr/include/");
    if in_std || (file.is_empty() && names_std) {
        return FrameKind::Std;
    }
    if file.contains("/registry/src/") || file.contains("/git/checkouts/") {
        return FrameKind::Library;
    }
    if file.is_empty() || file.starts_with("./") || file.starts_with("../") {
        // Distributions build the C library with such paths.
        return FrameKind::System;
    }
    FrameKind::Yours
}

/// Whether a source file is one of the crate in this folder.
fn is_under(file: &str, folder: &str) -> bool {
    file.strip_prefix(folder)
        .is_some_and(|rest| rest.starts_with("/src/"))
}

/// Whether a demangled name begins with one of these, also as `<std::…`.
pub(super) fn starts_in(function: &str, roots: &[&str]) -> bool {
    let name = function.trim_start_matches(['<', '&', '*']);
    let name = name.strip_prefix("dyn ").unwrap_or(name);
    roots.iter().any(|root| name.starts_with(root))
}

fn is_allocator(function: &str) -> bool {
    const NAMES: [&str; 12] = [
        "malloc",
        "calloc",
        "realloc",
        "reallocarray",
        "memalign",
        "aligned_alloc",
        "posix_memalign",
        "valloc",
        "pvalloc",
        "cfree",
        "free",
        "exchange_malloc",
    ];
    let bare = function.split("::<").next().unwrap_or(function);
    NAMES.contains(&bare)
        || function.starts_with("operator new")
        || (function.starts_with("__libc_") && function.ends_with("alloc"))
        || function.contains("__rust_alloc")
        || function.contains("__rust_realloc")
        || function.contains("__rust_no_alloc")
        || starts_in(
            function,
            &["tidegate_hook::", "alloc::alloc::", "alloc::raw_vec::"],
        )
}

/// Settles what only a frame's neighbours tell. The hook's own frames are left
/// out, but for the function that the program called; all that lies inside of the
/// outermost allocator frame is plumbing, whatever it is called.
pub(super) fn settle(frames: &mut Vec<Frame>) {
    let of_hook = |frame: &Frame| {
        let file = frame.file.as_deref();
        file.is_some_and(|file| is_under(file, tidegate_hook::SOURCE_FOLDER))
    };
    let hook = frames.iter().take_while(|frame| of_hook(frame)).count();
    frames.drain(..hook.saturating_sub(1));
    let library = |frame: &Frame| matches!(frame.kind, FrameKind::Plumbing | FrameKind::Std);
    let leading = frames.iter().take_while(|frame| library(frame)).count();
    let last = frames[..leading]
        .iter()
        .rposition(|frame| frame.kind == FrameKind::Plumbing);
    if let Some(last) = last {
        for frame in &mut frames[..=last] {
            frame.kind = FrameKind::Plumbing;
        }
    }
}

/// The first frame whose source is yours.
pub(super) fn first_of_yours(frames: &[Frame]) -> Option<usize> {
    frames
        .iter()
        .position(|frame| frame.kind == FrameKind::Yours)
}

/// A frame, or what stands for one.
pub(crate) trait Kinded {
    /// Whose code it is.
    fn kind(&self) -> FrameKind;
}

impl Kinded for Frame {
    fn kind(&self) -> FrameKind {
        self.kind
    }
}

/// Without the harness and all outside of it; everything if there is nothing else.
pub(super) fn of_workload<F: Kinded>(frames: &[F]) -> &[F] {
    let outer = frames
        .iter()
        .position(|frame| frame.kind() == FrameKind::Harness)
        .filter(|at| *at > 0)
        .unwrap_or(frames.len());
    &frames[..outer]
}

/// Without the allocator's and the standard library's at the inner end, and
/// without the harness and all outside of it.
pub(super) fn of_interest<F: Kinded>(frames: &[F]) -> &[F] {
    let frames = of_workload(frames);
    let inner = frames
        .iter()
        .position(|frame| !matches!(frame.kind(), FrameKind::Plumbing | FrameKind::Std))
        .unwrap_or(0);
    &frames[inner..]
}

/// The frames that tell one site from another: those of interest, without the
/// standard library's; all of them if that leaves none.
pub(super) fn telling(frames: &[Frame]) -> Vec<Frame> {
    let telling: Vec<Frame> = of_interest(frames)
        .iter()
        .filter(|frame| frame.kind != FrameKind::Std)
        .cloned()
        .collect();
    if telling.is_empty() {
        frames.to_vec()
    } else {
        telling
    }
}

impl Frame {
    /// The file with line and column, as far as they are known.
    pub fn place(&self) -> Option<String> {
        let file = self.file.as_deref()?;
        Some(match (self.line, self.column) {
            (Some(line), Some(column)) => format!("{file}:{line}:{column}"),
            (Some(line), None) => format!("{file}:{line}"),
            _ => file.to_owned(),
        })
    }
}

#[cfg(test)]
pub(super) mod sample {
    use super::super::{BornIn, Site};
    use super::*;
    use crate::books::{Amount, Layer};

    fn frame(function: &str, place: Option<(&str, u32)>, kind: FrameKind) -> Frame {
        Frame {
            function: function.to_owned(),
            file: place.map(|(file, _)| file.to_owned()),
            line: place.map(|(_, line)| line),
            column: place.map(|_| 9),
            inlined: function == "prover::finish",
            object: if place.is_some() {
                "prover"
            } else {
                "libc.so.6"
            }
            .to_owned(),
            kind,
            source: None,
        }
    }

    /// Two sites with something to trip over in their names.
    pub fn sites() -> Vec<Site> {
        let malloc = frame("malloc", None, FrameKind::Plumbing);
        let finish = Some(("/p/src/finish.rs", 12));
        let prove = Some(("/p/src/prove.rs", 40));
        let stacks = [
            (
                96,
                vec![
                    malloc.clone(),
                    frame("prover::finish", finish, FrameKind::Yours),
                    frame("prover::prove", prove, FrameKind::Yours),
                ],
            ),
            (
                1000,
                vec![
                    malloc,
                    frame("<[u8; 4] as prover::Keep>::keep", prove, FrameKind::Yours),
                ],
            ),
        ];
        stacks
            .into_iter()
            .map(|(bytes, frames)| Site {
                layer: Layer::NativeHeap,
                phase: "finish".to_owned(),
                site: super::super::identity::identity(&frames),
                runtime: None,
                yours: first_of_yours(&frames),
                frames,
                cut: false,
                allocated: Amount::new(3 * bytes, 3),
                live: vec![Amount::ZERO, Amount::new(bytes, 1)],
                grown: Amount::new(bytes, 1),
                per_round: Some(Amount::new(bytes, 1)),
                left: vec![BornIn {
                    round: 2,
                    amount: Amount::new(bytes, 1),
                }],
            })
            .collect()
    }
}
