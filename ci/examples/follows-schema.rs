//! Whether a JSON file follows a JSON schema: `follows-schema SCHEMA FILE`.
//!
//! For scripts that hold what Tidegate writes against other people's schemas. Says each
//! problem with its place; exits with 0 if there is none, 3 if there are some, 2 if a file
//! is no JSON.

use std::fs::File;
use std::io::BufReader;
use std::process::ExitCode;

use serde_json::Value;

fn main() -> ExitCode {
    let files: Vec<String> = std::env::args().skip(1).collect();
    let [schema, file] = &files[..] else {
        eprintln!("usage: follows-schema SCHEMA FILE");
        return ExitCode::from(2);
    };
    match problems(schema, file) {
        Ok(problems) => {
            problems
                .iter()
                .for_each(|problem| println!("{file}: {problem}"));
            ExitCode::from(if problems.is_empty() { 0 } else { 3 })
        }
        Err(problem) => {
            eprintln!("follows-schema: {problem}");
            ExitCode::from(2)
        }
    }
}

fn problems(schema: &str, file: &str) -> Result<Vec<String>, String> {
    let read = |path: &str| -> Result<Value, String> {
        let failed = |error: &dyn std::fmt::Display| format!("{path}: {error}");
        let file = File::open(path).map_err(|error| failed(&error))?;
        serde_json::from_reader(BufReader::new(file)).map_err(|error| failed(&error))
    };
    let validator =
        jsonschema::validator_for(&read(schema)?).map_err(|error| format!("{schema}: {error}"))?;
    let value = read(file)?;
    let problems = validator.iter_errors(&value);
    Ok(problems
        .map(|problem| format!("{}: {problem}", problem.instance_path()))
        .collect())
}
