//! A text over the list of pods: rules, a trace, problems, or help. It scrolls in both directions.

use std::collections::VecDeque;

use crossterm::event::KeyCode;
use sidetrack_policy::text::{counted, escaped};

use super::PodKey;
use crate::top::wrap::wrapped;
use crate::trace::{Summary, TraceEvent, line_of_one_pod, missing};

/// How many lines of a trace are kept.
const MAX_LINES: usize = 5_000;
/// How far one key scrolls to the side.
const ASIDE: usize = 8;

const HELP: &str = "\
Keys
  Up Down PgUp PgDn Home End   select a pod
  Enter, r                     rules of the pod, with the connections each has decided
  t                            trace of the pod: its connections as they are decided
  s, S                         sort by the next column (* in front of it), reverse the order (!)
  /                            show only pods whose NAMESPACE/POD contains a text; Esc shows all
  p                            problems
  q, Ctrl-C                    quit; q and Esc go back from a text

Columns
  NODE        the pod's node, where all nodes are shown
  SIDECAR     its ports: up, listens, down, hangs, out, in (only one of them), no dns, not yet,
              unknown; of a pod that is not enrolled, its state
  OUT/S IN/S  connections a second that the sidecar gets
  WAITING     connections that wait for a sidecar that hangs
  UDP         UDP sockets that were connected; they are not intercepted
  REFUSED     connections that were refused, or that the sidecar did not accept,
              since enrollment, and (/S) a second
  UNTOUCHED   connections past the sidecar, in the same way
  -           not known, or no second reading yet";

/// What a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Rules of a pod.
    Rules,
    /// A trace of a pod.
    Trace,
    /// Everything that is wrong.
    Problems,
    /// Keys and columns.
    Help,
}

/// A text that is shown in place of the list.
#[derive(Debug)]
pub struct Opened {
    what: What,
    /// The first line on the screen.
    pub title: String,
    /// Lines that are to be wrapped.
    whole: Vec<String>,
    lines: VecDeque<String>,
    is_waiting: bool,
    summary: Summary,
    /// Why there is no more.
    pub ended: Option<String>,
    first: usize,
    /// Whether the end stays in view.
    follows: bool,
    aside: usize,
    room: usize,
}

impl Opened {
    fn new(what: What, title: String) -> Self {
        Self {
            what,
            title,
            whole: Vec::new(),
            lines: VecDeque::new(),
            is_waiting: false,
            summary: Summary::default(),
            ended: None,
            first: 0,
            follows: what == What::Trace,
            aside: 0,
            room: 1,
        }
    }

    /// Keys and columns.
    pub fn help() -> Self {
        let mut opened = Self::new(What::Help, "sidetrack top".to_owned());
        opened.lines.extend(HELP.lines().map(str::to_owned));
        opened
    }

    /// What is wrong.
    pub fn problems(problems: Vec<String>) -> Self {
        let title = counted(problems.len() as u64, "problem");
        let mut opened = Self::new(What::Problems, title);
        opened.whole = problems.iter().map(|line| escaped(line)).collect();
        opened
    }

    /// Of a pod; its lines are still to come.
    pub fn of_pod(what: What, pod: &PodKey, with_node: bool) -> Self {
        let kind = if what == What::Trace {
            "trace"
        } else {
            "rules"
        };
        let node = match with_node {
            true => format!(" on {}", pod.node),
            false => String::new(),
        };
        let mut opened = Self::new(what, format!("{kind} of {}{node}", pod.name));
        opened.is_waiting = true;
        opened
    }

    /// The whole text, or why there is none.
    pub fn set_text(&mut self, text: Result<String, String>) {
        self.is_waiting = false;
        match text {
            Ok(text) => self.lines = text.lines().map(escaped).collect(),
            Err(why) => self.ended = Some(why),
        }
    }

    /// Lines may come.
    pub fn begin(&mut self) {
        self.is_waiting = false;
    }

    /// A connection.
    pub fn add_event(&mut self, event: &TraceEvent) {
        self.summary.add(event);
        self.add(escaped(&line_of_one_pod(event)));
    }

    /// Connections are missing.
    pub fn add_lost(&mut self, count: u64) {
        self.summary.add_lost(count);
        self.add(missing(count));
    }

    fn add(&mut self, line: String) {
        self.is_waiting = false;
        self.lines.push_back(line);
        if self.lines.len() > MAX_LINES {
            self.lines.pop_front();
            // What is looked at stays in its place.
            self.first = self.first.saturating_sub(1);
        }
    }

    /// No more lines will come.
    pub fn end(&mut self, why: &str) {
        self.is_waiting = false;
        self.ended = Some(why.to_owned());
    }

    /// The last line of the screen.
    pub fn state(&self) -> String {
        match (self.what, &self.ended) {
            (_, Some(why)) => escaped(why),
            (What::Trace, None) if self.is_waiting => "the trace begins".to_owned(),
            (_, None) if self.is_waiting => "the agent is asked".to_owned(),
            (What::Trace, None) => self.summary.text(),
            (What::Rules | What::Problems | What::Help, None) => String::new(),
        }
    }

    /// Breaks the lines of problems at this width. All others are columns, which scroll aside.
    pub fn wrap(&mut self, width: usize) {
        if self.what == What::Problems {
            let lines = self.whole.iter();
            self.lines = lines.flat_map(|line| wrapped(line, width)).collect();
        }
    }

    /// The lines for so much room, cut at the left where they are scrolled aside.
    pub fn visible(&mut self, room: usize) -> Vec<String> {
        self.room = room.max(1);
        let last = self.lines.len().saturating_sub(self.room);
        self.first = if self.follows {
            last
        } else {
            self.first.min(last)
        };
        let lines = self.lines.iter().skip(self.first).take(self.room);
        lines
            .map(|line| line.chars().skip(self.aside).collect())
            .collect()
    }

    /// Scrolls.
    pub fn key(&mut self, code: KeyCode) {
        let last = self.lines.len().saturating_sub(self.room);
        match code {
            KeyCode::Up | KeyCode::Char('k') => self.first = self.first.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.first += 1,
            KeyCode::PageUp => self.first = self.first.saturating_sub(self.room),
            KeyCode::PageDown | KeyCode::Char(' ') => self.first += self.room,
            KeyCode::Home | KeyCode::Char('g') => self.first = 0,
            KeyCode::End | KeyCode::Char('G') => self.first = last,
            KeyCode::Right | KeyCode::Char('l') => {
                let widest = self.lines.iter().map(|line| line.chars().count()).max();
                let most = widest.unwrap_or_default().saturating_sub(ASIDE);
                self.aside = (self.aside + ASIDE).min(most);
                return;
            }
            KeyCode::Left => {
                self.aside = self.aside.saturating_sub(ASIDE);
                return;
            }
            _ => return,
        }
        self.first = self.first.min(last);
        self.follows = self.what == What::Trace && self.first == last;
    }
}
