//! Writes the JSON schemas of all formats into a folder: `docs/schemas` keeps them.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args_os().nth(1).ok_or("usage: schemas FOLDER")?;
    for (name, schema) in tidegate::schemas() {
        let text = serde_json::to_string_pretty(&schema)? + "\n";
        let file = PathBuf::from(&folder).join(format!("{name}.schema.json"));
        std::fs::write(file, text)?;
    }
    Ok(())
}
