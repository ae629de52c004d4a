//! Where the values of an Istio pod's policy come from.
//!
//! Reading them is here, validating them in [`crate::policy`]'s parser.

use std::collections::BTreeMap;

use crate::{
    arguments,
    dialect::Dialect,
    error::PolicyError,
    facts::{ContainerFacts, Excess, MAX_POD_BYTES, PodFacts, Quota, RunAs},
    inputs::{Input, Inputs},
    mesh_name::MeshName,
    meshes,
    names::{ANNOTATIONS, LABEL, REMOVED_ISTIO_INIT, VARIABLES, init_variables, known_annotations},
    policy::Policy,
    record::{ISTIO_INIT, Record},
};

/// The inputs that istio-validation's arguments set. The other ones are the annotations again.
const OF_CHECK: [Input; 5] = [
    Input::EnvoyPort,
    Input::InboundCapturePort,
    Input::InboundTunnelPort,
    Input::ProxyUid,
    Input::ProxyGid,
];

/// istio-cni's user and group where the sidecar has none.
const CNI_OWNER: &str = "1337";
/// What istio-cni excludes outbound where nothing else is excluded.
const CNI_EXCLUDED_PORT: &str = "15020";

/// How alike a name and the one that was perhaps meant are, 1 being equal.
const ALIKE: f64 = 0.8;

impl Policy {
    /// The policy of a pod's manifest, with the mesh's defaults and then those of istio-iptables.
    ///
    /// # Errors
    /// Every value that cannot be used.
    pub fn of_pod(pod: &PodFacts, defaults: &Inputs) -> Result<Self, Vec<PolicyError>> {
        if let Some(excess) = pod.excess() {
            return Err(vec![too_large(excess)]);
        }
        let mesh = pod.meshes().next().unwrap_or(MeshName::Istio);
        let mut policy = match mesh {
            MeshName::Istio => Self::of_istio_pod(pod, defaults)?,
            mesh => meshes::policy(pod, mesh)?,
        };
        policy.remarks.extend(other_owner(pod, mesh, &policy));
        Ok(policy)
    }

    /// The policy of a pod in ambient mode.
    ///
    /// # Errors
    /// Every value that cannot be used.
    pub fn of_ambient_pod(pod: &PodFacts) -> Result<Self, Vec<PolicyError>> {
        match pod.excess() {
            Some(excess) => Err(vec![too_large(excess)]),
            None => meshes::policy(pod, MeshName::Ambient),
        }
    }

    /// The inputs, strongest first. With istio-init what it does not set is as istio-iptables has it; without it istio-cni reads
    /// the pod (cni/pkg/plugin of Istio).
    fn of_istio_pod(pod: &PodFacts, defaults: &Inputs) -> Result<Self, Vec<PolicyError>> {
        let mut inputs = Inputs::default();
        let mut errors = Vec::new();
        let mut remarks = Vec::new();
        let init = init_container(pod);
        let is_by_cni = matches!(init, Ok(None));
        match init {
            Ok(Some(init)) => inputs.add(init),
            Ok(None) => {
                inputs.add(run_as(pod));
                match check_arguments(pod) {
                    Ok(arguments) => inputs.add(arguments),
                    Err(error) => errors.push(error),
                }
            }
            Err(error) => errors.push(error),
        }
        inputs.add(annotations(pod));
        inputs.add(sidecar_environment(pod));
        if let Some(dialect) = Dialect::of_pod(pod) {
            let origin = "the tag of the pod's image".to_owned();
            inputs.set(Input::Dialect, &dialect.to_string(), origin);
        }
        inputs.add(defaults.clone());
        if is_by_cni {
            if inputs.get(Input::ProxyUid).is_none() {
                remarks.push(meshes::assumed_user(CNI_OWNER));
            }
            inputs.add(cni_defaults(pod));
        }
        let mut policy = match Self::of_inputs(&inputs) {
            Ok(policy) => policy,
            Err(more) => {
                errors.extend(more);
                return Err(errors);
            }
        };
        if !errors.is_empty() {
            return Err(errors);
        }
        policy.unknown_annotations = unknown_annotations(pod);
        policy.remarks.extend(remarks);
        Ok(policy)
    }
}

/// A sentence if the sidecar runs as a user whose connections the rules do not leave alone.
fn other_owner(pod: &PodFacts, mesh: MeshName, policy: &Policy) -> Option<String> {
    let RunAs { user, group } = pod.run_as(mesh);
    let user = user?;
    let is_excluded = policy.proxy_uids.contains(&user)
        || group.is_some_and(|group| policy.proxy_gids.contains(&group));
    let users: Vec<String> = policy.proxy_uids.iter().map(u32::to_string).collect();
    let users = match users.is_empty() {
        true => "no user".to_owned(),
        false => format!("user {}", users.join(", ")),
    };
    (!is_excluded).then(|| {
        format!(
            "its sidecar runs as user {user}, and the rules leave {users} alone: the sidecar's own connections are captured, too"
        )
    })
}

/// What the sidecar runs as.
fn run_as(pod: &PodFacts) -> Inputs {
    let RunAs { user, group } = pod.run_as(MeshName::Istio);
    let mut inputs = Inputs::default();
    for (input, id, name) in [
        (Input::ProxyUid, user, "runAsUser"),
        (Input::ProxyGid, group, "runAsGroup"),
    ] {
        if let Some(id) = id {
            inputs.set(input, &id.to_string(), format!("{name} of the sidecar"));
        }
    }
    inputs
}

/// Users and ports of istio-validation, the injector's own words for a pod without istio-init.
fn check_arguments(pod: &PodFacts) -> Result<Inputs, PolicyError> {
    let Some(check) = pod.spec.init_containers.check(MeshName::Istio) else {
        return Ok(Inputs::default());
    };
    let words = check.words.iter().map(String::as_str);
    Ok(arguments::parse(words, check.name)?.only(&OF_CHECK))
}

fn cni_defaults(pod: &PodFacts) -> Inputs {
    let mut inputs = Inputs::default();
    let mut set = |input, value: &str| inputs.set(input, value, "istio-cni".to_owned());
    // It cannot know the pod's servers.
    set(Input::CaptureAllDns, "true");
    set(Input::OutboundPortsExclude, CNI_EXCLUDED_PORT);
    if pod.run_as(MeshName::Istio).user.is_some() {
        set(Input::ProxyGid, CNI_OWNER);
    }
    inputs
}

/// The error of a pod whose facts are incomplete.
fn too_large(excess: Excess) -> PolicyError {
    let bound = match excess.quota {
        Quota::Pod => format!("write at most {MAX_POD_BYTES} bytes"),
        Quota::Namespace(most) => {
            format!("the pods of its namespace have the {most} bytes that they may have on a node")
        }
        Quota::Node(most) => {
            format!("the pods of this node have the {most} bytes that they may have")
        }
    };
    PolicyError {
        origin: "the size of its annotations and istio-init".to_owned(),
        value: format!("{} bytes", excess.bytes),
        problem: format!("{bound}: shorten the lists in annotations and in istio-init's arguments"),
    }
}

/// The pod's annotations.
fn annotations(pod: &PodFacts) -> Inputs {
    let mut inputs = Inputs::default();
    for (name, input) in ANNOTATIONS {
        if let Some(value) = pod.meta.annotations.get(name) {
            inputs.set(input, value, format!("annotation {name}"));
        }
    }
    inputs
}

/// Annotations that look like known ones and are not, with the names that were perhaps meant.
fn unknown_annotations(pod: &PodFacts) -> Vec<String> {
    let unknown = pod.meta.annotations.unknown().iter();
    unknown
        .map(|name| {
            if name == LABEL {
                return format!("{name} counts only as a label");
            }
            // A prefix that both have says nothing.
            let prefix = name.find('/').map_or(0, |at| at + 1);
            let alike = |known: &str| match known.strip_prefix(&name[..prefix]) {
                Some(known) => strsim::jaro_winkler(&name[prefix..], known),
                None => strsim::jaro_winkler(name, known),
            };
            let meant = known_annotations()
                .max_by(|one, other| alike(one).total_cmp(&alike(other)))
                .filter(|known| alike(known) > ALIKE);
            match meant {
                Some(meant) => format!("{name} is not known, perhaps {meant} is meant"),
                None => format!("{name} is not known"),
            }
        })
        .collect()
}

/// The arguments and environment of the pod's istio-init container, or of the one that the webhook
/// removed.
pub(crate) fn init_container(pod: &PodFacts) -> Result<Option<Inputs>, PolicyError> {
    if let Some(container) = pod.istio_init() {
        return of_istio_init(container).map(Some);
    }
    let place = format!("the removed istio-init (annotation {})", REMOVED_ISTIO_INIT);
    let Some(record) = Record::of_annotation(pod)? else {
        return Ok(None);
    };
    let words = record.words.iter().map(String::as_str);
    let env = record.env.iter();
    let env = env.map(|(name, value)| (name.as_str(), value.as_str()));
    command_line(words, env, &place).map(Some)
}

/// The arguments and environment of an istio-init container.
fn of_istio_init(container: &ContainerFacts) -> Result<Inputs, PolicyError> {
    let words = container.words.iter().map(String::as_str);
    command_line(words, env(container), ISTIO_INIT)
}

/// The sidecar's environment.
fn sidecar_environment(pod: &PodFacts) -> Inputs {
    let Some(sidecar) = pod.sidecar() else {
        return Inputs::default();
    };
    let value = |name: &str| sidecar.env.get(name).map(String::as_str);
    variables(VARIABLES.iter(), value, sidecar.name)
}

fn env(container: &ContainerFacts) -> impl Iterator<Item = (&str, &str)> {
    let env = container.env.iter();
    env.map(|(name, value)| (*name, value.as_str()))
}

/// The words and variables of an istio-init; `place` is what to call it.
fn command_line<'a>(
    words: impl Iterator<Item = &'a str>,
    env: impl Iterator<Item = (&'a str, &'a str)>,
    place: &str,
) -> Result<Inputs, PolicyError> {
    let mut inputs = arguments::parse(words, place)?;
    let env: BTreeMap<&str, &str> = env.collect();
    inputs.add(variables(
        init_variables(),
        |name| env.get(name).copied(),
        place,
    ));
    Ok(inputs.of_tool())
}

/// Environment variables of a container; of two for an input the first counts.
fn variables<'a>(
    known: impl Iterator<Item = &'static (&'static str, Input)>,
    value: impl Fn(&str) -> Option<&'a str>,
    place: &str,
) -> Inputs {
    let mut inputs = Inputs::default();
    for (name, input) in known {
        if let Some(value) = value(name) {
            let origin = format!("variable {name} of {place}");
            inputs.set(*input, value, origin);
        }
    }
    inputs
}

#[cfg(test)]
mod tests;
