//! DNS capture: queries go to the sidecar, and its answers come from the server that was asked.

mod as_iptables;
mod down;
mod hostile;
mod resolv_conf;
mod resolvers;
mod sockets;

use std::{fs, net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::{
    actor::Actor,
    network::{Manifest, manifest},
    protocol::{APP, Dial, Identity, PROXY, ROOT},
    sidecar,
    udp::{SendUdp, UdpAnswer},
};

use crate::fixture::{POD, PodFixture, VIP, at, ip};

const DNS: u16 = 53;
const CAPTURE: u16 = 15053;
const LOOPBACK: [&str; 2] = ["127.0.0.1", "::1"];
/// Another server than [`VIP`].
const OTHER: [&str; 2] = ["198.51.100.53", "2001:db8::53"];

/// A pod whose sidecar answers queries, and two servers outside.
struct DnsFixture {
    // Before the pod, whose cgroup is removed with it.
    sidecar: Option<Actor>,
    fixture: PodFixture,
}

impl DnsFixture {
    /// With these servers in its resolv.conf.
    fn new(servers: &[&str]) -> Result<Self> {
        let mut dns = Self::without_servers(servers)?;
        let fixture = &dns.fixture;
        for server in [VIP, OTHER].concat() {
            fixture.outside.answer_udp(&ROOT, at(server, DNS))?;
            fixture.outside.listen(&ROOT, at(server, DNS))?;
        }
        let sidecar = sidecar::start(&fixture.pod, &[80])?;
        for address in LOOPBACK {
            sidecar.answer_udp(&PROXY, at(address, CAPTURE))?;
            sidecar.listen(&PROXY, at(address, CAPTURE))?;
        }
        dns.sidecar = Some(sidecar);
        Ok(dns)
    }

    /// The same, and nothing answers yet.
    fn without_servers(servers: &[&str]) -> Result<Self> {
        let fixture = PodFixture::new()?;
        fixture.lab.add_outside(VIP[1])?;
        for other in OTHER {
            fixture.lab.add_outside(other)?;
        }
        let dns = Self {
            fixture,
            sidecar: None,
        };
        dns.write_resolv_conf(servers)?;
        Ok(dns)
    }

    fn resolv_conf(&self) -> std::path::PathBuf {
        ["/etc/netns", &self.fixture.pod.netns, "resolv.conf"]
            .iter()
            .collect()
    }

    fn write_resolv_conf(&self, servers: &[&str]) -> Result<()> {
        let path = self.resolv_conf();
        fs::create_dir_all(path.parent().context("a directory")?)?;
        let lines: String = servers
            .iter()
            .map(|it| format!("nameserver {it}\n"))
            .collect();
        let aside = path.with_extension("new");
        fs::write(&aside, lines)?;
        Ok(fs::rename(aside, path)?)
    }

    fn manifest(&self, arguments: &[&str]) -> Manifest {
        manifest("app", &self.fixture.pod, &[]).with_istio_init(arguments, &[])
    }

    fn enroll(&self, manifest: &Manifest) -> Result<()> {
        self.fixture.lab.write_manifest("app", manifest)?;
        self.fixture
            .agent
            .places
            .wait_enrolled("test/app")
            .map(drop)
    }

    /// Sends a query.
    fn query(
        &self,
        sender: &Identity,
        to: SocketAddr,
        connected: bool,
    ) -> Result<Result<UdpAnswer, i32>> {
        self.fixture.client.send_udp(SendUdp {
            sender: sender.clone(),
            destination: to,
            source: None,
            connected,
        })
    }

    /// Waits until queries to a server are answered at a port.
    fn wait_port(&self, server: &str, port: u16) -> Result<Duration> {
        self.fixture
            .wait(&format!("{server} is answered at {port}"), || {
                let answer = self.query(&APP, at(server, DNS), false)?;
                Ok(answer.is_ok_and(|it| it.answered_by.port() == port))
            })
    }

    /// Queries go here, and the answer comes from the server.
    fn answered_by(&self, sender: &Identity, server: &str, by: SocketAddr) -> Result<()> {
        let to = at(server, DNS);
        for connected in [true, false] {
            let case = || format!("uid {} to {to}, connected: {connected}", sender.uid);
            let answer = self.query(sender, to, connected)?;
            let answer = answer
                .map_err(|errno| anyhow!("errno {errno}"))
                .with_context(case)?;
            let names = (answer.answered_by, answer.came_from, answer.peer);
            ensure!(
                names == (by, to, connected.then_some(to)),
                "{}: {answer:?}",
                case()
            );
        }
        let dialed = self.fixture.client.dial(Dial::new(sender, to))?;
        let dialed = dialed
            .map_err(|errno| anyhow!("errno {errno}"))
            .with_context(|| format!("TCP to {to}"))?;
        ensure!(dialed.accepted_by == by.port(), "{dialed:?}");
        Ok(())
    }
}

/// Where the sidecar answers queries of a server's family.
fn capture(server: &str) -> SocketAddr {
    let family = usize::from(ip(server).is_ipv6());
    at(LOOPBACK[family], CAPTURE)
}

kernel_test!(queries_to_listed_servers_go_to_the_sidecar);
fn queries_to_listed_servers_go_to_the_sidecar() -> Result<()> {
    let dns = DnsFixture::new(&[VIP[0], VIP[1]])?;
    dns.enroll(&dns.manifest(&["--redirect-dns"]))?;
    for family in [0, 1] {
        dns.answered_by(&APP, VIP[family], capture(VIP[family]))?;
        dns.answered_by(&PROXY, VIP[family], at(VIP[family], DNS))?;
        let other = dns.query(&APP, at(OTHER[family], DNS), false)?;
        ensure!(
            other
                .as_ref()
                .is_ok_and(|it| it.answered_by == at(OTHER[family], DNS)),
            "{other:?}"
        );
    }
    let row = dns
        .fixture
        .agent
        .places
        .pod("test/app")?
        .context("the pod")?;
    let note = format!(
        "its DNS queries to {}, {} (its resolv.conf) go to",
        VIP[0], VIP[1]
    );
    ensure!(row["notes"].to_string().contains(&note), "{row}");
    // The agent sees no listeners on other ports than those of connections.
    let server = format!("{}:{DNS}", VIP[0]);
    let words = ["explain", "test/app", "outbound", "--protocol", "udp"];
    let words = [&words[..], &["--dst", &server, "-o", "json"]].concat();
    let explained = dns.fixture.agent.places.json(&words)?;
    let is_known = !explained["sidecar_listens"].is_null();
    ensure!(explained["port"] == CAPTURE && !is_known, "{explained}");
    Ok(())
}

kernel_test!(without_istio_init_queries_to_any_server_go_to_the_sidecar);
fn without_istio_init_queries_to_any_server_go_to_the_sidecar() -> Result<()> {
    let dns = DnsFixture::new(&[])?;
    let pod = &dns.fixture.pod;
    let all = manifest("app", pod, &[]).with_variable("ISTIO_META_DNS_CAPTURE", "true");
    dns.enroll(&all)?;
    for family in [0, 1] {
        for server in [VIP[family], OTHER[family], POD[family], LOOPBACK[family]] {
            dns.answered_by(&APP, server, capture(server))?;
        }
    }
    Ok(())
}

kernel_test!(what_is_not_captured_is_as_without_sidetrack);
fn what_is_not_captured_is_as_without_sidetrack() -> Result<()> {
    let dns = DnsFixture::new(&[VIP[0]])?;
    // No server of IPv6 is known.
    dns.enroll(&dns.manifest(&["--redirect-dns"]))?;
    dns.answered_by(&APP, VIP[0], capture(VIP[0]))?;
    let answer = dns.query(&APP, at(VIP[1], DNS), false)?;
    ensure!(
        answer
            .as_ref()
            .is_ok_and(|it| it.came_from == at(VIP[1], DNS)),
        "{answer:?}"
    );
    // Excluded, and released.
    dns.enroll(&dns.manifest(&["--redirect-dns", "-o", "53"]))?;
    dns.fixture.wait("the port is excluded", || {
        let answer = dns.query(&APP, at(VIP[0], DNS), false)?;
        Ok(answer.is_ok_and(|it| it.answered_by == at(VIP[0], DNS)))
    })?;
    dns.answered_by(&APP, VIP[0], at(VIP[0], DNS))?;
    dns.fixture.lab.release("app")?;
    dns.answered_by(&APP, VIP[0], at(VIP[0], DNS))
}
