//! Limits and patterns, as a policy writes them.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// The most that something may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Most {
    /// So much, in the metric's unit.
    Absolute(f64),
    /// So much more than the baseline, as a share: 0.05 for `+5%`.
    Relative(f64),
}

/// A limit of some unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit<U> {
    /// The limit.
    pub most: Most,
    unit: PhantomData<U>,
}

/// What a limit counts.
pub trait Unit {
    /// What is expected, after "expected".
    const EXPECTED: &'static str;
    /// The pattern of an absolute limit, for the schema.
    const PATTERN: &'static str;
    /// The name in the schema.
    const NAME: &'static str;

    /// Reads an absolute limit, in the metric's unit.
    fn read(text: &str) -> Option<f64>;
}

/// Bytes: `"512MiB"`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bytes {}

impl Unit for Bytes {
    const EXPECTED: &'static str =
        "an amount of bytes such as \"512MiB\", or \"+5%\" over the baseline";
    const PATTERN: &'static str = r"^(\+[0-9]+(\.[0-9]+)?%|[0-9]+(\.[0-9]+)? ?([KMGTPE]i?)?B?)$";
    const NAME: &'static str = "BytesLimit";

    fn read(text: &str) -> Option<f64> {
        let size: bytesize::ByteSize = text.parse().ok()?;
        Some(size.as_u64() as f64)
    }
}

/// Things: `12`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Things {}

impl Unit for Things {
    const EXPECTED: &'static str = "a number such as 12, or \"+5%\" over the baseline";
    const PATTERN: &'static str = r"^\+[0-9]+(\.[0-9]+)?%$";
    const NAME: &'static str = "CountLimit";

    fn read(_: &str) -> Option<f64> {
        None
    }
}

/// Time: `"50ms"`; the metric counts microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Time {}

impl Unit for Time {
    const EXPECTED: &'static str = "a time such as \"50ms\", or \"+20%\" over the baseline";
    const PATTERN: &'static str = r"^(\+[0-9]+(\.[0-9]+)?%|[0-9].*)$";
    const NAME: &'static str = "TimeLimit";

    fn read(text: &str) -> Option<f64> {
        let time: Duration = humantime::parse_duration(text).ok()?;
        Some(time.as_secs_f64() * 1e6)
    }
}

/// `+5%` as a share.
fn relative(text: &str) -> Option<f64> {
    let number = text.strip_prefix('+')?.strip_suffix('%')?;
    // Nothing that a number may have and a percentage may not: signs, exponents.
    let plain = number
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    let percent: f64 = number.parse().ok().filter(|_| plain)?;
    Some(percent / 100.0)
}

impl<'de, U: Unit> Deserialize<'de> for Limit<U> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<U>(PhantomData<U>);
        impl<U: Unit> Reader<U> {
            fn limit(most: Most) -> Limit<U> {
                Limit {
                    most,
                    unit: PhantomData,
                }
            }
        }
        impl<U: Unit> Visitor<'_> for Reader<U> {
            type Value = Limit<U>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(U::EXPECTED)
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Limit<U>, E> {
                // Times without a unit would be guessed at.
                if number < 0 || U::NAME == Time::NAME {
                    return Err(E::custom(format_args!("`{number}` is not {}", U::EXPECTED)));
                }
                Ok(Self::limit(Most::Absolute(number as f64)))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Limit<U>, E> {
                let most = match relative(text) {
                    Some(share) => Some(Most::Relative(share)),
                    None => U::read(text).map(Most::Absolute),
                };
                most.map(Self::limit)
                    .ok_or_else(|| E::custom(format_args!("`{text}` is not {}", U::EXPECTED)))
            }
        }
        deserializer.deserialize_any(Reader(PhantomData))
    }
}

impl<U: Unit> JsonSchema for Limit<U> {
    fn schema_name() -> Cow<'static, str> {
        U::NAME.into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let text = json_schema!({ "type": "string", "pattern": U::PATTERN });
        let description = format!("At most: {}", U::EXPECTED);
        if U::NAME == Time::NAME {
            return json_schema!({ "description": description, "anyOf": [text] });
        }
        json_schema!({
            "description": description,
            "anyOf": [text, { "type": "integer", "minimum": 0 }],
        })
    }
}

/// A name, in which `*` stands for anything.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Pattern(String);

impl Pattern {
    /// Whether it means this name.
    pub fn matches(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = name.strip_prefix(first) else {
            return false;
        };
        let parts: Vec<&str> = parts.collect();
        let Some((last, middle)) = parts.split_last() else {
            return rest.is_empty();
        };
        for part in middle {
            match rest.find(part) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
        rest.ends_with(last)
    }

    /// The name, if it means one only.
    pub fn name(&self) -> Option<&str> {
        (!self.0.contains('*')).then_some(&self.0)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_anything() {
        let matches = |pattern: &str, name: &str| Pattern(pattern.to_owned()).matches(name);
        assert!(matches("NVIDIA H200*", "NVIDIA H200 NVL") && matches("*", ""));
        assert!(matches("a*b*c", "a-b-b-c") && matches("a", "a"));
        assert!(!matches("a", "ab") && !matches("a*b", "a") && !matches("ab*b", "ab"));
        assert!(!matches("a*b*c", "a-c-b"));
    }

    #[test]
    fn percentages_are_more_than_the_baseline() {
        assert_eq!(relative("+5%"), Some(0.05));
        assert_eq!(relative("+0%"), Some(0.0));
        for text in ["5%", "-5%", "+-5%", "+5", "+%", "+1e3%", "+inf%", "+nan%"] {
            assert_eq!(relative(text), None, "{text}");
        }
    }
}
