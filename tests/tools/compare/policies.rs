//! Policies to compare under: istio-init's flags and environment, and what other meshes have in their place.

use sidetrack_policy::mesh::MeshName;

/// The words of a line, in which '' is an empty one.
pub fn words(line: &str) -> Vec<&str> {
    let words = line.split_whitespace();
    words
        .map(|word| if word == "''" { "" } else { word })
        .collect()
}

/// One policy.
pub struct BuiltIn {
    /// Its name in the table.
    pub name: &'static str,
    /// Arguments of istio-init, see [`words`].
    pub arguments: &'static str,
    /// Environment of istio-init.
    pub variables: &'static [(&'static str, &'static str)],
    /// What is in the pod's resolv.conf, if queries are compared.
    pub servers: Option<&'static [&'static str]>,
    /// Whether the pod forwards packets: rules come before routing, so that they capture the same without.
    pub forwards: bool,
}

/// A policy of another mesh.
pub struct OfMesh {
    /// Its name in the table.
    pub name: &'static str,
    /// Whose it is.
    pub mesh: MeshName,
    /// Its settings: [arguments](words) of the init container, or the text of Kuma's or Consul's configuration.
    pub settings: &'static str,
    /// Annotations.
    pub annotations: &'static [(&'static str, &'static str)],
    /// What is in the pod's resolv.conf, if queries are compared.
    pub servers: Option<&'static [&'static str]>,
    /// Whether a known load is counted instead.
    pub is_load: bool,
}

const fn linkerd(name: &'static str, settings: &'static str) -> OfMesh {
    OfMesh {
        name,
        mesh: MeshName::Linkerd,
        settings,
        annotations: &[],
        servers: None,
        is_load: false,
    }
}

const fn kuma(name: &'static str, settings: &'static str) -> OfMesh {
    OfMesh {
        mesh: MeshName::Kuma,
        servers: Some(&["10.109.118.31", "fd99::31"]),
        ..linkerd(name, settings)
    }
}

const fn consul(name: &'static str, settings: &'static str) -> OfMesh {
    OfMesh {
        mesh: MeshName::Consul,
        servers: Some(&["127.0.0.1", "::1", "10.109.118.31"]),
        ..linkerd(name, settings)
    }
}

const fn ambient(
    name: &'static str,
    annotations: &'static [(&'static str, &'static str)],
) -> OfMesh {
    OfMesh {
        mesh: MeshName::Ambient,
        annotations,
        servers: Some(&["10.109.118.31", "fd99::31"]),
        ..linkerd(name, "")
    }
}

const fn load(policy: OfMesh) -> OfMesh {
    OfMesh {
        is_load: true,
        ..policy
    }
}

/// Policies of other meshes: each of their options is in one at least.
pub const OF_MESHES: &[OfMesh] = &[
    linkerd(
        "linkerd-default",
        "--ipv6=false --inbound-ports-to-ignore=4190,4191,4567,4568 --outbound-ports-to-ignore=4567,4568",
    ),
    linkerd("linkerd-v6", "--inbound-ports-to-ignore 4190,4191"),
    linkerd(
        "linkerd-ranges",
        "--inbound-ports-to-ignore 1-21,22,50-60,15000-15010,15020,9 --outbound-ports-to-ignore 22,15001-15008,53",
    ),
    linkerd(
        "linkerd-long-lists",
        "--inbound-ports-to-ignore 1,2,3,4,5,6,7,8,9,10,11,12,13,14-15,16,22,15008 --outbound-ports-to-ignore 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,80-89",
    ),
    linkerd(
        "linkerd-subnets",
        "--subnets-to-ignore 10.77.0.0/16,fd77::/64,192.0.2.0/24",
    ),
    linkerd(
        "linkerd-listed",
        "-r 80,22,15021 --inbound-ports-to-ignore 22,4190 --subnets-to-ignore 10.78.0.0/24,fd78::/64",
    ),
    linkerd("linkerd-owners", "-u 1000 -g 2000 -p 15106 -o 15101"),
    linkerd("linkerd-no-uid", "-u 0"),
    load(linkerd(
        "linkerd-load",
        "--inbound-ports-to-ignore 15008-15030,22 --outbound-ports-to-ignore 22,8000-9000 --subnets-to-ignore 10.78.0.0/24,fd78::/64",
    )),
    kuma(
        "kuma-default",
        "redirect: {dns: {enabled: true, captureAll: true}, inbound: {excludePorts: [9001]}}",
    ),
    kuma("kuma-no-dns", "redirect: {}"),
    kuma(
        "kuma-servers",
        "redirect: {dns: {enabled: true, captureAll: false}}",
    ),
    OfMesh {
        servers: Some(&["fd99::31"]),
        ..kuma(
            "kuma-servers-v6",
            "redirect: {dns: {enabled: true, captureAll: false}}",
        )
    },
    kuma(
        "kuma-ports",
        "redirect: {inbound: {excludePorts: [22, 15021]}, outbound: {excludePorts: '53,80'}, dns: {enabled: true, captureAll: true}}",
    ),
    kuma(
        "kuma-included",
        "redirect: {inbound: {includePorts: [80, 9]}, outbound: {includePorts: [80, 53], excludePorts: [80]}, dns: {enabled: true, captureAll: true}}",
    ),
    kuma(
        "kuma-uids",
        "redirect: {outbound: {excludePortsForUIDs: ['tcp:22,80-90:1000-1010', '53:1337', 'udp:*:2000', '0']}, dns: {enabled: true, captureAll: true}}",
    ),
    kuma(
        "kuma-ips",
        "redirect: {outbound: {excludePortsForIPs: ['10.109.118.31', '10.77.0.0/16', 'fd99::/64']}, inbound: {excludePortsForIPs: ['10.78.0.0/24', 'fd78::/64']}, dns: {enabled: true, captureAll: true}}",
    ),
    kuma("kuma-no-inbound", "redirect: {inbound: {enabled: false}}"),
    kuma(
        "kuma-no-outbound",
        "redirect: {outbound: {enabled: false}, dns: {enabled: true, captureAll: true}}",
    ),
    kuma(
        "kuma-inserted",
        "redirect: {outbound: {insertRedirectInsteadOfAppend: true}, dns: {enabled: true, captureAll: true}}",
    ),
    kuma(
        "kuma-ipv4",
        "ipFamilyMode: ipv4\nredirect: {dns: {enabled: true, captureAll: true}}",
    ),
    kuma(
        "kuma-other",
        "kumaDPUser: '1000'\nredirect: {inbound: {port: 15106}, outbound: {port: 15101}}",
    ),
    load(kuma(
        "kuma-load",
        "redirect: {outbound: {excludePorts: [22], excludePortsForUIDs: ['tcp:80:2000'], excludePortsForIPs: ['10.109.120.0/24', 'fd99:120::/64']}, inbound: {excludePorts: [22, 15021], excludePortsForIPs: ['10.78.0.0/24', 'fd78::/64']}, dns: {enabled: true, captureAll: true}}",
    )),
    consul(
        "consul-default",
        r#"{"ConsulDNSIP":"127.0.0.1","ConsulDNSPort":8600,"ProxyUserID":"5995","ProxyInboundPort":20000,"ProxyOutboundPort":15001,"ExcludeInboundPorts":["20400"],"ExcludeUIDs":["5996"]}"#,
    ),
    consul(
        "consul-no-dns",
        r#"{"ProxyUserID":"5995","ProxyInboundPort":20000}"#,
    ),
    OfMesh {
        annotations: &[("consul.hashicorp.com/dual-stack", "true")],
        ..consul(
            "consul-dual-stack",
            r#"{"ConsulDNSIP":"::1","ConsulDNSPort":8600,"ProxyUserID":"5995","ProxyInboundPort":20000,"ExcludeOutboundCIDRs":["10.109.118.31","fd99::/64"]}"#,
        )
    },
    consul(
        "consul-excludes",
        r#"{"ConsulDNSIP":"127.0.0.1","ConsulDNSPort":8600,"ProxyUserID":"1337","ProxyInboundPort":15006,"ExcludeInboundPorts":["22","15008:15021"],"ExcludeOutboundPorts":["53","15000:15010"],"ExcludeOutboundCIDRs":["10.77.0.0/16"],"ExcludeUIDs":["0","2000-2010"]}"#,
    ),
    ambient("ambient", &[]),
    ambient(
        "ambient-no-dns",
        &[("ambient.istio.io/dns-capture", "false")],
    ),
    ambient(
        "ambient-ingress",
        &[("ambient.istio.io/bypass-inbound-capture", "true")],
    ),
    ambient(
        "ambient-virtual",
        &[("istio.io/reroute-virtual-interfaces", "tap0")],
    ),
    load(consul(
        "consul-load",
        r#"{"ConsulDNSIP":"127.0.0.1","ConsulDNSPort":8600,"ProxyUserID":"1337","ProxyInboundPort":15006,"ExcludeInboundPorts":["22","15008:15021"],"ExcludeOutboundPorts":["22","8000:9000"],"ExcludeOutboundCIDRs":["10.109.120.0/24"],"ExcludeUIDs":["5996"]}"#,
    )),
];

/// The dialect of today's Istio.
pub const CURRENT: &str = "current";

/// Versions of Istio, one per dialect.
pub const DIALECTS: [&str; 5] = ["1.1", "1.5", "1.8", "1.13", CURRENT];

const fn flags(name: &'static str, arguments: &'static str) -> BuiltIn {
    BuiltIn {
        name,
        arguments,
        variables: &[],
        servers: None,
        forwards: true,
    }
}

const fn dns(
    name: &'static str,
    arguments: &'static str,
    servers: &'static [&'static str],
) -> BuiltIn {
    BuiltIn {
        servers: Some(servers),
        ..flags(name, arguments)
    }
}

const fn without_forwarding(name: &'static str, arguments: &'static str) -> BuiltIn {
    BuiltIn {
        forwards: false,
        ..flags(name, arguments)
    }
}

const fn variables(
    name: &'static str,
    variables: &'static [(&'static str, &'static str)],
) -> BuiltIn {
    BuiltIn {
        name,
        arguments: "",
        variables,
        servers: None,
        forwards: true,
    }
}

/// Those under which a known load is counted. Their lists name what the load dials.
pub const LOADS: &[BuiltIn] = &[
    BuiltIn {
        name: "load-all",
        arguments: "-x 10.109.120.0/24,fd99:120::/64 -o 53,8443 -d 53,22 -c eth1",
        variables: &[("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", "2000")],
        servers: None,
        forwards: true,
    },
    flags(
        "load-lists",
        "-i 10.109.118.0/24,10.109.120.0/24,fd99::/64,fd99:120::/64 -q 22,53 -b 22,80",
    ),
    BuiltIn {
        variables: &[("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", "2000")],
        ..dns(
            "load-dns",
            "--redirect-dns -x 10.109.120.0/24,fd99:120::/64",
            &["10.109.118.31", "fd99::31", "10.77.0.254", "fd77::fe"],
        )
    },
];

/// All of them, except [`LOADS`].
pub const POLICIES: &[BuiltIn] = &[
    flags("default", ""),
    flags("inbound-off", "-b ''"),
    flags("inbound-list", "-b 80,22,9,15021"),
    flags("inbound-excludes", "-b * -d 80,15020,9"),
    flags("outbound-list", "-i 10.109.118.0/24,fd99::/64"),
    flags("outbound-none", "-i ''"),
    flags(
        "outbound-loopback",
        "-i 10.109.118.0/24,127.0.0.2/32,fd99::/64,::1/128",
    ),
    flags(
        "outbound-excludes",
        "-x 10.109.118.31/32,10.77.0.0/16,fd99::/64",
    ),
    flags("outbound-ports", "-i '' -q 80,15001"),
    flags("port-excludes", "-o 80,15008"),
    flags("no-eth0", "-c eth0"),
    flags("no-eth1", "-c eth1"),
    flags("virtual-eth1", "-k eth1"),
    flags(
        "virtual-list",
        "-k eth9,eth1 -c eth1 -i 10.78.0.0/24,fd78::/64",
    ),
    flags("no-pattern", "-c net+,eth1+,eth+0"),
    flags("no-interface", "-c +"),
    flags("virtual-pattern", "-k tap+,et+ -c eth0"),
    flags(
        "virtual-pattern-list",
        "-k eth9+,eth1+ -c eth+ -i 10.78.0.0/24,fd78::/64",
    ),
    flags("virtual-tap0", "-k tap0"),
    flags("two-uids", "-u 1337,1000"),
    flags("other-gid", "-u 1337 -g 2000"),
    flags("other-ports", "-p 15101 -z 15106 -e 15021"),
    flags("other-port-list", "-p 15101 -z 15106 -b 80,9"),
    flags("other-port-off", "-z 15106 -b ''"),
    flags("tproxy", "-m TPROXY"),
    flags("tproxy-list", "-m TPROXY -b 80,22,9,15021"),
    flags("tproxy-excludes", "-m TPROXY -b * -d 80,15020,9 -o 22"),
    flags("tproxy-off", "-m TPROXY -b ''"),
    flags("tproxy-numbers", "-m TPROXY -t 4711 -r 300 -z 15106"),
    flags("tproxy-no-eth1", "-m TPROXY -c eth1"),
    flags(
        "tproxy-loopback",
        "-m TPROXY -i 10.109.118.0/24,127.0.0.2/32,fd99::/64,::1/128",
    ),
    variables(
        "groups-included",
        &[("ISTIO_OUTBOUND_OWNER_GROUPS", "1000,1337")],
    ),
    variables(
        "groups-excluded",
        &[("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", "1000")],
    ),
    variables(
        "loopback-8",
        &[("ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", "127.0.0.0/8")],
    ),
    BuiltIn {
        name: "combined",
        arguments: "-i 10.0.0.0/8,fd00::/8 -x 10.77.0.0/16,fd77::/64 -q 22 -o 53 -b 80,9 -c eth1",
        variables: &[("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", "2000")],
        servers: None,
        forwards: true,
    },
    dns("dns", "--redirect-dns", &["10.109.118.31", "fd99::31"]),
    dns(
        "dns-all",
        "--redirect-dns --capture-all-dns",
        &["10.109.118.31"],
    ),
    dns("dns-no-servers", "--redirect-dns", &[]),
    dns(
        "dns-two-uids",
        "--redirect-dns -u 1337,1000",
        &["10.109.118.31", "fd99::31"],
    ),
    dns("dns-v6", "--redirect-dns", &["fd77::fe", "fd99::31"]),
    dns(
        "dns-local",
        "--redirect-dns",
        &["127.0.0.53", "10.77.0.2", "10.77.0.254", "::1", "fd78::2"],
    ),
    dns(
        "dns-excluded",
        "--redirect-dns -o 53",
        &["10.109.118.31", "fd99::31"],
    ),
    dns(
        "dns-lists",
        "--redirect-dns -i 10.77.0.0/16 -c eth1 -q 22",
        &["10.109.118.31", "10.78.0.254", "fd99::31", "fd78::fe"],
    ),
    BuiltIn {
        variables: &[("ISTIO_OUTBOUND_OWNER_GROUPS", "1000,1337")],
        ..dns(
            "dns-groups",
            "--redirect-dns",
            &["10.109.118.31", "fd99::31"],
        )
    },
    BuiltIn {
        variables: &[("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", "2000")],
        ..dns("dns-all-but-group", "--redirect-dns --capture-all-dns", &[])
    },
    without_forwarding("closed", ""),
    without_forwarding("closed-virtual", "-k tap0,eth1"),
    without_forwarding(
        "closed-virtual-list",
        "-k tap0 -c eth1 -i 10.109.0.0/16,fd99::/64",
    ),
    without_forwarding("closed-no-eth0", "-c eth0 -b 80,22"),
];
