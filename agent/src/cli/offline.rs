//! A pod or workload from a file instead of the agent.

use std::{
    fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde::Serialize;
use sidetrack_policy::{
    Policy,
    manifest::{self, Contents, Document},
    mesh::Mesh,
    select::{Enroll, LABEL, Prospect, Skipped, Wanted, prospect, wanted},
};

use super::{
    pod_name::{PodName, listed},
    usage,
};
use sidetrack_base::mesh_flags::MeshFlags;

/// Where the pod is described, and what its manifest does not say.
#[derive(Debug, Args)]
pub(super) struct OfflineFlags {
    /// Read the pod, or a workload's pod template, from a file (YAML or JSON) instead of asking the agent.
    /// - reads standard input
    #[arg(long, value_name = "FILE", global = true)]
    manifest: Option<PathBuf>,
    /// With --manifest: an address of the pod, for one that does not run yet. May be repeated. In Istio
    /// without dual stack the first one decides whether IPv6 is intercepted
    #[arg(long = "pod-ip", value_name = "IP", global = true, value_parser = pod_ip)]
    pod_ips: Vec<IpAddr>,
    /// With --manifest: a server in the pod's resolv.conf, for one with DNS capture. May be repeated
    #[arg(long = "dns-server", value_name = "IP", global = true, value_parser = ip)]
    dns_servers: Vec<IpAddr>,
    /// With --manifest: which sidecar pods the agents enroll [default: labeled]
    #[arg(long, value_name = "MODE", value_enum, global = true)]
    enroll: Option<Enroll>,
    #[command(flatten)]
    mesh: MeshFlags,
}

/// A pod as its manifest describes it.
#[derive(Debug)]
pub(super) struct Described {
    /// `namespace/name`.
    pub(super) name: String,
    /// Its policy.
    pub(super) policy: Policy,
    /// Its addresses, as far as they are known.
    pub(super) own: Vec<IpAddr>,
    /// Whether its IPv6 connections would be intercepted; unknown without addresses.
    pub(super) ipv6: Option<bool>,
    /// Whether agents would enroll it.
    pub(super) enrollment: Enrollment,
}

/// Whether agents would enroll a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Enrollment {
    /// Unknown if that depends on the namespace.
    enrolled: Option<bool>,
    /// On what it depends.
    condition: String,
}

impl std::fmt::Display for Enrollment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let answer = match self.enrolled {
            Some(true) => "yes",
            Some(false) => "no",
            None => "depends",
        };
        write!(f, "{answer}: {}", self.condition)
    }
}

impl OfflineFlags {
    /// The file, if one is given. Ends the process, with the exit code of wrong usage, if flags are given that
    /// only count with one.
    pub(super) fn manifest(&self) -> Option<&Path> {
        if let Some(path) = &self.manifest {
            return Some(path);
        }
        let of_manifests = [
            (!self.pod_ips.is_empty(), "--pod-ip"),
            (!self.dns_servers.is_empty(), "--dns-server"),
            (self.enroll.is_some(), "--enroll"),
        ];
        let given = of_manifests
            .into_iter()
            .find_map(|(given, flag)| given.then_some(flag));
        if let Some(flag) = given.or(self.mesh.given()) {
            usage(&format!(
                "{flag} is of use only with --manifest FILE: for a running pod the addresses and the settings that its agent has count"
            ));
        }
        None
    }

    /// The pod of this name, or the only one.
    pub(super) fn find(&self, path: &Path, pod: Option<&PodName>) -> Result<Described> {
        let settings = self.mesh.clone().settings(Enroll::Injected);
        let mesh = settings.unwrap_or_else(|problem| usage(&problem)).read()?;
        let origin = origin(path);
        let (documents, problems) = read(path).context(origin.clone())?;
        let names: Vec<String> = documents.iter().map(|it| it.name().to_string()).collect();
        if names.is_empty() {
            match problems.first() {
                Some(problem) => bail!("{}: {}", problem.origin, problem.message),
                None => bail!("{origin} has no pod and no workload with a pod template"),
            }
        }
        let found = match pod {
            Some(pod) => pod.find(&names).with_context(|| origin.clone())?,
            None => &names[0],
        };
        let mut all = documents.iter().zip(&names);
        let of_name = |(_, name): &(&Document, &String)| *name == found;
        let count = names.iter().filter(|name| *name == found).count();
        if pod.is_none() && names.len() > count {
            bail!(
                "{origin} has {} pods: {}; name one",
                names.len(),
                listed(&names)
            );
        }
        if count > 1 {
            bail!("{origin} has pod {found} more than once");
        }
        let (document, _) = all.find(of_name).context("the pod that was just found")?;
        self.describe(document, &mesh)
    }

    fn describe(&self, document: &Document, mesh: &Mesh) -> Result<Described> {
        let agents = Mesh {
            enroll: self.enroll.unwrap_or(Enroll::Labeled),
            ..mesh.clone()
        };
        let policy = match wanted(&document.pod, None, mesh) {
            Wanted::Enrolled(policy) => *policy,
            Wanted::Skipped(reason) => bail!("{}", skipped(document, &reason)),
            Wanted::Rejected(reason) => {
                let verdict = match prospect(&document.pod, &agents) {
                    Prospect::IfNamespaceOptsIn(_) => {
                        let condition = enrollment(document, &agents).condition;
                        format!("{condition}, and would reject it then")
                    }
                    Prospect::Selected | Prospect::Skipped(_) => {
                        "an agent would reject it".to_owned()
                    }
                };
                bail!("{}: {verdict}: {reason}", document.origin)
            }
        };
        let policy = match &*self.dns_servers {
            [] => policy,
            servers => policy.with_dns_servers(Some(servers)),
        };
        let own = self.addresses(document);
        let needs_none = policy.ipv4_only || policy.captures_v6(std::iter::empty());
        let is_known = !own.is_empty() || needs_none;
        let ipv6 = is_known.then(|| policy.captures_v6(own.iter().copied()));
        Ok(Described {
            name: document.name().to_string(),
            policy,
            own,
            ipv6,
            enrollment: enrollment(document, &agents),
        })
    }

    /// The addresses from the command line, otherwise those in the pod's status.
    fn addresses(&self, document: &Document) -> Vec<IpAddr> {
        if !self.pod_ips.is_empty() {
            return self.pod_ips.clone();
        }
        document.pod.status.pod_ips.iter().collect()
    }
}

/// An address.
pub(super) fn ip(text: &str) -> Result<IpAddr, String> {
    text.parse()
        .map_err(|_| "write an address such as 10.0.0.7 or fd00::7".to_owned())
}

/// An address that a pod can have.
fn pod_ip(text: &str) -> Result<IpAddr, String> {
    let ip = ip(text)?;
    if ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() {
        return Err("no pod has this address".to_owned());
    }
    Ok(ip)
}

/// How messages name the file.
fn origin(path: &Path) -> String {
    if is_stdin(path) {
        "stdin".to_owned()
    } else {
        path.display().to_string()
    }
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

fn read(path: &Path) -> Result<Contents> {
    if is_stdin(path) {
        return manifest::read_templates_from(io::stdin().lock());
    }
    if fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
        bail!("it is not a regular file; to read a pipe, write --manifest - and pipe into it");
    }
    manifest::read_templates(path)
}

/// Why no agent takes it, with the cure of the most common case: a manifest as written, not as injected.
fn skipped(document: &Document, reason: &Skipped) -> String {
    let cure = if *reason == Skipped::NoSidecar {
        ". The injector adds it when a pod is created: `istioctl kube-inject -f FILE` shows the result, which --manifest - reads from a pipe"
    } else {
        ""
    };
    format!(
        "{}: no agent would take {}, because {reason}{cure}",
        document.origin,
        document.name()
    )
}

/// What agents with these settings would do.
fn enrollment(document: &Document, agents: &Mesh) -> Enrollment {
    let namespace = document.name().namespace;
    let flag = match agents.enroll {
        Enroll::Labeled => "--enroll labeled",
        Enroll::Injected => "--enroll injected",
    };
    let (enrolled, condition) = match prospect(&document.pod, agents) {
        Prospect::Selected => (
            Some(true),
            format!(
                "agents with {flag} take it, unless namespace {namespace} is labeled {LABEL}=disabled"
            ),
        ),
        Prospect::IfNamespaceOptsIn(reason) => (
            None,
            format!(
                "agents with {flag} take it only if namespace {namespace} is labeled {LABEL}=enabled ({reason})"
            ),
        ),
        Prospect::Skipped(reason) => (Some(false), reason.to_string()),
    };
    Enrollment {
        enrolled,
        condition,
    }
}

#[cfg(test)]
mod tests;
