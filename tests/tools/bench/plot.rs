//! The figures as SVG: bars, one picture for each field.

use std::{fmt::Write as _, fs, path::Path};

use anyhow::{Context as _, Result};

use crate::report::{Report, Table};

const LEFT: f64 = 300.0;
const BARS: f64 = 420.0;
const LINE: f64 = 26.0;
const TOP: f64 = 56.0;
/// A bar that is longer is cut, and marked as cut.
const LONGEST: f64 = 2.0;

/// Draws all tables into a directory.
pub fn draw(report: &Report, dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    for table in &report.tables {
        let name = serde_json::to_value(table.field)?;
        let name = name.as_str().unwrap_or_default().to_owned();
        let path = dir.join(format!("bench-{name}.svg"));
        let text = svg(report, table)?;
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

fn svg(report: &Report, table: &Table) -> Result<String> {
    let height = TOP + LINE * table.rows.len() as f64 + 30.0;
    let width = LEFT + BARS + 130.0;
    let mut text = String::new();
    writeln!(
        text,
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="13">
<rect width="100%" height="100%" fill="#ffffff"/>
<text x="12" y="22" font-size="15" font-weight="bold">{}</text>
<text x="12" y="42" fill="#666666">median, and its ratio to the first line; kernel {}, {} turns of {}</text>"##,
        escaped(table.field.title()),
        escaped(&report.kernel),
        report.rounds,
        report.per_turn
    )?;
    let unit = BARS / LONGEST;
    for (row, number) in table.rows.iter().zip(0_u16..) {
        let y = TOP + LINE * f64::from(number);
        let ratio = row.p50.ratio;
        let length = ratio.min(LONGEST) * unit;
        let color = match row.contestant.split([',', ' ']).next() {
            Some("sidetrack") => "#2a7de1",
            Some("iptables" | "iptables-legacy") => "#d9822b",
            _ => "#8a8f98",
        };
        writeln!(
            text,
            r##"<text x="{}" y="{}" text-anchor="end">{}</text>
<rect x="{LEFT}" y="{}" width="{length:.1}" height="16" fill="{color}"/>
<text x="{:.1}" y="{}">{:.2} us, {ratio:.2} x</text>"##,
            LEFT - 8.0,
            y + 13.0,
            escaped(&row.contestant),
            y,
            LEFT + length + 6.0,
            y + 13.0,
            row.p50.nanos as f64 / 1000.0,
        )?;
        if ratio > LONGEST {
            let x = LEFT + length - 18.0;
            writeln!(
                text,
                r##"<path d="M{x} {} l6 -8 -4 -2 6 -8 h6 l-6 8 4 2 -6 8z" fill="#ffffff"/>"##,
                y + 17.0,
            )?;
        }
    }
    // Where nothing at all is.
    writeln!(
        text,
        r##"<line x1="{x}" y1="{}" x2="{x}" y2="{}" stroke="#444444" stroke-dasharray="3 3"/>
</svg>"##,
        TOP - 4.0,
        height - 26.0,
        x = LEFT + unit,
    )?;
    Ok(text)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
