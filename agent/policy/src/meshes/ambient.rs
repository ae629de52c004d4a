//! Istio's ambient mode: istio-cni has one list of rules, and annotations change it. ztunnel is the proxy: it makes its
//! sockets in the pod's network and marks them.

use super::{nothing, settings_annotation};
use crate::{
    dialect::Dialect,
    facts::PodFacts,
    names::ambient::{BYPASS_INBOUND, DNS, VIRTUAL_INTERFACES},
    parse::{reader::Settings, values},
    policy::{DnsCapture, InboundPorts, Mode, Policy},
};

/// istio-cni's mark of the connections by which ztunnel calls the app, and the table of its answers.
const MARK: u32 = 0x111;
const TABLE: u32 = 100;

/// The policy.
pub(super) fn policy(pod: &PodFacts, settings: &mut Settings) -> Policy {
    let mut is_set = |name, default| {
        settings_annotation(pod, name)
            .filter(|found| !found.value.is_empty())
            .and_then(|found| settings.one(&found, values::boolean))
            .unwrap_or(default)
    };
    let captures_dns = is_set(DNS, true);
    let bypasses_inbound = is_set(BYPASS_INBOUND, false);
    let interfaces = settings_annotation(pod, VIRTUAL_INTERFACES);
    Policy {
        dialect: Dialect::Ambient,
        proxy_uids: Vec::new(),
        mode: Mode::Tproxy,
        tproxy_mark: MARK,
        tproxy_table: TABLE,
        inbound: match bypasses_inbound {
            true => InboundPorts::None,
            false => InboundPorts::AllExcept(Vec::new()),
        },
        virtual_interfaces: settings.list(interfaces.as_ref(), ',', values::interface),
        dual_stack: true,
        dns: match captures_dns {
            true => DnsCapture::All,
            false => DnsCapture::Off,
        },
        ..nothing()
    }
}

#[cfg(test)]
mod tests;
