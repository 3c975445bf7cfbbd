//! `cargo tidegate merge`: parts that were made on several machines, judged as a whole.

use std::fs;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Map, Value, json};
use tidegate::compare::{SWEEP_SCHEMA, Sweep};

use crate::Failure;
use crate::store::store_json;

/// Puts the parts of a sweep (`sweep --partition K/N --json`), or of the corpus
/// (`ci/corpus --partition K/N --json`), together and judges the whole.
///
/// Exits as the whole would have: with 0 if all is well, with 3 if a program of the corpus
/// was judged wrong, with 5 if a part is missing or nothing can be concluded, and with 6 if
/// a run crashed.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Files that the parts were written to.
    #[arg(required = true, value_name = "PART")]
    parts: Vec<PathBuf>,
    /// Write the whole here as JSON, whole or not at all.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn merge(arguments: &Arguments) -> Result<u8, Failure> {
    let mut sweeps = Vec::new();
    let mut matrices = Vec::new();
    for path in &arguments.parts {
        let bad = |problem: String| Failure::of_usage(format!("{}: {problem}", path.display()));
        let text = fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
        let value: Value = serde_json::from_str(&text)
            .map_err(|error| bad(format!("this is no part, or not a whole one: {error}")))?;
        match value["schema"].as_str() {
            Some(SWEEP_SCHEMA) => {
                let sweep = serde_json::from_value::<Sweep>(value);
                sweeps.push(sweep.map_err(|error| bad(format!("this is no sweep: {error}")))?);
            }
            Some(other) => {
                return Err(bad(format!(
                    "this is of format {other:?}, and this tidegate merges {SWEEP_SCHEMA:?}"
                )));
            }
            None if value["programs"].is_u64() => matrices.push(value),
            None => {
                return Err(bad(
                    "this is neither a sweep's part nor the corpus's".to_owned()
                ));
            }
        }
    }
    match (sweeps.is_empty(), matrices.is_empty()) {
        (false, true) => whole_sweep(sweeps, arguments),
        (true, false) => whole_corpus(&matrices, arguments),
        _ => Err(Failure::of_usage(
            "parts of a sweep and of the corpus make no whole",
        )),
    }
}

fn whole_sweep(parts: Vec<Sweep>, arguments: &Arguments) -> Result<u8, Failure> {
    let whole = Sweep::merge(parts).map_err(|error| Failure::of_usage(error.to_string()))?;
    print!("{whole}");
    if let Some(path) = &arguments.json {
        store_json(path, &whole)?;
    }
    let crashed = whole.runs.iter().any(|run| {
        let broke_off = |class: tidegate::Class| class.exit_code() == 6;
        run.class.is_some_and(broke_off)
    });
    Ok(match (crashed, whole.is_conclusive()) {
        (true, _) => 6,
        (false, true) => 0,
        (false, false) => 5,
    })
}

fn whole_corpus(parts: &[Value], arguments: &Arguments) -> Result<u8, Failure> {
    let (whole, missing) = add_up(parts).map_err(Failure::of_usage)?;
    let count = |name: &str| whole[name].as_u64().unwrap_or(0);
    println!(
        "{} of {} programs right, {} false alarms, {} missed",
        count("right"),
        count("programs"),
        count("false_alarms"),
        count("missed")
    );
    for missing in &missing {
        println!("missing: {missing}");
    }
    if let Some(path) = &arguments.json {
        store_json(path, &whole)?;
    }
    let wrong = count("right") != count("programs") || has_inexact(&whole);
    Ok(match (wrong, missing.is_empty() && count("programs") > 0) {
        (true, _) => 3,
        (false, true) => 0,
        (false, false) => 5,
    })
}

fn has_inexact(matrix: &Value) -> bool {
    let here = matrix["inexact"]
        .as_array()
        .is_some_and(|list| !list.is_empty());
    let forms = matrix["forms"].as_object();
    here || forms.is_some_and(|forms| forms.values().any(has_inexact))
}

/// Adds matrices up: numbers are summed, lists joined, forms (as scenarios, as foreign
/// programs) each for itself. Says which parts are missing.
fn add_up(parts: &[Value]) -> Result<(Value, Vec<String>), String> {
    let mut there = Vec::new();
    let mut of = None;
    let mut missing = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        let Some((number, all)) = partition_of(part) else {
            missing.push(format!("which part of the corpus file {} is", at + 1));
            continue;
        };
        if *of.get_or_insert(all) != all {
            return Err("the parts are of corpora that were split in different ways".to_owned());
        }
        if there.contains(&number) {
            return Err(format!("part {number} of {all} is there twice"));
        }
        there.push(number);
    }
    let all = of.unwrap_or(0);
    let not_there = (1..=all).filter(|number| !there.contains(number));
    missing.extend(not_there.map(|number| format!("part {number} of {all}")));
    let objects: Vec<&Map<String, Value>> = parts.iter().filter_map(Value::as_object).collect();
    let mut whole = Value::Object(added(&objects)?);
    whole["missing"] = json!(missing);
    Ok((whole, missing))
}

/// Which part of how many this is. A file of both forms says it in each of them.
fn partition_of(matrix: &Value) -> Option<(u64, u64)> {
    match matrix.get("partition") {
        Some(Value::Null) => Some((1, 1)),
        Some(partition) => Some((partition["number"].as_u64()?, partition["of"].as_u64()?)),
        None => {
            let forms = matrix["forms"].as_object()?;
            let mut each = forms.values().map(partition_of);
            let first = each.next()??;
            each.all(|other| other == Some(first)).then_some(first)
        }
    }
}

fn added(parts: &[&Map<String, Value>]) -> Result<Map<String, Value>, String> {
    let mut whole = Map::new();
    let fields = parts.iter().flat_map(|part| part.iter());
    for (name, value) in fields.filter(|(name, _)| *name != "partition") {
        if whole.contains_key(name) {
            continue;
        }
        let all: Vec<&Value> = parts.iter().filter_map(|part| part.get(name)).collect();
        let sum = match value {
            Value::Number(number) if number.is_u64() => {
                json!(all.iter().filter_map(|value| value.as_u64()).sum::<u64>())
            }
            Value::Number(_) => json!(all.iter().filter_map(|value| value.as_f64()).sum::<f64>()),
            Value::Array(_) => {
                let lists = all.iter().filter_map(|value| value.as_array());
                Value::Array(lists.flatten().cloned().collect())
            }
            Value::Object(_) => {
                let objects: Vec<_> = all.iter().filter_map(|value| value.as_object()).collect();
                Value::Object(added(&objects)?)
            }
            same if all.iter().all(|other| *other == same) => same.clone(),
            _ => return Err(format!("the parts differ in {name:?}")),
        };
        whole.insert(name.clone(), sum);
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(number: u64, right: u64) -> Value {
        let form = json!({
            "form": "scenario",
            "programs": 3,
            "right": right,
            "false_alarms": 0,
            "inexact": [],
            "seconds": 1.5,
            "partition": {"number": number, "of": 2},
            "outcomes": [number],
        });
        json!({"programs": 3, "right": right, "false_alarms": 0, "forms": {"scenario": form}})
    }

    #[test]
    fn matrices_add_up_form_by_form() {
        let (whole, missing) = add_up(&[part(2, 3), part(1, 2)]).unwrap();
        assert_eq!(missing, Vec::<String>::new());
        assert_eq!(
            (&whole["programs"], &whole["right"]),
            (&json!(6), &json!(5))
        );
        let form = &whole["forms"]["scenario"];
        assert_eq!(form["outcomes"], json!([2, 1]));
        assert_eq!(
            (&form["seconds"], &form["form"]),
            (&json!(3.0), &json!("scenario"))
        );
        assert!(form.get("partition").is_none() && !has_inexact(&whole));
    }

    #[test]
    fn a_part_of_the_corpus_that_is_missing_or_unknown_is_named() {
        let (whole, missing) = add_up(&[part(2, 3)]).unwrap();
        assert_eq!(missing, ["part 1 of 2"]);
        assert_eq!(whole["missing"], json!(["part 1 of 2"]));
        let unknown = json!({"programs": 1, "right": 1});
        let (_, missing) = add_up(&[unknown]).unwrap();
        assert_eq!(missing, ["which part of the corpus file 1 is"]);
        assert!(
            add_up(&[part(1, 3), part(1, 3)])
                .unwrap_err()
                .contains("twice")
        );
    }
}
