//! `deploy/monitoring/alerts.yaml`: its rules, with promtool and in a running Prometheus.

use std::{collections::BTreeSet, fs};

use anyhow::{Context as _, Result, ensure};
use lab::{command::run_words, deploy::checkout};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    live::Live,
    prometheus::{alerts_path, tool, wait},
};

/// A rule, as far as tests look at it.
#[derive(Debug, Deserialize)]
pub struct Rule {
    pub alert: String,
    pub expr: String,
    pub annotations: Annotations,
}

/// What an alert says.
#[derive(Debug, Deserialize)]
pub struct Annotations {
    pub summary: String,
    pub description: String,
    pub runbook: String,
}

/// The rules that users install.
pub fn rules() -> Result<Vec<Rule>> {
    #[derive(Deserialize)]
    struct Rules {
        groups: [Group; 1],
    }
    #[derive(Deserialize)]
    struct Group {
        rules: Vec<Rule>,
    }
    let text = fs::read_to_string(alerts_path())?;
    let Rules { groups: [group] } = serde_saphyr::from_str(&text)?;
    Ok(group.rules)
}

/// `promtool check rules` accepts the file, and `promtool test rules` finds each alert firing when it should, and
/// not before. Each names the metrics of the page.
pub fn promtool_agrees(live: &mut Live) -> Result<()> {
    let promtool = tool("promtool")?;
    let promtool = promtool.to_str().context("UTF-8")?;
    let path = alerts_path();
    let path = path.to_str().context("UTF-8")?;
    run_words(&[promtool, "check", "rules", path])?;
    let text = fs::read_to_string(checkout("tests/monitoring/alerts_test.yaml"))?;
    let dir = tempfile::tempdir()?;
    let tests = dir.path().join("tests.yaml");
    fs::write(&tests, text.replace("ALERTS", path))?;
    run_words(&[promtool, "test", "rules", tests.to_str().context("UTF-8")?])?;
    let cases: Value = serde_saphyr::from_str(&text)?;
    let tested = firing_cases(&cases);
    let page = live.page()?;
    for rule in rules()? {
        let name = &rule.alert;
        ensure!(
            tested.contains(name),
            "{name} has no test in which it fires"
        );
        for series in series_in(&rule.expr) {
            ensure!(
                page.series.contains(series),
                "{name}: {series} is not on the page"
            );
        }
        let Annotations {
            summary,
            description,
            runbook,
        } = &rule.annotations;
        ensure!(
            !summary.is_empty() && description.contains("kubectl"),
            "{name}"
        );
        ensure!(
            runbook.starts_with("docs/troubleshoot.md"),
            "{name}: {runbook}"
        );
    }
    Ok(())
}

/// Alerts that fire in some case.
fn firing_cases(cases: &Value) -> BTreeSet<String> {
    let tests = cases["tests"].as_array().into_iter().flatten();
    let checks = tests.flat_map(|test| test["alert_rule_test"].as_array().into_iter().flatten());
    let fires = |check: &&Value| {
        check["exp_alerts"]
            .as_array()
            .is_some_and(|it| !it.is_empty())
    };
    let names = checks
        .filter(fires)
        .filter_map(|check| check["alertname"].as_str());
    names.map(str::to_owned).collect()
}

/// The series of sidetrack that an expression names.
pub fn series_in(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("sidetrack_"))
}

/// In Prometheus: refused connections raise an alert, and so does an agent that is gone.
pub fn fire(live: &mut Live) -> Result<()> {
    let before = names(&live.prometheus.firing()?);
    ensure!(!before.contains("SidetrackAgentDown"), "{before:?}");
    let refusals = wait("no alert for refused connections", || {
        live.refused()?;
        let firing = live.prometheus.firing()?.into_iter();
        let ours: Vec<Value> = firing
            .filter(|it| it["labels"]["alertname"] == "SidetrackRefusals")
            .collect();
        Ok((ours.len() == 2).then_some(ours))
    })?;
    // Outbound and inbound are refused at different places.
    let reasons = refusals
        .iter()
        .filter_map(|it| it["labels"]["reason"].as_str());
    let reasons: BTreeSet<&str> = reasons.collect();
    ensure!(
        reasons == ["no-listener", "sidecar-refused"].into(),
        "{refusals:?}"
    );
    let annotations = &refusals[0]["annotations"];
    let text = annotations["description"]
        .as_str()
        .context("a description")?;
    ensure!(text.contains("exec AGENT_POD -- sidetrack pods"), "{text}");
    ensure!(annotations["runbook"] == "docs/troubleshoot.md#refused-connections");
    let others = names(&live.prometheus.firing()?);
    ensure!(
        others.contains("SidetrackSidecarNotListening"),
        "{others:?}"
    );

    // What is refused no more raises no alert.
    wait("the alert continues without refused connections", || {
        let firing = names(&live.prometheus.firing()?);
        Ok((!firing.contains("SidetrackRefusals")).then_some(()))
    })?;
    drop(live.agent.take());
    wait("no alert for an agent that is gone", || {
        let firing = names(&live.prometheus.firing()?);
        Ok(firing.contains("SidetrackAgentDown").then_some(()))
    })?;
    Ok(())
}

fn names(alerts: &[Value]) -> BTreeSet<String> {
    let names = alerts
        .iter()
        .filter_map(|it| it["labels"]["alertname"].as_str());
    names.map(str::to_owned).collect()
}
