//! What is shown and what keys do. Pure: the clock and the answers come from outside.
//!
//! Invariant: the selected pod stays selected while it is shown, wherever sorting moves it.

mod opened;
mod rows;

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

pub use self::opened::{Opened, What};
pub(super) use self::rows::Shown;
use self::rows::{Sort, shown};
use super::report::{Origin, TopReport};

/// A pod on a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodKey {
    /// The node.
    pub node: String,
    /// `namespace/name`.
    pub name: String,
}

/// What a key asks of the loop around the view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Nothing but to draw.
    Nothing,
    /// The rules of a pod.
    Rules(PodKey),
    /// A trace of a pod.
    Trace(PodKey),
    /// No rules and no trace any more.
    Close,
    /// The end.
    Quit,
}

/// What does not change while it runs.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Whether there is more than one node.
    pub many_nodes: bool,
    /// Only pods of this Kubernetes namespace.
    pub namespace: Option<String>,
    /// The time between readings.
    pub interval: Duration,
}

/// A node, and since when its agent has not answered.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) report: TopReport,
    pub(super) silent_since: Option<SystemTime>,
}

/// Everything that is shown.
#[derive(Debug)]
pub struct View {
    pub(super) settings: Settings,
    pub(super) nodes: BTreeMap<String, Node>,
    pub(super) now: SystemTime,
    pub(super) filter: String,
    /// Whether keys go to the filter.
    pub(super) types_filter: bool,
    pub(super) sort: Sort,
    pub(super) is_reversed: bool,
    pub(super) opened: Option<Opened>,
    selected: Option<PodKey>,
    /// The first line of the list that is drawn.
    first: usize,
    /// How many lines of the list are drawn.
    room: usize,
}

impl View {
    /// With nothing known yet. Pods are shown if their name contains `filter`.
    #[must_use]
    pub fn new(settings: Settings, filter: &str, now: SystemTime) -> Self {
        Self {
            settings,
            nodes: BTreeMap::new(),
            now,
            filter: filter.to_owned(),
            types_filter: false,
            sort: Sort::default(),
            is_reversed: false,
            opened: None,
            selected: None,
            first: 0,
            room: 1,
        }
    }

    /// The time that is shown, and that ages are counted to.
    pub fn set_now(&mut self, now: SystemTime) {
        self.now = now;
    }

    /// Takes a node's report. Of a node that does not answer, the pods of its last answer stay, without rates.
    pub fn take(&mut self, mut report: TopReport) {
        let last = self.nodes.remove(&report.node);
        let silent_since = report.no_answer.as_ref().map(|_| {
            let before = last.as_ref().and_then(|last| last.silent_since);
            before.unwrap_or(self.now)
        });
        if let (Origin::Nowhere, Some(last)) = (report.origin, last) {
            report.pods = last.report.pods;
            for pod in &mut report.pods {
                pod.per_second = None;
            }
        }
        let node = Node {
            report,
            silent_since,
        };
        self.nodes.insert(node.report.node.clone(), node);
        self.keep_selected();
    }

    /// Nodes that are there. Others are not shown any more.
    pub fn keep_nodes(&mut self, is_there: impl Fn(&str) -> bool) {
        self.nodes.retain(|node, _| is_there(node));
        self.keep_selected();
    }

    /// The pods that are shown, in order.
    pub(super) fn rows(&self) -> Vec<Shown<'_>> {
        shown(self)
    }

    /// Makes room for so many lines, and returns the first line to draw and the number of the selected one.
    pub(super) fn fit(&mut self, room: usize) -> (usize, Option<usize>) {
        self.room = room.max(1);
        let (count, selected) = (self.rows().len(), self.position());
        if let Some(selected) = selected {
            self.first = self
                .first
                .clamp((selected + 1).saturating_sub(self.room), selected);
        }
        self.first = self.first.min(count.saturating_sub(self.room));
        (self.first, selected)
    }

    fn position(&self) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        self.rows().iter().position(|row| row.key() == *selected)
    }

    /// Selects the first pod if the selected one is not shown any more.
    fn keep_selected(&mut self) {
        if self.position().is_none() {
            self.select(0);
        }
    }

    fn select(&mut self, index: usize) {
        let rows = self.rows();
        let index = index.min(rows.len().saturating_sub(1));
        self.selected = rows.get(index).map(Shown::key);
    }

    fn move_by(&mut self, lines: isize) {
        let position = self.position().unwrap_or_default();
        self.select(position.saturating_add_signed(lines));
    }

    /// Obeys a key.
    pub fn key(&mut self, key: KeyEvent) -> Ask {
        if key.kind == KeyEventKind::Release {
            return Ask::Nothing;
        }
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match (key.code, is_control) {
            (KeyCode::Char('c' | 'd'), true) => return Ask::Quit,
            (_, true) => return Ask::Nothing,
            _ => {}
        }
        if self.types_filter {
            self.filter_key(key.code);
            return Ask::Nothing;
        }
        match &mut self.opened {
            Some(opened) => match key.code {
                KeyCode::Char('q') | KeyCode::Esc | KeyCode::Backspace => {
                    self.opened = None;
                    Ask::Close
                }
                code => {
                    opened.key(code);
                    Ask::Nothing
                }
            },
            None => self.list_key(key.code),
        }
    }

    fn list_key(&mut self, code: KeyCode) -> Ask {
        let page = isize::try_from(self.room).unwrap_or(isize::MAX);
        match code {
            KeyCode::Char('q') => return Ask::Quit,
            KeyCode::Up | KeyCode::Char('k') => self.move_by(-1),
            KeyCode::Down | KeyCode::Char('j') => self.move_by(1),
            KeyCode::PageUp => self.move_by(-page),
            KeyCode::PageDown => self.move_by(page),
            KeyCode::Home | KeyCode::Char('g') => self.select(0),
            KeyCode::End | KeyCode::Char('G') => self.select(usize::MAX),
            KeyCode::Char('s') => {
                self.sort = self.sort.next();
                self.is_reversed = false;
            }
            KeyCode::Char('S') => self.is_reversed = !self.is_reversed,
            KeyCode::Char('/') => self.types_filter = true,
            KeyCode::Esc => {
                self.filter.clear();
                self.keep_selected();
            }
            KeyCode::Char('?' | 'h') => self.opened = Some(Opened::help()),
            KeyCode::Char('p') => self.opened = Some(Opened::problems(self.problems())),
            KeyCode::Enter | KeyCode::Char('r') => return self.open(What::Rules),
            KeyCode::Char('t') => return self.open(What::Trace),
            _ => {}
        }
        Ask::Nothing
    }

    fn open(&mut self, what: What) -> Ask {
        let Some(pod) = self.selected.clone() else {
            return Ask::Nothing;
        };
        self.opened = Some(Opened::of_pod(what, &pod, self.settings.many_nodes));
        match what {
            What::Trace => Ask::Trace(pod),
            _ => Ask::Rules(pod),
        }
    }

    fn filter_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.types_filter = false,
            KeyCode::Esc => {
                self.types_filter = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(c) => self.filter.push(c),
            _ => {}
        }
        self.keep_selected();
    }

    /// Everything that is wrong.
    pub(super) fn problems(&self) -> Vec<String> {
        let named = |node: &str, text: &str| match self.settings.many_nodes {
            true => format!("{node}: {text}"),
            false => text.to_owned(),
        };
        let nodes = self.nodes.iter();
        let problems = nodes.flat_map(|(name, node)| {
            let silent = node.report.no_answer.iter();
            let all = silent.chain(&node.report.problems);
            all.map(|problem| named(name, problem)).collect::<Vec<_>>()
        });
        problems.collect()
    }
}

#[cfg(test)]
mod tests;
