//! DNS queries over UDP of the known load.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::atomic::{AtomicU16, Ordering},
};

use anyhow::Result;
use lab::{actor::Actor, product::dialect::Dialect, protocol::APP, udp::SendUdp};
use sidetrack_common::{dns::DNS_PORT, rule::Rule};

use super::What;
use crate::{explain::Explainer, matrix::Family, target::Target};

/// The first source port, below those that the kernel chooses: for a pair of ports that connection tracking has
/// recorded it evaluates no rule.
const FIRST_PORT: u16 = 20_000;

/// Whether the lines of a dialect count queries in other places than those that stand for the decision: 1.8 has port 53
/// in a chain that what it counts has already entered.
pub(super) fn are_counted_elsewhere(target: &Target) -> bool {
    target.policy.dns_block().is_some() && target.policy.dialect == Dialect::V1_8
}

/// Every kind of query that the rules count once: those that are captured, and in the current dialect those of the
/// proxy and of groups, which have the lines of TCP.
pub(super) fn kinds(family: Family, target: &Target, explainer: &Explainer) -> Vec<What> {
    let servers = target.servers.iter().flatten();
    let servers = servers.filter(|server| server.is_ipv4() == (family == Family::V4));
    let mut proxy_group = APP;
    proxy_group.gid = target.proxy().gid;
    let mut group = APP;
    group.gid = 2000;
    let mut all = Vec::new();
    for server in servers {
        for sender in [&APP, &target.proxy(), &proxy_group, &group] {
            for connected in [true, false] {
                all.push(SendUdp {
                    sender: sender.clone(),
                    destination: SocketAddr::new(*server, DNS_PORT),
                    source: None,
                    connected,
                });
            }
        }
    }
    let is_current = target.policy.dialect == Dialect::Current;
    all.retain(|send| match explainer.datagram(send).rule {
        Rule::DnsUdp => true,
        Rule::Udp => false,
        _ => is_current,
    });
    all.into_iter().map(What::Query).collect()
}

/// What it is called in the report.
pub(super) fn name(send: &SendUdp) -> String {
    let SendUdp {
        sender,
        destination,
        connected,
        ..
    } = send;
    format!(
        "query of {}:{} to {destination}, connected: {connected}",
        sender.uid, sender.gid
    )
}

/// Sends so many, each from a port of its own; the errors, if any.
pub(super) fn send(client: &Actor, send: &SendUdp, times: usize) -> Result<Vec<Option<i32>>> {
    static NEXT: AtomicU16 = AtomicU16::new(FIRST_PORT);
    let any: IpAddr = match send.destination {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let one = |_| {
        let port = NEXT.fetch_add(1, Ordering::Relaxed);
        let source = Some(SocketAddr::new(any, port));
        let sent = client.send_udp(SendUdp {
            source,
            ..send.clone()
        })?;
        Ok(sent.err())
    };
    (0..times).map(one).collect()
}
