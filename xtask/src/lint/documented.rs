//! What the docs say about commands: every command that they show is accepted by the program that it calls, and every
//! flag of a program stands in the docs.
//!
//! Commands are run as a user without rights, where no agent is. A wrong usage is known by exit code 2, which means
//! nothing else.

mod commands;

use std::{
    collections::BTreeSet,
    fs,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use clap::Parser as _;

use self::commands::{Documented, Flag, Program};
use crate::{
    build,
    cli::Cli,
    run::{answer, is_root, root},
    tool,
};

/// Flags that the docs leave out: every command has them.
const OMITTED: [&str; 2] = ["--help", "--version"];

/// What is run, and how long it may take: one that follows something runs until it is ended.
const LIMIT: [&str; 3] = ["timeout", "--kill-after=1", "3"];

/// No user of this machine.
const UNPRIVILEGED: u32 = 65534;

/// Builds the programs, and fails with every command and flag that is wrong.
pub fn check() -> Result<()> {
    build::tests()?;
    let pages = pages()?;
    let programs = Copies::make()?;
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for (path, text) in &pages {
        for command in commands::of(text) {
            if !seen.insert((command.program, command.words.clone())) {
                continue;
            }
            if let Some(error) = programs.refuse(&command)? {
                wrong.push(format!("{}:{}: {error}", path.display(), command.line));
            }
        }
    }
    let docs: String = pages.into_iter().map(|(_, text)| text).collect();
    for program in ["sidetrack", "kubectl-sidetrack", "sidetrack-webhook"] {
        for (command, flag) in programs.flags(program)? {
            if !flag.is_in(&docs) && !OMITTED.contains(&flag.long.as_str()) {
                wrong.push(format!("no page names {} of `{command}`", flag.long));
            }
        }
    }
    ensure!(
        wrong.is_empty(),
        "commands in the docs:\n{}",
        wrong.join("\n")
    );
    Ok(())
}

/// The pages that users read, each with its path.
fn pages() -> Result<Vec<(PathBuf, String)>> {
    let mut found = Vec::new();
    for folder in ["", "docs", "deploy/chart", "deploy/pods-dir"] {
        for entry in fs::read_dir(root().join(folder)).with_context(|| format!("read {folder}"))? {
            let name = Path::new(folder).join(entry?.file_name());
            // What a version changed is described in the words of that version.
            if name.extension().is_some_and(|it| it == "md") && name != Path::new("CHANGELOG.md") {
                let text = fs::read_to_string(root().join(&name))?;
                found.push((name, text));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The programs, where a user without rights can run them.
struct Copies(PathBuf);

impl Copies {
    fn make() -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("sidetrack-lint-{}", std::process::id()));
        let copies = Self(folder);
        fs::create_dir(&copies.0).with_context(|| format!("make {}", copies.0.display()))?;
        for name in ["sidetrack", "kubectl-sidetrack", "sidetrack-webhook"] {
            fs::copy(root().join("target/debug").join(name), copies.0.join(name))
                .with_context(|| format!("copy {name}"))?;
        }
        Ok(copies)
    }

    /// The error of a command that is used wrongly.
    fn refuse(&self, documented: &Documented) -> Result<Option<String>> {
        let words = &documented.words;
        if documented.is_inline && words.is_empty() {
            // The program's name.
            return Ok(None);
        }
        let (mut command, shown) = match documented.program {
            Program::Sidetrack => (self.command("sidetrack"), "sidetrack"),
            Program::Plugin => (self.command("kubectl-sidetrack"), "kubectl sidetrack"),
            Program::Xtask => return refused_by_xtask(documented),
        };
        let output = command.args(words).output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        // In a sentence a command may stand for itself, without what it needs.
        let is_short = documented.is_inline
            && (words.len() == 1 && !errors.contains("unrecognized subcommand")
                || errors.contains("required arguments were not provided")
                || !errors.starts_with("error:"));
        let is_wrong = output.status.code() == Some(2) && !is_short;
        let first = errors.lines().next().unwrap_or_default();
        Ok(is_wrong.then(|| format!("`{shown} {}`: {first}", words.join(" "))))
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(LIMIT[0]);
        command
            .args(&LIMIT[1..])
            .arg(self.0.join(name))
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("KUBECONFIG", "/nonexistent")
            .current_dir("/")
            .stdin(Stdio::null());
        if is_root() {
            command.uid(UNPRIVILEGED).gid(UNPRIVILEGED);
        }
        command
    }

    /// Every command of a program that help lists, with each of its flags.
    fn flags(&self, program: &str) -> Result<Vec<(String, Flag)>> {
        let help = |words: &[&str]| {
            let mut command = self.command(program);
            answer(command.args(words).arg("--help"))
                .with_context(|| format!("`{program} {}--help` fails", words.join(" ")))
        };
        let all = help(&[])?;
        let mut found: Vec<_> = commands::flags_of_help(&all)
            .map(|flag| (program.to_owned(), flag))
            .collect();
        for name in commands::commands_of_help(&all) {
            let shown = format!("{program} {name}");
            let flags = help(&[name])?;
            found.extend(commands::flags_of_help(&flags).map(|flag| (shown.clone(), flag)));
        }
        Ok(found)
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        // Nothing depends on it: a folder that stays in the temporary directory is harmless.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The tools of the tests declare their own arguments; with `--help` at the end they read them and do nothing.
fn refused_by_xtask(documented: &Documented) -> Result<Option<String>> {
    let words = &documented.words;
    let shown = format!("cargo xtask {}", words.join(" "));
    let all = std::iter::once("cargo xtask").chain(words.iter().map(String::as_str));
    if let Err(error) = Cli::try_parse_from(all) {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        return Ok(error.use_stderr().then(|| format!("`{shown}`: {first}")));
    }
    let Some((name, rest)) = words.split_first() else {
        return Ok(None);
    };
    let Some(mut command) = tool::declared(name) else {
        return Ok(None);
    };
    let output = command.args(rest).arg("--help").output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let first = errors.lines().next().unwrap_or_default();
    Ok((!output.status.success()).then(|| format!("`{shown}`: {first}")))
}
