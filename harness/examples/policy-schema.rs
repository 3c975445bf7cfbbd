//! Prints the JSON schema of `tidegate.toml`, which is kept in `docs/tidegate.toml.schema.json`.

fn main() {
    println!("{}", tidegate::policy::policy_schema());
}
