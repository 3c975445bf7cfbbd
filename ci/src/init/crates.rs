//! The package that is set up: which, and what it is like, from `cargo metadata`.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::Failure;

/// A package of the workspace that the command is called in.
#[derive(Debug)]
pub(super) struct Package {
    pub name: String,
    /// The folder of its manifest.
    pub folder: PathBuf,
    /// The workspace's root.
    pub workspace: PathBuf,
    /// Packages of the workspace.
    pub of: usize,
    /// The name of its library in code, and the library's root; `None` if it has none.
    pub library: Option<(String, PathBuf)>,
    /// The root of the repository, or of the workspace where there is none.
    pub repository: PathBuf,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Found>,
    workspace_root: PathBuf,
}

#[derive(Deserialize)]
struct Found {
    name: String,
    manifest_path: PathBuf,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
    src_path: PathBuf,
}

impl Found {
    fn folder(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(Path::new("."))
    }
}

impl Package {
    /// The package of this name; unless given, the one of this folder, or the only one.
    pub fn find(name: Option<&str>) -> Result<Self, Failure> {
        let mut metadata = metadata()?;
        let here = std::env::current_dir().and_then(|here| here.canonicalize());
        let here = here.map_err(|error| {
            Failure::of_ours(format!("failed to tell the current folder: {error}"))
        })?;
        metadata
            .packages
            .sort_by(|one, other| one.name.cmp(&other.name));
        let names: Vec<&str> = metadata
            .packages
            .iter()
            .map(|one| one.name.as_str())
            .collect();
        let names = names.join(", ");
        let of = metadata.packages.len();
        let at = match name {
            Some(name) => metadata.packages.iter().position(|one| one.name == name),
            None => nearest(&metadata.packages, &here),
        };
        let Some(at) = at else {
            return Err(Failure::of_usage(match (name, of) {
                (_, 0) => {
                    "this workspace has no package; make one with `cargo new --lib NAME`".to_owned()
                }
                (Some(name), _) => format!("there is no package `{name}` here; there are {names}"),
                (None, _) => format!(
                    "this workspace has several packages, and this folder is none of them; say which with \
                     -p NAME: {names}"
                ),
            }));
        };
        let found = metadata.packages.swap_remove(at);
        let library = found.targets.iter().find(|target| {
            let mut kinds = target.kind.iter();
            kinds.any(|kind| matches!(kind.as_str(), "lib" | "rlib"))
        });
        let repository = metadata
            .workspace_root
            .ancestors()
            .find(|folder| folder.join(".git").exists());
        Ok(Self {
            folder: found.folder().to_owned(),
            library: library
                .map(|library| (library.name.replace('-', "_"), library.src_path.clone())),
            repository: repository.unwrap_or(&metadata.workspace_root).to_owned(),
            name: found.name,
            workspace: metadata.workspace_root,
            of,
        })
    }

    pub fn manifest(&self) -> PathBuf {
        self.folder.join("Cargo.toml")
    }

    /// A file's path for people: from the repository's root.
    pub fn shown(&self, file: &Path) -> String {
        let short = file.strip_prefix(&self.repository).unwrap_or(file);
        short.display().to_string()
    }

    /// A source of the library that has a global allocator of its own, with the line.
    pub fn own_allocator(&self) -> Option<(PathBuf, usize)> {
        let (_, root) = self.library.as_ref()?;
        let folder = root.parent()?;
        let mut folders = vec![folder.to_owned()];
        let mut found = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).ok()?.flatten() {
                let path = entry.path();
                let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
                // Programs are linked with an allocator of their own.
                let is_program = path.ends_with("src/main.rs") || path.ends_with("src/bin");
                if is_program {
                    continue;
                } else if is_folder {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    found.extend(line_of_allocator(&path).map(|line| (path, line)));
                }
            }
        }
        found.sort();
        found.into_iter().next()
    }
}

fn line_of_allocator(path: &Path) -> Option<usize> {
    let text = std::fs::read_to_string(path).ok()?;
    let at = text
        .lines()
        .position(|line| line.trim_start().starts_with("#[global_allocator]"))?;
    Some(at + 1)
}

/// The package whose folder holds this one, the nearest; else the only one there is.
fn nearest(packages: &[Found], here: &Path) -> Option<usize> {
    let depth = |found: &Found| {
        let folder = found.folder().canonicalize().ok()?;
        here.starts_with(&folder)
            .then(|| folder.components().count())
    };
    let depths = packages.iter().enumerate();
    let nearest = depths
        .filter_map(|(at, found)| Some((depth(found)?, at)))
        .max();
    match nearest {
        Some((_, at)) => Some(at),
        None if packages.len() == 1 => Some(0),
        None => None,
    }
}

fn metadata() -> Result<Metadata, Failure> {
    // Cargo says in CARGO who called us.
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(&cargo)
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .output();
    let output = output
        .map_err(|error| Failure::of_ours(format!("failed to run {}: {error}", cargo.display())))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim();
        return Err(Failure::of_usage(format!(
            "cargo finds no usable package here: {}",
            said.strip_prefix("error: ").unwrap_or(said)
        )));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| {
        Failure::of_ours(format!("failed to read what cargo metadata says: {error}"))
    })
}
