//! Lines of source, read once per file.

use std::collections::HashMap;
use std::fs;

/// The largest source file that is read, in bytes.
const LARGEST: u64 = 4 << 20;

/// The source files that were looked at; `None` where one is not here.
#[derive(Debug, Default)]
pub(super) struct Sources(HashMap<String, Option<Vec<String>>>);

impl Sources {
    /// A line without the space around it, counted from 1.
    pub fn line(&mut self, file: &str, line: u32) -> Option<String> {
        let lines = self.0.entry(file.to_owned()).or_insert_with(|| read(file));
        let line = lines.as_ref()?.get((line as usize).checked_sub(1)?)?;
        let line = line.trim();
        (!line.is_empty()).then(|| line.to_owned())
    }
}

fn read(file: &str) -> Option<Vec<String>> {
    if fs::metadata(file).ok()?.len() > LARGEST {
        return None;
    }
    let text = fs::read(file).ok()?;
    let text = String::from_utf8_lossy(&text);
    Some(text.lines().map(str::to_owned).collect())
}
