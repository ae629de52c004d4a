//! Claims, whether they held, and what was measured.

use std::{fs, path::Path, process::ExitCode, time::Instant};

use anyhow::{Context as _, Result};

/// One claim.
struct Row {
    part: &'static str,
    claim: String,
    outcome: Outcome,
}

enum Outcome {
    /// It held; what was measured.
    Passed(String),
    Failed(String),
    /// It was not tried; why.
    Skipped(String),
}

/// All claims so far.
#[derive(Default)]
pub struct Report {
    rows: Vec<Row>,
}

/// The claims of a part.
pub struct Checks<'a> {
    part: &'static str,
    rows: &'a mut Vec<Row>,
}

impl Report {
    /// Runs a part. Its own error is a claim that did not hold, so that the others are tried as well.
    pub fn part(
        &mut self,
        name: &'static str,
        what: &str,
        run: impl FnOnce(&mut Checks<'_>) -> Result<()>,
    ) -> Result<()> {
        println!("\n== {name}: {what}");
        let start = Instant::now();
        let mut checks = Checks {
            part: name,
            rows: &mut self.rows,
        };
        let ended = run(&mut checks);
        if let Err(error) = ended {
            checks.record("it ran to its end", Err(error));
        }
        println!("   ({:.0} s)", start.elapsed().as_secs_f64());
        Ok(())
    }

    /// Whether no claim has failed.
    pub fn is_green(&self) -> bool {
        self.count(|outcome| matches!(outcome, Outcome::Failed(_))) == 0
    }

    fn count(&self, of: impl Fn(&Outcome) -> bool) -> usize {
        self.rows.iter().filter(|row| of(&row.outcome)).count()
    }

    /// Writes the claims so far as a table in Markdown, if somebody wants it.
    pub fn write(&self, path: Option<&Path>) -> Result<()> {
        let Some(path) = path else {
            return Ok(());
        };
        fs::write(path, self.table()).with_context(|| format!("write {}", path.display()))
    }

    fn table(&self) -> String {
        let mut text = "| part | claim | result |\n|---|---|---|\n".to_owned();
        for row in &self.rows {
            let result = match &row.outcome {
                Outcome::Passed(measured) if measured.is_empty() => "passed".to_owned(),
                Outcome::Passed(measured) => measured.clone(),
                Outcome::Failed(seen) => format!("**failed**: {seen}"),
                Outcome::Skipped(why) => format!("skipped: {why}"),
            };
            let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
            text += &format!(
                "| {} | {} | {} |\n",
                row.part,
                cell(&row.claim),
                cell(&result)
            );
        }
        text
    }

    /// Prints the sum, which decides the exit code.
    pub fn close(self) -> ExitCode {
        let passed = self.count(|outcome| matches!(outcome, Outcome::Passed(_)));
        let failed = self.count(|outcome| matches!(outcome, Outcome::Failed(_)));
        let skipped = self.count(|outcome| matches!(outcome, Outcome::Skipped(_)));
        if skipped > 0 {
            println!("\n{skipped} skipped");
        }
        println!("\n{passed} passed, {failed} failed");
        if failed == 0 && passed > 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

impl Checks<'_> {
    /// Records a claim. The text says what was measured, the error what was seen instead.
    pub fn record(&mut self, claim: &str, held: Result<String>) {
        let outcome = match held {
            Ok(measured) => {
                let detail = if measured.is_empty() { "" } else { ": " };
                println!("  ok    {claim}{detail}{measured}");
                Outcome::Passed(measured)
            }
            Err(error) => {
                println!("  FAIL  {claim}: {error:#}");
                Outcome::Failed(format!("{error:#}"))
            }
        };
        self.push(claim, outcome);
    }

    /// Records a claim that was not tried.
    pub fn skip(&mut self, claim: &str, why: &str) {
        println!("  -     {claim}: skipped, {why}");
        self.push(claim, Outcome::Skipped(why.to_owned()));
    }

    fn push(&mut self, claim: &str, outcome: Outcome) {
        self.rows.push(Row {
            part: self.part,
            claim: claim.to_owned(),
            outcome,
        });
    }
}
