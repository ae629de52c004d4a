//! The pod that `rules` and `explain` describe: enrolled on this node, or read from a manifest.

use std::{net::IpAddr, sync::Arc};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use sidetrack_common::{
    addr::{Addr, Family},
    conn::ListenerKey,
    pod::{Route, RouteKind},
    route_rules::RoutedSocket,
};

use super::{
    Places,
    offline::{Described, Enrollment, OfflineFlags},
    output,
    pod_name::{NamespaceFlag, PodName},
    pods, usage,
};
use crate::observe::{last_policies, map_routes::MapRoutes};
use crate::{
    api::{PodState, PodStatus},
    client::Client,
};
use sidetrack_datapath::kernel::{maps::Maps, pins::Pins};
use sidetrack_policy::{
    Policy,
    rules::{KnownRoutes, Routes},
};

/// How the pod is named on the command line.
#[derive(Debug, Args)]
pub(super) struct Which {
    /// The pod. Its namespace may be omitted if only one pod has the name, and the pod for a manifest with
    /// only one
    #[arg(value_name = "NAMESPACE/POD")]
    pod: Option<PodName>,
    #[command(flatten)]
    namespace: NamespaceFlag,
    #[command(flatten)]
    offline: OfflineFlags,
    #[command(flatten)]
    places: Places,
}

/// The pod.
#[derive(Debug)]
pub(super) struct Target {
    /// `namespace/name`.
    pub(super) name: String,
    /// Its policy.
    pub(super) policy: Policy,
    /// Whether its IPv6 connections are intercepted; unknown for a manifest without addresses.
    pub(super) ipv6: Option<bool>,
    /// Whether its outbound connections go direct, because its sidecar has never listened.
    pub(super) before_sidecar: bool,
    /// Its rows in the kernel's maps, if it is enrolled here.
    pub(super) live: Option<Live>,
    /// Whether agents would enroll it, if it is from a manifest.
    pub(super) enrollment: Option<Enrollment>,
    /// What to know of the policy: where it is from if not from the agent, or that a newer one was rejected.
    pub(super) remark: Option<String>,
    own: Vec<IpAddr>,
}

/// An enrolled pod.
#[derive(Debug)]
pub(super) struct Live {
    /// Its namespace's cookie.
    pub(super) netns: u64,
    /// The kernel's maps.
    pub(super) maps: Maps,
}

impl Target {
    /// Finds the pod.
    pub(super) async fn find(which: &Which) -> Result<Self> {
        let pod = which.pod.as_ref();
        if pod.is_none() && which.namespace.is_given() {
            usage("-n is of use only with the name of a pod");
        }
        let pod = pod.map(|pod| which.namespace.complete(pod));
        match which.offline.manifest() {
            Some(path) => Ok(which.offline.find(path, pod.as_ref())?.into()),
            None => match pod {
                Some(pod) => {
                    let target = Self::of_agent(&which.places, &pod).await?;
                    target.remark.iter().for_each(output::remark);
                    Ok(target)
                }
                None => usage("name a pod as NAMESPACE/POD, or a file with --manifest FILE"),
            },
        }
    }

    /// Of an enrolled pod, by the agent or without one.
    pub(super) async fn of_agent(places: &Places, pod: &PodName) -> Result<Self> {
        let pods = match pods::answered(places).await {
            Ok(pods) => pods,
            Err(no_answer) => {
                return Self::of_kernel(places, pod, "no agent answers").with_context(|| {
                    format!("{no_answer:#}; with --manifest FILE no agent is needed; the pinned maps cannot be read")
                });
            }
        };
        let name = pods::named(pods, pod)?.full_name();
        // The list has no long policies.
        let client = Client::new(&places.socket);
        let found: PodStatus = client.get(&format!("/v1/pods/{name}")).await?;
        let remark = found.outdated();
        let (Some(netns), Some(policy)) = (found.netns, found.policy) else {
            if found.state == PodState::Outdated {
                // The rows are an earlier agent's.
                let pod = name.parse().map_err(anyhow::Error::msg)?;
                return Self::of_kernel(places, &pod, &remark.unwrap_or_default());
            }
            bail!(
                "pod {name} is not enrolled: {}",
                found.reason.unwrap_or_default()
            );
        };
        Ok(Self {
            name,
            policy: Arc::unwrap_or_clone(policy),
            ipv6: Some(found.ipv6),
            before_sidecar: found.before_sidecar,
            live: Some(Live {
                netns: netns.cookie,
                maps: Maps::open(&Pins::new(&places.bpffs)?)?,
            }),
            enrollment: None,
            remark,
            own: Vec::new(),
        })
    }

    /// Without the agent, for a reason: the policy that is in force, by the number in the kernel's maps.
    fn of_kernel(places: &Places, pod: &PodName, why: &str) -> Result<Self> {
        let maps = Maps::open(&Pins::new(&places.bpffs)?)?;
        let name = pods::named(pods::pinned(places)?, pod)?.full_name();
        let pod = name.parse().map_err(anyhow::Error::msg)?;
        let last = last_policies::read(&last_policies::file(&places.socket), &pod, &maps)?;
        let remark = format!(
            "{why}; this is policy {}, which the kernel's maps have for the pod",
            last.policy_id
        );
        Ok(Self {
            name,
            policy: Arc::unwrap_or_clone(last.policy),
            ipv6: Some(last.ipv6),
            before_sidecar: maps
                .before_sidecar
                .get(&last.cookie)
                .context("read BEFORE_SIDECAR")?
                .is_some(),
            live: Some(Live {
                netns: last.cookie,
                maps,
            }),
            enrollment: None,
            remark: Some(remark),
            own: Vec::new(),
        })
    }
}

impl Target {
    /// Whether an address is the pod's own; `None` if that is not known, or if it has to do with those of others, which
    /// it forwards packets for.
    pub(super) fn has_address(&self, ip: IpAddr) -> Option<bool> {
        let is_known = match &self.live {
            // Routes are copied as far as connections are captured.
            Some(_) => ip.is_ipv4() || self.ipv6 == Some(true),
            None => !self.own.is_empty(),
        };
        let is_host = self.policy.virtual_interfaces.is_empty();
        let own = SocketRoutes {
            target: self,
            socket: RoutedSocket::PLAIN,
        };
        (is_known && is_host).then(|| own.route(ip.into()).kind == RouteKind::Local as u32)
    }
}

impl Live {
    /// Whether the sidecar listens on a capture port for connections of a family; `None` if that is not known.
    ///
    /// # Errors
    /// If a map cannot be read.
    pub(super) fn listens(&self, port: u16, family: Family) -> Result<Option<bool>> {
        let listeners = self.maps.listeners.keys().context("read LISTENERS")?;
        let is_served =
            |key: &ListenerKey| key.netns == self.netns && key.port == port && key.serves(family);
        if listeners.iter().any(is_served) {
            return Ok(Some(true));
        }
        let on_loopback = self.maps.sidecar_bits.get(&self.netns);
        Ok(match on_loopback.context("read SIDECAR_BY_POD")? {
            // It may have gone since.
            Some(_) => None,
            None => Some(false),
        })
    }
}

impl From<Described> for Target {
    fn from(described: Described) -> Self {
        Self {
            name: described.name,
            policy: described.policy,
            ipv6: described.ipv6,
            before_sidecar: false,
            live: None,
            enrollment: Some(described.enrollment),
            remark: None,
            own: described.own,
        }
    }
}

/// The routes of a pod as one of its sockets sees them.
pub(super) struct SocketRoutes<'a> {
    pub(super) target: &'a Target,
    pub(super) socket: RoutedSocket,
}

impl Routes for SocketRoutes<'_> {
    /// The kernel's copy for an enrolled pod, otherwise what the manifest shows.
    fn route(&self, addr: Addr) -> Route {
        match &self.target.live {
            Some(live) => MapRoutes {
                netns: live.netns,
                socket: self.socket,
                maps: &live.maps,
            }
            .route(addr),
            None => KnownRoutes {
                own: self.target.own.clone(),
            }
            .route(addr),
        }
    }
}
