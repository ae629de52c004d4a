//! Table mangle, which istio-iptables uses in mode TPROXY. Inbound connections are decided here, and so are the
//! proxy's to its own pod.

use sidetrack_common::{addr::Family, rule::Rule};

use super::{
    inbound::exempts_ssh,
    lines::{INBOUND, Line, Lines, OUTPUT, PREROUTING, TableName},
};
use crate::policy::{InboundPorts, Mode, OUTBOUND_MARK, Policy};

const DIVERT: &str = "ISTIO_DIVERT";
const TPROXY: &str = "ISTIO_TPROXY";

/// The chains istio-iptables adds.
pub(super) const CHAINS: [&str; 3] = [DIVERT, INBOUND, TPROXY];

/// How `iptables -S` prints the copying of all bits of a mark.
const ALL_BITS: &str = "--nfmask 0xffffffff --ctmask 0xffffffff";

/// The rules of one family, in the order `iptables -S` prints them; none in other modes.
pub(super) fn lines(policy: &Policy, family: Family) -> Vec<Line> {
    let mut list = Lines {
        table: TableName::Mangle,
        family,
        lines: Vec::new(),
    };
    if policy.mode == Mode::Tproxy {
        let loopback = list.loopback(policy);
        list.mangle_prerouting(policy);
        list.mangle_output(policy, &loopback);
        list.divert(policy);
        list.mangle_inbound(policy);
        list.tproxy(policy, &loopback);
    }
    list.lines
}

impl Lines {
    fn mangle_prerouting(&mut self, policy: &Policy) {
        let mark = policy.tproxy_mark;
        self.excluded_interfaces((PREROUTING, "-i"), policy, Some(Rule::InInterface));
        if policy.inbound != InboundPorts::None {
            self.jump(PREROUTING, format!("-p tcp -j {INBOUND}"));
        }
        let text = format!("-p tcp -m mark --mark {mark:#x} -j CONNMARK --save-mark {ALL_BITS}");
        self.jump(PREROUTING, text);
    }

    fn mangle_output(&mut self, policy: &Policy, loopback: &str) {
        let mark = policy.tproxy_mark;
        self.excluded_interfaces((OUTPUT, "-o"), policy, None);
        let text = format!("-o lo -p tcp -m mark --mark {mark:#x} -j RETURN");
        self.rule(OUTPUT, text, Rule::Transparent, 0);
        for (kind, ids, rule) in [
            ("uid", &policy.proxy_uids, Rule::TransparentUidLocal),
            ("gid", &policy.proxy_gids, Rule::TransparentGidLocal),
        ] {
            for (index, id) in ids.iter().enumerate() {
                let text = format!(
                    "! -d {loopback} -o lo -p tcp -m owner --{kind}-owner {id} -j MARK --set-xmark {OUTBOUND_MARK:#x}/0xffffffff"
                );
                self.rule(OUTPUT, text, rule, index);
            }
        }
        let text =
            format!("-p tcp -m connmark --mark {mark:#x} -j CONNMARK --restore-mark {ALL_BITS}");
        self.jump(OUTPUT, text);
    }

    fn divert(&mut self, policy: &Policy) {
        if policy.inbound == InboundPorts::None {
            return;
        }
        let mark = policy.tproxy_mark;
        self.jump(DIVERT, format!("-j MARK --set-xmark {mark:#x}/0xffffffff"));
        self.jump(DIVERT, "-j ACCEPT".to_owned());
    }

    fn mangle_inbound(&mut self, policy: &Policy) {
        let mark = policy.tproxy_mark;
        let own = self.own();
        self.jump(
            INBOUND,
            format!("-p tcp -m mark --mark {mark:#x} -j RETURN"),
        );
        self.jump(INBOUND, format!("-s {own} -i lo -p tcp -j RETURN"));
        let text = format!("-i lo -p tcp -m mark ! --mark {OUTBOUND_MARK:#x} -j RETURN");
        self.jump(INBOUND, text);
        let established = |port: &str| {
            format!("-p tcp{port} -m conntrack --ctstate RELATED,ESTABLISHED -j {DIVERT}")
        };
        match &policy.inbound {
            InboundPorts::None => {}
            InboundPorts::AllExcept(except) => {
                if exempts_ssh(policy.dialect) {
                    let text = "-p tcp -m tcp --dport 22 -j RETURN".to_owned();
                    self.rule(INBOUND, text, Rule::SshPort, 0);
                }
                for (index, port) in except.iter().enumerate() {
                    let port = port.text(':');
                    let text = format!("-p tcp -m tcp --dport {port} -j RETURN");
                    self.rule(INBOUND, text, Rule::InPortExcluded, index);
                }
                self.jump(INBOUND, established(""));
                let text = format!("-p tcp -j {TPROXY}");
                self.rule(INBOUND, text, Rule::AllInbound, 0);
            }
            InboundPorts::Only(only) => {
                for (index, port) in only.iter().enumerate() {
                    let matched = format!(" -m tcp --dport {}", port.text(':'));
                    self.jump(INBOUND, established(&matched));
                    let text = format!("-p tcp{matched} -j {TPROXY}");
                    self.rule(INBOUND, text, Rule::InPortIncluded, index);
                }
            }
        }
    }

    fn tproxy(&mut self, policy: &Policy, loopback: &str) {
        if policy.inbound == InboundPorts::None {
            return;
        }
        let (mark, port) = (policy.tproxy_mark, policy.inbound_port);
        let any = match self.family {
            Family::V4 => "0.0.0.0",
            Family::V6 => "::",
        };
        let text = format!(
            "! -d {loopback} -p tcp -j TPROXY --on-port {port} --on-ip {any} --tproxy-mark {mark:#x}/0xffffffff"
        );
        self.jump(TPROXY, text);
    }
}
