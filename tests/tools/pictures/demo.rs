//! The demo as a picture that moves: its real output, at a pace at which it can be read.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use lab::terminal::{Screens, animated};

use crate::COLUMNS;

/// Seconds that a part of the output is shown, and how much longer for each of its lines.
const PAUSE: (f32, f32) = (1.5, 0.25);

/// Runs the demo and draws it.
pub fn draw(tools: &Path, out: &Path) -> Result<()> {
    let demo = std::env::current_exe()?.with_file_name("sidetrack-demo");
    let run = Command::new(demo).arg("--tools").arg(tools).output()?;
    let shown = String::from_utf8_lossy(&run.stdout);
    ensure!(
        run.status.success(),
        "the demo failed:\n{shown}{}",
        String::from_utf8_lossy(&run.stderr)
    );
    let mut screens = Screens::new(COLUMNS)?;
    let mut frames = vec![(screens.show("# cargo xtask demo\n"), PAUSE.0)];
    for part in shown.trim_start().split_inclusive("\n\n") {
        let lines = part.lines().count() as f32;
        frames.push((screens.show(part), PAUSE.0 + lines * PAUSE.1));
    }
    let path = out.join("demo.svg");
    let picture = animated(&frames, "cargo xtask demo")?;
    println!("{}: {} screens", path.display(), frames.len());
    fs::write(&path, picture).with_context(|| format!("write {}", path.display()))
}
