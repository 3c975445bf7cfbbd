//! A temporary project, and runs in it that were made elsewhere.
//!
//! A test makes a [`Project`], puts runs into it (real ones of a GPU, changed as the test
//! says), calls the command in it, and looks at what a user would: the exit code, the
//! words, the files.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

pub struct Project {
    folder: tempfile::TempDir,
}

/// What a command did: its exit code and its words.
pub type Done = (i32, String);

impl Project {
    pub fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// Stores a run: one of `fixtures/gpu-runs`, with a change.
    pub fn run(&self, name: &str, of: &str, change: impl FnOnce(&mut Value)) {
        let stored = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../fixtures/gpu-runs")
            .join(of);
        let text = std::fs::read(stored.join("run.json")).unwrap();
        let mut run = serde_json::from_slice(&text).unwrap();
        change(&mut run);
        self.write(&format!("{name}/run.json"), &run.to_string());
    }

    /// Three runs of a scenario that keeps nothing: `a1`, `a2`, `a3` for `a`.
    pub fn three_clean(&self, name: &str) {
        for number in 1..=3 {
            self.run(&format!("{name}{number}"), "clean", |run| {
                run["plan"]["name"] = name.into();
                // Two of three take some pages more at their peak.
                *phase(run, "device") = (1_064_960 + (number % 2) * 65_536).into();
            });
        }
    }

    /// Calls the command, as a person would.
    pub fn call(&self, words: &[&str]) -> Done {
        self.call_with(words, &[])
    }

    /// Calls the command with variables in its environment.
    pub fn call_with(&self, words: &[&str], variables: &[(&str, &str)]) -> Done {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cargo-tidegate"));
        command
            .current_dir(self.folder.path())
            .args(words)
            .env_remove("CI");
        command.envs(variables.iter().copied());
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let words = format!("{}{}", text(&output.stdout), text(&output.stderr));
        (output.status.code().unwrap(), words)
    }

    /// The baselines' files, from the project's folder.
    pub fn baselines(&self) -> Vec<String> {
        let mut found = Vec::new();
        for scenario in std::fs::read_dir(self.path("tidegate/baselines"))
            .into_iter()
            .flatten()
        {
            for file in std::fs::read_dir(scenario.unwrap().path()).unwrap() {
                let path = file.unwrap().path();
                let name = path.strip_prefix(self.folder.path()).unwrap();
                found.push(name.to_str().unwrap().to_owned());
            }
        }
        found.sort();
        found
    }
}

/// The peak of a layer in a run.
pub fn phase<'a>(run: &'a mut Value, layer: &str) -> &'a mut Value {
    &mut phase_book(run, layer)["peak_bytes"]
}

/// The book of a layer's only phase in a run.
pub fn phase_book<'a>(run: &'a mut Value, layer: &str) -> &'a mut Value {
    let phases = run["books"]["phases"].as_array_mut().unwrap();
    phases
        .iter_mut()
        .find(|book| book["layer"] == layer)
        .unwrap()
}

/// Words with line ends as spaces, for what is wrapped to a terminal's width.
pub fn flat(words: &str) -> String {
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Asserts an exit code, and that each of these is in the words.
#[track_caller]
pub fn expect((code, words): &Done, wanted: i32, in_words: &[&str]) {
    assert_eq!(*code, wanted, "{words}");
    let all = flat(words);
    for part in in_words {
        assert!(all.contains(part), "{part:?} is not in\n{words}");
    }
    for line in words.lines() {
        // Errors are lines of their own, and paths of temporary folders as long as they are.
        let is_free = line.starts_with("cargo tidegate: ") || line.contains('/');
        let is_long = line.chars().count() > 80 && !is_free;
        assert!(!is_long, "more than 80 columns: {line:?}");
    }
}
