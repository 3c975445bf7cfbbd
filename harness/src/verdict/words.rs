//! Numbers and lists as people read them.

use crate::books::Amount;

/// An integer with separators: `1,572,864`.
pub(crate) fn grouped(n: i64) -> String {
    let digits = n.unsigned_abs().to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3 + 1);
    if n < 0 {
        out.push('-');
    }
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A count with its noun, in the plural where it is not 1: `1 round`, `3 rounds`.
pub(crate) fn count(n: i64, noun: &str) -> String {
    if n == 1 {
        format!("1 {noun}")
    } else {
        format!("{} {noun}s", grouped(n))
    }
}

/// The same for lengths.
pub(crate) fn many(n: usize, noun: &str) -> String {
    count(i64::try_from(n).unwrap_or(i64::MAX), noun)
}

/// An exact amount: `96 bytes in 1 block`.
pub(crate) fn amount(a: Amount) -> String {
    format!("{} in {}", count(a.bytes, "byte"), count(a.blocks, "block"))
}

/// Bytes rounded to what people compare: `48.2 MiB`.
pub(crate) fn size(bytes: i64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes.unsigned_abs() < 1024 {
        return count(bytes, "byte");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value.abs() >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Unsigned bytes, rounded.
pub(crate) fn size_u64(bytes: u64) -> String {
    size(i64::try_from(bytes).unwrap_or(i64::MAX))
}

/// Words in a row: `a`, `a and b`, `a, b and c`.
pub(crate) fn list(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [one] => one.clone(),
        [head @ .., last] => format!("{} and {last}", head.join(", ")),
    }
}

/// Rounds in a row, runs of them shortened: `3 to 8`, `4, 8 and 12`.
pub(crate) fn rounds(rounds: &[u32]) -> String {
    let mut sorted = rounds.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut words: Vec<String> = Vec::new();
    let mut at = 0;
    while at < sorted.len() {
        let mut end = at;
        while end + 1 < sorted.len() && sorted[end].checked_add(1) == Some(sorted[end + 1]) {
            end += 1;
        }
        if end - at >= 2 {
            words.push(format!("{} to {}", sorted[at], sorted[end]));
        } else {
            words.extend(sorted[at..=end].iter().map(u32::to_string));
        }
        at = end + 1;
    }
    if words.len() > 8 {
        let rest = words.len() - 7;
        words.truncate(7);
        words.push(format!("{rest} more"));
    }
    list(&words)
}

/// `1st`, `2nd`, `3rd`, `4th`.
pub(crate) fn ordinal(n: u32) -> String {
    let suffix = match (n % 10, n % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{n}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_have_units() {
        assert_eq!(grouped(-1_572_864), "-1,572,864");
        assert_eq!(grouped(i64::MIN), "-9,223,372,036,854,775,808");
        assert_eq!(amount(Amount::new(96, 1)), "96 bytes in 1 block");
        assert_eq!(size(1023), "1,023 bytes");
        assert_eq!(size(1 << 20), "1.0 MiB");
        assert_eq!(size(-(3 << 19)), "-1.5 MiB");
    }

    #[test]
    fn runs_of_rounds_are_shortened() {
        assert_eq!(rounds(&[3, 4, 5, 8]), "3 to 5 and 8");
        assert_eq!(rounds(&[4, 8, 12]), "4, 8 and 12");
        assert_eq!(rounds(&[]), "");
    }

    #[test]
    fn one_is_said_without_a_plural() {
        let rounds = [0, 1, 2, -1, 1234].map(|n| count(n, "round"));
        let words = [
            "0 rounds",
            "1 round",
            "2 rounds",
            "-1 rounds",
            "1,234 rounds",
        ];
        assert_eq!(rounds, words);
        assert_eq!(many(3, "round"), "3 rounds");
    }

    #[test]
    fn sizes_have_the_largest_unit_that_leaves_one_at_least() {
        let of = |bytes: i64| size(bytes);
        assert_eq!(of(-1023), "-1,023 bytes");
        assert_eq!(of(1024), "1.0 KiB");
        assert_eq!(of(1023 * 1024 + 1000), "1.0 MiB");
        assert_eq!(of(1023 * 1024 + 900), "1023.9 KiB");
        assert_eq!(of(5 << 40), "5.0 TiB");
        assert_eq!(of(i64::MAX), "8192.0 PiB");
        assert_eq!(size_u64(u64::MAX), "8192.0 PiB");
        assert_eq!(size_u64(3 << 30), "3.0 GiB");
    }

    #[test]
    fn many_runs_of_rounds_are_cut_short() {
        assert_eq!(rounds(&[9, 2, 1, 2]), "1, 2 and 9");
        assert_eq!(rounds(&[1, 2, 3]), "1 to 3");
        let even: Vec<u32> = (1..=8).map(|n| 2 * n).collect();
        assert_eq!(rounds(&even), "2, 4, 6, 8, 10, 12, 14 and 16");
        let even: Vec<u32> = (1..=9).map(|n| 2 * n).collect();
        assert_eq!(rounds(&even), "2, 4, 6, 8, 10, 12, 14 and 2 more");
        assert_eq!(
            rounds(&[u32::MAX - 1, u32::MAX]),
            "4294967294 and 4294967295"
        );
    }

    #[test]
    fn ordinals_have_their_endings() {
        let words: Vec<String> = [1, 2, 3, 4, 11, 13, 21, 112, 122].map(ordinal).to_vec();
        let expected = "1st 2nd 3rd 4th 11th 13th 21st 112th 122nd";
        assert_eq!(words.join(" "), expected);
    }
}
