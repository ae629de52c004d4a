//! The pod that `rules` and `explain` describe: enrolled on this node, or read from a manifest.

use std::{net::IpAddr, path::PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use sidetrack_common::{addr::Addr, pod::Route};

use super::{Places, mesh::MeshFlags};
use crate::{
    api::PodStatus,
    client::Client,
    kernel::{maps::Maps, pins::Pins},
    last_policies,
    map_routes::MapRoutes,
};
use sidetrack_policy::{
    PodRef, Policy,
    manifest::{self, Document},
    mesh::Mesh,
    rules::{KnownRoutes, Routes},
    select::{Enroll, Wanted, wanted},
};

/// How the pod is named on the command line.
#[derive(Debug, Args)]
pub struct Which {
    /// The pod. It may be omitted for a manifest with only one pod
    #[arg(value_name = "NAMESPACE/POD")]
    pod: Option<PodRef>,
    /// Read the pod (or a workload's pod template) from a file instead of asking the agent
    #[arg(long, value_name = "FILE", global = true)]
    manifest: Option<PathBuf>,
    #[command(flatten)]
    mesh: MeshFlags,
    #[command(flatten)]
    places: Places,
}

/// The pod.
#[derive(Debug)]
pub struct Target {
    /// `namespace/name`.
    pub name: String,
    /// Its policy.
    pub policy: Policy,
    /// Whether its IPv6 connections are intercepted.
    pub ipv6: bool,
    /// Whether its outbound connections go direct, because its sidecar has never listened.
    pub before_sidecar: bool,
    /// Its rows in the kernel's maps, if it is enrolled here.
    pub live: Option<Live>,
    own: Vec<IpAddr>,
}

/// An enrolled pod.
#[derive(Debug)]
pub struct Live {
    /// Its namespace's cookie.
    pub netns: u64,
    /// The kernel's maps.
    pub maps: Maps,
}

impl Target {
    /// Finds the pod.
    pub async fn find(which: &Which) -> Result<Self> {
        match &which.manifest {
            Some(path) => {
                let mesh = which.mesh.clone().settings(Enroll::Injected).read()?;
                let (documents, problems) =
                    manifest::read_templates(path).with_context(|| path.display().to_string())?;
                let named = |document: &&Document| {
                    which.pod.as_ref().is_none_or(|pod| document.name() == *pod)
                };
                let found: Vec<_> = documents.iter().filter(named).collect();
                match found.as_slice() {
                    [document] => Self::of_manifest(document, &mesh),
                    [] => match problems.first() {
                        Some(problem) => bail!("{}: {}", problem.origin, problem.message),
                        None => bail!("{} has no such pod", path.display()),
                    },
                    _ => match &which.pod {
                        Some(pod) => bail!("{} has pod {pod} more than once", path.display()),
                        None => bail!("{} has several pods; name one", path.display()),
                    },
                }
            }
            None => Self::of_agent(which).await,
        }
    }

    fn of_manifest(document: &Document, mesh: &Mesh) -> Result<Self> {
        let policy = match wanted(&document.pod, None, mesh) {
            Wanted::Enrolled(policy) => *policy,
            Wanted::NotTaken(reason) => bail!("{}: not intercepted: {reason}", document.origin),
            Wanted::Rejected(reason) => bail!("{}: {reason}", document.origin),
        };
        let status = document.pod.status.as_ref();
        let own: Vec<IpAddr> = status
            .and_then(|status| status.pod_ips.as_ref())
            .into_iter()
            .flatten()
            .filter_map(|ip| ip.ip.parse().ok())
            .collect();
        let ipv6 = policy.dual_stack || own.first().is_some_and(IpAddr::is_ipv6);
        Ok(Self {
            name: document.name().to_string(),
            policy,
            ipv6,
            before_sidecar: false,
            live: None,
            own,
        })
    }

    async fn of_agent(which: &Which) -> Result<Self> {
        let Some(pod) = &which.pod else {
            let missing = "name a pod as NAMESPACE/POD, or a file with --manifest FILE\n";
            let kind = clap::error::ErrorKind::MissingRequiredArgument;
            clap::Error::raw(kind, missing).exit();
        };
        let answer: Result<Vec<PodStatus>> =
            Client::new(&which.places.socket).get("/v1/pods").await;
        let pods = match answer {
            Ok(pods) => pods,
            Err(no_answer) => {
                return Self::of_kernel(which, pod).with_context(|| {
                    format!("{no_answer:#}; with --manifest FILE this works without one")
                });
            }
        };
        let found = pods
            .into_iter()
            .find(|known| known.full_name() == pod.to_string())
            .with_context(|| format!("the agent does not know pod {pod}"))?;
        let (Some(netns), Some(policy)) = (found.netns, found.policy) else {
            bail!(
                "pod {pod} is not enrolled: {}",
                found.reason.unwrap_or_default()
            );
        };
        Ok(Self {
            name: pod.to_string(),
            policy: serde_json::from_value(policy).context("read the pod's policy")?,
            ipv6: found.ipv6,
            before_sidecar: found.before_sidecar,
            live: Some(Live {
                netns: netns.cookie,
                maps: Maps::open(&Pins::new(&which.places.bpffs)?)?,
            }),
            own: Vec::new(),
        })
    }
}

impl Live {
    /// Whether the sidecar listens on a capture port; `None` if that is not known.
    ///
    /// # Errors
    /// If a map cannot be read.
    pub fn listens(&self, port: u16) -> Result<Option<bool>> {
        let listeners = self.maps.listeners.keys().context("read LISTENERS")?;
        if listeners
            .iter()
            .any(|key| key.netns == self.netns && key.port == port)
        {
            return Ok(Some(true));
        }
        let on_loopback = self.maps.loopback_sidecar.get(&self.netns);
        Ok(match on_loopback.context("read LOOPBACK_SIDECAR")? {
            // It may have gone since.
            Some(_) => None,
            None => Some(false),
        })
    }
}

impl Target {
    /// Without an agent: the policy that is in force, by the number in the kernel's maps.
    fn of_kernel(which: &Which, pod: &PodRef) -> Result<Self> {
        let maps = Maps::open(&Pins::new(&which.places.bpffs)?)?;
        let last = last_policies::read(&last_policies::file(&which.places.socket), pod, &maps)?;
        eprintln!(
            "sidetrack: no agent answers; this is policy {}, which the kernel's maps have for the pod",
            last.policy_id
        );
        Ok(Self {
            name: pod.to_string(),
            policy: serde_json::from_value(last.policy).context("read the pod's policy")?,
            ipv6: last.ipv6,
            before_sidecar: maps
                .before_sidecar
                .get(&last.cookie)
                .context("read BEFORE_SIDECAR")?
                .is_some(),
            live: Some(Live {
                netns: last.cookie,
                maps,
            }),
            own: Vec::new(),
        })
    }
}

impl Routes for &Target {
    /// The kernel's copy for an enrolled pod, otherwise what the manifest shows.
    fn route(&self, addr: Addr) -> Route {
        match &self.live {
            Some(live) => MapRoutes {
                netns: live.netns,
                maps: &live.maps,
            }
            .route(addr),
            None => KnownRoutes {
                own: self.own.clone(),
            }
            .route(addr),
        }
    }
}
