//! Panels as SVG.

use std::{collections::BTreeSet, fmt::Write as _, time::Duration};

use anyhow::Result;
use serde_json::Value;

use crate::dashboard::Panel;

use super::axis;

const COLORS: [&str; 8] = [
    "#2a7de1", "#d9822b", "#3c9d4e", "#c2453b", "#8a5cc2", "#5f6670", "#1fa3a3", "#b0a000",
];

/// Where a panel is, in pixels.
pub struct Place {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
}

/// A line of a chart: its label, and values by seconds since the beginning.
pub struct Line {
    pub label: String,
    pub points: Vec<(f64, f64)>,
}

/// Lines over time.
pub fn chart(panel: &Panel, place: &Place, lines: &[Line], recorded: Duration) -> Result<String> {
    let (left, top, seconds) = (58.0, 32.0, recorded.as_secs_f64());
    let (width, height) = (place.width - left - 20.0, place.height - top - 56.0);
    let mut text = frame(panel, place)?;
    let values = lines.iter().flat_map(|line| &line.points);
    let highest = values.map(|(_, y)| *y).filter(|y| y.is_finite());
    let highest = highest.fold(0.0, f64::max);
    if lines.is_empty() {
        text += &note(place, "no value above 0");
        text += "</g>\n";
        return Ok(text);
    }
    let unit = panel.field.defaults.unit.as_deref().unwrap_or_default();
    let end = panel.field.defaults.max.unwrap_or(axis::end(highest));
    for part in [0.0, 0.5, 1.0] {
        let y = top + height * (1.0 - part);
        writeln!(
            text,
            "<line x1=\"{left}\" x2=\"{:.0}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#dddddd\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#666666\">{}</text>",
            left + width,
            left - 6.0,
            y + 4.0,
            axis::text(end * part, unit)
        )?;
    }
    for part in [0.0, 1.0] {
        writeln!(
            text,
            "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#666666\">{:.0} s</text>",
            left + width * part,
            top + height + 14.0,
            seconds * part
        )?;
    }
    let (mut x, mut y) = (left, top + height + 30.0);
    for (line, color) in lines.iter().zip(COLORS.iter().cycle()) {
        // Where there is no value there is a gap.
        for points in line.points.split(|(_, value)| !value.is_finite()) {
            let at = |(second, value): &(f64, f64)| {
                let across = left + second.clamp(0.0, seconds) / seconds * width;
                format!("{across:.1},{:.1}", top + height * (1.0 - value / end))
            };
            let points: Vec<String> = points.iter().map(at).collect();
            writeln!(
                text,
                "<polyline fill=\"none\" stroke=\"{color}\" stroke-width=\"1.6\" points=\"{}\"/>",
                points.join(" ")
            )?;
        }
        let room = 6.2 * line.label.len() as f64 + 18.0;
        if x + room > place.width && x > left {
            (x, y) = (left, y + 14.0);
        }
        writeln!(
            text,
            "<text x=\"{x:.0}\" y=\"{y:.0}\" fill=\"{color}\">{}</text>",
            line.label
        )?;
        x += room;
    }
    text += "</g>\n";
    Ok(text)
}

/// Numbers, in the color of the highest threshold that they reach.
pub fn stat(panel: &Panel, place: &Place, series: &[(String, Value)]) -> Result<String> {
    let mut text = frame(panel, place)?;
    let part = place.width / series.len().max(1) as f64;
    for ((label, series), number) in series.iter().zip(0_u16..) {
        let value = value(series);
        let steps = panel.field.defaults.thresholds.iter();
        let steps = steps.flat_map(|thresholds| &thresholds.steps);
        let mut reached = steps.filter(|step| step.value.is_none_or(|from| value >= from));
        let color = match reached.next_back().map(|step| step.color.as_str()) {
            Some("red") => "#c2453b",
            Some("orange") => "#d9822b",
            _ => "#3c9d4e",
        };
        let middle = part * (f64::from(number) + 0.5);
        writeln!(
            text,
            "<text x=\"{middle:.0}\" y=\"{:.0}\" text-anchor=\"middle\" font-size=\"30\" fill=\"{color}\">{}</text><text x=\"{middle:.0}\" y=\"{:.0}\" text-anchor=\"middle\" fill=\"#666666\">{label}</text>",
            place.height * 0.66,
            axis::text(value, ""),
            place.height * 0.84
        )?;
    }
    text += "</g>\n";
    Ok(text)
}

/// A row for each series, a column for each label.
pub fn table(panel: &Panel, place: &Place, series: &[(String, Value)]) -> Result<String> {
    let mut text = frame(panel, place)?;
    let labels = series.iter().filter_map(|(_, series)| {
        let labels = series["metric"].as_object()?;
        Some(labels.keys().filter(|label| *label != "__name__"))
    });
    let columns: BTreeSet<&String> = labels.flatten().collect();
    let part = place.width / (columns.len() + 1) as f64;
    let headings = columns.iter().map(|column| column.as_str());
    let mut rows: Vec<Vec<String>> = vec![headings.chain(["Value"]).map(str::to_owned).collect()];
    for (_, series) in series {
        let cell = |column: &&String| {
            let text = series["metric"][column.as_str()].as_str();
            text.unwrap_or_default().to_owned()
        };
        let mut row: Vec<String> = columns.iter().map(cell).collect();
        row.push(axis::text(value(series), ""));
        rows.push(row);
    }
    for (row, line) in rows.iter().zip(0_u16..) {
        for (cell, column) in row.iter().zip(0_u16..) {
            writeln!(
                text,
                "<text x=\"{:.0}\" y=\"{:.0}\" fill=\"{}\">{cell}</text>",
                part * f64::from(column) + 14.0,
                46.0 + 18.0 * f64::from(line),
                if line == 0 { "#2a7de1" } else { "#222222" }
            )?;
        }
    }
    if series.is_empty() {
        text += &note(place, "none");
    }
    text += "</g>\n";
    Ok(text)
}

/// The group that holds a panel, with its title.
fn frame(panel: &Panel, place: &Place) -> Result<String> {
    let mut text = String::new();
    writeln!(
        text,
        "<g transform=\"translate({:.0} {:.0})\"><rect x=\"4\" y=\"4\" width=\"{:.0}\" height=\"{:.0}\" fill=\"#ffffff\" stroke=\"#d8d9da\" rx=\"2\"/><text x=\"14\" y=\"22\" font-size=\"12\" font-weight=\"bold\">{}</text>",
        place.x,
        place.y,
        place.width - 8.0,
        place.height - 8.0,
        panel.title
    )?;
    Ok(text)
}

fn note(place: &Place, text: &str) -> String {
    format!(
        "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\" fill=\"#888888\">{text}</text>\n",
        place.width / 2.0,
        place.height / 2.0
    )
}

/// The value of a series at one time; NaN if Prometheus gave none.
fn value(series: &Value) -> f64 {
    let text = series["value"][1].as_str().unwrap_or_default();
    text.parse().unwrap_or(f64::NAN)
}
