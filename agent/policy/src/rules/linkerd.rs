//! linkerd2-proxy-init: pkg/iptables/iptables.go.

use sidetrack_common::{addr::Family, rule::Rule};

use super::lines::{Line, Lines, OUTPUT, PREROUTING, TableName, multiport};
use crate::{
    exclusions::Span,
    policy::{InboundPorts, Policy},
};

pub(super) const CHAINS: [&str; 2] = ["PROXY_INIT_OUTPUT", "PROXY_INIT_REDIRECT"];
const OUT: &str = CHAINS[0];
const IN: &str = CHAINS[1];

fn comment(text: &str) -> String {
    format!("-m comment --comment \"proxy-init/{text}\"")
}

fn ignored(list: &mut Lines, policy: &Policy, chain: &'static str, ports: &[Span], rule: Rule) {
    for (index, ports) in policy.port_rules(ports).iter().enumerate() {
        let names: Vec<String> = ports.iter().map(|port| port.text(':')).collect();
        let comment = comment(&format!("ignore-port-{}", names.join(",")));
        let text = format!("-p tcp {} {comment} -j RETURN", multiport(ports));
        list.rule(chain, text, rule, index);
    }
}

/// The rules of table nat.
pub(super) fn nat(policy: &Policy, family: Family) -> Vec<Line> {
    let mut list = Lines::new(TableName::Nat, family);
    let jump = |text: &str, chain: &str| format!("{} -j {chain}", comment(text));
    list.jump(PREROUTING, jump("install-proxy-init-prerouting", IN));
    list.jump(OUTPUT, jump("install-proxy-init-output", OUT));
    for (ids, kind, what, rule) in [
        (&policy.proxy_uids, "uid", "user", Rule::ProxyUid),
        (&policy.proxy_gids, "gid", "group", Rule::ProxyGid),
    ] {
        for (index, id) in ids.iter().enumerate() {
            let comment = comment(&format!("ignore-proxy-{what}-id"));
            let text = format!("-m owner --{kind}-owner {id} {comment} -j RETURN");
            list.rule(OUT, text, rule, index);
        }
    }
    let text = format!("-o lo {} -j RETURN", comment("ignore-loopback"));
    list.rule(OUT, text, Rule::OverLo, 0);
    let exclusions = &policy.exclusions;
    ignored(
        &mut list,
        policy,
        OUT,
        &exclusions.outbound_ports,
        Rule::OutPortExcluded,
    );
    let redirect =
        |text: &str, port: u16| format!("-p tcp {} -j REDIRECT --to-ports {port}", comment(text));
    let text = redirect("redirect-all-outgoing-to-proxy-port", policy.outbound_port);
    list.rule(OUT, text, Rule::AllOutbound, 0);
    ignored(
        &mut list,
        policy,
        IN,
        &exclusions.inbound_ports,
        Rule::InPortExcluded,
    );
    for (index, range) in list.ranges(&exclusions.sources) {
        let comment = comment(&format!("ignore-subnet-{range}"));
        let text = format!("-s {} {comment} -j RETURN", range.trunc());
        list.rule(IN, text, Rule::SourceExcluded, index);
    }
    match &policy.inbound {
        InboundPorts::Only(ports) => {
            for (index, port) in ports.iter().enumerate() {
                let port = port.text(':');
                let comment = comment(&format!("redirect-port-{port}-to-proxy-port"));
                let text = format!(
                    "-p tcp -m tcp --dport {port} {comment} -j REDIRECT --to-ports {}",
                    policy.inbound_port
                );
                list.rule(IN, text, Rule::InPortIncluded, index);
            }
        }
        InboundPorts::AllExcept(_) | InboundPorts::None => {
            let text = redirect("redirect-all-incoming-to-proxy-port", policy.inbound_port);
            list.rule(IN, text, Rule::AllInbound, 0);
        }
    }
    list.lines
}
