//! The rules a decision can name. Each has a stable number, which is part of map keys, and a stable
//! name, which is part of JSON output, logs and metrics.

macro_rules! rules {
    ($($(#[$doc:meta])+ $variant:ident = $number:literal, $class:ident, $name:literal, $text:literal;)+) => {
        /// The rule that decided a connection. Rule numbers in the comments are those of docs/semantics.md.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Rule { $($(#[$doc])+ $variant = $number,)+ }

        impl Rule {
            /// Every rule, in number order.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The name used in JSON, logs and metrics.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// What it does.
            #[must_use]
            pub const fn class(self) -> Class {
                match self { $(Self::$variant => Class::$class,)+ }
            }

            /// One sentence for `explain` and the documentation.
            #[must_use]
            pub const fn describe(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }

            /// The rule with this name, if there is one.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|rule| rule.name() == name)
            }

            /// The rule with this number, if there is one.
            #[must_use]
            pub const fn from_number(number: u32) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

rules! {
    /// IPv6 in a pod that has no IPv6 rules.
    FamilyNotCaptured = 1, Untouched, "family-not-captured", "the pod has no rules for this IP family";
    /// No usable route: the caller gets the error the kernel gives for it.
    NoRoute = 2, Refused, "no-route", "the pod has no usable route to the destination: connect fails as it would without a mesh";
    /// A loopback source toward an off-pod IPv4 address: connect fails with EINVAL.
    LoopbackSource = 3, Refused, "loopback-source", "a connection with a loopback source cannot leave the pod: refused with EINVAL";
    /// SO_BINDTODEVICE, and the binding cannot be removed.
    BoundDevice = 4, Refused, "bound-device", "the socket is bound to a device, and the kernel takes such a binding off for CAP_NET_RAW only: refused";
    /// UDP that no rule for DNS captures: the connect is counted.
    Udp = 5, Udp, "udp", "UDP is not intercepted unless it is a DNS query that the sidecar answers: it goes to its destination directly";

    /// Outbound 1: the output device is excluded.
    OutInterface = 10, Untouched, "out-interface-excluded", "the output device is excluded (in Istio by excludeInterfaces)";
    /// Outbound 2: the port is excluded.
    OutPortExcluded = 11, Untouched, "out-port-excluded", "the port is excluded outbound (in Istio by excludeOutboundPorts)";
    /// Outbound 3: the sidecar's own address toward the app.
    SelfSource = 12, Untouched, "self-source", "the sidecar calls the app from its own loopback address";
    /// Outbound 4a: the proxy (by uid) calls its own pod.
    ProxyUidLocal = 13, Outbound, "proxy-uid-local", "the proxy (uid) calls its own pod: redirected to the inbound port";
    /// Outbound 4b: the app calls its own pod.
    NotProxyUidLocal = 14, Untouched, "not-proxy-uid-local", "the app calls its own pod directly";
    /// Outbound 4c: the proxy (by uid).
    ProxyUid = 15, Untouched, "proxy-uid", "the socket belongs to the proxy (uid)";
    /// Outbound 5a: the proxy (by gid) calls its own pod.
    ProxyGidLocal = 16, Outbound, "proxy-gid-local", "the proxy (gid) calls its own pod: redirected to the inbound port";
    /// Outbound 5b: the app calls its own pod, in a policy that names no proxy uid.
    NotProxyGidLocal = 17, Untouched, "not-proxy-gid-local", "the app calls its own pod directly";
    /// Outbound 5c: the proxy (by gid).
    ProxyGid = 18, Untouched, "proxy-gid", "the socket belongs to the proxy (gid)";
    /// Outbound 6: the owner's group is excluded.
    GroupExcluded = 19, Untouched, "owner-group-excluded", "the owner's group is excluded";
    /// Outbound 6: the owner's group is not included.
    GroupNotIncluded = 20, Untouched, "owner-group-not-included", "the owner's group is not included";
    /// Outbound 8: loopback destination.
    Loopback = 21, Untouched, "loopback", "the destination is the pod's loopback address";
    /// Outbound 9: the destination is in an excluded range.
    RangeExcluded = 22, Untouched, "out-range-excluded", "the destination is excluded (in Istio by excludeOutboundIPRanges)";
    /// Outbound 10: the port is included, in any range.
    OutPortIncluded = 23, Outbound, "out-port-included", "the port is captured whatever the destination (in Istio by includeOutboundPorts)";
    /// Outbound 11: everything is captured.
    AllOutbound = 24, Outbound, "out-all", "all outbound connections are captured";
    /// Outbound 11: the destination is in an included range.
    RangeIncluded = 25, Outbound, "out-range-included", "the destination is in a captured range (in Istio of includeOutboundIPRanges)";
    /// Outbound 12: nothing matched.
    OutNoMatch = 26, Untouched, "out-no-match", "no outbound rule captures the connection";
    /// Outbound 3 of Istio up to 1.2: everything over lo except to LB.
    LocalCaptured = 27, Outbound, "local-captured", "the connection stays in the pod, and this Istio version captures such connections of every process";
    /// Outbound, before the pod's sidecar first listens, in pods with that annotation.
    BeforeSidecar = 28, BeforeSidecar, "before-sidecar", "the sidecar has not listened yet, and the annotation sidetrack.dev/before-sidecar allows direct connections until it does";
    /// Mode TPROXY: the sidecar calls the app from the client's address.
    Transparent = 29, Untouched, "transparent", "the sidecar calls the app from the client's address";
    /// Mode TPROXY, outbound 4a by the mark: the proxy (by uid) calls its own pod.
    TransparentUidLocal = 30, Outbound, "transparent-uid-local", "the proxy (uid) calls its own pod: its listener on the inbound port takes the connection";
    /// Mode TPROXY, outbound 5a by the mark: the proxy (by gid) calls its own pod.
    TransparentGidLocal = 31, Outbound, "transparent-gid-local", "the proxy (gid) calls its own pod: its listener on the inbound port takes the connection";

    /// Outbound 7: a DNS query over TCP.
    DnsTcp = 32, Outbound, "dns-tcp", "a DNS query over TCP: redirected to the sidecar's DNS port";
    /// Outbound 7: a DNS query over UDP.
    DnsUdp = 33, Outbound, "dns-udp", "a DNS query over UDP: redirected to the sidecar's DNS port";

    /// Kuma, Consul: an excluded user, or user, port and protocol.
    OwnerExcluded = 34, Untouched, "out-owner-excluded", "the socket's user is excluded, for this port and protocol";
    /// Linkerd: everything over lo.
    OverLo = 35, Untouched, "over-lo", "the connection stays in the pod, and this mesh leaves such connections alone";
    /// Kuma: a DNS query over TCP.
    DnsDirect = 36, Untouched, "dns-direct", "a DNS query over TCP: this mesh leaves it to the server it is sent to";

    /// The proxy, by the mark of its socket.
    ProxyMark = 37, Untouched, "proxy-mark", "the socket has the mark of the proxy";

    /// Not inbound at all: the SYN came over lo, where the outbound rules apply.
    LocalSource = 40, Untouched, "local-source", "the connection comes from the pod itself: the outbound rules apply";
    /// Inbound 1: a virtual interface whose traffic counts as outbound, captured.
    VirtualInterface = 41, Inbound, "virtual-interface", "the connection came in on a virtual interface and counts as outbound";
    /// Inbound 1: a virtual interface, destination not captured.
    VirtualInterfaceNoMatch = 42, Untouched, "virtual-interface-no-match", "the connection came in on a virtual interface, and its destination is not captured";
    /// Inbound 2: the ingress interface is excluded.
    InInterface = 43, Untouched, "in-interface-excluded", "the ingress interface is excluded (in Istio by excludeInterfaces)";
    /// Inbound 3: inbound capture is off.
    InboundOff = 44, Untouched, "in-off", "no inbound port is captured";
    /// Inbound 4: the tunnel port.
    TunnelPort = 45, Untouched, "tunnel-port", "the sidecar itself serves the inbound tunnel port";
    /// Inbound 5: the port is excluded.
    InPortExcluded = 46, Untouched, "in-port-excluded", "the port is excluded inbound (in Istio by excludeInboundPorts), or is a port of the sidecar itself";
    /// Inbound 5: everything else is captured.
    AllInbound = 47, Inbound, "in-all", "all inbound ports are captured";
    /// Inbound 6: the port is listed.
    InPortIncluded = 48, Inbound, "in-port-included", "the port is captured inbound (in Istio by includeInboundPorts)";
    /// Inbound 6: the port is not listed.
    InNoMatch = 49, Untouched, "in-no-match", "the port is not one of those that are captured inbound (in Istio of includeInboundPorts)";
    /// Inbound 4 of Istio up to 1.12: port 22.
    SshPort = 50, Untouched, "ssh-port", "port 22 is exempt in this Istio version";

    /// Linkerd, Kuma: the sender is excluded.
    SourceExcluded = 51, Untouched, "in-source-excluded", "the sender is in a range that is excluded inbound";

    /// Refused: the pod's row names a policy that does not exist.
    NoPolicy = 60, Refused, "no-policy", "the pod's policy is missing: refused, so that the connection does not bypass the sidecar";
    /// Refused: the kernel could not allocate the socket's record.
    NoStorage = 61, Refused, "no-storage", "the kernel had no memory for the connection's record: refused";
    /// Refused: too many handshakes in flight.
    HandshakesFull = 62, Refused, "handshakes-full", "too many redirected connections are waiting for the sidecar: refused";
    /// Outcome of a redirected inbound connection: no socket listens on the capture port.
    NoListener = 63, Failed, "no-listener", "no sidecar listens on the port that captures the connection, in Istio 15006 unless configured: refused";
    /// Refused: the destination is a link-local address.
    LinkLocal = 64, Refused, "link-local", "the destination is an IPv6 link-local address, and its interface is not known: refused";
    /// Refused: the pod has more addresses than the agent follows.
    TooManyAddresses = 65, Refused, "too-many-addresses", "the pod has more than 2,048 addresses, so it is unknown whether the destination is one of them: refused";
    /// Refused: the socket has an IPv6 routing header or an IPv4 source route.
    RoutingHeader = 66, Refused, "routing-header", "the socket has an IPv6 routing header or an IPv4 source route, which would lead its packets elsewhere: refused";
    /// Refused: a redirect target that no row belongs to.
    UnknownTarget = 67, Refused, "unknown-target", "the connection goes to or comes from an address that only redirected connections of the pod have, and it is none of them: refused";
    /// Refused: the pod has as many records of sockets as it may have, or all pods together have.
    RecordsFull = 68, Refused, "records-full", "the pod has as many open sockets with a record as it may have, or all pods together have: refused";
    /// Refused: setsockopt for an option that leads the packets of a connected socket elsewhere.
    SocketOption = 69, Refused, "socket-option", "the application asked for a socket option that would lead the packets of its connection elsewhere, after the rules have decided about it: the option is refused with EPERM, the connection continues";

    /// Outcome of a redirected connection: the kernel answered its SYN with a reset.
    SidecarRefused = 70, Failed, "sidecar-refused", "no sidecar listens on the capture port that the connection was redirected to: refused";
    /// Outcome of a redirected connection: no answer to its SYN.
    SidecarSilent = 71, Failed, "sidecar-silent", "the sidecar did not answer the connection that was redirected to it";
    /// Outcome of a redirected connection: its socket was closed before there was an answer.
    GivenUp = 72, GivenUp, "given-up", "the application closed the socket before the sidecar answered";
}

/// What a [`Rule`] does with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Redirects an outbound connection.
    Outbound,
    /// Redirects an inbound connection.
    Inbound,
    /// Leaves it untouched.
    Untouched,
    /// Leaves it untouched because the sidecar has not listened yet.
    BeforeSidecar,
    /// Leaves UDP untouched.
    Udp,
    /// Refuses it.
    Refused,
    /// Says that a connection failed that a rule has redirected, and was counted there.
    Failed,
    /// The same, and the application itself ended it.
    GivenUp,
}

impl Class {
    /// Whether the connection failed because something was missing.
    #[must_use]
    pub const fn is_refusal(self) -> bool {
        matches!(self, Self::Refused | Self::Failed)
    }
}

impl Rule {
    /// Whether it leaves a connection untouched wherever it goes: because of who made it, or because the
    /// pod has no rules for the family.
    #[inline(always)]
    #[must_use]
    pub const fn is_for_owners(self) -> bool {
        matches!(
            self,
            Self::FamilyNotCaptured
                | Self::ProxyUid
                | Self::ProxyGid
                | Self::GroupExcluded
                | Self::GroupNotIncluded
                | Self::OwnerExcluded
                | Self::DnsDirect
                | Self::ProxyMark
        )
    }
}

#[cfg(test)]
mod tests;
