//! DHAT's JSON, as Valgrind, dhat-rs and `explain` write it, read in one pass.
//!
//! A program point is a row of eight numbers and the indices of its frames, all points'
//! indices in one list; the frames' texts come last in the file. So a million points
//! take some 150 MB, whatever the file has besides.

mod joined;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::path::Path;

use serde::Deserialize;
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

pub(super) use joined::{Keys, SiteOf, Sites};

use super::fast;
use super::pieces::{At, Piece, Pieces, Problem};
use crate::error::{Error, failed_to};

/// A file in DHAT's format.
pub(super) struct Dhat {
    pub head: Head,
    numbers: Vec<Numbers>,
    /// The frames of all points, one after the other.
    frames: Vec<u32>,
    /// Where each point's frames begin.
    begins: Vec<usize>,
    /// The frames' texts.
    table: Vec<String>,
}

/// What a file says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    /// What was profiled: `heap`, `rust-heap`, `copy`, `ad-hoc`.
    pub mode: String,
    /// What was done with it: `Allocated`.
    pub verb: String,
    /// The program and its arguments.
    pub command: String,
    /// The unit of time.
    pub unit_of_time: String,
    /// The unit in place of bytes.
    pub unit: String,
    /// Whether lifetimes and what is left at the end are known.
    pub has_lifetimes: bool,
}

/// The numbers of one program point, or of all that are one site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Numbers {
    /// Bytes allocated.
    pub bytes: u64,
    /// Blocks allocated.
    pub blocks: u64,
    /// The blocks' lifetimes together, in the file's unit of time.
    pub lifetimes: u64,
    /// Bytes alive at the moment of the highest use.
    pub at_peak: u64,
    /// Bytes alive at the end.
    pub left_bytes: u64,
    /// Blocks alive at the end.
    pub left_blocks: u64,
}

impl Numbers {
    pub fn add(&mut self, other: &Self) {
        let sum = |a: &mut u64, b: u64| *a = a.saturating_add(b);
        sum(&mut self.bytes, other.bytes);
        sum(&mut self.blocks, other.blocks);
        sum(&mut self.lifetimes, other.lifetimes);
        sum(&mut self.at_peak, other.at_peak);
        sum(&mut self.left_bytes, other.left_bytes);
        sum(&mut self.left_blocks, other.left_blocks);
    }
}

/// Reads a file in DHAT's format.
pub(super) fn read(file: &Path) -> Result<Dhat, Error> {
    let what = || format!("read {}", file.display());
    let open = File::open(file).map_err(failed_to(what()))?;
    read_from(Pieces::of(open)).map_err(|problem| match problem {
        Problem::Io(error) => failed_to(what())(error),
        Problem::Bad { at, what } => Error::BadFile {
            file: file.to_owned(),
            line: at.line,
            column: at.column,
            problem: what,
        },
    })
}

fn read_from<R: std::io::Read>(mut pieces: Pieces<R>) -> Result<Dhat, Problem> {
    let mut head = Head::default();
    let mut version: Option<u64> = None;
    let mut points = Points::default();
    let mut table = Vec::new();
    let mut known: Vec<String> = Vec::new();
    pieces.expect(b'{')?;
    if !pieces.take(b'}')? {
        loop {
            let piece = pieces.value()?;
            let (key, at) = (of::<Cow<'_, str>>(&piece)?.into_owned(), piece.at);
            if known.contains(&key) {
                return Err(Problem::at(at, format!("`{key}` is given twice")));
            }
            pieces.expect(b':')?;
            match key.as_str() {
                "pps" => list(&mut pieces, "the program points", |number, pieces| {
                    points.add(number, pieces)
                })?,
                "ftbl" => list(&mut pieces, "the frames", |number, pieces| {
                    let text = of::<String>(&pieces.value()?);
                    table
                        .push(text.map_err(|problem| within(&format!("frame {number}"), problem))?);
                    Ok(())
                })?,
                _ => {
                    let piece = pieces.value()?;
                    let field = field(&key, &piece, &mut head, &mut version);
                    field.map_err(|problem| within(&format!("`{key}`"), problem))?;
                }
            }
            known.push(key);
            if !pieces.take(b',')? {
                break;
            }
        }
        pieces.expect(b'}')?;
    }
    let end = pieces.at();
    if pieces.peek()?.is_some() {
        return Err(pieces.unexpected("the end of the file"));
    }
    for key in ["dhatFileVersion", "mode", "verb", "pps", "ftbl"] {
        if !known.iter().any(|known| known == key) {
            return Err(Problem::at(end, format!("the file has no `{key}`")));
        }
    }
    if head.unit.is_empty() {
        head.unit = "bytes".to_owned();
    }
    points.check(table.len())?;
    Ok(Dhat {
        head,
        numbers: points.numbers,
        frames: points.frames,
        begins: points.begins,
        table,
    })
}

/// The value of a piece.
fn of<'a, T: Deserialize<'a>>(piece: &Piece<'a>) -> Result<T, Problem> {
    serde_json::from_slice(piece.bytes).map_err(|error| piece.problem(&error))
}

fn within(what: &str, problem: Problem) -> Problem {
    match problem {
        Problem::Bad { at, what: problem } => Problem::at(at, format!("{what}: {problem}")),
        problem => problem,
    }
}

fn field(
    key: &str,
    piece: &Piece<'_>,
    head: &mut Head,
    version: &mut Option<u64>,
) -> Result<(), Problem> {
    match key {
        "dhatFileVersion" => {
            let number = *version.insert(of(piece)?);
            if number != 2 {
                return Err(Problem::at(
                    piece.at,
                    format!("this is version {number} of the format, and tidegate reads version 2"),
                ));
            }
        }
        "mode" => head.mode = of(piece)?,
        "verb" => head.verb = of(piece)?,
        "cmd" => head.command = of(piece)?,
        "tu" => head.unit_of_time = of(piece)?,
        "bsu" => head.unit = of(piece)?,
        "bklt" => head.has_lifetimes = of(piece)?,
        _ => {
            of::<IgnoredAny>(piece)?;
        }
    }
    Ok(())
}

/// Reads the elements of a list one by one; the first has the number 1.
fn list<R: std::io::Read>(
    pieces: &mut Pieces<R>,
    what: &str,
    mut each: impl FnMut(usize, &mut Pieces<R>) -> Result<(), Problem>,
) -> Result<(), Problem> {
    if !pieces.take(b'[')? {
        return Err(pieces.unexpected(&format!("a list of {what}, `[`,")));
    }
    if pieces.take(b']')? {
        return Ok(());
    }
    let mut number = 0;
    loop {
        number += 1;
        each(number, pieces)?;
        if !pieces.take(b',')? {
            return match pieces.take(b']')? {
                true => Ok(()),
                false => Err(pieces.unexpected("`,` or `]`")),
            };
        }
    }
}

#[derive(Default)]
struct Points {
    numbers: Vec<Numbers>,
    frames: Vec<u32>,
    begins: Vec<usize>,
    /// The highest index of a frame: itself, the point's number and place.
    highest: Option<(u32, usize, At)>,
}

impl Points {
    fn add<R: std::io::Read>(
        &mut self,
        number: usize,
        pieces: &mut Pieces<R>,
    ) -> Result<(), Problem> {
        let begin = self.frames.len();
        let usual = pieces.usual(|bytes| fast::point(bytes, &mut self.frames))?;
        let (numbers, at) = match usual {
            Some(read) => read,
            None => {
                let piece = pieces.value()?;
                let numbers = careful(&piece, &mut self.frames).map_err(|error| {
                    within(&format!("program point {number}"), piece.problem(&error))
                })?;
                (numbers, piece.at)
            }
        };
        let highest = self.frames[begin..].iter().max();
        if let Some(index) = highest
            && self.highest.is_none_or(|(known, ..)| known < *index)
        {
            self.highest = Some((*index, number, at));
        }
        self.numbers.push(numbers);
        self.begins.push(begin);
        Ok(())
    }

    /// Checks that every frame is one of the table's.
    fn check(&self, frames: usize) -> Result<(), Problem> {
        match self.highest {
            Some((index, number, at)) if index as usize >= frames => Err(Problem::at(
                at,
                format!(
                    "program point {number}: its frame {index} is not one of the {frames} in `ftbl`, \
                     which count from 0"
                ),
            )),
            _ => Ok(()),
        }
    }
}

/// Reads a program point whatever it has, or says what is wrong with it.
fn careful(piece: &Piece<'_>, frames: &mut Vec<u32>) -> Result<Numbers, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_slice(piece.bytes);
    let numbers = PointSeed { frames }.deserialize(&mut json)?;
    json.end()?;
    Ok(numbers)
}

/// Reads a program point, and puts its frames where all frames are.
struct PointSeed<'a> {
    frames: &'a mut Vec<u32>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum Key {
    Tb,
    Tbk,
    Tl,
    Gb,
    Eb,
    Ebk,
    Fs,
    #[serde(other)]
    Other,
}

impl Key {
    const NAMES: [&str; 7] = ["tb", "tbk", "tl", "gb", "eb", "ebk", "fs"];
}

impl<'de> DeserializeSeed<'de> for PointSeed<'_> {
    type Value = Numbers;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Numbers, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for PointSeed<'_> {
    type Value = Numbers;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a program point")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Numbers, A::Error> {
        let mut numbers = Numbers::default();
        let mut seen = [false; Key::NAMES.len()];
        while let Some(key) = map.next_key::<Key>()? {
            if let Some(seen) = seen.get_mut(key as usize)
                && std::mem::replace(seen, true)
            {
                return Err(A::Error::duplicate_field(Key::NAMES[key as usize]));
            }
            match key {
                Key::Tb => numbers.bytes = map.next_value()?,
                Key::Tbk => numbers.blocks = map.next_value()?,
                Key::Tl => numbers.lifetimes = map.next_value()?,
                Key::Gb => numbers.at_peak = map.next_value()?,
                Key::Eb => numbers.left_bytes = map.next_value()?,
                Key::Ebk => numbers.left_blocks = map.next_value()?,
                Key::Fs => map.next_value_seed(FramesSeed(self.frames))?,
                Key::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        for needed in [Key::Tb, Key::Tbk, Key::Fs] {
            if !seen[needed as usize] {
                return Err(A::Error::missing_field(Key::NAMES[needed as usize]));
            }
        }
        Ok(numbers)
    }
}

struct FramesSeed<'a>(&'a mut Vec<u32>);

impl<'de> DeserializeSeed<'de> for FramesSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for FramesSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of indices of frames")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut frames: A) -> Result<(), A::Error> {
        while let Some(frame) = frames.next_element()? {
            self.0.push(frame);
        }
        Ok(())
    }
}
