//! Chains that connections from elsewhere go through.

use sidetrack_common::{decide::virtual_index, rule::Rule};

use super::lines::{IN_REDIRECT, INBOUND, Lines, PREROUTING, REDIRECT};
use crate::{
    dialect::Dialect,
    exclusions::Span,
    interfaces,
    policy::{InboundPorts, Mode, OutboundRanges, Policy},
};

const fn exempts_tunnel(dialect: Dialect) -> bool {
    !matches!(dialect, Dialect::V1_1 | Dialect::V1_5)
}

/// Whether port 22 is exempt when all ports are captured.
pub(super) const fn exempts_ssh(dialect: Dialect) -> bool {
    !matches!(dialect, Dialect::V1_13 | Dialect::Current)
}

impl Lines {
    /// Chain PREROUTING.
    pub(super) fn prerouting(&mut self, policy: &Policy) {
        for (index, name) in policy.virtual_interfaces.iter().enumerate() {
            let input = interfaces::option("-i", name);
            match &policy.outbound {
                OutboundRanges::All => {
                    let text = format!("{input}-j {REDIRECT}");
                    self.rule(
                        PREROUTING,
                        text,
                        Rule::VirtualInterface,
                        virtual_index(index as u32, 0) as usize,
                    );
                }
                OutboundRanges::Only(only) => {
                    for (range_index, range) in self.ranges(only) {
                        let text = format!("-d {} {input}-j {REDIRECT}", range.trunc());
                        self.rule(
                            PREROUTING,
                            text,
                            Rule::VirtualInterface,
                            virtual_index(index as u32, range_index as u32) as usize,
                        );
                    }
                }
            }
            let text = format!("{input}-j RETURN");
            self.rule(PREROUTING, text, Rule::VirtualInterfaceNoMatch, index);
        }
        let is_redirect = policy.mode != Mode::Tproxy;
        let decision = is_redirect.then_some(Rule::InInterface);
        self.excluded_interfaces((PREROUTING, "-i"), policy, decision);
        if is_redirect && policy.inbound != InboundPorts::None {
            self.jump(PREROUTING, format!("-p tcp -j {INBOUND}"));
        }
    }

    /// Chain ISTIO_INBOUND.
    pub(super) fn inbound(&mut self, policy: &Policy) {
        if policy.mode == Mode::Tproxy {
            // No rule leads to the chain.
            if exempts_tunnel(policy.dialect) {
                let port = policy.tunnel_port;
                self.jump(INBOUND, format!("-p tcp -m tcp --dport {port} -j RETURN"));
            }
            return;
        }
        let port = |port: Span, target: &str| {
            format!("-p tcp -m tcp --dport {} -j {target}", port.text(':'))
        };
        let (except, only) = match &policy.inbound {
            InboundPorts::None => return,
            InboundPorts::AllExcept(except) => (except.as_slice(), None),
            InboundPorts::Only(only) => (&[][..], Some(only)),
        };
        if exempts_tunnel(policy.dialect) {
            let text = port(policy.tunnel_port.into(), "RETURN");
            self.rule(INBOUND, text, Rule::TunnelPort, 0);
        }
        if exempts_ssh(policy.dialect) && only.is_none() {
            self.rule(INBOUND, port(Span::one(22), "RETURN"), Rule::SshPort, 0);
        }
        for (index, number) in except.iter().enumerate() {
            self.rule(
                INBOUND,
                port(*number, "RETURN"),
                Rule::InPortExcluded,
                index,
            );
        }
        match only {
            None => {
                let text = format!("-p tcp -j {IN_REDIRECT}");
                self.rule(INBOUND, text, Rule::AllInbound, 0);
            }
            Some(only) => {
                for (index, number) in only.iter().enumerate() {
                    let text = port(*number, IN_REDIRECT);
                    self.rule(INBOUND, text, Rule::InPortIncluded, index);
                }
            }
        }
    }
}
