//! Lines on their way to the reader of the log. That is a program and a disk of others: a thread of its own waits for them, and
//! nothing else does.

use std::{
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

/// Bytes of lines that wait. Lines beyond them are dropped and counted.
const MAX_BYTES: usize = 1 << 20;
/// How much of the last line is written: of its start, and of its end.
const MAX_START: usize = 4 << 10;
const MAX_END: usize = 64 << 10;
/// How long the end waits for the lines before it.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// What the thread receives.
enum Message {
    Line(Vec<u8>),
    End(mpsc::Sender<()>),
}

/// How much waits, and what was dropped.
#[derive(Debug, Default)]
struct Counts {
    waiting: AtomicUsize,
    dropped: AtomicU64,
}

/// The log. Dropping it waits a second at most until the lines before are written.
#[derive(Debug)]
#[must_use = "the log ends with it"]
pub struct Log(Writer);

/// Writes lines, each by one call.
#[derive(Clone, Debug)]
pub struct Writer {
    messages: mpsc::Sender<Message>,
    counts: Arc<Counts>,
}

impl Log {
    /// Starts the thread that writes it.
    pub(super) fn start(mut to: impl Write + Send + 'static) -> io::Result<Self> {
        let (messages, received) = mpsc::channel();
        let counts = Arc::new(Counts::default());
        let writer = Writer {
            messages,
            counts: Arc::clone(&counts),
        };
        let thread = thread::Builder::new().name("log".to_owned());
        thread.spawn(move || {
            for message in received {
                match message {
                    Message::Line(line) => write(&mut to, &line, &counts),
                    // Without a receiver no one waits any more.
                    Message::End(written) => drop(written.send(())),
                }
            }
        })?;
        Ok(Self(writer))
    }

    /// Writes the last line of a program that fails, after all others. The middle of a text that would have no room is
    /// omitted: the kernel's verifier can say megabytes, and the cause is behind that.
    pub fn line(&self, text: &str) {
        let end = text.len().saturating_sub(MAX_END);
        let line = if end > MAX_START {
            let start = &text[..text.floor_char_boundary(MAX_START)];
            format!("{start}\n...\n{}\n", &text[text.ceil_char_boundary(end)..])
        } else {
            format!("{text}\n")
        };
        let _ = self.writer().write(line.as_bytes());
    }

    /// What writes into it.
    pub(super) fn writer(&self) -> Writer {
        self.0.clone()
    }
}

/// A reader that has gone away is no problem of the program.
fn write(to: &mut impl Write, line: &[u8], counts: &Counts) {
    let _ = to.write_all(line);
    counts.waiting.fetch_sub(line.len(), Ordering::Relaxed);
    let dropped = counts.dropped.swap(0, Ordering::Relaxed);
    if dropped > 0 {
        tracing::warn!("{dropped} lines of this log are missing: its reader was too slow");
    }
}

impl Write for Writer {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let counts = &self.counts;
        let waiting = counts.waiting.fetch_add(line.len(), Ordering::Relaxed);
        let has_room = waiting + line.len() <= MAX_BYTES;
        if !(has_room && self.messages.send(Message::Line(line.to_vec())).is_ok()) {
            counts.waiting.fetch_sub(line.len(), Ordering::Relaxed);
            counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let (written, end) = mpsc::channel();
        if self.0.messages.send(Message::End(written)).is_ok() {
            let _ = end.recv_timeout(END_TIMEOUT);
        }
    }
}

#[cfg(test)]
mod tests;
