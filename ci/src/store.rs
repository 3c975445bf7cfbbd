//! Writing what a command found, whole or not at all.

use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde::Serialize;

use crate::Failure;

/// Writes a value as JSON, whole or not at all.
pub(crate) fn store_json(path: &Path, value: &impl Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_vec_pretty(value).map_err(|error| {
        Failure::of_ours(format!("failed to write {}: {error}", path.display()))
    })?;
    text.push(b'\n');
    store(path, &text)
}

/// Writes a file, whole or not at all.
pub(crate) fn store(path: &Path, content: &[u8]) -> Result<(), Failure> {
    let write = || -> std::io::Result<()> {
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        // Others may read it, as far as any file that is made here.
        let mut file = tempfile::Builder::new()
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder)?;
        file.write_all(content)?;
        file.persist(path)?;
        Ok(())
    };
    write()
        .map_err(|error| Failure::of_ours(format!("failed to write {}: {error}", path.display())))
}
