//! A profile as text, and back.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::path::Path;

use super::{Metric, Place, Profile, Rounds, Row, Sites, Spread};
use crate::books::Layer;
use crate::error::{Error, failed_to};

/// What a profile begins with.
pub(crate) const NAME: &str = "tidegate-profile";
/// The first line of a profile.
const HEAD: &str = "tidegate-profile 1";
/// What the units are, for whoever opens the file.
const LEGEND: &str = "# blocks, bytes and held are per measured round; peaks have 3 digits, \
    held and dwell 2";
const END: &str = "end";
/// No profile is longer, in bytes: what is read is not all that anybody sends.
const LONGEST: u64 = 256 << 20;

impl Profile {
    /// The profile as text; equal profiles give equal texts.
    pub fn text(&self) -> String {
        let mut out = format!("{HEAD}\n");
        self.write_body(&mut out);
        out
    }

    /// Reads the text of a profile; `file` names it in messages.
    ///
    /// # Errors
    /// If it is not one, with the line.
    pub fn parse(text: &str, file: &Path) -> Result<Self, Error> {
        let mut lines = Lines::of(text);
        let read = lines.head(HEAD).and_then(|()| Self::read_body(&mut lines));
        read.map_err(|problem| lines.error(file, problem))
    }

    /// Reads a profile from its file.
    ///
    /// # Errors
    /// If there is none, or if it is not one, with the line.
    pub fn read(file: &Path) -> Result<Self, Error> {
        Self::parse(&text_of(file)?, file)
    }

    /// All but the first line.
    pub(crate) fn write_body(&self, out: &mut String) {
        let _ = writeln!(out, "{LEGEND}");
        let _ = writeln!(out, "scenario {}", quoted(&self.scenario));
        let _ = writeln!(out, "runs {}", self.runs);
        let _ = writeln!(out, "rounds {}", self.rounds);
        let _ = writeln!(out, "sites {}", self.sites.name());
        out.push_str("whole");
        write_metrics(out, &self.whole, self.runs);
        out.push('\n');
        for (place, row) in &self.rows {
            let _ = write!(
                out,
                "row phase={} layer={}",
                quoted(&place.phase),
                place.layer
            );
            write_metrics(out, row, self.runs);
            if let Some(site) = &place.site {
                // Last, for it is long.
                let _ = write!(out, " site={}", quoted(site));
            }
            out.push('\n');
        }
        let _ = writeln!(out, "{END}");
    }

    /// Reads what [`write_body`](Self::write_body) wrote.
    pub(crate) fn read_body(lines: &mut Lines<'_>) -> Result<Self, String> {
        let scenario = unquoted(lines.keyed("scenario")?)?;
        let runs = lines.number("runs")?;
        if runs == 0 {
            return Err("a profile is of at least one run".to_owned());
        }
        let rounds = read_rounds(lines.keyed("rounds")?)?;
        let sites = read_sites(lines.keyed("sites")?)?;
        let mut whole = Row::new();
        for word in words(lines.keyed("whole")?) {
            let (key, value) = word?;
            add_metric(&mut whole, key, &value, runs)?;
        }
        let mut rows = BTreeMap::new();
        loop {
            let line = lines.next().ok_or_else(Lines::cut_off)?;
            if line == END {
                break;
            }
            let Some(row) = line.strip_prefix("row ") else {
                return Err(format!("`{line}` is neither a row nor `{END}`"));
            };
            let (place, row) = read_row(row, runs)?;
            if rows.insert(place, row).is_some() {
                return Err("this phase, layer and site has a row already".to_owned());
            }
        }
        match lines.next() {
            Some(line) => Err(format!("`{line}` comes after the end")),
            None => Ok(Self {
                scenario,
                runs,
                rounds,
                sites,
                whole,
                rows,
            }),
        }
    }
}

/// The text of a file, if it is no longer than a profile can be.
pub(crate) fn text_of(file: &Path) -> Result<String, Error> {
    let what = || format!("read {}", file.display());
    let mut text = String::new();
    let open = fs::File::open(file).map_err(failed_to(what()))?;
    let length = open
        .take(LONGEST + 1)
        .read_to_string(&mut text)
        .map_err(failed_to(what()))?;
    if length as u64 > LONGEST {
        return Err(Error::BadFile {
            file: file.to_owned(),
            line: 1,
            column: 1,
            problem: format!("this is longer than any profile ({} MiB)", LONGEST >> 20),
        });
    }
    Ok(text)
}

fn write_metrics(out: &mut String, row: &Row, runs: u32) {
    for (metric, spread) in row {
        let _ = write!(out, " {metric}={}", written(*metric, spread, runs));
    }
}

/// One value where all runs gave it, else each with how many gave it.
pub(crate) fn written(metric: Metric, spread: &Spread, runs: u32) -> String {
    match spread.only() {
        Some(value) if spread.runs() == runs => metric.written(value),
        only => {
            let values = spread.values().iter().map(|(value, times)| {
                let value = metric.written(*value);
                match times {
                    1 if only.is_none() => value,
                    times => format!("{value}*{times}"),
                }
            });
            values.collect::<Vec<_>>().join(",")
        }
    }
}

pub(crate) fn read_spread(metric: Metric, text: &str, runs: u32) -> Result<Spread, String> {
    if !text.contains([',', '*']) {
        return Ok(Spread::repeated(metric.read(text)?, runs));
    }
    let mut spread: Option<Spread> = None;
    for part in text.split(',') {
        let (value, times) = match part.split_once('*') {
            Some((value, times)) => (value, read_runs(times)?),
            None => (part, 1),
        };
        let value = metric.read(value)?;
        match &mut spread {
            Some(known) if known.highest() >= value => {
                return Err(format!("the values in `{text}` do not ascend"));
            }
            Some(known) => known.add(value, times),
            None => spread = Some(Spread::repeated(value, times)),
        }
    }
    let spread = spread.ok_or_else(|| "there is no value".to_owned())?;
    if spread.runs() > runs || written(metric, &spread, runs) != text {
        return Err(format!(
            "`{text}` is not how the values of {runs} runs are written"
        ));
    }
    Ok(spread)
}

/// A number of runs, at least 1.
pub(crate) fn read_runs(text: &str) -> Result<u32, String> {
    let number = text
        .parse()
        .ok()
        .filter(|number: &u32| number.to_string() == text);
    number
        .filter(|number| *number > 0)
        .ok_or_else(|| format!("`{text}` is no number of runs"))
}

fn add_metric(row: &mut Row, key: &str, value: &str, runs: u32) -> Result<(), String> {
    let metric = Metric::of_name(key).ok_or_else(|| {
        let names = Metric::ALL.map(Metric::name).join(", ");
        format!("`{key}` is unknown; there are {names}")
    })?;
    match row.insert(metric, read_spread(metric, value, runs)?) {
        Some(_) => Err(format!("`{key}` is given twice")),
        None => Ok(()),
    }
}

fn read_row(text: &str, runs: u32) -> Result<(Place, Row), String> {
    let (mut phase, mut layer, mut site) = (None, None, None);
    let mut row = Row::new();
    for word in words(text) {
        let (key, value) = word?;
        let twice = match key {
            "phase" => phase.replace(value).is_some(),
            "layer" => layer.replace(read_layer(&value)?).is_some(),
            "site" => site.replace(value).is_some(),
            _ => {
                add_metric(&mut row, key, &value, runs)?;
                false
            }
        };
        if twice {
            return Err(format!("`{key}` is given twice"));
        }
    }
    let missing = |what| format!("the row has no `{what}`");
    let place = Place {
        phase: phase.ok_or_else(|| missing("phase"))?,
        layer: layer.ok_or_else(|| missing("layer"))?,
        site,
    };
    Ok((place, row))
}

fn read_layer(name: &str) -> Result<Layer, String> {
    let found = Layer::ALL.into_iter().find(|layer| layer.name() == name);
    found.ok_or_else(|| {
        let names = Layer::ALL.map(Layer::name).join(", ");
        format!("`{name}` is no layer; there are {names}")
    })
}

fn read_sites(name: &str) -> Result<Sites, String> {
    let found = Sites::ALL.into_iter().find(|sites| sites.name() == name);
    found.ok_or_else(|| {
        let names = Sites::ALL.map(Sites::name).join(", ");
        format!("`{name}` is no kind of sites; there are {names}")
    })
}

fn read_rounds(text: &str) -> Result<Rounds, String> {
    let rounds = match text.split_once(" to ") {
        Some((fewest, most)) => fewest.parse().ok().zip(most.parse().ok()),
        None => text.parse().ok().map(|rounds| (rounds, rounds)),
    };
    let rounds = rounds.map(|(fewest, most)| Rounds { fewest, most });
    rounds
        .filter(|rounds| rounds.fewest <= rounds.most && rounds.to_string() == text)
        .ok_or_else(|| format!("`{text}` is no number of rounds; write 8, or 8 to 16"))
}

/// A word as it is where that reads well, else between quotes, as in JSON.
pub(crate) fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "_-.:;/<>{}()[]&+@$!?~^%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    // A string always has a form in JSON.
    serde_json::to_string(text).unwrap_or_default()
}

/// Reads what [`quoted`] wrote.
pub(crate) fn unquoted(text: &str) -> Result<String, String> {
    if !text.starts_with('"') {
        return Ok(text.to_owned());
    }
    serde_json::from_str(text)
        .map_err(|error| format!("`{text}` is no text between quotes: {error}"))
}

/// The `key=value` words of a line.
pub(crate) fn words(line: &str) -> impl Iterator<Item = Result<(&str, String), String>> {
    let mut rest = line;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches(' ');
        if rest.is_empty() {
            return None;
        }
        let Some((key, value)) = rest.split_once('=') else {
            let bad = std::mem::take(&mut rest);
            return Some(Err(format!("`{bad}` is no `key=value`")));
        };
        let end = word_end(value);
        let (value, after) = value.split_at(end);
        rest = after;
        Some(unquoted(value).map(|value| (key, value)))
    })
}

/// Where a word ends: at the next space, or at the closing quote.
fn word_end(text: &str) -> usize {
    if !text.starts_with('"') {
        return text.find(' ').unwrap_or(text.len());
    }
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The lines of a file that is being read, comments left out.
pub(crate) struct Lines<'a> {
    lines: std::str::Split<'a, char>,
    number: usize,
}

impl<'a> Lines<'a> {
    pub fn of(text: &'a str) -> Self {
        Self {
            lines: text.split('\n'),
            number: 0,
        }
    }

    /// The next line that says something; `None` at the end.
    pub fn next(&mut self) -> Option<&'a str> {
        for line in self.lines.by_ref() {
            self.number += 1;
            // What git on Windows adds.
            let line = line.strip_suffix('\r').unwrap_or(line);
            if !line.is_empty() && !line.starts_with('#') {
                return Some(line);
            }
        }
        None
    }

    /// The next line that says something, if it is one of these; else it is still to come.
    pub fn next_if(&mut self, wanted: impl Fn(&str) -> bool) -> Option<&'a str> {
        let (lines, number) = (self.lines.clone(), self.number);
        let next = self.next().filter(|line| wanted(line));
        if next.is_none() {
            (self.lines, self.number) = (lines, number);
        }
        next
    }

    pub fn cut_off() -> String {
        format!("the file is cut off: its last line is not `{END}`")
    }

    /// Takes the first line.
    pub fn head(&mut self, head: &str) -> Result<(), String> {
        match self.next() {
            Some(line) if line == head => Ok(()),
            line => {
                let line = line.unwrap_or_default();
                let same = head.split(' ').next() == line.split(' ').next();
                Err(if same && !line.is_empty() {
                    format!("this is `{line}`, and this version of tidegate reads `{head}`")
                } else {
                    format!("the first line is not `{head}`")
                })
            }
        }
    }

    /// What follows the key that the next line must begin with.
    pub fn keyed(&mut self, key: &str) -> Result<&'a str, String> {
        let line = self.next().ok_or_else(Self::cut_off)?;
        let rest = line.strip_prefix(key);
        match rest {
            Some("") => Ok(""),
            Some(rest) if rest.starts_with(' ') => Ok(&rest[1..]),
            _ => Err(format!("`{key}` should come here, not `{line}`")),
        }
    }

    fn number(&mut self, key: &str) -> Result<u32, String> {
        let text = self.keyed(key)?;
        text.parse()
            .map_err(|_| format!("`{text}` is no number of {key}"))
    }

    /// An error at the line that was read last.
    pub fn error(&self, file: &Path, problem: String) -> Error {
        Error::BadFile {
            file: file.to_owned(),
            line: self.number.max(1),
            column: 1,
            problem,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    use super::super::Value;
    use super::*;

    fn parse(text: &str) -> Result<Profile, String> {
        Profile::parse(text, Path::new("a.profile")).map_err(|error| error.chain())
    }

    const SMALL: &str = "tidegate-profile 1
# blocks, bytes and held are per measured round; peaks have 3 digits, held and dwell 2
scenario \"proving, split\"
runs 3
rounds 8 to 9
sites leaking
whole peak=4120KiB*2,4130KiB
row phase=ntt layer=rust-heap blocks=193+7/8 bytes=268616*2,268640 left-blocks=0 left-bytes=0 peak=<64KiB
row phase=ntt layer=rust-heap blocks=1 bytes=96 site=\"f(int) a.c;g\"
end
";

    #[test]
    fn a_profile_is_written_as_it_was_read() {
        let profile = parse(SMALL).expect("a profile");
        assert_eq!(profile.text(), SMALL);
        assert_eq!(profile.scenario, "proving, split");
        let place = |site: Option<&str>| Place {
            phase: "ntt".to_owned(),
            layer: Layer::RustHeap,
            site: site.map(str::to_owned),
        };
        let row = &profile.rows[&place(None)];
        assert_eq!(row[&Metric::Blocks].only(), Some(Value::per_round(1551, 8)));
        assert_eq!(row[&Metric::Bytes].runs(), 3);
        assert!(profile.rows.contains_key(&place(Some("f(int) a.c;g"))));
    }

    #[test]
    fn what_is_no_profile_is_refused_with_its_line() {
        let with = |from: &str, to: &str| parse(&SMALL.replacen(from, to, 1));
        for (from, to, message) in [
            (
                "profile 1",
                "profile 2",
                "a.profile:1:1: this is `tidegate-profile 2`",
            ),
            (
                "tidegate-profile 1",
                "{}",
                "a.profile:1:1: the first line is not",
            ),
            ("end\n", "", "cut off"),
            (
                "end\n",
                "end\nrow x",
                "a.profile:11:1: `row x` comes after the end",
            ),
            (
                "runs 3",
                "runs 0",
                "a.profile:4:1: a profile is of at least one run",
            ),
            ("runs 3", "runs 1000000000000", "is no number of runs"),
            (
                "runs 3\n",
                "",
                "a.profile:4:1: `runs` should come here, not `rounds 8 to 9`",
            ),
            ("leaking", "some", "`some` is no kind of sites"),
            (
                "8 to 9",
                "9 to 8",
                "a.profile:5:1: `9 to 8` is no number of rounds",
            ),
            ("8 to 9", "8 to 8", "`8 to 8` is no number of rounds"),
            ("rust-heap", "heap", "a.profile:8:1: `heap` is no layer"),
            (
                "blocks=193+7/8",
                "blocks=193.875",
                "a.profile:8:1: `193.875` is no number here",
            ),
            (
                "blocks=193+7/8",
                "block=1",
                "`block` is unknown; there are blocks, bytes",
            ),
            ("blocks=193+7/8", "bytes=1", "`bytes` is given twice"),
            (
                "268616*2",
                "268616*3",
                "is not how the values of 3 runs are written",
            ),
            ("268616*2,268640", "268640,268616", "do not ascend"),
            ("268616*2", "268616*0", "`0` is no number of runs"),
            ("peak=<64KiB", "peak=12KiB", "`12KiB` is no value of `peak`"),
            (
                " site=\"f(int) a.c;g\"",
                "",
                "a.profile:9:1: this phase, layer and site has a row already",
            ),
            (
                "site=\"f(int)",
                "site=\"f(int)\\x",
                "no text between quotes",
            ),
            (" layer=rust-heap", "", "the row has no `layer`"),
            ("row phase=ntt", "row phase=ntt x", "`x layer` is unknown"),
        ] {
            let error = with(from, to).expect_err(to);
            assert!(error.contains(message), "{to:?} gave {error:?}");
        }
    }

    #[test]
    fn a_claim_of_billions_of_runs_takes_no_memory() {
        let claim =
            SMALL
                .replacen("runs 3", "runs 4000000000", 1)
                .replacen("*2,", "*3999999999,", 2);
        let profile = parse(&claim).expect("a profile");
        assert_eq!(profile.text(), claim);
    }

    fn spreads(runs: u32) -> impl Strategy<Value = Row> {
        let metric = proptest::sample::select(Metric::ALL.to_vec());
        let values = vec((any::<i64>(), 1_u32..20, 0.0..1e12_f64), runs as usize);
        btree_map(metric, values, 0..5).prop_map(move |row| {
            let row = row.into_iter().map(|(metric, values)| {
                let of = |(total, rounds, noisy): &(i64, u32, f64)| match metric.is_exact() {
                    true => Value::per_round(*total, *rounds),
                    false => metric.kept(*noisy),
                };
                let mut spread = Spread::of(of(&values[0]));
                values[1..]
                    .iter()
                    .for_each(|value| spread.add(of(value), 1));
                (metric, spread)
            });
            row.collect()
        })
    }

    fn profiles() -> impl Strategy<Value = Profile> {
        (1_u32..4).prop_flat_map(|runs| {
            let place = (
                "\\PC{0,8}|[\\n\\r\\t\" =#\\\\]{0,4}",
                proptest::sample::select(Layer::ALL.to_vec()),
                proptest::option::of("\\PC{0,20}|[\\n\\r \"=]{1,3}"),
            );
            let place = place.prop_map(|(phase, layer, site)| Place { phase, layer, site });
            let sites = proptest::sample::select(Sites::ALL.to_vec());
            let rows = btree_map(place, spreads(runs), 0..6);
            let rounds = (any::<u32>(), any::<u32>());
            let rounds = rounds.prop_map(|(one, other)| Rounds::of(one).and(Rounds::of(other)));
            let rest = (any::<String>(), rounds, sites, spreads(runs));
            (rest, rows).prop_map(move |((scenario, rounds, sites, whole), rows)| Profile {
                scenario,
                runs,
                rounds,
                sites,
                whole,
                rows,
            })
        })
    }

    proptest! {
        #[test]
        fn printing_and_reading_are_inverse(profile in profiles()) {
            let text = profile.text();
            let read = parse(&text);
            prop_assert_eq!(read.as_ref(), Ok(&profile), "{}", text);
            prop_assert_eq!(read.expect("it is Ok").text(), text);
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in "\\PC{0,60}", at in 0_usize..400, length in 0_usize..20) {
            let _ = parse(&text);
            let mut bytes = SMALL.as_bytes().to_vec();
            let at = at.min(bytes.len());
            let end = (at + length).min(bytes.len());
            bytes.splice(at..end, text.bytes());
            let _ = parse(&String::from_utf8_lossy(&bytes));
        }
    }
}
