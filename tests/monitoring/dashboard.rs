//! `deploy/monitoring/dashboard.json`: what its panels ask Prometheus for.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use lab::deploy::checkout;
use serde::Deserialize;

use crate::{
    alerts::series_in,
    live::Live,
    prometheus::{RANGE, wait},
};

#[derive(Debug, Deserialize)]
struct Dashboard {
    panels: Vec<Panel>,
}

/// A panel.
#[derive(Debug, Deserialize)]
pub struct Panel {
    pub title: String,
    #[serde(rename = "type")]
    pub kind: Kind,
    #[serde(rename = "gridPos")]
    pub grid: Grid,
    #[serde(rename = "fieldConfig")]
    pub field: Field,
    pub targets: Vec<Target>,
}

/// How a panel shows what it found.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Lines over time.
    Timeseries,
    /// Numbers.
    Stat,
    /// Rows.
    Table,
}

/// Where a panel is, in cells of the dashboard's grid.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Grid {
    pub x: u32,
    pub y: u32,
    pub w: u32,
    pub h: u32,
}

/// How values are shown.
#[derive(Debug, Deserialize)]
pub struct Field {
    pub defaults: Defaults,
}

#[derive(Debug, Deserialize)]
pub struct Defaults {
    pub unit: Option<String>,
    pub max: Option<f64>,
    pub thresholds: Option<Thresholds>,
}

#[derive(Debug, Deserialize)]
pub struct Thresholds {
    pub steps: Vec<Step>,
}

/// The color of values from this one on.
#[derive(Debug, Deserialize)]
pub struct Step {
    pub color: String,
    pub value: Option<f64>,
}

/// A query of a panel.
#[derive(Debug, Deserialize)]
pub struct Target {
    expr: String,
    #[serde(rename = "legendFormat")]
    pub legend: String,
}

impl Target {
    /// The query as Grafana fills it in for all instances, with this range of rates.
    pub fn query(&self, range: &str) -> String {
        let ranged = self.expr.replace("$__rate_interval", range);
        ranged.replace("$instance", ".*")
    }
}

/// All panels.
pub fn panels() -> Result<Vec<Panel>> {
    let text = fs::read_to_string(checkout("deploy/monitoring/dashboard.json"))?;
    let dashboard: Dashboard = serde_json::from_str(&text)?;
    Ok(dashboard.panels)
}

/// Every query of every panel names metrics of the page, and Prometheus has an answer to it that is not empty.
pub fn shows_data(live: &mut Live) -> Result<()> {
    let panels = panels()?;
    ensure!(!panels.is_empty());
    let page = live.page()?;
    for panel in panels {
        let title = &panel.title;
        ensure!(!panel.targets.is_empty(), "{title}");
        for target in panel.targets {
            let query = target.query(RANGE);
            ensure!(!query.contains('$'), "{title}: {query}");
            for series in series_in(&query) {
                ensure!(
                    page.series.contains(series),
                    "{title}: {series} is not on the page"
                );
            }
            wait(&format!("{title}: nothing for {query}"), || {
                let series = live.prometheus.query(&query)?;
                Ok((!series.is_empty()).then_some(()))
            })
            .with_context(|| format!("panel {title}"))?;
        }
    }
    Ok(())
}
