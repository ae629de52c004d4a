//! The pod that a runtime names, and its network namespace.

use std::{
    os::fd::{AsFd as _, AsRawFd as _},
    path::PathBuf,
};

use super::{
    answer::Error,
    request::{Pod, Variables},
};
use sidetrack_datapath::netns::{Netns, NetnsError};
use sidetrack_reconcile::cni::Sandbox;

/// A pod and its network namespace.
pub(super) struct PodNetns {
    pub(super) pod: Pod,
    container: String,
    path: PathBuf,
    /// Kept open during the request: the agent opens it through this process.
    netns: Netns,
}

impl PodNetns {
    /// `None` for containers without a pod, and for pods in the node's own network, which is never intercepted.
    pub(super) fn of(variables: &Variables) -> Result<Option<Self>, Error> {
        let container = variables.container()?.to_owned();
        variables.interface()?;
        let path = variables.netns()?;
        let Some(pod) = variables.pod()? else {
            return Ok(None);
        };
        match Netns::open(&path) {
            Ok(netns) => Ok(Some(Self {
                pod,
                container,
                path,
                netns,
            })),
            Err(NetnsError::Host(_)) => Ok(None),
            Err(error @ NetnsError::Silent { .. }) => Err(Error::later(error.to_string())),
            Err(error) => {
                let path = path.display();
                let problem = match error {
                    NetnsError::Missing(_) => format!("is {path}, which does not exist"),
                    NetnsError::NotNetns(_) => {
                        format!("is {path}, which is no network namespace")
                    }
                    error => format!("cannot be used: {error}"),
                };
                Err(Error::variable("CNI_NETNS", &problem))
            }
        }
    }

    /// What the agent needs to know.
    pub(super) fn sandbox(&self) -> Result<Sandbox, Error> {
        let uid = self.pod.uid.clone().ok_or_else(|| {
            Error::variable(
                "CNI_ARGS",
                "has no K8S_POD_UID, which distinguishes a pod from an earlier one of the same name; containerd sets it since 1.6, CRI-O since 1.21",
            )
        })?;
        Ok(Sandbox {
            namespace: self.pod.name.namespace.clone(),
            name: self.pod.name.name.clone(),
            uid,
            container: self.container.clone(),
            netns: self.path.clone(),
            inode: self.netns.inode(),
            descriptor: self.netns.as_fd().as_raw_fd(),
        })
    }
}
