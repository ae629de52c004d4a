//! The figures as bars, one picture for each field.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use plotters::{
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use crate::report::{Report, Row, Table};

// In pixels.
const LEFT: i32 = 300;
const BARS: f64 = 420.0;
const LINE: u32 = 26;
const TOP: i32 = 56;
/// A bar that is longer is cut.
const LONGEST: f64 = 2.0;

const SIDETRACK: RGBColor = RGBColor(42, 125, 225);
const IPTABLES: RGBColor = RGBColor(217, 130, 43);
const OTHERS: RGBColor = RGBColor(138, 143, 152);

/// Draws all tables into a directory.
pub fn draw(report: &Report, dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    for table in &report.tables {
        let name = serde_json::to_value(table.field)?;
        let path = dir.join(format!("bench-{}.svg", name.as_str().unwrap_or_default()));
        picture(report, table, &path).with_context(|| format!("draw {}", path.display()))?;
    }
    Ok(())
}

fn picture(report: &Report, table: &Table, path: &Path) -> Result<()> {
    let height = TOP.unsigned_abs() + LINE * u32::try_from(table.rows.len())?;
    let size = (LEFT.unsigned_abs() + 580, height + 30);
    let area = SVGBackend::new(path, size).into_drawing_area();
    area.fill(&WHITE)?;
    let title = ("sans-serif", 18, FontStyle::Bold).into_text_style(&area);
    area.draw_text(table.field.title(), &title, (12, 10))?;
    let run = format!(
        "median, and its ratio to the first line; kernel {}, {} turns of {}",
        report.kernel, report.rounds, report.per_turn
    );
    let font = ("sans-serif", 16).into_text_style(&area);
    area.draw_text(&run, &font.color(&OTHERS), (12, 32))?;
    let left = Pos::new(HPos::Left, VPos::Center);
    let right = Pos::new(HPos::Right, VPos::Center);
    for (row, top) in table.rows.iter().zip((TOP..).step_by(LINE as usize)) {
        let middle = top + 8;
        area.draw_text(&row.contestant, &font.pos(right), (LEFT - 8, middle))?;
        let end = across(row.p50.ratio.min(LONGEST));
        let bar = Rectangle::new([(LEFT, top), (end, top + 16)], color(row).filled());
        area.draw(&bar)?;
        let cut = if row.p50.ratio > LONGEST { "... " } else { "" };
        let micros = row.p50.nanos as f64 / 1000.0;
        let figures = format!("{cut}{micros:.2} us, {:.2} x", row.p50.ratio);
        area.draw_text(&figures, &font.pos(left), (end + 6, middle))?;
    }
    // Where nothing at all is.
    let line = [
        (across(1.0), TOP - 4),
        (across(1.0), height.cast_signed() + 4),
    ];
    area.draw(&PathElement::new(line, BLACK.mix(0.6)))?;
    area.present()?;
    Ok(())
}

/// Where a bar with this ratio ends.
fn across(ratio: f64) -> i32 {
    LEFT + (ratio / LONGEST * BARS).round() as i32
}

fn color(row: &Row) -> RGBColor {
    match row.contestant.split([',', ' ']).next() {
        Some("sidetrack") => SIDETRACK,
        Some("iptables" | "iptables-legacy") => IPTABLES,
        _ => OTHERS,
    }
}
