//! The dashboard as a picture: its own queries, answered by the Prometheus that scrapes the agent. Grafana draws it
//! in another style.

mod panel;

use std::{
    path::Path,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};
use plotters::prelude::*;
use serde_json::Value;

use crate::{
    dashboard::{Kind, Panel, panels},
    live::Live,
};

use self::panel::{Area, Line};

/// How long traffic is recorded.
const RECORDED: Duration = Duration::from_secs(150);
/// The time range of rates.
const RANGE: &str = "10s";
/// The distance of points, in seconds.
const STEP: u64 = 2;
/// The dashboard's grid has so many columns.
const COLUMNS: u32 = 24;
/// The width and height of its cells, in pixels.
const CELL: (u32, u32) = (44, 26);
const AROUND: RGBColor = RGBColor(244, 245, 245);

/// Makes connections while a sidecar comes and goes, the other pod is released and enrolled, and somebody removes a
/// pin. Then draws what the panels show.
pub fn draw(live: &mut Live, path: &Path) -> Result<()> {
    let start = Instant::now();
    let mut is_pinned = true;
    while start.elapsed() < RECORDED {
        // Its sidecar is there in the first and in the third quarter.
        let quarter = start.elapsed().as_secs() * 4 / RECORDED.as_secs();
        live.set_sidecar(quarter.is_multiple_of(2))?;
        // Enrolled for seven seconds of ten.
        live.set_other(start.elapsed().as_secs() % 10 < 7)?;
        if quarter == 2 && is_pinned {
            live.unpin()?;
            is_pinned = false;
        }
        let [_, _] = live.connect()?;
        thread::sleep(Duration::from_millis(100));
    }
    let panels = panels()?;
    let bottom = panels.iter().map(|panel| panel.grid.y + panel.grid.h);
    let size = (COLUMNS * CELL.0, bottom.max().unwrap_or(0) * CELL.1);
    let root = SVGBackend::new(path, size).into_drawing_area();
    root.fill(&AROUND)?;
    for panel in panels {
        let grid = panel.grid;
        let at = (grid.x * CELL.0, grid.y * CELL.1);
        let area = root.clone().shrink(at, (grid.w * CELL.0, grid.h * CELL.1));
        one(live, &panel, &area).with_context(|| format!("draw {:?}", panel.title))?;
    }
    root.present()
        .with_context(|| format!("write {}", path.display()))
}

fn one(live: &Live, panel: &Panel, area: &Area<'_>) -> Result<()> {
    match panel.kind {
        Kind::Timeseries => panel::chart(panel, area, &lines(live, panel)?, RECORDED),
        Kind::Stat => panel::stat(panel, area, &now(live, panel)?),
        Kind::Table => panel::table(panel, area, &now(live, panel)?),
    }
}

/// The series of a panel with their labels, as they are now.
fn now(live: &Live, panel: &Panel) -> Result<Vec<(String, Value)>> {
    let mut found = Vec::new();
    for target in &panel.targets {
        let series = live.prometheus.query(&target.query(RANGE))?;
        found.extend(series.into_iter().map(|series| {
            let label = label(&target.legend, &series["metric"]);
            (label, series)
        }));
    }
    Ok(found)
}

/// The series of a panel over time. What was 0 all the time is omitted.
fn lines(live: &Live, panel: &Panel) -> Result<Vec<Line>> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let begin = (now - RECORDED).as_secs_f64();
    let mut lines = Vec::new();
    for target in &panel.targets {
        let query = target.query(RANGE);
        for series in live.prometheus.query_range(&query, RECORDED, STEP)? {
            let values = series["values"].as_array().context("values")?;
            let point = |pair: &Value| -> Option<(f64, f64)> {
                Some((pair[0].as_f64()? - begin, pair[1].as_str()?.parse().ok()?))
            };
            let points: Vec<(f64, f64)> = values.iter().filter_map(point).collect();
            if points.iter().any(|(_, y)| y.is_finite() && *y != 0.0) {
                let label = label(&target.legend, &series["metric"]);
                lines.push(Line { label, points });
            }
        }
    }
    lines.sort_by(|one, other| one.label.cmp(&other.label));
    Ok(lines)
}

/// A legend's text with the labels that it names.
fn label(legend: &str, labels: &Value) -> String {
    let mut text = legend.to_owned();
    for (name, value) in labels.as_object().into_iter().flatten() {
        text = text.replace(
            &format!("{{{{{name}}}}}"),
            value.as_str().unwrap_or_default(),
        );
    }
    text
}
