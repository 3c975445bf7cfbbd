//! Frames as other tools write them: `0x4C2F: prover::finish (src/finish.rs:12:9)`.

use super::frames::{Clue, FrameKind, STD, kind_of, starts_in};
use super::identity::function;
use crate::verdict::normalised_site;

/// What a frame's text says, as far as a site's identity goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    /// The function's name without what changes from build to build.
    pub name: String,
    /// Whose code it is, as far as the text tells.
    pub kind: FrameKind,
}

/// A frame's text without the address in front: that changes from build to build.
pub(crate) fn without_address(text: &str) -> &str {
    let Some(rest) = text.strip_prefix("0x") else {
        return text;
    };
    match rest.split_once(": ") {
        Some((hex, rest)) if hex.bytes().all(|byte| byte.is_ascii_hexdigit()) => rest,
        _ => text,
    }
}

impl Written {
    /// Reads a frame's text, as Valgrind, dhat-rs and Tidegate write it.
    pub fn read(text: &str) -> Self {
        let (name, place) = parts(without_address(text));
        let object = place.and_then(|place| place.strip_prefix("in "));
        let file = match object {
            Some(_) => None,
            None => place.map(without_position).filter(|file| *file != "???"),
        };
        let clue = Clue {
            function: name,
            file,
        };
        let kind = match kind_of(&clue) {
            FrameKind::Yours | FrameKind::System if starts_in(name, &STD) => FrameKind::Std,
            FrameKind::Yours if file.is_some_and(is_of_a_registry) => FrameKind::Library,
            // Code without a name in a program of one's own is one's own.
            FrameKind::System if object.is_some_and(|object| !is_of_the_system(object)) => {
                FrameKind::Yours
            }
            kind => kind,
        };
        // What has no name has its object's, which is better than one for all.
        let name = match object {
            Some(object) if name == "???" => {
                format!("??? {}", object.rsplit('/').next().unwrap_or(object))
            }
            _ => function(name),
        };
        Self {
            name: normalised_site(&name),
            kind,
        }
    }
}

/// The function and what stands between the brackets after it.
fn parts(text: &str) -> (&str, Option<&str>) {
    let inner = text.strip_suffix(')');
    let split = inner.and_then(|inner| {
        inner
            .split_once(" (in ")
            .or_else(|| inner.rsplit_once(" ("))
    });
    match (split, inner) {
        (Some((name, place)), Some(inner)) if inner.contains(" (in ") => {
            // The object with its `in `.
            (
                name,
                Some(&inner[inner.len() - place.len() - "in ".len()..]),
            )
        }
        (Some((name, place)), _) if place.contains('.') || place.contains(':') => {
            (name, Some(place))
        }
        _ => (text, None),
    }
}

/// Without `:line` and `:line:column`.
fn without_position(place: &str) -> &str {
    let mut place = place;
    while let Some((head, digits)) = place.rsplit_once(':') {
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            break;
        }
        place = head;
    }
    place
}

/// Whether a path that may be cut short names a folder of a registry: `rayon-1.10.0`.
fn is_of_a_registry(file: &str) -> bool {
    file.split('/').any(|part| {
        let version = part.rsplit_once('-').map(|(_, version)| version);
        version.is_some_and(|version| {
            let numbers = || version.split('.');
            numbers().count() == 3
                && numbers()
                    .all(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
        })
    })
}

fn is_of_the_system(object: &str) -> bool {
    let libraries = [
        "/lib/",
        "/lib64/",
        "/usr/lib/",
        "/usr/lib64/",
        "/usr/libexec/",
    ];
    let name = object.rsplit('/').next().unwrap_or(object);
    libraries.iter().any(|folder| object.starts_with(folder))
        || (!object.contains('/') && name.contains(".so"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_every_tool_are_read() {
        for (text, name, kind) in [
            // dhat-rs
            (
                "0x10ae8441b: <alloc::alloc::Global as core::alloc::Allocator>::allocate (alloc/src/alloc.rs:226:9)",
                "<alloc::alloc::Global as core::alloc::Allocator>::allocate",
                FrameKind::Plumbing,
            ),
            (
                "0x5581: prover::synthesis::{{closure}} (prover/src/synthesis.rs:12:9)",
                "prover::synthesis::{closure}",
                FrameKind::Yours,
            ),
            (
                "0x5581: rayon_core::join (rayon-core-1.12.1/src/join.rs:1:2)",
                "rayon_core::join",
                FrameKind::Library,
            ),
            (
                "0x5581: core::ops::function::FnOnce::call_once (src/ops/function.rs:250:5)",
                "core::ops::function::FnOnce::call_once",
                FrameKind::Std,
            ),
            // Valgrind
            (
                "0x4838B26: malloc (vg_replace_malloc.c:381)",
                "malloc",
                FrameKind::Plumbing,
            ),
            (
                "0x48F: operator new(unsigned long) (vg_replace_malloc.c:422)",
                "operator new(unsigned long)",
                FrameKind::Plumbing,
            ),
            ("0x10919A: finish (finish.c:5)", "finish", FrameKind::Yours),
            (
                "0x10C97B: ??? (in /usr/lib/x86_64-linux-gnu/libc.so.6)",
                "??? libc.so.6",
                FrameKind::System,
            ),
            (
                "0x10C97B: ??? (in /opt/prover/prover)",
                "??? prover",
                FrameKind::Yours,
            ),
            // ours
            (
                "prover::finish (/p/src/finish.rs:12:9)",
                "prover::finish",
                FrameKind::Yours,
            ),
            ("malloc (in libc.so.6)", "malloc", FrameKind::Plumbing),
            (
                "start_thread (in libc.so.6)",
                "start_thread",
                FrameKind::System,
            ),
            // and what is none
            ("[root]", "[root]", FrameKind::System),
            ("", "", FrameKind::System),
            ("f(", "f", FrameKind::System),
            ("0x7f1: main (???:0:0)", "main", FrameKind::System),
            ("0xZZ: f", "0xZZ: f", FrameKind::System),
        ] {
            let read = Written::read(text);
            assert_eq!((read.name.as_str(), read.kind), (name, kind), "{text}");
        }
    }

    #[test]
    fn lines_and_addresses_do_not_tell_frames_apart() {
        let one = Written::read("0x1: a::b (src/b.rs:1:1)");
        assert_eq!(one, Written::read("0xff: a::b (src/b.rs:99:7)"));
        assert_ne!(one, Written::read("0x1: a::c (src/b.rs:1:1)"));
        assert_eq!(
            without_address("0x1: a::b (src/b.rs:1:1)"),
            "a::b (src/b.rs:1:1)"
        );
    }
}
