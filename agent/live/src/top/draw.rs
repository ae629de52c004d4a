//! Draws a view. What it looks like follows from the view and the size of the terminal alone.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
};
use sidetrack_policy::text::{counted, escaped};

use super::{
    columns::{count, rate, waiting},
    report::Origin,
    view::{Opened, Shown, View},
    wrap::wrapped,
};

/// What terminals show.
#[derive(Clone, Copy, Debug)]
pub struct Theme {
    /// Whether colors are wanted. What matters is legible without.
    pub colors: bool,
}

impl Theme {
    fn colored(self, color: Color, modifier: Modifier) -> Style {
        let style = Style::new().add_modifier(modifier);
        if self.colors { style.fg(color) } else { style }
    }

    fn bad(self) -> Style {
        self.colored(Color::Red, Modifier::BOLD)
    }

    fn doubtful(self) -> Style {
        self.colored(Color::Yellow, Modifier::empty())
    }

    fn good(self) -> Style {
        self.colored(Color::Green, Modifier::empty())
    }
}

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, view: &mut View, theme: Theme) {
    let warning = warning(view, frame.area().width.into(), theme);
    let [head, message, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(warning.len().max(1) as u16),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    put(frame, head, heading(view, head.width));
    frame.render_widget(ratatui::text::Text::from(warning), message);
    let keys = match &mut view.opened {
        Some(opened) => {
            text(frame, body, opened);
            let state = opened.state();
            let style = match opened.ended {
                Some(_) => theme.bad(),
                None => Style::new(),
            };
            let keys = format!("q back  arrows scroll  {state}");
            Line::from(Span::styled(keys, style))
        }
        None => {
            list(frame, body, view, theme);
            Line::from(match view.types_filter {
                true => format!("show only: {}_   Enter keep  Esc show all", view.filter),
                false => format!(
                    "q quit  r rules  t trace  s sort  / filter  p problems  ? help  every {}",
                    seconds_of(view.settings.interval)
                ),
            })
        }
    };
    put(frame, foot, keys);
}

fn put(frame: &mut Frame<'_>, area: Rect, line: Line<'_>) {
    frame.render_widget(line, area);
}

const TITLE: &str = "sidetrack top  ";

/// What and how many, with the clock at the right.
fn heading(view: &View, width: u16) -> Line<'static> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let nodes: Vec<_> = view.nodes.values().collect();
    let silent = nodes.iter().filter(|node| node.silent_since.is_some());
    let who = match (view.settings.many_nodes, silent.count()) {
        (true, 0) => counted(nodes.len() as u64, "node"),
        (true, silent) => format!("{}, {silent} silent", counted(nodes.len() as u64, "node")),
        (false, _) => nodes
            .first()
            .map_or_else(String::new, |node| escaped(&node.report.node)),
    };
    let mut versions: Vec<_> = nodes
        .iter()
        .filter_map(|node| node.report.version.as_deref())
        .map(escaped)
        .collect();
    versions.sort_unstable();
    versions.dedup();
    let version = match versions.is_empty() {
        true => "agent unknown".to_owned(),
        false => format!("agent {}", versions.join(", ")),
    };
    let all: usize = nodes.iter().map(|node| node.report.pods.len()).sum();
    let pods = match view.rows().len() {
        shown if shown == all => counted(all as u64, "pod"),
        shown => format!("{shown} of {}", counted(all as u64, "pod")),
    };
    let problems = counted(view.problems().len() as u64, "problem");
    let right = time_of_day(view.now);
    let rest = format!("  {version}  {pods}  {problems}");
    let room = usize::from(width).saturating_sub(TITLE.len() + right.len() + 1);
    // A node's name may be long, and can be cut: the user has chosen the node.
    let who = cut(&who, room.saturating_sub(rest.chars().count()));
    let start = cut(&format!("{who}{rest}"), room);
    Line::from(vec![
        Span::styled(TITLE, bold),
        Span::raw(format!("{start:<room$} {right}")),
    ])
}

/// The most lines of a warning. Key `p` shows all of it.
const MAX_WARNING_LINES: usize = 3;

/// Who does not answer, or the first problem.
fn warning(view: &View, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let lines = |text: &str, style: Style| {
        let mut lines = wrapped(&escaped(text), width);
        if lines.len() > MAX_WARNING_LINES {
            lines.truncate(MAX_WARNING_LINES);
            let last = &mut lines[MAX_WARNING_LINES - 1];
            *last = format!("{} ...", cut(last, width.saturating_sub(4)));
        }
        let lines = lines.into_iter();
        lines
            .map(|line| Line::from(Span::styled(line, style)))
            .collect()
    };
    let mut silent = view.nodes.values().filter_map(|node| {
        let (since, why) = (node.silent_since?, node.report.no_answer.as_ref()?);
        let age = view.now.duration_since(since).unwrap_or_default();
        let named = match view.settings.many_nodes {
            true => format!("{}: ", node.report.node),
            false => String::new(),
        };
        let from = match node.report.origin {
            Origin::PinnedMaps => "; the pods are from the pinned maps",
            Origin::Agent | Origin::Nowhere => "",
        };
        Some(format!(
            "{named}no agent since {} UTC ({}){from}: {why}",
            time_of_day(since),
            seconds_of(Duration::from_secs(age.as_secs()))
        ))
    });
    if let Some(first) = silent.next() {
        let more = match silent.count() {
            0 => String::new(),
            more => format!("{more} more are silent; "),
        };
        return lines(&format!("{more}{first}"), theme.bad());
    }
    let problem = view.problems().into_iter().next();
    problem.map_or_else(Vec::new, |problem| lines(&problem, theme.doubtful()))
}

/// A column: heading, width, and its cell.
struct Column {
    heading: &'static str,
    width: usize,
    cell: fn(&Shown<'_>) -> String,
}

/// Room that names get before columns do: a pod of a Deployment, such as `shop/checkout-7d9c5b8f6d-x2x4z`.
const NAME: usize = 30;
const NODE: usize = 14;
/// The columns that a narrow terminal has no room for, the first to go first.
const OPTIONAL: [&str; 8] = [
    "UDP",
    "UNTOUCHED/S",
    "WAITING",
    "UNTOUCHED",
    "REFUSED",
    "IN/S",
    "OUT/S",
    "NODE",
];

/// The columns after the pod's name that a terminal of this width has room for.
fn columns(view: &View, width: usize) -> Vec<Column> {
    let rows = view.rows();
    let names = rows.iter().map(|it| it.row.full_name().chars().count());
    let name = names.max().unwrap_or_default().min(NAME);
    let mut columns = all_columns(view.settings.many_nodes);
    for heading in OPTIONAL {
        let used: usize = columns.iter().map(|column| column.width + 1).sum();
        if name + used <= width {
            break;
        }
        columns.retain(|column| column.heading != heading);
    }
    columns
}

fn all_columns(many_nodes: bool) -> Vec<Column> {
    let column = |heading, width, cell| Column {
        heading,
        width,
        cell,
    };
    let node = many_nodes.then(|| column("NODE", NODE, |it| it.node.to_owned()));
    let columns = [
        column("SIDECAR", 9, sidecar),
        column("OUT/S", 6, |it| rate(it.row, |of| of.outbound_redirected)),
        column("IN/S", 6, |it| rate(it.row, |of| of.inbound_redirected)),
        column("REFUSED/S", 9, |it| rate(it.row, |of| of.refused)),
        column("REFUSED", 8, |it| count(it.row, |of| of.refused)),
        column("UNTOUCHED", 9, |it| count(it.row, |of| of.untouched)),
        column("WAITING", 7, |it| waiting(it.row)),
        column("UNTOUCHED/S", 11, |it| rate(it.row, |of| of.untouched)),
        column("UDP", 7, |it| count(it.row, |of| of.udp)),
    ];
    node.into_iter().chain(columns).collect()
}

/// Whether the sidecar listens; of a pod that is not enrolled, its state.
fn sidecar(shown: &Shown<'_>) -> String {
    let row = shown.row;
    row.sidecar.as_ref().unwrap_or(&row.state).clone()
}

fn list(frame: &mut Frame<'_>, area: Rect, view: &mut View, theme: Theme) {
    let (first, selected) = view.fit(usize::from(area.height).saturating_sub(1));
    let columns = columns(view, area.width.into());
    let used: usize = columns.iter().map(|column| column.width + 1).sum();
    let name = usize::from(area.width).saturating_sub(used);
    let mut header = format!("{:<name$}", "POD");
    for column in &columns {
        let marked = column.heading == view.sort.heading();
        let mark = match (marked, view.is_reversed) {
            (false, _) => "",
            (true, false) => "*",
            (true, true) => "!",
        };
        let heading = format!("{mark}{}", column.heading);
        header += &match column.heading {
            "NODE" | "SIDECAR" => format!(" {heading:<width$}", width = column.width),
            // The mark of a long one takes the place of the space before it.
            _ => format!("{heading:>width$}", width = column.width + 1),
        };
    }
    let underlined = Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED);
    let mut lines = vec![Line::from(Span::styled(header, underlined))];
    let rows = view.rows();
    let room = usize::from(area.height).saturating_sub(1);
    for (index, shown) in rows.iter().enumerate().skip(first).take(room) {
        let mut spans = vec![Span::raw(format!(
            "{:<name$}",
            cut(&escaped(&shown.row.full_name()), name)
        ))];
        spans.extend(columns.iter().map(|column| cell(column, shown, theme)));
        let mut style = Style::new();
        if shown.is_stale {
            style = style.add_modifier(Modifier::DIM);
        }
        if selected == Some(index) {
            style = style.add_modifier(Modifier::REVERSED);
        }
        lines.push(Line::from(spans).style(style));
    }
    if rows.is_empty() {
        lines.push(Line::from(nothing(view)));
    }
    frame.render_widget(ratatui::text::Text::from(lines), area);
}

/// Why the list is empty.
fn nothing(view: &View) -> &'static str {
    if view.nodes.is_empty() {
        "the first answer is awaited"
    } else if view.nodes.values().all(|node| node.report.pods.is_empty()) {
        "no pod is known: `sidetrack pods` shows those that are not intercepted, and why"
    } else {
        "no pod has this name or namespace: Esc shows all names"
    }
}

fn cell(column: &Column, shown: &Shown<'_>, theme: Theme) -> Span<'static> {
    let text = cut(&escaped(&(column.cell)(shown)), column.width);
    let width = column.width;
    if column.heading == "NODE" {
        return Span::raw(format!(" {text:<width$}"));
    }
    if column.heading == "SIDECAR" {
        let style = match (&shown.row.sidecar, text.as_str()) {
            (Some(_), "up") => theme.good(),
            (Some(_), "not yet" | "unknown" | "listens") => theme.doubtful(),
            (Some(_), _) => theme.bad(),
            (None, _) => theme.doubtful(),
        };
        return Span::styled(format!(" {text:<width$}"), style);
    }
    let refused = column.heading.starts_with("REFUSED") && !matches!(text.as_str(), "0" | "-");
    let style = if refused { theme.bad() } else { Style::new() };
    Span::styled(format!(" {text:>width$}"), style)
}

/// A text in place of the list.
fn text(frame: &mut Frame<'_>, area: Rect, opened: &mut Opened) {
    let room = usize::from(area.height).saturating_sub(1);
    let title = Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED);
    let width = usize::from(area.width);
    let title = Span::styled(format!("{:<width$}", escaped(&opened.title)), title);
    let mut lines = vec![Line::from(title)];
    opened.wrap(width);
    lines.extend(opened.visible(room).into_iter().map(Line::from));
    frame.render_widget(ratatui::text::Text::from(lines), area);
}

/// A text of at most this many characters. Its end is what distinguishes pods.
fn cut(text: &str, room: usize) -> String {
    let length = text.chars().count();
    if length <= room {
        return text.to_owned();
    }
    match room {
        0 => String::new(),
        1 => "~".to_owned(),
        _ => {
            let begin = (room - 1) / 2;
            let end = room - 1 - begin;
            let first: String = text.chars().take(begin).collect();
            let last: String = text.chars().skip(length - end).collect();
            format!("{first}~{last}")
        }
    }
}

/// A time span in one or two units.
fn seconds_of(span: Duration) -> String {
    let (seconds, rest) = (span.as_secs(), span.subsec_millis());
    match seconds {
        0 => format!("{rest}ms"),
        1..60 if rest > 0 => format!("{}s", span.as_secs_f64()),
        1..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
        _ => format!("{}h{}m", seconds / 3600, seconds / 60 % 60),
    }
}

/// The time of day, UTC.
fn time_of_day(time: SystemTime) -> String {
    let seconds = time
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs());
    let (hours, minutes) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!("{hours:02}:{minutes:02}:{:02}", seconds % 60)
}

#[cfg(test)]
mod tests;
