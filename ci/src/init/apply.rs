//! Carrying a plan out, as a whole or not at all.

use std::fs::{self, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tempfile::{NamedTempFile, TempPath};

use super::plan::{Does, Plan, Step};
use crate::Failure;

/// What was done so far, and is undone unless all is.
#[derive(Default)]
struct Undo {
    folders: Vec<PathBuf>,
    created: Vec<PathBuf>,
    replaced: Vec<(PathBuf, Vec<u8>)>,
    is_done: bool,
}

impl Drop for Undo {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        for file in &self.created {
            let _ = fs::remove_file(file);
        }
        for (file, before) in &self.replaced {
            let _ = fs::write(file, before);
        }
        // Only empty ones go.
        for folder in self.folders.iter().rev() {
            let _ = fs::remove_dir(folder);
        }
    }
}

/// Writes all that a plan says: first beside its place, then all of it into place.
pub(super) fn apply(plan: &Plan) -> Result<(), Failure> {
    let mut undo = Undo::default();
    let mut staged: Vec<(&Step, TempPath)> = Vec::new();
    for step in plan.steps.iter().filter(|step| step.does != Does::Leave) {
        let file = stage(step, &mut undo).map_err(|error| failed(&step.file, &error))?;
        staged.push((step, file));
    }
    for (step, file) in staged {
        place(step, file, &mut undo).map_err(|error| failed(&step.file, &error))?;
    }
    undo.is_done = true;
    Ok(())
}

fn failed(file: &Path, error: &io::Error) -> Failure {
    Failure::of_usage(format!(
        "failed to write {}: {error}; nothing was changed",
        file.display()
    ))
}

fn stage(step: &Step, undo: &mut Undo) -> io::Result<TempPath> {
    let folder = step.file.parent().unwrap_or(Path::new("."));
    let missing: Vec<&Path> = folder
        .ancestors()
        .take_while(|folder| !folder.exists())
        .collect();
    for folder in missing.into_iter().rev() {
        fs::create_dir(folder)?;
        undo.folders.push(folder.to_owned());
    }
    let mut file: NamedTempFile = tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)?;
    file.write_all(step.text.as_bytes())?;
    Ok(file.into_temp_path())
}

fn place(step: &Step, file: TempPath, undo: &mut Undo) -> io::Result<()> {
    if step.does == Does::Create {
        file.persist_noclobber(&step.file)
            .map_err(|error| error.error)?;
        undo.created.push(step.file.clone());
        return Ok(());
    }
    let before = fs::read(&step.file)?;
    if Some(before.as_slice()) != step.before.as_deref().map(str::as_bytes) {
        return Err(io::Error::other("it has changed meanwhile"));
    }
    fs::set_permissions(&file, fs::metadata(&step.file)?.permissions())?;
    file.persist(&step.file).map_err(|error| error.error)?;
    undo.replaced.push((step.file.clone(), before));
    Ok(())
}
