//! The same queries under the rules of iptables and under sidetrack: what programs see is the same.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::Stdio,
    thread,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::{
    command::{Process, run_words},
    network::{Manifest, PodNet},
    protocol::{APP, PROXY},
};

use super::{CAPTURE, DnsFixture, OTHER};
use crate::fixture::{POD, VIP};

const PYTHON: &str = "/usr/bin/python3";
const COMMANDS: [&str; 2] = ["iptables", "ip6tables"];
/// Addresses that name destinations, and are servers here.
const TARGETS: [&str; 2] = ["127.64.1.2", "100:0:0:1::9"];

/// Queries that sidetrack refuses, with EPERM: they name an interface, by which they would leave the pod.
const REFUSED: [&[&str]; 2] = [
    &[
        "connected, IP_UNICAST_IF",
        "connected, IP_PKTINFO with an index",
        "connected, IP_PKTINFO with both",
        "connected, SO_BINDTODEVICE",
        "unconnected, SO_BINDTODEVICE",
    ],
    &[
        "connected, IP_UNICAST_IF",
        "connected, IP_PKTINFO of the socket",
        "connected, SO_BINDTODEVICE",
        "unconnected, SO_BINDTODEVICE",
    ],
];

/// What became of each query.
type Outcomes = BTreeMap<String, String>;

/// Starts the sidecar's server.
pub(super) fn serve(pod: &PodNet) -> Result<Process> {
    let script = include_str!("as_iptables/echo.py");
    let mut server = pod.command(PROXY.uid, Path::new(PYTHON), &["-c", script]);
    let mut server = Process::start(server.stdout(Stdio::piped()))?;
    let stdout = server.stdout.take().context("its output")?;
    BufReader::new(stdout).read_line(&mut String::new())?;
    Ok(server)
}

impl DnsFixture {
    fn in_pod(&self, words: &[&str]) -> Result<String> {
        let netns = self.fixture.pod.netns.as_str();
        run_words(&[&["ip", "netns", "exec", netns], words].concat())
    }

    /// Loads the rules that `sidetrack rules` prints for a pod with the servers of both families.
    fn load_rules(&self, manifest: &Manifest) -> Result<()> {
        let path = self.fixture.lab.dir().join("rules");
        fs::write(&path, manifest.to_string())?;
        let path = path.to_string_lossy();
        for (family, command) in COMMANDS.iter().enumerate() {
            let mut words = vec!["rules", "--manifest", &path, "--format", "iptables"];
            for server in [VIP, OTHER].concat() {
                words.extend(["--dns-server", server]);
            }
            if family == 1 {
                words.push("-6");
            }
            let rules = self.fixture.agent.places.output(&words)?;
            ensure!(rules.status.success(), "{rules:?}");
            let file = self.fixture.lab.dir().join("rules.txt");
            fs::write(&file, rules.stdout)?;
            self.in_pod(&[&format!("{command}-restore"), &file.to_string_lossy()])?;
        }
        Ok(())
    }

    /// Removes them.
    fn flush_rules(&self) -> Result<()> {
        for command in COMMANDS {
            for (table, what) in [("nat", "-F"), ("nat", "-X"), ("raw", "-F"), ("raw", "-X")] {
                self.in_pod(&[command, "-t", table, what])?;
            }
        }
        Ok(())
    }

    fn queries(&self, family: usize, with_target: bool) -> Result<Outcomes> {
        let target = if with_target { TARGETS[family] } else { "" };
        let script = include_str!("as_iptables/queries.py");
        let words = [POD[family], target, VIP[family], OTHER[family]];
        let words = [&["-c", script], &words[..]].concat();
        let mut command = self.fixture.pod.command(APP.uid, Path::new(PYTHON), &words);
        let output = command.output()?;
        let problem = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        ensure!(output.status.success(), "{problem}");
        let lines = String::from_utf8(output.stdout)?;
        let outcomes = lines.lines().filter_map(|line| line.split_once(": "));
        Ok(outcomes
            .map(|(name, outcome)| (name.to_owned(), outcome.to_owned()))
            .collect())
    }

    /// The queries of both families, without a sidecar's server and with one.
    fn all_queries(&self, with_target: bool) -> Result<Vec<Outcomes>> {
        let both = || -> Result<Vec<Outcomes>> {
            thread::scope(|scope| {
                let families =
                    [0, 1].map(|family| scope.spawn(move || self.queries(family, with_target)));
                let families = families.into_iter().map(|it| it.join());
                families
                    .map(|it| it.map_err(|_| anyhow!("a thread panicked"))?)
                    .collect()
            })
        };
        let without = both()?;
        let _server = serve(&self.fixture.pod)?;
        Ok([without, both()?].concat())
    }

    /// Counts what leaves the pod for the sidecar's port from here on.
    fn count_leaving(&self) -> Result<()> {
        let port = CAPTURE.to_string();
        for command in COMMANDS {
            let rule = [
                "-A",
                "POSTROUTING",
                "-o",
                "eth0",
                "-p",
                "udp",
                "--dport",
                &port,
            ];
            self.in_pod(&[&[command, "-t", "mangle"], &rule[..]].concat())?;
        }
        Ok(())
    }

    fn nothing_was_sent(&self) -> Result<()> {
        for command in COMMANDS {
            let listed = self.in_pod(&[command, "-t", "mangle", "-nvxL", "POSTROUTING"])?;
            let last = listed.lines().last().context("the rule")?;
            ensure!(last.split_whitespace().next() == Some("0"), "{listed}");
        }
        Ok(())
    }
}

/// Both do the same, but for what sidetrack refuses. The pod has more rules of others.
fn same_as_iptables(arguments: &[&str], with_target: bool, others: &[[&str; 2]]) -> Result<()> {
    let dns = DnsFixture::without_servers(&[VIP, OTHER].concat())?;
    // As in a cluster with kube-proxy: nothing is to depend on what the kernel does with loopback addresses otherwise.
    dns.in_pod(&["sysctl", "-qw", "net.ipv4.conf.all.route_localnet=1"])?;
    let manifest = dns.manifest(arguments).dual_stack(true);
    let add_others = || {
        let mut rules = others.iter();
        rules.try_for_each(|[command, rule]| {
            let words = [
                &[*command, "-t", "nat"],
                &rule.split(' ').collect::<Vec<_>>()[..],
            ];
            dns.in_pod(&words.concat()).map(drop)
        })
    };
    dns.load_rules(&manifest)?;
    add_others()?;
    let oracle = dns.all_queries(with_target)?;
    dns.flush_rules()?;
    add_others()?;
    dns.enroll(&manifest)?;
    dns.count_leaving()?;
    let ours = dns.all_queries(with_target)?;
    dns.nothing_was_sent()?;
    let mut differing = Vec::new();
    for (number, (oracle, ours)) in oracle.iter().zip(&ours).enumerate() {
        let (family, is_served) = (number % 2, number / 2 == 1);
        ensure!(oracle.len() == ours.len() && !oracle.is_empty());
        for (name, outcome) in ours {
            let wanted = if REFUSED[family].contains(&name.as_str()) {
                "EPERM"
            } else {
                &oracle[name]
            };
            if outcome != wanted {
                differing.push(format!(
                    "{}, served {is_served}: {name}: {outcome}, and not {wanted}",
                    ["IPv4", "IPv6"][family]
                ));
            }
        }
    }
    ensure!(differing.is_empty(), "{}", differing.join("\n"));
    // The rules have done something.
    let answered = oracle[2..].iter().flat_map(Outcomes::values);
    let answered = answered.filter(|it| it.contains("sidecar: query"));
    ensure!(answered.count() > 20, "{oracle:?}");
    Ok(())
}

kernel_test!(queries_to_listed_servers_fare_as_with_iptables);
fn queries_to_listed_servers_fare_as_with_iptables() -> Result<()> {
    same_as_iptables(&["--redirect-dns"], false, &[])
}

kernel_test!(queries_to_any_server_fare_as_with_iptables);
fn queries_to_any_server_fare_as_with_iptables() -> Result<()> {
    same_as_iptables(&["--redirect-dns", "--capture-all-dns"], true, &[])
}

kernel_test!(queries_beside_kubevirts_rules_fare_as_with_iptables);
/// A virtual machine's pod sends what goes to its loopback addresses to the machine.
fn queries_beside_kubevirts_rules_fare_as_with_iptables() -> Result<()> {
    const RULES: [[&str; 2]; 2] = [
        [
            "iptables",
            "-A OUTPUT -d 127.0.0.1/32 -j DNAT --to-destination 10.77.0.254",
        ],
        [
            "ip6tables",
            "-A OUTPUT -d ::1/128 -j DNAT --to-destination fd77::fe",
        ],
    ];
    same_as_iptables(&["--redirect-dns"], false, &RULES)
}
