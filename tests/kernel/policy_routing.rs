//! Pods with rules of policy routing: what leaves by which device depends on the socket.

use anyhow::{Result, ensure};
use lab::{
    network::set_sysctl,
    protocol::{APP, Connected, Dial, PROXY, ROOT},
    sidecar,
};
use nix::sys::signal::Signal;

use crate::{
    facilities::refusal,
    fixture::{Arrives, POD, PodFixture, SECOND, VIP, at, check, ip},
};

const EXCLUDED: (&str, &str) = ("traffic.sidecar.istio.io/excludeInterfaces", "eth1");

/// A pod with two interfaces, of which the second is excluded.
fn fixture() -> Result<(PodFixture, lab::actor::Actor)> {
    let fixture = PodFixture::new()?;
    fixture.lab.add_outside(VIP[1])?;
    fixture.outside.listen(&ROOT, at("::", 80))?;
    fixture.pod.furnish(&fixture.lab.outside())?;
    let sidecar = sidecar::start(&fixture.pod, &[80])?;
    Ok((fixture, sidecar))
}

fn gateways() -> [(&'static str, &'static str); 2] {
    [("", "10.78.0.254"), ("-6 ", "fd78::fe")]
}

/// The second interface's routes are in a table of their own.
fn add_table(fixture: &PodFixture) -> Result<()> {
    for (family, gateway) in gateways() {
        let route = format!("{family}route add default via {gateway} dev eth1 table 100");
        fixture.pod.ip(&route)?;
    }
    Ok(())
}

/// Checks that the service has the connection, from this address.
fn is_direct(result: &Result<Connected, i32>, from: &str) -> Result<()> {
    let is_so = |made: &Connected| made.accepted_by == 80 && made.server.peer.ip() == ip(from);
    ensure!(result.as_ref().is_ok_and(is_so), "{result:?}");
    Ok(())
}

fn dial(source: Option<&str>, family: usize) -> Dial {
    let mut dial = Dial::new(&APP, at(VIP[family], 80));
    dial.source = source.map(|source| at(source, 0));
    dial
}

kernel_test!(a_rule_by_source_leads_to_the_excluded_interface, needs INGRESS_INTERFACE);
/// As Multus' plugin `sbr` makes it. Packets of sockets that are bound to the second interface's address leave by it.
fn a_rule_by_source_leads_to_the_excluded_interface() -> Result<()> {
    let (fixture, _sidecar) = fixture()?;
    add_table(&fixture)?;
    for (family, (option, _)) in gateways().into_iter().enumerate() {
        let own = SECOND[family];
        fixture
            .pod
            .ip(&format!("{option}rule add from {own} lookup 100"))?;
    }
    fixture.enroll(&[EXCLUDED])?;
    for family in [0, 1] {
        let to = at(VIP[family], 80);
        let by_second = fixture.client.dial(dial(Some(SECOND[family]), family))?;
        is_direct(&by_second, SECOND[family])?;
        for source in [None, Some(POD[family])] {
            let by_first = fixture.client.dial(dial(source, family))?;
            check(&by_first, Arrives::Sidecar(15001), POD[family], to)?;
        }
        let explained = fixture.agent.places.json(&[
            "explain",
            "test/app",
            "-o",
            "json",
            "outbound",
            "--src",
            SECOND[family],
            "--dst",
            &to.to_string(),
        ])?;
        ensure!(explained["name"] == "out-interface-excluded", "{explained}");
    }
    // The rules go, and come back.
    let rule = |verb: &str| {
        fixture
            .pod
            .ip(&format!("rule {verb} from {} lookup 100", SECOND[0]))
    };
    rule("del")?;
    fixture.wait("the sidecar has it", || {
        let made = fixture.client.dial(dial(Some(SECOND[0]), 0))?;
        Ok(made.is_ok_and(|made| made.accepted_by == 15001))
    })?;
    rule("add")?;
    fixture.wait("it is excluded", || {
        let made = fixture.client.dial(dial(Some(SECOND[0]), 0))?;
        Ok(made.is_ok_and(|made| made.accepted_by == 80))
    })?;
    Ok(())
}

kernel_test!(a_socket_bound_to_the_excluded_interface, needs INGRESS_INTERFACE);
/// As with Multus: what is bound to the second interface leaves by it, and the rules go by that.
fn a_socket_bound_to_the_excluded_interface() -> Result<()> {
    let (fixture, _sidecar) = fixture()?;
    for (family, gateway) in gateways() {
        fixture.pod.ip(&format!(
            "{family}route add default via {gateway} dev eth1 metric 5000"
        ))?;
    }
    // Answers to the second interface's addresses come by it.
    let outside = fixture.lab.outside();
    outside.ip("route del 10.78.0.2/32")?;
    outside.ip("-6 route del fd78::2/128 metric 1")?;
    for which in ["all", "eth1"] {
        let setting = format!("net/ipv4/conf/{which}/rp_filter");
        set_sysctl(&fixture.pod.netns, &setting, "2")?;
    }
    fixture.enroll(&[EXCLUDED])?;
    for family in [0, 1] {
        for creator in [APP, ROOT] {
            let mut bound = dial(None, family);
            bound.creator = creator.clone();
            bound.device = Some("eth1".to_owned());
            is_direct(&fixture.client.dial(bound)?, SECOND[family])?;
        }
        let to = at(VIP[family], 80);
        let other = fixture.client.dial(dial(None, family))?;
        check(&other, Arrives::Sidecar(15001), POD[family], to)?;
    }
    Ok(())
}

kernel_test!(an_address_that_no_agent_has_followed, needs INGRESS_INTERFACE);
fn an_address_that_no_agent_has_followed() -> Result<()> {
    const NEW: [&str; 2] = ["10.77.0.50", "fd77::50"];
    let (mut fixture, _sidecar) = fixture()?;
    fixture.enroll(&[])?;
    fixture.agent.end(Signal::SIGTERM)?;
    for (family, (option, _)) in gateways().into_iter().enumerate() {
        let own = NEW[family];
        let length = [32, 128][family];
        fixture.pod.ip(&format!(
            "{option}addr add {own}/{length} dev eth0 {}",
            ["", "nodad"][family]
        ))?;
        let to = at(VIP[family], 80);
        let made = fixture.client.dial(dial(Some(own), family))?;
        check(&made, Arrives::Sidecar(15001), own, to)?;
    }
    Ok(())
}

kernel_test!(routes_after_a_wide_one_are_read);
/// A route with so many hops that it does not fit into an answer of the usual size.
fn routes_after_a_wide_one_are_read() -> Result<()> {
    let (fixture, _sidecar) = fixture()?;
    let hops = " nexthop dev eth0".repeat(480);
    fixture
        .pod
        .ip(&format!("route add 198.51.100.0/24{hops}"))?;
    fixture.pod.ip("route add unreachable 203.0.113.0/24")?;
    fixture.enroll(&[])?;
    let made = fixture
        .client
        .dial(Dial::new(&APP, at("203.0.113.1", 80)))?;
    ensure!(made == Err(refusal(libc::EHOSTUNREACH)), "{made:?}");
    Ok(())
}

kernel_test!(a_tunnel_takes_everything_but_its_own_packets, needs INGRESS_INTERFACE);
/// As wg-quick makes it: all but what has the tunnel's mark, and is not for a network of table main.
fn a_tunnel_takes_everything_but_its_own_packets() -> Result<()> {
    const MARK: u32 = 51820;
    let (fixture, _sidecar) = fixture()?;
    add_table(&fixture)?;
    for (option, _) in gateways() {
        for rule in [
            format!("not fwmark {MARK} lookup 100"),
            "lookup main suppress_prefixlength 0".to_owned(),
        ] {
            fixture.pod.ip(&format!("{option}rule add {rule}"))?;
        }
    }
    fixture.enroll(&[EXCLUDED])?;
    for family in [0, 1] {
        let to = at(VIP[family], 80);
        let by_tunnel = fixture.client.dial(dial(None, family))?;
        is_direct(&by_tunnel, SECOND[family])?;
        let mut marked = dial(None, family);
        marked.creator = ROOT;
        marked.mark = MARK;
        let by_first = fixture.client.dial(marked)?;
        check(&by_first, Arrives::Sidecar(15001), POD[family], to)?;
        // A network of its own keeps its way.
        let near = ["10.77.0.254", "fd77::fe"][family];
        let made = fixture.client.dial(Dial::new(&APP, at(near, 80)))?;
        ensure!(
            made.as_ref().is_ok_and(|it| it.accepted_by == 15001),
            "{made:?}"
        );
    }
    Ok(())
}

kernel_test!(a_rule_for_a_user_fails_its_connections);
fn a_rule_for_a_user_fails_its_connections() -> Result<()> {
    let (fixture, _sidecar) = fixture()?;
    for (option, _) in gateways() {
        fixture.pod.ip(&format!(
            "{option}rule add uidrange {}-{0} prohibit",
            APP.uid
        ))?;
    }
    fixture.enroll(&[])?;
    for family in [0, 1] {
        let to = at(VIP[family], 80);
        let refused = fixture.client.dial(dial(None, family))?;
        ensure!(refused == Err(refusal(libc::EACCES)), "{refused:?}");
        let mut by_root = dial(None, family);
        by_root.creator = ROOT;
        let made = fixture.client.dial(by_root)?;
        check(&made, Arrives::Sidecar(15001), POD[family], to)?;
        let made = fixture.client.connect(&PROXY, to)?;
        ensure!(made.accepted_by == 80, "{made:?}");
    }
    Ok(())
}
