//! Panels.

use std::{collections::BTreeSet, time::Duration};

use anyhow::Result;
use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};
use serde_json::Value;

use crate::dashboard::Panel;

/// Where a panel is drawn.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const ORANGE: RGBColor = RGBColor(217, 130, 43);
const RED: RGBColor = RGBColor(194, 69, 59);
const GREEN: RGBColor = RGBColor(60, 157, 78);
const BLUE: RGBColor = RGBColor(42, 125, 225);
const GRAY: RGBColor = RGBColor(102, 102, 102);
const EDGE: RGBColor = RGBColor(216, 217, 218);
const COLORS: [RGBColor; 8] = [
    BLUE,
    ORANGE,
    GREEN,
    RED,
    RGBColor(138, 92, 194),
    RGBColor(95, 102, 112),
    RGBColor(31, 163, 163),
    RGBColor(176, 160, 0),
];

// In pixels.
const LEGEND: i32 = 44;
const LEGEND_LINE: i32 = 14;
const TABLE_LINE: usize = 18;

/// A line of a chart: its label, and values by seconds since the beginning.
pub struct Line {
    pub label: String,
    pub points: Vec<(f64, f64)>,
}

/// Lines over time.
pub fn chart(panel: &Panel, area: &Area<'_>, lines: &[Line], recorded: Duration) -> Result<()> {
    let area = frame(panel, area)?;
    if lines.is_empty() {
        return note(&area, "no value above 0");
    }
    let values = lines.iter().flat_map(|line| &line.points);
    let values = values.map(|(_, y)| *y).filter(|y| y.is_finite());
    let end = panel.field.defaults.max;
    let end = end.unwrap_or_else(|| values.fold(0.0, f64::max));
    let unit = panel.field.defaults.unit.as_deref().unwrap_or_default();
    let height = i32::try_from(area.dim_in_pixel().1)?;
    let (above, below) = area.split_vertically(height - LEGEND);
    let mut chart = ChartBuilder::on(&above)
        .margin_top(8)
        .margin_right(16)
        .x_label_area_size(18)
        .y_label_area_size(52)
        .build_cartesian_2d(0.0..recorded.as_secs_f64(), 0.0..end)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(EDGE)
        .axis_style(EDGE)
        .label_style(style(&area, 13, &GRAY))
        .x_labels(4)
        .y_labels(4)
        .x_label_formatter(&|second| format!("{second:.0} s"))
        .y_label_formatter(&|value| text(*value, unit))
        .draw()?;
    let (mut x, mut y) = (0, 4);
    let width = i32::try_from(area.dim_in_pixel().0)?;
    for (line, color) in lines.iter().zip(COLORS.iter().cycle()) {
        // Where there is no value there is a gap.
        for points in line.points.split(|(_, value)| !value.is_finite()) {
            chart.draw_series(LineSeries::new(points.iter().copied(), color))?;
        }
        let label = style(&area, 13, color);
        let room = i32::try_from(area.estimate_text_size(&line.label, &label)?.0)? + 16;
        if x + room > width && x > 0 {
            (x, y) = (0, y + LEGEND_LINE);
        }
        below.draw_text(&line.label, &label, (x, y))?;
        x += room;
    }
    Ok(())
}

/// Numbers, in the color of the highest threshold that they reach.
pub fn stat(panel: &Panel, area: &Area<'_>, series: &[(String, Value)]) -> Result<()> {
    let area = frame(panel, area)?;
    let parts = area.split_evenly((1, series.len().max(1)));
    for ((label, series), part) in series.iter().zip(parts) {
        let value = value(series);
        let steps = panel.field.defaults.thresholds.iter();
        let steps = steps.flat_map(|thresholds| &thresholds.steps);
        let mut reached = steps.filter(|step| step.value.is_none_or(|from| value >= from));
        let color = match reached.next_back().map(|step| step.color.as_str()) {
            Some("red") => &RED,
            Some("orange") => &ORANGE,
            _ => &GREEN,
        };
        let (middle, height) = middle(&part)?;
        let number = centered(style(&part, 36, color));
        part.draw_text(&text(value, ""), &number, (middle, height))?;
        let label_style = centered(style(&part, 13, &GRAY));
        part.draw_text(label, &label_style, (middle, height + 26))?;
    }
    Ok(())
}

/// A row for each series, a column for each label.
pub fn table(panel: &Panel, area: &Area<'_>, series: &[(String, Value)]) -> Result<()> {
    let area = frame(panel, area)?;
    if series.is_empty() {
        return note(&area, "none");
    }
    let labels = series.iter().filter_map(|(_, series)| {
        let labels = series["metric"].as_object()?;
        Some(labels.keys().filter(|label| *label != "__name__"))
    });
    let columns: BTreeSet<&String> = labels.flatten().collect();
    let headings = columns.iter().map(|column| column.as_str());
    let mut rows: Vec<Vec<String>> = vec![headings.chain(["Value"]).map(str::to_owned).collect()];
    for (_, series) in series {
        let cell = |column: &&String| {
            let text = series["metric"][column.as_str()].as_str();
            text.unwrap_or_default().to_owned()
        };
        let mut row: Vec<String> = columns.iter().map(cell).collect();
        row.push(text(value(series), ""));
        rows.push(row);
    }
    let width = usize::try_from(area.dim_in_pixel().0)? / (columns.len() + 1);
    for (row, y) in rows.iter().zip((12..).step_by(TABLE_LINE)) {
        let color = if y == 12 { &BLUE } else { &BLACK };
        for (cell, x) in row.iter().zip((0..).step_by(width)) {
            area.draw_text(cell, &style(&area, 13, color), (x, y))?;
        }
    }
    Ok(())
}

/// A panel's edge and title; the rest of it.
fn frame<'a>(panel: &Panel, area: &Area<'a>) -> Result<Area<'a>> {
    let area = area.margin(4, 4, 4, 4);
    area.fill(&WHITE)?;
    let (width, height) = area.dim_in_pixel();
    let corner = (i32::try_from(width)? - 1, i32::try_from(height)? - 1);
    area.draw(&Rectangle::new([(0, 0), corner], EDGE))?;
    let bold = ("sans-serif", 15, FontStyle::Bold).into_text_style(&area);
    area.draw_text(&panel.title, &bold, (10, 8))?;
    Ok(area.margin(26, 4, 10, 10))
}

fn note(area: &Area<'_>, text: &str) -> Result<()> {
    Ok(area.draw_text(text, &centered(style(area, 13, &GRAY)), middle(area)?)?)
}

fn middle(area: &Area<'_>) -> Result<(i32, i32)> {
    let (width, height) = area.dim_in_pixel();
    Ok((i32::try_from(width / 2)?, i32::try_from(height / 2)?))
}

fn style<'a>(area: &Area<'_>, size: u32, color: &'a RGBColor) -> TextStyle<'a> {
    ("sans-serif", size).into_text_style(area).color(color)
}

fn centered(style: TextStyle<'_>) -> TextStyle<'_> {
    style.pos(Pos::new(HPos::Center, VPos::Center))
}

/// The value of a series at one time; NaN if Prometheus gave none.
fn value(series: &Value) -> f64 {
    let text = series["value"][1].as_str().unwrap_or_default();
    text.parse().unwrap_or(f64::NAN)
}

/// A value as people read it, by the units that panels have.
fn text(value: f64, unit: &str) -> String {
    match unit {
        "percentunit" => format!("{} %", short(value * 100.0)),
        "cps" => format!("{} c/s", short(value)),
        "s" if value == 0.0 => "0 s".to_owned(),
        "s" if value < 0.001 => format!("{} µs", short(value * 1_000_000.0)),
        "s" if value < 1.0 => format!("{} ms", short(value * 1000.0)),
        "s" => format!("{} s", short(value)),
        _ => short(value),
    }
}

/// At most three digits after the point, and none that say nothing.
fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
