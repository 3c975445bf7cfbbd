//! Real programs with the hook preloaded print the same and end the same.
//!
//! A program that is not installed is not tested, and its test says so. What was
//! seen where is in `docs/real-programs.md`; `TIDEGATE_TABLE=FILE` has these tests
//! add their lines for that table to a file.

mod metered;

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

use metered::{blocks, is_there, preloaded, processes, shell};
use tidegate_hook::Snapshot;

/// What a program must have done for the hook to have been in it.
struct Expected {
    processes: u64,
    blocks: u64,
}

/// Runs a program plainly and preloaded, and compares.
fn compare(what: &str, version: &[&str], expected: Expected, command: impl Fn() -> Command) {
    let program = version[0];
    if !is_there(program) {
        eprintln!("not tested: {program} is not installed");
        return;
    }
    let plain = command().output().unwrap();
    let (ledger, metered) = preloaded(command());
    let books = ledger.snapshot();
    let table = env::var_os("TIDEGATE_TABLE");
    if let Some(table) = table {
        let same = if plain == metered { "yes" } else { "no" };
        note(
            Path::new(&table),
            &line(what, &first_line(version), same, &books),
        );
    }
    assert!(plain.status.success(), "{}", shown(&plain));
    assert_eq!(plain, metered, "{}\n{}", shown(&plain), shown(&metered));
    assert_eq!((books.lost, books.unmapped, books.moving), (0, 0, 0));
    assert!(
        processes(&books) >= expected.processes && blocks(&books) >= expected.blocks,
        "{} processes, {} blocks",
        processes(&books),
        blocks(&books)
    );
}

fn shown(output: &Output) -> String {
    format!(
        "{}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

fn first_line(version: &[&str]) -> String {
    let output = Command::new(version[0])
        .args(&version[1..])
        .output()
        .unwrap();
    let text = match output.stdout.is_empty() {
        true => output.stderr,
        false => output.stdout,
    };
    let text = String::from_utf8_lossy(&text);
    let line = text
        .lines()
        .find(|line| line.contains(|c: char| c.is_ascii_digit()));
    line.unwrap_or_default().trim().to_owned()
}

fn line(what: &str, version: &str, same: &str, books: &Snapshot) -> String {
    format!(
        "| {what} | {version} | {same} | {} | {} | {} | {} | {} |\n",
        processes(books),
        books.threads,
        blocks(books),
        books.lost,
        books.foreign
    )
}

fn note(table: &Path, line: &str) {
    let mut file = fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(table)
        .unwrap();
    file.write_all(line.as_bytes()).unwrap();
}

fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).env("LC_ALL", "C");
    command
}

fn python(script: &str) -> Command {
    command("python3", &["-c", script])
}

const PYTHON: [&str; 2] = ["python3", "--version"];

/// An empty folder of this test's.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn python_that_churns_through_arrays_prints_the_same() {
    let script = "
import array, json, zlib, re
total = 0
for i in range(300):
    a = array.array('d', range(20000))
    b = array.array('d', (x * 1.5 for x in a[:2000]))
    total += sum(b)
    del a
text = json.dumps([{'n': i, 'sq': i * i} for i in range(20000)])
print(total, len(zlib.compress(text.encode())), len(re.findall(r'\\d+', text)))
print(sum(x['sq'] for x in json.loads(text)))
";
    let expected = Expected {
        processes: 1,
        blocks: 1000,
    };
    compare("python3: arrays, json, zlib, re", &PYTHON, expected, || {
        python(script)
    });
}

#[test]
fn numpy_prints_the_same() {
    let has_numpy = Command::new("python3")
        .args(["-c", "import numpy"])
        .output();
    if !has_numpy.is_ok_and(|output| output.status.success()) {
        eprintln!("not tested: python3 has no numpy");
        return;
    }
    let script = "
import numpy as np
rng = np.random.default_rng(7)
total = 0.0
for i in range(200):
    a = rng.random((200, 200)); b = a @ a.T; total += float(np.trace(b)) + float(np.sort(a, axis=None)[100])
    c = np.concatenate([a, b]).astype(np.float32)[::3].copy(); del a, b
print(round(total, 6), c.shape, np.fft.fft(np.arange(65536.0)).imag.argmax())
";
    let version = [
        "python3",
        "-c",
        "import numpy; print('numpy', numpy.__version__)",
    ];
    let expected = Expected {
        processes: 1,
        blocks: 1000,
    };
    compare("python3: numpy", &version, expected, || python(script));
}

#[test]
fn python_with_every_object_from_malloc_prints_the_same() {
    let script = "
words = {}
for i in range(200000): words.setdefault(str(i % 5000), []).append(i)
print(sum(len(v) for v in words.values()))
";
    let expected = Expected {
        processes: 1,
        blocks: 100_000,
    };
    compare("python3, PYTHONMALLOC=malloc", &PYTHON, expected, || {
        let mut command = python(script);
        command.env("PYTHONMALLOC", "malloc");
        command
    });
}

#[test]
fn python_with_threads_that_free_each_others_blocks_prints_the_same() {
    let script = "
import threading, queue
q = queue.Queue(100)
out = []
def produce():
    for i in range(2000): q.put(bytearray(1000 + i))
    q.put(None)
def consume():
    while (b := q.get()) is not None: out.append(len(b))
for _ in range(20):
    ts = [threading.Thread(target=produce), threading.Thread(target=consume)]
    [t.start() for t in ts]; [t.join() for t in ts]
print(len(out), sum(out))
";
    let expected = Expected {
        processes: 1,
        blocks: 40_000,
    };
    compare("python3: threads and a queue", &PYTHON, expected, || {
        python(script)
    });
}

#[test]
fn python_that_forks_while_threads_allocate_prints_the_same() {
    let script = "
import os, threading
stop = False
def churn():
    while not stop: [bytearray(5000) for _ in range(50)]
ts = [threading.Thread(target=churn) for _ in range(4)]
[t.start() for t in ts]
import warnings; warnings.simplefilter('ignore')
codes = []
for i in range(100):
    pid = os.fork()
    if pid == 0:
        x = [bytearray(3000) for _ in range(100)]
        os._exit(len(x) % 50 + i % 7)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
stop = True
[t.join() for t in ts]
print(codes)
";
    let expected = Expected {
        processes: 101,
        blocks: 10_000,
    };
    compare(
        "python3: 100 forks beside 4 allocating threads",
        &PYTHON,
        expected,
        || python(script),
    );
}

#[test]
fn python_with_worker_processes_and_subprocesses_prints_the_same() {
    let script = "
import multiprocessing as mp, subprocess, sys
def work(n): return sum(len(str(i)) for i in range(n))
if __name__ == '__main__':
    for method in ['fork', 'spawn', 'forkserver']:
        with mp.get_context(method).Pool(3) as pool: print(method, pool.map(work, range(0, 20000, 1000)))
    for i in range(20):
        r = subprocess.run([sys.executable, '-c', f'print({i} * 2)'], capture_output=True, close_fds=True)
        print(r.returncode, r.stdout, r.stderr)
    print(subprocess.check_output('for i in 1 2 3; do echo $i | sort; done', shell=True))
";
    let file = folder("python-processes").join("work.py");
    fs::write(&file, script).unwrap();
    let expected = Expected {
        processes: 35,
        blocks: 10_000,
    };
    compare(
        "python3: multiprocessing and subprocess",
        &PYTHON,
        expected,
        || command("python3", &[file.to_str().unwrap()]),
    );
}

#[test]
fn sqlite_in_python_prints_the_same() {
    let script = "
import sqlite3
c = sqlite3.connect(':memory:')
c.execute('create table t(a integer primary key, b text)')
c.executemany('insert into t values(?, ?)', ((i, str(i) * 20) for i in range(50000)))
print(c.execute('select count(*), sum(length(b)) from t').fetchall())
print(c.execute('select b from t where a % 9999 = 1 order by b desc').fetchall()[0][0][:20])
";
    let expected = Expected {
        processes: 1,
        blocks: 50_000,
    };
    compare("sqlite3 in python3", &PYTHON, expected, || python(script));
}

#[test]
fn sqlite_prints_the_same() {
    let script = "create table t(a integer primary key, b text);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 30000)
insert into t select i, hex(i * 7919) from n;
create index x on t(b);
select count(*), min(b), max(b) from t where b > '4';";
    let expected = Expected {
        processes: 1,
        blocks: 1000,
    };
    compare("sqlite3", &["sqlite3", "--version"], expected, || {
        command("sqlite3", &[":memory:", script])
    });
}

#[test]
fn git_on_this_repository_prints_the_same() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let script = "git log --stat --format=%H -n 20 && git ls-files -s | git hash-object --stdin \
        && git diff HEAD~1 --shortstat && git grep -c unsafe HEAD -- harness/hook/src | sort && git fsck --no-progress --no-dangling";
    let expected = Expected {
        processes: 7,
        blocks: 1000,
    };
    compare(
        "git: log, diff, grep, fsck here",
        &["git", "--version"],
        expected,
        || {
            let mut command = shell(script);
            command.current_dir(root);
            command
        },
    );
}

#[test]
fn git_that_clones_and_repacks_prints_the_same() {
    let script = "rm -rf \"$D\" && mkdir \"$D\" && cd \"$D\" && git init -q a && cd a && \
        for i in $(seq 200); do seq $i > $i.txt; done && git add . && \
        git -c user.name=t -c user.email=t@t commit -qm one && cd .. && \
        git clone -q --no-local a b 2>&1 && cd b && git repack -adq --threads=2 && git gc -q && \
        git log --format=%T && git count-objects -v | grep in-pack";
    let expected = Expected {
        processes: 10,
        blocks: 1000,
    };
    compare(
        "git: init, commit, clone, repack, gc",
        &["git", "--version"],
        expected,
        || {
            let mut command = shell(script);
            command.env("D", folder("git"));
            command
        },
    );
}

#[test]
fn sort_with_threads_and_temporary_files_prints_the_same() {
    let script =
        "seq 300000 | awk '{print ($1 * 7919) % 1000003}' | sort -n -S 1M --parallel=2 | md5sum";
    let expected = Expected {
        processes: 4,
        blocks: 500,
    };
    compare(
        "sort: 300,000 lines, 2 threads, 1 MiB",
        &["sort", "--version"],
        expected,
        || shell(script),
    );
}

#[test]
fn perl_prints_the_same() {
    let script = "my %h; for (1..200000) { $h{$_ % 5000} .= chr(65 + $_ % 26) } \
        my @k = sort { $h{$a} cmp $h{$b} || $a <=> $b } keys %h; print join(',', @k[0..20]), \"\\n\"; \
        my $n = 0; for (1..5) { my $p = fork; if (!$p) { my @x = map { 'x' x 100 } 1..1000; exit scalar(@x) % 200 } \
        waitpid $p, 0; $n += $? >> 8 } print \"$n\\n\"; print `echo from a shell | sort`;";
    let expected = Expected {
        processes: 6,
        blocks: 20_000,
    };
    compare(
        "perl: hashes, sort, fork, backticks",
        &["perl", "-v"],
        expected,
        || command("perl", &["-e", script]),
    );
}

#[test]
fn node_prints_the_same() {
    let script = "
const { Worker, isMainThread, parentPort } = require('worker_threads');
const zlib = require('zlib'), { execFileSync } = require('child_process');
if (isMainThread) {
  let s = 0; for (let i = 0; i < 300; i++) s += Buffer.alloc(100000, i).reduce((a, b) => a + b % 3, 0);
  console.log(s, zlib.gunzipSync(zlib.gzipSync(Buffer.alloc(1e6, 'abc'))).length);
  console.log(execFileSync('sort', { input: 'b\\na\\n' }).toString());
  let left = 3, sum = 0;
  for (let i = 0; i < 3; i++) new Worker(__filename).on('message', m => { sum += m; if (--left == 0) console.log(sum); });
} else { parentPort.postMessage([...Array(100000).keys()].reduce((a, b) => a + b)); }
";
    let file = folder("node").join("work.js");
    fs::write(&file, script).unwrap();
    let expected = Expected {
        processes: 2,
        blocks: 1000,
    };
    compare(
        "node: buffers, zlib, workers, a child",
        &["node", "--version"],
        expected,
        || command("node", &[file.to_str().unwrap()]),
    );
}

#[test]
fn a_java_virtual_machine_prints_the_same() {
    let source = "
import java.util.*; import java.util.stream.*; import java.nio.*;
public class Work {
  public static void main(String[] a) throws Exception {
    var m = new HashMap<String, Integer>();
    for (int i = 0; i < 500000; i++) m.merge(Integer.toString(i % 5003), i, Integer::sum);
    System.out.println(m.values().stream().mapToLong(x -> x).sum());
    System.out.println(IntStream.range(0, 1000000).parallel().mapToLong(i -> i).sum());
    long n = 0; for (int i = 0; i < 100; i++) n += ByteBuffer.allocateDirect(100000).capacity();
    System.gc(); System.out.println(n);
    var p = new ProcessBuilder(\"sort\", \"/dev/null\").start(); System.out.println(p.waitFor());
  }
}";
    let class = folder("java");
    let file = class.join("Work.java");
    fs::write(&file, source).unwrap();
    let compiled = is_there("javac")
        && Command::new("javac")
            .arg("-d")
            .arg(&class)
            .arg(&file)
            .status()
            .unwrap()
            .success();
    let expected = Expected {
        processes: 1,
        blocks: 1000,
    };
    compare("java", &["java", "-version"], expected, || {
        if compiled {
            command("java", &["-cp", class.to_str().unwrap(), "Work"])
        } else {
            command("java", &["-Xshare:auto", "-version"])
        }
    });
}

#[test]
fn cargo_that_builds_a_small_crate_prints_the_same() {
    let expected = Expected {
        processes: 3,
        blocks: 10_000,
    };
    compare(
        "cargo: builds and runs a small crate",
        &["cargo", "--version"],
        expected,
        || {
            let folder = folder("cargo");
            fs::create_dir_all(folder.join("src")).unwrap();
            let manifest = "[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\n[workspace]\n";
            fs::write(folder.join("Cargo.toml"), manifest).unwrap();
            fs::write(
                folder.join("build.rs"),
                "fn main() { println!(\"cargo:rerun-if-changed=build.rs\"); }",
            )
            .unwrap();
            let main = "fn main() { println!(\"{}\", (0..1000u64).map(|i| i.to_string().len()).sum::<usize>()); }";
            fs::write(folder.join("src/main.rs"), main).unwrap();
            let mut command = shell("cargo build --offline -q -j2 && target/debug/small");
            command.current_dir(&folder).env_remove("CARGO_TARGET_DIR");
            for (name, _) in env::vars_os() {
                // What the Cargo that runs this test has set for its own build.
                if name.to_string_lossy().starts_with("CARGO_") && name != OsStr::new("CARGO_HOME")
                {
                    command.env_remove(name);
                }
            }
            command
        },
    );
}

#[test]
fn the_cpp_compiler_prints_the_same() {
    let expected = Expected {
        processes: 4,
        blocks: 10_000,
    };
    compare(
        "g++: compiles and links a program",
        &["g++", "--version"],
        expected,
        || {
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/native/new_delete.cpp");
            let mut command = shell("g++ -O1 \"$S\" -o \"$D/program\" && \"$D/program\"");
            command.env("S", source).env("D", folder("compiler"));
            command
        },
    );
}

#[test]
fn bash_awk_grep_and_tar_print_the_same() {
    let script = "cd \"$S\" && for f in *.rs; do grep -c unsafe $f | awk -v f=$f '{print f, $1 * 2}'; done; \
        tar cf - --sort=name . | tar tf - | sort | md5sum; exec 3>/dev/null; ls /proc/self/fd | wc -l >&3; \
        (sleep 0.01 & wait); x=$(printf '%s' $(seq 1000)); echo ${#x}";
    let expected = Expected {
        processes: 20,
        blocks: 1000,
    };
    compare(
        "bash, awk, grep, tar, md5sum",
        &["bash", "--version"],
        expected,
        || {
            let mut command = command("bash", &["-c", script]);
            command.env("S", Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
            command
        },
    );
}
