//! What both pods are put under: a pod's manifest, and the rule text that is the oracle.

use std::{
    collections::BTreeMap,
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use ipnet::IpNet;
use lab::product::{
    ContainerFacts, InboundPorts, Inputs, Mode, NETNS_ANNOTATION, OutboundRanges, PodFacts, Policy,
    dialect, manifest,
};
use lab::protocol::{Identity, PROXY};
use serde_json::{Value, json};
use sidetrack_policy::mesh::MeshName;

use crate::policies::{BuiltIn, OfMesh, words};

/// How much of the long lists of a given pod is tried.
const MAX_PORTS: usize = 24;
const MAX_ADDRESSES: usize = 16;

/// Where the oracle's rules come from.
pub enum Rules {
    /// `sidetrack rules` prints them.
    Ours,
    /// Files for iptables-restore and, perhaps, ip6tables-restore.
    Files(PathBuf, Option<PathBuf>),
}

/// A manifest and its rules.
pub struct Target {
    /// For messages.
    pub name: String,
    /// The manifest, without a network namespace.
    pod: Value,
    /// What it comes to.
    pub policy: Policy,
    /// The oracle's.
    pub rules: Rules,
    /// What is in the pods' resolv.conf, if queries are compared.
    pub servers: Option<Vec<IpAddr>>,
    /// Whether the pods forward packets.
    pub forwards: bool,
}

impl Target {
    /// One of the policies every run compares.
    pub fn built_in(policy: &BuiltIn, dialect: &str) -> Result<Self> {
        let variables: Vec<_> = [("ISTIO_DUAL_STACK", "true")]
            .iter()
            .chain(policy.variables)
            .map(|(name, value)| serde_json::json!({"name": name, "value": value}))
            .collect();
        let arguments = [vec!["istio-iptables"], words(policy.arguments)].concat();
        let pod = serde_json::json!({
            "metadata": {"annotations": {dialect::ANNOTATION: dialect}},
            "spec": {
                "containers": [{"name": "app"}, {"name": "istio-proxy"}],
                "initContainers": [{
                    "name": "istio-init",
                    "args": arguments,
                    "env": variables,
                }],
            },
        });
        let target = Self::new(policy.name.to_owned(), pod, Rules::Ours)?;
        Self {
            forwards: policy.forwards,
            ..target
        }
        .with_servers(policy.servers)
    }

    /// One of another mesh, as its injector leaves it.
    pub fn of_mesh(policy: &OfMesh) -> Result<Self> {
        let mut text = policy.settings.to_owned();
        if policy.mesh == MeshName::Kuma && !text.contains("kumaDPUser") {
            // The process that answers queries here: the rules recognize its answers by the user.
            text.push_str("\nkumaDPUser: '1337'");
        }
        let mut annotations: BTreeMap<&str, &str> = policy.annotations.iter().copied().collect();
        let sidecar = |name: &str| json!({"name": name, "restartPolicy": "Always"});
        let (init, containers) = match policy.mesh {
            MeshName::Ambient => (json!([]), json!([{"name": "app"}])),
            MeshName::Istio => bail!("{}: written as the others of Istio are", policy.name),
            MeshName::Linkerd => {
                let init = json!({"name": "linkerd-init", "args": words(policy.settings)});
                (
                    json!([init, sidecar("linkerd-proxy")]),
                    json!([{"name": "app"}]),
                )
            }
            MeshName::Kuma => {
                annotations.insert("kuma.io/sidecar-injected", "true");
                annotations.insert("traffic.kuma.io/transparent-proxy-config", &text);
                (json!([sidecar("kuma-sidecar")]), json!([{"name": "app"}]))
            }
            MeshName::Consul => {
                annotations.insert("consul.hashicorp.com/connect-inject-status", "injected");
                annotations.insert("consul.hashicorp.com/transparent-proxy-status", "enabled");
                let variable = json!({"name": "CONSUL_REDIRECT_TRAFFIC_CONFIG", "value": text});
                let init = json!({"name": "consul-connect-inject-init", "env": [variable]});
                let containers = json!([{"name": "app"}, {"name": "consul-dataplane"}]);
                (json!([init]), containers)
            }
        };
        let labels = match policy.mesh {
            MeshName::Ambient => json!({"istio.io/dataplane-mode": "ambient"}),
            _ => json!({}),
        };
        let pod = json!({
            "metadata": {"annotations": annotations, "labels": labels},
            "spec": {"initContainers": init, "containers": containers},
        });
        let target = Self::new(policy.name.to_owned(), pod, Rules::Ours)?;
        target.with_servers(policy.servers)
    }

    fn with_servers(self, servers: Option<&[&str]>) -> Result<Self> {
        let servers = servers.map(|servers| servers.iter().map(|it| it.parse()));
        let servers: Option<Vec<IpAddr>> = servers.map(Iterator::collect).transpose()?;
        Ok(Self {
            policy: self.policy.with_dns_servers(servers.as_deref()),
            servers,
            ..self
        })
    }

    /// A given pod, and the rules given for it.
    pub fn foreign(manifest: &Path, rules: &Path, rules6: Option<&Path>) -> Result<Self> {
        let (mut documents, problems) = manifest::read_templates(manifest)
            .with_context(|| format!("{}", manifest.display()))?;
        if let Some(problem) = problems.first() {
            bail!("{}: {}", problem.origin, problem.message);
        }
        let (Some(document), true) = (documents.pop(), documents.is_empty()) else {
            bail!("{}: write the manifest of one pod", manifest.display());
        };
        for file in [Some(rules), rules6].into_iter().flatten() {
            fs::metadata(file).with_context(|| format!("{}", file.display()))?;
        }
        let rules = Rules::Files(rules.to_owned(), rules6.map(Path::to_owned));
        Self::new(
            document.name().to_string(),
            manifest_of(&document.pod),
            rules,
        )
    }

    fn new(name: String, pod: Value, rules: Rules) -> Result<Self> {
        let facts: PodFacts = serde_json::from_value(pod.clone())?;
        let policy = match facts.sidecar() {
            Some(_) => Policy::of_pod(&facts, &Inputs::default()),
            None => Policy::of_ambient_pod(&facts),
        };
        let policy = policy.map_err(|errors| {
            let all: Vec<String> = errors.iter().map(ToString::to_string).collect();
            anyhow::anyhow!("{name}: {}", all.join("; "))
        })?;
        Ok(Self {
            name,
            pod,
            policy,
            rules,
            servers: None,
            forwards: true,
        })
    }

    /// The manifest for the directory of the agent, as pod `test/app` in a network namespace.
    pub fn manifest(&self, netns: &str) -> String {
        in_netns(self.pod.clone(), netns)
    }

    /// The manifest that the oracle's rules are printed of: istio-iptables without a server captures no query.
    pub fn manifest_of_rules(&self, netns: &str) -> String {
        let mut pod = self.pod.clone();
        let has_no_server = self.servers.as_ref().is_some_and(Vec::is_empty);
        if has_no_server
            && self.policy.follows_resolv_conf()
            && let Some(words) = pod["spec"]["initContainers"][0]["args"].as_array_mut()
        {
            words.retain(|word| word != "--redirect-dns");
        }
        in_netns(pod, netns)
    }

    /// Whether no agent enrolls such a pod: mode TPROXY in dialects that had other rules for it.
    pub fn is_rejected(&self) -> bool {
        let old = ["1.1", "1.5"].contains(&self.policy.dialect.to_string().as_str());
        self.policy.mode == Mode::Tproxy && old
    }

    /// Whether there is an oracle for IPv6.
    pub fn has_v6(&self) -> bool {
        !matches!(self.rules, Rules::Files(_, None))
    }

    /// The proxy.
    pub fn proxy(&self) -> Identity {
        match (
            self.policy.proxy_uids.as_slice(),
            self.policy.proxy_gids.as_slice(),
        ) {
            ([uid, ..], [gid, ..]) if *uid != PROXY.uid => Identity::with_gid(*uid, *gid),
            ([uid, ..], []) => Identity::of(*uid),
            _ => PROXY,
        }
    }

    /// Whether the sidecar listens for outbound connections on loopback alone.
    pub fn listens_on_loopback(&self) -> bool {
        let mesh = self.policy.dialect.mesh();
        [MeshName::Linkerd, MeshName::Consul].contains(&mesh)
    }

    /// Ports the policy names.
    pub fn ports(&self) -> Vec<u16> {
        let policy = &self.policy;
        let inbound = match &policy.inbound {
            InboundPorts::None => &[][..],
            InboundPorts::AllExcept(ports) | InboundPorts::Only(ports) => ports,
        };
        let own = [
            policy.outbound_port,
            policy.inbound_port,
            policy.tunnel_port,
        ];
        let listed = [
            inbound,
            &policy.included_outbound_ports,
            &policy.excluded_outbound_ports,
        ];
        let listed = listed
            .into_iter()
            .flat_map(|ports| ports.iter().take(MAX_PORTS))
            .flat_map(|span| [span.first as u16, span.last as u16]);
        own.into_iter().chain(listed).chain(self.ends()).collect()
    }

    /// Ports at the ends of the ranges that the policy names.
    fn ends(&self) -> impl Iterator<Item = u16> {
        let exclusions = &self.policy.exclusions;
        let spans = exclusions.inbound_ports.iter();
        let spans = spans.chain(&exclusions.outbound_ports).take(MAX_PORTS);
        spans.flat_map(|span| [span.first as u16, span.last as u16])
    }

    /// An address in each of the ranges the policy names.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let included = match &self.policy.outbound {
            OutboundRanges::All => &[][..],
            OutboundRanges::Only(ranges) => ranges,
        };
        [
            included,
            &self.policy.excluded_ranges,
            &self.policy.exclusions.destinations,
        ]
        .into_iter()
        .flat_map(|ranges| ranges.iter().take(MAX_ADDRESSES))
        .map(inside)
        .chain(self.servers.iter().flatten().copied())
        .collect()
    }
}

fn in_netns(mut pod: Value, netns: &str) -> String {
    pod["kind"] = "Pod".into();
    let metadata = &mut pod["metadata"];
    metadata["name"] = "app".into();
    metadata["namespace"] = "test".into();
    metadata["annotations"][NETNS_ANNOTATION] = netns.into();
    pod.to_string()
}

/// What sidetrack reads of a pod, as a manifest again.
fn manifest_of(pod: &PodFacts) -> Value {
    let container = |it: &ContainerFacts| {
        let env = it.env.iter();
        let env = env.map(|(name, value)| json!({"name": name, "value": value}));
        json!({
            "name": it.name, "image": it.image, "args": it.words, "env": env.collect::<Value>(),
        })
    };
    json!({
        "metadata": {"annotations": pod.meta.annotations.iter().collect::<BTreeMap<_, _>>()},
        "spec": {
            "containers": pod.sidecar().map(container).into_iter().collect::<Value>(),
            "initContainers": pod.istio_init().map(container).into_iter().collect::<Value>(),
        },
    })
}

/// An address a host may have: not the first of a network.
fn inside(range: &IpNet) -> IpAddr {
    match range.trunc() {
        IpNet::V4(net) if net.prefix_len() < 31 => IpAddr::V4((net.network().to_bits() + 1).into()),
        IpNet::V6(net) if net.prefix_len() < 127 => {
            IpAddr::V6((net.network().to_bits() + 1).into())
        }
        net => net.addr(),
    }
}
