//! Pods in Istio's ambient mode, with a stand-in for ztunnel: a process of another pod that makes its sockets in the
//! pod's network, with IP_TRANSPARENT and a mark.

mod probes;
mod server;
mod starts;

use std::net::SocketAddr;

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::{
    actor::Actor,
    agent::{Agent, Extra, is},
    command::run,
    network::{Lab, Manifest, PodNet},
    protocol::{APP, Connected, Dial, Listen, ROOT},
    udp::SendUdp,
};
use serde_json::json;

use crate::fixture::{POD, VIP, at, original};

const MARK: u32 = 0x539;
const OUTBOUND: u16 = 15001;
const INBOUND: u16 = 15006;
const HBONE: u16 = 15008;
const DNS: u16 = 15053;
const LOOPBACK: [&str; 2] = ["127.0.0.1", "::1"];
/// An address that no process has.
const CLIENT: [&str; 2] = ["198.51.100.7", "2001:db8::7"];

/// A pod in ambient mode, a node's ztunnel, and servers outside.
struct Ambient {
    ztunnel: Actor,
    app: Actor,
    outside: Actor,
    agent: Agent,
    /// Another pod, that of ztunnel's process.
    other: PodNet,
    pod: PodNet,
    lab: Lab,
}

impl Ambient {
    /// All listen, and the pod is enrolled.
    fn new() -> Result<Self> {
        let ambient = Self::before_enrollment()?;
        ambient.enroll(&[])?;
        ambient.listen()?;
        Ok(ambient)
    }

    /// Only the app listens, and the servers outside.
    fn before_enrollment() -> Result<Self> {
        Self::build(false)
    }

    fn build(outside_is_node: bool) -> Result<Self> {
        let mut lab = Lab::new()?;
        for vip in VIP {
            lab.add_outside(vip)?;
        }
        let pod = lab.pod("app", 2)?;
        let node_proxy = lab.pod("ztunnel", 3)?;
        let outside = lab.outside().actor()?;
        let app = pod.actor()?;
        for port in [80, 53, HBONE] {
            listen(&outside, port)?;
        }
        listen(&app, 80)?;
        for vip in VIP {
            outside.answer_udp(&ROOT, at(vip, 53))?;
        }
        let agent = start_agent(&lab, outside_is_node)?;
        Ok(Self {
            ztunnel: Actor::visit(&pod.netns, &node_proxy.cgroup, MARK)?,
            app,
            outside,
            agent,
            other: node_proxy,
            pod,
            lab,
        })
    }

    fn enroll(&self, annotations: &[(&str, &str)]) -> Result<()> {
        let manifest = manifest(&self.pod).annotated(annotations);
        self.lab.enroll_manifest("app", &manifest)
    }

    /// ztunnel listens.
    fn listen(&self) -> Result<()> {
        for port in [OUTBOUND, INBOUND, HBONE] {
            listen(&self.ztunnel, port)?;
        }
        for own in LOOPBACK {
            self.ztunnel.listen(&ROOT, at(own, DNS))?;
            self.ztunnel.answer_udp(&ROOT, at(own, DNS))?;
        }
        Ok(())
    }
}

fn start_agent(lab: &Lab, outside_is_node: bool) -> Result<Agent> {
    let node = lab.outside().path();
    let arguments = ["--ambient", "--node-netns", &node];
    Agent::start_with(
        lab.places(),
        &Extra::arguments(&arguments[..if outside_is_node { 3 } else { 1 }]),
    )
}

fn manifest(pod: &PodNet) -> Manifest {
    Manifest::new("app", pod)
        .labeled("istio.io/dataplane-mode", "ambient")
        .edited(|pod| pod["spec"]["containers"] = json!([{"name": "app"}]))
}

/// One socket for both families, as ztunnel's are.
fn listen(actor: &Actor, port: u16) -> Result<()> {
    let listen = Listen {
        address: at("::", port),
        owner: ROOT,
        sockets: 1,
        v6_only: false,
        transparent: true,
        mptcp: false,
    };
    actor.listen_group(listen).map(drop)
}

/// Checks who accepts a connection, what that one's socket says was dialed, and that it sees the client's address.
fn arrives(from: &Actor, dial: Dial, by: u16) -> Result<Connected> {
    let to = dial.destination;
    let made = from
        .dial(dial)?
        .map_err(|errno| anyhow!("to {to}: errno {errno}"))?;
    let canonical = |it: SocketAddr| SocketAddr::new(it.ip().to_canonical(), it.port());
    ensure!(made.accepted_by == by, "to {to}: not by {by}: {made:?}");
    let dialed = canonical(original(&made.server, to).unwrap_or(made.server.local));
    ensure!(dialed == to, "to {to}: the server: {made:?}");
    ensure!(canonical(made.client.peer) == to, "the client: {made:?}");
    let (sees, has) = (canonical(made.server.peer), canonical(made.client.local));
    ensure!(sees == has, "the ends differ: {made:?}");
    Ok(made)
}

fn by_app(to: SocketAddr) -> Dial {
    Dial::new(&APP, to)
}

fn by_ztunnel(to: SocketAddr) -> Dial {
    Dial::new(&ROOT, to)
}

kernel_test!(what_the_app_dials_goes_to_ztunnel, needs INGRESS_INTERFACE);
fn what_the_app_dials_goes_to_ztunnel() -> Result<()> {
    let ambient = Ambient::new()?;
    for family in [0, 1] {
        let (vip, own) = (VIP[family], POD[family]);
        let made = arrives(&ambient.app, by_app(at(vip, 80)), OUTBOUND)?;
        ensure!(made.client.local.ip() == at(own, 0).ip(), "{made:?}");
        // Whichever process made it, and also by the port of a tunnel.
        arrives(&ambient.app, by_ztunnel(at(vip, 80)), OUTBOUND)?;
        arrives(&ambient.app, by_app(at(vip, HBONE)), OUTBOUND)?;
        // What stays in the pod is not redirected.
        arrives(&ambient.app, by_app(at(own, 80)), 80)?;
        arrives(&ambient.app, by_app(at(LOOPBACK[family], 80)), 80)?;
    }
    Ok(())
}

kernel_test!(ztunnel_s_own_sockets_are_not_redirected, needs INGRESS_INTERFACE);
fn ztunnel_s_own_sockets_are_not_redirected() -> Result<()> {
    let ambient = Ambient::new()?;
    for family in [0, 1] {
        let (vip, own) = (VIP[family], POD[family]);
        for port in [80, 53] {
            arrives(&ambient.ztunnel, by_ztunnel(at(vip, port)), port)?;
        }
        for (to, port) in [(own, 80), (own, HBONE), (LOOPBACK[family], 80)] {
            arrives(&ambient.ztunnel, by_ztunnel(at(to, port)), port)?;
        }
        let answer = ambient.ztunnel.send_udp(SendUdp {
            sender: ROOT,
            destination: at(vip, 53),
            source: None,
            connected: false,
        })?;
        let answer = answer.map_err(|errno| anyhow!("a query: errno {errno}"))?;
        ensure!(answer.answered_by == at(vip, 53), "{answer:?}");
    }
    Ok(())
}

kernel_test!(the_app_is_not_given_ztunnel_s_mark, needs INGRESS_INTERFACE);
/// It could connect a socket that it has accepted to anywhere, and would pass as ztunnel.
fn the_app_is_not_given_ztunnel_s_mark() -> Result<()> {
    let ambient = Ambient::new()?;
    for family in [0, 1] {
        for to in [POD[family], LOOPBACK[family]] {
            let held = ambient.ztunnel.hold(by_ztunnel(at(to, 80)))?;
            held.map_err(|errno| anyhow!("to {to}: errno {errno}"))?;
        }
    }
    let accepted = run(&format!(
        "ip netns exec {} ss -Htne state established sport = :80",
        ambient.pod.netns
    ))?;
    ensure!(accepted.lines().count() == 4, "{accepted}");
    ensure!(!accepted.contains("fwmark:0x539"), "{accepted}");
    Ok(())
}

kernel_test!(what_comes_from_outside_goes_to_ztunnel, needs INGRESS_INTERFACE);
fn what_comes_from_outside_goes_to_ztunnel() -> Result<()> {
    let ambient = Ambient::new()?;
    for own in POD {
        for port in [80, 22, OUTBOUND, INBOUND, DNS] {
            arrives(&ambient.outside, Dial::new(&ROOT, at(own, port)), INBOUND)?;
        }
        arrives(&ambient.outside, Dial::new(&ROOT, at(own, HBONE)), HBONE)?;
    }
    Ok(())
}

kernel_test!(the_app_sees_the_client_that_ztunnel_calls_it_for, needs INGRESS_INTERFACE);
fn the_app_sees_the_client_that_ztunnel_calls_it_for() -> Result<()> {
    let ambient = Ambient::new()?;
    for family in [0, 1] {
        let (own, client) = (POD[family], CLIENT[family]);
        let call = |from: &str, port: u16| {
            let mut dial = by_ztunnel(at(own, port));
            dial.source = Some(at(from, 0));
            dial.transparent = true;
            dial
        };
        let made = arrives(&ambient.ztunnel, call(client, 80), 80)?;
        let sees = made.server.peer.ip().to_canonical();
        ensure!(sees == at(client, 0).ip(), "{made:?}");
        // From its own address, as for an app that calls itself.
        let made = arrives(&ambient.ztunnel, call(own, 80), 80)?;
        ensure!(
            made.server.peer.ip().to_canonical() == at(own, 0).ip(),
            "{made:?}"
        );
        let closed = ambient.ztunnel.dial(call(client, 9))?;
        ensure!(
            closed.as_ref().err() == Some(&libc::ECONNREFUSED),
            "{closed:?}"
        );
    }
    // A client that has this address is outside, whatever calls ztunnel makes in its name.
    ambient.lab.add_outside(CLIENT[0])?;
    let mut dial = Dial::new(&ROOT, at(POD[0], 80));
    dial.source = Some(at(CLIENT[0], 0));
    arrives(&ambient.outside, dial, INBOUND).map(drop)
}

kernel_test!(queries_go_to_ztunnel, needs INGRESS_INTERFACE);
fn queries_go_to_ztunnel() -> Result<()> {
    let ambient = Ambient::new()?;
    let query = |to: SocketAddr, connected: bool| {
        let answer = ambient.app.send_udp(SendUdp {
            sender: APP,
            destination: to,
            source: None,
            connected,
        })?;
        answer.map_err(|errno| anyhow!("a query to {to}: errno {errno}"))
    };
    for (vip, own) in VIP.into_iter().zip(LOOPBACK) {
        let server = at(vip, 53);
        arrives(&ambient.app, by_app(server), DNS)?;
        for connected in [false, true] {
            let answer = query(server, connected)?;
            let found = (answer.answered_by, answer.came_from);
            ensure!(found == (at(own, DNS), server), "{connected}: {answer:?}");
        }
    }
    ambient.enroll(&[("ambient.istio.io/dns-capture", "false")])?;
    for vip in VIP {
        let server = at(vip, 53);
        arrives(&ambient.app, by_app(server), OUTBOUND)?;
        let answer = query(server, false)?;
        ensure!(answer.answered_by == server, "{answer:?}");
    }
    Ok(())
}

kernel_test!(an_ingress_keeps_what_comes_from_outside, needs INGRESS_INTERFACE);
fn an_ingress_keeps_what_comes_from_outside() -> Result<()> {
    let ambient = Ambient::before_enrollment()?;
    ambient.enroll(&[("ambient.istio.io/bypass-inbound-capture", "true")])?;
    ambient.listen()?;
    for (own, vip) in POD.into_iter().zip(VIP) {
        arrives(&ambient.outside, Dial::new(&ROOT, at(own, 80)), 80)?;
        arrives(&ambient.app, by_app(at(vip, 80)), OUTBOUND)?;
    }
    Ok(())
}

kernel_test!(listeners_of_a_ztunnel_that_was_there_first_are_found, needs INGRESS_INTERFACE);
fn listeners_of_a_ztunnel_that_was_there_first_are_found() -> Result<()> {
    let ambient = Ambient::before_enrollment()?;
    ambient.listen()?;
    ambient.enroll(&[])?;
    for (own, vip) in POD.into_iter().zip(VIP) {
        arrives(&ambient.outside, Dial::new(&ROOT, at(own, 80)), INBOUND)?;
        arrives(&ambient.app, by_app(at(vip, 80)), OUTBOUND)?;
    }
    Ok(())
}

kernel_test!(without_ztunnel_nothing_gets_through, needs INGRESS_INTERFACE);
fn without_ztunnel_nothing_gets_through() -> Result<()> {
    let ambient = Ambient::before_enrollment()?;
    ambient.enroll(&[])?;
    for (own, vip) in POD.into_iter().zip(VIP) {
        for (from, dial) in [
            (&ambient.app, by_app(at(vip, 80))),
            (&ambient.outside, Dial::new(&ROOT, at(own, 80))),
        ] {
            let result = from.dial(dial)?;
            let is_refused = result.as_ref().err() == Some(&libc::ECONNREFUSED);
            ensure!(is_refused, "{result:?}");
        }
    }
    Ok(())
}

kernel_test!(an_agent_without_the_flag_leaves_ambient_pods_alone, needs INGRESS_INTERFACE);
fn an_agent_without_the_flag_leaves_ambient_pods_alone() -> Result<()> {
    let mut ambient = Ambient::new()?;
    ambient.agent.end(nix::sys::signal::Signal::SIGTERM)?;
    ambient.agent = Agent::start(ambient.lab.places())?;
    let skipped = is("skipped", "it has no sidecar");
    ambient.agent.places.wait_pod("test/app", skipped)?;
    arrives(&ambient.app, by_app(at(VIP[0], 80)), 80)?;
    arrives(&ambient.outside, Dial::new(&ROOT, at(POD[0], 80)), 80)?;
    Ok(())
}

kernel_test!(an_ambient_pod_is_shown_as_one, needs INGRESS_INTERFACE);
fn an_ambient_pod_is_shown_as_one() -> Result<()> {
    let ambient = Ambient::new()?;
    arrives(&ambient.app, by_app(at(VIP[0], 80)), OUTBOUND)?;
    let places = &ambient.agent.places;
    let pod = places.pod("test/app")?.context("the pod")?;
    ensure!(pod["policy"]["dialect"] == "ambient", "{pod:#}");
    let rules = places.output(&["rules", "test/app", "--format", "iptables"])?;
    let text = String::from_utf8(rules.stdout)?;
    ensure!(text.contains("--mark 0x539/0xfff"), "{text}");
    Ok(())
}
