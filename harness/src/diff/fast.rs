//! Program points as they usually are, read in one pass over the bytes.
//!
//! A file of a million points is mostly digits. This reader knows what Valgrind, dhat-rs
//! and `explain` write, and takes nothing else: whatever is unusual, or wrong, is left to
//! serde, which says what and where.

use super::dhat::Numbers;

/// Reads a program point at the beginning of `bytes`, and puts its frames where all frames
/// are. Returns how long it is; `None`, with no frames added, if it is not as usual or not
/// all there.
pub(super) fn point(bytes: &[u8], frames: &mut Vec<u32>) -> Option<(Numbers, usize)> {
    let begin = frames.len();
    let mut cursor = Cursor { bytes, at: 0 };
    let read = read(&mut cursor, frames);
    if read.is_none() {
        frames.truncate(begin);
    }
    Some((read?, cursor.at))
}

fn read(cursor: &mut Cursor<'_>, frames: &mut Vec<u32>) -> Option<Numbers> {
    const NEEDED: u32 = 0b111;
    let mut numbers = Numbers::default();
    let mut seen = 0_u32;
    cursor.expect(b'{')?;
    loop {
        let key = cursor.key()?;
        let bit = match key {
            b"tb" => 0,
            b"tbk" => 1,
            b"fs" => 2,
            b"tl" => 3,
            b"gb" => 4,
            b"eb" => 5,
            b"ebk" => 6,
            b"mb" => 7,
            b"mbk" => 8,
            b"gbk" => 9,
            b"rb" => 10,
            b"wb" => 11,
            b"acc" => 12,
            _ => return None,
        };
        if seen & (1 << bit) != 0 {
            return None;
        }
        seen |= 1 << bit;
        match bit {
            2 => cursor.list(|cursor| {
                frames.push(u32::try_from(cursor.number()?).ok()?);
                Some(())
            })?,
            12 => cursor.list(|cursor| {
                cursor.minus();
                cursor.number().map(|_| ())
            })?,
            _ => {
                let number = cursor.number()?;
                match bit {
                    0 => numbers.bytes = number,
                    1 => numbers.blocks = number,
                    3 => numbers.lifetimes = number,
                    4 => numbers.at_peak = number,
                    5 => numbers.left_bytes = number,
                    6 => numbers.left_blocks = number,
                    _ => {}
                }
            }
        }
        if !cursor.goes_on(b'}')? {
            return (seen & NEEDED == NEEDED).then_some(numbers);
        }
    }
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// The next byte that is no white space.
    #[inline]
    fn peek(&mut self) -> Option<u8> {
        loop {
            let byte = *self.bytes.get(self.at)?;
            if !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                return Some(byte);
            }
            self.at += 1;
        }
    }

    #[inline]
    fn expect(&mut self, byte: u8) -> Option<()> {
        let is = self.peek()? == byte;
        self.at += usize::from(is);
        is.then_some(())
    }

    /// A key of lower-case letters, and the colon after it.
    #[inline]
    fn key(&mut self) -> Option<&'a [u8]> {
        self.expect(b'"')?;
        let rest = &self.bytes[self.at..];
        let length = rest
            .iter()
            .take(4)
            .position(|byte| !byte.is_ascii_lowercase())?;
        self.at += length;
        if rest[length] != b'"' {
            return None;
        }
        self.at += 1;
        self.expect(b':')?;
        Some(&rest[..length])
    }

    /// A whole number, which something follows that ends it.
    #[inline]
    fn number(&mut self) -> Option<u64> {
        let first = self.peek()?;
        let begin = self.at;
        let mut number = 0_u64;
        loop {
            let byte = *self.bytes.get(self.at)?;
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                let digits = self.at - begin;
                let ends = matches!(byte, b',' | b']' | b'}' | b' ' | b'\n' | b'\r' | b'\t');
                // Every number of so many digits fits. JSON has no leading zeros.
                let fits = (1..=19).contains(&digits) && (first != b'0' || digits == 1);
                return (ends && fits).then_some(number);
            }
            number = number.wrapping_mul(10).wrapping_add(u64::from(digit));
            self.at += 1;
        }
    }

    fn minus(&mut self) {
        if self.peek() == Some(b'-') && self.bytes.get(self.at + 1).is_some_and(u8::is_ascii_digit)
        {
            self.at += 1;
        }
    }

    /// Takes a comma, or what ends the list; says whether it goes on.
    #[inline]
    fn goes_on(&mut self, end: u8) -> Option<bool> {
        let byte = self.peek()?;
        self.at += 1;
        match byte {
            b',' => Some(true),
            byte if byte == end => Some(false),
            _ => None,
        }
    }

    #[inline]
    fn list(&mut self, mut each: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.expect(b'[')?;
        if self.peek()? == b']' {
            self.at += 1;
            return Some(());
        }
        loop {
            each(self)?;
            if !self.goes_on(b']')? {
                return Some(());
            }
        }
    }
}
