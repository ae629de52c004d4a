//! A pod as the webhook reads it: its names, its annotations, and its containers, unread.
//!
//! Invariant: what is read takes little more memory than the text, whatever the text says. Lists have
//! limits, and what the answer does not depend on is skipped.

use std::{borrow::Cow, collections::BTreeMap, fmt, marker::PhantomData};

use k8s_openapi::api::core::v1::{Container, EnvFromSource, EnvVar, EnvVarSource};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::{names::is_recorded, record::ANNOTATIONS_MAX};

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
/// If it is none, or has more containers or annotations than any pod that the API accepts and a node can run.
pub fn read(text: &str) -> serde_json::Result<PodText<'_>> {
    serde_json::from_str(text)
}

/// A pod in a request. [`crate::facts`] has what selection and policy ask of it.
#[derive(Deserialize)]
pub struct PodText<'a> {
    metadata: Option<Metadata>,
    #[serde(borrow)]
    spec: Option<Spec<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    generate_name: Option<String>,
    namespace: Option<String>,
    annotations: Option<Texts>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec<'a> {
    #[serde(borrow)]
    containers: Option<Containers<'a>>,
    #[serde(borrow)]
    init_containers: Option<Containers<'a>>,
}

impl<'a> PodText<'a> {
    /// Its name.
    pub fn name(&self) -> Option<&str> {
        self.metadata.as_ref()?.name.as_deref()
    }

    /// What the API server makes its name from.
    pub fn generate_name(&self) -> Option<&str> {
        self.metadata.as_ref()?.generate_name.as_deref()
    }

    /// Its namespace.
    pub fn namespace(&self) -> Option<&str> {
        self.metadata.as_ref()?.namespace.as_deref()
    }

    /// Its annotations.
    pub fn annotations(&self) -> Option<&BTreeMap<String, String>> {
        let annotations = self.metadata.as_ref()?.annotations.as_ref();
        annotations.map(|Texts(annotations)| annotations)
    }

    /// Its containers.
    pub fn containers(&self) -> &[ContainerText<'a>] {
        self.list(|spec| &spec.containers)
    }

    /// Its init containers.
    pub fn init_containers(&self) -> &[ContainerText<'a>] {
        self.list(|spec| &spec.init_containers)
    }

    fn list<'s>(
        &'s self,
        of: impl Fn(&'s Spec<'a>) -> &'s Option<Containers<'a>>,
    ) -> &'s [ContainerText<'a>] {
        let list = self.spec.as_ref().and_then(|spec| of(spec).as_ref());
        list.map_or(&[], |List(containers)| containers)
    }
}

type Containers<'a> = List<ContainerText<'a>, MAX_CONTAINERS>;

/// A container of which only the name is read at first.
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
    /// What is recorded of it, and its resources.
    ///
    /// # Errors
    /// If it is no container, or has more than any that a node can run.
    pub fn read(&self) -> serde_json::Result<Container> {
        let known: Known<'_> = serde_json::from_str(self.text.get())?;
        let words = |List(words): Words| words;
        let variables = known.env.into_iter().flat_map(|List(variables)| variables);
        let relevant = variables.filter(|variable| is_recorded(&variable.name));
        let has_more_variables = known
            .env_from
            .is_some_and(|List(sources)| !sources.is_empty());
        let mut container = Container {
            name: self.name.clone().into_owned(),
            image: known.image,
            command: known.command.map(words),
            args: known.args.map(words),
            env: Some(relevant.map(Variable::read).collect()),
            env_from: has_more_variables.then(|| vec![EnvFromSource::default()]),
            ..Container::default()
        };
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

/// What is read of a container.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Known<'a> {
    image: Option<String>,
    command: Option<Words>,
    args: Option<Words>,
    #[serde(borrow)]
    env: Option<List<Variable<'a>, MAX_VARIABLES>>,
    env_from: Option<List<IgnoredAny, MAX_VARIABLES>>,
    #[serde(borrow)]
    resources: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Variable<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    value: Option<Cow<'a, str>>,
    value_from: Option<IgnoredAny>,
}

impl Variable<'_> {
    fn read(self) -> EnvVar {
        EnvVar {
            name: self.name.into_owned(),
            value: self.value.map(Cow::into_owned),
            value_from: self.value_from.map(|_| EnvVarSource::default()),
        }
    }
}

/// A list with at most so many items.
struct List<T, const MAX: usize>(Vec<T>);

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

/// Annotations, as many as an object may have.
struct Texts(BTreeMap<String, String>);

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
                        let error = format!("annotations have more than {most} KiB");
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
