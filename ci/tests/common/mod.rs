//! What the tests of several commands share.

use serde_json::Value;

/// A file that a command wrote, which must follow the committed schema of its format.
pub(crate) fn parsed(text: &str) -> Value {
    let value =
        serde_json::from_str::<Value>(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let format = value["schema"].as_str().expect("it names its format");
    let name = format.strip_prefix("tidegate.").unwrap();
    let name = name.split_once('/').unwrap().0;
    follows(name, &value);
    value
}

/// Holds a value against a committed schema.
pub(crate) fn follows(name: &str, value: &Value) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/schemas");
    let schema = std::fs::read(format!("{folder}/{name}.schema.json")).unwrap();
    let schema = serde_json::from_slice(&schema).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let problems: Vec<String> = validator
        .iter_errors(value)
        .map(|problem| format!("{}: {problem}", problem.instance_path()))
        .collect();
    assert!(problems.is_empty(), "{name}: {problems:#?}");
}
