//! What ends a round of a program that we did not build: a line that it prints or logs, the
//! clock, or the program itself through `tidegate.h`.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use regex::bytes::Regex;
use rustix::event::{PollFd, PollFlags, poll};
use tidegate_hook::Ledger;

/// Between two looks whether a source that says nothing has come to its end.
const LOOK: Duration = Duration::from_millis(20);
/// Between two looks at a log file, and at the round that a program says it is in.
const CLOSE_LOOK: Duration = Duration::from_millis(1);
/// The last round that the ledger can tell from others.
const LAST_ROUND: u32 = (1 << 19) - 1;

/// What ends a round of a program.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Rounds {
    /// A line of its standard output or error that matches.
    Line(Regex),
    /// A line that matches in a file to which it appends. What is in the file when the
    /// program starts does not count; one that is replaced or cut is read from its beginning.
    LineOf(PathBuf, Regex),
    /// The clock, each time so much has passed since the program's start.
    Every(Duration),
    /// The program itself, by `tidegate_round` of `tidegate.h`: the beginning of a round is
    /// the end of the one before. What comes before its first round belongs to none.
    Marks,
}

impl Rounds {
    /// The pattern of lines, if lines end the rounds.
    pub(crate) fn pattern(&self) -> Option<&Regex> {
        match self {
            Self::Line(pattern) | Self::LineOf(_, pattern) => Some(pattern),
            Self::Every(_) | Self::Marks => None,
        }
    }

    /// The number of the round that goes on when the program starts.
    pub(crate) const fn first(&self) -> u32 {
        match self {
            Self::Marks => 0,
            _ => 1,
        }
    }
}

/// Where a program's output is passed on to.
pub(crate) type To = Box<dyn Write + Send>;

/// A round that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub round: u32,
    /// Whether the program had ended the next one too when this was noticed.
    pub late: bool,
}

/// The threads that listen to a program: each reports the rounds that end.
pub(crate) struct Listeners {
    /// The rounds that have ended, in order.
    pub ended: Receiver<Ended>,
    source: Source,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Clone)]
struct Source {
    ledger: Arc<Ledger>,
    rounds: Sender<Ended>,
    count: Arc<Mutex<u32>>,
    over: Arc<Over>,
}

impl Listeners {
    /// None yet; `first` is the round that goes on.
    pub fn new(ledger: Arc<Ledger>, first: u32) -> Self {
        let (rounds, ended) = channel();
        ledger.begin_round(first);
        Self {
            ended,
            source: Source {
                ledger,
                rounds,
                count: Arc::new(Mutex::new(first)),
                over: Arc::default(),
            },
            threads: Vec::new(),
        }
    }

    /// Passes a stream of output on to `to` and keeps it in `log`. Lines that match end rounds.
    pub fn stream(
        &mut self,
        from: impl Read + AsFd + Send + 'static,
        pattern: Option<&Regex>,
        to: [To; 2],
    ) {
        let from = UntilOver {
            from,
            over: Arc::clone(&self.source.over),
        };
        self.read(from, pattern.cloned(), to);
    }

    /// Ends rounds as `rounds` says, where that is not by the streams of the program.
    ///
    /// # Errors
    /// If a log file that is there cannot be read.
    pub fn listen(&mut self, rounds: &Rounds) -> io::Result<()> {
        match rounds {
            Rounds::Line(_) => {}
            Rounds::LineOf(file, pattern) => {
                let tail = Tail::new(file, Arc::clone(&self.source.over))?;
                let nowhere = [Box::new(io::sink()) as To, Box::new(io::sink())];
                self.read(tail, Some(pattern.clone()), nowhere);
            }
            Rounds::Every(interval) => {
                let (source, interval) = (self.source.clone(), *interval);
                self.threads.push(std::thread::spawn(move || {
                    while !source.over.within(interval) {
                        source.next_round(false);
                    }
                }));
            }
            Rounds::Marks => {
                let source = self.source.clone();
                self.threads.push(std::thread::spawn(move || {
                    while !source.over.within(CLOSE_LOOK) {
                        source.follow_marks();
                    }
                    source.follow_marks();
                }));
            }
        }
        Ok(())
    }

    fn read(&mut self, from: impl Read + Send + 'static, pattern: Option<Regex>, mut to: [To; 2]) {
        let source = self.source.clone();
        self.threads.push(std::thread::spawn(move || {
            let mut from = BufReader::new(from);
            let mut line = Vec::new();
            // An error on a pipe is its end.
            while from.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                let text = line.strip_suffix(b"\n").unwrap_or(&line);
                if let Some(pattern) = pattern.as_ref().filter(|it| it.is_match(text)) {
                    // At once, for the program goes on.
                    source.next_round(has_match(pattern, from.buffer()));
                }
                for to in &mut to {
                    // Nobody may be there to read it, and the disk may be full; the program
                    // shall not notice.
                    let _ = to.write_all(&line).and_then(|()| to.flush());
                }
                line.clear();
            }
        }));
    }

    /// Ends the listening, once what has been printed by now is read.
    pub fn end(self) {
        self.source.over.is_now();
        for thread in self.threads {
            // A listener that panicked has lost output, no books.
            let _ = thread.join();
        }
    }
}

impl Source {
    fn next_round(&self, late: bool) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        self.ledger.begin_round(*count + 1);
        let round = *count;
        let _ = self.rounds.send(Ended { round, late });
        *count += 1;
    }

    /// Reports the rounds before the one in which the program says it is.
    fn follow_marks(&self) {
        let now = self.ledger.round().min(LAST_ROUND);
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        while *count < now {
            if *count > 0 {
                // The program has told its books itself; nothing is late.
                let (round, late) = (*count, false);
                let _ = self.rounds.send(Ended { round, late });
            }
            *count += 1;
        }
    }
}

/// Whether a whole line in there matches.
fn has_match(pattern: &Regex, text: &[u8]) -> bool {
    text.split_inclusive(|byte| *byte == b'\n')
        .filter_map(|line| line.strip_suffix(b"\n"))
        .any(|line| pattern.is_match(line))
}

/// Whether listening is over.
#[derive(Debug, Default)]
struct Over {
    over: Mutex<bool>,
    told: Condvar,
}

impl Over {
    fn is_now(&self) {
        *self.over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.told.notify_all();
    }

    /// Waits so long, and returns whether it is over.
    fn within(&self, time: Duration) -> bool {
        let over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.told.wait_timeout_while(over, time, |over| !*over);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// A pipe that ends with the program, also where a process that nobody knows of holds its
/// other end open.
struct UntilOver<R> {
    from: R,
    over: Arc<Over>,
}

impl<R: Read + AsFd> Read for UntilOver<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let over = self.over.within(Duration::ZERO);
            let timeout = rustix::event::Timespec {
                tv_sec: 0,
                tv_nsec: if over {
                    0
                } else {
                    i64::from(LOOK.subsec_nanos())
                },
            };
            let mut ready = [PollFd::new(&self.from, PollFlags::IN)];
            match poll(&mut ready, Some(&timeout)) {
                Ok(0) if over => return Ok(0),
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return self.from.read(buffer),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// A file to which somebody appends, from where its end was.
struct Tail {
    path: PathBuf,
    file: Option<File>,
    over: Arc<Over>,
}

impl Tail {
    fn new(path: &Path, over: Arc<Over>) -> io::Result<Self> {
        let file = match File::open(path) {
            Ok(mut file) => {
                file.seek(SeekFrom::End(0))?;
                Some(file)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        Ok(Self {
            path: path.to_owned(),
            file,
            over,
        })
    }

    /// Reads what has been appended.
    fn more(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(file) = &mut self.file else {
            self.file = File::open(&self.path).ok();
            return Ok(0);
        };
        let read = file.read(buffer)?;
        if read > 0 {
            return Ok(read);
        }
        let at = file.stream_position()?;
        let ours = file.metadata()?;
        if ours.len() < at {
            file.seek(SeekFrom::Start(0))?; // It was cut.
        } else if let Ok(there) = std::fs::metadata(&self.path)
            && (there.dev(), there.ino()) != (ours.dev(), ours.ino())
        {
            self.file = File::open(&self.path).ok(); // It was replaced.
        }
        Ok(0)
    }
}

impl Read for Tail {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let over = self.over.within(Duration::ZERO);
            let read = self.more(buffer)?;
            if read > 0 || over {
                return Ok(read);
            }
            self.over.within(CLOSE_LOOK);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(tail: &mut Tail) -> String {
        let mut text = Vec::new();
        let mut buffer = [0; 64];
        // A look may find that the file is another one, and read nothing.
        for _ in 0..3 {
            loop {
                match tail.more(&mut buffer).unwrap() {
                    0 => break,
                    read => text.extend_from_slice(&buffer[..read]),
                }
            }
        }
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn a_log_is_followed_from_its_end_through_cuts_and_replacements() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        std::fs::write(&path, "from before\n").unwrap();
        let mut tail = Tail::new(&path, Arc::default()).unwrap();
        assert_eq!(read_all(&mut tail), "");

        let append = |text: &str| {
            let mut file = File::options().append(true).open(&path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        };
        append("one\n");
        assert_eq!(read_all(&mut tail), "one\n");
        append("two\n");
        std::fs::rename(&path, folder.path().join("log.1")).unwrap();
        std::fs::write(&path, "three\n").unwrap();
        assert_eq!(read_all(&mut tail), "two\nthree\n");
        std::fs::write(&path, "4\n").unwrap(); // Cut, and shorter than it was.
        assert_eq!(read_all(&mut tail), "4\n");
    }

    #[test]
    fn a_log_that_is_not_there_yet_is_read_from_its_beginning() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut tail = Tail::new(&path, Arc::default()).unwrap();
        assert_eq!(read_all(&mut tail), "");
        std::fs::write(&path, "one\n").unwrap();
        assert_eq!(read_all(&mut tail), "one\n");
    }

    #[test]
    fn a_pipe_that_nobody_closes_ends_when_listening_is_over() {
        let (from, mut writer) = io::pipe().unwrap();
        writer
            .write_all(b"round 1 done\nround 2 done\nround 3")
            .unwrap();
        let ledger = Arc::new(Ledger::create(tidegate_hook::Capacity::default()).unwrap());
        let mut listeners = Listeners::new(ledger, 1);
        let pattern = Regex::new("^round").unwrap();
        let nowhere = [Box::new(io::sink()) as To, Box::new(io::sink())];
        listeners.stream(from, Some(&pattern), nowhere);
        let ended = |round, late| Ended { round, late };
        // Both lines were there when the first was read.
        assert_eq!(listeners.ended.recv().unwrap(), ended(1, true));
        assert_eq!(listeners.ended.recv().unwrap(), ended(2, false));
        listeners.end();
        drop(writer);
    }
}
