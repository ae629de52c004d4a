//! The metrics page in Prometheus' older text format, in parts.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write as _,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use lab::command::run_words;

use crate::{
    live::Live,
    prometheus::{tool, wait},
};

/// What the page says of one metric.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Described {
    pub kind: String,
    pub help: String,
    pub labels: BTreeSet<String>,
}

/// A page.
#[derive(Debug)]
pub struct Page {
    pub text: String,
    /// By the name that the page describes.
    pub metrics: BTreeMap<String, Described>,
    /// Names of the series, as expressions use them: those of a histogram have suffixes.
    pub series: BTreeSet<String>,
}

impl Page {
    /// Gets it from an agent.
    pub fn get(address: &str) -> Result<Self> {
        let text = run_words(&["curl", "-sSf", &format!("http://{address}/metrics")])?;
        Self::parse(text)
    }

    fn parse(text: String) -> Result<Self> {
        let mut metrics: BTreeMap<String, Described> = BTreeMap::new();
        let mut series = BTreeSet::new();
        for line in text.lines() {
            let words: Vec<&str> = line.splitn(4, ' ').collect();
            match words[..] {
                ["#", "HELP", name, help] => {
                    help.clone_into(&mut metrics.entry(name.to_owned()).or_default().help);
                }
                ["#", "TYPE", name, kind] => {
                    kind.clone_into(&mut metrics.entry(name.to_owned()).or_default().kind);
                }
                _ => {
                    let (name, labels) = sample(line).with_context(|| line.to_owned())?;
                    let described = metrics
                        .iter_mut()
                        .find(|(of, it)| is_of(name, of, &it.kind));
                    let (_, described) =
                        described.with_context(|| format!("{name} is not described"))?;
                    let own = labels.into_iter().filter(|label| *label != "le");
                    described.labels.extend(own.map(str::to_owned));
                    series.insert(name.to_owned());
                }
            }
        }
        Ok(Self {
            text,
            metrics,
            series,
        })
    }
}

/// Name and labels of a sample. No label of sidetrack has a comma or a brace in its value.
fn sample(line: &str) -> Option<(&str, Vec<&str>)> {
    let (series, _value) = line.rsplit_once(' ')?;
    let Some((name, labels)) = series.split_once('{') else {
        return Some((series, Vec::new()));
    };
    let labels = labels.strip_suffix('}')?.split(',');
    let names = labels.map(|label| Some(label.split_once('=')?.0));
    Some((name, names.collect::<Option<_>>()?))
}

fn is_of(series: &str, metric: &str, kind: &str) -> bool {
    let suffixes: &[&str] = match kind {
        "histogram" => &["_bucket", "_sum", "_count"],
        _ => &[""],
    };
    let rest = series.strip_prefix(metric);
    rest.is_some_and(|rest| suffixes.contains(&rest))
}

/// `promtool check metrics` parses the page and names what breaks the conventions of Prometheus.
pub fn promtool_agrees(live: &mut Live) -> Result<()> {
    let page = live.page()?;
    ensure!(!page.metrics.is_empty(), "{}", page.text);
    let lint = promtool_says(&page.text)?;
    ensure!(lint.is_empty(), "{lint}");
    // It would have named a mistake.
    let wrong = page
        .text
        .replace("sidetrack_repairs_total", "sidetrack_repairs");
    let lint = promtool_says(&wrong)?;
    ensure!(lint.contains("sidetrack_repairs"), "{lint}");
    Ok(())
}

/// Of two enrolled pods the first has series, and the other one is counted.
pub fn pods_are_bounded(live: &mut Live) -> Result<()> {
    let refused =
        "sidetrack_pod_connections_total{namespace=\"test\",pod=\"app\",result=\"refused\"} 2";
    let page = wait(
        "the refused connections of the pod are not on the page",
        || {
            let page = live.page()?;
            Ok(page
                .text
                .lines()
                .any(|line| line == refused)
                .then_some(page))
        },
    )?;
    let lines = || page.text.lines();
    ensure!(
        lines().any(|line| line == "sidetrack_pods_left_out 1"),
        "{}",
        page.text
    );
    let of_pods: Vec<&str> = lines().filter(|line| line.contains("pod=\"")).collect();
    ensure!(of_pods.len() == 10, "{of_pods:?}");
    let first = of_pods
        .iter()
        .all(|line| line.contains("namespace=\"test\",pod=\"app\""));
    ensure!(first, "{of_pods:?}");
    Ok(())
}

fn promtool_says(page: &str) -> Result<String> {
    let mut child = Command::new(tool("promtool")?)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    child
        .stdin
        .take()
        .context("its stdin")?
        .write_all(page.as_bytes())?;
    let output = child.wait_with_output()?;
    let said = [output.stdout, output.stderr].concat();
    Ok(String::from_utf8_lossy(&said).into_owned())
}
