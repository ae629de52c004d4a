//! Where a policy's values come from, strongest first:
//!
//! 1. istio-init's arguments and environment, or the webhook's record of them,
//! 2. the pod's annotations,
//! 3. the sidecar's environment,
//! 4. the mesh's defaults.
//!
//! Reading them is here, validating them in [`crate::policy`]'s parser.

use crate::{
    arguments,
    dialect::Dialect,
    error::PolicyError,
    facts::{ContainerFacts, Excess, MAX_KEPT, PodFacts, Share},
    inputs::{Input, Inputs},
    mesh_name::MeshName,
    meshes,
    names::{ANNOTATIONS, REMOVED_ISTIO_INIT, VARIABLES, known_annotations},
    policy::Policy,
    record::{ISTIO_INIT, Record},
};

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
        if let Some(mesh) = pod.meshes().next().filter(|mesh| *mesh != MeshName::Istio) {
            return meshes::policy(pod, mesh);
        }
        Self::of_istio_pod(pod, defaults)
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

    fn of_istio_pod(pod: &PodFacts, defaults: &Inputs) -> Result<Self, Vec<PolicyError>> {
        let mut inputs = Inputs::default();
        let mut errors = Vec::new();
        match init_container(pod) {
            Ok(Some(arguments)) => inputs.add(arguments),
            // As istio-cni has it, which cannot know the pod's servers.
            Ok(None) => inputs.set(
                Input::CaptureAllDns,
                "true",
                "the pod has no istio-init".to_owned(),
            ),
            Err(error) => errors.push(error),
        }
        inputs.add(annotations(pod));
        inputs.add(sidecar_environment(pod));
        if let Some(dialect) = Dialect::of_pod(pod) {
            let origin = "the tag of the pod's image".to_owned();
            inputs.set(Input::Dialect, &dialect.to_string(), origin);
        }
        inputs.add(defaults.clone());
        match Self::of_inputs(&inputs) {
            Ok(policy) if errors.is_empty() => Ok(Self {
                unknown_annotations: unknown_annotations(pod),
                ..policy
            }),
            Ok(_) => Err(errors),
            Err(more) => {
                errors.extend(more);
                Err(errors)
            }
        }
    }
}

/// The error of a pod whose facts are incomplete.
fn too_large(excess: Excess) -> PolicyError {
    let bound = match excess.share {
        Share::Pod => format!("write at most {MAX_KEPT} bytes"),
        Share::Namespace(most) => {
            format!("the pods of its namespace have the {most} bytes that they may have on a node")
        }
        Share::Node(most) => {
            format!("the pods of this node have the {most} bytes that they may have")
        }
    };
    PolicyError {
        origin: "the size of its annotations and istio-init".to_owned(),
        value: format!("{} bytes", excess.kept),
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
            let alike = |known: &str| strsim::jaro_winkler(name, known);
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

/// The sidecar's environment, where the injector repeats mesh-wide settings.
fn sidecar_environment(pod: &PodFacts) -> Inputs {
    let Some(sidecar) = pod.sidecar() else {
        return Inputs::default();
    };
    variables(env(sidecar), sidecar.name)
}

fn env(container: &ContainerFacts) -> impl Iterator<Item = (&str, &str)> {
    let env = container.env.iter();
    env.map(|(name, value)| (*name, value.as_str()))
}

/// The words and variables of a container; `place` is what to call it.
fn command_line<'a>(
    words: impl Iterator<Item = &'a str>,
    env: impl Iterator<Item = (&'a str, &'a str)>,
    place: &str,
) -> Result<Inputs, PolicyError> {
    let mut inputs = arguments::parse(words, place)?;
    inputs.add(variables(env, place));
    Ok(inputs)
}

/// Environment variables of a container.
fn variables<'a>(variables: impl Iterator<Item = (&'a str, &'a str)>, place: &str) -> Inputs {
    let mut inputs = Inputs::default();
    for (name, value) in variables {
        if let Some((_, input)) = VARIABLES.iter().find(|(known, _)| *known == name) {
            let origin = format!("variable {name} of {place}");
            inputs.set(*input, value, origin);
        }
    }
    inputs
}
