//! The containers of a pod that are known by their names.

use std::collections::BTreeMap;

use super::{
    MAX_POD_BYTES, MAX_VALUE_BYTES,
    read::{Node, Shape, fields},
};
use crate::{
    mesh_name::MeshName,
    names::{DISABLE_ENVOY, InjectedNames, known_variable},
    text::boolean,
};

/// Name of the init container with which Istio's injector programs iptables.
pub(crate) const ISTIO_INIT: &str = InjectedNames::of(MeshName::Istio).init;

/// What a kept string takes beside its bytes.
const OVERHEAD: usize = 32;

/// Of a `securityContext`, what a process runs as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunAs {
    /// `runAsUser`.
    pub user: Option<u32>,
    /// `runAsGroup`.
    pub group: Option<u32>,
}

fields! { RunAs {
    "runAsUser" => user,
    "runAsGroup" => group,
} }

/// A known container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerFacts {
    /// Its name.
    pub name: &'static str,
    /// `image`.
    pub image: Option<String>,
    /// `command` and `args`; of the sidecar those before the first flag.
    pub words: Vec<String>,
    /// Literal variables that set an input of the policy.
    pub env: BTreeMap<&'static str, String>,
    /// Whether its `restartPolicy` is `Always`.
    pub restarts: bool,
    /// `securityContext`.
    pub run_as: RunAs,
    /// What the words take, also those that were not kept.
    words_bytes: usize,
}

impl ContainerFacts {
    /// Whether its Envoy is turned off, as Go's `strconv.ParseBool` reads it.
    pub(super) fn is_without_envoy(&self) -> bool {
        let value = self.env.get(DISABLE_ENVOY).map(String::as_str);
        value.and_then(boolean) == Some(true)
    }

    fn bytes(&self) -> usize {
        let values = self.env.values().chain(&self.image);
        values.map(String::len).sum::<usize>() + self.words_bytes
    }

    fn drop_long(&mut self) {
        self.image.take_if(|image| image.len() > MAX_VALUE_BYTES);
        self.env.retain(|_, value| value.len() <= MAX_VALUE_BYTES);
        // The gateway's word is one of the sidecar's first.
        self.words.truncate(MAX_VALUE_BYTES / OVERHEAD);
        self.words.retain(|word| word.len() <= MAX_VALUE_BYTES);
        self.words.shrink_to_fit();
        self.words_bytes = cost(&self.words);
    }
}

/// Known containers of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Containers {
    all: Vec<ContainerFacts>,
    item: Container,
}

impl Containers {
    /// The first with this name, and, if asked for, with `restartPolicy: Always`.
    pub(super) fn find(&self, name: &str, restarts: bool) -> Option<&ContainerFacts> {
        let found = |it: &&ContainerFacts| it.name == name && (it.restarts || !restarts);
        self.all.iter().find(found)
    }

    /// The check of a mesh's injector, which takes the place of the init container.
    #[must_use]
    pub fn check(&self, mesh: MeshName) -> Option<&ContainerFacts> {
        self.find(InjectedNames::of(mesh).check?, false)
    }

    /// About how many bytes they take.
    pub(super) fn bytes(&self) -> usize {
        self.all.iter().map(ContainerFacts::bytes).sum()
    }

    /// Drops long values.
    pub(super) fn drop_long(&mut self) {
        self.all.iter_mut().for_each(ContainerFacts::drop_long);
    }
}

impl Node for Containers {
    fn shape(&self) -> Shape {
        Shape::List
    }

    fn item(&mut self) -> Option<&mut dyn Node> {
        Some(&mut self.item)
    }

    fn end(&mut self, problem: Option<String>) -> Option<String> {
        let Some(found) = std::mem::take(&mut self.item).facts() else {
            return problem;
        };
        // The first of a name counts; a native sidecar may follow one that does not keep running.
        let is_same = |it: &ContainerFacts| (it.name, it.restarts) == (found.name, found.restarts);
        if !self.all.iter().any(is_same) {
            self.all.push(found);
        }
        problem
    }
}

/// A container that is being read. Its name may come last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Container {
    name: Option<String>,
    image: Option<String>,
    command: Words,
    args: Words,
    env: Env,
    restart_policy: Option<String>,
    run_as: RunAs,
}

/// The same name as a constant, if it is a known one, and its mesh's names.
fn known(name: &str) -> Option<(&'static str, &'static InjectedNames)> {
    MeshName::ALL
        .into_iter()
        .map(InjectedNames::of)
        .find_map(|mesh| {
            let names = [Some(mesh.sidecar), Some(mesh.init), mesh.check];
            let known = names.into_iter().flatten().find(|known| *known == name)?;
            Some((known, mesh))
        })
}

impl Container {
    /// `None` if it is none of the known ones.
    fn facts(self) -> Option<ContainerFacts> {
        let (name, mesh) = known(self.name.as_deref()?)?;
        let mut words_bytes = self.command.bytes + self.args.bytes;
        let mut words = [self.command.all, self.args.all].concat();
        if name == mesh.sidecar
            && let Some(flag) = words.iter().position(|word| word.starts_with('-'))
        {
            words.truncate(flag);
            words_bytes = cost(&words);
        }
        words.shrink_to_fit();
        Some(ContainerFacts {
            name,
            image: self.image,
            words,
            env: self.env.all,
            restarts: self.restart_policy.as_deref() == Some("Always"),
            run_as: self.run_as,
            words_bytes,
        })
    }
}

impl Node for Container {
    fn field(&mut self, field: &str) -> Option<&mut dyn Node> {
        let name = self.name.as_deref();
        if field != "name" && name.is_some_and(|name| known(name).is_none()) {
            return None;
        }
        Some(match field {
            "name" => &mut self.name,
            "image" => &mut self.image,
            "command" => &mut self.command,
            "args" => &mut self.args,
            "env" => &mut self.env,
            "restartPolicy" => &mut self.restart_policy,
            "securityContext" => &mut self.run_as,
            _ => return None,
        })
    }
}

/// Words of a command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Words {
    all: Vec<String>,
    bytes: usize,
    item: String,
}

/// What words take.
fn cost(words: &[String]) -> usize {
    words.iter().map(|word| word.len() + OVERHEAD).sum()
}

impl Node for Words {
    fn shape(&self) -> Shape {
        Shape::List
    }

    fn item(&mut self) -> Option<&mut dyn Node> {
        Some(&mut self.item)
    }

    fn end(&mut self, problem: Option<String>) -> Option<String> {
        let word = std::mem::take(&mut self.item);
        self.bytes += word.len() + OVERHEAD;
        if self.bytes <= MAX_POD_BYTES {
            self.all.push(word);
        }
        problem
    }
}

/// Variables of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Env {
    all: BTreeMap<&'static str, String>,
    item: Variable,
}

impl Node for Env {
    fn shape(&self) -> Shape {
        Shape::List
    }

    fn item(&mut self) -> Option<&mut dyn Node> {
        Some(&mut self.item)
    }

    fn end(&mut self, problem: Option<String>) -> Option<String> {
        let Variable { name, value } = std::mem::take(&mut self.item);
        // Of two the last counts, as container runtimes and istio-cni have it, also if its value is not in the manifest.
        if let Some(name) = name.and_then(|name| known_variable(&name)) {
            match value {
                Some(value) => drop(self.all.insert(name, value)),
                None => drop(self.all.remove(name)),
            }
        }
        problem
    }
}

/// A variable that is being read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Variable {
    name: Option<String>,
    value: Option<String>,
}

fields! { Variable {
    "name" => name,
    "value" => value,
} }
