//! A pod whose connections are counted, and what the kernel and the metrics show of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{SocketAddr, TcpListener},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::{
    actor::Actor,
    agent::{Agent, Extra},
    command::run,
    injected::with_istio_init,
    network::{BESIDE, Lab, PodNet},
    protocol::{APP, Dial, Identity, ROOT},
    sidecar,
};
use sidetrack_common::{count::EARLIER_POLICIES, rule::Rule};

use super::policies::{Case, TestPolicy, Way};
use crate::fixture::at;

/// Addresses outside.
const OUTSIDE: [&str; 5] = [
    "10.109.118.31",
    "10.109.119.1",
    "10.109.120.1",
    "10.109.121.1",
    "10.109.122.1",
];
/// The agent reuses its totals for a second. Scrapes over this time read the kernel more than once.
const SEVERAL_READS: Duration = Duration::from_millis(2500);
/// How long metrics may take to show the last connections.
const SHOWN: Duration = Duration::from_secs(5);

/// What the maps hold: connections by rule number and position.
type Counts = BTreeMap<(u32, u32), u64>;

/// A pod with two interfaces, and what its connections should have counted so far.
pub struct Counted {
    _sidecar: Actor,
    client: Actor,
    outside: Actor,
    agent: Agent,
    address: String,
    /// By the rule's name.
    expected: BTreeMap<String, u64>,
    pod: PodNet,
    lab: Lab,
}

impl Counted {
    pub fn new() -> Result<Self> {
        let mut lab = Lab::new()?;
        for address in OUTSIDE {
            lab.add_outside(address)?;
        }
        let pod = lab.pod("app", 2)?;
        pod.furnish(&lab.outside())?;
        let outside = lab.outside().actor()?;
        for port in [80, 81, 82, 91, 92] {
            sidecar::listen(&outside, &ROOT, port)?;
        }
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        drop(listener);
        Ok(Self {
            _sidecar: sidecar::start(&pod, &[80, 8081, 8082, 8083])?,
            client: pod.actor()?,
            outside,
            agent: Agent::start_with(
                lab.places(),
                &Extra::arguments(&[
                    "--metrics-addr",
                    &address,
                    "--virtual-interfaces",
                    "local-only",
                ]),
            )?,
            address,
            expected: BTreeMap::new(),
            pod,
            lab,
        })
    }

    /// Enrolls the pod under a policy, or changes the policy.
    pub fn enroll(&self, policy: &TestPolicy) -> Result<()> {
        let manifest = with_istio_init(&self.pod, policy.arguments, policy.variables);
        self.lab.enroll_manifest("app", &manifest)
    }

    pub fn release(&self) -> Result<()> {
        self.lab.release("app")
    }

    pub fn connect(&self, way: &Way) -> Result<()> {
        let dial = |from: &Actor, who: &Identity, to: SocketAddr, device: Option<&str>| {
            let mut dial = Dial::new(who, to);
            dial.device = device.map(str::to_owned);
            from.dial(dial)
        };
        let connected = match way {
            Way::Out((uid, gid), address, port) => {
                let who = Identity::with_gid(*uid, *gid);
                dial(&self.client, &who, at(address, *port), None)?
            }
            Way::In(port) => dial(&self.outside, &ROOT, at("10.77.0.2", *port), None)?,
            Way::InByEth1(port) => {
                dial(&self.outside, &ROOT, at("10.78.0.2", *port), Some(BESIDE))?
            }
        };
        connected
            .map(drop)
            .map_err(|errno| anyhow!("{way:?}: errno {errno}"))
    }

    /// What the kernel has counted for the pod under its policy.
    fn counts(&self) -> Result<Counts> {
        let pod = self.agent.places.pod("test/app")?.context("the pod")?;
        let cookie = pod["netns"]["cookie"].as_u64().context("its cookie")?;
        let policy = pod["policy_id"].as_u64();
        let maps = self.lab.places().maps()?;
        let sums = maps.counts.rows()?.into_iter();
        Ok(sums
            .filter(|(key, _)| key.netns == cookie && Some(u64::from(key.policy)) == policy)
            .map(|(key, count)| ((key.rule, key.index), count))
            .collect())
    }

    /// What `sidetrack rules` shows: connections by rule as iptables writes it.
    fn lines(&self) -> Result<Vec<(String, u64)>> {
        let rows = self
            .agent
            .places
            .json(&["rules", "test/app", "-o", "json"])?;
        let rows = rows.as_array().context("a list of rules")?.iter();
        Ok(rows
            .filter(|row| row["scope"] == "line")
            .filter_map(|row| {
                let text = row["rule"].as_str()?.to_owned();
                Some((text, row["connections"].as_u64()?))
            })
            .collect())
    }

    /// Makes one connection. It must raise the counter of its rule and position by one, and no other;
    /// the line of the rule shows it.
    pub fn check(&mut self, case: &Case) -> Result<()> {
        let (before, lines_before) = (self.counts()?, self.lines()?);
        self.connect(&case.way)?;
        let mut wanted = before;
        *wanted.entry((case.rule as u32, case.index)).or_default() += 1;
        let after = self.counts()?;
        ensure!(
            after == wanted,
            "{case:?}: the counters are {after:?} instead of {wanted:?}"
        );
        let raised: Vec<_> = lines_before
            .into_iter()
            .zip(self.lines()?)
            .filter(|(before, after)| before != after)
            .collect();
        let shown = match (raised.as_slice(), case.line) {
            ([], None) => true,
            ([((text, before), (_, after))], Some(line)) => {
                text.contains(line) && *after == before + 1
            }
            _ => false,
        };
        ensure!(shown, "{case:?}: `sidetrack rules` shows {raised:?}");
        self.expect(case.rule);
        Ok(())
    }

    /// One more connection was decided by this rule.
    pub fn expect(&mut self, rule: Rule) {
        *self.expected.entry(rule.name().to_owned()).or_default() += 1;
    }

    /// Connections by rule in one scrape.
    fn scrape(&self) -> Result<BTreeMap<String, u64>> {
        let page = run(&format!("curl -sf http://{}/metrics", self.address))?;
        let prefix = "sidetrack_connections_total{rule=\"";
        page.lines()
            .filter_map(|line| line.strip_prefix(prefix)?.split_once("\"} "))
            .map(|(rule, count)| Ok((rule.to_owned(), count.parse()?)))
            .collect()
    }

    /// Metrics show exactly the expected connections, never fewer than in the scrape before, and the
    /// same in each scrape from then on.
    pub fn metrics_agree(&self, what: &str) -> Result<()> {
        let start = Instant::now();
        let mut last = self.scrape()?;
        while last != self.expected {
            ensure!(
                start.elapsed() < SHOWN,
                "{what}: metrics are {last:?} instead of {:?}",
                self.expected
            );
            thread::sleep(Duration::from_millis(50));
            let next = self.scrape()?;
            for (rule, count) in &last {
                ensure!(
                    next.get(rule) >= Some(count),
                    "{what}: {rule} was {count}: {next:?}"
                );
            }
            last = next;
        }
        let equal = Instant::now();
        while equal.elapsed() < SEVERAL_READS {
            let next = self.scrape()?;
            ensure!(
                next == self.expected,
                "{what}: without traffic metrics became {next:?} instead of {:?}",
                self.expected
            );
            thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// `sidetrack pods` has every connection once.
    pub fn pod_agrees(&self, what: &str) -> Result<()> {
        let pod = self.agent.places.pod("test/app")?.context("the pod")?;
        let shown = pod["connections"].as_object().context("connections")?;
        let shown: u64 = shown.values().filter_map(serde_json::Value::as_u64).sum();
        let expected: u64 = self.expected.values().sum();
        ensure!(shown == expected, "{what}: {shown} instead of {expected}");
        Ok(())
    }

    /// The kernel has the counters of one policy, and one for each rule of those before.
    pub fn has_counters_of_one_policy(&self) -> Result<()> {
        let maps = self.lab.places().maps()?;
        let keys = maps.counts.keys()?.into_iter();
        let policies: BTreeSet<u32> = keys.map(|key| key.policy).collect();
        ensure!(
            policies.len() == 2 && policies.contains(&EARLIER_POLICIES),
            "{policies:?}"
        );
        Ok(())
    }

    /// A pinned map as bpftool shows it: its rows, with the names and texts that BTF has.
    pub fn dump(&self, map: &str) -> Result<Vec<serde_json::Value>> {
        let mut rows = self.agent.places.map(map)?;
        Ok(rows.iter_mut().map(|row| row["formatted"].take()).collect())
    }

    /// Enrolls the pod for both families.
    pub fn enroll_dual_stack(&self) -> Result<()> {
        let manifest = with_istio_init(&self.pod, &[], &[("ISTIO_DUAL_STACK", "true")]);
        self.lab.enroll_manifest("app", &manifest)
    }

    /// Connects over IPv6; whether anybody answers does not matter.
    pub fn connect_v6(&self) -> Result<()> {
        let to = at("fd99::31", 80);
        self.client.dial(Dial::new(&APP, to)).map(drop)
    }

    /// What `sidetrack rules` shows for the line that redirects everything.
    pub fn out_all(&self, words: &[&str]) -> Result<u64> {
        let words = [&["rules", "test/app", "-o", "json"], words].concat();
        let rows = self.agent.places.json(&words)?;
        let rows = rows.as_array().context("rows")?;
        let row = rows.iter().find(|row| row["name"] == "out-all");
        row.context("out-all")?["connections"]
            .as_u64()
            .context("a number")
    }
}
