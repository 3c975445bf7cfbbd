//! A JSON text that is read in pieces: whole values, one at a time, so that a file of
//! gigabytes takes no more memory than its largest value.

use std::io::{self, Read};

use memchr::{memchr_iter, memchr2, memrchr};

/// No value that is read as one is longer, in bytes.
const LONGEST: usize = 16 << 20;
/// No value is nested deeper.
const DEEPEST: u32 = 128;
/// What is read at once, in bytes.
const READ: usize = 256 << 10;
/// Of what is usual there is more than this in the buffer, in bytes.
const USUAL: usize = 32 << 10;

/// A place in a text: line and byte within it, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At {
    pub line: usize,
    pub column: usize,
}

/// What is wrong with the text, and where.
#[derive(Debug)]
pub(super) enum Problem {
    /// It cannot be read.
    Io(io::Error),
    /// It is not what it should be.
    Bad { at: At, what: String },
}

impl Problem {
    pub fn at(at: At, what: impl Into<String>) -> Self {
        Self::Bad {
            at,
            what: what.into(),
        }
    }
}

/// One value of the text.
#[derive(Clone, Copy)]
pub(super) struct Piece<'a> {
    pub bytes: &'a [u8],
    pub at: At,
}

impl Piece<'_> {
    /// A problem that serde found within the piece.
    pub fn problem(&self, error: &serde_json::Error) -> Problem {
        let at = match error.line() {
            0 | 1 => At {
                line: self.at.line,
                column: self.at.column + error.column().saturating_sub(1),
            },
            lines => At {
                line: self.at.line + lines - 1,
                column: error.column().max(1),
            },
        };
        let text = error.to_string();
        let place = format!(" at line {} column {}", error.line(), error.column());
        Problem::at(at, text.strip_suffix(&place).unwrap_or(&text))
    }
}

/// The text, as far as it was read.
pub(super) struct Pieces<R> {
    from: R,
    buffer: Vec<u8>,
    /// What is in the buffer and was not taken yet.
    start: usize,
    end: usize,
    /// Where `start` is.
    at: At,
}

impl<R: Read> Pieces<R> {
    pub fn of(from: R) -> Self {
        Self {
            from,
            buffer: vec![0; READ],
            start: 0,
            end: 0,
            at: At { line: 1, column: 1 },
        }
    }

    /// Where the next piece begins, once [`peek`](Self::peek) has skipped what is before it.
    pub fn at(&self) -> At {
        self.at
    }

    /// The next byte that is no white space; `None` at the end.
    pub fn peek(&mut self) -> Result<Option<u8>, Problem> {
        loop {
            let rest = &self.buffer[self.start..self.end];
            let white = rest.iter().take_while(|byte| is_white(**byte)).count();
            let next = rest.get(white).copied();
            self.pass(white);
            if next.is_some() {
                return Ok(next);
            }
            if !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// Takes this byte if it is the next one that is no white space.
    pub fn take(&mut self, byte: u8) -> Result<bool, Problem> {
        let is_next = self.peek()? == Some(byte);
        if is_next {
            self.pass(1);
        }
        Ok(is_next)
    }

    /// Takes this byte, which must be the next one that is no white space.
    pub fn expect(&mut self, byte: u8) -> Result<(), Problem> {
        match self.take(byte)? {
            true => Ok(()),
            false => Err(self.unexpected(&format!("`{}`", char::from(byte)))),
        }
    }

    /// The problem that something else comes next.
    pub fn unexpected(&mut self, wanted: &str) -> Problem {
        match self.peek() {
            Ok(Some(byte)) => {
                let found = match byte.is_ascii_graphic() {
                    true => char::from(byte).to_string(),
                    false => byte.escape_ascii().to_string(),
                };
                Problem::at(self.at, format!("{wanted} should come here, not `{found}`"))
            }
            Ok(None) => self.cut_off(),
            Err(problem) => problem,
        }
    }

    fn cut_off(&self) -> Problem {
        Problem::at(self.at, "the file is cut off here")
    }

    /// The next value, whole. Whether it is one is for its reader to say: here it ends
    /// where its brackets and quotes do.
    pub fn value(&mut self) -> Result<Piece<'_>, Problem> {
        let Some(first) = self.peek()? else {
            return Err(self.cut_off());
        };
        let mut scan = Scan::of(first);
        let length = loop {
            let found = scan.end(&self.buffer[self.start..self.end]);
            if scan.depth > DEEPEST {
                return Err(Problem::at(
                    self.at,
                    format!("this value is nested more than {DEEPEST} deep"),
                ));
            }
            if scan.at > LONGEST {
                return Err(Problem::at(
                    self.at,
                    format!("this value is longer than {} MiB", LONGEST >> 20),
                ));
            }
            if let Some(length) = found {
                break length;
            }
            if !self.fill()? {
                if first == b'{' || first == b'[' || first == b'"' {
                    self.pass(self.end - self.start);
                    return Err(self.cut_off());
                }
                break self.end - self.start;
            }
        };
        if length == 0 {
            return Err(self.unexpected("a value"));
        }
        let (at, start) = (self.at, self.start);
        self.pass(length);
        Ok(Piece {
            bytes: &self.buffer[start..start + length],
            at,
        })
    }

    /// The next value, if it is in the buffer and what `read` takes: its result, and where
    /// the value begins. `read` says how long it is.
    pub fn usual<T>(
        &mut self,
        read: impl FnOnce(&[u8]) -> Option<(T, usize)>,
    ) -> Result<Option<(T, At)>, Problem> {
        if self.end - self.start < USUAL {
            self.fill()?;
        }
        self.peek()?;
        let at = self.at;
        let Some((value, length)) = read(&self.buffer[self.start..self.end]) else {
            return Ok(None);
        };
        self.pass(length);
        Ok(Some((value, at)))
    }

    /// Goes on by so many bytes, which are in the buffer.
    fn pass(&mut self, bytes: usize) {
        let passed = &self.buffer[self.start..self.start + bytes];
        match memrchr(b'\n', passed) {
            Some(last) => {
                self.at.line += memchr_iter(b'\n', passed).count();
                self.at.column = passed.len() - last;
            }
            None => self.at.column += passed.len(),
        }
        self.start += bytes;
    }

    /// Reads more, and says whether there was any.
    fn fill(&mut self) -> Result<bool, Problem> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == self.buffer.len() {
            self.buffer.resize(self.end * 2, 0);
        }
        loop {
            match self.from.read(&mut self.buffer[self.end..]) {
                Ok(read) => {
                    self.end += read;
                    return Ok(read > 0);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Problem::Io(error)),
            }
        }
    }
}

fn is_white(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t')
}

/// Looks for the end of a value, as far as it is in the buffer.
struct Scan {
    /// Bytes that were looked at.
    at: usize,
    depth: u32,
    in_string: bool,
    escaped: bool,
    scalar: bool,
}

impl Scan {
    fn of(first: u8) -> Self {
        Self {
            at: 0,
            depth: 0,
            in_string: false,
            escaped: false,
            scalar: !matches!(first, b'{' | b'[' | b'"'),
        }
    }

    /// The value's length, if its end is in `bytes`, which begin where the value does.
    /// Stops, with no end found, where it is nested too deep.
    fn end(&mut self, bytes: &[u8]) -> Option<usize> {
        while self.at < bytes.len() {
            if self.in_string {
                if self.escaped {
                    self.escaped = false;
                    self.at += 1;
                    continue;
                }
                match memchr2(b'"', b'\\', &bytes[self.at..]) {
                    None => self.at = bytes.len(),
                    Some(found) => {
                        self.at += found + 1;
                        if bytes[self.at - 1] == b'\\' {
                            self.escaped = true;
                        } else {
                            self.in_string = false;
                            if self.depth == 0 {
                                return Some(self.at);
                            }
                        }
                    }
                }
                continue;
            }
            let byte = bytes[self.at];
            if self.scalar {
                if is_white(byte) || matches!(byte, b',' | b']' | b'}' | b':') {
                    return Some(self.at);
                }
            } else {
                match byte {
                    b'"' => self.in_string = true,
                    b'{' | b'[' => {
                        self.depth += 1;
                        if self.depth > DEEPEST {
                            return None;
                        }
                    }
                    b'}' | b']' => {
                        self.depth -= 1;
                        if self.depth == 0 {
                            return Some(self.at + 1);
                        }
                    }
                    _ => {}
                }
            }
            self.at += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives one byte at a time, so that every value is cut everywhere.
    struct Dribble<'a>(&'a [u8]);

    impl Read for Dribble<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let Some((first, rest)) = self.0.split_first() else {
                return Ok(0);
            };
            buffer[0] = *first;
            self.0 = rest;
            Ok(1)
        }
    }

    #[test]
    fn values_are_found_whole_with_their_places() {
        let text = b" [1, -2.5e3 ,\n  \"a\\\"]}\\\\\", {\"k\": [\"}\"]},\ntrue]";
        let mut pieces = Pieces::of(Dribble(text));
        pieces.expect(b'[').unwrap();
        let mut found = Vec::new();
        loop {
            let piece = pieces.value().unwrap();
            let text = String::from_utf8(piece.bytes.to_vec()).unwrap();
            found.push((text, piece.at.line, piece.at.column));
            if !pieces.take(b',').unwrap() {
                break;
            }
        }
        pieces.expect(b']').unwrap();
        assert_eq!(pieces.peek().unwrap(), None);
        let expected = [
            ("1", 1, 3),
            ("-2.5e3", 1, 6),
            ("\"a\\\"]}\\\\\"", 2, 3),
            ("{\"k\": [\"}\"]}", 2, 14),
            ("true", 3, 1),
        ];
        let expected = expected.map(|(text, line, column)| (text.to_owned(), line, column));
        assert_eq!(found, expected);
    }

    fn problem(text: &[u8]) -> (usize, usize, String) {
        match Pieces::of(Dribble(text)).value().map(|_| ()) {
            Err(Problem::Bad { at, what }) => (at.line, at.column, what),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_no_value_is_told_with_its_place() {
        assert_eq!(
            problem(b"\n {\"a\": 1"),
            (2, 9, "the file is cut off here".to_owned())
        );
        assert_eq!(
            problem(b"\"abc"),
            (1, 5, "the file is cut off here".to_owned())
        );
        assert_eq!(
            problem(b"   "),
            (1, 4, "the file is cut off here".to_owned())
        );
        let (line, column, what) = problem(b" ,");
        assert_eq!((line, column), (1, 2));
        assert!(what.contains("a value should come here, not `,`"), "{what}");
        let deep = [b"  ".as_slice(), &[b'['; 100_000]].concat();
        let (_, column, what) = problem(&deep);
        assert_eq!(
            (column, what.as_str()),
            (3, "this value is nested more than 128 deep")
        );
        let long = [b"\"".as_slice(), &vec![b'x'; LONGEST + READ + 2]].concat();
        match Pieces::of(long.as_slice()).value().map(|_| ()) {
            Err(Problem::Bad { what, .. }) => assert_eq!(what, "this value is longer than 16 MiB"),
            other => panic!("{other:?}"),
        };
    }
}
