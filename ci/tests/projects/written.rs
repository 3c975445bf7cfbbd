//! What `gate` writes for others to read: SARIF, annotations, a summary, Bencher's metrics.

use crate::project::{Project, expect, phase_book};
use serde_json::{Value, json};

/// A frame of a stack.
fn frame(function: &str, file: &str, line: u32, kind: &str) -> Value {
    json!({
        "function": function, "file": file, "line": line, "column": 9, "inlined": false,
        "object": "prover", "kind": kind, "source": null,
    })
}

/// Gives a run the explanation of a second one: a site whose second frame is yours.
fn explain(run: &mut Value, function: &str, file: &str, line: u32) {
    let grown = json!({"bytes": 1 << 24, "blocks": 16});
    run["explanation"] = json!({
        "every_site": false, "seconds": 0.1, "warmup": 4, "rounds": 20, "captures": 16,
        "dropped": 0, "sites_exist": 1, "missing": [],
        "coverage": [{"layer": "device", "phase": "unattributed", "grown": grown, "explained": grown}],
        "sites": [{
            "layer": "device", "phase": "unattributed", "site": "prover::grow", "cut": false,
            "frames": [
                frame("malloc", "", 0, "plumbing"),
                frame(function, file, line, "yours"),
                frame("prover::main", "/built/elsewhere/src/main.rs", 3, "yours"),
            ],
            "yours": 1, "allocated": grown, "live": [], "grown": grown, "per_round": null,
            "left": [],
        }],
    });
}

/// A project that asks for no baseline, with a run that leaks in line 12 of src/grow.rs.
fn leaking() -> Project {
    let project = Project::new();
    project.write("tidegate.toml", "[baselines]\nrequired = false\n");
    project.write("src/grow.rs", &"//\n".repeat(20));
    project.run("leak", "device", |run| {
        run["plan"]["name"] = "proving".into();
        explain(
            run,
            "prover::grow::{closure#0}",
            "/built/elsewhere/src/grow.rs",
            12,
        );
    });
    project
}

/// Gates runs and returns SARIF, which is held against its schema.
fn sarif(project: &Project, runs: &[&str]) -> Value {
    let words = [&["gate", "--sarif", "gate.sarif"], runs].concat();
    let (_, words) = project.call(&words);
    let log: Value = serde_json::from_str(&project.read("gate.sarif")).expect(&words);
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../fixtures/sarif/sarif-schema-2.1.0.json"
    );
    // The pattern of a language has a bracket too many to be one.
    let schema = std::fs::read_to_string(file).unwrap();
    let schema = schema.replace("-[a-zA-Z]{2}]?$", "-[a-zA-Z]{2}$");
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let validator = jsonschema::options()
        .should_validate_formats(true)
        .build(&schema)
        .unwrap();
    let problems: Vec<String> = validator
        .iter_errors(&log)
        .map(|problem| format!("{}: {problem}", problem.instance_path()))
        .collect();
    assert!(problems.is_empty(), "{problems:#?}\n{log:#}");
    log
}

fn results(log: &Value) -> &Vec<Value> {
    log["runs"][0]["results"].as_array().unwrap()
}

#[test]
fn a_leak_is_a_result_at_the_allocating_line_told_from_the_projects_root() {
    let project = leaking();
    let log = sarif(&project, &["leak"]);
    let [result] = &results(&log)[..] else {
        panic!("one result: {log:#}")
    };
    assert_eq!(
        (
            &result["ruleId"],
            &result["level"],
            &result["baselineState"]
        ),
        (&json!("leak"), &json!("error"), &json!("new"))
    );
    let place = &result["locations"][0]["physicalLocation"];
    assert_eq!(
        place["artifactLocation"],
        json!({"uri": "src/grow.rs", "uriBaseId": "%SRCROOT%"})
    );
    assert_eq!(place["region"]["startLine"], 12);
    let rule =
        &log["runs"][0]["tool"]["driver"]["rules"][result["ruleIndex"].as_u64().unwrap() as usize];
    assert_eq!(rule["id"], "leak");
    assert_eq!(result["suppressions"], json!([]));
    let told = result["message"]["text"].as_str().unwrap();
    assert!(
        told.starts_with("proving: device memory born in phase"),
        "{told}"
    );
}

#[test]
fn a_leak_has_the_same_fingerprint_wherever_its_line_has_moved_to() {
    let project = leaking();
    let log = sarif(&project, &["leak"]);
    let first = results(&log)[0]["partialFingerprints"].clone();
    project.run("moved", "device", |run| {
        run["plan"]["name"] = "proving".into();
        explain(run, "prover::grow::{closure#7}", "/other/src/grow.rs", 19);
    });
    let moved = sarif(&project, &["moved"]);
    assert_eq!(results(&moved)[0]["partialFingerprints"], first);
    assert_eq!(
        first["tidegateFinding/v1"],
        "proving/leak/device/unattributed"
    );
    project.run("other", "pool", |run| {
        run["plan"]["name"] = "proving".into()
    });
    let other = sarif(&project, &["other"]);
    assert_ne!(results(&other)[0]["partialFingerprints"], first);
}

#[test]
fn a_finding_without_a_line_is_placed_in_a_file_that_stands_for_the_project() {
    let project = Project::new();
    project.run("leak", "device", |run| {
        run["plan"]["name"] = "proving".into()
    });
    let of = |log: &Value| results(log)[0]["locations"][0].clone();
    // A folder without any such file has none; SARIF allows that.
    let bare = of(&sarif(&project, &["leak"]));
    assert_eq!(bare.get("physicalLocation"), None);
    assert_eq!(
        bare["logicalLocations"][0]["fullyQualifiedName"],
        "proving/unattributed/device"
    );
    project.write("Cargo.toml", "");
    let placed = of(&sarif(&project, &["leak"]));
    assert_eq!(
        placed["physicalLocation"]["artifactLocation"]["uri"],
        "Cargo.toml"
    );
    assert_eq!(placed["logicalLocations"], bare["logicalLocations"]);
}

#[test]
fn what_is_known_suppressed_or_not_judged_is_told_as_such() {
    let project = leaking();
    project.write(
        "tidegate.toml",
        "[baselines]\nrequired = false\n[[suppression]]\nleak = \"*\"\nlayer = \"device\"\n\
         reason = \"ticket 812\"\nuntil = \"2099-12-31\"\n",
    );
    let log = sarif(&project, &["leak"]);
    let result = &results(&log)[0];
    assert_eq!(result["level"], "note");
    assert_eq!(result.get("baselineState"), None);
    let why = result["suppressions"][0]["justification"].as_str().unwrap();
    assert!(why.contains("ticket 812"), "{why}");

    project.write("tidegate.toml", "");
    for number in ["1", "2", "3"] {
        project.run(number, "device", |run| {
            run["plan"]["name"] = "proving".into()
        });
    }
    let words = ["bless", "1", "2", "3", "--reason", "r", "--with-findings"];
    expect(&project.call(&words), 0, &[]);
    let log = sarif(&project, &["1"]);
    let result = &results(&log)[0];
    assert_eq!(
        (&result["level"], &result["baselineState"]),
        (&json!("warning"), &json!("unchanged"))
    );

    let project = Project::new();
    project.three_clean("a");
    let log = sarif(&project, &["a1"]);
    let invocation = &log["runs"][0]["invocations"][0];
    assert_eq!(invocation["executionSuccessful"], false);
    assert_eq!(invocation["exitCode"], 5);
    let told = invocation["toolExecutionNotifications"][0]["message"]["text"].as_str();
    assert!(told.unwrap().contains("`a` has no baseline"), "{told:?}");
}

#[test]
fn what_is_over_a_budget_is_a_result_too() {
    let project = Project::new();
    project.three_clean("a");
    project.write(
        "tidegate.toml",
        "[baselines]\nrequired = false\n[[budget]]\nlayer = \"device\"\npeak = \"1KiB\"\n",
    );
    let log = sarif(&project, &["a1"]);
    assert_eq!(
        (&results(&log)[0]["ruleId"], &results(&log)[0]["level"]),
        (&json!("budget"), &json!("error"))
    );
}

/// The lines that GitHub would obey of a log.
fn obeyed(log: &str) -> Vec<&str> {
    let mut stopped: Option<String> = None;
    let mut commands = Vec::new();
    for line in log.lines().map(str::trim_start) {
        match &stopped {
            Some(token) if line == token => stopped = None,
            Some(_) => {}
            None => match line.strip_prefix("::stop-commands::") {
                Some(token) => stopped = Some(format!("::{token}::")),
                None if line.starts_with("::") || line.contains("##[") => commands.push(line),
                None => {}
            },
        }
    }
    commands
}

#[test]
fn annotations_are_at_the_line_and_the_exit_code_is_the_gates() {
    let project = leaking();
    let (code, words) = project.call(&["gate", "leak", "--annotations"]);
    assert_eq!(code, 3, "{words}");
    let [only] = obeyed(&words)[..] else {
        panic!("one annotation in\n{words}")
    };
    assert!(
        only.starts_with("::error file=src/grow.rs,line=12,title=leak in proving::device memory"),
        "{only}"
    );
    assert!(words.contains("at src/grow.rs:12"), "{words}");
    project.three_clean("a");
    project.write("tidegate.toml", "");
    let (_, words) = project.call(&["gate", "a1", "--annotations"]);
    assert!(
        obeyed(&words)[0].starts_with("::warning title=Not judged"),
        "{words}"
    );
    // Without being asked for, there is none.
    let (_, words) = project.call(&["gate", "leak"]);
    assert!(!words.contains("::error"), "{words}");
}

/// What strangers write into names.
const HOSTILE: &str = "a\n::error::pwned\r\n::add-mask::x%0A::set-env::##[error]y`</code>\
    <script>x</script>|@all\u{1b}[2J\u{202e}[z](javascript:x){0}]]>";

fn hostile() -> Project {
    let project = leaking();
    project.run("leak", "device", |run| {
        run["plan"]["name"] = HOSTILE.into();
        run["verdict"]["sentence"] = HOSTILE.into();
        let finding = &mut run["verdict"]["findings"][0];
        finding["sentence"] = format!("::warning::w {HOSTILE} ::error::z").into();
        finding["phase"] = HOSTILE.into();
        phase_book(run, "device")["phase"] = HOSTILE.into();
        explain(
            run,
            HOSTILE,
            "../../../../etc/passwd,line=7::x",
            4_000_000_000,
        );
        run["explanation"]["sites"][0]["phase"] = HOSTILE.into();
        run["explanation"]["sites"][0]["frames"][1]["source"] = HOSTILE.into();
    });
    project
}

#[test]
fn a_hostile_run_makes_no_command_of_its_own() {
    let project = hostile();
    let (code, words) = project.call(&["gate", "leak", "--annotations"]);
    assert_eq!(code, 3, "{words}");
    let commands = obeyed(&words);
    assert_eq!(commands.len(), 1, "{commands:#?}");
    let (properties, message) = commands[0]
        .strip_prefix("::error ")
        .unwrap()
        .split_once("::")
        .unwrap();
    assert!(properties.starts_with("title=leak in "), "{properties}");
    assert!(!properties.contains(','), "{properties}");
    assert!(message.contains("%250A"), "{message}");
    assert!(
        !commands[0].contains(['\u{1b}', '\u{202e}']),
        "{}",
        commands[0]
    );
}

#[test]
fn a_hostile_run_is_text_in_a_summary_and_in_sarif() {
    let project = hostile();
    let (_, words) = project.call(&["gate", "leak", "--summary", "summary.md"]);
    let summary = project.read("summary.md");
    for bad in [
        "<script",
        "\n::",
        "`</code>",
        "@all",
        "\u{1b}",
        "\u{202e}",
        "[z](javascript",
        "</code><",
    ] {
        assert!(!summary.contains(bad), "{bad:?} in\n{summary}\n{words}");
    }
    let log = sarif(&project, &["leak"]);
    let result = &results(&log)[0];
    let told = result["message"]["text"].as_str().unwrap();
    assert!(told.contains("{{0}}") && told.contains("\\[z\\]"), "{told}");
    let place = &result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"];
    assert_eq!(
        place, "tidegate.toml",
        "no path that leads out of the project"
    );
}

#[test]
fn a_summary_has_the_answer_the_line_and_a_plot() {
    let project = leaking();
    let docs = "https://example.org/tidegate/docs/";
    let words = ["gate", "leak", "--summary", "summary.md", "--docs", docs];
    assert_eq!(project.call(&words).0, 3);
    let summary = project.read("summary.md");
    for part in [
        "### ❌ Memory: failed by verdict",
        "[leak](https://example.org/tidegate/docs/verdicts/leak.md)",
        "| 1,048,576 |",
        "<code>src/grow.rs&#58;12</code>",
        "device        ▁▁▂▂▂▃▃▄▄▄▅▅▅▆▆▇▇▇██  1.0 MiB",
        " to 20.0 MiB",
    ] {
        assert!(summary.contains(part), "{part:?} is not in\n{summary}");
    }
    let refused = project.call(&["gate", "leak", "--docs", "javascript:alert(1)"]);
    expect(&refused, 2, &["it is no plain https:// URL"]);
}

#[test]
fn benchers_metrics_are_by_scenario_and_layer_with_the_spread_of_several_runs() {
    let project = Project::new();
    project.three_clean("a");
    project.run("b1", "device", |run| run["plan"]["name"] = "b".into());
    let words = ["gate", "a1", "a2", "a3", "b1", "--bencher", "metrics.json"];
    project.call(&words);
    let metrics: Value = serde_json::from_str(&project.read("metrics.json")).unwrap();
    assert_eq!(
        metrics["a/device"]["peak-bytes"],
        json!({"value": 1_130_496, "lower_value": 1_064_960, "upper_value": 1_130_496})
    );
    assert_eq!(
        metrics["b/device"]["surviving-bytes"],
        json!({"value": 1 << 24})
    );
    assert_eq!(
        metrics["b/device"]["allocated-bytes-per-round"],
        json!({"value": 1_064_960})
    );
    for (name, measures) in metrics.as_object().unwrap() {
        assert!(name.starts_with("a") || name.starts_with("b"), "{name}");
        for (measure, metric) in measures.as_object().unwrap() {
            assert!(metric["value"].is_u64(), "{name} {measure}: {metric}");
        }
    }
    assert!(metrics["a"]["resident-peak-bytes"]["value"].as_u64() > Some(1 << 20));
}

#[test]
fn a_file_that_cannot_be_written_is_named_and_leaves_nothing_behind() {
    let project = leaking();
    let done = project.call(&["gate", "leak", "--sarif", "no/such/folder/gate.sarif"]);
    expect(&done, 1, &["failed to write no/such/folder/gate.sarif"]);
    assert!(!project.path("no").exists());
}
