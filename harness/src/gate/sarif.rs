//! SARIF 2.1.0, for code scanning.
//!
//! Written with `serde_json` alone: a crate with SARIF's types makes them from the schema
//! when it is built, with a parser and a formatter of Rust, for the few objects that are
//! needed here. Tests hold what is written against the official schema.
//!
//! GitHub refuses a whole file if one result has no place in a file, so that a finding
//! without a known line is placed in a file that stands for the project.

use serde_json::{Map, Value, json};

use super::remarks::{self, Remark, Rule, Weight};
use super::{Answer, Line, Report, Root, Status};
use crate::diff::plain;

/// Results that GitHub takes of one run.
const RESULTS_AT_MOST: usize = 5000;
/// Characters of one text.
const LONGEST: usize = 2000;
/// The folder that paths are told from, as SARIF calls it.
const SOURCES: &str = "%SRCROOT%";
/// The notification that something was not judged.
const NOT_JUDGED: &str = "not-judged";

/// The report; `docs` is where the book is, as a URL.
pub(super) fn of(report: &Report, root: &Root, docs: Option<&str>) -> Value {
    let rules: Vec<Rule> = remarks::rules().collect();
    let results: Vec<Value> = remarks::of(report)
        .iter()
        .take(RESULTS_AT_MOST)
        .map(|remark| result(remark, &rules, root))
        .collect();
    let is_whole = !matches!(report.answer, Answer::Inconclusive | Answer::Crash);
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": driver(&rules, docs)},
            "invocations": [{
                "executionSuccessful": is_whole,
                "exitCode": report.answer.exit_code(),
                "exitCodeDescription": report.answer.words(),
                "toolExecutionNotifications": notifications(report),
            }],
            "originalUriBaseIds": {
                SOURCES: {"description": {"text": "The root of the project."}},
            },
            "columnKind": "unicodeCodePoints",
            "results": results,
        }],
    })
}

fn driver(rules: &[Rule], docs: Option<&str>) -> Value {
    let mut driver = json!({
        "name": "Tidegate",
        "semanticVersion": env!("CARGO_PKG_VERSION"),
        "rules": rules.iter().map(|of| rule(of, docs)).collect::<Vec<_>>(),
        "notifications": [{
            "id": NOT_JUDGED,
            "shortDescription": {"text": "Something was not judged to the end."},
        }],
    });
    if let Some(docs) = docs {
        driver["informationUri"] = docs.into();
    }
    driver
}

fn rule(rule: &Rule, docs: Option<&str>) -> Value {
    let Rule {
        name, means, page, ..
    } = rule;
    let short = format!("{name}: {means}");
    let advice = "It is found in exact books of every allocation, over rounds of the same work in one process.";
    let (text, markdown) = match docs {
        Some(docs) => {
            let page = format!("{}/{page}", docs.trim_end_matches('/'));
            (
                format!("{means}. {advice} What to do: {page}"),
                format!("{means}. {advice}\n\n[What it looks like, and what to do]({page})"),
            )
        }
        None => {
            let told = format!("{means}. {advice} What to do: docs/{page} of Tidegate");
            (told.clone(), told)
        }
    };
    let mut value = json!({
        "id": name,
        "name": pascal(name),
        "shortDescription": {"text": message(&short)},
        "fullDescription": {"text": message(&format!("{means}. {advice}"))},
        "help": {"text": message(&text), "markdown": markdown},
        "defaultConfiguration": {"level": if rule.stops { "error" } else { "note" }},
        "properties": {"tags": ["memory", "leak"]},
    });
    if let Some(docs) = docs {
        value["helpUri"] = format!("{}/{page}", docs.trim_end_matches('/')).into();
    }
    value
}

/// `handle-leak` as `HandleLeak`.
fn pascal(name: &str) -> String {
    let words = name.split('-').map(|word| {
        let mut letters = word.chars();
        let first = letters.next().map(|first| first.to_ascii_uppercase());
        first.into_iter().chain(letters).collect::<String>()
    });
    words.collect()
}

fn result(remark: &Remark<'_>, rules: &[Rule], root: &Root) -> Value {
    let whole = format!("{}/{}/{}", remark.scenario, remark.rule, remark.identity);
    let mut text = format!("{}: {}", remark.scenario, remark.sentence);
    if remark.lines.is_empty() {
        text.push_str(" (the line is not known)");
    }
    let mut value = json!({
        "ruleId": remark.rule,
        "level": match remark.weight {
            Weight::Stops => "error",
            Weight::Known => "warning",
            Weight::LetThrough => "note",
        },
        "message": {"text": message(&text)},
        "locations": [location(remark, remark.lines.first(), root)],
        "partialFingerprints": {
            "tidegateFinding/v1": cut(&whole),
            // The one that GitHub matches by: the finding stays one when lines move.
            "primaryLocationLineHash": format!("{:016x}:1", hashed(&whole)),
        },
        // Where one result has them, all must; none means that it is not suppressed.
        "suppressions": suppressions(remark),
    });
    if let Some(at) = rules.iter().position(|rule| rule.name == remark.rule) {
        value["ruleIndex"] = at.into();
    }
    let before = remark.status.and_then(|status| match status {
        Status::New => Some("new"),
        Status::Worse => Some("updated"),
        Status::Known => Some("unchanged"),
        Status::Suppressed | Status::Allowed => None,
    });
    if let Some(before) = before {
        value["baselineState"] = before.into();
    }
    let others: Vec<Value> = remark
        .lines
        .iter()
        .skip(1)
        .filter_map(|line| physical(line, root))
        .zip(1_u32..)
        .map(|(place, id)| json!({"id": id, "physicalLocation": place}))
        .collect();
    if !others.is_empty() {
        value["relatedLocations"] = others.into();
    }
    value
}

fn suppressions(remark: &Remark<'_>) -> Vec<Value> {
    match remark.status {
        Some(Status::Suppressed) => vec![json!({
            "kind": "external",
            "status": "accepted",
            "justification": cut(remark.because.unwrap_or("the policy lets it through")),
        })],
        _ => Vec::new(),
    }
}

/// Where a result is: in the code as far as that is known, and in the run.
fn location(remark: &Remark<'_>, line: Option<&Line>, root: &Root) -> Value {
    let mut location = Map::new();
    let place = line.and_then(|line| physical(line, root)).or_else(|| {
        let file = root.whole()?;
        let artifact = json!({"uri": uri(file), "uriBaseId": SOURCES});
        Some(json!({"artifactLocation": artifact, "region": {"startLine": 1}}))
    });
    if let Some(place) = place {
        location.insert("physicalLocation".into(), place);
    }
    let mut logical = Vec::new();
    if let Some(line) = line {
        logical.push(json!({"fullyQualifiedName": cut(&line.function), "kind": "function"}));
    }
    let of = [Some(remark.scenario), remark.place[0], remark.place[1]];
    let of: Vec<&str> = of.into_iter().flatten().collect();
    logical.push(json!({"fullyQualifiedName": cut(&of.join("/")), "kind": "phase"}));
    location.insert("logicalLocations".into(), logical.into());
    location.into()
}

fn physical(line: &Line, root: &Root) -> Option<Value> {
    let path = root.path_of(line)?;
    let mut region = json!({"startLine": line.line});
    if let Some(source) = &line.source {
        region["snippet"] = json!({"text": cut(source)});
    }
    Some(json!({
        "artifactLocation": {"uri": uri(&path), "uriBaseId": SOURCES},
        "region": region,
    }))
}

fn notifications(report: &Report) -> Vec<Value> {
    let missing = report.scenarios.iter().flat_map(|scenario| {
        let missing = scenario.missing.iter();
        missing.map(move |missing| (scenario, missing))
    });
    let missing = missing.take(RESULTS_AT_MOST);
    let told = missing.map(|(scenario, missing)| {
        let level = match scenario.answer {
            Answer::Crash => "error",
            _ => "warning",
        };
        json!({
            "descriptor": {"id": NOT_JUDGED},
            "level": level,
            "message": {"text": message(&format!("{}: {missing}", scenario.name))},
        })
    });
    told.collect()
}

/// A text of so many characters at most, without control characters.
fn cut(text: &str) -> String {
    plain(text).chars().take(LONGEST).collect()
}

/// A text as a message, in which braces are placeholders and brackets links.
fn message(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in cut(text).chars() {
        match c {
            '{' | '}' => out.extend([c, c]),
            '[' | ']' | '\\' => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out
}

/// A relative path as a reference of a URI.
fn uri(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' => out.push(byte.into()),
            byte if byte.is_ascii_alphanumeric() => out.push(byte.into()),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// FNV-1a of 64 bits: the same on every machine and with every compiler.
fn hashed(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_message_is_text_and_no_link_or_placeholder() {
        assert_eq!(
            message("f::{closure} [a](b) \\ \u{1b}x"),
            "f::{{closure}} \\[a\\](b) \\\\ \u{fffd}x"
        );
        assert_eq!(message(&"x".repeat(5000)).len(), LONGEST);
    }

    #[test]
    fn a_path_is_a_reference_of_a_uri() {
        assert_eq!(uri("src/a b/ü%.rs"), "src/a%20b/%C3%BC%25.rs");
        assert_eq!(uri("src:x?y#z.rs"), "src%3Ax%3Fy%23z.rs");
    }

    #[test]
    fn fingerprints_are_alike_everywhere() {
        // The test vectors that the authors of the hash give.
        assert_eq!(hashed(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hashed("foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn rules_have_names_that_code_scanning_takes() {
        assert_eq!(pascal("unexplained-growth"), "UnexplainedGrowth");
        let names: Vec<&str> = remarks::rules().map(|rule| rule.name).collect();
        assert_eq!(names.len(), 12);
        assert!(
            names.contains(&"leak") && !names.contains(&"clean"),
            "{names:?}"
        );
    }
}
