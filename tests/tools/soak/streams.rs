//! Open connections while agents are replaced. The machine has stalls of its own: an equal time
//! without upgrades, and connections that no hook ever sees, distinguish them from ours.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use lab::{
    helper::Helper,
    network::{Lab, PodNet},
    protocol::{APP, Identity, PROXY, ROOT},
};
use nix::sys::signal::Signal;

use crate::{
    chaos,
    helpers::serve,
    targets::{SIDECAR_IN, SIDECAR_OUT, VIP, WEB},
    wire::{Order, Streamed, Work},
};

/// What counts as a stall.
const STALL: Duration = Duration::from_millis(100);
/// Of connections without any hook there are fewer.
const CONTROL_PART: u32 = 4;
/// Stalls this close to each other are one of the machine's: it has too few processors for all that
/// wants to run.
const BESIDE: Duration = Duration::from_millis(100);
/// A new agent is not replaced for this long.
const PAUSE: Duration = Duration::from_millis(500);

/// Who streams. Fields drop in order: processes before what they run in.
struct Streams {
    /// App to service, outside to pod, and without any hook.
    clients: [Helper; 3],
    _servers: [Helper; 2],
}

/// What a period came to.
struct Period {
    title: &'static str,
    seen: [Streamed; 3],
    takeovers: u32,
}

/// Measures; what went wrong, and how many messages were fine.
pub fn run(count: u32, builds: &chaos::Builds, length: Duration) -> Result<(u64, Vec<String>)> {
    let mut lab = Lab::new()?;
    let mut bare = Lab::new()?;
    lab.add_outside(VIP)?;
    let pod = lab.pod("streams", 2)?;
    let control = bare.pod("control", 2)?;
    lab.write_pod("streams", &pod, &[])?;
    let places = lab.places().clone();
    let mut agent = chaos::start(&places, builds, 0)?;
    chaos::wait_ready(&places, &agent)?;
    places.wait_enrolled("test/streams")?;
    let mut streams = Streams::open(count, [(&lab, &pod), (&bare, &control)])?;
    let connections = places.pod("test/streams")?;
    let half = u64::from(count / 2);
    for way in ["outbound_redirected", "inbound_redirected"] {
        let redirected = connections
            .as_ref()
            .and_then(|row| row["connections"][way].as_u64());
        ensure!(
            redirected == Some(half),
            "{way}: {redirected:?} instead of {half}"
        );
    }

    let quiet = streams.period("no upgrades", length, || Ok(0))?;
    let mut build = 0;
    let upgrades = streams.period("upgrades", length, || {
        let begun = Instant::now();
        let mut takeovers = 0;
        while begun.elapsed() < length {
            let before = chaos::programs(&places)?;
            let signal = [Signal::SIGTERM, Signal::SIGKILL][takeovers as usize / 2 % 2];
            agent.end(signal)?;
            build = 1 - build;
            agent = chaos::start(&places, builds, build)?;
            chaos::wait_ready(&places, &agent)?;
            let after = chaos::programs(&places)?;
            let kept = after
                .iter()
                .filter(|(link, id)| before.get(*link) == Some(*id));
            ensure!(
                kept.count() == 0,
                "a takeover has kept programs: {before:?}, {after:?}"
            );
            takeovers += 1;
            thread::sleep(PAUSE);
        }
        Ok(takeovers)
    })?;
    for worker in &streams.clients {
        worker.send(&Order::End)?;
    }
    drop(streams);
    Ok(evaluate(count, &quiet, &upgrades))
}

impl Streams {
    fn open(count: u32, [own, bare]: [(&Lab, &PodNet); 2]) -> Result<Self> {
        let echo = |pod, owner: &Identity, ports: &[u16]| {
            let ports = ports.to_vec();
            serve(pod, owner, Work::Echo { ports })
        };
        let servers = [
            echo(own.1, &PROXY, &[SIDECAR_OUT, SIDECAR_IN])?,
            echo(bare.1, &PROXY, &[WEB])?,
        ];
        let dial = |pod: &PodNet, owner: &Identity, to: std::net::IpAddr, count| {
            let to = std::net::SocketAddr::new(to, WEB);
            serve(pod, owner, Work::Stream { to, count })
        };
        let clients = [
            dial(own.1, &APP, VIP.parse()?, count / 2)?,
            dial(&own.0.outside(), &ROOT, own.1.v4, count / 2)?,
            dial(&bare.0.outside(), &ROOT, bare.1.v4, count / CONTROL_PART)?,
        ];
        Ok(Self {
            clients,
            _servers: servers,
        })
    }

    fn period(
        &mut self,
        title: &'static str,
        length: Duration,
        meanwhile: impl FnOnce() -> Result<u32>,
    ) -> Result<Period> {
        self.seen()?;
        let begun = Instant::now();
        let takeovers = meanwhile()?;
        thread::sleep(length.saturating_sub(begun.elapsed()));
        Ok(Period {
            title,
            seen: self.seen()?,
            takeovers,
        })
    }

    /// What has been seen since this was last asked.
    fn seen(&mut self) -> Result<[Streamed; 3]> {
        let mut seen = [const { None }; 3];
        for (worker, seen) in self.clients.iter_mut().zip(&mut seen) {
            worker.send(&Order::Report)?;
            *seen = Some(worker.hear()?);
        }
        Ok(seen.map(Option::unwrap_or_default))
    }
}

impl Period {
    /// Stalls of intercepted connections that had nothing of the kind beside them on the others.
    fn unexplained(&self) -> usize {
        let [out, arrived, control] = &self.seen;
        let stalls = out
            .late
            .iter()
            .chain(&arrived.late)
            .filter(|late| late.by > STALL);
        stalls
            .filter(|stall| {
                !control
                    .late
                    .iter()
                    .any(|other| other.is_beside(stall, BESIDE))
            })
            .count()
    }

    fn print(&self) {
        println!("{}: {} takeovers\n", self.title, self.takeovers);
        println!(
            "{:<30}{:>12}{:>14}{:>14}{:>12}",
            "", "messages", "over 100 ms", "worst, ms", "broken"
        );
        let titles = ["app -> sidecar", "outside -> sidecar", "no hooks (control)"];
        for (title, seen) in titles.into_iter().zip(&self.seen) {
            println!(
                "{title:<30}{:>12}{:>14}{:>14.1}{:>12}",
                seen.messages,
                seen.late.iter().filter(|late| late.by > STALL).count(),
                seen.worst.as_secs_f64() * 1e3,
                seen.broken.len()
            );
        }
        println!(
            "stalls over 100 ms without one of the control's beside them: {}\n",
            self.unexplained()
        );
    }
}

fn evaluate(count: u32, quiet: &Period, upgrades: &Period) -> (u64, Vec<String>) {
    println!("{count} connections open, a message on each every 250 ms\n");
    quiet.print();
    upgrades.print();
    let mut failures = Vec::new();
    for period in [quiet, upgrades] {
        for seen in &period.seen {
            let broken = seen.broken.iter();
            failures.extend(
                broken.map(|error| format!("{}: a connection ended: {error}", period.title)),
            );
            if seen.messages == 0 {
                failures.push(format!("{}: nothing was measured", period.title));
            }
        }
    }
    let (own, machine) = (upgrades.unexplained(), quiet.unexplained());
    if own > machine {
        failures.push(format!(
            "{own} stalls over 100 ms while agents were replaced, {machine} while they were not"
        ));
    }
    if upgrades.takeovers == 0 {
        failures.push("no agent was replaced".to_owned());
    }
    let messages = quiet
        .seen
        .iter()
        .chain(&upgrades.seen)
        .map(|seen| seen.messages);
    (messages.sum(), failures)
}
