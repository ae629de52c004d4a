//! Programs on a terminal of 24 lines, and what it shows.

mod svg;

use std::{
    fs::File,
    io::{ErrorKind, Read as _, Write as _},
    num::NonZeroU16,
    os::fd::OwnedFd,
    process::Command,
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::pty::{Winsize, openpty};
use parking_lot::Mutex;

pub use self::svg::{animated, svg};
use crate::{command::Process, wait::eventually};

/// The lines of the terminal.
pub const LINES: u16 = 24;
/// Its columns.
pub const COLUMNS: u16 = 80;
/// How long something may take to be shown.
const WAIT_TIMEOUT: Duration = Duration::from_secs(30);

/// A program that runs on a terminal. Ends with this.
pub struct Terminal {
    child: Process,
    keys: File,
    /// The terminal's other end, as programs in it have it.
    device: OwnedFd,
    shown: Arc<Mutex<vt100::Parser>>,
}

impl Terminal {
    /// Starts a program on a terminal of 80 columns.
    pub fn start(command: &Command) -> Result<Self> {
        Self::start_wide(command, COLUMNS)
    }

    /// Starts a program on a terminal of so many columns.
    pub fn start_wide(command: &Command, columns: u16) -> Result<Self> {
        let size = Winsize {
            ws_row: LINES,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let pty = openpty(Some(&size), None).context("open a terminal")?;
        let mut inside = Command::new("setsid");
        inside.args(["--ctty", "--wait"]).arg(command.get_program());
        inside.args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside.env("TERM", "xterm-256color");
        inside.stdin(pty.slave.try_clone()?);
        inside.stdout(pty.slave.try_clone()?);
        inside.stderr(pty.slave.try_clone()?);
        let child = Process::start(&mut inside)?;
        let shown = Arc::new(Mutex::new(vt100::Parser::new(
            length(LINES)?,
            length(columns)?,
            0,
        )));
        let (mut output, parser) = (File::from(pty.master.try_clone()?), Arc::clone(&shown));
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            loop {
                match output.read(&mut bytes) {
                    Ok(0) => return,
                    Ok(length) => parser.lock().process(&bytes[..length]),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => return,
                }
            }
        });
        Ok(Self {
            child,
            keys: File::from(pty.master),
            device: pty.slave,
            shown,
        })
    }

    /// Types.
    pub fn keys(&mut self, keys: &str) -> Result<()> {
        Ok(self.keys.write_all(keys.as_bytes())?)
    }

    /// What is shown, with colors.
    #[must_use]
    pub fn screen(&self) -> vt100::Screen {
        self.shown.lock().screen().clone()
    }

    /// What is shown, as lines.
    #[must_use]
    pub fn text(&self) -> String {
        self.screen().contents()
    }

    /// Waits until the screen is as wanted.
    pub fn wait(&self, wanted: impl Fn(&str) -> bool) -> Result<String> {
        eventually(WAIT_TIMEOUT, || {
            let text = self.text();
            ensure!(wanted(&text), "the terminal shows:\n{text}");
            Ok(text)
        })
    }

    /// Waits until the program has ended; its exit code.
    pub fn wait_end(&mut self) -> Result<Option<i32>> {
        eventually(WAIT_TIMEOUT, || match self.child.try_wait()? {
            Some(status) => Ok(status.code()),
            None => bail!("it does not end; the terminal shows:\n{}", self.text()),
        })
    }

    /// Gives the terminal another size, as a window that is resized.
    pub fn resize(&self, lines: u16, columns: u16) -> Result<()> {
        // First: what the program draws for the new size is to be read as that size.
        self.shown
            .lock()
            .screen_mut()
            .set_size(length(lines)?, length(columns)?);
        let mut stty = Command::new("stty");
        let (lines_text, columns_text) = (lines.to_string(), columns.to_string());
        stty.args(["rows", &lines_text, "cols", &columns_text]);
        let status = stty.stdin(self.device.try_clone()?).status()?;
        status.success().then_some(()).context("stty")
    }

    /// Waits until the terminal edits lines, echoes and shows its first screen, as shells have it.
    ///
    /// What a program wrote at its end is read here a moment later.
    pub fn wait_given_back(&self) -> Result<()> {
        eventually(WAIT_TIMEOUT, || {
            let mut stty = Command::new("stty");
            let output = stty.arg("-a").stdin(self.device.try_clone()?).output()?;
            let text = String::from_utf8(output.stdout)?;
            let has = |word: &str| text.split_whitespace().any(|part| part == word);
            ensure!(has("icanon") && has("echo"), "it is raw: {text}");
            ensure!(!self.screen().alternate_screen(), "it shows another screen");
            Ok(())
        })
    }
}

/// What a terminal shows of text that is written to it bit by bit, without a program.
pub struct Screens(vt100::Parser);

impl Screens {
    /// Of so many columns.
    pub fn new(columns: u16) -> Result<Self> {
        Ok(Self(vt100::Parser::new(
            length(LINES)?,
            length(columns)?,
            0,
        )))
    }

    /// Writes text; what is shown then.
    pub fn show(&mut self, text: &str) -> vt100::Screen {
        self.0.process(text.replace('\n', "\r\n").as_bytes());
        self.0.screen().clone()
    }
}

fn length(length: u16) -> Result<NonZeroU16> {
    NonZeroU16::new(length).context("a length")
}
