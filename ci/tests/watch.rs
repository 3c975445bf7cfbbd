//! `cargo tidegate watch` over processes that run already.

use std::process::{Child, Command, Output, Stdio};

/// A Python program that has said `ready`, killed when dropped.
struct Running(Child);

impl Running {
    fn start(program: &str) -> Self {
        use std::io::{BufRead as _, BufReader};
        let mut child = Command::new("python3")
            .args(["-c", program])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(child)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn watch(pid: u32, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cargo-tidegate"))
        .args(["watch", "--pid", &pid.to_string()])
        .args(arguments)
        .output()
        .unwrap()
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn memory_that_grows_is_unexplained_growth_and_says_how_fast() {
    let program = "import time, mmap\nkept = []\nprint('ready', flush=True)\nwhile True:\n    \
                   kept.append(mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE))\n    \
                   kept[-1].write(b'x' * (1 << 20))\n    time.sleep(0.02)";
    let process = Running::start(program);
    let output = watch(process.0.id(), &["--every", "20ms", "--for", "1500ms"]);
    let words = words(&output);
    assert_eq!(output.status.code(), Some(3), "{words}");
    assert!(words.contains("unexplained-growth"), "{words}");
    assert!(words.contains("a minute"), "{words}");
}

#[test]
fn where_nothing_grows_it_does_not_say_clean() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("watched.json");
    let process = Running::start("import time\nprint('ready', flush=True)\ntime.sleep(1000)");
    let json_at = json.to_str().unwrap();
    let arguments = ["--every", "20ms", "--for", "1s", "--json", json_at];
    let output = watch(process.0.id(), &arguments);
    let words = words(&output);
    assert_eq!(output.status.code(), Some(5), "{words}");
    assert!(words.contains("no proof that nothing leaks"), "{words}");
    let run: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    assert_eq!(run["verdict"]["class"], "inconclusive");
    assert!(run["books"]["rounds"].as_array().unwrap().len() >= 25);
    for line in words.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

#[test]
fn descriptors_that_are_never_closed_are_a_handle_leak() {
    let program = "import time, os\nprint('ready', flush=True)\nwhile True:\n    \
                   os.open('/dev/null', os.O_RDONLY)\n    time.sleep(0.01)";
    let process = Running::start(program);
    let output = watch(process.0.id(), &["--every", "20ms", "--for", "1500ms"]);
    let words = words(&output);
    assert_eq!(output.status.code(), Some(3), "{words}");
    assert!(words.contains("handle-leak"), "{words}");
}

#[test]
fn a_process_that_is_not_there_is_a_usage_error() {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let output = watch(child.id(), &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(words(&output).contains("there is no such process"));
}
