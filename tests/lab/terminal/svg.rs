//! A terminal as a picture: text with colors in SVG, legible in any browser and in the light and dark pages of
//! code hosts, because it has a background of its own.

use std::fmt::Write as _;

use vt100::{Cell, Color, Screen};

/// The width of a character and the height of a line.
const CELL: (f64, f64) = (8.4, 18.0);
/// Room around the text.
const MARGIN: f64 = 10.0;
const BACKGROUND: &str = "#15191e";
const FOREGROUND: &str = "#d7dce2";
/// The colors of a terminal: black, red, green, yellow, blue, magenta, cyan, white, and bright.
const COLORS: [&str; 16] = [
    "#3b4048", "#ff6b68", "#7ec86a", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#d7dce2",
    "#5c6370", "#ff8785", "#98d982", "#f0d399", "#7fc1ff", "#d99ae8", "#7fd0da", "#ffffff",
];

/// How a character looks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Style {
    text: String,
    back: Option<String>,
    bold: bool,
    dim: bool,
    underline: bool,
}

impl Style {
    fn of(cell: &Cell) -> Self {
        let text = color(cell.fgcolor());
        let back = color(cell.bgcolor());
        let (text, back) = match cell.inverse() {
            true => (
                back.unwrap_or_else(|| BACKGROUND.to_owned()),
                Some(text.unwrap_or_else(|| FOREGROUND.to_owned())),
            ),
            false => (text.unwrap_or_else(|| FOREGROUND.to_owned()), back),
        };
        Self {
            text,
            back,
            bold: cell.bold(),
            dim: cell.dim(),
            underline: cell.underline(),
        }
    }
}

fn color(color: Color) -> Option<String> {
    match color {
        Color::Default => None,
        Color::Idx(number) => Some(match COLORS.get(usize::from(number)) {
            Some(color) => (*color).to_owned(),
            // The cube of 216 colors, and the grays after it.
            None if number < 232 => {
                let number = number - 16;
                let part = |part: u8| if part == 0 { 0 } else { 55 + 40 * part };
                let (red, green, blue) = (number / 36, number / 6 % 6, number % 6);
                hex(part(red), part(green), part(blue))
            }
            None => {
                let gray = 8 + 10 * (number - 232);
                hex(gray, gray, gray)
            }
        }),
        Color::Rgb(red, green, blue) => Some(hex(red, green, blue)),
    }
}

fn hex(red: u8, green: u8, blue: u8) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// Draws a screen. `title` is for people who cannot see it.
#[must_use]
pub fn svg(screen: &Screen, title: &str) -> String {
    let (lines, columns) = screen.size();
    let (lines, columns) = (lines.get(), columns.get());
    let width = f64::from(columns) * CELL.0 + 2.0 * MARGIN;
    let height = f64::from(lines) * CELL.1 + 2.0 * MARGIN;
    let mut body = String::new();
    for line in 0..lines {
        for (column, style, text) in runs(screen, line, columns) {
            draw(&mut body, (line, column), &style, &text);
        }
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\">\n\
         <title>{}</title>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"{BACKGROUND}\"/>\n\
         <g font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\" font-size=\"14\" xml:space=\"preserve\">\n{body}</g>\n</svg>\n",
        escape(title)
    )
}

/// Neighbors that look alike, with the column where they begin.
fn runs(screen: &Screen, line: u16, columns: u16) -> Vec<(u16, Style, String)> {
    let mut runs: Vec<(u16, Style, String)> = Vec::new();
    for column in 0..columns {
        let Some(cell) = screen.cell(line, column) else {
            continue;
        };
        if cell.is_wide_continuation() {
            continue;
        }
        let text = if cell.has_contents() {
            cell.contents()
        } else {
            " "
        };
        let style = Style::of(cell);
        match runs.last_mut() {
            Some((_, last, run)) if *last == style => run.push_str(text),
            _ => runs.push((column, style, text.to_owned())),
        }
    }
    runs
}

fn draw(body: &mut String, (line, column): (u16, u16), style: &Style, text: &str) {
    let (x, y) = (
        MARGIN + f64::from(column) * CELL.0,
        MARGIN + f64::from(line) * CELL.1,
    );
    let width = text.chars().count() as f64 * CELL.0;
    if let Some(back) = &style.back {
        let _ = writeln!(
            body,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"{back}\"/>",
            CELL.1
        );
    }
    if style.underline {
        let below = y + CELL.1 - 2.0;
        let _ = writeln!(
            body,
            "<path d=\"M{x:.1} {below:.1}h{width:.1}\" stroke=\"{}\"/>",
            style.text
        );
    }
    let shown = text.trim_end();
    if shown.is_empty() {
        return;
    }
    let bold = if style.bold {
        " font-weight=\"bold\""
    } else {
        ""
    };
    let dim = if style.dim { " opacity=\"0.6\"" } else { "" };
    // The length keeps columns aligned whatever font is found.
    let length = shown.chars().count() as f64 * CELL.0;
    let _ = writeln!(
        body,
        "<text x=\"{x:.1}\" y=\"{:.1}\" fill=\"{}\" textLength=\"{length:.1}\" lengthAdjust=\"spacingAndGlyphs\"{bold}{dim}>{}</text>",
        y + CELL.1 - 5.0,
        style.text,
        escape(shown)
    );
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        // Browsers without `xml:space` would join blanks.
        .replace(' ', "\u{a0}")
}

#[cfg(test)]
mod tests;
