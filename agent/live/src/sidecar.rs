//! What a pod's sidecar does, as far as its listening sockets say.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

/// A connection that has waited this long for a sidecar to accept it is a sign that the sidecar hangs. A sidecar under
/// load takes milliseconds.
const HANG_TIMEOUT: Duration = Duration::from_secs(3);

/// What a pod's sidecar does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum Sidecar {
    /// It listens on both of its ports and accepts what comes.
    Up,
    /// It listens on both of its ports. Whether it accepts is not known: no agent looks.
    Listens,
    /// It listens and does not accept.
    Hangs {
        /// How many connections wait, as far as they are known.
        waiting: u64,
        /// For how long the first of them has waited, in seconds.
        seconds: u64,
    },
    /// It listens on neither port.
    Down,
    /// It listens on its outbound port only.
    OutboundOnly,
    /// It listens on its inbound port only.
    InboundOnly,
    /// It listens on its outbound port, as far as that is known, and not on the one for DNS queries.
    NoDns,
    /// It has never listened, and the pod may reach the network until it does.
    NotYet,
    /// Its last listener was an MPTCP socket, which no map has, and its sockets have not been listed; or an agent of another
    /// version says something that is not known here.
    #[default]
    #[serde(other)]
    Unknown,
}

impl Sidecar {
    /// Whether it listens wherever that can be known, as far as no one sees that it hangs: it has started.
    #[must_use]
    pub const fn is_started(&self) -> bool {
        matches!(self, Self::Up | Self::Listens)
    }
}

/// What the kernel reports of a sidecar's listening sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sockets {
    /// Whether it has never listened, and the pod may reach the network until it does.
    pub not_yet: bool,
    /// Whether it listens on its outbound port; `None` if that is not known.
    pub outbound: Option<bool>,
    /// Whether it listens on its inbound port; `None` if that is not known.
    pub inbound: Option<bool>,
    /// Whether it receives DNS queries; `None` if it is to get none, or that is not known.
    pub dns: Option<bool>,
    /// What waits to be accepted; `None` if it was not read.
    pub queue: Option<Queue>,
}

/// Connections that wait for a sidecar to accept them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// How many.
    pub waiting: u64,
    /// For how long the first of them has waited; `None` if that is not known.
    pub oldest: Option<Duration>,
    /// Whether a socket's queue is full, so that the kernel ignores further connections.
    pub is_full: bool,
}

impl Queue {
    /// Whether the sidecar does not accept.
    #[must_use]
    pub fn hangs(&self) -> bool {
        match self.oldest {
            Some(oldest) => oldest >= HANG_TIMEOUT,
            // Of connections that began with a SYN cookie the kernel does not know when they began.
            None => self.is_full,
        }
    }
}

impl Sidecar {
    /// Decides from what the kernel reports.
    #[must_use]
    pub fn of(sockets: &Sockets) -> Self {
        if let Some(queue) = sockets.queue.filter(Queue::hangs) {
            return Self::Hangs {
                waiting: queue.waiting,
                seconds: queue.oldest.unwrap_or_default().as_secs(),
            };
        }
        if sockets.not_yet {
            return Self::NotYet;
        }
        let (Some(outbound), Some(inbound)) = (sockets.outbound, sockets.inbound) else {
            return Self::Unknown;
        };
        match (outbound, inbound) {
            (true, _) if sockets.dns == Some(false) => Self::NoDns,
            (true, true) if sockets.queue.is_none() => Self::Listens,
            (true, true) => Self::Up,
            (false, false) => Self::Down,
            (true, false) => Self::OutboundOnly,
            (false, true) => Self::InboundOnly,
        }
    }

    /// Connections that wait for a sidecar that hangs.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        match self {
            Self::Hangs { waiting, .. } => *waiting,
            _ => 0,
        }
    }

    /// The word for it.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Listens => "listens",
            Self::Hangs { .. } => "hangs",
            Self::Down => "down",
            Self::OutboundOnly => "out",
            Self::InboundOnly => "in",
            Self::NoDns => "no dns",
            Self::NotYet => "not yet",
            Self::Unknown => "unknown",
        }
    }

    /// What is to be known of it besides its word, as the end of a sentence.
    #[must_use]
    pub fn remark(&self) -> Option<String> {
        let (waiting, seconds) = match self {
            Self::Hangs { waiting, seconds } => (waiting, seconds),
            Self::NoDns => {
                return Some(
                    "its sidecar does not listen on its DNS port, and lookups have no answer"
                        .to_owned(),
                );
            }
            _ => return None,
        };
        let connections = match waiting {
            1 => "1 connection waits".to_owned(),
            waiting => format!("{waiting} connections wait"),
        };
        let first = match seconds {
            0 => String::new(),
            _ => {
                let time = sidetrack_base::duration::text(Duration::from_secs(*seconds));
                format!(", the first for {time}")
            }
        };
        Some(format!(
            "its sidecar listens and does not accept: {connections}{first}"
        ))
    }
}

impl fmt::Display for Sidecar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// How many sidecars are in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SidecarCounts {
    /// Those that listen, and accept as far as that is known.
    pub up: u64,
    /// Those that listen and do not accept.
    pub hangs: u64,
    /// Those that do not listen on one of their ports, or on none.
    pub down: u64,
    /// Those that have never listened, in pods that may reach the network until they do.
    pub not_yet: u64,
    /// Those of which it is not known whether they listen.
    pub unknown: u64,
    /// Connections that wait for sidecars that hang.
    pub waiting: u64,
}

impl SidecarCounts {
    /// Counts.
    pub fn of<'a>(sidecars: impl Iterator<Item = &'a Sidecar>) -> Self {
        let mut counts = Self::default();
        for sidecar in sidecars {
            counts.waiting += sidecar.waiting();
            *match sidecar {
                Sidecar::Up | Sidecar::Listens => &mut counts.up,
                Sidecar::Hangs { .. } => &mut counts.hangs,
                Sidecar::Down | Sidecar::OutboundOnly | Sidecar::InboundOnly | Sidecar::NoDns => {
                    &mut counts.down
                }
                Sidecar::NotYet => &mut counts.not_yet,
                Sidecar::Unknown => &mut counts.unknown,
            } += 1;
        }
        counts
    }

    /// Whether none is down or hangs.
    #[must_use]
    pub fn is_fine(&self) -> bool {
        self.down == 0 && self.hangs == 0
    }
}

impl fmt::Display for SidecarCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} up, {} down, {} hang", self.up, self.down, self.hangs)?;
        if self.hangs > 0 {
            write!(f, " ({} connections wait)", self.waiting)?;
        }
        for (count, word) in [(self.not_yet, "not yet there"), (self.unknown, "unknown")] {
            if count > 0 {
                write!(f, ", {count} {word}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
