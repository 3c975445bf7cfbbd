//! What is to be done to a package: which files are made, added to, or left.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use toml_edit::{DocumentMut, Item, Table};

use super::crates::Package;
use super::source::Source;
use crate::Failure;

/// What is to be done, and what comes after.
#[derive(Debug)]
pub(super) struct Plan {
    pub steps: Vec<Step>,
    pub next: Vec<String>,
}

/// What becomes of one file.
#[derive(Debug, Serialize)]
pub(super) struct Step {
    pub does: Does,
    pub file: PathBuf,
    /// The lines that are new; of a file that is left, those to add by hand.
    pub lines: String,
    /// Why it is left.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// The whole file as it will be.
    #[serde(skip)]
    pub text: String,
    /// The whole file as it was, where something is added to it.
    #[serde(skip)]
    pub before: Option<String>,
}

/// What is done to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Does {
    /// It is made.
    Create,
    /// It gets lines more.
    Add,
    /// It stays as it is.
    Leave,
}

impl Step {
    /// Makes a file, unless there is one; `by_hand` is what then is to be added to it, if
    /// its text does not have the mark that it is there already.
    fn file(path: PathBuf, text: String, mark: &str, by_hand: &str) -> Self {
        if fs::symlink_metadata(&path).is_err() {
            return Self {
                does: Does::Create,
                file: path,
                lines: text.clone(),
                why: String::new(),
                text,
                before: None,
            };
        }
        let there = fs::read_to_string(&path).unwrap_or_default();
        match mark.is_empty() || there.contains(mark) {
            true => Self::left(path, "it is there", ""),
            false => Self::left(path, "it is there, and stays as it is", by_hand),
        }
    }

    fn left(file: PathBuf, why: &str, by_hand: &str) -> Self {
        Self {
            does: Does::Leave,
            file,
            lines: by_hand.to_owned(),
            why: why.to_owned(),
            text: String::new(),
            before: None,
        }
    }
}

impl Plan {
    /// What a package needs. Reads, and writes nothing.
    pub fn of(package: &Package, tidegate: Option<&str>) -> Result<Self, Failure> {
        let mut next = Vec::new();
        let steps = vec![
            dependency(package, tidegate, &mut next)?,
            first_test(package, &mut next),
            nextest(package),
            Step::file(
                package.workspace.join("tidegate.toml"),
                include_str!("tidegate.toml").to_owned(),
                "",
                "",
            ),
            workflow(package, tidegate, &mut next),
        ];
        next.extend([
            "put your own work into tests/memory.rs".to_owned(),
            format!("`cargo nextest run -p {} --test memory` runs it, and keeps what was measured in target/tidegate", package.name),
            "`cargo tidegate gate target/tidegate/*` judges that by tidegate.toml".to_owned(),
            "`cargo tidegate bless RUN RUN RUN --reason \"…\"` makes runs the baseline of this machine".to_owned(),
        ]);
        Ok(Self { steps, next })
    }

    /// Whether there is nothing to do.
    pub fn is_done(&self) -> bool {
        self.steps.iter().all(|step| step.does == Does::Leave)
    }
}

/// The dev-dependency in the package's manifest, all else in it as it is.
fn dependency(
    package: &Package,
    tidegate: Option<&str>,
    next: &mut Vec<String>,
) -> Result<Step, Failure> {
    let path = package.manifest();
    let path = path.canonicalize().unwrap_or(path);
    let (text, mut manifest) = read(&path)?;
    let finds_tests = manifest.get("package").and_then(|it| it.get("autotests"));
    if finds_tests.and_then(Item::as_bool) == Some(false) {
        next.push(
            "the package has `autotests = false`: add [[test]] with name = \"memory\" to its manifest"
                .to_owned(),
        );
    }
    let has = |manifest: &DocumentMut, table: &[&str]| {
        let mut item = Some(manifest.as_item());
        for name in table {
            item = item.and_then(|item| item.get(name));
        }
        item.is_some_and(|item| item.get("tidegate").is_some())
    };
    if has(&manifest, &["dev-dependencies"]) || has(&manifest, &["dependencies"]) {
        return Ok(Step::left(path, "it depends on tidegate already", ""));
    }
    let root = package.workspace.join("Cargo.toml");
    let is_inherited =
        read(&root).is_ok_and(|(_, root)| has(&root, &["workspace", "dependencies"]));
    let value = match is_inherited {
        true => {
            let mut table = toml_edit::InlineTable::new();
            table.insert("workspace", true.into());
            table.into()
        }
        false => {
            let source = Source::find(tidegate)?;
            if !source.goes_along(package) {
                next.push(
                    "the dependency is a folder of this machine: for CI and others, --tidegate takes the \
                     URL of a git repository"
                        .to_owned(),
                );
            }
            source.dependency(package)
        }
    };
    let table = manifest
        .entry("dev-dependencies")
        .or_insert_with(|| Item::Table(Table::new()));
    let Some(table) = table.as_table_like_mut() else {
        return Err(Failure::of_usage(format!(
            "{}: dev-dependencies is no table",
            path.display()
        )));
    };
    table.insert("tidegate", Item::Value(value));
    let after = manifest.to_string();
    Ok(Step {
        does: Does::Add,
        file: path,
        lines: added(&text, &after),
        why: String::new(),
        text: after,
        before: Some(text),
    })
}

fn read(path: &Path) -> Result<(String, DocumentMut), Failure> {
    let failed = |problem: String| Failure::of_usage(format!("{}: {problem}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    let manifest = text
        .parse()
        .map_err(|error: toml_edit::TomlError| failed(error.message().to_owned()))?;
    Ok((text, manifest))
}

/// The lines that the one text has more than the other, where something was put in.
fn added(before: &str, after: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let alike = |(one, other): &(&&str, &&str)| one == other;
    let head = old.iter().zip(&new).take_while(alike).count();
    let tail = old[head..].iter().rev().zip(new[head..].iter().rev());
    let tail = tail.take_while(alike).count();
    new[head..new.len() - tail].join("\n")
}

/// A first test, in a file of its own.
fn first_test(package: &Package, next: &mut Vec<String>) -> Step {
    let allocator = package.own_allocator();
    let mut text = format!(
        "//! `{}` gives back what it takes, round after round.\n\n",
        package.name
    );
    match &allocator {
        None => text.push_str(
            "/// Books what Rust allocates as such.\n\
             #[global_allocator]\n\
             static ALLOC: tidegate::Alloc = tidegate::Alloc::system();\n\n",
        ),
        Some((file, line)) => {
            let place = format!("{}:{line}", package.shown(file));
            text.push_str(&format!(
                "// The library's allocator ({place}) is this test's too:\n\
                 // there can be only one. What it takes from malloc or maps is booked.\n\n"
            ));
            next.push(format!(
                "the library has a global allocator ({place}), so the test sets none; wrapped as \
                 `tidegate::Alloc::new(…)`, its blocks would be booked one by one"
            ));
        }
    }
    match &package.library {
        Some((name, _)) => text.push_str(&format!(
            "/// One round of work: call your own here, as `{name}::prove(4)`.\n"
        )),
        None => {
            text.push_str(
                "/// One round of work. A program's functions cannot be called from\n\
                 /// here: move them to src/lib.rs and call them, or judge the program\n\
                 /// with `cargo tidegate run`.\n",
            );
            next.push(format!(
                "`{}` has no library, so that a test cannot call its functions: move them to src/lib.rs, \
                 or judge the program as it is with `cargo tidegate run`",
                package.name
            ));
        }
    }
    text.push_str(&format!(
        "fn work() {{\n    std::hint::black_box(vec![1_u8; 4096]);\n}}\n\n\
         #[test]\n\
         fn work_gives_everything_back() {{\n    \
             tidegate::Scenario::new(\"{}\")\n        \
                 .run(|_round| work())\n        \
                 .assert_passes();\n\
         }}\n",
        package.name
    ));
    Step::file(package.folder.join("tests/memory.rs"), text, "", "")
}

/// A group of one for tests that judge memory, and the file of results in CI.
fn nextest(package: &Package) -> Step {
    let filter = match package.of {
        1 => "binary(memory)".to_owned(),
        _ => format!("package({}) & binary(memory)", package.name),
    };
    let text = include_str!("nextest.toml").replace("FILTER", &filter);
    let path = package.workspace.join(".config/nextest.toml");
    Step::file(path, text.clone(), "binary(memory)", &text)
}

fn workflow(package: &Package, tidegate: Option<&str>, next: &mut Vec<String>) -> Step {
    let path = package.repository.join(".github/workflows/memory.yml");
    let mut text = include_str!("memory.yml").to_owned();
    let inside = package.workspace.strip_prefix(&package.repository);
    if let Some(inside) = inside.ok().filter(|inside| *inside != Path::new("")) {
        // As a string of JSON, which YAML reads too.
        let folder = serde_json::Value::from(inside.display().to_string());
        text.push_str(&format!(
            "        with:\n          working-directory: {folder}\n"
        ));
    }
    let source = tidegate.map(|text| Source::find(Some(text)));
    let action = source.and_then(|source| source.ok()?.action());
    if let Some((repository, commit)) = &action {
        text = text.replace("OWNER/tidegate", repository);
        if let Some(commit) = commit {
            text = text.replace("COMMIT", commit);
        }
    }
    let step = Step::file(path, text, "/.github/actions/gate@", "");
    if step.does == Does::Create && !matches!(action, Some((_, Some(_)))) {
        next.push(format!(
            "in {}, write who hosts Tidegate and which commit of it (OWNER, COMMIT)",
            package.shown(&step.file)
        ));
    }
    step
}
