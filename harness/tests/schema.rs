//! The committed schemas are those that this code writes.

#[test]
fn the_committed_schemas_are_up_to_date() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/schemas");
    for (name, schema) in tidegate::schemas() {
        let kept = std::fs::read(format!("{folder}/{name}.schema.json")).unwrap_or_default();
        let kept: serde_json::Value = serde_json::from_slice(&kept).unwrap_or_default();
        assert!(
            kept == *schema.as_value(),
            "the format {name} has changed: raise its version if old readers cannot read it, \
             then: cargo run -p tidegate --example schemas docs/schemas"
        );
    }
}
