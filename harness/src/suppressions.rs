//! Leaks that are known and let through for a while: LeakSanitizer's `leak:` rules,
//! each with a reason and the day until which it holds.
//!
//! ```text
//! # Any comment.
//! #: reason = the driver's table of kernels lives as long as the process
//! #: until = 2027-03-31
//! leak:^load_kernels$
//!
//! #: reason = the parser is replaced next quarter
//! #: until = 2027-01-31
//! #: layer = native-heap
//! #: phase = parse
//! leak:*
//! ```
//!
//! A pattern is looked for in the function, the source file and the object of every
//! frame of a leak's stack, as LeakSanitizer does: anywhere in the name, `*` stands
//! for anything, `^` at the beginning and `$` at the end for the name's beginning and
//! end. LeakSanitizer reads the same file: to it, `#:` lines are comments.
//!
//! The `#:` lines directly above a `leak:` line belong to it. `reason` and `until`
//! (the last day, UTC, as YYYY-MM-DD) must be there, `layer` and `phase` may, and
//! narrow the rule. `leak:*` needs one of them: it is decided by them alone, without
//! a stack. Nothing else is understood, and what is not understood is an error.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use jiff::civil::Date;
use regex::Regex;

use crate::books::Layer;
use crate::error::{Error, failed_to};
use crate::explain::Frame;

/// A day of the calendar (UTC).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Day(Date);

impl Day {
    /// The day on which so many seconds had passed since 1970 (UTC).
    pub(crate) fn of_seconds(seconds: u64) -> Self {
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
        // Past the calendar's end, every rule has expired.
        let at = jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::MAX);
        Self(jiff::tz::Offset::UTC.to_datetime(at).date())
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Day {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A date with a time of day is one to the parser, and none here.
        let day = Date::strptime("%Y-%m-%d", text).ok().map(Self);
        day.filter(|day| day.to_string() == text)
            .ok_or_else(|| format!("`{text}` is no day; write it as 2027-03-31"))
    }
}

/// Leaks that are known and let through for a while; [`suppressions`](self) has the format.
#[derive(Clone, Debug)]
pub struct Suppressions {
    file: PathBuf,
    rules: Vec<Rule>,
    today: Option<Day>,
}

/// One `leak:` line and what stands above it.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    /// As written: `leak:PATTERN`.
    pub text: String,
    /// The line of the file, from 1.
    pub line: u32,
    pub reason: String,
    /// The last day on which it holds.
    pub until: Day,
    pub layer: Option<Layer>,
    pub phase: Option<String>,
    /// `None`: decided by layer and phase alone.
    pattern: Option<Regex>,
}

impl Suppressions {
    /// Reads a file of suppressions.
    ///
    /// # Errors
    /// If it cannot be read, or holds anything that is not understood.
    pub fn read(file: impl AsRef<Path>) -> Result<Self, Error> {
        let file = file.as_ref();
        let what = format!("read the suppressions in {}", file.display());
        let text = std::fs::read_to_string(file).map_err(failed_to(what))?;
        Self::parse(&text, file)
    }

    /// Takes the text of a file of suppressions; `file` names it in messages.
    ///
    /// # Errors
    /// If it holds anything that is not understood.
    pub fn parse(text: &str, file: impl Into<PathBuf>) -> Result<Self, Error> {
        let file = file.into();
        let bad = |(line, problem): (usize, String)| Error::BadSuppressions {
            file: file.clone(),
            line,
            problem,
        };
        let rules = rules(text).map_err(bad)?;
        Ok(Self {
            file,
            rules,
            today: None,
        })
    }

    /// One rule that stands in another file: `leak` is what follows `leak:`.
    ///
    /// # Errors
    /// In words, if it is none.
    pub(crate) fn of_one(
        file: impl Into<PathBuf>,
        line: usize,
        leak: &str,
        reason: String,
        until: Day,
        layer: Option<Layer>,
        phase: Option<String>,
    ) -> Result<Self, String> {
        if reason.trim().is_empty() {
            return Err("the reason is empty".to_owned());
        }
        let above = Above {
            line: None,
            reason: Some(reason),
            until: Some(until),
            layer,
            phase,
        };
        Ok(Self {
            file: file.into(),
            rules: vec![rule(line, &format!("leak:{leak}"), above)?],
            today: None,
        })
    }

    /// Takes this day for today, where it is asked whether a rule has expired. Unless
    /// set, it is the day on which the run ended.
    #[must_use]
    pub fn as_of(mut self, today: Day) -> Self {
        self.today = Some(today);
        self
    }

    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    pub(crate) fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Today, for a run that ended then (seconds since 1970).
    pub(crate) fn today(&self, ended_at: u64) -> Day {
        self.today.unwrap_or_else(|| Day::of_seconds(ended_at))
    }
}

impl Rule {
    /// Whether it can be decided without a stack.
    pub fn is_by_place(&self) -> bool {
        self.pattern.is_none()
    }

    /// Whether what is in this layer and phase can be meant.
    pub fn covers(&self, layer: Layer, phase: &str) -> bool {
        self.layer.is_none_or(|of| of == layer)
            && self.phase.as_deref().is_none_or(|of| of == phase)
    }

    /// Whether the pattern is in a name of one of the frames.
    pub fn matches(&self, frames: &[Frame]) -> bool {
        let Some(pattern) = &self.pattern else {
            return false;
        };
        frames.iter().any(|frame| {
            let names = [
                Some(&frame.function),
                frame.file.as_ref(),
                Some(&frame.object),
            ];
            let mut names = names.into_iter().flatten();
            names.any(|name| !name.is_empty() && pattern.is_match(name))
        })
    }
}

/// The `#:` lines above a rule, so far.
#[derive(Default)]
struct Above {
    /// Where they begin.
    line: Option<usize>,
    reason: Option<String>,
    until: Option<Day>,
    layer: Option<Layer>,
    phase: Option<String>,
}

impl Above {
    fn take(&mut self, line: usize, text: &str) -> Result<(), String> {
        self.line.get_or_insert(line);
        let Some((key, value)) = text.split_once('=') else {
            return Err(format!(
                "`#:{text}` has no `=`; write `#: reason = …`, or `# …` for a comment"
            ));
        };
        let (key, value) = (key.trim(), value.trim());
        if value.is_empty() {
            return Err(format!("`{key}` is empty"));
        }
        let twice = match key {
            "reason" => self.reason.replace(value.to_owned()).is_some(),
            "until" => self.until.replace(value.parse()?).is_some(),
            "layer" => self.layer.replace(layer(value)?).is_some(),
            "phase" => self.phase.replace(value.to_owned()).is_some(),
            _ => {
                return Err(format!(
                    "`{key}` is unknown; a rule has `reason`, `until`, `layer` and `phase`"
                ));
            }
        };
        if twice {
            return Err(format!("`{key}` is given twice"));
        }
        Ok(())
    }

    /// What belongs to no rule is an error: it was meant to.
    fn nothing(&self) -> Result<(), (usize, String)> {
        match self.line {
            Some(line) => Err((
                line,
                "no `leak:` line follows these `#:` lines directly".to_owned(),
            )),
            None => Ok(()),
        }
    }
}

fn rules(text: &str) -> Result<Vec<Rule>, (usize, String)> {
    let mut rules = Vec::new();
    let mut above = Above::default();
    for (at, line) in text.lines().enumerate() {
        let number = at + 1;
        let at_line = |problem: String| (number, problem);
        let line = line.trim();
        if let Some(text) = line.strip_prefix("#:") {
            above.take(number, text).map_err(at_line)?;
        } else if line.is_empty() {
            above.nothing()?;
        } else if line.starts_with('#') {
            // A comment, between the `#:` lines too.
        } else {
            let above = std::mem::take(&mut above);
            rules.push(rule(number, line, above).map_err(at_line)?);
        }
    }
    above.nothing()?;
    Ok(rules)
}

fn rule(line: usize, text: &str, above: Above) -> Result<Rule, String> {
    let Some(pattern) = text.strip_prefix("leak:") else {
        return Err(format!(
            "`{text}` is no rule; a rule is `leak:PATTERN`, a comment begins with `#`"
        ));
    };
    let missing = |what| format!("`{text}` has no {what}; write `#: {what} = …` above it");
    let by_place = pattern == "*";
    if by_place && above.layer.is_none() && above.phase.is_none() {
        return Err("`leak:*` without a layer or a phase lets every leak through".to_owned());
    }
    Ok(Rule {
        text: text.to_owned(),
        line: u32::try_from(line).unwrap_or(u32::MAX),
        reason: above.reason.ok_or_else(|| missing("reason"))?,
        until: above.until.ok_or_else(|| missing("until"))?,
        layer: above.layer,
        phase: above.phase,
        pattern: if by_place {
            None
        } else {
            Some(compiled(pattern)?)
        },
    })
}

/// LeakSanitizer's template as a regular expression.
fn compiled(pattern: &str) -> Result<Regex, String> {
    let (start, rest) = match pattern.strip_prefix('^') {
        Some(rest) => ("^", rest),
        None => ("", pattern),
    };
    let (rest, end) = match rest.strip_suffix('$') {
        Some(rest) => (rest, "$"),
        None => (rest, ""),
    };
    if rest.contains('$') {
        return Err("`$` means the end of a name, and must come last".to_owned());
    }
    if rest.chars().all(|c| c == '*') {
        return Err(format!(
            "`leak:{pattern}` names nothing; write `leak:*` with a layer or a phase"
        ));
    }
    let parts: Vec<String> = rest.split('*').map(regex::escape).collect();
    let expression = format!("(?s){start}{}{end}", parts.join(".*"));
    Regex::new(&expression).map_err(|error| format!("`leak:{pattern}` is too long: {error}"))
}

fn layer(name: &str) -> Result<Layer, String> {
    let found = Layer::ALL.into_iter().find(|layer| layer.name() == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = Layer::ALL.iter().map(|layer| layer.name()).collect();
        format!("`{name}` is no layer; there are {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::FrameKind;

    fn parse(text: &str) -> Result<Suppressions, String> {
        Suppressions::parse(text, "known.supp").map_err(|error| error.chain())
    }

    fn frame(function: &str) -> Frame {
        Frame {
            function: function.to_owned(),
            file: Some("/src/app/kernels.cpp".to_owned()),
            line: Some(3),
            column: None,
            inlined: false,
            object: "libguest.so.1".to_owned(),
            kind: FrameKind::Yours,
            source: None,
        }
    }

    fn matches(pattern: &str, function: &str) -> bool {
        let text = format!("#: reason = known\n#: until = 2027-03-31\nleak:{pattern}\n");
        let read = parse(&text).expect("a rule");
        read.rules()[0].matches(&[frame(function)])
    }

    #[test]
    fn a_pattern_is_found_as_leak_sanitizer_finds_it() {
        // Anywhere, in the function, the file or the object.
        assert!(matches("load", "app::load_kernels"));
        assert!(matches("kernels.cpp", "f"));
        assert!(matches("libguest.so", "f"));
        assert!(!matches("unload", "app::load_kernels"));
        // The beginning and the end.
        assert!(matches("^app::", "app::load"));
        assert!(!matches("^load", "app::load"));
        assert!(matches("load$", "app::load"));
        assert!(!matches("load$", "app::load_kernels"));
        assert!(matches("^app::load$", "app::load"));
        assert!(!matches("^app::load$", "app::loads"));
        // The end is the name's, also where the same letters come earlier.
        assert!(matches("ab$", "abab"));
        // Anything in between, and nothing that a regular expression would mean.
        assert!(matches("app::*kernels", "app::load_kernels"));
        assert!(matches("^a*::*s$", "app::load_kernels"));
        assert!(!matches("a.p", "app"));
        assert!(matches("operator new[]", "operator new[](unsigned long)"));
    }

    #[test]
    fn a_rule_has_what_stands_directly_above_it() {
        let read = parse(
            "# known leaks\n\n#: reason = a = b\n# see the ticket\n#: until = 2027-03-31\n\
             #: layer = native-heap\n#: phase = b_g2 msm\nleak:*\n\
             #: until = 2028-02-29\n#: reason = other\nleak:other\n",
        )
        .expect("two rules");
        let [one, two] = read.rules() else {
            panic!("two rules: {read:?}")
        };
        assert_eq!((one.reason.as_str(), one.line), ("a = b", 8));
        assert!(one.is_by_place() && one.covers(Layer::NativeHeap, "b_g2 msm"));
        assert!(!one.covers(Layer::RustHeap, "b_g2 msm"));
        assert!(!one.covers(Layer::NativeHeap, "b_g2"));
        assert!(!two.is_by_place() && two.covers(Layer::RustHeap, "any"));
        assert_eq!(two.until.to_string(), "2028-02-29");
        assert!(parse("").expect("no rules").rules().is_empty());
    }

    #[test]
    fn what_is_not_understood_is_an_error_with_its_line() {
        let head = "#: reason = known\n#: until = 2027-03-31\n";
        for (text, message) in [
            ("leak:f", "known.supp:1: `leak:f` has no reason"),
            (
                "#: reason = x\nleak:f",
                "known.supp:2: `leak:f` has no until",
            ),
            (
                "#: until = 2027-02-29\n",
                "known.supp:1: `2027-02-29` is no day",
            ),
            (
                "#: until = 2027-2-9\n",
                "known.supp:1: `2027-2-9` is no day",
            ),
            ("#: until = 2027-03-31T10:00\n", "is no day"),
            (
                "#: untill = 2027-03-31\n",
                "known.supp:1: `untill` is unknown",
            ),
            ("#: reason\n", "has no `=`"),
            ("#: reason =\n", "`reason` is empty"),
            (
                "#: reason = a\n#: reason = b\n",
                "known.supp:2: `reason` is given twice",
            ),
            (
                "#: layer = heap\n",
                "`heap` is no layer; there are rust-heap, native-heap",
            ),
            (head, "known.supp:1: no `leak:` line follows"),
            (
                &format!("{head}\nleak:f"),
                "known.supp:1: no `leak:` line follows",
            ),
            (
                &format!("{head}leak:"),
                "known.supp:3: `leak:` names nothing",
            ),
            (&format!("{head}leak:^**$"), "names nothing"),
            (&format!("{head}leak:*"), "lets every leak through"),
            (&format!("{head}leak:a$b"), "must come last"),
            (
                &format!("{head}race:f"),
                "known.supp:3: `race:f` is no rule",
            ),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(message), "{text:?} gave {error:?}");
        }
    }

    #[test]
    fn a_day_is_the_calendars() {
        assert_eq!(Day::of_seconds(0).to_string(), "1970-01-01");
        assert_eq!(Day::of_seconds(1_806_451_199).to_string(), "2027-03-30");
        assert_eq!(Day::of_seconds(1_806_451_200).to_string(), "2027-03-31");
        assert_eq!(Day::of_seconds(u64::MAX).to_string(), "9999-12-30");
        let day: Day = "2027-03-31".parse().expect("a day");
        assert!(Day::of_seconds(1_806_451_200) <= day && Day::of_seconds(1_806_537_600) > day);
    }
}
