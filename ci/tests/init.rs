//! `cargo tidegate init` in crates outside of this workspace: what it writes and what it
//! leaves, and that what it wrote tests, passes, and finds a leak that is planted.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const MANIFEST: &str = "\
[package]
name = \"fresh\" # a comment that stays
version = \"0.1.0\"
edition = \"2024\"

[dev-dependencies]

[workspace]
";

/// A user's repository in a temporary folder.
struct Crate {
    folder: tempfile::TempDir,
}

impl Crate {
    fn new(files: &[(&str, &str)]) -> Self {
        let made = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        made.write(".git/HEAD", "");
        files.iter().for_each(|(name, text)| made.write(name, text));
        made
    }

    /// A crate with a library.
    fn fresh() -> Self {
        Self::new(&[("Cargo.toml", MANIFEST), ("src/lib.rs", LIBRARY)])
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// All files but Cargo's, with their texts.
    fn files(&self) -> BTreeMap<PathBuf, String> {
        let mut files = BTreeMap::new();
        let mut folders = vec![self.folder.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => folders.push(path),
                    false => drop(files.insert(path.clone(), fs::read_to_string(path).unwrap())),
                }
            }
        }
        files
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.folder.path());
        // What the test itself was started with is not this crate's.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            let is_ours = ["NEXTEST", "CARGO_", "TIDEGATE_"]
                .iter()
                .any(|of| name.starts_with(of));
            let is_cargos_own = matches!(
                &*name,
                "CARGO_HOME" | "CARGO_BUILD_JOBS" | "CARGO_INCREMENTAL"
            );
            if (is_ours && !is_cargos_own) || name == "CI" {
                command.env_remove(name);
            }
        }
        command
    }

    /// Calls `cargo tidegate init`, in a pipe.
    fn init_in(&self, folder: &str, words: &[&str]) -> (i32, String) {
        let mut command = self.command(env!("CARGO_BIN_EXE_cargo-tidegate"));
        command
            .current_dir(self.path(folder))
            .arg("init")
            .args(words);
        said(command.output().unwrap())
    }

    fn init(&self, words: &[&str]) -> (i32, String) {
        self.init_in("", words)
    }
}

fn said(output: Output) -> (i32, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let words = format!("{}{}", text(&output.stdout), text(&output.stderr));
    (output.status.code().unwrap_or(-1), words)
}

#[track_caller]
fn expect((code, words): &(i32, String), wanted: i32, parts: &[&str]) {
    assert_eq!(*code, wanted, "{words}");
    let flat = words.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in parts {
        assert!(flat.contains(part), "{part:?} is not in\n{words}");
    }
}

const LIBRARY: &str = "\
//! Proves, for show.

/// Proves, and gives back what that took.
pub fn prove() {
    let witness = vec![1_u8; 1 << 16];
    std::hint::black_box(&witness);
    // here
}
";

/// The line of the library that allocates.
const LINE: usize = 5;

/// The repository of Tidegate.
fn tidegate() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    root.canonicalize().unwrap().display().to_string()
}

/// Runs the crate's tests as a user does, and returns the exit code and the words.
///
/// Everything but the crate itself is built once, in a folder that stays.
fn nextest(fresh: &Crate) -> (i32, String) {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("init");
    let mut command = fresh.command("cargo");
    command
        .args([
            "nextest",
            "run",
            "--profile",
            "ci",
            "--offline",
            "--cargo-quiet",
        ])
        .env("CARGO_TARGET_DIR", target)
        .env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only")
        .env("TIDEGATE_RUNS", fresh.path("runs"));
    said(command.output().unwrap())
}

/// Gates the crate's newest run.
fn gate(fresh: &Crate) -> (i32, String) {
    let runs = fs::read_dir(fresh.path("runs")).unwrap();
    let runs = runs.map(|run| run.unwrap().path());
    let newest = runs.max_by_key(|run| {
        fs::metadata(run.join("run.json"))
            .unwrap()
            .modified()
            .unwrap()
    });
    let mut command = fresh.command(env!("CARGO_BIN_EXE_cargo-tidegate"));
    command.arg("gate").arg(newest.unwrap());
    command.args(["--annotations", "--sarif", "gate.sarif"]);
    said(command.output().unwrap())
}

#[test]
fn a_fresh_crate_passes_and_a_planted_leak_is_red_at_its_line() {
    let fresh = Crate::fresh();
    let lock = fs::read_to_string(Path::new(&tidegate()).join("Cargo.lock")).unwrap();
    // The versions that this workspace has, which are at hand.
    fresh.write("Cargo.lock", &lock);
    expect(&fresh.init(&["--tidegate", &tidegate()]), 0, &["Done."]);
    let test = fresh.read("tests/memory.rs");
    let work = "std::hint::black_box(vec![1_u8; 4096]);";
    assert!(test.contains(work), "{test}");
    fresh.write("tests/memory.rs", &test.replace(work, "fresh::prove();"));

    expect(&nextest(&fresh), 0, &["1 test run: 1 passed"]);
    expect(&gate(&fresh), 0, &["gate: pass: 1 of 1 scenario judged"]);

    let leaking = LIBRARY.replace("// here", "std::mem::forget(witness);");
    fresh.write("src/lib.rs", &leaking);
    let place = format!("src/lib.rs:{LINE}");
    let done = nextest(&fresh);
    expect(
        &done,
        100,
        &[&place, "leak · fresh", "65,536 bytes in 1 block per round"],
    );
    // JUnit has the verdict as the failure's text.
    let junit = fresh.read("target/nextest/ci/junit.xml");
    let failure = junit.split_once("<failure").expect(&junit).1;
    let failure = failure.split_once("</failure>").expect(&junit).0;
    assert!(
        failure.contains("is never released: 65,536 bytes"),
        "{failure}"
    );

    let done = gate(&fresh);
    let annotation = format!("::error file=src/lib.rs,line={LINE},title=leak in fresh::");
    expect(&done, 3, &[&format!("at {place}"), &annotation]);
    let sarif: Value = serde_json::from_str(&fresh.read("gate.sarif")).unwrap();
    let place = &sarif["runs"][0]["results"][0]["locations"][0]["physicalLocation"];
    assert_eq!(
        (
            &place["artifactLocation"]["uri"],
            &place["region"]["startLine"]
        ),
        (&"src/lib.rs".into(), &LINE.into())
    );
}

#[test]
fn what_it_adds_is_shown_first_and_a_dry_run_writes_nothing() {
    let fresh = Crate::fresh();
    let before = fresh.files();
    let words = [
        "--tidegate",
        &tidegate(),
        "--dry-run",
        "--json",
        "plan.json",
    ];
    let done = fresh.init(&words);
    let dependency = format!("+ tidegate = {{ path = \"{}/harness\" }}", tidegate());
    expect(
        &done,
        0,
        &[
            &format!("add to Cargo.toml {dependency}"),
            "create tests/memory.rs",
            "create .config/nextest.toml",
            "create tidegate.toml",
            "create .github/workflows/memory.yml",
            "Nothing was written (--dry-run).",
            "the dependency is a folder of this machine",
        ],
    );
    let plan: Value = serde_json::from_str(&fresh.read("plan.json")).unwrap();
    assert_eq!(plan["schema"], "tidegate.init/1");
    let does: Vec<&Value> = plan["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| &step["does"])
        .collect();
    assert_eq!(does, ["add", "create", "create", "create", "create"]);
    fs::remove_file(fresh.path("plan.json")).unwrap();
    assert_eq!(fresh.files(), before);
}

#[test]
fn the_manifest_keeps_its_form_and_a_second_time_does_nothing() {
    let fresh = Crate::fresh();
    let url = format!("https://github.com/them/tidegate.git#{}", "5".repeat(40));
    expect(&fresh.init(&["--tidegate", &url]), 0, &["Done."]);
    let line = format!(
        "[dev-dependencies]\ntidegate = {{ git = \"https://github.com/them/tidegate.git\", rev = \"{}\" }}\n",
        "5".repeat(40)
    );
    let manifest = fresh.read("Cargo.toml");
    assert_eq!(manifest, MANIFEST.replace("[dev-dependencies]\n", &line));
    let workflow = fresh.read(".github/workflows/memory.yml");
    let action = format!(
        "uses: them/tidegate/.github/actions/gate@{}\n",
        "5".repeat(40)
    );
    assert!(workflow.contains(&action), "{workflow}");

    let before = fresh.files();
    let again = fresh.init(&["--tidegate", "/no/such/folder"]);
    expect(&again, 0, &["There is nothing to do."]);
    assert_eq!(fresh.files(), before);
}

#[test]
fn what_is_there_stays_and_what_to_add_by_hand_is_said() {
    let fresh = Crate::fresh();
    for (name, text) in [
        (".config/nextest.toml", "[profile.default]\nretries = 1\n"),
        ("tidegate.toml", "# ours\n"),
        ("tests/memory.rs", "// ours\n"),
    ] {
        fresh.write(name, text);
    }
    let before = fresh.files();
    let done = fresh.init(&["--tidegate", &tidegate()]);
    expect(
        &done,
        0,
        &[
            "leave .config/nextest.toml: it is there, and stays as it is",
            "by hand | [test-groups]",
            "by hand | filter = 'binary(memory)'",
            "leave tidegate.toml: it is there",
            "leave tests/memory.rs: it is there",
        ],
    );
    let after = fresh.files();
    for (path, text) in before {
        if !path.ends_with("Cargo.toml") {
            assert_eq!(after[&path], text, "{}", path.display());
        }
    }
}

#[test]
fn of_a_workspace_the_package_is_chosen_and_files_go_where_they_are_looked_for() {
    let member = |name: &str| {
        MANIFEST
            .replace("fresh", name)
            .replace("\n[workspace]\n", "")
    };
    let space = Crate::new(&[
        (
            "rust/Cargo.toml",
            "[workspace]\nmembers = [\"a\", \"b\"]\nresolver = \"3\"\n",
        ),
        ("rust/a/Cargo.toml", &member("a")),
        ("rust/a/src/lib.rs", ""),
        ("rust/b/Cargo.toml", &member("b")),
        ("rust/b/src/lib.rs", ""),
    ]);
    let url = ["--tidegate", "https://example.org/tidegate"];
    let done = space.init_in("rust", &url);
    expect(
        &done,
        2,
        &["several packages", "say which with -p NAME: a, b"],
    );
    let done = space.init_in("rust", &["-p", "c", url[0], url[1]]);
    expect(&done, 2, &["there is no package `c` here; there are a, b"]);
    expect(
        &space.init_in("rust", &["-p", "b", url[0], url[1]]),
        0,
        &["Done."],
    );
    assert!(space.read("rust/b/Cargo.toml").contains("tidegate = { git"));
    assert!(space.read("rust/b/tests/memory.rs").contains("b::prove"));
    let groups = space.read("rust/.config/nextest.toml");
    assert!(
        groups.contains("filter = 'package(b) & binary(memory)'"),
        "{groups}"
    );
    let workflow = space.read(".github/workflows/memory.yml");
    assert!(
        workflow.ends_with("        with:\n          working-directory: \"rust\"\n"),
        "{workflow}"
    );
    // From a member's own folder, no name is needed; and the workspace may have the crate.
    let root = space.read("rust/Cargo.toml") + "\n[workspace.dependencies]\ntidegate = \"0.1\"\n";
    space.write("rust/Cargo.toml", &root);
    expect(&space.init_in("rust/a/src", &url), 0, &["package `a`"]);
    assert!(
        space
            .read("rust/a/Cargo.toml")
            .contains("tidegate = { workspace = true }")
    );
}

#[test]
fn a_program_without_a_library_gets_a_test_that_says_so() {
    let program = Crate::new(&[("Cargo.toml", MANIFEST), ("src/main.rs", "fn main() {}\n")]);
    let done = program.init(&["--tidegate", &tidegate()]);
    expect(&done, 0, &["`fresh` has no library", "cargo tidegate run"]);
    let test = program.read("tests/memory.rs");
    assert!(
        test.contains("A program's functions cannot be called from"),
        "{test}"
    );
}

#[test]
fn a_library_with_an_allocator_of_its_own_keeps_it() {
    let fresh = Crate::fresh();
    fresh.write(
        "src/alloc.rs",
        "// #[global_allocator] in a comment\n\n#[global_allocator]\nstatic A: X = X;\n",
    );
    let done = fresh.init(&["--tidegate", &tidegate()]);
    expect(
        &done,
        0,
        &["the library has a global allocator (src/alloc.rs:3)"],
    );
    let test = fresh.read("tests/memory.rs");
    assert!(!test.contains("#[global_allocator]"), "{test}");
    // A program's own is not linked into a test.
    let fresh = Crate::fresh();
    fresh.write(
        "src/main.rs",
        "#[global_allocator]\nstatic A: X = X;\nfn main() {}\n",
    );
    expect(&fresh.init(&["--tidegate", &tidegate()]), 0, &[]);
    assert!(
        fresh
            .read("tests/memory.rs")
            .contains("#[global_allocator]")
    );
}

#[test]
fn where_one_file_cannot_be_written_none_is() {
    // A file stands where a folder has to be; a superuser's permissions are no obstacle.
    for (name, failed) in [
        (".github", ".github/workflows/memory.yml"),
        ("tests", "tests/memory.rs"),
    ] {
        let fresh = Crate::fresh();
        fresh.write(name, "in the way\n");
        let before = fresh.files();
        let done = fresh.init(&["--tidegate", &tidegate()]);
        expect(
            &done,
            2,
            &["failed to write", failed, "nothing was changed"],
        );
        assert_eq!(fresh.files(), before);
        assert!(!fresh.path(".config").exists(), "a folder was left behind");
    }
}

#[test]
fn what_is_no_source_and_no_crate_is_refused() {
    let fresh = Crate::fresh();
    let done = fresh.init(&["--tidegate", "src"]);
    expect(&done, 2, &["src holds no crate `tidegate`"]);
    let empty = Crate::new(&[]);
    expect(
        &empty.init(&[]),
        2,
        &["cargo finds no usable package here: could not find `Cargo.toml`"],
    );
    fresh.write(
        "Cargo.toml",
        &MANIFEST.replace("[dev-dependencies]", "[[dev-dependencies]]"),
    );
    assert_eq!(fresh.init(&["--tidegate", &tidegate()]).0, 2);
}
