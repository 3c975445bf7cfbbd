//! `cargo tidegate doctor` says what a machine can measure.

use std::process::{Command, Output};

fn doctor(arguments: &[&str], cupti: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cargo-tidegate"))
        .arg("doctor")
        .args(arguments)
        .env("TIDEGATE_CUPTI", cupti)
        .output()
        .unwrap()
}

#[test]
fn what_is_missing_decides_the_exit_code_and_has_an_advice() {
    let output = doctor(&["--json"], "/nowhere/libcupti.so");
    let checks: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = checks.as_array().unwrap();
    let is_missing = |check: &&serde_json::Value| check["state"] == "missing";
    for check in checks.iter().filter(is_missing) {
        assert!(check["advice"].is_string(), "{check}");
    }
    let missing = checks.iter().filter(is_missing).count();
    let expected = if missing == 0 { 0 } else { 5 };
    assert_eq!(output.status.code(), Some(expected), "{checks:#?}");
    // With a card the ledger of it is wanted; without one nobody asks for CUPTI.
    let has_card = std::path::Path::new("/dev/nvidiactl").exists();
    let asked = checks.iter().any(|check| check["what"] == "CUPTI");
    assert_eq!(asked, has_card, "{checks:#?}");
}

#[test]
fn the_report_fits_a_terminal_of_80_columns() {
    let output = doctor(&[], "");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("C library") && text.contains("glibc"),
        "{text}"
    );
    // A path is not broken, however long it is.
    let is_long = |line: &&str| line.chars().count() > 80 && !line.contains('/');
    assert_eq!(text.lines().find(is_long), None, "{text}");
}
