//! Debian's Prometheus and promtool.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, bail, ensure};
use lab::{
    command::{Process, run_words},
    deploy::checkout,
};
use serde_json::Value;

use crate::live::free_address;

/// How long anything that Prometheus is asked for may take.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(20);
/// What replaces the time ranges of alerts and panels, so that a test needs seconds.
pub const RANGE: &str = "5s";

/// A running Prometheus; dropping it kills it.
#[derive(Debug)]
pub struct Prometheus {
    _process: Process,
    address: String,
}

impl Prometheus {
    /// Starts one that scrapes an agent twice a second. Its alerts are those of `deploy/monitoring`, with short ranges.
    pub fn start(dir: &Path, agent: &str) -> Result<Self> {
        let rules = dir.join("alerts.yaml");
        fs::write(&rules, shortened(&fs::read_to_string(alerts_path())?))?;
        let config = dir.join("prometheus.yaml");
        let text = serde_json::json!({
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [rules],
            "scrape_configs": [{
                "job_name": "sidetrack",
                "honor_labels": true,
                "static_configs": [{"targets": [agent]}],
            }],
        });
        fs::write(&config, text.to_string())?;
        let address = free_address()?;
        let log = File::create(dir.join("prometheus.log"))?;
        let mut command = Command::new(tool("prometheus")?);
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                dir.join("tsdb").display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let started = Self {
            _process: Process::start(&mut command)?,
            address,
        };
        wait("Prometheus does not scrape the agent", || {
            let up = started.query("up").unwrap_or_default();
            Ok(up.iter().any(|it| it["value"][1] == "1").then_some(()))
        })
        .with_context(|| {
            let targets = started.get("targets");
            let log = fs::read_to_string(dir.join("prometheus.log"));
            format!("{targets:?}\n{}", log.unwrap_or_default())
        })?;
        Ok(started)
    }

    /// What an expression gives now: a list of series.
    pub fn query(&self, expression: &str) -> Result<Vec<Value>> {
        self.ask("query", expression, &[])
    }

    /// What an expression gave over some time until now, at a point every `step` seconds.
    pub fn query_range(&self, expression: &str, over: Duration, step: u64) -> Result<Vec<Value>> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let range = [
            format!("start={}", (now - over).as_secs()),
            format!("end={}", now.as_secs()),
            format!("step={step}"),
        ];
        self.ask("query_range", expression, &range)
    }

    fn ask(&self, path: &str, expression: &str, more: &[String]) -> Result<Vec<Value>> {
        let url = format!("http://{}/api/v1/{path}", self.address);
        let query = format!("query={expression}");
        let mut words = vec!["curl", "-sSG", &url, "--data-urlencode", &query];
        for parameter in more {
            words.extend(["-d", parameter]);
        }
        let answer: Value = serde_json::from_str(&run_words(&words)?)?;
        ensure!(answer["status"] == "success", "{expression}: {answer}");
        let series = answer["data"]["result"].as_array();
        series
            .cloned()
            .with_context(|| format!("{expression}: {answer}"))
    }

    fn get(&self, path: &str) -> Result<Value> {
        let url = format!("http://{}/api/v1/{path}", self.address);
        Ok(serde_json::from_str(&run_words(&["curl", "-sS", &url])?)?)
    }

    /// The alerts that fire now.
    pub fn firing(&self) -> Result<Vec<Value>> {
        let mut answer = self.get("alerts")?;
        let alerts = answer["data"]["alerts"].take();
        let alerts: Vec<Value> = serde_json::from_value(alerts).context("a list of alerts")?;
        Ok(alerts
            .into_iter()
            .filter(|it| it["state"] == "firing")
            .collect())
    }
}

/// The same rules with [`RANGE`] instead of every range, and alerts that wait a second.
fn shortened(rules: &str) -> String {
    let mut text = String::new();
    for line in rules.lines() {
        let line = match line.split_once("for: ") {
            Some((indent, _)) if indent.trim().is_empty() => format!("{indent}for: 1s"),
            _ => line
                .replace("[5m]", &format!("[{RANGE}]"))
                .replace("[30m]", &format!("[{RANGE}]")),
        };
        text += &line;
        text.push('\n');
    }
    text
}

/// The rule file that users install.
pub fn alerts_path() -> PathBuf {
    checkout("deploy/monitoring/alerts.yaml")
}

/// A program of Debian's package.
pub fn tool(name: &str) -> Result<PathBuf> {
    let places = [
        checkout("target/tools/prometheus/usr/bin"),
        "/usr/bin".into(),
    ];
    let found = places.iter().map(|place| place.join(name));
    match found.into_iter().find(|path| path.exists()) {
        Some(path) => Ok(path),
        None => bail!("{name} is missing: run `cargo xtask setup`"),
    }
}

/// Waits until something is there.
pub fn wait<T>(otherwise: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        ensure!(start.elapsed() < WAIT_TIMEOUT, "{otherwise}");
        thread::sleep(Duration::from_millis(200));
    }
}
