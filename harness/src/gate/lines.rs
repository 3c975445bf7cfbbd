//! Lines of source code: those that a finding names, and their paths within a project.

use std::fs;
use std::path::{Component, Path, PathBuf};

use schemars::JsonSchema;
use serde::Serialize;

use crate::explain::{Site, belongs};
use crate::run::Run;
use crate::verdict::Finding;

/// Lines of a finding that are kept, the one that lost most first.
const LINES: usize = 5;
/// No path is longer, in bytes.
const LONGEST_PATH: usize = 4096;
/// The largest source file that is looked into, in bytes.
const LARGEST: u64 = 4 << 20;

/// A line of the application's own code that allocates what is lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Line {
    /// The source file as the debug information names it: where it was built.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The function.
    pub function: String,
    /// What stands there, where the file was at hand.
    pub source: Option<String>,
}

/// The lines behind a finding, as far as a second run with stacks has shown them.
pub(super) fn of(run: &Run, finding: &Finding) -> Vec<Line> {
    let Some(explanation) = run.explanation() else {
        return Vec::new();
    };
    let mut sites: Vec<&Site> = explanation
        .sites
        .iter()
        .filter(|site| belongs(site, finding) && site.grown.bytes.max(site.grown.blocks) > 0)
        .collect();
    // The sites come with the largest growth first; the one that the finding is named by
    // comes before all.
    let named = |site: &Site| Some(&site.site) == finding.site.as_ref();
    sites.sort_by_key(|site| !named(site));
    let mut lines: Vec<Line> = Vec::new();
    for frame in sites.into_iter().filter_map(Site::line) {
        let (Some(file), Some(line)) = (&frame.file, frame.line.filter(|line| *line > 0)) else {
            continue;
        };
        let known = |known: &Line| known.file == *file && known.line == line;
        if lines.len() < LINES && !lines.iter().any(known) {
            lines.push(Line {
                file: file.clone(),
                line,
                function: frame.function.clone(),
                source: frame.source.clone(),
            });
        }
    }
    lines
}

/// The root of a project: what the paths of its sources are told from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    folder: PathBuf,
}

impl Root {
    /// The project in this folder.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        let folder = folder.into();
        Self {
            folder: folder.canonicalize().unwrap_or(folder),
        }
    }

    /// The path of a line's file from the root, with `/`; `None` if it is none of the
    /// project's.
    ///
    /// What was built elsewhere (an archive that is run on another machine) has paths of
    /// there: the longest end of such a path that is a file here counts, unless another
    /// line stands in it.
    pub fn path_of(&self, line: &Line) -> Option<String> {
        if line.file.len() > LONGEST_PATH {
            return None;
        }
        let parts = parts(Path::new(&line.file))?;
        let root = parts_of_folder(&self.folder);
        if !root.is_empty() && parts.len() > root.len() && parts.starts_with(&root) {
            return Some(parts[root.len()..].join("/"));
        }
        let ends = (0..parts.len()).map(|at| parts[at..].join("/"));
        ends.into_iter().find(|end| self.holds(end, line))
    }

    /// A file that stands for the whole project, where no line is known.
    pub fn whole(&self) -> Option<&'static str> {
        let files = [crate::policy::POLICY_FILE, "Cargo.toml", "README.md"];
        files
            .into_iter()
            .find(|file| self.folder.join(file).is_file())
    }

    /// Where a line is, for people: its path from the root, or as it was built.
    pub fn shown(&self, line: &Line) -> String {
        let path = self.path_of(line).unwrap_or_else(|| line.file.clone());
        format!("{path}:{}", line.line)
    }

    /// Whether there is such a file, and nothing else stands in that line.
    fn holds(&self, path: &str, line: &Line) -> bool {
        let path = self.folder.join(path);
        let Ok(about) = fs::metadata(&path) else {
            return false;
        };
        let Some(source) = &line.source else {
            return about.is_file();
        };
        let text = match about.is_file() && about.len() <= LARGEST {
            true => fs::read(&path).unwrap_or_default(),
            false => return false,
        };
        let text = String::from_utf8_lossy(&text);
        let there = text.lines().nth((line.line as usize).saturating_sub(1));
        there.is_some_and(|there| there.trim() == source)
    }
}

/// The names of a path, `..` taken away with what it leaves; `None` if it leads out.
fn parts(path: &Path) -> Option<Vec<String>> {
    let mut parts = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => parts.push(name.to_str()?.to_owned()),
            Component::ParentDir => drop(parts.pop()?),
            Component::RootDir | Component::CurDir => {}
            Component::Prefix(_) => return None,
        }
    }
    Some(parts)
}

/// The names of an absolute folder; empty for one that is not.
fn parts_of_folder(folder: &Path) -> Vec<String> {
    match folder.is_absolute() {
        true => parts(folder).unwrap_or_default(),
        false => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(file: &str, source: Option<&str>) -> Line {
        Line {
            file: file.to_owned(),
            line: 2,
            function: "f".to_owned(),
            source: source.map(str::to_owned),
        }
    }

    fn project() -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().expect("a folder");
        for file in ["src/lib.rs", "crates/a/src/lib.rs"] {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            fs::write(path, "//! Lib.\n    let kept = grow();\n").expect("a file");
        }
        let root = Root::new(folder.path());
        (folder, root)
    }

    #[test]
    fn a_file_of_the_project_is_told_from_its_root() {
        let (folder, root) = project();
        let here = folder.path().canonicalize().expect("a path");
        for (inside, told) in [
            ("src/lib.rs", "src/lib.rs"),
            ("crates/a/../a/src/lib.rs", "crates/a/src/lib.rs"),
            ("made/by/a/build.rs", "made/by/a/build.rs"),
        ] {
            let file = here.join(inside).display().to_string();
            assert_eq!(root.path_of(&line(&file, None)).as_deref(), Some(told));
        }
    }

    #[test]
    fn what_was_built_elsewhere_is_found_by_the_longest_end_of_its_path() {
        let (_folder, root) = project();
        let path = |file: &str, source| root.path_of(&line(file, source));
        let built = "/elsewhere/p/crates/a/src/lib.rs";
        assert_eq!(path(built, None).as_deref(), Some("crates/a/src/lib.rs"));
        assert_eq!(
            path("/builds/p/src/lib.rs", Some("let kept = grow();")).as_deref(),
            Some("src/lib.rs")
        );
    }

    #[test]
    fn what_is_none_of_the_projects_has_no_path() {
        let (_folder, root) = project();
        let other = line("/builds/other/src/lib.rs", Some("something else"));
        assert_eq!(root.path_of(&other), None, "another line stands there");
        for file in [
            "/etc/passwd",
            "../../../etc/passwd",
            "/usr/src/glibc/malloc.c",
            "",
            "/",
        ] {
            assert_eq!(root.path_of(&line(file, None)), None, "{file}");
        }
        let long = "a/".repeat(1 << 20);
        assert_eq!(root.path_of(&line(&long, None)), None);
    }
}
