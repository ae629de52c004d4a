//! Mutation tests: cargo-mutants changes the code in small ways, one at a time, and the unit tests
//! have to fail. Only crates whose tests need neither root nor a kernel.

use std::{
    fs,
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde::Deserialize;

use crate::{crates::Program, run::root};

const MUTANTS: Program = Program {
    name: "cargo-mutants",
    version: "27.1.0",
    options: &["--debug", "--config", "profile.dev.debug=false"],
    estimate: "a minute",
};

/// Crates whose mutants their own tests have to catch, without what all names begin with.
const SUBJECTS: [&str; 3] = ["common", "policy", "reconcile"];
const PREFIX: &str = "sidetrack-";

/// How many percent of the viable mutants have to be caught. Those that no test can notice are named in
/// `.cargo/mutants.toml`.
const PERCENT: usize = 97;

/// The model test's random sequences for each mutant, instead of ten thousand.
const SEQUENCES: &str = "300";

#[derive(Debug, Args)]
pub struct Options {
    /// Crates to mutate (common, policy, reconcile; all unless named), then options of cargo-mutants,
    /// such as --file agent/policy/src/select.rs or --list
    #[arg(value_name = "CRATES AND OPTIONS", trailing_var_arg = true)]
    #[arg(allow_hyphen_values = true)]
    words: Vec<String>,
}

/// Runs them; fails if a crate's tests catch too few.
pub fn run(options: &Options) -> Result<ExitCode> {
    let (subjects, passed) = chosen(&options.words)?;
    let program = MUTANTS.install()?;
    let mut results = Vec::new();
    for subject in subjects {
        let outcome = mutate(&program, subject, passed)?;
        results.push((subject, outcome));
    }
    if passed.iter().any(|word| word.starts_with("--list")) {
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "\n{:<10} {:>7} {:>7} {:>7} {:>9}  caught of viable",
        "", "caught", "timeout", "missed", "unviable"
    );
    let mut code = ExitCode::SUCCESS;
    for (subject, outcome) in results {
        println!("{}", outcome.line(subject));
        if !outcome.reaches(PERCENT) {
            code = ExitCode::FAILURE;
        }
    }
    Ok(code)
}

/// The crates named first, and what follows them.
fn chosen(words: &[String]) -> Result<(Vec<&'static str>, &[String])> {
    let names = words
        .iter()
        .position(|word| word.starts_with('-'))
        .unwrap_or(words.len());
    let (names, options) = words.split_at(names);
    let options = options.strip_prefix(&["--".to_owned()]).unwrap_or(options);
    let mut subjects = Vec::new();
    for name in names {
        let name = name.strip_prefix(PREFIX).unwrap_or(name);
        let subject = SUBJECTS.into_iter().find(|it| *it == name);
        let known = SUBJECTS.join(", ");
        subjects.push(subject.with_context(|| format!("no crate {name} to mutate, only {known}"))?);
    }
    if subjects.is_empty() {
        subjects.extend(SUBJECTS);
    }
    Ok((subjects, options))
}

fn mutate(program: &Path, subject: &str, passed: &[String]) -> Result<Outcome> {
    let package = format!("{PREFIX}{subject}");
    eprintln!("mutants: {package}");
    let output = root().join("target/mutants").join(subject);
    fs::create_dir_all(&output).with_context(|| format!("create {}", output.display()))?;
    let outcomes = output.join("mutants.out/outcomes.json");
    let _ = fs::remove_file(&outcomes);
    let status = Command::new(program)
        .current_dir(root())
        .args(["mutants", "--package", &package])
        .args(["--test-package", &package, "--output"])
        .arg(&output)
        .env("SIDETRACK_MODEL_COUNT", SEQUENCES)
        .args(passed)
        .status()
        .context("run cargo-mutants")?;
    // 0: all caught, 2: some missed, 3: some timed out.
    if !matches!(status.code(), Some(0 | 2 | 3)) {
        bail!("cargo-mutants failed on {package} ({status})");
    }
    match fs::read_to_string(&outcomes) {
        Ok(text) => serde_json::from_str(&text).context("read the outcomes of cargo-mutants"),
        // With --list nothing is run.
        Err(_) if status.success() => Ok(Outcome::default()),
        Err(error) => Err(error).with_context(|| format!("read {}", outcomes.display())),
    }
}

/// How many mutants had which end.
#[derive(Debug, Default, Deserialize)]
struct Outcome {
    caught: usize,
    timeout: usize,
    missed: usize,
    unviable: usize,
}

impl Outcome {
    /// A test that no longer ends has noticed the change as well.
    const fn noticed(&self) -> usize {
        self.caught + self.timeout
    }

    const fn viable(&self) -> usize {
        self.noticed() + self.missed
    }

    /// Without a viable mutant nothing was tested, which is a failure.
    const fn reaches(&self, percent: usize) -> bool {
        self.viable() > 0 && self.noticed() * 100 >= percent * self.viable()
    }

    fn line(&self, subject: &str) -> String {
        let percent = 100.0 * self.noticed() as f64 / self.viable().max(1) as f64;
        let verdict = if self.reaches(PERCENT) {
            "ok"
        } else {
            "FAILED"
        };
        format!(
            "{:<10} {:>7} {:>7} {:>7} {:>9}  {percent:.1} %, at least {PERCENT} %: {verdict}",
            subject, self.caught, self.timeout, self.missed, self.unviable
        )
    }
}

#[cfg(test)]
mod tests;
