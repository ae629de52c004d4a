//! Draws the pictures of terminals in the docs, of 112 columns and 24 lines, with real commands of a real agent, with
//! pods, sidecars and connections.

mod demo;
mod scene;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use clap::Parser;
use lab::{
    agent::Places,
    ledger, private,
    terminal::{Terminal, svg},
};

use crate::scene::Scene;

/// The columns of the terminals: what the commands show here needs no more.
const COLUMNS: u16 = 112;

/// For a command to show all that it will show.
const SETTLED: Duration = Duration::from_secs(3);

/// Draws the pictures of terminals in the docs.
#[derive(Debug, Parser)]
#[command(name = "sidetrack-pictures")]
struct Options {
    /// Where they are written
    #[arg(long, value_name = "DIR", default_value = "docs/pictures")]
    out: PathBuf,
    /// Python environment of the demo
    #[arg(long, value_name = "DIR", hide = true)]
    tools: PathBuf,
}

fn main() -> Result<()> {
    let options = Options::parse();
    fs::create_dir_all(&options.out)
        .with_context(|| format!("make the directory {}", options.out.display()))?;
    // Tools are started where their caller is; the private mounts need the path.
    let out = options.out.canonicalize()?;
    private::require_root()?;
    private::enter()?;
    ledger::sweep()?;
    demo::draw(&options.tools, &out)?;
    let scene = Scene::new()?;
    let places = scene.lab.places();
    top(places, &out)?;
    // The table in docs/operations.md.
    let once = places.output(&["top", "--once", "--interval", "5s"])?;
    println!("{}", String::from_utf8_lossy(&once.stdout));
    // All of them are more than 24 lines.
    let rules = with_prompt(places, &["rules", "test/web"], " | grep -v '^0 '")?;
    let terminal = Terminal::start_wide(&rules, COLUMNS)?;
    thread::sleep(SETTLED);
    draw(&terminal, &out, "rules", "sidetrack rules")
}

fn top(places: &Places, out: &Path) -> Result<()> {
    let mut command = places.command(&["top", "--interval", "1s"])?;
    command.env("NODE_NAME", "worker-1").env_remove("NO_COLOR");
    let mut terminal = Terminal::start_wide(&command, COLUMNS)?;
    thread::sleep(2 * SETTLED);
    draw(&terminal, out, "top", "sidetrack top")?;
    terminal.keys("q")?;
    terminal.wait_end()?;
    Ok(())
}

/// A command as it is typed, without the flags that name the paths of the lab.
fn with_prompt(places: &Places, words: &[&str], filter: &str) -> Result<Command> {
    let command = places.command(words)?;
    let mut shell = Command::new("sh");
    let script = format!("echo \"# $1\"; shift; \"$@\"{filter}; printf '# '");
    shell.args(["-c", &script, "sh"]);
    shell.arg(format!("sidetrack {}{filter}", words.join(" ")));
    shell.arg(command.get_program()).args(command.get_args());
    Ok(shell)
}

fn draw(terminal: &Terminal, out: &Path, name: &str, title: &str) -> Result<()> {
    let path = out.join(format!("{name}.svg"));
    let shown = terminal.screen();
    println!("{}\n\n{}\n", path.display(), shown.contents());
    fs::write(&path, svg(&shown, title)).with_context(|| format!("write {}", path.display()))
}
