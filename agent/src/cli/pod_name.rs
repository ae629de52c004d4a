//! Pods as people name them: NAMESPACE/POD, POD with `-n NAMESPACE`, or POD alone.

use std::{fmt, str::FromStr};

use anyhow::{Result, bail};
use clap::Args;
use sidetrack_policy::pod_ref::{LONGEST_NAME, LONGEST_NAMESPACE, is_name};

/// How many names an error lists.
const LISTED: usize = 8;
/// How many names an error suggests.
const SUGGESTED: usize = 3;
/// How alike a name and a suggestion are at least, 1 being equal.
const ALIKE: f64 = 0.8;

/// `-n`, of every command that names a pod.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct NamespaceFlag {
    /// The pod's Kubernetes namespace, instead of NAMESPACE/POD
    #[arg(short, long, value_name = "NAMESPACE", global = true, value_parser = namespace)]
    namespace: Option<String>,
}

/// A pod's name, perhaps without its namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodName {
    namespace: Option<String>,
    name: String,
}

/// A name that a namespace can have.
pub(super) fn namespace(text: &str) -> Result<String, String> {
    if is_name(text, LONGEST_NAMESPACE) {
        Ok(text.to_owned())
    } else {
        Err("write a namespace as `kubectl get namespaces` shows it".to_owned())
    }
}

impl FromStr for PodName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (own, name) = match text.split_once('/') {
            Some((own, name)) => (Some(namespace(own)?), name),
            None => (None, text),
        };
        if !is_name(name, LONGEST_NAME) {
            return Err("write POD or NAMESPACE/POD, as `sidetrack pods` shows them".to_owned());
        }
        Ok(Self {
            namespace: own,
            name: name.to_owned(),
        })
    }
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

impl From<Option<String>> for NamespaceFlag {
    fn from(namespace: Option<String>) -> Self {
        Self { namespace }
    }
}

impl NamespaceFlag {
    /// Whether it was given.
    pub(super) fn is_given(&self) -> bool {
        self.namespace.is_some()
    }

    /// Whether pods of a namespace are meant.
    pub(super) fn has(&self, namespace: &str) -> bool {
        self.namespace.as_ref().is_none_or(|own| own == namespace)
    }

    /// The name with the namespace of the flag. Ends the process, with the exit code of wrong usage, if both
    /// name one and they differ.
    pub(super) fn complete(&self, pod: &PodName) -> PodName {
        let Some(given) = &self.namespace else {
            return pod.clone();
        };
        match &pod.namespace {
            Some(own) if own != given => super::usage(&format!(
                "pod {pod} is not in namespace {given}; write one of both namespaces"
            )),
            _ => PodName {
                namespace: Some(given.clone()),
                name: pod.name.clone(),
            },
        }
    }
}

impl PodName {
    /// Whether it names the namespace as well.
    pub(super) fn has_namespace(&self) -> bool {
        self.namespace.is_some()
    }

    /// Whether a known pod, `namespace/name`, has this name.
    fn is(&self, full_name: &str) -> bool {
        let (namespace, name) = full_name.split_once('/').unwrap_or(("", full_name));
        name == self.name && self.namespace.as_deref().is_none_or(|own| own == namespace)
    }

    /// The one of the known pods, `namespace/name`, that has this name.
    ///
    /// # Errors
    /// If none has, with the names that were perhaps meant; or if pods of several namespaces have.
    pub(super) fn find<'a>(&self, known: &'a [String]) -> Result<&'a String> {
        let mut found: Vec<&String> = known.iter().filter(|name| self.is(name)).collect();
        found.dedup();
        match found.as_slice() {
            [one] => Ok(one),
            [] => bail!("no pod {self} is known{}", self.suggestion(known)),
            several => bail!(
                "{} pods are named {self}: {}; write NAMESPACE/POD or pass -n NAMESPACE",
                several.len(),
                listed(several)
            ),
        }
    }

    /// The known names that are most alike, as the end of a sentence.
    fn suggestion(&self, known: &[String]) -> String {
        // By name first: the namespace alone makes no pod alike.
        let alike = |known: &str| {
            let (namespace, name) = known.split_once('/').unwrap_or(("", known));
            let own = self.namespace.as_deref().unwrap_or(namespace);
            (
                strsim::jaro_winkler(&self.name, name),
                strsim::jaro_winkler(own, namespace),
            )
        };
        let mut near: Vec<((f64, f64), &str)> = known
            .iter()
            .map(|known| (alike(known), known.as_str()))
            .filter(|((by_name, _), _)| *by_name > ALIKE)
            .collect();
        near.sort_by(|(one, _), (other, _)| {
            let by_name = other.0.total_cmp(&one.0);
            by_name.then(other.1.total_cmp(&one.1))
        });
        let names: Vec<&str> = near.iter().map(|(_, name)| *name).take(SUGGESTED).collect();
        match (names.is_empty(), known.is_empty()) {
            (false, _) => format!("; did you mean {}?", names.join(" or ")),
            (true, false) => format!("; there are {}", listed(known)),
            (true, true) => "; there is none".to_owned(),
        }
    }
}

/// Some of the names, and how many there are besides.
pub(super) fn listed(names: &[impl AsRef<str>]) -> String {
    let shown: Vec<&str> = names.iter().take(LISTED).map(AsRef::as_ref).collect();
    let more = names.len() - shown.len();
    let shown = shown.join(", ");
    if more == 0 {
        shown
    } else {
        format!("{shown} and {more} more")
    }
}

#[cfg(test)]
mod tests;
