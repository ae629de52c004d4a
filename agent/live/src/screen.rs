//! The terminal while a view is shown: its other screen, without line editing.
//!
//! Invariant: whatever ends the view, also a panic, gives the terminal back as it was.

use std::{
    io::{self, IsTerminal as _, Stdout},
    panic,
    sync::Once,
};

use anyhow::{Context as _, Result, bail};
use crossterm::{
    cursor::Show,
    execute,
    terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode},
};
use ratatui::{Terminal, backend::CrosstermBackend};

/// The terminal, until this is dropped.
#[derive(Debug)]
pub struct Screen(pub Terminal<CrosstermBackend<Stdout>>);

/// Fails if there is no terminal to show a view on.
///
/// # Errors
/// With what to do instead.
pub fn require_terminal() -> Result<()> {
    if io::stdin().is_terminal() && io::stdout().is_terminal() {
        return Ok(());
    }
    bail!(
        "the live view needs a terminal, and standard input or output is none: pass --once for one table, or run it with a terminal (kubectl exec -it, ssh -t)"
    )
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// If it is none.
    pub fn open() -> Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let print = panic::take_hook();
            // With panic=abort nothing is dropped, and this is all that runs.
            panic::set_hook(Box::new(move |panic| {
                restore();
                print(panic);
            }));
        });
        Self::take().inspect_err(|_| restore())
    }

    fn take() -> Result<Self> {
        enable_raw_mode().context("set the terminal up")?;
        execute!(io::stdout(), EnterAlternateScreen).context("write to the terminal")?;
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout()));
        terminal.map(Self).context("read the terminal's size")
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Gives the terminal back. It may be gone.
fn restore() {
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}
