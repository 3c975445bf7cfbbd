//! DHAT's JSON, as Valgrind, dhat-rs and `explain` write it, read in one pass.
//!
//! A program point is a row of eight numbers and the indices of its frames, all points'
//! indices in one list; the frames' texts come last in the file. So a million points
//! take some 150 MB, whatever the file has besides.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::path::Path;

use serde::Deserialize;
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use super::fast;
use super::pieces::{At, Piece, Pieces, Problem};
use crate::error::{Error, failed_to};
use crate::explain::{FrameKind, Kinded, Written, tell, without_address};

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

/// Hashes stacks of two files alike. The keys are random, so that no file can be made
/// in which two stacks are taken for one.
pub(super) struct Keys {
    low: RandomState,
    high: RandomState,
}

/// A stack, or a name, in 128 bits.
pub(super) type Hash = u128;

impl Keys {
    pub fn random() -> Self {
        Self {
            low: RandomState::new(),
            high: RandomState::new(),
        }
    }

    fn of(&self, text: &str) -> Hash {
        u128::from(self.low.hash_one(text)) << 64 | u128::from(self.high.hash_one(text))
    }

    /// An odd number, which a stack's hash is multiplied with from frame to frame.
    fn multiplier(&self) -> Hash {
        self.of("") | 1
    }
}

/// The points of a file, those of one site added up.
pub(super) struct Sites {
    pub head: Head,
    frames: Vec<u32>,
    begins: Vec<usize>,
    texts: Vec<String>,
    table: Table,
    /// By hash, so that two files' are joined in one pass.
    sites: Vec<SiteOf>,
    /// The sum of all.
    pub total: Numbers,
}

/// One site of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct SiteOf {
    pub hash: Hash,
    pub numbers: Numbers,
    /// Tells apart what only lines tell apart.
    lines: u64,
    /// The first of its points in the file.
    pub point: u32,
}

impl SiteOf {
    /// Whether the same functions are at the same lines.
    pub fn is_where(&self, other: &Self) -> bool {
        self.lines == other.lines
    }
}

/// What is known of the frames, by their place in the file's table.
struct Table {
    kinds: Vec<FrameKind>,
    /// Of their names.
    names: Vec<Hash>,
    /// Of their texts without addresses.
    lines: Vec<u64>,
}

/// A frame of a stack, by its place in the table.
#[derive(Clone, Copy)]
struct FrameAt {
    index: u32,
    kind: FrameKind,
}

impl Kinded for FrameAt {
    fn kind(&self) -> FrameKind {
        self.kind
    }
}

impl Table {
    fn of(texts: &[String], keys: &Keys) -> Self {
        let mut table = Self {
            kinds: Vec::with_capacity(texts.len()),
            names: Vec::with_capacity(texts.len()),
            lines: Vec::with_capacity(texts.len()),
        };
        for text in texts {
            let Written { name, kind } = Written::read(text);
            table.kinds.push(kind);
            table.names.push(keys.of(&name));
            table.lines.push(keys.low.hash_one(without_address(text)));
        }
        table
    }

    /// Hands out the frames that tell a site, by [`tell`]'s rules. `stack` is overwritten.
    fn tell(&self, frames: &[u32], stack: &mut Vec<FrameAt>, mut each: impl FnMut(usize)) {
        stack.clear();
        stack.extend(frames.iter().map(|index| FrameAt {
            index: *index,
            kind: self.kinds[*index as usize],
        }));
        let name = |frame: &FrameAt| self.names[frame.index as usize];
        tell(
            stack,
            |one, other| name(one) == name(other),
            |frame| each(frame.index as usize),
        );
    }
}

impl Dhat {
    /// Adds up what is one site: the same functions, whatever the lines.
    pub fn sites(self, keys: &Keys) -> Sites {
        let table = Table::of(&self.table, keys);
        let multiplier = keys.multiplier();
        let mut stack = Vec::new();
        let mut points: Vec<(Hash, u32, u64)> = Vec::with_capacity(self.begins.len());
        for point in 0..self.begins.len() {
            let mut hash: Hash = 0;
            let mut lines = 0_u64;
            let frames = frames_of(&self.frames, &self.begins, point);
            table.tell(frames, &mut stack, |index| {
                hash = hash
                    .wrapping_mul(multiplier)
                    .wrapping_add(table.names[index]);
                lines = lines.rotate_left(9).wrapping_add(table.lines[index]);
            });
            points.push((hash, point as u32, lines));
        }
        points.sort_unstable_by_key(|(hash, point, _)| (*hash, *point));
        let mut total = Numbers::default();
        let mut sites: Vec<SiteOf> = Vec::with_capacity(points.len());
        for (hash, point, lines) in points {
            let numbers = self.numbers[point as usize];
            total.add(&numbers);
            match sites.last_mut() {
                Some(last) if last.hash == hash => {
                    last.numbers.add(&numbers);
                    last.lines = last.lines.wrapping_add(lines);
                }
                _ => sites.push(SiteOf {
                    hash,
                    numbers,
                    lines,
                    point,
                }),
            }
        }
        Sites {
            head: self.head,
            frames: self.frames,
            begins: self.begins,
            texts: self.table,
            table,
            sites,
            total,
        }
    }
}

fn frames_of<'a>(frames: &'a [u32], begins: &[usize], point: usize) -> &'a [u32] {
    let end = begins.get(point + 1).copied().unwrap_or(frames.len());
    &frames[begins[point]..end]
}

impl Sites {
    pub fn len(&self) -> usize {
        self.sites.len()
    }

    /// The sites of two files, those that are the same side by side.
    pub fn joined<'a>(
        &'a self,
        other: &'a Self,
    ) -> impl Iterator<Item = (Option<&'a SiteOf>, Option<&'a SiteOf>)> {
        let (mut ours, mut theirs) = (self.sites.iter().peekable(), other.sites.iter().peekable());
        std::iter::from_fn(move || {
            let order = match (ours.peek(), theirs.peek()) {
                (None, None) => return None,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(one), Some(another)) => one.hash.cmp(&another.hash),
            };
            Some(match order {
                Ordering::Less => (ours.next(), None),
                Ordering::Greater => (None, theirs.next()),
                Ordering::Equal => (ours.next(), theirs.next()),
            })
        })
    }

    /// The names that make the site, as hashes, and its frames' texts without addresses;
    /// both from the innermost.
    pub fn frames(&self, site: &SiteOf) -> Vec<(Hash, &str)> {
        let frames = frames_of(&self.frames, &self.begins, site.point as usize);
        let mut found = Vec::new();
        self.table.tell(frames, &mut Vec::new(), |index| {
            found.push((self.table.names[index], without_address(&self.texts[index])));
        });
        found
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As Valgrind writes it, and with all that it has.
    const VALGRIND: &str = r#"{"dhatFileVersion":2
,"mode":"heap","verb":"Allocated"
,"bklt":true,"bkacc":true
,"tu":"instrs","Mtu":"Minstr"
,"tuth":500
,"cmd":"/bin/prover \"a\""
,"pid":24942
,"te":724384
,"tg":675628
,"pps":
 [{"tb":472,"tbk":2
  ,"tl":13030
  ,"mb":472,"mbk":1
  ,"gb":12,"gbk":1
  ,"eb":8,"ebk":1
  ,"rb":1660,"wb":890
  ,"acc":[105,-3,102,-4,0]
  ,"fs":[1,2,3]
  }
 ,{"tb":100,"tbk":1
  ,"tl":1
  ,"mb":0,"mbk":0
  ,"gb":0,"gbk":0
  ,"eb":0,"ebk":0
  ,"rb":0,"wb":0
  ,"acc":[]
  ,"fs":[1,4,3]
  }
 ]
,"ftbl":
 ["[root]"
 ,"0x4838B26: malloc (vg_replace_malloc.c:381)"
 ,"0x10919A: finish (finish.c:5)"
 ,"0x109200: main (main.c:9)"
 ,"0x1091AF: finish (finish.c:7)"
 ]
}
"#;

    fn parse(text: &[u8]) -> Result<Dhat, (usize, usize, String)> {
        read_from(Pieces::of(text)).map_err(|problem| match problem {
            Problem::Bad { at, what } => (at.line, at.column, what),
            Problem::Io(error) => panic!("{error}"),
        })
    }

    #[test]
    fn points_of_the_same_functions_are_one_site() {
        let dhat = parse(VALGRIND.as_bytes()).expect("a DHAT file");
        assert_eq!(dhat.head.command, "/bin/prover \"a\"");
        let sites = dhat.sites(&Keys::random());
        assert_eq!(sites.len(), 1);
        let site = sites.sites[0];
        let expected = Numbers {
            bytes: 572,
            blocks: 3,
            lifetimes: 13031,
            at_peak: 12,
            left_bytes: 8,
            left_blocks: 1,
        };
        assert_eq!((site.numbers, sites.total), (expected, expected));
        let frames: Vec<&str> = sites
            .frames(&site)
            .into_iter()
            .map(|(_, text)| text)
            .collect();
        assert_eq!(frames, ["finish (finish.c:5)", "main (main.c:9)"]);
    }

    /// What is wrong with the sample after one replacement.
    fn problem(from: &str, to: &str) -> (usize, usize, String) {
        assert!(VALGRIND.contains(from), "{from:?} is in the sample");
        match parse(VALGRIND.replacen(from, to, 1).as_bytes()) {
            Ok(_) => panic!("{to:?} was read"),
            Err(problem) => problem,
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_line_column_and_program_point() {
        for (from, to, line, column, what) in [
            // Wrong types and values.
            (
                "\"tb\":472",
                "\"tb\":-1",
                11,
                10,
                "program point 1: invalid value: integer `-1`, expected u64",
            ),
            (
                "\"tb\":472",
                "\"tb\":NaN",
                11,
                9,
                "program point 1: expected value",
            ),
            (
                "\"tb\":472",
                "\"tb\":1.5",
                11,
                11,
                "program point 1: invalid type: floating point `1.5`, expected u64",
            ),
            (
                "\"tb\":472",
                "\"tb\":1e999",
                11,
                13,
                "program point 1: number out of range",
            ),
            (
                "\"tb\":472",
                "\"tb\":99999999999999999999",
                11,
                28,
                "program point 1: invalid type: floating point",
            ),
            (
                "\"tb\":472",
                "\"tb\":\"472\"",
                11,
                13,
                "program point 1: invalid type: string \"472\", expected u64",
            ),
            (
                "\"tb\":472",
                "\"tb\":null",
                11,
                12,
                "program point 1: invalid type: null",
            ),
            (
                "\"tb\":472,",
                "",
                19,
                3,
                "program point 1: missing field `tb`",
            ),
            (
                "\"tbk\":2",
                "\"tbk\":2,\"tb\":1",
                11,
                24,
                "program point 1: duplicate field `tb`",
            ),
            (
                "[1,2,3]",
                "{}",
                18,
                8,
                "program point 1: invalid type: map, expected a list of indices",
            ),
            (
                "[1,2,3]",
                "[1,[2],3]",
                18,
                11,
                "program point 1: invalid type: sequence, expected u32",
            ),
            ("{\"tb\":472", "[{\"tb\":472", 11, 3, "program point 1"),
            (
                "\"fs\":[1,4,3]",
                "\"fs\":[1,4,5]",
                20,
                3,
                "program point 2: its frame 5 is not one of the 5 in `ftbl`",
            ),
            (
                "[1,2,3]",
                "[1,2,4294967295]",
                11,
                3,
                "program point 1: its frame 4294967295 is not one",
            ),
            (
                "[1,2,3]",
                "[1,2,4294967296]",
                18,
                23,
                "program point 1: invalid value: integer `4294967296`, expected u32",
            ),
            (
                "\"[root]\"",
                "7",
                31,
                3,
                "frame 1: invalid type: integer `7`, expected a string",
            ),
            ("\"[root]\"", "\"\\ud800\"", 31, 10, "frame 1: "),
            (
                "\"heap\"",
                "7",
                2,
                9,
                "`mode`: invalid type: integer `7`, expected a string",
            ),
            (
                "\"bklt\":true",
                "\"bklt\":\"true\"",
                3,
                14,
                "`bklt`: invalid type: string",
            ),
            (
                "\"dhatFileVersion\":2",
                "\"dhatFileVersion\":3",
                1,
                20,
                "this is version 3 of the format",
            ),
            (
                "\"pid\":24942",
                "\"pid\":nonsense",
                7,
                9,
                "`pid`: expected ident",
            ),
            // Damaged.
            (
                "\"te\":724384",
                "\"mode\":\"heap\"",
                8,
                2,
                "`mode` is given twice",
            ),
            (
                ",\"te\":724384",
                " \"te\":724384",
                8,
                2,
                "`}` should come here, not `\"`",
            ),
            (
                "\"te\":724384",
                "\"te\" 724384",
                8,
                7,
                "`:` should come here, not `7`",
            ),
            (
                "\"te\":724384",
                "7:8",
                8,
                2,
                "invalid type: integer `7`, expected",
            ),
            (
                "\"pps\":\n [",
                "\"pps\":\n {",
                11,
                2,
                "a list of the program points, `[`, should come here, not `{`",
            ),
            (
                " ,{\"tb\":100",
                "  {\"tb\":100",
                20,
                3,
                "`,` or `]` should come here, not `{`",
            ),
            (
                "]\n}\n",
                "]\n}\n{",
                38,
                1,
                "the end of the file should come here, not `{`",
            ),
            ("\"ftbl\":", "\"other\":", 37, 2, "the file has no `ftbl`"),
        ] {
            let (at_line, at_column, told) = problem(from, to);
            assert!(
                told.starts_with(what) || told.contains(what),
                "{to:?} gave {told:?}"
            );
            assert_eq!((at_line, at_column), (line, column), "{to:?}: {told}");
        }
    }

    #[test]
    fn a_file_that_is_cut_off_anywhere_is_told_so() {
        let whole = VALGRIND.trim_end();
        for end in 0..whole.len() {
            let Err((line, _, what)) = parse(&whole.as_bytes()[..end]) else {
                panic!("{end} bytes were read");
            };
            assert!(line <= 38 && !what.is_empty(), "{end} bytes: {what}");
        }
    }

    #[test]
    fn deep_and_endless_values_end_with_an_error() {
        let deep = VALGRIND.replacen("[105,-3,102,-4,0]", &"[".repeat(1_000_000), 1);
        let (line, column, what) = parse(deep.as_bytes()).err().expect("too deep");
        assert_eq!((line, column), (11, 3));
        assert!(what.contains("nested more than 128 deep"), "{what}");
        let long = VALGRIND.replacen(
            "[105,-3,102,-4,0]",
            &format!("[{}]", "1,".repeat(9 << 20)),
            1,
        );
        let (line, _, what) = parse(long.as_bytes()).err().expect("too long");
        assert_eq!(
            (line, what.as_str()),
            (11, "this value is longer than 16 MiB")
        );
    }

    /// A text that says of itself that it goes on for ever, and does.
    struct Endless;

    impl std::io::Read for Endless {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            buffer.fill(b'"');
            buffer[0] = b'{';
            Ok(buffer.len())
        }
    }

    #[test]
    fn a_text_without_an_end_takes_no_memory_without_an_end() {
        assert!(read_from(Pieces::of(Endless)).is_err());
    }

    /// The sample's first point, and what both readers make of it after a change.
    fn both(point: &[u8]) -> (Option<Numbers>, Vec<u32>, Option<Numbers>, Vec<u32>) {
        let (mut fast_frames, mut careful_frames) = (vec![7], vec![7]);
        let fast = fast::point(point, &mut fast_frames);
        let piece = Piece {
            bytes: &point[..fast.map_or(point.len(), |(_, length)| length)],
            at: At { line: 1, column: 1 },
        };
        let careful = careful(&piece, &mut careful_frames).ok();
        (
            fast.map(|(numbers, _)| numbers),
            fast_frames,
            careful,
            careful_frames,
        )
    }

    fn first_point() -> &'static str {
        let begin = VALGRIND.find("{\"tb\"").expect("a point");
        let end = VALGRIND[begin..].find('}').expect("its end");
        &VALGRIND[begin..=begin + end]
    }

    #[test]
    fn what_is_usual_is_read_fast_and_the_same() {
        let (fast, fast_frames, careful, careful_frames) = both(first_point().as_bytes());
        assert!(fast.is_some(), "the sample is as Valgrind writes it");
        assert_eq!((fast, fast_frames), (careful, careful_frames));
    }

    proptest! {
        #[test]
        fn the_fast_reader_takes_nothing_that_the_careful_one_refuses_or_reads_otherwise(
            at in 0..first_point().len(),
            cut in 0_usize..9,
            put in prop_oneof!["[\\[\\]{}\",:0-9eE.\\-a-z ]{0,9}", Just("99999999999999999999".to_owned())],
        ) {
            let mut bytes = first_point().as_bytes().to_vec();
            let end = (at + cut).min(bytes.len());
            bytes.splice(at..end, put.into_bytes());
            let (fast, fast_frames, careful, careful_frames) = both(&bytes);
            match fast {
                Some(_) => prop_assert_eq!((fast, fast_frames), (careful, careful_frames)),
                None => prop_assert_eq!(fast_frames, vec![7]),
            }
        }

        #[test]
        fn no_damage_makes_the_reader_panic(
            at in 0..VALGRIND.len(),
            cut in 0_usize..40,
            put in prop_oneof![
                "[\\[\\]{}\",:0-9eE.\\-ntf\\\\ ]{0,12}".prop_map(String::into_bytes),
                proptest::collection::vec(any::<u8>(), 0..12),
                Just(b"18446744073709551615".to_vec()),
                Just(b"1000000000".to_vec()),
                Just(b"\"fs\":[4294967295]".to_vec()),
            ],
        ) {
            let mut bytes = VALGRIND.as_bytes().to_vec();
            let end = (at + cut).min(bytes.len());
            bytes.splice(at..end, put);
            if let Ok(dhat) = parse(&bytes) {
                let sites = dhat.sites(&Keys::random());
                for site in &sites.sites {
                    let _ = sites.frames(site);
                }
            }
        }
    }
}
