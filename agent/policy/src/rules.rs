//! A policy as the rules that its mesh's own program would have programmed for it, line by line, each with the name of the
//! decision it stands for. Mode REDIRECT has rules in table nat, mode TPROXY in mangle as well,
//! and DNS capture in raw.

mod ambient;
mod consul;
mod dns;
mod inbound;
mod kuma;
mod lines;
mod linkerd;
mod mangle;
mod outbound;
mod tables;

use std::fmt::Write as _;

use sidetrack_common::{addr::Family, decide::Decision};

use self::lines::{IN_REDIRECT, INBOUND, ISTIO_OUTPUT, Lines, OUTPUT, PREROUTING, REDIRECT};
pub use self::{
    lines::{Line, TableName},
    tables::{KnownRoutes, ListTables, Routes},
};
use crate::{
    mesh_name::MeshName,
    policy::{InboundPorts, Mode, Policy},
};

/// The rules of one family, table by table.
#[must_use]
pub fn all(policy: &Policy, family: Family) -> Vec<Line> {
    let mut lines = dns::raw(policy, family);
    lines.extend(mangle(policy, family));
    lines.extend(nat(policy, family));
    lines
}

/// The mangle rules of one family.
fn mangle(policy: &Policy, family: Family) -> Vec<Line> {
    match policy.dialect.mesh() {
        MeshName::Ambient => ambient::mangle(policy, family),
        _ => mangle::lines(policy, family),
    }
}

/// The nat rules of one family, in the order `iptables -S` prints them.
fn nat(policy: &Policy, family: Family) -> Vec<Line> {
    if policy.ipv4_only && family == Family::V6 {
        return Vec::new();
    }
    match policy.dialect.mesh() {
        MeshName::Istio => istio_nat(policy, family),
        MeshName::Ambient => ambient::nat(policy, family),
        MeshName::Linkerd => linkerd::nat(policy, family),
        MeshName::Kuma => kuma::nat(policy, family),
        MeshName::Consul => consul::nat(policy, family),
    }
}

fn istio_nat(policy: &Policy, family: Family) -> Vec<Line> {
    let mut list = Lines::new(TableName::Nat, family);
    list.prerouting(policy);
    list.output(policy);
    list.inbound(policy);
    let redirect = |port| format!("-p tcp -j REDIRECT --to-ports {port}");
    list.jump(IN_REDIRECT, redirect(policy.inbound_port));
    list.istio_output(policy);
    list.output_dns(policy);
    list.tcp_in_redirect(policy);
    list.jump(REDIRECT, redirect(policy.outbound_port));
    list.lines
}

/// The rules as a complete input for iptables-restore (ip6tables-restore for IPv6).
#[must_use]
pub fn restore(policy: &Policy, family: Family) -> String {
    let mut text = String::new();
    if policy.ipv4_only && family == Family::V6 {
        return text;
    }
    let raw = dns::raw(policy, family);
    if !raw.is_empty() {
        let own: &[&str] = match dns::is_for_udp(policy) {
            true => &dns::RAW_CHAINS,
            false => &[],
        };
        add_table(&mut text, "raw", &[PREROUTING, OUTPUT], own, &raw);
    }
    if policy.mode == Mode::Tproxy {
        let builtin = [PREROUTING, "INPUT", "FORWARD", OUTPUT, "POSTROUTING"];
        let own: &[&str] = match policy.dialect.mesh() {
            MeshName::Ambient => &ambient::CHAINS,
            _ => &mangle::CHAINS,
        };
        let lines = mangle(policy, family);
        add_table(&mut text, "mangle", &builtin, own, &lines);
    }
    let builtin = [PREROUTING, "INPUT", OUTPUT, "POSTROUTING"];
    let lines = nat(policy, family);
    add_table(&mut text, "nat", &builtin, &chains(policy), &lines);
    text
}

fn add_table(text: &mut String, table: &str, builtin: &[&str], own: &[&str], lines: &[Line]) {
    let _ = writeln!(text, "*{table}");
    for chain in builtin {
        let _ = writeln!(text, ":{chain} ACCEPT [0:0]");
    }
    for chain in own {
        let _ = writeln!(text, ":{chain} - [0:0]");
    }
    for line in lines {
        let _ = writeln!(text, "{}", line.in_table());
    }
    text.push_str("COMMIT\n");
}

/// The chains of a mesh's own in table nat.
fn chains(policy: &Policy) -> Vec<&'static str> {
    match policy.dialect.mesh() {
        MeshName::Istio => {}
        MeshName::Ambient => return ambient::CHAINS.to_vec(),
        MeshName::Linkerd => return linkerd::CHAINS.to_vec(),
        MeshName::Kuma => return kuma::CHAINS.to_vec(),
        MeshName::Consul => return consul::CHAINS.to_vec(),
    }
    let has_inbound = policy.mode == Mode::Tproxy || policy.inbound != InboundPorts::None;
    let inbound = has_inbound.then_some(INBOUND);
    inbound
        .into_iter()
        .chain([IN_REDIRECT, ISTIO_OUTPUT])
        .chain(dns::nat_chains(policy))
        .chain([REDIRECT])
        .collect()
}

/// The line that gave a decision; `None` for decisions that no rule gave.
#[must_use]
pub fn line_of(policy: &Policy, family: Family, decision: &Decision) -> Option<Line> {
    let wanted = (decision.rule, decision.index);
    all(policy, family)
        .into_iter()
        .find(|line| line.decision == Some(wanted))
}

#[cfg(test)]
mod tests;
