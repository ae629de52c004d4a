//! The API server, by kubectl's own kubeconfig.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::{Debug, Display},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail};
use k8s_openapi::{
    api::{
        apps::v1::DaemonSet,
        core::v1::{Namespace, Node, Pod},
        node::v1::RuntimeClass,
    },
    apimachinery::pkg::apis::meta::v1::ListMeta,
};
use kube::{
    Api, Client, Config, Resource, ResourceExt as _,
    api::{ListParams, Request},
    client::ClientBuilder,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde::{Deserialize, de::DeserializeOwned};
use sidetrack_base::api_server::name_server;
use sidetrack_policy::{facts::PodFacts, gate::OPEN_GATE, select::LABEL};
use tower::util::MapErrLayer;

use crate::{
    agents::{self, Agent},
    denied::{Denied, plain},
    flags::{Connect, Which},
    reader::Tokens,
};

/// Which pods are shown, and where they are.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// By `namespace/name`; `None` of a pod that has no node yet.
    node_of: HashMap<String, Option<String>>,
    /// Whether only listed pods are shown, because labels were given.
    pub only_listed: bool,
}

/// Whether what a node says of a pod is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodOrigin {
    /// It is. A pod that is not listed may be new, or deleted and still running.
    Accepted,
    /// The pod has not the labels that were given.
    NotSelected,
    /// The API server listed the pod on another node.
    OtherNode,
}

impl Places {
    /// Whether what this node says of a pod, named `namespace/name`, is shown.
    pub fn origin(&self, node: &str, pod: &str) -> PodOrigin {
        match self.node_of.get(pod) {
            Some(Some(own)) if own != node => PodOrigin::OtherNode,
            None if self.only_listed => PodOrigin::NotSelected,
            _ => PodOrigin::Accepted,
        }
    }
}

/// The handler of a pod's runtime class, if it names one that is known.
pub fn handler_of<'a>(pod: &PodFacts, handlers: &'a BTreeMap<String, String>) -> Option<&'a str> {
    let class = pod.spec.runtime_class_name.as_ref()?;
    handlers.get(class).map(String::as_str)
}

/// What is said of pods that a node may not speak for.
pub const ON_OTHER_NODES: &str =
    "that the API server last listed on other nodes are not shown; a pod may just have moved";

/// What the agents' DaemonSet says.
#[derive(Debug)]
pub struct WantedAgents {
    /// How many nodes should have an agent.
    pub nodes: u32,
    /// The values of [`OPEN_GATE`].
    pub open_gate: Vec<String>,
}

/// The label of the agents' pods, and of their DaemonSet.
const AGENTS: &str = "app.kubernetes.io/name=sidetrack";

/// The label of the pods that measure whether their nodes intercept.
const INTERCEPTION_PROBES: &str = "app.kubernetes.io/name=sidetrack-interception-probe";

/// How long the API server may take for one answer.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(30);

/// A cluster, and how its agents are asked.
#[derive(Clone)]
pub struct Cluster {
    /// Client of the API server.
    pub client: Client,
    /// The namespace of pods that are named without one.
    pub namespace: String,
    /// The flags.
    pub connect: Connect,
    /// Of readers.
    pub tokens: Tokens,
}

impl Cluster {
    /// Reads the kubeconfig. Nothing is sent yet.
    pub async fn connect(connect: &Connect) -> Result<Self> {
        let options = KubeConfigOptions {
            context: connect.context.clone(),
            ..KubeConfigOptions::default()
        };
        let mut config = match &connect.kubeconfig {
            Some(path) => {
                let read = || format!("read the kubeconfig {}", path.display());
                let file = Kubeconfig::read_from(path)
                    .map_err(whole)
                    .with_context(read)?;
                let config = Config::from_custom_kubeconfig(file, &options).await;
                config.map_err(whole).with_context(read)?
            }
            None if connect.context.is_some() => Config::from_kubeconfig(&options)
                .await
                .map_err(whole)
                .context("read the kubeconfig")?,
            None => Config::infer()
                .await
                .map_err(whole)
                .context("find the cluster: set KUBECONFIG, or pass --kubeconfig")?,
        };
        if connect.as_user.is_some() {
            config.auth_info.impersonate = connect.as_user.clone();
            config.auth_info.impersonate_groups = Some(connect.as_groups.clone());
        }
        config.connect_timeout = Some(Duration::from_secs(10));
        // An exec may be silent for long. Each request has its own deadline.
        config.read_timeout = None;
        config.write_timeout = None;
        let mut at_once = config.clone();
        at_once.default_retry = false;
        Ok(Self {
            namespace: connect
                .namespace
                .clone()
                .unwrap_or_else(|| config.default_namespace.clone()),
            tokens: Tokens::new(client(at_once)?),
            client: client(config)?,
            connect: connect.clone(),
        })
    }

    /// Every pod that was asked for.
    pub async fn pods(&self, which: &Which) -> Result<Vec<PodFacts>> {
        let namespace = (!which.all_namespaces).then_some(&*self.namespace);
        let mut parameters = ListParams::default();
        parameters.label_selector.clone_from(&which.selector);
        self.pods_in(namespace, parameters).await
    }

    /// The pods of a namespace, or of all, in parts: a large cluster has gigabytes of them.
    pub async fn pods_in(
        &self,
        namespace: Option<&str>,
        parameters: ListParams,
    ) -> Result<Vec<PodFacts>> {
        #[derive(Deserialize)]
        struct Pods {
            metadata: ListMeta,
            items: Vec<PodFacts>,
        }
        let mut parameters = parameters.limit(500);
        let mut all = Vec::new();
        loop {
            let request = Request::new(Pod::url_path(&(), namespace)).list(&parameters);
            let request = request.context("list pods")?;
            let listed = answer(self.client.request(request)).await;
            if listed.is_err() && parameters.continue_token.take().is_some() {
                // The API server forgets a list after minutes. Once more, as a whole.
                all.clear();
                parameters.limit = None;
                continue;
            }
            let Pods { metadata, items } = listed.context("list pods")?;
            all.extend(items);
            parameters.continue_token = metadata.continue_.filter(|next| !next.is_empty());
            if parameters.continue_token.is_none() {
                return Ok(all);
            }
        }
    }

    /// Which pods were asked for, and where they are.
    pub async fn places(&self, which: &Which) -> Result<Places> {
        let pods = self.pods(which).await?.into_iter();
        Ok(Places {
            node_of: pods
                .map(|pod| (pod.meta.full_name(), pod.spec.node_name))
                .collect(),
            only_listed: which.selector.is_some(),
        })
    }

    /// The pods of the agents.
    pub async fn agents_pods(&self) -> Result<Vec<Pod>> {
        let api = Api::namespaced(self.client.clone(), &self.connect.agents_namespace);
        list(api, ListParams::default().labels(AGENTS)).await
    }

    /// The pods that measure whether their nodes intercept, if they are installed.
    pub async fn interception_probes(&self) -> Result<Vec<Pod>> {
        let api = Api::namespaced(self.client.clone(), &self.connect.agents_namespace);
        list(api, ListParams::default().labels(INTERCEPTION_PROBES)).await
    }

    /// What the agents' DaemonSet says.
    ///
    /// # Errors
    /// If there is none, or it cannot be read.
    pub async fn wanted_agents(&self) -> Result<WantedAgents> {
        let namespace = &self.connect.agents_namespace;
        let api: Api<DaemonSet> = Api::namespaced(self.client.clone(), namespace);
        let found = list(api, ListParams::default().labels(AGENTS)).await?;
        if found.is_empty() {
            bail!("namespace {namespace} has no DaemonSet labeled {AGENTS}");
        }
        let wanted = found
            .iter()
            .filter_map(|daemonset| daemonset.status.as_ref());
        let wanted: i32 = wanted.map(|it| it.desired_number_scheduled).sum();
        let gates = found
            .iter()
            .filter_map(|it| it.annotations().get(OPEN_GATE));
        Ok(WantedAgents {
            nodes: wanted.try_into().unwrap_or_default(),
            open_gate: gates.cloned().collect(),
        })
    }

    /// The agents by node.
    pub async fn agents(&self) -> Result<BTreeMap<String, Agent>> {
        Ok(agents::by_node(&self.agents_pods().await?))
    }

    /// The agents by node, at least one.
    ///
    /// # Errors
    /// If there is none, or if they cannot be listed.
    pub async fn some_agents(&self) -> Result<BTreeMap<String, Agent>> {
        let agents = self.agents().await?;
        if agents.is_empty() {
            bail!("{}", self.no_agent());
        }
        Ok(agents)
    }

    /// What to say if no node has an agent.
    pub fn no_agent(&self) -> String {
        format!(
            "namespace {0} has no agent (a pod labeled app.kubernetes.io/name=sidetrack): install sidetrack, name the agents' namespace with --agents-namespace, or look whether its DaemonSet wants a node: kubectl get daemonset -n {0}",
            self.connect.agents_namespace
        )
    }

    /// The value of label [`LABEL`] of a namespace, or of each, if it has it.
    pub async fn namespace_labels(&self, only: Option<&str>) -> Result<BTreeMap<String, String>> {
        let namespaces = match only {
            Some(name) => self.namespace(name).await?.into_iter().collect(),
            None => self.all::<Namespace>().await?,
        };
        let labeled = namespaces.into_iter().filter_map(|namespace| {
            let label = namespace.labels().get(LABEL)?.clone();
            Some((namespace.name_any(), label))
        });
        Ok(labeled.collect())
    }

    /// The handlers of runtime classes by their names, if a pod names one.
    pub async fn runtime_handlers(&self, pods: &[PodFacts]) -> Result<BTreeMap<String, String>> {
        if pods.iter().all(|pod| pod.spec.runtime_class_name.is_none()) {
            return Ok(BTreeMap::new());
        }
        let classes = self.all::<RuntimeClass>().await?.into_iter();
        Ok(classes
            .map(|class| (class.name_any(), class.handler))
            .collect())
    }

    /// Nodes that run Linux.
    pub async fn linux_nodes(&self) -> Result<Vec<Node>> {
        let nodes: Vec<Node> = self.all().await?;
        let is_linux = |node: &Node| {
            let system = node.labels().get("kubernetes.io/os");
            system.is_none_or(|system| system == "linux")
        };
        Ok(nodes.into_iter().filter(is_linux).collect())
    }

    /// Fails if the namespace of the pods that were asked for does not exist. Without the right to read namespaces it
    /// does not fail.
    pub async fn check_namespace(&self, which: &Which) -> Result<()> {
        if which.all_namespaces {
            return Ok(());
        }
        let name = &self.namespace;
        match self.namespace(name).await {
            Ok(None) => bail!("there is no namespace {name}"),
            Err(error) if !error.is::<Denied>() => Err(error),
            _ => Ok(()),
        }
    }

    async fn namespace(&self, name: &str) -> Result<Option<Namespace>> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let found = answer(api.get_opt(name)).await;
        found.with_context(|| format!("get namespace {name}"))
    }

    /// All objects of a kind.
    pub async fn all<K>(&self) -> Result<Vec<K>>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        list(Api::all(self.client.clone()), ListParams::default()).await
    }
}

/// A client whose errors name the server that cannot be reached.
fn client(config: Config) -> Result<Client> {
    let server = config.cluster_url.to_string();
    let builder = ClientBuilder::try_from(config).context("connect to the cluster")?;
    let layer = MapErrLayer::new(move |error| name_server(&server, error));
    Ok(builder.with_layer(&layer).build())
}

/// The objects of one list.
pub async fn list<K>(api: Api<K>, parameters: ListParams) -> Result<Vec<K>>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let kind = K::plural(&());
    let listed = answer(api.list(&parameters)).await;
    let listed = listed.with_context(|| format!("list {kind}"))?;
    Ok(listed.items)
}

/// What the API server answers, in time.
pub async fn answer<T>(asked: impl Future<Output = kube::Result<T>>) -> Result<T> {
    match tokio::time::timeout(WAIT_TIMEOUT, asked).await {
        Ok(answer) => answer.map_err(plain),
        Err(_) => bail!("no answer within {WAIT_TIMEOUT:?}"),
    }
}

/// An error of kube's about its configuration. Its text has those of its causes.
fn whole(error: impl Display) -> anyhow::Error {
    anyhow!("{error}")
}
