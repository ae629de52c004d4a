//! The loop of the live view: answers and keys in, pictures out.

use std::{
    pin::{Pin, pin},
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result};
use crossterm::event::{Event, EventStream};
use futures_util::StreamExt as _;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    time::MissedTickBehavior,
};

use super::{
    draw::{Theme, draw},
    report::TopReport,
    view::{Ask, PodKey, View},
};
use crate::{screen::Screen, trace::TraceLine};

/// How often ages and the clock are drawn although nothing has come.
const TICK: Duration = Duration::from_secs(1);
/// How many lines of a trace are read before they are drawn.
const AT_ONCE: usize = 4_096;

/// What the view shows.
#[derive(Debug)]
pub enum Update {
    /// A node's report.
    Report(TopReport),
    /// The nodes that there are. Others are forgotten.
    Nodes(Vec<String>),
}

/// Lines of a trace.
#[derive(Debug)]
pub enum Traced {
    /// The agent has agreed.
    Began,
    /// A line.
    Line(TraceLine),
}

/// Takes a trace's lines to the view without ever waiting for it.
#[derive(Debug)]
pub struct Outlet {
    out: mpsc::Sender<Traced>,
    /// How many connections had no room.
    missing: u64,
}

impl Outlet {
    /// To the view.
    #[must_use]
    pub fn new(out: mpsc::Sender<Traced>) -> Self {
        Self { out, missing: 0 }
    }

    /// The agent has agreed.
    pub fn began(&self) {
        // There is room before the first line.
        let _ = self.out.try_send(Traced::Began);
    }

    /// A line. What a slow terminal cannot take counts as missing.
    pub fn line(&mut self, line: TraceLine) {
        let count = match &line {
            TraceLine::Event(_) => 1,
            TraceLine::Lost(count) => *count,
        };
        let missing = Traced::Line(TraceLine::Lost(self.missing));
        if self.missing > 0 && self.out.try_send(missing).is_ok() {
            self.missing = 0;
        }
        if self.missing > 0 || self.out.try_send(Traced::Line(line)).is_err() {
            self.missing += count;
        }
    }
}

/// Where the view's content is from.
pub trait Source {
    /// Sends reports, for as long as they are received.
    fn feed(&self, out: mpsc::Sender<Update>) -> impl Future<Output = Result<()>>;
    /// The rules of a pod, as text.
    fn rules(&self, pod: PodKey) -> impl Future<Output = Result<String>>;
    /// Sends the lines of a pod's trace. It ends when this is dropped.
    fn trace(&self, pod: PodKey, out: mpsc::Sender<Traced>) -> impl Future<Output = Result<()>>;
}

/// What is done for the text that is open.
type Work<'a> = Pin<Box<dyn Future<Output = Done> + 'a>>;

enum Done {
    Rules(Result<String>),
    Trace(Result<()>),
}

/// Shows a view until a key or a signal ends it.
///
/// # Errors
/// If the terminal cannot be used, or the source ends.
pub async fn run(mut view: View, source: &impl Source) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("receive signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("receive signals")?;
    let theme = Theme {
        colors: sidetrack_base::log::wants_color(true),
    };
    let mut screen = Screen::open()?;
    let mut events = EventStream::new();
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (out, mut updates) = mpsc::channel(16);
    let mut feed = pin!(source.feed(out));
    let mut work: Option<Work<'_>> = None;
    let (_, mut lines) = mpsc::channel(1);
    let mut has_lines = false;
    let mut received = Vec::new();
    loop {
        view.set_now(SystemTime::now());
        let drawn = screen.0.draw(|frame| draw(frame, &mut view, theme));
        drawn.context("write to the terminal")?;
        tokio::select! {
            event = events.next() => {
                let event = event.context("the terminal is gone")?;
                let ask = match event.context("read from the terminal")? {
                    Event::Key(key) => view.key(key),
                    _ => Ask::Nothing,
                };
                match ask {
                    Ask::Nothing => {}
                    Ask::Quit => return Ok(()),
                    Ask::Close => {
                        work = None;
                        has_lines = false;
                    }
                    Ask::Rules(pod) => {
                        let rules = source.rules(pod);
                        work = Some(Box::pin(async { Done::Rules(rules.await) }));
                    }
                    Ask::Trace(pod) => {
                        let (out, new) = mpsc::channel(AT_ONCE);
                        lines = new;
                        has_lines = true;
                        let trace = source.trace(pod, out);
                        work = Some(Box::pin(async { Done::Trace(trace.await) }));
                    }
                }
            }
            Some(update) = updates.recv() => match update {
                Update::Report(report) => view.take(report),
                Update::Nodes(nodes) => {
                    view.keep_nodes(|node| nodes.iter().any(|there| there == node));
                }
            },
            ended = &mut feed => return ended,
            count = lines.recv_many(&mut received, AT_ONCE), if has_lines => {
                has_lines = count > 0;
                received.drain(..).for_each(|line| show(&mut view, line));
            }
            done = working(&mut work), if work.is_some() => {
                work = None;
                finish(&mut view, done);
            }
            _ = tick.tick() => {}
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
        }
    }
}

async fn working(work: &mut Option<Work<'_>>) -> Done {
    match work {
        Some(work) => work.await,
        None => std::future::pending().await,
    }
}

fn show(view: &mut View, line: Traced) {
    let Some(opened) = &mut view.opened else {
        return;
    };
    match line {
        Traced::Began => opened.begin(),
        Traced::Line(TraceLine::Event(event)) => opened.add_event(&event),
        Traced::Line(TraceLine::Lost(count)) => opened.add_lost(count),
    }
}

fn finish(view: &mut View, done: Done) {
    let Some(opened) = &mut view.opened else {
        return;
    };
    match done {
        Done::Rules(rules) => opened.set_text(rules.map_err(|error| format!("{error:#}"))),
        Done::Trace(Ok(())) => opened.end("the trace has ended"),
        Done::Trace(Err(error)) => opened.end(&format!("{error:#}")),
    }
}

#[cfg(test)]
mod tests;
