//! Settings that nodes and pods have (`--profile`), under which a part of the comparison runs. Both pods have them
//! before anything redirects. All are of the pods' network namespaces.

/// Settings, and whose they are.
pub struct Profile {
    /// Its name in the table.
    pub name: &'static str,
    /// Whose settings these are.
    pub stands_for: &'static str,
    /// What is set.
    pub settings: &'static [Setting],
    /// The policies that it runs with, unless others are asked for.
    pub policies: &'static [&'static str],
    /// What is tried beside the connections of every policy.
    pub more: &'static [More],
    /// Differences that the settings cause.
    pub known: &'static [Known],
}

impl Profile {
    /// Whether it runs with a policy unless others are asked for.
    pub fn has_policy(&self, name: &str) -> bool {
        self.policies.contains(&name)
    }

    /// How many ports there are, if it restricts them. The other connections then leave none in TIME_WAIT.
    pub fn crowd(&self) -> Option<u16> {
        self.more.iter().find_map(|more| match more {
            More::Crowd(ports) => Some(*ports),
            _ => None,
        })
    }
}

/// One setting.
pub enum Setting {
    /// A kernel parameter below `/proc/sys/net`.
    Sysctl(&'static str, &'static str),
    /// One of all interfaces, and of those to come: family, name, value.
    Conf(&'static str, &'static str, &'static str),
    /// Arguments of `ip`.
    Ip(&'static str),
    /// Lines for iptables-restore and ip6tables-restore, in this table. The pod with the mesh's rules has them after
    /// these, so they are inserted where they come first.
    Rules(&'static str, [&'static str; 2]),
}

/// Connections that mean something under some settings only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum More {
    /// A neighbor calls loopback addresses of the pod.
    Neighbor,
    /// From a source that the pod does not have.
    ForeignSource,
    /// With marks that no rule is about.
    Marked,
    /// More connections than this number of ports, which the profile sets, at once and one after the other.
    Crowd(u16),
}

/// Differences that are there on purpose, see `docs/semantics.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Where iptables rewrites an inbound packet before a filter of the pod sees it.
    FilteredInbound,
    /// Where a filter of the pod sees targets.
    FilteredTargets,
    /// Where KubeVirt's rules come before the mesh's.
    Translated,
    /// Where the address that answers come from decides about their route.
    RoutedBySource,
    /// Where marks decide about routes in mode TPROXY.
    Marked,
    /// Where a socket that is bound to an IPv4 loopback address may send to other hosts.
    LoopbackSource,
    /// Where the kernel chooses an IPv6 source by destination, and that source has routes of its own.
    ChosenSource,
    /// Where a pod with rules for IPv6 has no address for it.
    WithoutV6,
}

/// Of [`Known::ChosenSource`], whatever the protocol.
pub const CHOSEN_SOURCE: &str = "an IPv6 socket that is not bound, to what only the routes of one source reach: made under iptables, ENETUNREACH";
/// Of [`Known::WithoutV6`], whatever the protocol.
pub const WITHOUT_V6: &str =
    "rules for IPv6 in a pod without an IPv6 address: EADDRNOTAVAIL under iptables, ENETUNREACH";

/// What the meshes' injectors set by default, mode TPROXY and DNS capture.
const DEFAULTS: [&str; 7] = [
    "default",
    "tproxy",
    "dns",
    "linkerd-v6",
    "kuma-default",
    "consul-dual-stack",
    "ambient",
];

/// The same, and policies that name an interface.
const WITH_INTERFACES: [&str; 9] = [
    "default",
    "no-eth0",
    "no-eth1",
    "tproxy",
    "dns",
    "linkerd-v6",
    "kuma-default",
    "consul-dual-stack",
    "ambient",
];

const fn sysctls(
    name: &'static str,
    stands_for: &'static str,
    settings: &'static [Setting],
) -> Profile {
    Profile {
        name,
        stands_for,
        settings,
        policies: &DEFAULTS,
        more: &[],
        known: &[],
    }
}

use Setting::{Conf, Ip, Rules, Sysctl};

/// All of them.
pub const PROFILES: &[Profile] = &[
    Profile {
        more: &[More::Neighbor],
        known: &[Known::LoopbackSource],
        ..sysctls(
            "kube-proxy",
            "nodes where kube-proxy serves NodePorts on localhost: new namespaces copy the node's setting",
            &[Conf("ipv4", "route_localnet", "1")],
        )
    },
    sysctls(
        "strict-rp-filter",
        "distributions that set it, and hardening guides",
        &[Conf("ipv4", "rp_filter", "1")],
    ),
    Profile {
        more: &[More::Crowd(300)],
        ..sysctls(
            "tw-reuse-0",
            "pods that keep TIME_WAIT for its time; the range of ports is small so that it shows",
            &[
                Sysctl("ipv4/tcp_tw_reuse", "0"),
                Sysctl("ipv4/ip_local_port_range", "61000 61299"),
            ],
        )
    },
    Profile {
        more: &[More::Crowd(300)],
        ..sysctls(
            "tw-reuse-1",
            "clients tuned for many short connections; the range of ports is small so that it shows",
            &[
                Sysctl("ipv4/tcp_tw_reuse", "1"),
                Sysctl("ipv4/ip_local_port_range", "61000 61299"),
            ],
        )
    },
    Profile {
        more: &[More::ForeignSource],
        ..sysctls(
            "nonlocal-bind",
            "pods with keepalived, HAProxy or another owner of floating addresses",
            &[
                Sysctl("ipv4/ip_nonlocal_bind", "1"),
                Sysctl("ipv6/ip_nonlocal_bind", "1"),
            ],
        )
    },
    Profile {
        more: &[More::Marked],
        known: &[Known::Marked],
        ..sysctls(
            "fwmark-accept",
            "pods with transparent proxies or routing by marks",
            &[
                Sysctl("ipv4/tcp_fwmark_accept", "1"),
                Sysctl("ipv4/fwmark_reflect", "1"),
                Sysctl("ipv6/fwmark_reflect", "1"),
            ],
        )
    },
    Profile {
        more: &[More::Crowd(100)],
        ..sysctls(
            "narrow-ports",
            "pods whose security context restricts the range of ports",
            &[Sysctl("ipv4/ip_local_port_range", "42000 42099")],
        )
    },
    Profile {
        known: &[Known::WithoutV6],
        ..sysctls(
            "no-ipv6",
            "clusters that turn IPv6 off",
            &[Conf("ipv6", "disable_ipv6", "1")],
        )
    },
    Profile {
        policies: &WITH_INTERFACES,
        known: &[Known::RoutedBySource, Known::ChosenSource],
        ..sysctls(
            "sbr",
            "a second network by Multus with the plugin sbr: each source has a table of its own, from 100 the first free one",
            &[
                Ip("rule add from 10.78.0.2 table 101"),
                Ip("route add default via 10.78.0.254 dev eth1 table 101"),
                Ip("route delete 10.78.0.0/24 dev eth1"),
                Ip(
                    "route add 10.78.0.0/24 dev eth1 proto kernel scope link src 10.78.0.2 table 101",
                ),
                Ip("-6 rule add from fd78::2 table 101"),
                Ip("-6 route add default via fd78::fe dev eth1 table 101"),
                Ip("-6 route delete fd78::/64 dev eth1"),
                Ip("-6 route add fd78::/64 dev eth1 proto kernel table 101"),
            ],
        )
    },
    Profile {
        policies: &WITH_INTERFACES,
        ..sysctls(
            "wg-quick",
            "a VPN whose table comes before the default route: WireGuard's wg-quick, others alike",
            &[
                Ip("rule add not fwmark 51820 table 51820"),
                Ip("rule add table main suppress_prefixlength 0"),
                Ip("route add default via 10.78.0.254 dev eth1 table 51820"),
                Ip("-6 rule add not fwmark 51820 table 51820"),
                Ip("-6 rule add table main suppress_prefixlength 0"),
                Ip("-6 route add default via fd78::fe dev eth1 table 51820"),
            ],
        )
    },
    Profile {
        more: &[More::Neighbor],
        ..sysctls(
            "accept-local",
            "pods behind load balancers that return packets with the pod's own address",
            &[Conf("ipv4", "accept_local", "1")],
        )
    },
    Profile {
        // KubeVirt has such rules for Istio only.
        policies: &["default", "virtual-tap0", "dns"],
        known: &[Known::Translated],
        ..sysctls(
            "kubevirt",
            "KubeVirt's masquerade binding of a virtual machine in a mesh",
            &[
                Sysctl("ipv4/conf/tap0/route_localnet", "1"),
                Rules("nat", [KUBEVIRT_V4, KUBEVIRT_V6]),
            ],
        )
    },
    Profile {
        known: &[Known::FilteredInbound],
        ..sysctls(
            "default-deny",
            "pods with a filter of their own that lets only the mesh's ports in",
            &[Rules("filter", [DENY_V4, DENY_V6])],
        )
    },
    Profile {
        known: &[Known::FilteredTargets],
        ..sysctls(
            "loopback-filter",
            "pods with a filter of their own that leaves 127.0.0.1 and ::1 of loopback",
            &[Rules("filter", [DENY_LOOPBACK_V4, DENY_LOOPBACK_V6])],
        )
    },
];

/// The machine is 10.79.0.2 behind tap0, the pod 10.77.0.2. Chains that nftables gets later come first, so this comes
/// before the mesh's rules, and a return of the output chain leads on to these.
const KUBEVIRT_V4: &str = "\
:KUBEVIRT_PREINBOUND - [0:0]
:KUBEVIRT_POSTINBOUND - [0:0]
:KUBEVIRT_OUTPUT - [0:0]
-I PREROUTING -i eth0 -j KUBEVIRT_PREINBOUND
-I POSTROUTING -o tap0 -j KUBEVIRT_POSTINBOUND
-I POSTROUTING -s 10.79.0.2 -j MASQUERADE
-I OUTPUT -j KUBEVIRT_OUTPUT
-A KUBEVIRT_PREINBOUND -p tcp --dport 22 -j DNAT --to-destination 10.79.0.2
-A KUBEVIRT_POSTINBOUND -s 127.0.0.1 -p tcp -m multiport --dports 15000,15001,15004,15006,15008,15009,15020,15021,15053,15090 -j RETURN
-A KUBEVIRT_POSTINBOUND -s 127.0.0.1 -j SNAT --to-source 10.79.0.1
-A KUBEVIRT_POSTINBOUND -s 127.0.0.6 -j SNAT --to-source 10.79.0.1
-A KUBEVIRT_OUTPUT -s 127.0.0.1 -p tcp -m multiport --dports 15000,15001,15004,15006,15008,15009,15020,15021,15053,15090 -j RETURN
-A KUBEVIRT_OUTPUT -d 127.0.0.1 -j DNAT --to-destination 10.79.0.2
-A KUBEVIRT_OUTPUT -d 10.77.0.2 -j DNAT --to-destination 10.79.0.2
";

const KUBEVIRT_V6: &str = "\
:KUBEVIRT_PREINBOUND - [0:0]
:KUBEVIRT_POSTINBOUND - [0:0]
:KUBEVIRT_OUTPUT - [0:0]
-I PREROUTING -i eth0 -j KUBEVIRT_PREINBOUND
-I POSTROUTING -o tap0 -j KUBEVIRT_POSTINBOUND
-I POSTROUTING -s fd79::2 -j MASQUERADE
-I OUTPUT -j KUBEVIRT_OUTPUT
-A KUBEVIRT_PREINBOUND -p tcp --dport 22 -j DNAT --to-destination fd79::2
-A KUBEVIRT_POSTINBOUND -s ::1 -p tcp -m multiport --dports 15000,15001,15004,15006,15008,15009,15020,15021,15053,15090 -j RETURN
-A KUBEVIRT_POSTINBOUND -s ::1 -j SNAT --to-source fd79::1
-A KUBEVIRT_OUTPUT -s ::1 -p tcp -m multiport --dports 15000,15001,15004,15006,15008,15009,15020,15021,15053,15090 -j RETURN
-A KUBEVIRT_OUTPUT -d ::1 -j DNAT --to-destination fd79::2
";

/// Everything of the pod's own, answers, and the inbound ports of all meshes.
const DENY_V4: &str = "\
:INPUT DROP [0:0]
-F INPUT
-A INPUT -i lo -j ACCEPT
-A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
-A INPUT -p tcp -m multiport --dports 4143,4191,15006,15008,15020,15021,15090,20000 -j ACCEPT
";

/// The same, and neighbor discovery.
const DENY_V6: &str = "\
:INPUT DROP [0:0]
-F INPUT
-A INPUT -i lo -j ACCEPT
-A INPUT -p ipv6-icmp -j ACCEPT
-A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
-A INPUT -p tcp -m multiport --dports 4143,4191,15006,15008,15020,15021,15090,20000 -j ACCEPT
";

const DENY_LOOPBACK_V4: &str = "\
-F INPUT
-A INPUT -i lo -s 127.0.0.0/8 ! -d 127.0.0.1 -j DROP
";

const DENY_LOOPBACK_V6: &str = "\
-F INPUT
-A INPUT -i lo -s ::1 ! -d ::1 -j DROP
";
