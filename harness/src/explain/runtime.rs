//! Runtimes: what allocates for itself, and not because the application asked for
//! that memory.
//!
//! The first frame that is neither the allocator's nor the standard library's says
//! who allocates. The GPU driver is a runtime whoever calls it: its heap is nobody
//! else's to free. rayon, crossbeam, tokio and the standard library are one only
//! where no other code is in the stack; memory that they take on the application's
//! call is the application's.

use tidegate_hook::DRIVER_OBJECTS;

use super::frames::{Frame, FrameKind, of_workload};

/// The C library's own objects, whose frames are at the outer end of every thread.
const C_LIBRARY: [&str; 3] = ["libc.so", "ld-linux", "libpthread.so"];

/// Crates that are runtimes; a name that ends with `-` stands for all that begin so.
const CRATES: [&str; 5] = ["rayon", "rayon-core", "crossbeam", "crossbeam-", "tokio"];

/// The runtime that this stack is all of; `None` if it is the application's, or if
/// that cannot be told.
pub(super) fn runtime(stack: &[Frame], cut: bool) -> Option<String> {
    let frames = of_workload(stack);
    let mut telling = frames
        .iter()
        .filter(|frame| !matches!(frame.kind, FrameKind::Plumbing | FrameKind::Std));
    let first = telling.clone().next();
    if let Some(first) = first
        && begins(&first.object, &DRIVER_OBJECTS)
    {
        return Some("driver".to_owned());
    }
    if cut {
        return None;
    }
    let ours = |frame: &Frame| match frame.kind {
        FrameKind::System => begins(&frame.object, &C_LIBRARY),
        FrameKind::Library => crate_of(frame).is_some_and(is_runtime),
        _ => false,
    };
    if !telling.all(ours) {
        return None;
    }
    match first.and_then(crate_of) {
        Some(name) => Some(name.to_owned()),
        None if frames.iter().any(|frame| frame.kind == FrameKind::Std) => Some("std".to_owned()),
        None => None,
    }
}

fn begins(name: &str, with: &[&str]) -> bool {
    with.iter().any(|with| name.starts_with(with))
}

fn is_runtime(name: &str) -> bool {
    let mut crates = CRATES.iter();
    crates.any(|of| *of == name || (of.ends_with('-') && name.starts_with(of)))
}

/// The crate of a frame's source file, where that is in Cargo's registry:
/// `…/registry/src/INDEX/NAME-VERSION/…`.
fn crate_of(frame: &Frame) -> Option<&str> {
    let (_, path) = frame.file.as_deref()?.split_once("/registry/src/")?;
    let folder = path.split('/').nth(1)?;
    let (name, _) = folder
        .match_indices('-')
        .map(|(at, _)| (&folder[..at], &folder[at + 1..]))
        .find(|(_, rest)| rest.starts_with(|c: char| c.is_ascii_digit()))?;
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(function: &str, file: &str, object: &str, kind: FrameKind) -> Frame {
        Frame {
            function: function.to_owned(),
            file: (!file.is_empty()).then(|| file.to_owned()),
            line: None,
            column: None,
            inlined: false,
            object: object.to_owned(),
            kind,
            source: None,
        }
    }

    fn of_crate(folder: &str) -> Frame {
        let file = format!("/cargo/registry/src/index-1f/{folder}/src/lib.rs");
        frame("f", &file, "app", FrameKind::Library)
    }

    fn stack(middle: &[Frame]) -> Vec<Frame> {
        let mut stack = vec![
            frame("malloc", "", "app", FrameKind::Plumbing),
            frame("alloc::vec::push", "", "app", FrameKind::Std),
        ];
        stack.extend(middle.iter().cloned());
        stack.push(frame("start_thread", "", "libc.so.6", FrameKind::System));
        stack
    }

    fn of(middle: &[Frame]) -> Option<String> {
        runtime(&stack(middle), false)
    }

    #[test]
    fn a_runtimes_own_stack_is_its_own() {
        let name = |folder| of(&[of_crate(folder)]);
        assert_eq!(name("rayon-core-1.13.0").as_deref(), Some("rayon-core"));
        assert_eq!(name("rayon-1.12.0").as_deref(), Some("rayon"));
        assert_eq!(
            name("crossbeam-deque-0.8.6").as_deref(),
            Some("crossbeam-deque")
        );
        assert_eq!(name("tokio-1.50.0").as_deref(), Some("tokio"));
        assert_eq!(of(&[]).as_deref(), Some("std"));
        let both = [
            of_crate("crossbeam-deque-0.8.6"),
            of_crate("rayon-core-1.13.0"),
        ];
        assert_eq!(of(&both).as_deref(), Some("crossbeam-deque"));
    }

    #[test]
    fn what_a_library_takes_on_the_applications_call_is_the_applications() {
        let ours = frame("app::work", "/src/app.rs", "app", FrameKind::Yours);
        assert_eq!(of(&[of_crate("rayon-core-1.13.0"), ours.clone()]), None);
        assert_eq!(of(std::slice::from_ref(&ours)), None);
        // Another library's too, and code without a known source.
        let other = of_crate("bellperson-0.27.0");
        assert_eq!(of(&[of_crate("rayon-core-1.13.0"), other]), None);
        assert_eq!(of(&[of_crate("tokio-util-0.7.0")]), None);
        let unknown = frame("0x1f", "", "app", FrameKind::System);
        assert_eq!(of(&[of_crate("tokio-1.50.0"), unknown]), None);
        // What lies outside of the harness is not the workload's.
        let harness = frame("tidegate::run", "", "app", FrameKind::Harness);
        let run = [of_crate("tokio-1.50.0"), harness, ours];
        assert_eq!(of(&run).as_deref(), Some("tokio"));
    }

    #[test]
    fn the_driver_is_a_runtime_whoever_calls_it() {
        let driver = frame("0x1f", "", "libcuda.so.580.159", FrameKind::System);
        let ours = frame("app::work", "/src/app.rs", "app", FrameKind::Yours);
        let stack = stack(&[driver, ours.clone()]);
        assert_eq!(runtime(&stack, true).as_deref(), Some("driver"));
        let called_by_it = [
            frame("malloc", "", "app", FrameKind::Plumbing),
            ours,
            frame("0x1f", "", "libcuda.so.580.159", FrameKind::System),
        ];
        assert_eq!(runtime(&called_by_it, false), None);
    }

    #[test]
    fn a_stack_that_was_cut_cannot_be_told() {
        assert_eq!(runtime(&stack(&[of_crate("tokio-1.50.0")]), true), None);
        let c = [
            frame("malloc", "", "app", FrameKind::Plumbing),
            frame("start_thread", "", "libc.so.6", FrameKind::System),
        ];
        assert_eq!(runtime(&c, false), None);
    }
}
