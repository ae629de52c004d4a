//! Raw values of a policy, by what they set. They are not validated here.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

/// A raw value and where it was found, in words for an error message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sourced {
    /// The raw value.
    pub value: String,
    /// For example `annotation traffic.sidecar.istio.io/includeInboundPorts`.
    pub origin: String,
}

/// An input of istio-iptables, named after its long flag or its environment variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Input {
    /// `-p`
    EnvoyPort,
    /// `-z`
    InboundCapturePort,
    /// `-e`
    InboundTunnelPort,
    /// `-u`
    ProxyUid,
    /// `-g`
    ProxyGid,
    /// `-m`
    InterceptionMode,
    /// `-t`
    TproxyMark,
    /// `-r`
    TproxyTable,
    /// `-b`
    InboundPorts,
    /// `-d`, complete, as istio-init is given it.
    LocalExcludePorts,
    /// The user's part of `-d`.
    ExcludeInboundPorts,
    /// `status.sidecar.istio.io/port`
    StatusPort,
    /// `-i`
    ServiceCidr,
    /// `-x`
    ServiceExcludeCidr,
    /// `-q`
    OutboundPorts,
    /// `-o`
    OutboundPortsExclude,
    /// `-c`
    ExcludeInterfaces,
    /// `-k`
    VirtualInterfaces,
    /// `ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR`
    LoopbackCidr,
    /// `ISTIO_OUTBOUND_OWNER_GROUPS`
    OwnerGroups,
    /// `ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE`
    OwnerGroupsExclude,
    /// `ISTIO_DUAL_STACK`
    DualStack,
    /// `--redirect-dns`, `ISTIO_META_DNS_CAPTURE`
    DnsCapture,
    /// `--capture-all-dns`; that no istio-init says which servers are meant
    CaptureAllDns,
    /// `sidetrack.dev/dialect`, the image's tag
    Dialect,
    /// `sidetrack.dev/before-sidecar`
    BeforeSidecar,
    /// `sidetrack.dev/accelerate`
    Accelerate,
}

/// Raw values by input; the first source to name an input wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inputs {
    values: BTreeMap<Input, Sourced>,
    /// Those that istio-iptables itself reads.
    of_tool: BTreeSet<Input>,
}

impl Inputs {
    /// Adds a weaker source.
    pub fn add(&mut self, weaker: Self) {
        for (input, value) in weaker.values {
            if let Entry::Vacant(vacant) = self.values.entry(input) {
                vacant.insert(value);
                if weaker.of_tool.contains(&input) {
                    self.of_tool.insert(input);
                }
            }
        }
    }

    /// Sets a value that is not there yet.
    pub fn set(&mut self, input: Input, value: &str, origin: String) {
        self.values.entry(input).or_insert_with(|| Sourced {
            value: value.to_owned(),
            origin,
        });
    }

    /// Sets a value, whatever was there.
    pub fn replace(&mut self, input: Input, value: &str, origin: String) {
        let value = value.to_owned();
        self.values.insert(input, Sourced { value, origin });
    }

    /// The same values, as those that istio-iptables itself reads: arguments and variables of its container. It ignores
    /// what it cannot read of some lists, which are errors in annotations.
    #[must_use]
    pub(crate) fn of_tool(mut self) -> Self {
        self.of_tool = self.values.keys().copied().collect();
        self
    }

    /// Whether istio-iptables itself reads a value.
    pub(crate) fn is_of_tool(&self, input: Input) -> bool {
        self.of_tool.contains(&input)
    }

    /// The values of some inputs.
    #[must_use]
    pub(crate) fn only(mut self, inputs: &[Input]) -> Self {
        self.values.retain(|input, _| inputs.contains(input));
        self
    }

    /// A value.
    #[must_use]
    pub fn get(&self, input: Input) -> Option<&Sourced> {
        self.values.get(&input)
    }
}
