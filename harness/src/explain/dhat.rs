//! DHAT's JSON, version 2, which Valgrind's `dh_view.html` opens.
//!
//! The format is described in Valgrind's manual and in `dh_view.js`. Lifetimes,
//! and each site's share of the highest moment, are not known here; `bklt` is off
//! and the fields are left out, which the format allows, rather than made up.

use std::collections::HashMap;

use serde::Serialize;

use super::{Frame, Site};
use crate::books::Amount;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Dhat<'a> {
    dhat_file_version: u32,
    mode: &'a str,
    verb: &'a str,
    bklt: bool,
    bkacc: bool,
    bu: &'a str,
    bsu: &'a str,
    bksu: &'a str,
    tu: &'a str,
    #[serde(rename = "Mtu")]
    mtu: &'a str,
    cmd: &'a str,
    pid: u32,
    te: u64,
    pps: Vec<Point>,
    ftbl: Vec<String>,
}

#[derive(Serialize)]
struct Point {
    /// Bytes.
    tb: u64,
    /// Blocks.
    tbk: u64,
    /// Frames, innermost first, as indices into the table.
    fs: Vec<usize>,
}

/// What measured rounds left behind, by site.
pub fn dhat_left(sites: &[Site], command: &str) -> String {
    dhat(sites, command, "Left behind", |site| site.grown)
}

/// What measured rounds allocated, by site.
pub fn dhat_allocated(sites: &[Site], command: &str) -> String {
    dhat(sites, command, "Allocated", |site| site.allocated)
}

fn dhat(sites: &[Site], command: &str, verb: &str, value: impl Fn(&Site) -> Amount) -> String {
    let mut table = Table::new();
    let mut pps = Vec::new();
    for site in sites {
        let amount = value(site);
        let (Ok(tb), Ok(tbk)) = (u64::try_from(amount.bytes), u64::try_from(amount.blocks)) else {
            continue;
        };
        if tb == 0 && tbk == 0 {
            continue;
        }
        let fs = site
            .frames_of_workload()
            .iter()
            .map(|frame| table.index(frame))
            .collect();
        pps.push(Point { tb, tbk, fs });
    }
    let rounds = sites.first().map_or(0, |site| site.live.len());
    let dhat = Dhat {
        dhat_file_version: 2,
        mode: "heap",
        verb,
        bklt: false,
        bkacc: false,
        bu: "byte",
        bsu: "bytes",
        bksu: "blocks",
        tu: "rounds",
        mtu: "Mrounds",
        cmd: command,
        pid: std::process::id(),
        te: rounds as u64,
        pps,
        ftbl: table.names,
    };
    serde_json::to_string(&dhat).unwrap_or_default()
}

/// The frames' texts, each once.
struct Table {
    names: Vec<String>,
    known: HashMap<String, usize>,
}

impl Table {
    fn new() -> Self {
        Self {
            names: vec!["[root]".to_owned()],
            known: HashMap::new(),
        }
    }

    fn index(&mut self, frame: &Frame) -> usize {
        let text = match frame.place() {
            Some(place) => format!("{} ({place})", frame.function),
            None => format!("{} (in {})", frame.function, frame.object),
        };
        let next = self.names.len();
        let index = *self.known.entry(text.clone()).or_insert(next);
        if index == next {
            self.names.push(text);
        }
        index
    }
}

#[cfg(test)]
mod tests {
    use super::super::frames::sample::sites;
    use super::*;

    /// The fields that `dh_view.js` checks for when `bklt` and `bkacc` are off.
    #[test]
    fn the_file_has_what_the_viewer_asks_for() {
        let text = dhat_left(&sites(), "a program");
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        for field in [
            "dhatFileVersion",
            "mode",
            "verb",
            "bklt",
            "bkacc",
            "tu",
            "Mtu",
            "cmd",
            "pid",
            "te",
            "pps",
            "ftbl",
        ] {
            assert!(value.get(field).is_some(), "{field}");
        }
        assert_eq!(value["dhatFileVersion"], 2);
        assert_eq!(value["ftbl"][0], "[root]");
        let points = value["pps"].as_array().unwrap();
        let sum: u64 = points
            .iter()
            .map(|point| point["tb"].as_u64().unwrap())
            .sum();
        assert_eq!(sum, 96 + 1000);
        let innermost = points[0]["fs"][0].as_u64().unwrap() as usize;
        assert_eq!(value["ftbl"][innermost], "malloc (in libc.so.6)");
        let next = points[0]["fs"][1].as_u64().unwrap() as usize;
        assert_eq!(
            value["ftbl"][next],
            "prover::finish (/p/src/finish.rs:12:9)"
        );
    }
}
