//! Prints the JSON schema of `run.json`, which is kept in `docs/run.schema.json`.

fn main() {
    println!("{}", tidegate::run_schema());
}
