//! A site's identity: the same when lines move, when the compiler names its
//! instances anew, and when the standard library changes.

use super::frames::{self, Frame, FrameKind, Kinded};
use crate::verdict::normalised_site;

/// The names of a stack from the innermost, joined by `;`, without what changes
/// from build to build.
///
/// The standard library's frames are left out, and a library's too once your own
/// code has been reached; what calls itself counts once.
pub(super) fn identity(stack: &[Frame]) -> String {
    struct Named {
        name: String,
        kind: FrameKind,
    }
    impl Kinded for Named {
        fn kind(&self) -> FrameKind {
            self.kind
        }
    }
    let stack: Vec<Named> = stack
        .iter()
        .map(|frame| Named {
            name: named(frame),
            kind: frame.kind,
        })
        .collect();
    let mut names: Vec<&str> = Vec::new();
    tell(
        &stack,
        |one, other| one.name == other.name,
        |frame| names.push(&frame.name),
    );
    normalised_site(&names.join(";"))
}

/// Hands out the frames that tell a site from others, from the innermost. Of frames in
/// a row that are the `same` the first one counts.
pub(crate) fn tell<'a, F: Kinded>(
    stack: &'a [F],
    same: impl Fn(&F, &F) -> bool,
    mut each: impl FnMut(&'a F),
) {
    let mut reached = false;
    let mut last: Option<&F> = None;
    for frame in frames::of_interest(stack) {
        reached |= frame.kind() == FrameKind::Yours;
        let counts = match frame.kind() {
            FrameKind::Yours => true,
            FrameKind::Library | FrameKind::System => !reached,
            FrameKind::Std | FrameKind::Plumbing | FrameKind::Harness => false,
        };
        if counts && !last.is_some_and(|last| same(last, frame)) {
            last = Some(frame);
            each(frame);
        }
    }
    if last.is_none() {
        // Nothing but the standard library: better its names than none.
        stack.iter().take(8).for_each(each);
    }
}

/// A frame's name; with the file's where the debug information has short names
/// only, as that of line tables has for inlined functions.
fn named(frame: &Frame) -> String {
    let name = function(&frame.function);
    let file = frame
        .file
        .as_deref()
        .and_then(|file| file.rsplit('/').next());
    match file {
        Some(file) if frame.inlined && !name.contains("::") => format!("{name} {file}"),
        _ => name,
    }
}

/// A function's name without its instance: no generic arguments, no numbers of
/// closures and impls, no suffixes of clones. `;`, which parts frames, is replaced.
pub(super) fn function(name: &str) -> String {
    let name = name.split(" [clone").next().unwrap_or(name);
    let name = without_clone_suffix(name);
    let name = without_numbers(&without_arguments(name));
    name.replace(';', ",")
}

/// Without `.llvm.123`, `.isra.0`, `.constprop.1`, `.part.2`, `.cold`.
fn without_clone_suffix(name: &str) -> &str {
    const SUFFIXES: [&str; 5] = [".llvm.", ".isra.", ".constprop.", ".part.", ".cold"];
    if !name.contains('.') {
        return name;
    }
    let cut = SUFFIXES.iter().filter_map(|suffix| name.find(suffix)).min();
    &name[..cut.unwrap_or(name.len())]
}

/// Without generic and template arguments. The `<T as Trait>` at a name's
/// beginning is no argument list, nor are the angles of `operator<`.
fn without_arguments(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut depth = 0_u32;
    let mut before = ' ';
    for c in name.chars() {
        let opens = c == '<'
            && (depth > 0
                || out.ends_with("::")
                || out.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '}'))
            && !out.ends_with("operator");
        let closes = c == '>' && depth > 0 && before != '-';
        if opens {
            if depth == 0 && out.ends_with("::") {
                out.truncate(out.len() - 2);
            }
            depth += 1;
        } else if closes {
            depth -= 1;
        } else if depth == 0 {
            out.push(c);
        }
        before = c;
    }
    out
}

/// `{closure#3}` as `{closure}`, `{{closure}}` too.
fn without_numbers(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(at) = rest.find('#') {
        let (head, tail) = rest.split_at(at);
        out.push_str(head);
        let digits = tail[1..].bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 {
            out.push('#');
        }
        rest = &tail[1 + digits..];
    }
    out.push_str(rest);
    out.replace("{{", "{").replace("}}", "}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_of_one_function_have_one_name() {
        for (one, two, name) in [
            (
                "a::grow::<u8>",
                "a::grow::<alloc::vec::Vec<u64>>",
                "a::grow",
            ),
            ("a::f::{closure#0}", "a::f::{{closure}}", "a::f::{closure}"),
            (
                "<a::B<u8> as a::C>::d",
                "<a::B<u16> as a::C>::d",
                "<a::B as a::C>::d",
            ),
            (
                "a::f::{closure#1}::<fn() -> u8>",
                "a::f::{closure#2}",
                "a::f::{closure}",
            ),
            ("push<u8, Global>", "push<u16, Global>", "push"),
            ("f(int) [clone .isra.0]", "f(int)", "f(int)"),
            ("a::work.llvm.123", "a::work", "a::work"),
            (
                "ns::Pool<int>::take(int)",
                "ns::Pool<long>::take(int)",
                "ns::Pool::take(int)",
            ),
            (
                "ns::operator<(ns::A)",
                "ns::operator<(ns::A)",
                "ns::operator<(ns::A)",
            ),
        ] {
            assert_eq!(function(one), name);
            assert_eq!(function(two), name);
        }
    }

    fn frame(function: &str, line: u32, kind: FrameKind) -> Frame {
        Frame {
            function: function.to_owned(),
            file: Some("/a/src/lib.rs".to_owned()),
            line: Some(line),
            column: Some(5),
            inlined: false,
            object: "program".to_owned(),
            kind,
            source: None,
        }
    }

    fn stack(line: u32, hash: &str) -> Vec<Frame> {
        let of = |name: &str, kind| frame(&format!("{name}::h{hash}"), line, kind);
        vec![
            frame("malloc", 1, FrameKind::Plumbing),
            of("alloc::vec::Vec<T>::push", FrameKind::Std),
            of("bellperson::grow", FrameKind::Library),
            of("prover::finish", FrameKind::Yours),
            of("prover::recurse", FrameKind::Yours),
            of("prover::recurse", FrameKind::Yours),
            of("rayon::join", FrameKind::Library),
            of("prover::main", FrameKind::Yours),
            of("tidegate::scenario::do_rounds", FrameKind::Harness),
            of("test::run", FrameKind::Std),
        ]
    }

    #[test]
    fn a_site_is_the_same_when_lines_move_and_hashes_change() {
        let one = identity(&stack(10, "0123456789abcdef"));
        let two = identity(&stack(99, "fedcba9876543210"));
        assert_eq!(
            one,
            "bellperson::grow;prover::finish;prover::recurse;prover::main"
        );
        assert_eq!(one, two);
        assert_eq!(
            normalised_site(&one),
            one,
            "a verdict's fingerprint keeps it"
        );
    }

    #[test]
    fn another_caller_is_another_site() {
        let mut other = stack(10, "0123456789abcdef");
        other[7].function = "prover::other_main".to_owned();
        assert_ne!(identity(&other), identity(&stack(10, "0123456789abcdef")));
    }
}
