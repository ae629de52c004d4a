//! Looks every two seconds at what the reconciler does not see: what sidecars do, and which pods' connections are
//! refused. What is new goes into the list of events.

use std::{
    collections::HashMap,
    io,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use sidetrack_base::runtime;
use sidetrack_live::{
    Sidecar,
    history::{Entry, Kind},
    refusals::is_without_sidecar,
};
use tokio::time::{MissedTickBehavior, interval};
use tracing::error;

use crate::{
    api::{PodStatus, TraceEvent},
    observe::{
        refusals::{NewRefusals, Report},
        status::Status,
    },
};

/// How long a sidecar may take to start before refused connections are an event.
const START: Duration = Duration::from_secs(60);

/// What is said of a sidecar that was up at two looks, and was not between them.
const RESTARTED: &str = "its sidecar has restarted: all of its listening sockets are new";

/// How often.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// What was seen so far.
#[derive(Debug)]
struct Seen {
    /// What each pod's sidecar did last, by cookie: one of the kinds that are about sidecars.
    sidecars: HashMap<u64, Option<Kind>>,
    /// The same by name, as the agent before this one has seen it. Only for the first look.
    earlier: HashMap<String, Kind>,
    /// When pods were first seen whose sidecar has never been up since, by cookie.
    starting: HashMap<u64, Instant>,
    refusals: NewRefusals,
}

/// Looks again and again; does not end.
pub async fn watch(status: Arc<Status>) {
    let entries = status.history().entries();
    // Earlier events were reported, or no agent ran that could report them.
    let since = entries
        .last()
        .and_then(|last| humantime::parse_rfc3339(&last.time).ok());
    let mut seen = Seen {
        sidecars: HashMap::new(),
        earlier: sidecars_in(&entries),
        starting: HashMap::new(),
        refusals: NewRefusals::since(since.unwrap_or_else(SystemTime::now)),
    };
    let mut failed = false;
    let mut turns = interval(LOOK_INTERVAL);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        turns.tick().await;
        if !status.is_ready() {
            continue;
        }
        let looking = Arc::clone(&status);
        let look = move || {
            let looked = seen.look(&looking);
            (seen, looked)
        };
        let looked;
        (seen, looked) = runtime::blocking(look).await;
        if let Err(error) = &looked
            && !failed
        {
            error!("look at sidecars: {error}");
        }
        failed = looked.is_err();
    }
}

impl Seen {
    fn look(&mut self, status: &Status) -> io::Result<()> {
        let (pods, replaced) = status.look_at_sidecars()?;
        let mut now = HashMap::new();
        let mut starting = HashMap::new();
        let mut reports = HashMap::new();
        for pod in &pods {
            let Some((netns, sidecar)) = pod.netns.as_ref().zip(pod.sidecar.as_ref()) else {
                continue;
            };
            let name = pod.full_name();
            let before = match self.sidecars.get(&netns.cookie) {
                Some(before) => *before,
                None => self.earlier.remove(&name),
            };
            let since = match self.sidecars.get(&netns.cookie) {
                Some(_) => self.starting.get(&netns.cookie).copied(),
                None => before.is_none().then(Instant::now),
            };
            if let Some(since) = since {
                let report = of_start(sidecar, since.elapsed(), name.clone());
                reports.insert(netns.cookie, report);
                if !sidecar.is_started() {
                    starting.insert(netns.cookie, since);
                }
            }
            if pod.terminating {
                // That its sidecar ends is no event.
            } else if let Some(text) = change(before, sidecar)
                && let Some(kind) = kind(sidecar)
            {
                status.history().add(kind, Some(name), &text);
            } else if replaced.contains(&netns.cookie)
                && before == Some(Kind::SidecarUp)
                && kind(sidecar) == before
            {
                status.history().add(Kind::SidecarUp, Some(name), RESTARTED);
            }
            now.insert(netns.cookie, kind(sidecar).or(before));
        }
        self.sidecars = now;
        self.earlier.clear();
        self.starting = starting;
        let by_cookie: HashMap<u64, &PodStatus> = pods
            .iter()
            .filter_map(|pod| Some((pod.netns.as_ref()?.cookie, pod)))
            .collect();
        let report = |cookie, rule: &str| {
            let name = || by_cookie.get(&cookie).map(|pod| pod.full_name());
            let terminates = || by_cookie.get(&cookie).is_some_and(|pod| pod.terminating);
            match reports.get(&cookie) {
                _ if is_without_sidecar(rule) && terminates() => Report::Never,
                Some(report) if is_without_sidecar(rule) => report.clone(),
                _ => name().map_or(Report::Later, Report::Now),
            }
        };
        for refused in status.new_refusals(&mut self.refusals, report)? {
            let text = refusal(&refused);
            status
                .history()
                .add(Kind::Refused, Some(refused.pod), &text);
        }
        Ok(())
    }
}

/// The kind of entry that says what a sidecar does; `None` if that is not known, or is nothing yet.
fn kind(sidecar: &Sidecar) -> Option<Kind> {
    match sidecar {
        Sidecar::Up => Some(Kind::SidecarUp),
        Sidecar::Hangs { .. } => Some(Kind::SidecarHangs),
        Sidecar::Down | Sidecar::OutboundOnly | Sidecar::InboundOnly | Sidecar::NoDns => {
            Some(Kind::SidecarDown)
        }
        Sidecar::Listens | Sidecar::NotYet | Sidecar::Unknown => None,
    }
}

/// What is done about connections that were refused because a sidecar does not listen, where it has never been up. All are
/// refused until then, which is no event; a sidecar that does not come up is one.
fn of_start(sidecar: &Sidecar, since: Duration, name: String) -> Report {
    match sidecar {
        _ if sidecar.is_started() => Report::Never,
        _ if since < START => Report::Later,
        _ => Report::Now(name),
    }
}

/// What is to be said of a sidecar that did something else before. Of the first look at a pod only that its sidecar
/// hangs: that of a pod that has just started is not there yet.
fn change(before: Option<Kind>, sidecar: &Sidecar) -> Option<String> {
    let now = kind(sidecar)?;
    if before == Some(now) || (before.is_none() && now != Kind::SidecarHangs) {
        return None;
    }
    let text = match sidecar {
        Sidecar::Hangs { .. } | Sidecar::NoDns => return sidecar.remark(),
        Sidecar::OutboundOnly => "its sidecar listens on its outbound port only",
        Sidecar::InboundOnly => "its sidecar listens on its inbound port only",
        Sidecar::Down => "its sidecar does not listen",
        _ if before == Some(Kind::SidecarHangs) => "its sidecar accepts connections again",
        _ => "its sidecar listens on both ports",
    };
    Some(text.to_owned())
}

/// What was last said of each pod's sidecar.
fn sidecars_in(entries: &[Entry]) -> HashMap<String, Kind> {
    let about = [Kind::SidecarUp, Kind::SidecarDown, Kind::SidecarHangs];
    let entries = entries.iter().filter(|entry| about.contains(&entry.kind));
    let by_pod = entries.filter_map(|entry| Some((entry.pod.clone()?, entry.kind)));
    by_pod.collect()
}

fn refusal(event: &TraceEvent) -> String {
    format!(
        "{}: an {} connection to {} failed, see `sidetrack why {}`",
        event.rule, event.direction, event.destination, event.pod
    )
}

#[cfg(test)]
mod tests;
