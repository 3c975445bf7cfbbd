//! Names, files and lines of addresses, from the files that were loaded.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use addr2line::Loader;
use object::Object as _;
use tidegate_hook::{LoadedObject, StackFrame};

use super::frames::{Clue, Frame, kind_of};
use super::source::Sources;

/// The objects of a run, opened when first needed.
pub(super) struct Symbols<'a> {
    objects: Vec<(&'a LoadedObject, Option<Opened>)>,
    known: HashMap<(usize, u64), Vec<Frame>>,
    sources: Sources,
    missing: BTreeSet<String>,
}

/// An object's file, and the one with its debug information.
struct Opened {
    symbols: Option<Loader>,
    debug: Option<Loader>,
}

impl<'a> Symbols<'a> {
    pub fn of(objects: &'a [LoadedObject]) -> Self {
        Self {
            objects: objects.iter().map(|object| (object, None)).collect(),
            known: HashMap::new(),
            sources: Sources::default(),
            missing: BTreeSet::new(),
        }
    }

    /// What could not be had.
    pub fn tell_missing(self, missing: &mut Vec<String>) {
        missing.extend(self.missing);
    }

    /// The frames at an address, innermost first: what was inlined there, then the
    /// function itself. At least one.
    pub fn frames(&mut self, frame: StackFrame) -> Vec<Frame> {
        let Some(index) = frame.object else {
            return vec![unknown(frame.address, "?")];
        };
        let key = (index, frame.address);
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let frames = self.look_up(index, frame.address);
        self.known.insert(key, frames.clone());
        frames
    }

    fn look_up(&mut self, index: usize, address: u64) -> Vec<Frame> {
        let Some((object, opened)) = self.objects.get_mut(index) else {
            return vec![unknown(address, "?")];
        };
        let name = object.path.file_name().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        let missing = &mut self.missing;
        let opened = opened.get_or_insert_with(|| open(object, missing));
        let mut frames = opened.frames(address, &name);
        for frame in &mut frames {
            let clue = Clue {
                function: &frame.function,
                file: frame.file.as_deref(),
            };
            frame.kind = kind_of(&clue);
            if let (Some(file), Some(line)) = (&frame.file, frame.line) {
                frame.source = self.sources.line(file, line);
            }
        }
        frames
    }
}

impl Opened {
    fn frames(&self, address: u64, object: &str) -> Vec<Frame> {
        let mut frames = Vec::new();
        for loader in [&self.debug, &self.symbols].into_iter().flatten() {
            frames = described(loader, address, object);
            if !frames.is_empty() {
                break;
            }
        }
        // Debug information of line tables alone has short names, or none, for
        // functions that were not inlined; the symbol table has them in full.
        let symbol = [&self.symbols, &self.debug]
            .into_iter()
            .flatten()
            .find_map(|loader| loader.find_symbol(address))
            .map(|symbol| addr2line::demangle_auto(symbol.into(), None).into_owned());
        match (frames.last_mut(), symbol) {
            (Some(outermost), Some(symbol)) => {
                if !outermost.function.contains("::") {
                    outermost.function = symbol;
                }
            }
            (None, Some(symbol)) => frames.push(Frame {
                function: symbol,
                ..unknown(address, object)
            }),
            (Some(_), None) => {}
            (None, None) => frames.push(unknown(address, object)),
        }
        let last = frames.len() - 1;
        for (at, frame) in frames.iter_mut().enumerate() {
            frame.inlined = at < last;
            if frame.function.is_empty() {
                frame.function = format!("{object}+{address:#x}");
            }
        }
        frames
    }
}

/// What the debug information says; nothing if there is none for the address.
fn described(loader: &Loader, address: u64, object: &str) -> Vec<Frame> {
    let mut frames = Vec::new();
    let Ok(mut found) = loader.find_frames(address) else {
        return frames;
    };
    while let Ok(Some(frame)) = found.next() {
        let function = frame.function.as_ref();
        let function = function.and_then(|function| function.demangle().ok());
        let location = frame.location.as_ref();
        frames.push(Frame {
            function: function.map(|name| name.into_owned()).unwrap_or_default(),
            file: location
                .and_then(|location| location.file)
                .map(str::to_owned),
            line: location.and_then(|location| location.line),
            column: location
                .and_then(|location| location.column)
                .filter(|column| *column != 0),
            ..unknown(address, object)
        });
    }
    frames
}

fn unknown(address: u64, object: &str) -> Frame {
    Frame {
        function: format!("{object}+{address:#x}"),
        file: None,
        line: None,
        column: None,
        inlined: false,
        object: object.to_owned(),
        kind: super::FrameKind::System,
        source: None,
    }
}

fn open(object: &LoadedObject, missing: &mut BTreeSet<String>) -> Opened {
    let path = &object.path;
    let nothing = Opened {
        symbols: None,
        debug: None,
    };
    if !path.is_absolute() {
        return nothing; // The kernel's own, which has no file.
    }
    match build_id(path) {
        Some(id) if id != object.build_id => {
            missing.insert(format!(
                "names of {}: the file is not the one that was loaded any more",
                path.display()
            ));
            return nothing;
        }
        Some(_) => {}
        None if path.exists() => {}
        None => {
            missing.insert(format!("names of {}: the file is gone", path.display()));
            return nothing;
        }
    }
    Opened {
        symbols: Loader::new(path).ok(),
        debug: debug_file(&object.build_id).and_then(|path| Loader::new(path).ok()),
    }
}

fn build_id(path: &Path) -> Option<Vec<u8>> {
    let file = std::fs::File::open(path).ok()?;
    let cache = object::ReadCache::new(file);
    let object = object::File::parse(&cache).ok()?;
    Some(object.build_id().ok()?.unwrap_or_default().to_vec())
}

/// Where distributions put the debug information of a stripped object.
fn debug_file(id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = id.split_first()?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    let path = PathBuf::from(format!("/usr/lib/debug/.build-id/{first:02x}/{rest}.debug"));
    path.exists().then_some(path)
}
