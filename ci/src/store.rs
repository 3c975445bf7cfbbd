//! Writing what a command found, whole or not at all.

use std::io::Write as _;
use std::path::Path;

use serde::Serialize;

use crate::Failure;

/// Writes a value as JSON, whole or not at all.
pub(crate) fn store_json(path: &Path, value: &impl Serialize) -> Result<(), Failure> {
    let write = || -> std::io::Result<()> {
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        serde_json::to_writer_pretty(&mut file, value)?;
        file.write_all(b"\n")?;
        file.persist(path)?;
        Ok(())
    };
    write()
        .map_err(|error| Failure::of_ours(format!("failed to write {}: {error}", path.display())))
}
