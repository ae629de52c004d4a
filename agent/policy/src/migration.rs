//! What changes for a pod when sidetrack takes the place of what programs its rules today.

use std::collections::BTreeSet;

use serde::Serialize;
use sidetrack_common::addr::Family;

use crate::{
    arguments,
    dialect::of_image,
    facts::PodFacts,
    inputs::Input,
    mesh::Mesh,
    mesh_name::MeshName,
    policy::{Mode, Policy},
    record::Record,
    rules,
    select::{NamespaceLabels, Wanted, wanted_in},
    sources,
    text::printable,
};

/// What programs a pod's rules today.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Programmer {
    /// Its init container.
    IstioInit,
    /// Something on the node, before its init container `istio-validation` ends: Istio's CNI node agent, or
    /// sidetrack.
    Node,
    /// sidetrack, whose webhook has removed istio-init.
    Sidetrack,
    /// Nothing that the manifest shows.
    Unknown,
    /// Nothing: it has no sidecar.
    Nothing,
}

impl Programmer {
    fn of(pod: &PodFacts) -> Self {
        let is_recorded = Record::of_annotation(pod).is_ok_and(|record| record.is_some());
        match pod.sidecar() {
            None => Self::Nothing,
            Some(_) if pod.istio_init().is_some() => Self::IstioInit,
            Some(_) if is_recorded => Self::Sidetrack,
            Some(_) if pod.spec.init_containers.check(MeshName::Istio).is_some() => Self::Node,
            Some(_) => Self::Unknown,
        }
    }

    /// Its name for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::IstioInit => "istio-init",
            Self::Node => "node",
            Self::Sidetrack => "sidetrack",
            Self::Unknown => "unknown",
            Self::Nothing => "nothing",
        }
    }
}

/// A pod before and after.
#[derive(Clone, Debug)]
pub struct Migration {
    /// What programs its rules today.
    pub today: Programmer,
    /// Its rules today, as far as istio-init's arguments show them.
    pub rules_today: Option<Vec<String>>,
    /// What sidetrack would do with it.
    pub then: Wanted,
    /// Its rules then.
    pub rules_then: Option<Vec<String>>,
    /// What would be different, as sentences.
    pub differences: Vec<String>,
}

impl Migration {
    /// Compares. `labels` are those that the namespace would have.
    #[must_use]
    pub fn of(
        pod: &PodFacts,
        labels: NamespaceLabels<'_>,
        runtime_handler: Option<&str>,
        mesh: &Mesh,
    ) -> Self {
        let today = Programmer::of(pod);
        let then = wanted_in(pod, labels, runtime_handler, mesh);
        let mut differences = Vec::new();
        let policy_today = (today == Programmer::IstioInit)
            .then(|| policy_of_init(pod, &mut differences))
            .flatten();
        let rules_today = policy_today
            .filter(|policy| policy.mode != Mode::None)
            .map(|policy| all_rules(&policy));
        let mut rules_then = None;
        if let Wanted::Enrolled(policy) = &then {
            let rules = all_rules(policy);
            if let Some(today) = &rules_today {
                differences.extend(changed(today, &rules));
            }
            // Which queries are captured is no difference.
            let dns = policy.dns_note();
            let notes = policy.notes().into_iter();
            differences.extend(notes.filter(|note| Some(note) != dns.as_ref()));
            rules_then = Some(rules);
        }
        Self {
            today,
            rules_today,
            then,
            rules_then,
            differences,
        }
    }
}

/// The policy by istio-init's own arguments, environment and image alone.
fn policy_of_init(pod: &PodFacts, differences: &mut Vec<String>) -> Option<Policy> {
    let container = pod.istio_init()?;
    for flag in arguments::unknown(container.words.iter().map(String::as_str)) {
        differences.push(format!(
            "istio-init has flag {}, which sidetrack does not know: what it does is lost",
            printable(flag)
        ));
    }
    // Values that cannot be read are the reason for which the pod is rejected.
    let mut inputs = sources::init_container(pod).ok().flatten()?;
    if let Some(dialect) = container.image.as_deref().and_then(of_image) {
        let origin = "the tag of istio-init's image".to_owned();
        inputs.set(Input::Dialect, &dialect.to_string(), origin);
    }
    Policy::of_inputs(&inputs).ok()
}

/// The rules of both families.
fn all_rules(policy: &Policy) -> Vec<String> {
    let of_family = |(family, command)| {
        let lines = rules::all(policy, family);
        lines
            .into_iter()
            .map(move |line| format!("{command} {}", line.command()))
    };
    [(Family::V4, "iptables"), (Family::V6, "ip6tables")]
        .into_iter()
        .flat_map(of_family)
        .collect()
}

/// Rules that are in one of two lists.
fn changed(today: &[String], then: &[String]) -> Vec<String> {
    let (old, new): (BTreeSet<_>, BTreeSet<_>) = (today.iter().collect(), then.iter().collect());
    let only = |one: &BTreeSet<&String>, other: &BTreeSet<&String>, when: &str| {
        let lines = one.difference(other);
        let lines: Vec<String> = lines
            .map(|line| format!("rule only {when}: {line}"))
            .collect();
        lines
    };
    let mut changed = only(&old, &new, "today");
    changed.extend(only(&new, &old, "then"));
    if changed.is_empty() && today != then {
        changed.push("the order of the rules is another one".to_owned());
    }
    changed
}

#[cfg(test)]
mod tests;
