//! A terminal as a picture: text with colors in SVG, legible in the light and dark pages of code hosts, because it has a
//! background of its own.

use std::fmt::Write as _;

use anstyle::{Ansi256Color, Color, Effects, RgbColor, Style};
use anstyle_svg::{Term, WIN10_CONSOLE};
use anyhow::{Context as _, Result, ensure};
use vt100::{Cell, Screen};

/// Draws a screen. `title` is for people who cannot see it; it has no markup.
#[must_use]
pub fn svg(screen: &Screen, title: &str) -> String {
    let (lines, columns) = screen.size();
    let mut text = String::new();
    for line in 0..lines.get() {
        let mut last = Style::new();
        for column in 0..columns.get() {
            let cell = screen.cell(line, column);
            let Some(cell) = cell.filter(|cell| !cell.is_wide_continuation()) else {
                continue;
            };
            let style = style(cell);
            if style != last {
                let _ = write!(text, "{last:#}{style}");
                last = style;
            }
            text += if cell.has_contents() {
                cell.contents()
            } else {
                " "
            };
        }
        if last == Style::new() {
            text.truncate(text.trim_end_matches(' ').len());
        }
        let _ = writeln!(text, "{last:#}");
    }
    let term = Term::new().palette(WIN10_CONSOLE);
    let svg = term.render_svg(text.trim_end_matches('\n'));
    svg.replacen(
        ">\n",
        &format!(" role=\"img\">\n  <title>{title}</title>\n"),
        1,
    )
}

/// Draws screens of one size and colors, one after the other and again from the start, each for so many seconds. Who
/// wants no motion sees the last.
///
/// # Errors
/// If there is no screen.
pub fn animated(frames: &[(Screen, f32)], title: &str) -> Result<String> {
    const MOTION: &str = "\
    .frame { visibility: hidden; animation-iteration-count: infinite; animation-timing-function: step-end }
    @media (prefers-reduced-motion: reduce) {
      .frame { animation: none !important }
      .frame:last-of-type { visibility: visible }
    }
";
    let total: f32 = frames.iter().map(|(_, seconds)| seconds).sum();
    let (mut moments, mut texts) = (String::new(), String::new());
    let (mut head, mut end) = (String::new(), 0.0);
    for (number, (screen, seconds)) in frames.iter().enumerate() {
        let picture = svg(screen, title);
        let (before, rest) = picture.split_once("  <text ").context("a text")?;
        let (text, _) = rest.split_once("</text>").context("its end")?;
        head = before.to_owned();
        let begin = end;
        end += seconds / total * 100.0;
        let _ = writeln!(
            moments,
            "    @keyframes f{number} {{ 0% {{ visibility: hidden }} {begin:.2}% {{ visibility: visible }} {end:.2}%, 100% {{ visibility: hidden }} }}"
        );
        let _ = writeln!(
            texts,
            "  <g class=\"frame\" style=\"animation-name: f{number}; animation-duration: {total:.1}s\"><text {text}</text></g>"
        );
    }
    let styled = head.replacen("  </style>", &format!("{MOTION}{moments}  </style>"), 1);
    ensure!(!frames.is_empty(), "no screen");
    Ok(format!("{styled}{texts}</svg>\n"))
}

fn style(cell: &Cell) -> Style {
    let effects = [
        (cell.bold(), Effects::BOLD),
        (cell.dim(), Effects::DIMMED),
        (cell.underline(), Effects::UNDERLINE),
        (cell.inverse(), Effects::INVERT),
    ];
    let effects = effects.into_iter().filter(|(has, _)| *has);
    Style::new()
        .fg_color(color(cell.fgcolor()))
        .bg_color(color(cell.bgcolor()))
        .effects(effects.fold(Effects::new(), |all, (_, effect)| all | effect))
}

fn color(color: vt100::Color) -> Option<Color> {
    match color {
        vt100::Color::Default => None,
        vt100::Color::Idx(number) => Some(Ansi256Color(number).into()),
        vt100::Color::Rgb(red, green, blue) => Some(RgbColor(red, green, blue).into()),
    }
}

#[cfg(test)]
mod tests;
