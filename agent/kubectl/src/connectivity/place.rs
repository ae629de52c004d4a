//! The test's namespace, and what is in it.

use std::{fmt::Debug, time::Duration};

use anyhow::{Context as _, Result, bail};
use k8s_openapi::{
    NamespaceResourceScope,
    api::core::v1::{ConfigMap, Namespace, Pod, Service},
};
use kube::{
    Api, Client, Error, Resource, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams, Preconditions},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{
    cases::Addresses,
    manifests::{self, Images, SERVICE},
};
use crate::{
    cluster::{Cluster, WAIT_TIMEOUT, answer, list},
    denied::plain,
};

/// Between two looks.
pub const PAUSE: Duration = Duration::from_millis(300);
/// 403 Forbidden, 409 Conflict.
const FORBIDDEN: u16 = 403;
const CONFLICT: u16 = 409;

/// A namespace that this test has created.
pub struct Place {
    client: Client,
    name: String,
    uid: Option<String>,
}

impl Place {
    /// Creates it.
    pub async fn create(cluster: &Cluster, name: Option<&str>) -> Result<Self> {
        let api: Api<Namespace> = Api::all(cluster.client.clone());
        let object: Namespace = serde_json::from_value(manifests::namespace(name))?;
        let created = create(&api, &object).await;
        let created = match created {
            Err(Error::Api(status)) if status.code == CONFLICT => bail!(
                "namespace {} exists: the test deletes its namespace, so it creates one of its own; pass another name to --test-namespace, or none",
                name.unwrap_or_default()
            ),
            other => other.map_err(|error| refused("namespaces", error))?,
        };
        Ok(Self {
            client: cluster.client.clone(),
            name: created.name_any(),
            uid: created.uid(),
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The API server.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Creates everything that the test needs.
    pub async fn fill(&self, images: Images<'_>) -> Result<()> {
        self.put::<ConfigMap>(manifests::config_map()).await?;
        self.put::<Service>(manifests::service()).await?;
        for pod in manifests::pods(images) {
            self.put::<Pod>(pod).await?;
        }
        Ok(())
    }

    async fn put<K>(&self, object: Value) -> Result<()>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), &self.name);
        let object: K = serde_json::from_value(object)?;
        let created = create(&api, &object).await;
        created
            .map(drop)
            .map_err(|error| refused(&K::plural(&()), error))
    }

    /// Its pods.
    pub async fn pods(&self) -> Result<Vec<Pod>> {
        let api = Api::namespaced(self.client.clone(), &self.name);
        list(api, ListParams::default()).await
    }

    /// The last lines of a container that has ended.
    pub async fn log(&self, pod: &str, container: &str) -> String {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.name);
        let parameters = kube::api::LogParams {
            container: Some(container.to_owned()),
            tail_lines: Some(5),
            ..kube::api::LogParams::default()
        };
        answer(api.logs(pod, &parameters)).await.unwrap_or_default()
    }

    /// The addresses of its pods and its Service.
    pub async fn addresses(&self) -> Result<Addresses> {
        let api: Api<Service> = Api::namespaced(self.client.clone(), &self.name);
        let service = answer(api.get(SERVICE)).await.context("get the Service")?;
        let service = service.spec.and_then(|spec| spec.cluster_ip);
        let pods = self.pods().await?;
        let of = |name: &str| {
            let pod = pods.iter().find(|pod| pod.name_any() == name);
            pod.and_then(ipv4)
                .with_context(|| format!("pod {name} has no IPv4 address: this test needs IPv4"))
        };
        Ok(Addresses {
            service: service.context("the Service has no address")?,
            server: of("server")?,
            client: of("client")?,
            plain: of("plain")?,
            down: of("down")?,
        })
    }

    /// Has it deleted with everything in it. [`Place::wait_gone`] waits for its end.
    pub async fn delete(&self) -> Result<()> {
        // Another one of this name is not the test's.
        let own = DeleteParams::default().preconditions(Preconditions {
            uid: self.uid.clone(),
            resource_version: None,
        });
        let api: Api<Namespace> = Api::all(self.client.clone());
        let deleted = answer(api.delete(&self.name, &own)).await;
        let deleted = deleted.with_context(|| {
            format!(
                "namespace {0} remains: kubectl delete namespace {0} removes it",
                self.name
            )
        });
        deleted.map(drop)
    }

    /// Waits until it is gone.
    pub async fn wait_gone(&self, patience: Duration) -> Result<()> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let gone = async {
            while api.get_opt(&self.name).await?.is_some() {
                tokio::time::sleep(PAUSE).await;
            }
            Ok::<(), Error>(())
        };
        let name = &self.name;
        match tokio::time::timeout(patience, gone).await {
            Ok(gone) => gone.map_err(plain).with_context(|| {
                format!("wait for the end of namespace {name}, which is being deleted")
            }),
            Err(_) => bail!("namespace {name} is still being deleted after {patience:?}"),
        }
    }
}

async fn create<K>(api: &Api<K>, object: &K) -> Result<K, Error>
where
    K: Clone + Debug + Serialize + DeserializeOwned,
{
    let parameters = PostParams::default();
    match tokio::time::timeout(WAIT_TIMEOUT, api.create(&parameters, object)).await {
        Ok(created) => created,
        Err(_) => Err(Error::Service("no answer from the API server".into())),
    }
}

/// Why something was not created, and the cure.
fn refused(plural: &str, error: Error) -> anyhow::Error {
    let is_right = matches!(&error, Error::Api(status) if status.code == FORBIDDEN);
    let error = plain(error).context(format!("create {plural}"));
    match is_right {
        true => error.context(
            "the test needs the rights to create, get and delete namespaces, and in its own to create configmaps, services, pods and pods/exec",
        ),
        false => error,
    }
}

fn ipv4(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let all = status.pod_ips.iter().flatten().map(|ip| &ip.ip);
    let mut all = all.chain(&status.pod_ip);
    all.find(|ip| ip.contains('.')).cloned()
}
