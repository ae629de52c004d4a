//! Names in manifests that mean something: annotations, labels and variables, and the inputs that they set.

use crate::{inputs::Input, mesh_name::MeshName};

/// Names of the containers that a mesh's injector adds.
#[derive(Debug)]
pub(crate) struct InjectedNames {
    /// The sidecar.
    pub sidecar: &'static str,
    /// The init container that programs iptables.
    pub init: &'static str,
    /// The init container that the injector adds when something else programs the rules. Consul has none.
    pub check: Option<&'static str>,
}

/// The init containers that the webhook replaces. Consul's does more than to program rules, and stays.
pub const REPLACED: [&str; 3] = [
    InjectedNames::of(MeshName::Istio).init,
    InjectedNames::of(MeshName::Linkerd).init,
    InjectedNames::of(MeshName::Kuma).init,
];

impl InjectedNames {
    /// Those of a mesh. No container has an empty name.
    pub(crate) const fn of(mesh: MeshName) -> &'static Self {
        match mesh {
            MeshName::Istio => &Self {
                sidecar: "istio-proxy",
                init: "istio-init",
                check: Some("istio-validation"),
            },
            MeshName::Linkerd => &Self {
                sidecar: "linkerd-proxy",
                init: "linkerd-init",
                check: Some("linkerd-network-validator"),
            },
            MeshName::Kuma => &Self {
                sidecar: "kuma-sidecar",
                init: "kuma-init",
                check: Some("kuma-validation"),
            },
            MeshName::Consul => &Self {
                sidecar: "consul-dataplane",
                init: "consul-connect-inject-init",
                check: None,
            },
            MeshName::Ambient => &Self {
                sidecar: "",
                init: "",
                check: None,
            },
        }
    }

    /// The names of all sidecars, as a sentence has them.
    pub(crate) fn sidecars() -> String {
        let [before @ .., last] = MeshName::ALL.map(|mesh| Self::of(mesh).sidecar);
        format!("{} or {last}", before.join(", "))
    }
}

/// What istio-cni reads of a pod in ambient mode.
pub mod ambient {
    /// Label on a pod or namespace.
    pub(crate) const MODE: &str = "istio.io/dataplane-mode";
    /// The injector writes it.
    pub(crate) const SIDECAR: &str = "sidecar.istio.io/status";
    pub(crate) const DNS: &str = "ambient.istio.io/dns-capture";
    pub(crate) const BYPASS_INBOUND: &str = "ambient.istio.io/bypass-inbound-capture";
    /// istio-cni, or sidetrack in its place, writes it to pods that are in ambient mode.
    pub const REDIRECTION: &str = "ambient.istio.io/redirection";
    /// The value that it writes.
    pub const REDIRECTED: &str = "enabled";
    pub(crate) const VIRTUAL_INTERFACES: &str = "istio.io/reroute-virtual-interfaces";
}

/// What Linkerd's CNI plugin reads: annotations that replace its settings, and a label; and the sidecar's variables.
pub(crate) mod linkerd {
    /// Label of the control plane's own pods.
    pub(crate) const COMPONENT: &str = "linkerd.io/control-plane-component";
    pub(crate) const SKIP_INBOUND_PORTS: &str = "config.linkerd.io/skip-inbound-ports";
    pub(crate) const SKIP_OUTBOUND_PORTS: &str = "config.linkerd.io/skip-outbound-ports";
    pub(crate) const SKIP_SUBNETS: &str = "config.linkerd.io/skip-subnets";
    pub(crate) const PROXY_UID: &str = "config.linkerd.io/proxy-uid";
    pub(crate) const PROXY_GID: &str = "config.linkerd.io/proxy-gid";
    pub(crate) const INBOUND: &str = "LINKERD2_PROXY_INBOUND_LISTEN_ADDR";
    pub(crate) const OUTBOUND: [&str; 2] = [
        "LINKERD2_PROXY_OUTBOUND_LISTEN_ADDRS",
        "LINKERD2_PROXY_OUTBOUND_LISTEN_ADDR",
    ];
    pub(crate) const ADMIN: &str = "LINKERD2_PROXY_ADMIN_LISTEN_ADDR";
    pub(crate) const CONTROL: &str = "LINKERD2_PROXY_CONTROL_LISTEN_ADDR";
}

/// Kuma's annotations.
pub(crate) mod kuma {
    pub(crate) const CONFIG: &str = "traffic.kuma.io/transparent-proxy-config";
    pub(crate) const INJECTED: &str = "kuma.io/sidecar-injected";
    pub(crate) const UID: &str = "kuma.io/sidecar-uid";
    pub(crate) const GATEWAY: &str = "kuma.io/gateway";
    pub(crate) const PROBE_PORT: &str = "kuma.io/application-probe-proxy-port";
    pub(crate) const INBOUND_PORT: &str = "kuma.io/transparent-proxying-inbound-port";
    pub(crate) const OUTBOUND_PORT: &str = "kuma.io/transparent-proxying-outbound-port";
    pub(crate) const FAMILIES: &str = "kuma.io/transparent-proxying-ip-family-mode";
    pub(crate) const DNS: &str = "kuma.io/builtin-dns";
    pub(crate) const DNS_PORT: &str = "kuma.io/builtin-dns-port";
    pub(crate) const EXCLUDE_INBOUND_PORTS: &str = "traffic.kuma.io/exclude-inbound-ports";
    pub(crate) const EXCLUDE_OUTBOUND_PORTS: &str = "traffic.kuma.io/exclude-outbound-ports";
    pub(crate) const EXCLUDE_FOR_UIDS: &str = "traffic.kuma.io/exclude-outbound-ports-for-uids";
    pub(crate) const EXCLUDE_INBOUND_IPS: &str = "traffic.kuma.io/exclude-inbound-ips";
    pub(crate) const EXCLUDE_OUTBOUND_IPS: &str = "traffic.kuma.io/exclude-outbound-ips";
}

/// Consul's annotations, and the variable of its init container.
pub(crate) mod consul {
    pub(crate) const CONFIG: &str = "consul.hashicorp.com/redirect-traffic-config";
    pub(crate) const STATUS: [&str; 2] = [
        "consul.hashicorp.com/connect-inject-status",
        "consul.hashicorp.com/mesh-inject-status",
    ];
    pub(crate) const TRANSPARENT: &str = "consul.hashicorp.com/transparent-proxy-status";
    pub(crate) const DUAL_STACK: &str = "consul.hashicorp.com/dual-stack";
    pub(crate) const VARIABLE: &str = "CONSUL_REDIRECT_TRAFFIC_CONFIG";
    pub(crate) const DUAL_STACK_VARIABLE: &str = "CONSUL_DUAL_STACK";
}

/// Annotation that lets a pod's init containers reach the network: `passthrough`, or `refuse` (the
/// default).
pub const BEFORE_SIDECAR: &str = "sidetrack.dev/before-sidecar";

/// Annotation that has a pod's connections to its sidecar accelerated: `true`, or `false` (the default).
pub const ACCELERATE: &str = "sidetrack.dev/accelerate";

/// Annotation that sets a pod's dialect. It wins over the tags of its images.
pub const DIALECT: &str = "sidetrack.dev/dialect";

/// Annotation that holds the record of a removed istio-init.
pub const REMOVED_ISTIO_INIT: &str = "sidetrack.dev/istio-init";

/// Annotation that names the pod's network namespace, for pods that come from a directory.
pub const NETNS: &str = "sidetrack.dev/netns";

/// Label on a pod or namespace that opts in (`enabled`) or out (`disabled`).
pub const LABEL: &str = "sidetrack.dev/interception";
/// Turns the injector off for a pod: a label since Istio 1.11, an annotation before.
pub const INJECT: &str = "sidecar.istio.io/inject";

/// Annotations and the inputs they set.
#[rustfmt::skip]
pub(crate) const ANNOTATIONS: [(&str, Input); 14] = [
    (ACCELERATE, Input::Accelerate),
    (BEFORE_SIDECAR, Input::BeforeSidecar),
    (DIALECT, Input::Dialect),
    (ambient::VIRTUAL_INTERFACES, Input::VirtualInterfaces),
    ("traffic.sidecar.istio.io/kubevirtInterfaces", Input::VirtualInterfaces),
    ("sidecar.istio.io/interceptionMode", Input::InterceptionMode),
    ("traffic.sidecar.istio.io/includeInboundPorts", Input::InboundPorts),
    ("traffic.sidecar.istio.io/excludeInboundPorts", Input::ExcludeInboundPorts),
    ("status.sidecar.istio.io/port", Input::StatusPort),
    ("traffic.sidecar.istio.io/includeOutboundIPRanges", Input::ServiceCidr),
    ("traffic.sidecar.istio.io/excludeOutboundIPRanges", Input::ServiceExcludeCidr),
    ("traffic.sidecar.istio.io/includeOutboundPorts", Input::OutboundPorts),
    ("traffic.sidecar.istio.io/excludeOutboundPorts", Input::OutboundPortsExclude),
    ("traffic.sidecar.istio.io/excludeInterfaces", Input::ExcludeInterfaces),
];

/// Environment variables of the sidecar, in which the injector repeats mesh-wide settings, and the inputs they set.
#[rustfmt::skip]
pub(crate) const VARIABLES: [(&str, Input); 8] = [
    ("ISTIO_META_INTERCEPTION_MODE", Input::InterceptionMode),
    ("ISTIO_INBOUND_TPROXY_MARK", Input::TproxyMark),
    ("ISTIO_INBOUND_TPROXY_ROUTE_TABLE", Input::TproxyTable),
    ("ISTIO_META_DNS_CAPTURE", Input::DnsCapture),
    ("ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", Input::LoopbackCidr),
    ("ISTIO_OUTBOUND_OWNER_GROUPS", Input::OwnerGroups),
    ("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", Input::OwnerGroupsExclude),
    ("ISTIO_DUAL_STACK", Input::DualStack),
];

/// Environment variables of istio-init beside these: each of its flags has one. A weaker one comes later.
#[rustfmt::skip]
const FLAG_VARIABLES: [(&str, Input); 17] = [
    ("ENVOY_PORT", Input::EnvoyPort),
    ("INBOUND_CAPTURE_PORT", Input::InboundCapturePort),
    ("INBOUND_TUNNEL_PORT", Input::InboundTunnelPort),
    ("PROXY_UID", Input::ProxyUid),
    ("PROXY_GID", Input::ProxyGid),
    ("ISTIO_INBOUND_INTERCEPTION_MODE", Input::InterceptionMode),
    ("ISTIO_INBOUND_PORTS", Input::InboundPorts),
    ("ISTIO_LOCAL_EXCLUDE_PORTS", Input::LocalExcludePorts),
    ("ISTIO_SERVICE_CIDR", Input::ServiceCidr),
    ("ISTIO_SERVICE_EXCLUDE_CIDR", Input::ServiceExcludeCidr),
    ("ISTIO_OUTBOUND_PORTS", Input::OutboundPorts),
    ("ISTIO_LOCAL_OUTBOUND_PORTS_EXCLUDE", Input::OutboundPortsExclude),
    ("ISTIO_EXCLUDE_INTERFACES", Input::ExcludeInterfaces),
    ("KUBE_VIRT_INTERFACES", Input::VirtualInterfaces),
    ("REDIRECT_DNS", Input::DnsCapture),
    ("CAPTURE_ALL_DNS", Input::CaptureAllDns),
    ("DUAL_STACK", Input::DualStack),
];

/// Every environment variable of istio-init with the input that it sets. A weaker one comes later.
pub(crate) fn init_variables() -> impl Iterator<Item = &'static (&'static str, Input)> {
    VARIABLES.iter().chain(&FLAG_VARIABLES)
}

/// Whether the record of a container that the webhook removes has a variable: the agent reads it, now or in a later version.
pub(crate) fn is_recorded(variable: &str) -> bool {
    variable.starts_with("ISTIO_") || is_init_variable(variable)
}

/// Whether a variable of istio-init sets an input.
pub(crate) fn is_init_variable(variable: &str) -> bool {
    init_variables().any(|(name, _)| *name == variable)
}

/// Prefixes of annotations of which every name is known here. Istio has further annotations with
/// `sidecar.istio.io/`, which are not about interception.
const PREFIXES: [&str; 2] = ["traffic.sidecar.istio.io/", "sidetrack.dev/"];
/// Annotations that set no input.
const OTHERS: [&str; 3] = [REMOVED_ISTIO_INIT, NETNS, INJECT];

/// Annotations of other meshes.
const OF_OTHER_MESHES: [&str; 29] = [
    ambient::SIDECAR,
    ambient::REDIRECTION,
    ambient::DNS,
    ambient::BYPASS_INBOUND,
    linkerd::SKIP_INBOUND_PORTS,
    linkerd::SKIP_OUTBOUND_PORTS,
    linkerd::SKIP_SUBNETS,
    linkerd::PROXY_UID,
    linkerd::PROXY_GID,
    kuma::CONFIG,
    kuma::INJECTED,
    kuma::UID,
    kuma::GATEWAY,
    kuma::PROBE_PORT,
    kuma::INBOUND_PORT,
    kuma::OUTBOUND_PORT,
    kuma::FAMILIES,
    kuma::DNS,
    kuma::DNS_PORT,
    kuma::EXCLUDE_INBOUND_PORTS,
    kuma::EXCLUDE_OUTBOUND_PORTS,
    kuma::EXCLUDE_FOR_UIDS,
    kuma::EXCLUDE_INBOUND_IPS,
    kuma::EXCLUDE_OUTBOUND_IPS,
    consul::CONFIG,
    consul::STATUS[0],
    consul::STATUS[1],
    consul::TRANSPARENT,
    consul::DUAL_STACK,
];

/// Variable of istio-proxy that turns Envoy off: the application is a gRPC client of the control plane then.
pub(crate) const DISABLE_ENVOY: &str = "DISABLE_ENVOY";

/// Variables that set no input of Istio's.
const OTHER_VARIABLES: [&str; 8] = [
    consul::DUAL_STACK_VARIABLE,
    DISABLE_ENVOY,
    linkerd::INBOUND,
    linkerd::OUTBOUND[0],
    linkerd::OUTBOUND[1],
    linkerd::ADMIN,
    linkerd::CONTROL,
    consul::VARIABLE,
];

/// Every annotation that means something.
pub(crate) fn known_annotations() -> impl Iterator<Item = &'static str> {
    ANNOTATIONS.iter().map(|(name, _)| *name).chain(OTHERS)
}

/// The same name as a constant, if it is one of an annotation that means something.
pub(crate) fn known_annotation(name: &str) -> Option<&'static str> {
    let mut known = known_annotations().chain(OF_OTHER_MESHES);
    known.find(|known| *known == name)
}

/// Whether every annotation that begins like this is known.
pub(crate) fn is_of_known_prefix(name: &str) -> bool {
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// The same name as a constant, if it is one of a variable that means something.
pub(crate) fn known_variable(name: &str) -> Option<&'static str> {
    let mut names = init_variables()
        .map(|(name, _)| *name)
        .chain(OTHER_VARIABLES);
    names.find(|known| *known == name)
}
