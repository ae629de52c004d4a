//! More connections than there are ports: how many of them connect.

use std::{collections::BTreeMap, net::IpAddr, thread, time::Duration};

use anyhow::{Result, anyhow};
use lab::protocol::{APP, Connected, Dial, Identity};

use crate::{
    matrix::{Family, dial, ip},
    pair::{PairedPod, PodPair},
    report::Report,
    target::Target,
};

/// Beyond the number of ports.
const SURPLUS: u16 = 50;

/// They are answered or fail at once, also on a busy machine.
const TIMEOUT_MS: u64 = 5_000;

/// After how long the kernel may use a port in TIME_WAIT again, where it does (`net.ipv4.tcp_tw_reuse_delay`), and some more:
/// the slower of the two would get ports again that the other does not.
const REUSE_DELAY: Duration = Duration::from_millis(1_500);

/// Who accepted, or errno, and how many times.
type Outcomes = BTreeMap<Result<u16, i32>, usize>;

/// Connections of one kind.
struct Crowd {
    name: &'static str,
    creator: Identity,
    /// Used in turn.
    to: Vec<IpAddr>,
    /// Whether all are open at the same time.
    held: bool,
}

impl Crowd {
    /// Whether as many connect in both, with the name of a wanted difference.
    fn evaluate(
        &self,
        oracle: &Outcomes,
        ours: &Outcomes,
        ports: u16,
    ) -> Option<Option<&'static str>> {
        if oracle == ours {
            return Some(None);
        }
        // Some of them leave no port in TIME_WAIT: it depends on which end is closed first.
        let tolerance = usize::from(ports / 100 + 1);
        let connected = |outcomes: &Outcomes| -> usize {
            let connected = outcomes.iter().filter(|(outcome, _)| outcome.is_ok());
            connected.map(|(_, times)| times).sum()
        };
        let (theirs, own) = (connected(oracle), connected(ours));
        let is_same_kind = ours.keys().all(|outcome| oracle.contains_key(outcome));
        if self.held || !is_same_kind || own + tolerance < theirs {
            return None;
        }
        Some((own > theirs + tolerance).then_some(
            "more connections than ports, one after the other: the kernel uses ports in TIME_WAIT sooner for loopback addresses",
        ))
    }
}

/// Makes them in both pods, if the profile has few ports, and compares.
pub fn run(pair: &PodPair, family: Family, target: &Target, report: &mut Report) -> Result<()> {
    let Some(ports) = pair.profile.and_then(|it| it.crowd()) else {
        return Ok(());
    };
    for crowd in crowds(family, target) {
        pair.forget_connections()?;
        let [oracle, ours] = thread::scope(|scope| {
            let oracle = scope.spawn(|| make(&pair.oracle, &crowd, ports));
            let ours = make(&pair.ours, &crowd, ports)?;
            let oracle = oracle.join();
            let oracle = oracle.map_err(|_| anyhow!("the oracle's thread panicked"))??;
            anyhow::Ok([oracle, ours])
        })?;
        if let Some(difference) = crowd.evaluate(&oracle, &ours, ports) {
            report.passed(difference);
        } else {
            let answers = [("iptables", oracle), ("sidetrack", ours)];
            report.failed(
                crowd.name,
                answers.map(|(who, outcomes)| (who, format!("{outcomes:?}"))),
            );
        }
    }
    Ok(())
}

fn crowds(family: Family, target: &Target) -> Vec<Crowd> {
    let [one, closed, many] = match family {
        Family::V4 => ["10.109.121.1", "10.109.122.1", "10.109.123."],
        Family::V6 => ["fd77::121:1", "fd77::122:1", "fd77::123:"],
    };
    let many = (1..=20).map(|host| ip(&format!("{many}{host}"))).collect();
    let own = ip(family.addresses().own);
    let app = |name, to, held| Crowd {
        name,
        creator: APP,
        to,
        held,
    };
    vec![
        app(
            "more connections than ports, to one address",
            vec![ip(one)],
            true,
        ),
        app("more connections than ports, to 20 addresses", many, true),
        app(
            "more connections than ports, one after the other",
            vec![ip(closed)],
            false,
        ),
        Crowd {
            creator: target.proxy(),
            ..app(
                "more connections of the proxy than ports, to its own pod",
                vec![own],
                true,
            )
        },
    ]
}

fn make(pod: &PairedPod, crowd: &Crowd, ports: u16) -> Result<Outcomes> {
    let client = pod.another_client()?;
    let all = crowd.to.iter().cycle().take(usize::from(ports + SURPLUS));
    let one = |to: &IpAddr| Dial {
        patience_ms: TIMEOUT_MS,
        ..dial(&crowd.creator, *to, 80)
    };
    let dials: Vec<Dial> = all.map(one).collect();
    let made = if crowd.held {
        client.hold_all(dials)?
    } else {
        let (first, surplus) = dials.split_at(usize::from(ports));
        let mut made = client.dial_all(first.to_vec())?;
        thread::sleep(REUSE_DELAY);
        made.extend(client.dial_all(surplus.to_vec())?);
        made
    };
    let mut outcomes = Outcomes::new();
    for outcome in made {
        let outcome = outcome.map(|Connected { accepted_by, .. }| accepted_by);
        *outcomes.entry(outcome).or_default() += 1;
    }
    Ok(outcomes)
}
