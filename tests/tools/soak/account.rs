//! Every connection is evaluated here, and is counted under exactly one heading.

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use lab::{agent::Places, network::PodNet};
use parking_lot::{Mutex, RwLock};

use crate::{
    hangs::Hangs,
    targets::{Ending, Kind, Known, SELF, SELF6, SIDECAR_IN, SIDECAR_OUT},
    timeline::{State, Timeline},
    wire::{Hanging, Hop, Outcome, Report, Who},
};

/// How many failures are shown in full.
const SHOWN: usize = 20;

/// What a connection counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Heading {
    /// The sidecar had it, as it should.
    Redirected,
    /// It went where it was going, as it should.
    Untouched,
    /// It failed as it should: no route.
    NoRoute,
    /// It was refused or cut while its sidecar was being restarted or the pod
    /// went.
    FailedClosed,
    /// It failed and should not have.
    Lost,
    /// It arrived elsewhere.
    Misdirected,
    /// It arrived at the sidecar with another original destination.
    WrongOriginal,
    /// It was not the sidecar's and should have been.
    Past,
}

impl Heading {
    /// All, in the order of the table.
    pub const ALL: [Self; 8] = [
        Self::Redirected,
        Self::Untouched,
        Self::NoRoute,
        Self::FailedClosed,
        Self::Lost,
        Self::Misdirected,
        Self::WrongOriginal,
        Self::Past,
    ];

    /// In the table.
    pub fn title(self) -> &'static str {
        match self {
            Self::Redirected => "to sidecar",
            Self::Untouched => "untouched",
            Self::NoRoute => "no route",
            Self::FailedClosed => "failed closed",
            Self::Lost => "LOST",
            Self::Misdirected => "MISDIRECTED",
            Self::WrongOriginal => "WRONG ORIGINAL",
            Self::Past => "PAST SIDECAR",
        }
    }

    /// Whether nothing is wrong.
    pub fn is_fine(self) -> bool {
        self < Self::Lost
    }
}

/// Rows of the table.
pub type Totals = BTreeMap<Kind, [u64; Heading::ALL.len()]>;

/// The books.
#[derive(Debug)]
pub struct Account {
    /// Whether connections are accelerated. A blocking read may then return EAGAIN when the other end goes.
    pub is_accelerated: AtomicBool,
    targets: RwLock<HashMap<u32, Known>>,
    pods: RwLock<HashMap<u16, Arc<Timeline>>>,
    books: Mutex<Books>,
    hangs: Hangs,
}

#[derive(Debug, Default)]
struct Books {
    totals: Totals,
    over_v6: u64,
    failures: Vec<String>,
    failed: u64,
}

impl Account {
    /// An empty one.
    pub fn new(places: Places, outside: PodNet) -> Self {
        Self {
            is_accelerated: AtomicBool::default(),
            targets: RwLock::default(),
            pods: RwLock::default(),
            books: Mutex::default(),
            hangs: Hangs::new(places, outside),
        }
    }

    /// Connections to these will come.
    pub fn announce(&self, targets: &[Known]) {
        let mut known = self.targets.write();
        known.extend(targets.iter().map(|it| (it.target.id, it.clone())));
    }

    /// A pod, and what may be the case with it.
    pub fn add_pod(&self, number: u16, net: &PodNet, timeline: Arc<Timeline>) {
        self.hangs.add_pod(number, net);
        let mut pods = self.pods.write();
        pods.insert(number, timeline);
    }

    /// Something other than a connection went wrong.
    pub fn fail(&self, what: String) {
        let mut books = self.books.lock();
        books.failed += 1;
        if books.failures.len() < SHOWN {
            books.failures.push(what);
        }
    }

    /// Records the state of a connection that hangs, while it does.
    pub fn examine(self: &Arc<Self>, hanging: Hanging) {
        let targets = self.targets.read();
        let Some(known) = targets.get(&hanging.target).cloned() else {
            return self.fail(format!("a report of an unknown connection: {hanging:?}"));
        };
        let account = Arc::clone(self);
        // The reader of the reports continues meanwhile.
        std::thread::spawn(move || account.hangs.examine(hanging, &known));
    }

    /// Connections that have hung for a while, and the first of them in full.
    pub fn hung(&self) -> (u64, Vec<String>) {
        self.hangs.all()
    }

    /// Enters a connection.
    pub fn enter(&self, report: &Report) {
        let targets = self.targets.read();
        let Some(known) = targets.get(&report.target) else {
            drop(targets);
            return self.fail(format!("a report of an unknown connection: {report:?}"));
        };
        let heading = self.evaluate(known, report);
        let mut books = self.books.lock();
        books.over_v6 += u64::from(known.to().is_ipv6());
        let row = books.totals.entry(row(known.kind)).or_default();
        row[heading as usize] += 1;
        if !heading.is_fine() {
            books.failed += 1;
            if books.failures.len() < SHOWN {
                let text = self.describe(heading, known, report);
                books.failures.push(text);
            }
        }
    }

    /// Connections by kind and heading, and how many there are.
    pub fn totals(&self) -> (Totals, u64) {
        let totals = self.books.lock().totals.clone();
        let sum = totals.values().flatten().sum();
        (totals, sum)
    }

    /// How many connections were made over IPv6.
    pub fn over_v6(&self) -> u64 {
        self.books.lock().over_v6
    }

    /// How many things went wrong, and the first of them.
    pub fn failures(&self) -> (u64, Vec<String>) {
        let books = self.books.lock();
        (books.failed, books.failures.clone())
    }

    fn state(&self, pod: Option<u16>, time: [u64; 2]) -> Option<State> {
        let pods = self.pods.read();
        pods.get(&pod?).map(|timeline| timeline.between(time))
    }

    fn evaluate(&self, known: &Known, report: &Report) -> Heading {
        let client = self.state(known.client, report.time);
        let server = self.state(known.server, report.time);
        let any = |test: fn(&State) -> bool| client.iter().chain(&server).any(test);
        let leaving = any(|state| state.leaving);
        let down = any(|state| state.sidecar_down) || leaving;

        let endings = endings(known, client, server);
        match &report.outcome {
            Outcome::NotMade(errno) => {
                // A listener that closes resets what it has not accepted, which connect itself may
                // learn of before it has returned.
                let refused = [libc::ECONNREFUSED, libc::ECONNRESET].contains(errno);
                if endings.contains(&Ending::Fails(*errno)) {
                    Heading::NoRoute
                } else if refused && down || leaving {
                    Heading::FailedClosed
                } else {
                    Heading::Lost
                }
            }
            Outcome::Broken(errno) => {
                let cut = [libc::ECONNRESET, libc::ENOTCONN, libc::EPIPE].contains(errno);
                let woken = *errno == libc::EAGAIN && self.is_accelerated.load(Ordering::Relaxed);
                if (cut || woken) && down || leaving {
                    Heading::FailedClosed
                } else {
                    Heading::Lost
                }
            }
            Outcome::Answered { local, peer, hops } => {
                self.evaluate_hops(known, &endings, down, (*local, *peer), hops)
            }
        }
    }

    fn evaluate_hops(
        &self,
        known: &Known,
        endings: &[Ending],
        down: bool,
        (local, peer): (SocketAddr, SocketAddr),
        hops: &[Hop],
    ) -> Heading {
        let ways = endings.iter().filter_map(|ending| match ending {
            Ending::By(way) => Some(way),
            Ending::Fails(_) => None,
        });
        let came: Vec<(Who, u16)> = hops
            .iter()
            .filter(|hop| hop.port != 0)
            .map(|hop| (hop.who, hop.port))
            .collect();
        let whole = ways.clone().any(|way| *way == came);
        let part = ways.clone().any(|way| way.starts_with(&came));
        let to_sidecar = |(who, port): &(Who, u16)| {
            matches!(who, Who::Sidecar(_)) && [SIDECAR_IN, SIDECAR_OUT].contains(port)
        };
        if !part {
            // It took no expected way. Did it pass fewer sidecars than on every expected way?
            let wanted = ways
                .clone()
                .map(|way| way.iter().filter(|it| to_sidecar(it)).count());
            let had = came.iter().filter(|it| to_sidecar(it)).count();
            return if wanted.min().is_some_and(|wanted| had < wanted) {
                Heading::Past
            } else {
                Heading::Misdirected
            };
        }
        if !ends_agree(known, local, peer, hops) {
            return Heading::Misdirected;
        }
        let wrong =
            |hop: &&Hop| to_sidecar(&(hop.who, hop.port)) && hop.original != Some(known.to());
        if hops.iter().find(wrong).is_some() {
            return Heading::WrongOriginal;
        }
        match (whole, down) {
            (true, _) if came.iter().any(to_sidecar) => Heading::Redirected,
            (true, _) => Heading::Untouched,
            (false, true) => Heading::FailedClosed,
            (false, false) => Heading::Lost,
        }
    }

    fn describe(&self, heading: Heading, known: &Known, report: &Report) -> String {
        let client = self.state(known.client, report.time);
        let server = self.state(known.server, report.time);
        // The verdict is last: it is what one reads of a long report's end.
        let hung = self.hangs.of(report);
        format!(
            "{hung}{}: {} ({:?}) to {} by pod {:?}\n    {:?}\n    took {:.1} ms, from {}\n    allowed: {:?}\n    client {client:?}\n    server {server:?}",
            heading.title(),
            known.kind.title(),
            known.kind,
            known.to(),
            known.client,
            report.outcome,
            (report.time[1] - report.time[0]) as f64 / 1e6,
            report.time[0] / 1_000_000,
            endings(known, client, server),
        )
    }
}

/// Every way in which it may end.
fn endings(known: &Known, client: Option<State>, server: Option<State>) -> Vec<Ending> {
    let possible = |state: Option<State>| -> Vec<_> {
        state.map_or_else(|| vec![None], |state| state.possible().collect())
    };
    let mut endings = Vec::new();
    for client in possible(client) {
        for server in possible(server) {
            let ending = known.ending(client, server);
            if !endings.contains(&ending) {
                endings.push(ending);
            }
        }
    }
    endings
}

/// The names of both ends, all along the way.
fn ends_agree(known: &Known, local: SocketAddr, peer: SocketAddr, hops: &[Hop]) -> bool {
    let first = hops.first().is_none_or(|hop| hop.peer == local);
    // A sidecar connects onwards from its pod's address, or from its own to the app beside it.
    let later = hops.iter().skip(1).filter(|hop| hop.port != 0);
    let onwards = later
        .map(|hop| hop.peer.ip())
        .all(|ip| ip == known.source || ip == SELF || ip == SELF6);
    local.ip() == known.source && peer == known.to() && first && onwards
}

/// Of all the ways to have no route the table has one row.
fn row(kind: Kind) -> Kind {
    match kind {
        Kind::OutNowhere(_) => Kind::OutNowhere(0),
        other => other,
    }
}
