//! Pods that are named by what they belong to, such as `deploy/web`. Of several pods one is asked, as with `kubectl exec`.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet},
        batch::v1::Job,
        core::v1::Service,
    },
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::{
    Resource,
    api::{GetParams, ListParams, Request},
    core::Selector,
};
use serde::Deserialize;
use sidetrack_policy::{
    PodRef,
    select::{is_completed, is_starting},
};

use crate::{
    cluster::{Cluster, answer},
    output,
};

/// A kind of object that selects pods.
#[derive(Clone, Copy)]
struct Kind {
    /// As kubectl takes it.
    names: &'static [&'static str],
    /// Its path in the API, by namespace.
    path: fn(Option<&str>) -> String,
}

const KINDS: [Kind; 6] = [
    Kind {
        names: &["deploy", "deployment", "deployments"],
        path: |namespace| Deployment::url_path(&(), namespace),
    },
    Kind {
        names: &["sts", "statefulset", "statefulsets"],
        path: |namespace| StatefulSet::url_path(&(), namespace),
    },
    Kind {
        names: &["ds", "daemonset", "daemonsets"],
        path: |namespace| DaemonSet::url_path(&(), namespace),
    },
    Kind {
        names: &["rs", "replicaset", "replicasets"],
        path: |namespace| ReplicaSet::url_path(&(), namespace),
    },
    Kind {
        names: &["job", "jobs"],
        path: |namespace| Job::url_path(&(), namespace),
    },
    Kind {
        names: &["svc", "service", "services"],
        path: |namespace| Service::url_path(&(), namespace),
    },
];

/// What is needed of an object of any of them.
#[derive(Debug, Deserialize)]
struct Object {
    spec: Spec,
}

#[derive(Debug, Deserialize)]
struct Spec {
    selector: Option<Labels>,
}

/// A Service has labels, the others have a selector, which is no map of texts.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Labels {
    Labels(BTreeMap<String, String>),
    Selector(LabelSelector),
}

/// How a pod is named on a command line.
#[derive(Debug, PartialEq, Eq)]
pub enum Named {
    /// `POD`, `NAMESPACE/POD`, or `KIND/NAME` of something that has pods.
    Word(String),
    /// By a label selector.
    Labels(String),
}

impl Named {
    /// The pod. A namespace with the name of a kind is passed by `-n`.
    pub async fn pod(&self, cluster: &Cluster) -> Result<PodRef> {
        let in_namespace = |name: &str| PodRef {
            namespace: cluster.namespace.clone(),
            name: name.to_owned(),
        };
        let word = match self {
            Self::Word(word) => word,
            Self::Labels(labels) => {
                return of_labels(cluster, labels, &format!("-l {labels}")).await;
            }
        };
        let Some((first, name)) = word.split_once('/') else {
            return Ok(in_namespace(word));
        };
        if ["pod", "pods", "po"].contains(&first) {
            return Ok(in_namespace(name));
        }
        match KINDS.iter().find(|kind| kind.names.contains(&first)) {
            Some(kind) => of_object(cluster, *kind, name).await,
            None => word.parse().map_err(anyhow::Error::msg),
        }
    }
}

async fn of_object(cluster: &Cluster, kind: Kind, name: &str) -> Result<PodRef> {
    let namespace = cluster.namespace.as_str();
    let what = format!("{}/{name}", kind.names[0]);
    // A namespace may have the name of a kind.
    let read = || format!("get {what} in namespace {namespace} (a pod of namespace X: -n X POD)");
    let request = Request::new((kind.path)(Some(namespace))).get(name, &GetParams::default())?;
    let object: Object = answer(cluster.client.request(request))
        .await
        .with_context(read)?;
    let labels = match object.spec.selector {
        Some(Labels::Selector(selector)) => Selector::try_from(selector)?,
        Some(Labels::Labels(labels)) if !labels.is_empty() => labels.into_iter().collect(),
        _ => bail!("{what} in namespace {namespace} selects no pods"),
    };
    of_labels(cluster, &labels.to_string(), &what).await
}

/// One of the pods with these labels. `what` names them in messages.
async fn of_labels(cluster: &Cluster, labels: &str, what: &str) -> Result<PodRef> {
    let namespace = cluster.namespace.as_str();
    let parameters = ListParams::default().labels(labels);
    let pods = cluster.pods_in(Some(namespace), parameters).await?;
    let running = pods
        .iter()
        .filter(|pod| pod.spec.node_name.is_some() && !is_completed(pod));
    // The same one each time.
    let chosen = running.min_by_key(|pod| (is_starting(pod), &pod.meta.name));
    let Some(name) = chosen.and_then(|pod| pod.meta.name.clone()) else {
        bail!("no pod of {what} in namespace {namespace} is on a node");
    };
    if pods.len() > 1 {
        output::remark(format!("of {} pods of {what} this is {name}", pods.len()));
    }
    Ok(PodRef {
        namespace: namespace.to_owned(),
        name,
    })
}
