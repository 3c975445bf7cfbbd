//! What the supervisor and the workload say to each other.
//!
//! One message is one packet of a socket pair, so there is no framing and a
//! message is whole or absent. The workload's side allocates nothing that
//! outlives a call, and is booked as the meter's own.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};

/// The largest message in bytes; longer texts are cut.
const LARGEST: usize = 4096;

/// From the workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// The scenario was reached; the workload waits for orders.
    Ready,
    /// A round's body has returned.
    RoundEnded {
        /// Why it failed, if it did.
        failed: Option<String>,
    },
    /// The heap was trimmed.
    Trimmed,
    /// The body panicked; the process ends next.
    Panicked(String),
}

/// To the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Do a round of this number.
    Begin(u32),
    /// Trim the heap.
    Trim,
    /// End the process.
    Finish,
}

/// One end of the conversation.
#[derive(Debug)]
pub(crate) struct Channel(OwnedFd);

impl Channel {
    /// Both ends: the supervisor's, the workload's.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok((Self(ours), Self(theirs)))
    }

    pub fn from_fd(fd: OwnedFd) -> Self {
        Self(fd)
    }

    pub fn report(&self, report: &Report) -> io::Result<()> {
        let (kind, text) = match report {
            Report::Ready => (b'r', ""),
            Report::RoundEnded { failed: None } => (b'e', ""),
            Report::RoundEnded { failed: Some(why) } => (b'f', why.as_str()),
            Report::Trimmed => (b't', ""),
            Report::Panicked(message) => (b'p', message.as_str()),
        };
        let mut bytes = [0; LARGEST];
        let text = &text.as_bytes()[..text.len().min(LARGEST - 1)];
        bytes[0] = kind;
        bytes[1..=text.len()].copy_from_slice(text);
        self.put(&bytes[..=text.len()])
    }

    pub fn order(&self, order: Order) -> io::Result<()> {
        let (kind, number) = match order {
            Order::Begin(round) => (b'b', round),
            Order::Trim => (b't', 0),
            Order::Finish => (b'q', 0),
        };
        let [a, b, c, d] = number.to_le_bytes();
        self.put(&[kind, a, b, c, d])
    }

    /// Waits for a report. `None` when the workload's end is closed.
    pub fn next_report(&self) -> io::Result<Option<Report>> {
        let mut space = [0; LARGEST];
        let Some((kind, text)) = self.get(&mut space)? else {
            return Ok(None);
        };
        let text = || String::from_utf8_lossy(text).into_owned();
        let report = match kind {
            b'r' => Report::Ready,
            b'e' => Report::RoundEnded { failed: None },
            b'f' => Report::RoundEnded {
                failed: Some(text()),
            },
            b't' => Report::Trimmed,
            b'p' => Report::Panicked(text()),
            _ => return Err(unknown(kind)),
        };
        Ok(Some(report))
    }

    /// Waits for an order. `None` when the supervisor's end is closed.
    pub fn next_order(&self) -> io::Result<Option<Order>> {
        let mut space = [0; LARGEST];
        let Some((kind, rest)) = self.get(&mut space)? else {
            return Ok(None);
        };
        let number = rest.first_chunk().copied().map_or(0, u32::from_le_bytes);
        let order = match kind {
            b'b' => Order::Begin(number),
            b't' => Order::Trim,
            b'q' => Order::Finish,
            _ => return Err(unknown(kind)),
        };
        Ok(Some(order))
    }

    fn put(&self, bytes: &[u8]) -> io::Result<()> {
        loop {
            match send(&self.0, bytes, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The next packet, as its first byte and the rest; `None` when the other end is closed.
    fn get<'a>(&self, space: &'a mut [u8; LARGEST]) -> io::Result<Option<(u8, &'a [u8])>> {
        let received = loop {
            match recv(&self.0, &mut space[..], RecvFlags::empty()) {
                Ok((received, _)) => break received,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::CONNRESET) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        };
        Ok(space[..received]
            .split_first()
            .map(|(kind, rest)| (*kind, rest)))
    }
}

fn unknown(kind: u8) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("unknown message {kind:?}"),
    )
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
