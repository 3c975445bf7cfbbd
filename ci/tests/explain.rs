//! `cargo tidegate explain` and `run --explain` over whole C++ programs, which each
//! test compiles in a folder of its own: that the lines named are those that leak,
//! and that nothing is explained where nothing leaks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// Twenty rounds; each gives a scratch back, or keeps it if the program is called with `leaky`.
const PROGRAM: &str = r#"#include <cstdio>
#include <cstring>
#include <string>
#include <unistd.h>
#include <vector>

namespace finaliser {

template <typename Lane> struct Scratch {
    Lane *lanes = nullptr;

    __attribute__((noinline)) void grow(std::size_t count) {
        lanes = new Lane[count];  // leaks here
        std::memset(lanes, 1, count * sizeof(Lane));
    }
};

__attribute__((noinline)) void finish(bool leaky) {
    std::vector<std::string> names(10, std::string(100, 'x'));
    Scratch<unsigned long> scratch;
    scratch.grow(64);
    if (!leaky) {
        delete[] scratch.lanes;
    }
    asm volatile("" ::: "memory");  // No tail call: this frame stays.
}

}  // namespace finaliser

int main(int count, char **arguments) {
    bool leaky = count > 1 && std::strcmp(arguments[1], "leaky") == 0;
    for (int round = 1; round <= 20; ++round) {
        finaliser::finish(leaky);
        std::printf("round %d done\n", round);
        std::fflush(stdout);
        usleep(30000);
    }
    return 0;
}
"#;

/// A compiled program in a folder of its own.
struct Compiled {
    folder: tempfile::TempDir,
}

impl Compiled {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("finaliser.cpp");
        fs::write(&source, PROGRAM).unwrap();
        let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
        let output = Command::new(compiler)
            .args(["-g", "-O1", "-o"])
            .arg(folder.path().join("finaliser"))
            .arg(&source)
            .output()
            .expect("the suite needs a C++ compiler, c++ or the one that CXX names");
        assert!(output.status.success(), "{}", text(&output));
        Self { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Runs a command of ours on the program. Returns the exit code, the words and the run.
    fn judge(&self, command: &str, options: &[&str], mode: &str) -> (i32, String, Value) {
        let output = self.output(command, options, mode);
        let stored = fs::read(self.path().join("run.json"));
        let stored = stored.unwrap_or_else(|error| panic!("{error}\n{}", text(&output)));
        let run = serde_json::from_slice(&stored).unwrap();
        (output.status.code().unwrap(), text(&output), run)
    }

    fn output(&self, command: &str, options: &[&str], mode: &str) -> Output {
        Command::new(env!("CARGO_BIN_EXE_cargo-tidegate"))
            .current_dir(self.path())
            .env("TIDEGATE_RUNS", self.path().join("runs"))
            .env_remove("TIDEGATE_EXPLAIN")
            .args([command, "--round-on", "^round [0-9]+ done$"])
            .args(["--json", "run.json"])
            .args(options)
            .args(["--", "./finaliser", mode])
            .output()
            .unwrap()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }
}

fn text(output: &Output) -> String {
    let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}", words(&output.stdout), words(&output.stderr))
}

/// The line of the program that leaks, from 1.
fn leaking_line() -> u64 {
    let at = PROGRAM
        .lines()
        .position(|line| line.contains("// leaks here"));
    at.unwrap() as u64 + 1
}

/// The only site of a run's explanation.
fn only_site<'a>(run: &'a Value, words: &str) -> &'a Value {
    let explanation = &run["explanation"];
    assert_eq!(explanation["sites_exist"], 1, "{explanation:#}\n{words}");
    assert_eq!(explanation["missing"], serde_json::json!([]), "{words}");
    &explanation["sites"][0]
}

/// The program's own frames of a site, innermost first: function, file name, line.
fn own_frames(site: &Value) -> Vec<(&str, &str, u64)> {
    let frames = site["frames"].as_array().unwrap().iter();
    frames
        .filter(|frame| frame["kind"] == "yours")
        .map(|frame| {
            let file = frame["file"].as_str().unwrap();
            (
                frame["function"].as_str().unwrap(),
                file.rsplit('/').next().unwrap(),
                frame["line"].as_u64().unwrap(),
            )
        })
        .collect()
}

#[test]
fn a_leak_of_a_preloaded_cpp_program_is_named_by_function_and_line() {
    let program = Compiled::new();
    let (code, words, run) = program.judge("run", &[], "leaky");
    assert_eq!((code, &run["verdict"]["class"]), (3, &"leak".into()));
    let site = only_site(&run, &words);
    let frames = own_frames(site);
    assert_eq!(
        frames[0],
        (
            "finaliser::Scratch<unsigned long>::grow(unsigned long)",
            "finaliser.cpp",
            leaking_line()
        ),
        "{words}"
    );
    assert_eq!(frames[1].0, "finaliser::finish(bool)", "{words}");
    assert_eq!(frames[2].0, "main", "{words}");
    assert_eq!(site["per_round"]["bytes"], 512, "{words}");
    assert_eq!(site["per_round"]["blocks"], 1, "{words}");
    assert_eq!(run["verdict"]["findings"][0]["site"], site["site"]);
    assert!(
        words.contains("| lanes = new Lane[count];  // leaks here"),
        "the line of source is shown\n{words}"
    );
    let rounds = words.matches("round 20 done").count();
    assert_eq!(rounds, 1, "the second run's output is not shown\n{words}");
}

#[test]
fn the_clean_twin_is_not_run_again() {
    let program = Compiled::new();
    let (code, words, run) = program.judge("run", &[], "clean");
    assert_eq!(code, 0, "{words}");
    assert!(run["explanation"].is_null(), "{words}");
    let (code, words, run) = program.judge("explain", &["-o", "out"], "clean");
    assert_eq!(code, 0, "{words}");
    assert!(run["explanation"].is_null(), "{words}");
    assert!(words.contains("nothing to explain"), "{words}");
    assert!(!program.file("out").exists(), "{words}");
}

#[test]
fn a_leak_is_not_explained_where_that_was_declined() {
    let program = Compiled::new();
    let (code, words, run) = program.judge("run", &["--explain", "never"], "leaky");
    assert_eq!(code, 3, "{words}");
    assert!(run["explanation"].is_null(), "{words}");
}

#[test]
fn explain_writes_what_other_tools_open() {
    let program = Compiled::new();
    let (code, words, _) = program.judge("explain", &["-o", "out"], "leaky");
    assert_eq!(code, 3, "{words}");
    let read = |name: &str| {
        assert!(words.contains(&format!("out/{name}")), "{name}\n{words}");
        fs::read(program.file("out").join(name)).unwrap()
    };
    let dhat: Value = serde_json::from_slice(&read("left.dhat.json")).unwrap();
    assert_eq!(dhat["dhatFileVersion"], 2);
    let frames = dhat["ftbl"].as_array().unwrap();
    let leaking = format!("finaliser.cpp:{}", leaking_line());
    let names_line = |frame: &Value| frame.as_str().unwrap().contains(&leaking);
    assert!(frames.iter().any(names_line), "{frames:#?}");
    let folded = String::from_utf8(read("left.folded")).unwrap();
    assert_eq!(folded.lines().count(), 1, "{folded}");
    assert!(
        folded.contains("finaliser::Scratch<unsigned long>::grow(unsigned long)"),
        "{folded}"
    );
    let graph = String::from_utf8(read("left.svg")).unwrap();
    assert!(graph.contains("finaliser::finish(bool)"), "{graph}");
    assert_eq!(read("left.pb.gz")[..2], [0x1f, 0x8b], "gzip");
    read("allocated.dhat.json");
}

#[test]
fn every_site_is_recorded_on_request_though_nothing_leaks() {
    let program = Compiled::new();
    let (code, words, run) = program.judge("explain", &["--full"], "clean");
    assert_eq!(code, 0, "{words}");
    let explanation = &run["explanation"];
    assert_eq!(explanation["every_site"], true, "{words}");
    let sites = explanation["sites"].as_array().unwrap().iter();
    let growing = sites.clone().find(|site| {
        let frames = own_frames(site);
        frames
            .first()
            .is_some_and(|frame| frame.2 == leaking_line())
    });
    let growing = growing.unwrap_or_else(|| panic!("{explanation:#}\n{words}"));
    assert_eq!(growing["grown"]["bytes"], 0, "{growing:#}");
    assert!(growing["allocated"]["bytes"].as_u64().unwrap() >= 512 * 10);
    assert!(sites.count() >= 2, "the vector's and its strings' too");
}

#[test]
fn a_second_run_reads_the_same_input_where_that_is_a_file() {
    let program = Compiled::new();
    let input: String = (1..=20)
        .map(|round| format!("round {round} done\n"))
        .collect();
    // Whether a shell's string leaks is not the question: `--full` explains any run.
    let script = "while read -r line; do echo \"$line\"; sleep 0.02; done";
    fs::write(program.file("input"), input).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_cargo-tidegate"))
        .current_dir(program.path())
        .env("TIDEGATE_RUNS", program.file("runs"))
        .args(["explain", "--full", "--round-on", "^round [0-9]+ done$"])
        .args(["--json", "run.json", "--", "sh", "-c", script])
        .stdin(fs::File::open(program.file("input")).unwrap())
        .output()
        .unwrap();
    let words = text(&output);
    let stored = fs::read(program.file("run.json")).unwrap_or_else(|_| panic!("{words}"));
    let run: Value = serde_json::from_slice(&stored).unwrap();
    assert_eq!(run["explanation"]["rounds"], 20, "{words}");
}
