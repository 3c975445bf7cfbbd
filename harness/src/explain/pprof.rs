//! pprof's profile, gzipped: `go tool pprof`, Grafana, Speedscope and others open it.
//!
//! The messages are those of `profile.proto` that are used here, field for field.
//! The four values are named as Go's heap profile names them.

use std::collections::HashMap;
use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

use super::{Frame, Site};

#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "14")]
    default_sample_type: i64,
}

#[derive(Clone, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

#[derive(Clone, PartialEq, Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    str: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    /// Innermost inlined function first.
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
    #[prost(int64, tag = "3")]
    column: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
}

/// The sites as a gzipped profile: what measured rounds allocated, and what they
/// left behind, with the layer and the phase as labels.
pub fn pprof(sites: &[Site]) -> Vec<u8> {
    let mut builder = Builder::default();
    builder.string("");
    let kinds = [
        ("alloc_objects", "count"),
        ("alloc_space", "bytes"),
        ("inuse_objects", "count"),
        ("inuse_space", "bytes"),
    ];
    for (kind, unit) in kinds {
        let value = ValueType {
            kind: builder.string(kind),
            unit: builder.string(unit),
        };
        builder.profile.sample_type.push(value);
    }
    builder.profile.default_sample_type = builder.string("inuse_space");
    for site in sites {
        let location_id = locations(site.frames_of_workload())
            .map(|frames| builder.location(frames))
            .collect();
        let label = [("layer", site.layer.name()), ("phase", site.phase.as_str())]
            .map(|(key, value)| Label {
                key: builder.string(key),
                str: builder.string(value),
            })
            .to_vec();
        builder.profile.sample.push(Sample {
            location_id,
            value: vec![
                site.allocated.blocks,
                site.allocated.bytes,
                site.grown.blocks,
                site.grown.bytes,
            ],
            label,
        });
    }
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    // Writing into memory does not fail.
    let _ = gzip.write_all(&builder.profile.encode_to_vec());
    gzip.finish().unwrap_or_default()
}

/// Runs of frames that share one place in the code: the inlined ones with the
/// function that they were inlined into.
fn locations(frames: &[Frame]) -> impl Iterator<Item = &[Frame]> {
    frames.split_inclusive(|frame| !frame.inlined)
}

#[derive(Default)]
struct Builder {
    profile: Profile,
    strings: HashMap<String, i64>,
    functions: HashMap<(i64, i64), u64>,
    locations: HashMap<Vec<(u64, i64, i64)>, u64>,
}

impl Builder {
    fn string(&mut self, text: &str) -> i64 {
        if let Some(known) = self.strings.get(text) {
            return *known;
        }
        let index = self.profile.string_table.len() as i64;
        self.profile.string_table.push(text.to_owned());
        self.strings.insert(text.to_owned(), index);
        index
    }

    fn function(&mut self, frame: &Frame) -> u64 {
        let name = self.string(&frame.function);
        let filename = self.string(frame.file.as_deref().unwrap_or_default());
        let next = self.profile.function.len() as u64 + 1;
        let id = *self.functions.entry((name, filename)).or_insert(next);
        if id == next {
            self.profile.function.push(Function {
                id,
                name,
                system_name: name,
                filename,
            });
        }
        id
    }

    fn location(&mut self, frames: &[Frame]) -> u64 {
        let lines: Vec<(u64, i64, i64)> = frames
            .iter()
            .map(|frame| {
                let number = |number: Option<u32>| i64::from(number.unwrap_or_default());
                (
                    self.function(frame),
                    number(frame.line),
                    number(frame.column),
                )
            })
            .collect();
        let next = self.profile.location.len() as u64 + 1;
        let id = *self.locations.entry(lines.clone()).or_insert(next);
        if id == next {
            let line = lines.into_iter().map(|(function_id, line, column)| Line {
                function_id,
                line,
                column,
            });
            self.profile.location.push(Location {
                id,
                line: line.collect(),
            });
        }
        id
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::super::frames::sample::sites;
    use super::*;

    #[test]
    fn a_profile_comes_back_with_its_stacks_and_values() {
        let sites = sites();
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(&pprof(&sites)[..])
            .read_to_end(&mut bytes)
            .unwrap();
        let profile = Profile::decode(&bytes[..]).unwrap();
        let text = |index: i64| profile.string_table[index as usize].as_str();
        assert_eq!(text(0), "");
        assert_eq!(text(profile.default_sample_type), "inuse_space");
        assert_eq!(profile.sample.len(), sites.len());
        for (sample, site) in profile.sample.iter().zip(&sites) {
            assert_eq!(sample.value[3], site.grown.bytes);
            assert_eq!(sample.value[1], site.allocated.bytes);
            let frames: Vec<(&str, i64, i64)> = sample
                .location_id
                .iter()
                .flat_map(|id| &profile.location[*id as usize - 1].line)
                .map(|line| {
                    let function = &profile.function[line.function_id as usize - 1];
                    (text(function.name), line.line, line.column)
                })
                .collect();
            let expected: Vec<(&str, i64, i64)> = site
                .frames
                .iter()
                .map(|frame| {
                    let number = |number: Option<u32>| i64::from(number.unwrap_or_default());
                    (
                        frame.function.as_str(),
                        number(frame.line),
                        number(frame.column),
                    )
                })
                .collect();
            assert_eq!(frames, expected);
        }
        // `finish` is inlined into `prove`: one location with two lines.
        assert_eq!(profile.sample[0].location_id.len(), 2);
    }
}
