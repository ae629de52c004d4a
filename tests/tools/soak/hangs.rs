//! What the kernel has of a connection while it hangs. Afterwards neither the socket nor its rows are there.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    path::Path,
};

use anyhow::{Context as _, Result};
use lab::{
    agent::Places,
    network::PodNet,
    product::{Maps, Netns, Pins},
};
use parking_lot::{Mutex, RwLock};

use crate::{
    targets::Known,
    wire::{Hanging, Report, now},
};

/// How many are examined: a run in which everything hangs is not to be about that.
const EXAMINED: usize = 10;
/// How many of those are shown if they were made in the end.
const SHOWN: usize = 2;
/// How many handshake rows of a pod are shown.
const ROWS: usize = 20;

/// At both ends: sockets, neighbors, interfaces and counters.
const SCRIPT: &str = "
echo '-- connecting'; ss -Hntoie state syn-sent | sed 's/ cgroup:[^ ]*//'
echo '-- half open'; ss -Hnto state syn-recv
echo '-- connected, the first 20'; ss -Hntoi state established | head -n 20
echo '-- listening (Recv-Q: waiting for accept)'; ss -Hntle | sed 's/ cgroup:[^ ]*//'
echo '-- packets dropped by each processor since the machine started: its queue was full'
while read -r _ dropped _; do echo $((0x$dropped)); done < /proc/net/softnet_stat
echo '-- neighbors'; ip neigh
echo '-- interfaces'; ip -br link
echo '-- counters'; nstat -as | grep -E '^(Tcp|Ip.*(Discards|NoRoutes|AddrErrors))'
";

/// Connections that have hung.
#[derive(Debug)]
pub struct Hangs {
    places: Places,
    outside: PodNet,
    pods: RwLock<HashMap<u16, PodNet>>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    count: u64,
    texts: BTreeMap<Hanging, String>,
}

impl Hangs {
    /// None yet.
    pub fn new(places: Places, outside: PodNet) -> Self {
        Self {
            places,
            outside,
            pods: RwLock::default(),
            seen: Mutex::default(),
        }
    }

    /// A pod that may be at an end of one.
    pub fn add_pod(&self, number: u16, net: &PodNet) {
        self.pods.write().insert(number, net.clone());
    }

    /// Records what there is of one.
    pub fn examine(&self, hanging: Hanging, known: &Known) {
        let mut seen = self.seen.lock();
        seen.count += 1;
        if seen.texts.len() >= EXAMINED {
            return;
        }
        // The report of its end may come at any time.
        seen.texts.insert(hanging, String::new());
        drop(seen);
        let text = self.describe(hanging, known);
        self.seen.lock().texts.insert(hanging, text);
    }

    /// How many there were, and what there was of the first.
    pub fn all(&self) -> (u64, Vec<String>) {
        let seen = self.seen.lock();
        let texts = seen.texts.values().filter(|text| !text.is_empty());
        (seen.count, texts.take(SHOWN).cloned().collect())
    }

    /// What there was of a connection, to stand before its description; nothing if it did not hang.
    pub fn of(&self, report: &Report) -> String {
        let hanging = Hanging {
            target: report.target,
            since: report.time[0],
        };
        let seen = self.seen.lock();
        let text = seen.texts.get(&hanging).filter(|text| !text.is_empty());
        text.map(|text| format!("{}\n", text.replace('\n', "\n    ")))
            .unwrap_or_default()
    }

    fn describe(&self, hanging: Hanging, known: &Known) -> String {
        let mut text = format!(
            "{} to {} by pod {:?}, after {} ms:",
            known.kind.title(),
            known.to(),
            known.client,
            (now() - hanging.since) / 1_000_000
        );
        for (end, pod) in [("client", known.client), ("server", known.server)] {
            let net = match pod {
                None => Some(self.outside.clone()),
                Some(pod) => {
                    let pods = self.pods.read();
                    pods.get(&pod).cloned()
                }
            };
            let Some(net) = net else { continue };
            let _ = write!(text, "\n- {end}, {}\n{}", net.netns, sockets(&net));
            let rows = rows(&self.places, &net).unwrap_or_else(|error| format!("{error:#}"));
            let _ = write!(text, "-- rows\n{rows}");
        }
        text
    }
}

/// What commands say inside. They run in the cgroup of the pod: elsewhere the agent would notice them.
fn sockets(net: &PodNet) -> String {
    match net.command(0, Path::new("sh"), &["-c", SCRIPT]).output() {
        Ok(output) => {
            let [out, problems] =
                [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
            format!("{out}{problems}")
        }
        Err(error) => format!("{error}\n"),
    }
}

/// Rows of a pod.
fn rows(places: &Places, net: &PodNet) -> Result<String> {
    let cookie = Netns::open(Path::new(&net.path()))?.cookie();
    let maps = Maps::open(&Pins::new(&places.bpffs)?)?;
    let mut text = format!("netns cookie {cookie}");
    if let Some(pod) = maps.pods.get(&cookie)? {
        let policy = maps.policies.get(&pod.policy)?;
        let ports = policy.map(|it| (it.outbound_port, it.inbound_port));
        let _ = write!(text, ", policy {} with ports {ports:?}", pod.policy);
    } else {
        text += ", not enrolled";
    }
    let count = maps.handshakes_by_pod.get(&cookie)?.unwrap_or_default();
    let _ = writeln!(text, ", {count} handshakes counted");
    let keys = maps.handshakes.keys().context("list handshakes")?;
    for key in keys.iter().filter(|key| key.netns == cookie).take(ROWS) {
        // It may be removed meanwhile.
        if let Some(row) = maps.handshakes.get(key)? {
            let _ = writeln!(text, "{key:?} {row:?}");
        }
    }
    for key in maps.listeners.keys().context("list listeners")? {
        if key.netns == cookie {
            // As `ss` writes cookies.
            let socket = maps.listeners.get(&key)?.unwrap_or_default();
            let _ = writeln!(text, "{key:?} sk:{socket:x}");
        }
    }
    Ok(text)
}
