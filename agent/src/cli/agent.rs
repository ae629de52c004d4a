//! `sidetrack agent`: the daemon's arguments.

use std::{
    env,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Result;
use clap::Args;
use sidetrack_policy::{
    PodRef,
    pod_ref::{LONGEST_NAME, is_name},
    reader::Readers,
    select::Enroll,
};

use super::{
    Places,
    install_cni::{CONF_DIR, CniFlags, absolute},
    usage,
};
use crate::{
    cni::{
        credentials::{self, Credentials},
        install::{Installation, Mount, Unmaintained},
        upkeep::Plugin,
    },
    daemon::{self, Config, Pods},
};
use sidetrack_base::{
    log::{self, LogFormat},
    mesh_flags::MeshFlags,
    mesh_settings::MeshSettings,
    runtime::block_on,
    runtime::exit_code,
};
use sidetrack_datapath::kernel::datapath::NODE_NETNS;

/// The variable that the DaemonSet sets.
const NODE_NAME: &str = "NODE_NAME";

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sidetrack agent --node-name worker-1 --metrics-addr '[::]:9446'
  sidetrack agent --pods-dir /etc/sidetrack/pods --default excludeOutboundPorts=3306")]
pub(super) struct Options {
    #[command(flatten)]
    source: SourceFlags,
    /// Which sidecar pods to enroll: those labeled sidetrack.dev/interception=enabled, themselves or by
    /// their namespace, or all but those labeled disabled [default: labeled; injected with --pods-dir]
    #[arg(long, value_name = "MODE", value_enum)]
    enroll: Option<Enroll>,
    #[command(flatten)]
    mesh: MeshFlags,
    /// The cgroup that holds all pods [default: kubelet's, else the root of the cgroup2 mount]
    #[arg(long, value_name = "PATH")]
    cgroup: Option<PathBuf>,
    /// The node's network namespace, whose own connections reach pods in ambient mode
    #[arg(long, value_name = "PATH", default_value = NODE_NETNS, hide = true)]
    node_netns: PathBuf,
    #[command(flatten)]
    places: Places,
    #[command(flatten)]
    plugin: PluginFlags,
    /// Answer /metrics, /healthz and /readyz here, such as 0.0.0.0:9446
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics_addr: Option<SocketAddr>,
    /// Add metrics of single pods, of this many at most: 10 series each. They name pods to everyone who
    /// reaches the port
    #[arg(
        long,
        value_name = "PODS",
        default_value_t = 0,
        requires = "metrics_addr",
        value_parser = clap::value_parser!(u32).range(..=4096)
    )]
    metrics_per_pod: u32,
    /// Whom to answer at --metrics-addr what commands print that change nothing: users with tokens of a service account
    /// sidetrack-reader in the agents' namespace, or also in others, about the pods of theirs
    #[arg(
        long,
        value_name = "WHO",
        value_enum,
        default_value = "none",
        requires = "metrics_addr"
    )]
    readers: Readers,
    /// Answer /healthz and /readyz on this port of the node's 127.0.0.1, for kubelet's probes
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    probe_port: Option<u16>,
    /// With --ambient: where the node's ztunnel asks for pods
    #[arg(
        long,
        value_name = "PATH",
        default_value = "/var/run/ztunnel/ztunnel.sock",
        requires = "ambient"
    )]
    ztunnel_socket: PathBuf,
    /// Form of the log on stderr
    #[arg(long, value_name = "FORMAT", value_enum, default_value = "text")]
    log_format: LogFormat,
}

/// Where pods come from.
#[derive(Debug, Args)]
struct SourceFlags {
    /// Take pods from a directory of Pod manifests (YAML or JSON) instead of the API server. Each names
    /// its network namespace by the annotation sidetrack.dev/netns
    #[arg(long, value_name = "DIR", conflicts_with = "node_name")]
    pods_dir: Option<PathBuf>,
    /// This node's name in Kubernetes [env: NODE_NAME, without --pods-dir]
    #[arg(long, value_name = "NAME", value_parser = node_name)]
    node_name: Option<String>,
    /// The DaemonSet this agent belongs to. If it and the ConfigMap of the same name, or their namespace, have been
    /// deleted, the agent removes everything from the node when it ends
    #[arg(long, value_name = "NAMESPACE/NAME", conflicts_with = "pods_dir")]
    daemonset: Option<PodRef>,
    /// The pod this agent runs in, if it is one of a DaemonSet: instead of --daemonset, where neither
    /// namespace nor name are known beforehand
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = |pod: &str| pod.parse::<PodRef>()?.daemonset(),
          conflicts_with_all = ["pods_dir", "daemonset"])]
    own_pod: Option<PodRef>,
    /// Remove the taint sidetrack.dev/not-ready from the node once the agent is ready
    #[arg(long, conflicts_with = "pods_dir")]
    remove_taint: bool,
}

/// What to do about the CNI plugin.
#[derive(Debug, Args)]
struct PluginFlags {
    /// Keep the CNI plugin in this directory of plugins, such as /opt/cni/bin, so that pods start only
    /// when they are intercepted
    #[arg(long, value_name = "DIR", requires = "cni_conf_dir")]
    cni_bin_dir: Option<PathBuf>,
    /// Keep the plugin's entry in the network configuration in this directory, such as /etc/cni/net.d
    #[arg(long, value_name = "DIR", requires = "cni_bin_dir")]
    cni_conf_dir: Option<PathBuf>,
    /// Remove the plugin's entry instead, and leave the binary
    #[arg(long, requires = "cni_conf_dir")]
    cni_remove: bool,
    /// The control socket's path on the node, for the plugin and for the look for a leftover entry of it [default: that
    /// of --socket]
    #[arg(long, value_name = "PATH", value_parser = absolute)]
    cni_socket: Option<PathBuf>,
    /// A directory with token and ca.crt of a service account that may get the DaemonSet. They let the plugin detect
    /// an uninstall and the annotation sidetrack.dev/open-gate
    #[arg(long, value_name = "DIR", requires = "cni_conf_dir")]
    cni_credentials: Option<PathBuf>,
    /// The path of --cni-conf-dir on the node, for the plugin [default: the same]. Without --cni-conf-dir: where to
    /// look for a leftover plugin entry [default: /etc/cni/net.d]
    #[arg(long, value_name = "PATH")]
    cni_node_conf_dir: Option<PathBuf>,
    /// The directory of --cni-bin-dir as the node sees it, if it is mounted elsewhere for the agent: if the node has
    /// another one there, the agent ends, and the next one has it mounted
    #[arg(
        long,
        value_name = "DIR",
        requires = "cni_bin_dir",
        hide_short_help = true
    )]
    cni_node_bin_dir: Option<PathBuf>,
    #[command(flatten)]
    cni: CniFlags,
}

pub(super) fn run(options: Options) -> Result<ExitCode> {
    let log = log::start(options.log_format)?;
    let (config, settings) = options.config();
    let ended = block_on(daemon::run(config, settings))?;
    // Not by stderr itself, which may never return.
    if let Err(error) = &ended {
        log.line(&format!("sidetrack: {error:#}"));
    }
    Ok(exit_code(ended.is_ok()))
}

impl Options {
    fn config(self) -> (Config, MeshSettings) {
        let socket = self.places.socket;
        let plugin = self.plugin.plugin(&socket, &self.source);
        let pods = self.source.pods();
        let enroll = self.enroll.unwrap_or(match pods {
            Pods::Directory(_) => Enroll::Injected,
            Pods::Node { .. } => Enroll::Labeled,
        });
        let ztunnel = self.mesh.is_ambient().then_some(self.ztunnel_socket);
        let settings = self.mesh.settings(enroll);
        let settings = settings.unwrap_or_else(|problem| usage(&problem));
        let config = Config {
            pods,
            cgroup: self.cgroup,
            node_netns: self.node_netns,
            bpffs: self.places.bpffs,
            socket,
            plugin,
            metrics_addr: self.metrics_addr,
            metrics_per_pod: self.metrics_per_pod as usize,
            readers: self.readers,
            probe_port: self.probe_port,
            ztunnel,
        };
        (config, settings)
    }
}

impl SourceFlags {
    /// The DaemonSet of this agent.
    fn daemonset(&self) -> Option<&PodRef> {
        self.daemonset.as_ref().or(self.own_pod.as_ref())
    }

    /// The node's name. Ends the process if there is none.
    fn node_name(&self) -> String {
        // The variable may be there for other reasons: it contradicts no flag.
        let variable = || match env::var(NODE_NAME) {
            Ok(name) => {
                node_name(&name).map_err(|problem| format!("{NODE_NAME} is {name:?}: {problem}"))
            }
            Err(_) => Err("pass --node-name NAME or --pods-dir DIR".to_owned()),
        };
        let name = self.node_name.clone().map_or_else(variable, Ok);
        name.unwrap_or_else(|problem| usage(&problem))
    }

    fn pods(self) -> Pods {
        if let Some(directory) = self.pods_dir {
            return Pods::Directory(directory);
        }
        Pods::Node {
            name: self.node_name(),
            daemonset: self.daemonset.or(self.own_pod),
            remove_taint: self.remove_taint,
        }
    }
}

impl PluginFlags {
    fn plugin(&self, agent_socket: &Path, source: &SourceFlags) -> Plugin {
        let daemonset = source.daemonset();
        let socket = self.cni_socket.as_deref().unwrap_or(agent_socket);
        let (Some(bin_dir), Some(conf_dir)) = (&self.cni_bin_dir, &self.cni_conf_dir) else {
            if self.cni.any() {
                usage(
                    "--cni-timeout and --cni-exclude-namespaces are about the CNI plugin; pass --cni-bin-dir and --cni-conf-dir as well",
                );
            }
            let of_node = [
                ("--cni-node-conf-dir", &self.cni_node_conf_dir),
                ("--cni-socket", &self.cni_socket),
            ];
            for (flag, path) in of_node {
                if path.is_some() && daemonset.is_none() {
                    usage(&format!(
                        "{flag} is of use only with --own-pod, --daemonset or --cni-conf-dir"
                    ));
                }
            }
            let on_node = self.cni_node_conf_dir.as_deref();
            let on_node = on_node.unwrap_or_else(|| Path::new(CONF_DIR));
            // Without a DaemonSet the plugin may have been installed by hand.
            let found = daemonset.map(|_| Unmaintained::new(on_node, socket));
            return Plugin::Ignore(found);
        };
        if !socket.is_absolute() {
            usage(
                "pass an absolute path to --socket or --cni-socket: the plugin runs in another directory",
            );
        }
        if self.cni_credentials.is_some() && daemonset.is_none() {
            usage("--cni-credentials is of use only with --own-pod or --daemonset");
        }
        let own_namespace = daemonset.map(|daemonset| daemonset.namespace.as_str());
        let mut installation: Installation =
            self.cni
                .installation(bin_dir, conf_dir, socket, own_namespace);
        if let (Some(secret), Some(daemonset)) = (&self.cni_credentials, daemonset) {
            let on_node = self.cni_node_conf_dir.as_deref().unwrap_or(conf_dir);
            let kubeconfig = on_node.join(credentials::FILE);
            let node = source.node_name();
            installation.entry = installation
                .entry
                .of_daemonset(daemonset, kubeconfig, &node);
            installation.credentials = Some(Credentials {
                secret: secret.clone(),
            });
        }
        let mounts = [
            (bin_dir, &self.cni_node_bin_dir),
            (conf_dir, &self.cni_node_conf_dir),
        ];
        installation.mounts = mounts
            .into_iter()
            .filter_map(|(seen, on_node)| {
                Some(Mount {
                    seen: seen.clone(),
                    on_node: on_node.clone()?,
                    root: "/proc/1/root".into(),
                })
            })
            .collect();
        if self.cni_remove {
            Plugin::Remove(installation)
        } else {
            Plugin::Keep(installation)
        }
    }
}

/// A name that a node of the API server can have.
fn node_name(text: &str) -> Result<String, String> {
    if is_name(text, LONGEST_NAME) {
        Ok(text.to_owned())
    } else {
        Err("write the node's name as `kubectl get nodes` shows it".to_owned())
    }
}
