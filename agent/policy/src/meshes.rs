//! Where meshes other than Istio have the settings of a pod, and what these come to. The facts are from the sources of
//! linkerd2-proxy-init 2.4, Kuma 2.14 and 3, and consul-k8s 2.

mod ambient;
mod consul;
mod kuma;
mod linkerd;

use crate::{
    arguments,
    error::PolicyError,
    facts::PodFacts,
    inputs::Sourced,
    mesh_name::MeshName,
    names::{ACCELERATE, BEFORE_SIDECAR, InjectedNames},
    parse::{reader::Settings, values},
    policy::Policy,
    record::Record,
};

/// The policy of a pod that another mesh than Istio has injected, or that is in ambient mode.
///
/// # Errors
/// Every value that cannot be used.
pub(crate) fn policy(pod: &PodFacts, mesh: MeshName) -> Result<Policy, Vec<PolicyError>> {
    let mut settings = Settings::default();
    let policy = match mesh {
        MeshName::Istio => Policy::default(),
        MeshName::Linkerd => linkerd::policy(pod, &mut settings),
        MeshName::Kuma => kuma::policy(pod, &mut settings),
        MeshName::Consul => consul::policy(pod, &mut settings),
        MeshName::Ambient => ambient::policy(pod, &mut settings),
    };
    let annotation = |name: &'static str| settings_annotation(pod, name);
    let acceleration = annotation(ACCELERATE);
    let accelerate = acceleration
        .as_ref()
        .and_then(|found| settings.one(found, values::boolean))
        .unwrap_or(false);
    if let Some(found) = acceleration.filter(|_| accelerate && mesh == MeshName::Ambient) {
        settings.refuse(&found, "it is for pods with a sidecar; remove it");
    }
    if let Some(found) = annotation(BEFORE_SIDECAR) {
        settings.refuse(&found, "it is for sidecars of Istio; remove it");
    }
    match settings.errors.is_empty() {
        true => Ok(Policy {
            accelerate,
            remarks: settings.remarks,
            ..policy
        }),
        false => Err(settings.errors),
    }
}

/// What all of them start from: no list, no port of a tunnel, no group of the proxy's.
fn nothing() -> Policy {
    Policy {
        proxy_gids: Vec::new(),
        ..Policy::default()
    }
}

/// A remark that the manifest does not have the user of the sidecar.
pub(crate) fn assumed_user(user: &str) -> String {
    format!(
        "the user of its sidecar is not in the manifest (securityContext.runAsUser): {user} is assumed"
    )
}

/// An annotation's value.
fn settings_annotation(pod: &PodFacts, name: &'static str) -> Option<Sourced> {
    let value = pod.meta.annotations.get(name)?.to_owned();
    let origin = format!("annotation {name}");
    Some(Sourced { value, origin })
}

/// The words of the mesh's init container, or of the one that the webhook has removed, and what to call it.
fn init_words(
    pod: &PodFacts,
    mesh: MeshName,
    settings: &mut Settings,
) -> Option<(Vec<String>, String)> {
    let name = InjectedNames::of(mesh).init;
    if let Some(container) = pod.init_of(mesh) {
        return Some((container.words.clone(), name.to_owned()));
    }
    match Record::of_annotation(pod) {
        Ok(record) => Some((record?.words, format!("the removed {name}"))),
        Err(error) => {
            settings.errors.push(error);
            None
        }
    }
}

/// The flags of a command line with their values, in order: `--flag value`, `--flag=value`, `-f value`, `-fvalue`, and switches
/// without a value, those of one letter also in one word (pflag). `switches` are the flags that take none unless it is attached.
fn flags(words: &[String], switches: &[&str], place: &str) -> Vec<(String, Sourced)> {
    let mut flags = Vec::new();
    let mut words = words.iter();
    let mut rest: Option<String> = None;
    while let Some(word) = rest.take().or_else(|| words.next().cloned()) {
        if !word.starts_with('-') {
            continue;
        }
        let (flag, attached) = arguments::split(&word);
        let is_switch = switches.contains(&flag);
        let value = match attached {
            Some(letters) if is_switch && !word[flag.len()..].starts_with('=') => {
                rest = Some(format!("-{letters}"));
                "true".to_owned()
            }
            Some(value) => value.to_owned(),
            None if is_switch => "true".to_owned(),
            None => words.next().cloned().unwrap_or_default(),
        };
        let origin = format!("argument {flag} of {place}");
        flags.push((flag.to_owned(), Sourced { value, origin }));
    }
    flags
}

#[cfg(test)]
mod tests;
