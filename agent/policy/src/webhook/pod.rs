//! A pod as the webhook reads it: what its policy depends on, and the names of its containers.
//!
//! Invariant: what is read takes little more memory than the text, whatever the text says. Lists have
//! limits, and what no policy depends on is skipped.

use std::{borrow::Cow, collections::BTreeMap, fmt, marker::PhantomData};

use k8s_openapi::{
    api::core::v1::{Container, EnvVar, Pod, PodSpec, PodStatus},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use super::validation::VALIDATION;
use crate::{
    names::{INJECTED, REPLACED},
    record::ANNOTATIONS_MAX,
};

/// Containers in a list. No node runs a pod with so many.
const MAX_CONTAINERS: usize = 1000;
/// Words of a command or of its arguments.
const MAX_WORDS: usize = 4096;
/// Variables of a container.
const MAX_VARIABLES: usize = 20_000;
/// The text of a container's resources.
const MAX_RESOURCES: usize = 16 << 10;

/// Reads a pod.
///
/// # Errors
/// If it is none, or has more of something than any pod that the API accepts and a node can run.
pub fn read(text: &str) -> serde_json::Result<Pod> {
    let PodText {
        metadata,
        spec,
        status,
    } = serde_json::from_str(text)?;
    let Metadata {
        name,
        generate_name,
        namespace,
        labels,
        annotations,
    } = metadata.unwrap_or_default();
    Ok(Pod {
        metadata: ObjectMeta {
            name,
            generate_name,
            namespace,
            labels: labels.map(|Texts(labels)| labels),
            annotations: annotations.map(|Texts(annotations)| annotations),
            ..ObjectMeta::default()
        },
        spec: spec.map(Spec::read).transpose()?,
        status: status.map(|Status { phase }| PodStatus {
            phase,
            ..PodStatus::default()
        }),
    })
}

/// The part of a pod that a policy depends on.
#[derive(Deserialize)]
struct PodText<'a> {
    metadata: Option<Metadata>,
    #[serde(borrow)]
    spec: Option<Spec<'a>>,
    status: Option<Status>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    generate_name: Option<String>,
    namespace: Option<String>,
    labels: Option<Texts>,
    annotations: Option<Texts>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec<'a> {
    host_network: Option<bool>,
    runtime_class_name: Option<String>,
    #[serde(borrow)]
    containers: Option<Containers<'a>>,
    #[serde(borrow)]
    init_containers: Option<Containers<'a>>,
}

impl Spec<'_> {
    fn read(self) -> serde_json::Result<PodSpec> {
        let read = |containers: Containers<'_>| -> serde_json::Result<Vec<Container>> {
            containers.0.iter().map(ContainerText::read).collect()
        };
        Ok(PodSpec {
            host_network: self.host_network,
            runtime_class_name: self.runtime_class_name,
            containers: self.containers.map(read).transpose()?.unwrap_or_default(),
            init_containers: self.init_containers.map(read).transpose()?,
            ..PodSpec::default()
        })
    }
}

#[derive(Deserialize)]
struct Status {
    phase: Option<String>,
}

/// Containers and their texts.
pub type Containers<'a> = List<ContainerText<'a>, MAX_CONTAINERS>;

/// A container of which only the name is read.
pub struct ContainerText<'a> {
    /// Empty if it has none.
    pub name: Cow<'a, str>,
    /// All of it.
    pub text: &'a RawValue,
}

impl<'de: 'a, 'a> Deserialize<'de> for ContainerText<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Named<'a> {
            #[serde(borrow, default)]
            name: Option<Cow<'a, str>>,
        }
        let text = <&'a RawValue>::deserialize(from)?;
        if !text.get().starts_with('{') {
            return Err(D::Error::custom("a container is not an object"));
        }
        let named: Named<'a> = serde_json::from_str(text.get()).map_err(D::Error::custom)?;
        let name = named.name.unwrap_or_default();
        Ok(Self { name, text })
    }
}

impl ContainerText<'_> {
    /// Its name, and the rest if a policy may depend on it.
    fn read(&self) -> serde_json::Result<Container> {
        let mut container = Container {
            name: self.name.clone().into_owned(),
            ..Container::default()
        };
        let is_sidecar = INJECTED.iter().any(|mesh| mesh.sidecar == self.name);
        if !is_sidecar && !REPLACED.contains(&&*self.name) && self.name != VALIDATION {
            return Ok(container);
        }
        let known: Known<'_> = serde_json::from_str(self.text.get())?;
        let words = |List(words): Words| words;
        let variables = known.env.into_iter().flat_map(|List(variables)| variables);
        let relevant = variables.filter(|variable| variable.name.starts_with("ISTIO_"));
        container.image = known.image;
        container.command = known.command.map(words);
        container.args = known.args.map(words);
        container.env = Some(relevant.map(Variable::read).collect());
        container.restart_policy = known.restart_policy;
        if let Some(resources) = known.resources {
            if resources.get().len() > MAX_RESOURCES {
                let error = format!("resources have more than {} KiB", MAX_RESOURCES >> 10);
                return Err(serde_json::Error::custom(error));
            }
            container.resources = serde_json::from_str(resources.get())?;
        }
        Ok(container)
    }
}

type Words = List<String, MAX_WORDS>;

/// A container that a policy depends on.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Known<'a> {
    image: Option<String>,
    command: Option<Words>,
    args: Option<Words>,
    #[serde(borrow)]
    env: Option<List<Variable<'a>, MAX_VARIABLES>>,
    #[serde(borrow)]
    resources: Option<&'a RawValue>,
    restart_policy: Option<String>,
}

#[derive(Deserialize)]
struct Variable<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    value: Option<Cow<'a, str>>,
}

impl Variable<'_> {
    fn read(self) -> EnvVar {
        EnvVar {
            name: self.name.into_owned(),
            value: self.value.map(Cow::into_owned),
            value_from: None,
        }
    }
}

/// A list with at most so many items.
pub struct List<T, const MAX: usize>(pub Vec<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for List<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Items<T, const MAX: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Items<T, MAX> {
            type Value = Vec<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = list.next_element()? {
                    if items.len() == MAX {
                        return Err(A::Error::custom(format!(
                            "a list has more than {MAX} items"
                        )));
                    }
                    items.push(item);
                }
                Ok(items)
            }
        }
        from.deserialize_seq(Items::<T, MAX>(PhantomData)).map(Self)
    }
}

/// Annotations or labels, as many as an object may have.
#[derive(Default)]
pub struct Texts(pub BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = BTreeMap<String, String>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "an object of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = BTreeMap::new();
                let mut size = 0;
                while let Some((name, value)) = map.next_entry::<String, String>()? {
                    size += name.len() + value.len();
                    if size > ANNOTATIONS_MAX {
                        let most = ANNOTATIONS_MAX >> 10;
                        let error = format!("annotations or labels have more than {most} KiB");
                        return Err(A::Error::custom(error));
                    }
                    pairs.insert(name, value);
                }
                Ok(pairs)
            }
        }
        from.deserialize_map(Pairs).map(Self)
    }
}

#[cfg(test)]
mod tests;
