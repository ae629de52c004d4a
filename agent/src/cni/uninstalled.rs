//! Whether sidetrack was uninstalled while no agent could remove the plugin's entry: the agent crashed
//! again and again, or its node was off. Without this nothing would start on that node any more.
//!
//! Only the API server's own answer counts: the DaemonSet does not exist, or the plugin's service account
//! does not. An API server that does not answer, or refuses for another reason, says nothing about it, and the
//! pod waits.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::{
    Api, Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use super::{config::Install, install::remove_entries};
use sidetrack_base::runtime::block_on;

/// Longest wait for one answer.
const ANSWER: Duration = Duration::from_secs(2);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(500);
/// 401 Unauthorized.
const UNAUTHORIZED: u16 = 401;

/// What the API server says about the DaemonSet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// It exists.
    Installed,
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
            if presence == Presence::Installed || start.elapsed() >= time {
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
        Ok(Some(object)) if object.metadata.deletion_timestamp.is_none() => Ok(Presence::Installed),
        Ok(_) => Ok(Presence::Gone(format!(
            "the API server says that DaemonSet {name} is deleted"
        ))),
        Err(kube::Error::Api(status)) if status.code == UNAUTHORIZED => {
            Ok(Presence::Gone(format!(
                "the API server no longer accepts the service account that was installed with DaemonSet {name}"
            )))
        }
        Err(error) => bail!("the API server does not say whether DaemonSet {name} exists: {error}"),
    }
}

/// Removes the plugin's entry, so that further pods do not wait. An agent that is installed again puts it
/// back. Returns what was done, in words.
pub(super) fn leave_node(install: &Install, socket: &Path) -> String {
    let Some(conf_dir) = install.kubeconfig.parent() else {
        return "The plugin's entry stays".to_owned();
    };
    match remove_entries(conf_dir, socket) {
        Ok(done) => format!("CNI plugin: {}", done.join(", ")),
        // Another pod's ADD may be doing the same.
        Err(error) => format!("The plugin's entry may stay: {error:#}"),
    }
}
