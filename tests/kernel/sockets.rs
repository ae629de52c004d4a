//! Sockets that are not used in the plainest way.

use std::{thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lab::{
    command::run_words,
    protocol::{APP, Dial, Listen, Manner, PROXY},
};

use crate::{
    SharedTest,
    fixture::{Arrives, POD, VIP, World, at, check},
};

pub fn tests() -> Vec<(&'static str, SharedTest)> {
    vec![
        ("sockets::non_blocking_connect", non_blocking),
        ("sockets::fast_open", fast_open),
        ("sockets::mptcp", mptcp),
        ("sockets::second_connect_after_a_failure", second_connect),
        ("sockets::bound_port_without_an_address", bound_port),
        ("sockets::failed_connects_leave_no_row", no_rows_left),
        ("sockets::large_getsockopt_answers_pass", large_answers),
        ("sockets::map_dumps_are_readable", map_dumps),
    ]
}

fn in_manner(world: &World, manner: Manner) -> Result<()> {
    for family in [0, 1] {
        let to = at(VIP[family], 80);
        let mut dial = Dial::new(&APP, to);
        dial.manner = manner;
        let result = world.dial(dial)?;
        check(&result, Arrives::Sidecar(15001), POD[family], to)?;
    }
    Ok(())
}

fn non_blocking(world: &World) -> Result<()> {
    in_manner(world, Manner::NonBlocking)
}

fn fast_open(world: &World) -> Result<()> {
    in_manner(world, Manner::FastOpen)
}

/// The connection is made by a subflow, a TCP socket of the kernel's own behind the application's.
fn mptcp(world: &World) -> Result<()> {
    for family in [0, 1] {
        let to = at(VIP[family], 80);
        let mut dial = Dial::new(&APP, to);
        dial.manner = Manner::Mptcp;
        let connected = world
            .dial(dial)?
            .map_err(|errno| anyhow::anyhow!("errno {errno}"))?;
        ensure!(connected.accepted_by == 15001, "{connected:?}");
        ensure!(
            crate::fixture::original(&connected.server, to) == Ok(to),
            "{connected:?}"
        );
        ensure!(
            connected.server.peer.ip() == crate::fixture::ip(POD[family]),
            "{connected:?}"
        );
    }
    // Its owner is the application socket's.
    let mut dial = Dial::new(&PROXY, at(POD[0], 80));
    dial.manner = Manner::Mptcp;
    let connected = world
        .dial(dial)?
        .map_err(|errno| anyhow::anyhow!("errno {errno}"))?;
    ensure!(connected.accepted_by == 15006, "{connected:?}");
    Ok(())
}

/// The source address a failed redirect gave the socket does not show in its next connection.
fn second_connect(world: &World) -> Result<()> {
    for (first, second, arrives, seen_as) in [
        // Refused on the pod itself, then redirected.
        (
            at("127.0.0.1", 9),
            at(VIP[0], 80),
            Arrives::Sidecar(15001),
            POD[0],
        ),
        (
            at("::1", 9),
            at(VIP[1], 80),
            Arrives::Sidecar(15001),
            POD[1],
        ),
        // No route, then redirected.
        (
            at("10.202.0.1", 80),
            at(VIP[0], 80),
            Arrives::Sidecar(15001),
            POD[0],
        ),
    ] {
        let mut dial = Dial::new(&APP, second);
        dial.first = Some(first);
        let result = world.dial(dial)?;
        check(&result, arrives, seen_as, second)
            .with_context(|| format!("first {first}, then {second}"))?;
    }
    crate::lifecycle::refused_redirect_then_loopback()
}

fn bound_port(world: &World) -> Result<()> {
    for (family, any) in ["0.0.0.0", "::"].into_iter().enumerate() {
        let port = 23_456 + family as u16;
        let to = at(VIP[family], 80);
        let mut dial = Dial::new(&APP, to);
        dial.source = Some(at(any, port));
        let connected = world
            .dial(dial)?
            .map_err(|errno| anyhow::anyhow!("errno {errno}"))?;
        let own = at(POD[family], port);
        ensure!(connected.accepted_by == 15001, "{connected:?}");
        ensure!(
            connected.server.peer == own && connected.client.local == own,
            "{connected:?}"
        );
        ensure!(connected.client.peer == to, "{connected:?}");
        ensure!(
            crate::fixture::original(&connected.server, to) == Ok(to),
            "{connected:?}"
        );
    }
    Ok(())
}

fn no_rows_left(world: &World) -> Result<()> {
    let places = &world.agent.places;
    crate::lifecycle::failed_connects_leave_no_row()?;
    // And none of this run's many connections has left one; other tests may have some in flight.
    for _ in 0..100 {
        if places.map("HANDSHAKES")?.is_empty() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(20));
    }
    anyhow::bail!("rows are left: {:?}", places.map("HANDSHAKES")?)
}

/// iptables-save reads its table with one large getsockopt call.
fn large_answers(world: &World) -> Result<()> {
    const RULES: usize = 400;
    let rules: String = (0..RULES)
        .map(|n| {
            format!(
                "-A INPUT -s 192.0.2.{}/32 -p tcp --dport {} -j ACCEPT\n",
                n % 256,
                1 + n
            )
        })
        .collect();
    let text = format!("*filter\n{rules}COMMIT\n");
    let script = format!(
        "echo $$ > {}/cgroup.procs; \
         ip netns exec {netns} iptables-legacy-restore <<'END' && ip netns exec {netns} iptables-legacy-save -t filter; \
         ip netns exec {netns} iptables-legacy -F\n{text}END\n",
        world.pod.cgroup.display(),
        netns = world.pod.netns
    );
    let saved = run_words(&["sh", "-c", &script])?;
    let count = saved
        .lines()
        .filter(|line| line.starts_with("-A INPUT"))
        .count();
    ensure!(count == RULES, "{count} of {RULES} rules came back");
    Ok(())
}

fn map_dumps(world: &World) -> Result<()> {
    let pods = world.agent.places.map("POD_BY_NETNS")?;
    let row = &pods.first().context("no pod row")?["formatted"];
    ensure!(row["value"]["policy"].is_u64(), "{row}");
    let policies = world.agent.places.map("POLICY_BY_ID")?;
    let policy = &policies.first().context("no policy row")?["formatted"]["value"];
    ensure!(
        policy["outbound_port"] == 15001 && policy["proxy_uid"] == 1337,
        "{policy}"
    );
    Ok(())
}

/// Used by tests that need a reuse_port group.
pub fn group(port: u16, sockets: usize) -> Listen {
    Listen {
        address: at("0.0.0.0", port),
        owner: PROXY,
        sockets,
        v6_only: true,
    }
}
