//! Where the crate `tidegate` comes from, as long as no registry has it.

use std::path::{Path, PathBuf};

use toml_edit::{InlineTable, Value};

use super::crates::Package;
use crate::Failure;

/// A source that a dependency names.
#[derive(Debug)]
pub(super) enum Source {
    /// A folder with the crate.
    Path(PathBuf),
    /// A git repository, and a commit of it.
    Git { url: String, commit: Option<String> },
}

impl Source {
    /// What was asked for; unless anything was, the folder that this command was built in.
    pub fn find(asked: Option<&str>) -> Result<Self, Failure> {
        match asked {
            Some(text) if is_url(text) => Ok(match text.split_once('#') {
                Some((url, commit)) => Self::Git {
                    url: url.to_owned(),
                    commit: Some(commit.to_owned()),
                },
                None => Self::Git {
                    url: text.to_owned(),
                    commit: None,
                },
            }),
            Some(path) => crate_in(Path::new(path)).map(Self::Path).ok_or_else(|| {
                Failure::of_usage(format!(
                    "{path} holds no crate `tidegate`, nor a folder `harness` with it; give the folder \
                     of Tidegate's repository, or the URL of one"
                ))
            }),
            None => built_in().map(Self::Path).ok_or_else(|| {
                Failure::of_usage(
                    "the folder that this command was built in is gone; say where the crate `tidegate` \
                     comes from with --tidegate PATH|URL",
                )
            }),
        }
    }

    /// The value of the dependency in a manifest.
    pub fn dependency(&self, package: &Package) -> Value {
        let mut table = InlineTable::new();
        match self {
            Self::Path(folder) => {
                table.insert("path", written(folder, package).into());
            }
            Self::Git { url, commit } => {
                table.insert("git", url.as_str().into());
                if let Some(commit) = commit {
                    table.insert("rev", commit.as_str().into());
                }
            }
        }
        table.into()
    }

    /// Whether another machine with this repository alone finds it.
    pub fn goes_along(&self, package: &Package) -> bool {
        match self {
            Self::Path(folder) => folder.starts_with(&package.repository),
            Self::Git { .. } => true,
        }
    }

    /// OWNER/NAME on GitHub and the commit, as far as that is where it comes from.
    pub fn action(&self) -> Option<(String, Option<String>)> {
        let Self::Git { url, commit } = self else {
            return None;
        };
        let rest = [
            "https://github.com/",
            "ssh://git@github.com/",
            "git@github.com:",
        ]
        .into_iter()
        .find_map(|host| url.strip_prefix(host))?;
        let rest = rest.trim_end_matches('/');
        let rest = rest.strip_suffix(".git").unwrap_or(rest);
        let is_name = |name: &str| {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            !name.is_empty() && name.chars().all(is_plain)
        };
        let (owner, name) = rest.split_once('/')?;
        if !is_name(owner) || !is_name(name) {
            return None;
        }
        // A tag can be moved, a hash cannot.
        let is_hash = |commit: &String| {
            commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        Some((format!("{owner}/{name}"), commit.clone().filter(is_hash)))
    }
}

fn is_url(text: &str) -> bool {
    let schemes = ["https://", "http://", "ssh://", "git://", "file://", "git@"];
    schemes.into_iter().any(|scheme| text.starts_with(scheme))
}

/// The crate's folder: this one, or `harness` within the repository's.
fn crate_in(folder: &Path) -> Option<PathBuf> {
    let is_it = |folder: &Path| {
        let text = std::fs::read_to_string(folder.join("Cargo.toml")).ok()?;
        let manifest: toml_edit::DocumentMut = text.parse().ok()?;
        let name = manifest.get("package")?.get("name")?.as_str()?;
        (name == "tidegate").then(|| folder.canonicalize().ok())?
    };
    is_it(folder).or_else(|| is_it(&folder.join("harness")))
}

fn built_in() -> Option<PathBuf> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?;
    // What `cargo install --git` built lies in a folder that Cargo cleans up.
    let is_kept = !repository
        .components()
        .any(|part| part.as_os_str() == "checkouts");
    is_kept.then(|| crate_in(repository))?
}

/// A path as a manifest has it: relative where it lies within the repository.
fn written(folder: &Path, package: &Package) -> String {
    let Ok(inside) = folder.strip_prefix(&package.repository) else {
        return folder.display().to_string();
    };
    let from = package.folder.strip_prefix(&package.repository);
    let up = from.map_or(0, |from| from.components().count());
    let path: PathBuf = std::iter::repeat_n("..", up).collect();
    path.join(inside).display().to_string()
}
