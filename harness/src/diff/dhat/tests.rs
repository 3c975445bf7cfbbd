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
