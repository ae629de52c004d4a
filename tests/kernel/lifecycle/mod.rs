//! Pods that come, change and go; sidecars that come and go.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::{
    actor::Actor,
    agent::Agent,
    command::run,
    network::{Lab, PodNet, manifest},
    protocol::{APP, Connected, Dial, PROXY, ROOT},
    sidecar,
};
use serde_json::Value;

use crate::{
    OwnTest,
    fixture::{Arrives, at, check, nothing_is_left},
    sockets::group,
};

const VIP: &str = "10.109.118.31";

pub fn tests() -> Vec<(&'static str, OwnTest)> {
    vec![
        (
            "lifecycle::manifests_take_effect_within_a_second",
            manifests,
        ),
        ("lifecycle::a_running_sidecar_is_adopted", adoption),
        ("lifecycle::sidecar_down_means_refused", sidecar_down),
        ("lifecycle::listener_groups_shrink", listener_groups),
        ("lifecycle::leaving_keeps_established_connections", leaving),
        (
            "lifecycle::policy_changes_judge_new_connections",
            policy_change,
        ),
        ("lifecycle::a_recreated_directory_is_followed", directory),
        ("lifecycle::every_kind_of_list", lists),
        ("lifecycle::a_wrong_path_keeps_a_live_pod", wrong_path),
        (
            "lifecycle::a_replaced_namespace_is_followed",
            replaced_namespace,
        ),
        ("lifecycle::addresses_and_routes_are_followed", addresses),
        ("lifecycle::ipv6_needs_dual_stack_or_an_ipv6_pod", families),
    ]
}

/// A pod on a network with one service outside, and an agent.
pub struct Place {
    pub client: Actor,
    pub outside: Actor,
    pub agent: Agent,
    pub pod: PodNet,
    pub lab: Lab,
}

impl Place {
    /// The pod is not enrolled yet.
    pub fn new() -> Result<Self> {
        let mut lab = Lab::new()?;
        lab.add_outside(VIP)?;
        let pod = lab.pod("app", 2)?;
        let outside = lab.outside().actor()?;
        outside.listen(&ROOT, at("0.0.0.0", 80))?;
        Ok(Self {
            client: pod.actor()?,
            outside,
            agent: Agent::start(lab.places())?,
            pod,
            lab,
        })
    }

    /// Writes the pod's manifest and waits until it is in force.
    pub fn enroll(&self, annotations: &[(&str, &str)]) -> Result<()> {
        self.lab
            .write_manifest("app", &manifest("app", &self.pod, annotations))?;
        self.agent.places.wait_enrolled("test/app").map(drop)
    }

    /// The policy in force.
    pub fn policy_id(&self) -> Result<Value> {
        let pod = self.agent.places.pod("test/app")?.context("the pod")?;
        Ok(pod["policy_id"].clone())
    }

    fn dial(&self, to: std::net::SocketAddr) -> Result<Result<Connected, i32>> {
        self.client.dial(Dial::new(&APP, to))
    }

    /// Who takes the app's connection to the service: the capture port, or 80 for itself.
    fn taken_by(&self) -> Result<u16> {
        let connected = self
            .dial(at(VIP, 80))?
            .map_err(|errno| anyhow!("errno {errno}"))?;
        Ok(connected.accepted_by)
    }

    /// Waits until the app's connection to the service is taken by a port.
    fn wait_taken_by(&self, port: u16) -> Result<Duration> {
        let start = Instant::now();
        loop {
            if self.taken_by().is_ok_and(|by| by == port) {
                return Ok(start.elapsed());
            }
            ensure!(
                start.elapsed() < Duration::from_secs(5),
                "{}",
                self.agent.places.log()
            );
            thread::sleep(Duration::from_millis(10));
        }
    }
}

fn manifests() -> Result<()> {
    let place = Place::new()?;
    let _sidecar = sidecar::start(&place.pod, &[80])?;
    ensure!(
        place.taken_by()? == 80,
        "a pod that is not enrolled is untouched"
    );
    let second = Duration::from_secs(1);
    let in_time = |took: Duration, what: &str| {
        ensure!(took < second, "{what} took {took:?}");
        Ok(())
    };
    place
        .lab
        .write_manifest("app", &manifest("app", &place.pod, &[]))?;
    in_time(place.wait_taken_by(15001)?, "adding")?;
    let excluded = [("traffic.sidecar.istio.io/excludeOutboundPorts", "80")];
    place
        .lab
        .write_manifest("app", &manifest("app", &place.pod, &excluded))?;
    in_time(place.wait_taken_by(80)?, "changing")?;
    place
        .lab
        .write_manifest("app", &manifest("app", &place.pod, &[]))?;
    in_time(place.wait_taken_by(15001)?, "changing back")?;
    place.lab.remove_manifest("app")?;
    in_time(place.wait_taken_by(80)?, "deleting")?;
    nothing_is_left(&place.agent.places)
}

fn adoption() -> Result<()> {
    let place = Place::new()?;
    let _sidecar = sidecar::start(&place.pod, &[80])?;
    place.enroll(&[])?;
    let connected = place.outside.dial(Dial::new(&ROOT, at("10.77.0.2", 80)))?;
    let connected = connected.map_err(|errno| anyhow!("errno {errno}"))?;
    ensure!(connected.accepted_by == 15006, "{connected:?}");
    Ok(())
}

fn sidecar_down() -> Result<()> {
    let place = Place::new()?;
    let app = place.pod.actor()?;
    sidecar::listen(&app, &APP, 80)?;
    place.enroll(&[])?;
    let refused = Err(libc::ECONNREFUSED);
    let outbound = place.dial(at(VIP, 80))?;
    ensure!(outbound == refused, "outbound: {outbound:?}");
    let inbound = place.outside.dial(Dial::new(&ROOT, at("10.77.0.2", 80)))?;
    ensure!(inbound == refused, "inbound: {inbound:?}");
    // The same after a sidecar has come and gone.
    let sidecar = sidecar::start(&place.pod, &[])?;
    let up = place.outside.dial(Dial::new(&ROOT, at("10.77.0.2", 80)))?;
    ensure!(up.is_ok_and(|up| up.accepted_by == 15006), "with a sidecar");
    drop(sidecar);
    let inbound = place.outside.dial(Dial::new(&ROOT, at("10.77.0.2", 80)))?;
    ensure!(inbound == refused, "inbound again: {inbound:?}");
    let outbound = place.dial(at(VIP, 80))?;
    ensure!(outbound == refused, "outbound again: {outbound:?}");
    Ok(())
}

fn listener_groups() -> Result<()> {
    const WORKERS: usize = 4;
    let place = Place::new()?;
    place.enroll(&[])?;
    let sidecar = place.pod.actor()?;
    let id = sidecar.listen_group(group(15006, WORKERS))?;
    let inbound = || -> Result<u16> {
        let connected = place.outside.dial(Dial::new(&ROOT, at("10.77.0.2", 80)))?;
        Ok(connected
            .map_err(|errno| anyhow!("errno {errno}"))?
            .accepted_by)
    };
    for worker in 0..WORKERS - 1 {
        ensure!(inbound()? == 15006);
        sidecar.close(id, worker)?;
    }
    // A closed worker's share of the connections goes to the others.
    for _ in 0..10 {
        ensure!(inbound()? == 15006);
    }
    Ok(())
}

fn leaving() -> Result<()> {
    let place = Place::new()?;
    let _sidecar = sidecar::start(&place.pod, &[80])?;
    place.enroll(&[])?;
    let held = place.client.hold(Dial::new(&APP, at(VIP, 80)))?;
    ensure!(
        held.is_ok_and(|held| held.accepted_by == 15001),
        "the first is redirected"
    );
    place.lab.remove_manifest("app")?;
    place.wait_taken_by(80)?;
    ensure!(
        place.client.echo()? == 1,
        "the established connection goes on"
    );
    Ok(())
}

fn policy_change() -> Result<()> {
    let place = Place::new()?;
    let _sidecar = sidecar::start(&place.pod, &[80])?;
    place.enroll(&[])?;
    let held = place.client.hold(Dial::new(&APP, at(VIP, 80)))?;
    ensure!(held.is_ok_and(|held| held.accepted_by == 15001));
    place.enroll(&[(
        "traffic.sidecar.istio.io/includeOutboundIPRanges",
        "192.0.2.0/24",
    )])?;
    place.wait_taken_by(80)?;
    place.enroll(&[(
        "traffic.sidecar.istio.io/includeOutboundIPRanges",
        "10.109.0.0/16",
    )])?;
    place.wait_taken_by(15001)?;
    place.enroll(&[
        (
            "traffic.sidecar.istio.io/includeOutboundIPRanges",
            "10.109.0.0/16",
        ),
        (
            "traffic.sidecar.istio.io/excludeOutboundIPRanges",
            "10.109.118.0/24",
        ),
    ])?;
    place.wait_taken_by(80)?;
    ensure!(
        place.client.echo()? == 1,
        "the established connection goes on"
    );
    // Inbound by list.
    place.enroll(&[("traffic.sidecar.istio.io/includeInboundPorts", "8080")])?;
    let start = Instant::now();
    loop {
        let inbound = place.outside.dial(Dial::new(&ROOT, at("10.77.0.2", 80)))?;
        if inbound
            .as_ref()
            .is_ok_and(|inbound| inbound.accepted_by == 80)
        {
            break;
        }
        ensure!(
            start.elapsed() < Duration::from_secs(1),
            "80 is not listed: {inbound:?}"
        );
    }
    let inbound = place
        .outside
        .dial(Dial::new(&ROOT, at("10.77.0.2", 8080)))?;
    ensure!(
        inbound.is_ok_and(|inbound| inbound.accepted_by == 15006),
        "8080 is listed"
    );
    Ok(())
}

/// The rules that the default policy has none of, each by itself.
fn lists() -> Result<()> {
    let place = Place::new()?;
    place.pod.ip("link add eth1 type veth peer name eth1-end")?;
    place.pod.ip("link set eth1-end up")?;
    place.pod.ip("link set eth1 up")?;
    place
        .pod
        .ip("route add 10.109.119.0/24 dev eth1 src 10.77.0.2")?;
    let _sidecar = sidecar::start(&place.pod, &[80])?;
    let istio = |key: &str| format!("traffic.sidecar.istio.io/{key}");
    let inbound = |port: u16| -> Result<u16> {
        let connected = place
            .outside
            .dial(Dial::new(&ROOT, at("10.77.0.2", port)))?;
        Ok(connected
            .map_err(|errno| anyhow!("errno {errno}"))?
            .accepted_by)
    };
    let enroll = |annotations: &[(&str, &str)], variables: &str| -> Result<()> {
        let before = place.agent.places.pod("test/app").ok().flatten();
        let before = before.map_or(Value::Null, |pod| pod["policy"].clone());
        let text = manifest("app", &place.pod, annotations);
        place
            .lab
            .write_manifest("app", &format!("{text}{variables}"))?;
        place.agent.places.wait_pod("test/app", |pod| {
            pod.is_some_and(|pod| {
                pod["state"] == "enrolled" && pod["reason"].is_null() && pod["policy"] != before
            })
        })?;
        Ok(())
    };
    // includeOutboundPorts, against includeOutboundIPRanges that hold nothing.
    enroll(&[(&istio("includeOutboundIPRanges"), "")], "")?;
    ensure!(place.taken_by()? == 80, "no range is included");
    enroll(
        &[
            (&istio("includeOutboundIPRanges"), ""),
            (&istio("includeOutboundPorts"), "80"),
        ],
        "",
    )?;
    ensure!(place.taken_by()? == 15001, "the port is included");
    // excludeInterfaces, both ways.
    enroll(&[(&istio("excludeInterfaces"), "eth1")], "")?;
    ensure!(place.taken_by()? == 15001, "eth0 is not excluded");
    let by_eth1 = place.dial(at("10.109.119.1", 80))?;
    ensure!(by_eth1.is_err(), "nobody answers behind eth1: {by_eth1:?}");
    enroll(&[(&istio("excludeInterfaces"), "eth0")], "")?;
    ensure!(place.taken_by()? == 80, "eth0 is excluded");
    ensure!(inbound(80)? == 80, "and what arrives there");
    let by_eth1 = place.dial(at("10.109.119.1", 80))?;
    ensure!(
        by_eth1.is_ok_and(|by_eth1| by_eth1.accepted_by == 15001),
        "eth1 is not"
    );
    // includeInboundPorts: none.
    enroll(&[(&istio("includeInboundPorts"), "")], "")?;
    ensure!(inbound(80)? == 80, "inbound capture is off");
    // Owner groups.
    let group = |name: &str, value: &str| {
        format!("    - name: ISTIO_OUTBOUND_OWNER_GROUPS{name}\n      value: \"{value}\"\n")
    };
    enroll(&[], &group("_EXCLUDE", "1000"))?;
    ensure!(place.taken_by()? == 80, "the app's group is excluded");
    enroll(&[], &group("", "2000"))?;
    ensure!(place.taken_by()? == 80, "the app's group is not included");
    enroll(&[], &group("", "2000,1000"))?;
    ensure!(place.taken_by()? == 15001, "the app's group is included");
    // Rules by an older Istio.
    enroll(&[("sidetrack.dev/dialect", "1.8")], "")?;
    let ssh = place.outside.dial(Dial::new(&ROOT, at("10.77.0.2", 22)))?;
    ensure!(
        ssh == Err(libc::ECONNREFUSED),
        "22 is not captured, and nobody listens: {ssh:?}"
    );
    Ok(())
}

fn directory() -> Result<()> {
    let place = Place::new()?;
    place.enroll(&[])?;
    let places = &place.agent.places;
    fs::remove_dir_all(&places.pods)?;
    thread::sleep(Duration::from_millis(700));
    let pod = places.pod("test/app")?.context("the pod")?;
    ensure!(
        pod["state"] == "enrolled",
        "a directory that is away says nothing: {pod}"
    );
    fs::create_dir(&places.pods)?;
    let excluded = [("traffic.sidecar.istio.io/excludeOutboundPorts", "80")];
    place
        .lab
        .write_manifest("app", &manifest("app", &place.pod, &excluded))?;
    places.wait_pod("test/app", |pod| {
        pod.is_some_and(|pod| pod["policy"]["excluded_outbound_ports"][0] == 80)
    })?;
    place.lab.remove_manifest("app")?;
    places.wait_pod("test/app", |pod| pod.is_none()).map(drop)
}

fn wrong_path() -> Result<()> {
    let place = Place::new()?;
    let _sidecar = sidecar::start(&place.pod, &[80])?;
    place.enroll(&[])?;
    let good = manifest("app", &place.pod, &[]);
    let bad = good.replace(&place.pod.path(), "/run/netns/typo");
    place.lab.write_manifest("app", &bad)?;
    place.agent.places.wait_pod("test/app", |pod| {
        pod.is_some_and(|pod| {
            let reason = pod["reason"].as_str().unwrap_or_default();
            pod["state"] == "enrolled" && reason.contains("/run/netns/typo")
        })
    })?;
    ensure!(place.taken_by()? == 15001, "it is still intercepted");
    place.lab.write_manifest("app", &good)?;
    place.agent.places.wait_enrolled("test/app").map(drop)
}

fn replaced_namespace() -> Result<()> {
    let mut place = Place::new()?;
    place.enroll(&[])?;
    let cookie = |place: &Place| -> Result<u64> {
        let pod = place.agent.places.pod("test/app")?.context("the pod")?;
        pod["netns"]["cookie"].as_u64().context("a cookie")
    };
    let before = cookie(&place)?;
    // The sandbox goes and another of the same name comes.
    let name = place.pod.netns.clone();
    place.client = place.lab.outside().actor()?;
    run(&format!("ip netns del {name}"))?;
    place.agent.places.wait_pod("test/app", |pod| {
        pod.is_some_and(|pod| pod["state"] == "waiting")
    })?;
    run(&format!("ip netns add {name}"))?;
    run(&format!("ip -n {name} link set lo up"))?;
    place.agent.places.wait_enrolled("test/app")?;
    ensure!(cookie(&place)? != before, "it is another namespace");
    let rows = place.agent.places.map("POD_BY_NETNS")?;
    ensure!(rows.len() == 1, "the old row is gone: {rows:?}");
    Ok(())
}

fn addresses() -> Result<()> {
    let place = Place::new()?;
    let _sidecar = sidecar::start(&place.pod, &[80])?;
    place.enroll(&[])?;
    let new = at("10.79.0.2", 80);
    let before = place.dial(new)?;
    ensure!(
        before.is_ok_and(|before| before.accepted_by == 15001),
        "it is off the pod"
    );
    place.pod.ip("address add 10.79.0.2/32 dev eth0")?;
    let start = Instant::now();
    loop {
        let result = place.dial(new)?;
        if check(&result, Arrives::Untouched, "10.79.0.2", new).is_ok() {
            break;
        }
        ensure!(start.elapsed() < Duration::from_secs(1), "{result:?}");
    }
    // Without a route the app gets the kernel's errno at once and the sidecar sees nothing.
    place.pod.ip("route del default")?;
    let start = Instant::now();
    loop {
        let result = place.dial(at(VIP, 80))?;
        if result == Err(libc::ENETUNREACH) {
            break;
        }
        ensure!(start.elapsed() < Duration::from_secs(1), "{result:?}");
    }
    Ok(())
}

fn families() -> Result<()> {
    let mut lab = Lab::new()?;
    let pod = lab.pod("app", 2)?;
    let agent = Agent::start(lab.places())?;
    let single = manifest("app", &pod, &[]).replace("value: \"true\"", "value: \"false\"");
    lab.write_manifest("app", &single)?;
    agent.places.wait_enrolled("test/app")?;
    let _sidecar = sidecar::start(&pod, &[80])?;
    let client = pod.actor()?;
    // IPv6 is left alone, and answers as without rules.
    let own = at("fd77::2", 80);
    let proxy = client
        .dial(Dial::new(&PROXY, own))?
        .map_err(|errno| anyhow!("errno {errno}"))?;
    ensure!(proxy.accepted_by == 80, "{proxy:?}");
    ensure!(proxy.server.original_v6 == Err(libc::ENOENT), "{proxy:?}");
    ensure!(!pod.ip("-6 address show dev lo")?.contains("::6/128"));
    // With its IPv4 address gone the pod counts as an IPv6 pod.
    lab.remove_manifest("app")?;
    agent.places.wait_pod("test/app", |pod| pod.is_none())?;
    pod.ip("address del 10.77.0.2/16 dev eth0")?;
    lab.write_manifest("app", &single)?;
    agent.places.wait_enrolled("test/app")?;
    ensure!(
        pod.ip("-6 address show dev lo")?.contains("::6/128"),
        "::6 is added"
    );
    let proxy = client
        .dial(Dial::new(&PROXY, own))?
        .map_err(|errno| anyhow!("errno {errno}"))?;
    ensure!(proxy.accepted_by == 15006, "{proxy:?}");
    lab.remove_manifest("app")?;
    agent.places.wait_pod("test/app", |pod| pod.is_none())?;
    let left = pod.ip("-6 address show dev lo")?;
    ensure!(!left.contains("::6/128"), "::6 is taken away again: {left}");
    Ok(())
}

/// Called by `owner`.
pub fn sidecar_socket_opened_before_enrolment() -> Result<()> {
    let place = Place::new()?;
    let _sidecar = sidecar::start(&place.pod, &[80])?;
    let pause = place.lab.dir().join("pause");
    let own = at("10.77.0.2", 80);
    let mut dial = Dial::new(&PROXY, own);
    dial.connector = Some(ROOT);
    dial.pause = Some(pause.clone());
    thread::scope(|scope| {
        let dialling = scope.spawn(|| place.client.dial(dial));
        while !pause.with_extension("created").exists() {
            thread::sleep(Duration::from_millis(5));
        }
        let enrolled = place.enroll(&[]);
        fs::write(pause.with_extension("go"), "")?;
        enrolled?;
        let result = dialling
            .join()
            .map_err(|_| anyhow!("the dialling thread panicked"))??;
        check(&result, Arrives::Sidecar(15006), "10.77.0.2", own)
    })
}

/// Called by `sockets`.
pub fn refused_redirect_then_loopback() -> Result<()> {
    let place = Place::new()?;
    let app = place.pod.actor()?;
    sidecar::listen(&app, &APP, 80)?;
    place.enroll(&[])?;
    let to = at("127.0.0.1", 80);
    let mut dial = Dial::new(&APP, to);
    dial.first = Some(at(VIP, 80));
    let result = place.client.dial(dial)?;
    check(&result, Arrives::Untouched, "127.0.0.1", to)
}

/// Called by `sockets`.
pub fn failed_connects_leave_no_row() -> Result<()> {
    let place = Place::new()?;
    place.enroll(&[])?;
    let places = &place.agent.places;
    // Refused at once.
    let result = place.dial(at(VIP, 80))?;
    ensure!(result == Err(libc::ECONNREFUSED), "{result:?}");
    // A SYN that nobody answers: the row is there while the client waits.
    run(&format!(
        "ip netns exec {} iptables -A INPUT -p tcp --dport 15001 -j DROP",
        place.pod.netns
    ))?;
    thread::scope(|scope| {
        let dialling = scope.spawn(|| place.dial(at(VIP, 80)));
        let start = Instant::now();
        while places.map("HANDSHAKES")?.is_empty() {
            ensure!(
                start.elapsed() < Duration::from_secs(1),
                "no row while connecting"
            );
        }
        let result = dialling
            .join()
            .map_err(|_| anyhow!("the dialling thread panicked"))??;
        ensure!(result.is_err(), "{result:?}");
        anyhow::Ok(())
    })?;
    let rows = places.map("HANDSHAKES")?;
    ensure!(rows.is_empty(), "{rows:?}");
    let count = places.map("HANDSHAKE_COUNT")?;
    ensure!(count[0]["formatted"]["value"] == 0, "{count:?}");
    Ok(())
}
