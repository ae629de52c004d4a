//! The tables of `docs/failures.md`.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lab::{agent::Places, command::run, deploy::checkout, wait::eventually};

/// How much later than its row says something may be: the machine may be busy.
const SLACK: Duration = Duration::from_secs(15);

/// The time since a failure.
pub struct Clock(Instant);

impl Clock {
    pub fn start() -> Self {
        Self(Instant::now())
    }
}

/// `where`, what it says, and within how many seconds.
struct Row {
    place: String,
    words: String,
    within: Duration,
}

/// Waits until the sidecar was seen to be up.
pub fn wait_up(places: &Places) -> Result<()> {
    eventually(SLACK, || {
        let pod = places.pod("test/app")?.context("the pod")?;
        ensure!(pod["sidecar"]["state"] == "up", "{pod}");
        Ok(())
    })
}

/// Checks every row below a heading, and shows when it was so.
pub fn says(
    clock: &Clock,
    heading: &str,
    places: &Places,
    metrics: Option<&str>,
    name: &str,
) -> Result<()> {
    for row in rows(heading)? {
        let words = row.words.replace("NAME", name);
        eventually(row.within + SLACK, || {
            let said = said(&row.place, places, metrics)?;
            ensure!(
                said.contains(&words),
                "{} does not say {words:?}: {said}",
                row.place
            );
            Ok(())
        })
        .with_context(|| places.log())?;
        let after = clock.0.elapsed().as_secs_f64();
        eprintln!("{:.1} s  {}: {words}", after, row.place);
    }
    Ok(())
}

/// What a place says now.
fn said(place: &str, places: &Places, metrics: Option<&str>) -> Result<String> {
    let words: Vec<&str> = place.split(' ').collect();
    match words.as_slice() {
        ["sidetrack", words @ ..] => {
            let output = places.output(words)?;
            let code = output.status.code().context("an exit code")?;
            let [out, errors] = [output.stdout, output.stderr]
                .map(|text| String::from_utf8_lossy(&text).into_owned());
            Ok(format!("{out}{errors}exit code {code}\n"))
        }
        ["metric"] => run(&format!(
            "curl -sf --max-time 3 http://{}/metrics",
            metrics.context("metrics")?
        )),
        ["log"] => Ok(places.log()),
        ["alert"] => Ok(fs::read_to_string(checkout(
            "deploy/monitoring/alerts.yaml",
        ))?),
        _ => anyhow::bail!("{place:?} is no place of docs/failures.md"),
    }
}

/// The rows below a heading.
fn rows(heading: &str) -> Result<Vec<Row>> {
    let path = checkout("docs/failures.md");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let heading = format!("## {heading}\n");
    let (_, section) = text.split_once(&heading).with_context(|| heading.clone())?;
    let section = section.split("\n## ").next().unwrap_or_default();
    let lines = section.lines().filter(|line| line.starts_with("| "));
    let rows: Result<Vec<Row>> = lines.skip(1).map(row).collect();
    let rows = rows.with_context(|| heading.clone())?;
    ensure!(!rows.is_empty(), "no rows below {heading:?}");
    Ok(rows)
}

fn row(line: &str) -> Result<Row> {
    let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
    let [place, words, within] = cells.as_slice() else {
        anyhow::bail!("{line:?} has not three cells");
    };
    let plain = |text: &str| text.trim_matches('`').to_owned();
    let seconds = within.strip_suffix(" s").context("seconds")?;
    Ok(Row {
        place: plain(place),
        words: plain(words),
        within: Duration::from_secs_f64(seconds.parse()?),
    })
}
