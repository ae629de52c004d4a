//! Whether a pod starts although no agent lets it: an administrator has opened the gate of the node ([`OPEN_GATE`]), or
//! sidetrack was uninstalled while no agent could remove the plugin's entry, because it crashed again and again, or its
//! node was off. Without this nothing would start on that node any more.
//!
//! Only one answer proves an uninstall: the DaemonSet does not exist, or is being deleted. An API server that does not answer, or
//! refuses, says nothing about it, and the pod waits: it answers 401 for the plugin's token also while etcd is away or
//! after its keys were replaced. The plugin changes nothing on the node: its entry and its credentials stay for an agent
//! that comes back, or for `sidetrack cleanup`.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::{
    Api, Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use super::config::Install;
use sidetrack_base::runtime::block_on;
use sidetrack_policy::gate::{self, OPEN_GATE};

/// Longest wait for one answer.
const ANSWER: Duration = Duration::from_secs(2);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(500);
/// What the API server says about the DaemonSet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// It exists.
    Installed,
    /// It exists, and says that the gate of this node is open; in words.
    Open(String),
    /// It does not; how that is known, in words.
    Gone(String),
}

/// Looks for some time: a DaemonSet that is replaced is away for a moment.
///
/// # Errors
/// If the API server does not say it.
pub(super) fn observe(install: &Install, time: Duration) -> Result<Presence> {
    block_on(async {
        let start = Instant::now();
        let client = client(install).await?;
        loop {
            let presence = tokio::time::timeout(ANSWER, look(&client, install))
                .await
                .context("the API server does not answer")??;
            if !matches!(presence, Presence::Gone(_)) || start.elapsed() >= time {
                return Ok(presence);
            }
            tokio::time::sleep(PAUSE).await;
        }
    })?
}

async fn client(install: &Install) -> Result<Client> {
    let path = install.kubeconfig.display();
    let kubeconfig = Kubeconfig::read_from(&install.kubeconfig)
        .with_context(|| format!("read the plugin's credentials, {path}"))?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .with_context(|| format!("use the plugin's credentials, {path}"))?;
    // A proxy in the runtime's environment is not for the cluster.
    config.proxy_url = None;
    Ok(Client::try_from(config)?)
}

async fn look(client: &Client, install: &Install) -> Result<Presence> {
    let name = &install.daemonset;
    let api: Api<DaemonSet> = Api::namespaced(client.clone(), &name.namespace);
    match api.get_metadata_opt(&name.name).await {
        Ok(Some(object)) if object.metadata.deletion_timestamp.is_none() => {
            let annotations = object.metadata.annotations.unwrap_or_default();
            let value = annotations.get(OPEN_GATE);
            Ok(
                match value.filter(|it| gate::opens(it, install.node.as_deref())) {
                    Some(value) => Presence::Open(format!(
                        "the gate is open: annotation {OPEN_GATE} of DaemonSet {name} is {value:?}"
                    )),
                    None => Presence::Installed,
                },
            )
        }
        Ok(_) => Ok(Presence::Gone(format!(
            "the API server says that DaemonSet {name} is deleted"
        ))),
        Err(error) => bail!("the API server does not say whether DaemonSet {name} exists: {error}"),
    }
}
