//! Runs a program with the hook preloaded and prints the totals of its books:
//! `cargo run -p tidegate-hook --example meter -- sort /dev/null`

#[path = "../tests/metered/mod.rs"]
mod metered;

use std::process::{Command, Stdio};

fn main() {
    let mut arguments = std::env::args_os().skip(1);
    let Some(program) = arguments.next() else {
        eprintln!("usage: meter PROGRAM [ARGUMENT]...");
        std::process::exit(2);
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::inherit())
        .stdout(Stdio::inherit())
        .stderr(Stdio::inherit());
    let (ledger, output) = metered::preloaded(command);
    let books = ledger.snapshot();
    eprintln!(
        "{} processes, {} threads, {} blocks, {} lost, {} foreign, {} unmapped, peak {} KiB, books {} KiB",
        metered::processes(&books),
        books.threads,
        metered::blocks(&books),
        books.lost,
        books.foreign,
        books.unmapped,
        books.peak / 1024,
        books.own_bytes / 1024,
    );
    std::process::exit(output.status.code().unwrap_or(1));
}
