//! The committed schema of `run.json` is the one that this code writes.

#[test]
fn the_committed_schema_is_up_to_date() {
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/run.schema.json");
    let kept = std::fs::read_to_string(kept).expect("docs/run.schema.json is in the repository");
    assert!(
        kept.trim() == tidegate::run_schema().trim(),
        "the format of run.json has changed: raise `RUN_SCHEMA` if old readers cannot read it, \
         then: cargo run -p tidegate --example run-schema > docs/run.schema.json"
    );
}

#[test]
fn the_committed_schema_of_the_policy_is_up_to_date() {
    let kept = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../docs/tidegate.toml.schema.json"
    );
    let kept = std::fs::read_to_string(kept).expect("it is in the repository");
    assert!(
        kept.trim() == tidegate::policy::policy_schema().trim(),
        "what tidegate.toml can hold has changed: \
         cargo run -p tidegate --example policy-schema > docs/tidegate.toml.schema.json"
    );
}
