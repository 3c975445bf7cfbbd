//! Writes two large profiles of the same imaginary program, as DHAT's JSON and as
//! heaptrack's data, for `ci/bench-diff`. In the second one of 100 points allocates twice
//! as much, one of 200 is gone, as many are new, and a tenth of the lines has moved.
//!
//! `big-profile FOLDER POINTS`

use std::fs::File;
use std::io::{BufWriter, Result, Write};
use std::path::Path;

/// Frames of the program: functions at their call sites.
const FRAMES: u64 = 100_000;
/// Frames of a stack, the allocator's not counted.
const DEPTH: u32 = 31;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().collect();
    let [_, folder, points] = &words[..] else {
        eprintln!("usage: big-profile FOLDER POINTS");
        std::process::exit(2);
    };
    let (folder, points) = (Path::new(folder), points.parse().unwrap_or(1_000_000));
    for is_new in [false, true] {
        let name = if is_new { "new" } else { "old" };
        let open = |ending: &str| -> Result<_> {
            let file = File::create(folder.join(format!("{name}.{ending}")))?;
            Ok(BufWriter::with_capacity(1 << 20, file))
        };
        dhat(open("dhat.json")?, points, is_new)?;
        heaptrack(open("heaptrack")?, points, is_new)?;
    }
    Ok(())
}

/// The points of a profile, as numbers of one series.
fn points_of(points: u64, is_new: bool) -> impl Iterator<Item = u64> {
    let all = if is_new {
        points + points / 200
    } else {
        points
    };
    (0..all).filter(move |point| !(is_new && *point < points && point % 200 == 7))
}

fn bytes(point: u64, is_new: bool) -> u64 {
    let bytes = 16 + mixed(point, 1) % 5_000;
    if is_new && point % 100 == 1 {
        bytes * 2
    } else {
        bytes
    }
}

fn line(frame: u64, is_new: bool) -> u64 {
    let line = 1 + frame % 900;
    if is_new && frame % 10 == 3 {
        line + 3
    } else {
        line
    }
}

/// A stack's frames from the outermost: stacks share what is outer, as those of programs do.
fn stack(point: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..DEPTH).map(move |level| {
        // All bits of the point at the innermost level, none at the outermost.
        let prefix = point >> (24 * (DEPTH - 1 - level) / DEPTH);
        let node = mixed(prefix, u64::from(level) + 2);
        (node, node % FRAMES)
    })
}

/// A number that looks like none of its neighbours' (the finaliser of SplitMix64).
fn mixed(number: u64, salt: u64) -> u64 {
    let mut z = number.wrapping_add(salt.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn dhat(mut out: impl Write, points: u64, is_new: bool) -> Result<()> {
    out.write_all(
        b"{\"dhatFileVersion\":2\n,\"mode\":\"heap\",\"verb\":\"Allocated\"\n,\"bklt\":true,\"bkacc\":false\n\
          ,\"tu\":\"instrs\",\"Mtu\":\"Minstr\"\n,\"tuth\":500\n,\"cmd\":\"prover\"\n,\"pid\":1\n,\"te\":9000000\n\
          ,\"tg\":8000000\n,\"pps\":\n [",
    )?;
    for (at, point) in points_of(points, is_new).enumerate() {
        if at > 0 {
            out.write_all(b" ,")?;
        }
        let bytes = bytes(point, is_new);
        let left = if point % 50 == 0 { bytes } else { 0 };
        write!(
            out,
            "{{\"tb\":{bytes},\"tbk\":1\n  ,\"tl\":{}\n  ,\"mb\":{bytes},\"mbk\":1\n  ,\"gb\":{left},\"gbk\":{}\n  \
             ,\"eb\":{left},\"ebk\":{}\n  ,\"fs\":[1",
            mixed(point, 0) % 9_000_000,
            u32::from(left > 0),
            u32::from(left > 0)
        )?;
        let mut frames: Vec<u64> = stack(point).map(|(_, frame)| frame).collect();
        frames.reverse();
        for frame in frames {
            write!(out, ",{}", frame + 2)?;
        }
        out.write_all(b"]\n  }\n")?;
    }
    out.write_all(
        b" ]\n,\"ftbl\":\n [\"[root]\"\n ,\"0x4838B26: malloc (vg_replace_malloc.c:381)\"",
    )?;
    for frame in 0..FRAMES {
        write!(
            out,
            "\n ,\"0x{:X}: prover::module_{}::function_{frame}(unsigned long) (module_{}.cpp:{})\"",
            0x40_0000 + frame * 16,
            frame % 300,
            frame % 300,
            line(frame, is_new)
        )?;
    }
    out.write_all(b"\n ]\n}\n")?;
    out.flush()
}

/// Heaptrack's format of version 3: strings, instructions, a tree of stacks, then
/// what was allocated and released, in order.
fn heaptrack(mut out: impl Write, points: u64, is_new: bool) -> Result<()> {
    out.write_all(b"v 10400 3\nX prover\nI 1000 5e298f\ns 6 prover\n")?;
    for module in 0..300 {
        let file = format!("module_{module}.cpp");
        writeln!(out, "s {:x} {file}", file.len())?;
    }
    for frame in 0..FRAMES {
        let name = format!(
            "prover::module_{}::function_{frame}(unsigned long)",
            frame % 300
        );
        writeln!(out, "s {:x} {name}", name.len())?;
        let (function, file) = (302 + frame, 2 + frame % 300);
        writeln!(
            out,
            "i {:x} 1 {function:x} {file:x} {:x}",
            0x40_0000 + frame * 16,
            line(frame, is_new)
        )?;
    }
    // The path to the point before: what the next one shares with it is known.
    let mut path: Vec<(u64, u64)> = Vec::new();
    let mut nodes = 0_u64;
    for (at, point) in points_of(points, is_new).enumerate() {
        let frames: Vec<(u64, u64)> = stack(point).collect();
        let shared = path
            .iter()
            .zip(&frames)
            .take_while(|((known, _), (node, _))| known == node);
        let shared = shared.count();
        path.truncate(shared);
        for (node, frame) in &frames[shared..] {
            let parent = path.last().map_or(0, |(_, index)| *index);
            nodes += 1;
            writeln!(out, "t {:x} {parent:x}", frame + 1)?;
            path.push((*node, nodes));
        }
        let trace = path.last().map_or(0, |(_, index)| *index);
        writeln!(out, "a {:x} {trace:x}\n+ {at:x}", bytes(point, is_new))?;
        if point % 50 != 0 {
            writeln!(out, "- {at:x}")?;
        }
    }
    out.write_all(b"c 10\nR 480\n")?;
    out.flush()
}
