//! `cargo tidegate report` over stored runs: that it writes one whole file or none, and says
//! in JSON what is on it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A run that is stored in the repository.
fn stored(name: &str) -> PathBuf {
    let runs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/gpu-runs");
    runs.join(name).join("run.json")
}

fn report(folder: &Path, arguments: &[&Path]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cargo-tidegate"))
        .arg("report")
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap()
}

#[test]
fn a_report_of_several_runs_is_one_file_and_says_what_each_was() {
    let folder = tempfile::tempdir().unwrap();
    let (stream, clean) = (stored("stream"), stored("clean"));
    let output = report(
        folder.path(),
        &[
            &stream,
            &clean,
            Path::new("--out=page.html"),
            Path::new("--json=page.json"),
        ],
    );
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{words}");
    assert!(
        words.starts_with("handle-leak · probe: GPU streams"),
        "{words}"
    );
    assert!(
        words.lines().all(|line| line.chars().count() <= 80),
        "{words}"
    );

    let html = fs::read_to_string(folder.path().join("page.html")).unwrap();
    assert!(html.starts_with("<!DOCTYPE html>") && html.ends_with("</html>"));
    assert!(!html.contains("http://") && !html.contains("https://"));
    let json = fs::read(folder.path().join("page.json")).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["schema"], "tidegate.page/1");
    assert_eq!(json["bytes"], html.len());
    let answers: Vec<&str> = json["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["answer"].as_str().unwrap())
        .collect();
    assert_eq!(answers, ["handle-leak", "clean"]);
}

#[test]
fn what_cannot_be_shown_leaves_the_page_of_before_alone() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("report.html");
    fs::write(&page, "before").unwrap();
    fs::write(
        folder.path().join("notes.json"),
        "{\"schema\":\"of another's\"}",
    )
    .unwrap();
    let (clean, notes) = (stored("clean"), PathBuf::from("notes.json"));
    let output = report(folder.path(), &[&clean, &notes]);
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{words}");
    assert!(
        words.contains("cannot show notes.json: it is of format"),
        "{words}"
    );
    assert_eq!(fs::read_to_string(&page).unwrap(), "before");
    let files = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(files, 2, "no part of a page is left behind");

    let nowhere = report(
        folder.path(),
        &[&clean, Path::new("--out=no/such/folder.html")],
    );
    assert_eq!(nowhere.status.code(), Some(1));
}
