//! A leak's identity, the same in every build that has it.

use crate::books::Layer;

/// The fingerprint of what grows in this layer, phase and site.
pub(super) fn fingerprint(layer: Layer, phase: &str, site: Option<&str>) -> String {
    match site {
        Some(site) => format!("{layer}/{phase}/{}", normalised(site)),
        None => format!("{layer}/{phase}"),
    }
}

/// A site without what changes from build to build: addresses, the compiler's
/// hashes, line numbers, folders.
pub(crate) fn normalised(site: &str) -> String {
    site.split(';')
        .map(|frame| normalised_frame(frame.trim()))
        .filter(|frame| !frame.is_empty())
        .collect::<Vec<_>>()
        .join(";")
}

fn normalised_frame(frame: &str) -> String {
    let words: Vec<String> = frame
        .split_whitespace()
        .filter(|word| !is_address(word))
        .map(|word| {
            let word = word.rsplit_once("+0x").map_or(word, |(head, _)| head);
            let word = without_positions(word);
            let word = file_name(word);
            without_hashes(word)
        })
        .filter(|word| !word.is_empty())
        .collect();
    words.join(" ")
}

fn is_address(word: &str) -> bool {
    let word = word.trim_start_matches('+').trim_end_matches(':');
    word.strip_prefix("0x")
        .is_some_and(|hex| !hex.is_empty() && hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Without `:line` and `:line:column` at the end, and the brackets around a place.
fn without_positions(word: &str) -> &str {
    let mut word = word.trim_matches(|c| c == '(' && !word.ends_with("()"));
    if word.contains('/') || word.contains('.') {
        word = word.trim_matches(['(', ')']);
    }
    while let Some((head, tail)) = word.rsplit_once(':') {
        if head.ends_with(':') || tail.is_empty() || !tail.bytes().all(|b| b.is_ascii_digit()) {
            break;
        }
        word = head;
    }
    word
}

/// The last part of a path; a word that is no path as it is.
fn file_name(word: &str) -> &str {
    let is_path = word.starts_with('/') || word.starts_with("./") || word.starts_with("../");
    if is_path {
        word.rsplit('/').next().unwrap_or(word)
    } else {
        word
    }
}

/// Without `::h0123456789abcdef` and the `[0123456789abcdef]` of crates.
fn without_hashes(word: &str) -> String {
    if !word.contains("::h") && !word.contains('[') {
        return word.to_owned();
    }
    let mut out = String::with_capacity(word.len());
    let mut rest = word;
    while let Some(next) = rest.chars().next() {
        if let Some(tail) = rest.strip_prefix("::h")
            && let Some(after) = after_hex(tail, 16)
            && !after.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        {
            rest = after;
        } else if let Some(tail) = rest.strip_prefix('[')
            && let Some(after) = after_hex(tail, 8)
            && let Some(after) = after
                .trim_start_matches(|c: char| c.is_ascii_hexdigit())
                .strip_prefix(']')
        {
            rest = after;
        } else {
            out.push(next);
            rest = &rest[next.len_utf8()..];
        }
    }
    out
}

/// What follows at least so many hexadecimal digits.
fn after_hex(text: &str, digits: usize) -> Option<&str> {
    let head = text.get(..digits)?;
    head.bytes()
        .all(|b| b.is_ascii_hexdigit())
        .then(|| &text[digits..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_builds_of_one_site_have_one_fingerprint() {
        let one = "0x7f12a: prover::finish::h0123456789abcdef (/a/src/finish.rs:12:9); \
                   core[0123456789abcdef]::ops::call+0x1f";
        let two = "0x99: prover::finish::hfedcba9876543210 (/b/src/finish.rs:99:1); \
                   core[fedcba9876543210]::ops::call+0x2a";
        assert_eq!(normalised(one), "prover::finish finish.rs;core::ops::call");
        assert_eq!(normalised(one), normalised(two));
    }

    #[test]
    fn two_sites_have_two_fingerprints() {
        let of = |site| fingerprint(Layer::RustHeap, "synthesis", Some(site));
        assert_ne!(of("a::b"), of("a::c"));
        assert_ne!(of("a::b"), fingerprint(Layer::RustHeap, "synthesis", None));
        assert_eq!(of("a::new()"), "rust-heap/synthesis/a::new()");
        assert_eq!(of("<T as U>::f"), "rust-heap/synthesis/<T as U>::f");
    }

    #[test]
    fn only_whole_addresses_positions_folders_and_hashes_are_left_out() {
        for (site, expected) in [
            ("+0x1f: a::b", "a::b"),
            ("0x a::b", "0x a::b"),
            ("0xfn a::b", "0xfn a::b"),
            ("(a::b", "a::b"),
            ("(a::new()", "(a::new()"),
            ("a::b (finish.rs:12)", "a::b finish.rs"),
            ("a::b (/src/finish:12:9)", "a::b finish"),
            ("a::7", "a::7"),
            ("main: a::b", "main: a::b"),
            ("./src/a.rs:3", "a.rs"),
            ("../src/a.rs:3", "a.rs"),
            ("src/a.rs:3", "src/a.rs"),
            ("a::h0123456789abcdef::b", "a::b"),
            ("a::h0123456789abcdef_b", "a::h0123456789abcdef_b"),
            ("a::h0123456789abcdef0", "a::h0123456789abcdef0"),
            ("a::h0123456789abcde", "a::h0123456789abcde"),
            ("a[01234567]::b", "a::b"),
            ("a[0123456]::b", "a[0123456]::b"),
            (" ; a::b;;c ", "a::b;c"),
        ] {
            assert_eq!(normalised(site), expected, "{site}");
        }
    }
}
