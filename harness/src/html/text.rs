//! Text that strangers wrote, and numbers, as a page can show them.

use std::fmt::Write as _;

use maud::{Escaper, Render};

use crate::verdict::words::{grouped, size};

/// Characters of one text that are shown.
const MOST: usize = 2000;

/// Text from a file, a process or the environment. It is escaped, as all text is, and what
/// a reader could not see (control characters, what turns the direction of writing) is
/// made visible, so that nothing looks like what it is not.
pub(super) struct Said<'a>(pub &'a str);

impl Render for Said<'_> {
    fn render_to(&self, out: &mut String) {
        let _ = Escaper::new(out).write_str(&visible(self.0));
    }
}

/// A text with its invisible characters written out, and cut where it is too long.
pub(super) fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(4 * MOST));
    for (at, c) in text.chars().enumerate() {
        if at == MOST {
            let more = text.chars().count() - MOST;
            let _ = write!(out, "… ({} more characters)", grouped(more as i64));
            break;
        }
        match c {
            '\n' | '\t' => out.push(' '),
            '\0'..='\x1f' => out.extend(char::from_u32(0x2400 + u32::from(c))),
            '\x7f' => out.push('␡'),
            '\u{80}'..='\u{9f}'
            | '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}' => {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

/// A command line that a shell reads as these words.
pub(super) fn shell<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%^".contains(c);
    let quoted = words.into_iter().map(|word| {
        if !word.is_empty() && word.chars().all(plain) {
            return word.to_owned();
        }
        format!("'{}'", word.replace('\'', r"'\''"))
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Bytes.
    Bytes,
    /// Things.
    Things,
}

impl Unit {
    /// A number with its unit, as short as it can be.
    pub fn short(self, value: i64) -> String {
        match self {
            Self::Bytes if value.unsigned_abs() < 1024 => format!("{value} B"),
            Self::Bytes => size(value),
            Self::Things => grouped(value),
        }
    }

    /// With its sign.
    pub fn signed(self, value: i64) -> String {
        match value {
            1.. => format!("+{}", self.short(value)),
            _ => self.short(value),
        }
    }
}

/// A moment, in seconds since the start of a run.
pub(super) fn moment(seconds: f64) -> String {
    match seconds {
        s if !s.is_finite() => "an unknown time".to_owned(),
        s if s.abs() < 10.0 => format!("{s:.2} s"),
        s if s.abs() < 600.0 => format!("{s:.1} s"),
        s => format!("{} s", grouped(s as i64)),
    }
}

/// A share of a whole: `37 %`, `0.4 %`.
pub(super) fn share(part: f64, whole: f64) -> String {
    match part / whole * 100.0 {
        percent if !percent.is_finite() => String::new(),
        percent if percent.abs() < 10.0 && percent != 0.0 => format!("{percent:.1} %"),
        percent => format!("{percent:.0} %"),
    }
}

/// A coordinate: two digits are less than a tenth of a pixel.
pub(super) fn place(value: f64) -> String {
    let value = if value.is_finite() { value } else { 0.0 };
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    match text {
        "-0" => "0".to_owned(),
        text => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_strangers_is_escaped_and_hides_nothing() {
        let shown = |text: &str| Said(text).render().into_string();
        assert_eq!(
            shown("<script>alert('1')&\"</script>"),
            "&lt;script&gt;alert('1')&amp;&quot;&lt;/script&gt;"
        );
        assert_eq!(
            shown("a\u{202e}b\u{7}c\u{2028}\u{85}"),
            "a\\u{202e}b␇c\\u{2028}\\u{85}"
        );
        let long = "x".repeat(2_500);
        assert!(shown(&long).ends_with("x… (500 more characters)"));
    }

    #[test]
    fn a_command_survives_the_shell() {
        let words = ["python3", "it's.py", "", "a b", "--n=1", "$HOME"];
        let quoted = shell(words);
        assert_eq!(quoted, r"python3 'it'\''s.py' '' 'a b' --n=1 '$HOME'");
        let printed = std::process::Command::new("sh")
            .args(["-c", &format!("printf '%s\\n' {quoted}")])
            .output()
            .unwrap();
        let printed = String::from_utf8(printed.stdout).unwrap();
        assert_eq!(printed.lines().collect::<Vec<_>>(), words);
    }

    #[test]
    fn coordinates_are_numbers_whatever_was_measured() {
        assert_eq!(place(12.5), "12.5");
        assert_eq!(place(-0.001), "0");
        assert_eq!(
            (place(f64::NAN), place(f64::INFINITY)),
            ("0".into(), "0".into())
        );
    }
}
