//! The dashboard as a picture: its own queries, answered by the Prometheus that scrapes the agent. Grafana draws it
//! in another style.

use std::{
    fmt::Write as _,
    fs,
    path::Path,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::{
    dashboard::{Panel, panels},
    live::Live,
};

/// How long traffic is recorded.
const RECORDED: Duration = Duration::from_secs(150);
/// The time range of rates.
const RANGE: &str = "10s";
/// The distance of points, in seconds.
const STEP: u64 = 2;

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 210.0;
const COLORS: [&str; 8] = [
    "#2a7de1", "#d9822b", "#3c9d4e", "#c2453b", "#8a5cc2", "#8a8f98", "#1fa3a3", "#b0a000",
];

/// A line of a panel: its label, and values by seconds since the beginning.
struct Line {
    label: String,
    points: Vec<(f64, f64)>,
}

/// Makes connections while a sidecar comes, goes and comes back, and the other pod is released and enrolled. Then
/// draws what the panels over time show.
pub fn draw(live: &mut Live, path: &Path) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < RECORDED {
        // Its sidecar is there in the second and in the fourth quarter.
        let quarter = start.elapsed().as_secs() * 4 / RECORDED.as_secs();
        live.set_sidecar(quarter % 2 == 1)?;
        // Enrolled for seven seconds of ten.
        live.set_other(start.elapsed().as_secs() % 10 < 7)?;
        let [_, _] = live.connect()?;
        thread::sleep(Duration::from_millis(100));
    }
    let mut body = String::new();
    let mut number = 0_u32;
    for panel in panels()? {
        if panel.kind != "timeseries" {
            continue;
        }
        let lines = lines(live, &panel)?;
        let (column, row) = (f64::from(number % 2), f64::from(number / 2));
        writeln!(
            body,
            "<g transform=\"translate({:.0} {:.0})\">",
            column * WIDTH,
            row * HEIGHT
        )?;
        body += &chart(&panel, &lines)?;
        body += "</g>\n";
        number += 1;
    }
    let (width, height) = (2.0 * WIDTH, f64::from(number.div_ceil(2)) * HEIGHT);
    let text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{body}</svg>\n"
    );
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

fn lines(live: &Live, panel: &Panel) -> Result<Vec<Line>> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let begin = (now - RECORDED).as_secs_f64();
    let mut lines = Vec::new();
    for target in &panel.targets {
        let found = live
            .prometheus
            .query_range(&target.query(RANGE), RECORDED, STEP)?;
        for series in found {
            let values = series["values"].as_array().context("values")?;
            let point = |pair: &Value| -> Option<(f64, f64)> {
                Some((pair[0].as_f64()? - begin, pair[1].as_str()?.parse().ok()?))
            };
            let points: Vec<(f64, f64)> = values
                .iter()
                .filter_map(point)
                .filter(|(_, y)| y.is_finite())
                .collect();
            if points.iter().any(|(_, y)| *y != 0.0) {
                lines.push(Line {
                    label: label(&target.legend, &series["metric"]),
                    points,
                });
            }
        }
    }
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

fn chart(panel: &Panel, lines: &[Line]) -> Result<String> {
    let (left, top, width, height) = (52.0, 30.0, WIDTH - 72.0, HEIGHT - 82.0);
    let all = || lines.iter().flat_map(|line| &line.points);
    let highest = all().map(|(_, y)| *y).fold(0.0, f64::max);
    let mut text = format!(
        "<text x=\"{left}\" y=\"18\" font-size=\"13\" font-weight=\"bold\">{}</text>\n",
        panel.title
    );
    writeln!(
        text,
        "<rect x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" fill=\"none\" stroke=\"#cccccc\"/>"
    )?;
    writeln!(
        text,
        "<text x=\"{}\" y=\"18\" text-anchor=\"end\" fill=\"#666666\">{} s</text>",
        left + width,
        RECORDED.as_secs()
    )?;
    if lines.is_empty() {
        writeln!(
            text,
            "<text x=\"{}\" y=\"{}\" fill=\"#666666\">nothing happened</text>",
            left + 8.0,
            top + 20.0
        )?;
        return Ok(text);
    }
    writeln!(
        text,
        "<text x=\"{x}\" y=\"{}\" text-anchor=\"end\">{highest:.3}</text><text x=\"{x}\" y=\"{}\" text-anchor=\"end\">0</text>",
        top + 10.0,
        top + height,
        x = left - 5.0
    )?;
    let seconds = RECORDED.as_secs_f64();
    let (mut x, mut y) = (left, top + height + 18.0);
    for (line, color) in lines.iter().zip(COLORS.iter().cycle()) {
        let place = |(at, value): &(f64, f64)| {
            let across = left + at / seconds * width;
            format!("{across:.1},{:.1}", top + height - value / highest * height)
        };
        let points: Vec<String> = line.points.iter().map(place).collect();
        writeln!(
            text,
            "<polyline fill=\"none\" stroke=\"{color}\" stroke-width=\"1.6\" points=\"{}\"/>",
            points.join(" ")
        )?;
        let room = 7.0 * line.label.len() as f64 + 14.0;
        if x + room > WIDTH && x > left {
            (x, y) = (left, y + 14.0);
        }
        writeln!(
            text,
            "<text x=\"{x:.0}\" y=\"{y:.0}\" fill=\"{color}\">{}</text>",
            line.label
        )?;
        x += room;
    }
    Ok(text)
}
