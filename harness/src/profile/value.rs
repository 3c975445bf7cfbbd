//! Exact values, what they are values of, and how each is written.

use std::cmp::Ordering;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

/// What a profile knows of a place.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Blocks allocated per measured round; exact.
    Blocks,
    /// Bytes allocated per measured round; exact.
    Bytes,
    /// Blocks that measured rounds bore and that were alive at the end; exact.
    LeftBlocks,
    /// Bytes of these blocks; exact.
    LeftBytes,
    /// The highest live bytes.
    Peak,
    /// Bytes times seconds held, per round.
    Held,
    /// The mean time that a byte was held, in microseconds.
    Dwell,
    /// The highest resident bytes of the process tree.
    Resident,
    /// The highest bytes of the cards that the process tree took.
    Card,
    /// Bytes alive at the moment of the highest use; DHAT's, in no profile of ours.
    AtPeak,
}

/// The decimal digits that a metric is rounded to, and the unit that they count.
#[derive(Clone, Copy)]
struct Precision {
    digits: u32,
    unit: i64,
    name: &'static str,
}

/// A thread keeps changes of live bytes to itself up to this size, so that below it a
/// peak says nothing.
const HELD_BACK: i64 = 64 << 10;

/// The most that a noisy metric can be, in its units; as bytes it still fits.
const MOST_UNITS: i64 = 9_000_000_000_000_000;

/// How a peak below [`HELD_BACK`] is written.
const SMALL_PEAK: &str = "<64KiB";

impl Metric {
    /// Every metric of a profile, in the order in which they are written.
    pub const ALL: [Self; 9] = [
        Self::Blocks,
        Self::Bytes,
        Self::LeftBlocks,
        Self::LeftBytes,
        Self::Peak,
        Self::Held,
        Self::Dwell,
        Self::Resident,
        Self::Card,
    ];

    /// The metric's name in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Blocks => "blocks",
            Self::Bytes => "bytes",
            Self::LeftBlocks => "left-blocks",
            Self::LeftBytes => "left-bytes",
            Self::Peak => "peak",
            Self::Held => "held",
            Self::Dwell => "dwell",
            Self::Resident => "resident",
            Self::Card => "card",
            Self::AtPeak => "at-peak",
        }
    }

    /// What it is called in sentences.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Blocks => "blocks per round",
            Self::Bytes => "bytes per round",
            Self::LeftBlocks => "blocks left",
            Self::LeftBytes => "bytes left",
            Self::Peak => "peak",
            Self::Held => "byte-seconds per round",
            Self::Dwell => "mean time held",
            Self::Resident => "resident memory",
            Self::Card => "the card's memory",
            Self::AtPeak => "bytes at the peak",
        }
    }

    /// The metric of this name.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|metric| metric.name() == name)
    }

    /// Whether it is an amount of bytes.
    pub const fn is_bytes(self) -> bool {
        matches!(
            self,
            Self::Bytes | Self::LeftBytes | Self::Peak | Self::Resident | Self::Card | Self::AtPeak
        )
    }

    /// Whether the ledger counts it, so that two equal runs give equal values.
    pub const fn is_exact(self) -> bool {
        self.precision().is_none()
    }

    const fn precision(self) -> Option<Precision> {
        match self {
            Self::Blocks | Self::Bytes | Self::LeftBlocks | Self::LeftBytes | Self::AtPeak => None,
            Self::Peak | Self::Resident | Self::Card => Some(Precision {
                digits: 3,
                unit: 1024,
                name: "KiB",
            }),
            Self::Held => Some(Precision {
                digits: 2,
                unit: 1024,
                name: "KiBs",
            }),
            Self::Dwell => Some(Precision {
                digits: 2,
                unit: 1,
                name: "us",
            }),
        }
    }

    /// The value as a profile keeps it: as it is where it is exact, else rounded.
    pub(crate) fn kept(self, value: f64) -> Value {
        let Some(precision) = self.precision() else {
            return Value::whole(value.round() as i64);
        };
        if self == Self::Peak && value < HELD_BACK as f64 {
            return Value::ZERO;
        }
        let units = (value / precision.unit as f64).round().max(0.0) as i64;
        let units = rounded(units.min(MOST_UNITS), precision.digits);
        Value::whole(units.saturating_mul(precision.unit))
    }

    /// Half of what rounding may have moved a value of this size by.
    pub(crate) fn resolution(self, value: f64) -> f64 {
        let Some(precision) = self.precision() else {
            return 0.0;
        };
        let units = value.abs() / precision.unit as f64;
        let step =
            10_f64.powf((units.max(1.0).log10().floor() + 1.0) - f64::from(precision.digits));
        let step = step.max(1.0) * precision.unit as f64;
        match self {
            Self::Peak => step.max(HELD_BACK as f64),
            _ => step,
        }
    }

    /// A value as it stands in a file.
    pub(crate) fn written(self, value: Value) -> String {
        match self.precision() {
            None => value.to_string(),
            Some(_) if self == Self::Peak && value == Value::ZERO => SMALL_PEAK.to_owned(),
            Some(precision) => format!("{}{}", value.floor() / precision.unit, precision.name),
        }
    }

    /// Reads what [`written`](Self::written) wrote.
    pub(crate) fn read(self, text: &str) -> Result<Value, String> {
        let Some(precision) = self.precision() else {
            return Value::read(text);
        };
        if self == Self::Peak && text == SMALL_PEAK {
            return Ok(Value::ZERO);
        }
        let units = text
            .strip_suffix(precision.name)
            .and_then(|digits| digits.parse::<i64>().ok())
            .filter(|units| *units >= 0);
        let value = units.and_then(|units| units.checked_mul(precision.unit));
        let value = value.map(Value::whole);
        // One value has one spelling: else a file would change when it is written again.
        let value = value
            .filter(|value| self.kept(value.as_f64()) == *value && self.written(*value) == text);
        value.ok_or_else(|| {
            format!(
                "`{text}` is no value of `{}`, which is written as a whole number of {} with {} digits \
                 and zeros after them",
                self.name(),
                precision.name,
                precision.digits
            )
        })
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Rounded to so many decimal digits.
fn rounded(units: i64, digits: u32) -> i64 {
    let mut step = 1_i64;
    while units / step >= 10_i64.pow(digits) {
        step = step.saturating_mul(10);
    }
    // Half up; a number that has one digit more afterwards has it as a zero.
    (units.saturating_add(step / 2) / step).saturating_mul(step)
}

/// An exact number: whole, or a fraction where a total did not part evenly into rounds.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Value {
    /// In lowest terms.
    numerator: i64,
    /// At least 1.
    denominator: u32,
}

impl Value {
    /// Nothing.
    pub const ZERO: Self = Self::whole(0);

    /// A whole number.
    pub const fn whole(number: i64) -> Self {
        Self {
            numerator: number,
            denominator: 1,
        }
    }

    /// So much in so many rounds, per round; all of it where there was none.
    pub fn per_round(total: i64, rounds: u32) -> Self {
        let rounds = rounds.max(1);
        let divisor = greatest_common_divisor(total.unsigned_abs(), u64::from(rounds));
        // The divisor is at most `rounds`, so that it fits both.
        Self {
            numerator: total / divisor as i64,
            denominator: rounds / divisor as u32,
        }
    }

    /// The value as a floating-point number.
    pub fn as_f64(self) -> f64 {
        self.numerator as f64 / f64::from(self.denominator)
    }

    /// The whole number, if it is one.
    pub fn as_whole(self) -> Option<i64> {
        (self.denominator == 1).then_some(self.numerator)
    }

    fn floor(self) -> i64 {
        self.numerator.div_euclid(i64::from(self.denominator))
    }

    /// Reads `12`, `12+3/8` or `-3/8`.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let value = Self::parts(text).filter(|value| value.to_string() == text);
        value.ok_or_else(|| {
            format!(
                "`{text}` is no number here; write a whole one, or with a fraction in lowest terms \
                 as 193+7/8"
            )
        })
    }

    fn parts(text: &str) -> Option<Self> {
        let Some((above, below)) = text.split_once('/') else {
            return text.parse().ok().map(Self::whole);
        };
        let below: u32 = below.parse().ok().filter(|below| *below > 1)?;
        let above = match above.split_once('+') {
            Some((whole, above)) => {
                let whole: i64 = whole.parse().ok()?;
                let above: i64 = above.parse().ok()?;
                whole.checked_mul(i64::from(below))?.checked_add(above)?
            }
            None => above.parse().ok()?,
        };
        Some(Self::per_round(above, below))
    }
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}

impl PartialOrd for Value {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Value {
    fn cmp(&self, other: &Self) -> Ordering {
        let left = i128::from(self.numerator) * i128::from(other.denominator);
        let right = i128::from(other.numerator) * i128::from(self.denominator);
        left.cmp(&right)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            numerator,
            denominator,
        } = *self;
        let below = i64::from(denominator);
        match (denominator, numerator) {
            (1, _) => write!(f, "{numerator}"),
            (_, 1..) if numerator > below => {
                write!(f, "{}+{}/{below}", numerator / below, numerator % below)
            }
            _ => write!(f, "{numerator}/{below}"),
        }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.as_whole() {
            Some(whole) => serializer.serialize_i64(whole),
            None => serializer.serialize_f64(self.as_f64()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_total_that_does_not_part_evenly_is_a_fraction() {
        assert_eq!(Value::per_round(1551, 8).to_string(), "193+7/8");
        assert_eq!(Value::per_round(1552, 8).to_string(), "194");
        assert_eq!(Value::per_round(4, 8).to_string(), "1/2");
        assert_eq!(Value::per_round(-9, 6).to_string(), "-3/2");
        assert_eq!(Value::per_round(7, 0).to_string(), "7");
        assert!(Value::per_round(1, 3) < Value::per_round(1, 2));
    }

    #[test]
    fn noisy_metrics_keep_their_digits_and_small_peaks_say_so() {
        let peak = |bytes: f64| Metric::Peak.written(Metric::Peak.kept(bytes));
        assert_eq!(peak(12_345.0 * 1024.0), "12300KiB");
        assert_eq!(peak(12_350.0 * 1024.0), "12400KiB");
        assert_eq!(peak(999_600.0 * 1024.0), "1000000KiB");
        assert_eq!(peak(65_535.0), "<64KiB");
        assert_eq!(peak(65_536.0), "64KiB");
        assert_eq!(peak(f64::NAN), "<64KiB");
        let dwell = |us: f64| Metric::Dwell.written(Metric::Dwell.kept(us));
        assert_eq!(dwell(12_345.6), "12000us");
        assert_eq!(dwell(0.2), "0us");
    }

    #[test]
    fn only_one_spelling_of_a_value_is_read() {
        for text in [
            "0x1", "1.5", "2/2", "4/2", "1+0/2", "+3", "-0", "", "1/0", "9/8/7", "1e3",
        ] {
            assert!(Value::read(text).is_err(), "{text}");
        }
        assert!(Value::read("-1/2").is_ok() && Value::read("9223372036854775807").is_ok());
        for text in [
            "12345KiB", "12KiB", "1.5KiB", "-64KiB", "64", "064KiB", "<65KiB",
        ] {
            assert!(Metric::Peak.read(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(total in any::<i64>(), rounds in 0_u32..100, noisy in 0.0..1e15_f64) {
            let value = Value::per_round(total, rounds);
            prop_assert_eq!(Value::read(&value.to_string()), Ok(value));
            for metric in Metric::ALL.into_iter().filter(|metric| !metric.is_exact()) {
                let kept = metric.kept(noisy);
                prop_assert_eq!(metric.read(&metric.written(kept)), Ok(kept));
                let moved = (kept.as_f64() - noisy).abs();
                prop_assert!(moved <= metric.resolution(noisy), "{} {} {}", metric, moved, noisy);
            }
        }
    }
}
