//! An object of a manifest: a Pod, a workload with a pod template, a list of objects, or another one of which only the
//! kind is kept.

use serde::{Deserialize, Deserializer};

use super::MAX_PODS;
use crate::facts::{
    MAX_POD_BYTES, Meta, PodFacts, Spec, Status,
    read::{Node, Shape, read_into},
};

/// How many bytes the pods of one list may take. A list that repeats long values by YAML's aliases may need far more
/// than its file has.
const MAX_LIST_BYTES: usize = 8 * MAX_POD_BYTES;

/// An object.
#[derive(Debug, Default)]
pub(super) struct Object {
    /// `kind`.
    pub(super) kind: Option<String>,
    meta: Meta,
    spec: WorkloadSpec,
    status: Status,
    /// The template of a PodTemplate.
    template: Option<PodFacts>,
    /// The items of a list.
    pub(super) items: Option<Items>,
    /// The first value that has the wrong type.
    problem: Option<String>,
}

/// `spec` of a pod or of a workload.
#[derive(Debug, Default)]
struct WorkloadSpec {
    pod: Spec,
    template: Option<PodFacts>,
    job: JobTemplate,
}

/// `spec.jobTemplate` of a CronJob.
#[derive(Debug, Default)]
struct JobTemplate {
    spec: JobSpec,
}

/// `spec.jobTemplate.spec`.
#[derive(Debug, Default)]
struct JobSpec {
    template: Option<PodFacts>,
}

/// Objects of a list.
#[derive(Debug, Default)]
pub(super) struct Items {
    pub(super) all: Vec<Object>,
    /// How many there are.
    pub(super) count: usize,
    bytes: usize,
    item: Option<Box<Object>>,
}

impl Object {
    /// The object as a pod.
    ///
    /// # Errors
    /// Which value has the wrong type.
    pub(super) fn pod(self) -> Result<PodFacts, String> {
        self.problem.map_or(Ok(()), Err)?;
        let mut pod = PodFacts::default();
        (pod.meta, pod.spec, pod.status) = (self.meta, self.spec.pod, self.status);
        Ok(pod.bounded())
    }

    /// The pod template of a workload of this kind, named after it; `None` if it has none.
    ///
    /// # Errors
    /// Which value has the wrong type.
    pub(super) fn template(self, kind: &str) -> Option<Result<PodFacts, String>> {
        let mut pod = match kind {
            "CronJob" => self.spec.job.spec.template,
            "PodTemplate" => self.template,
            // Deployment, DaemonSet, StatefulSet, ReplicaSet, Job, and workloads of other projects.
            _ => self.spec.template,
        }?;
        if let Some(problem) = self.problem {
            return Some(Err(problem));
        }
        let Meta {
            name,
            generate_name,
            namespace,
            ..
        } = self.meta;
        pod.meta.name = name.or(pod.meta.name);
        pod.meta.generate_name = generate_name.or(pod.meta.generate_name);
        pod.meta.namespace = namespace.or(pod.meta.namespace);
        Some(Ok(pod.bounded()))
    }

    fn bytes(&self) -> usize {
        let templates = [
            &self.template,
            &self.spec.template,
            &self.spec.job.spec.template,
        ];
        let templates = templates.into_iter().flatten().map(PodFacts::bytes);
        let own = self.meta.bytes() + self.spec.pod.bytes() + self.status.bytes();
        own + templates.sum::<usize>()
    }
}

impl Items {
    /// Whether the items take more than [`MAX_LIST_BYTES`]. Further ones are missing then.
    pub(super) fn are_too_large(&self) -> bool {
        self.bytes > MAX_LIST_BYTES
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut object = Self::default();
        object.problem = read_into(&mut object, deserializer)?;
        Ok(object)
    }
}

impl Node for Object {
    fn field(&mut self, name: &str) -> Option<&mut dyn Node> {
        Some(match name {
            "kind" => &mut self.kind,
            "metadata" => &mut self.meta,
            "spec" => &mut self.spec,
            "status" => &mut self.status,
            "template" => self.template.get_or_insert_default(),
            "items" => self.items.get_or_insert_default(),
            _ => return None,
        })
    }
}

impl Node for WorkloadSpec {
    fn field(&mut self, name: &str) -> Option<&mut dyn Node> {
        match name {
            "template" => Some(self.template.get_or_insert_default()),
            "jobTemplate" => Some(&mut self.job),
            _ => self.pod.field(name),
        }
    }
}

impl Node for JobTemplate {
    fn field(&mut self, name: &str) -> Option<&mut dyn Node> {
        (name == "spec").then_some(&mut self.spec)
    }
}

impl Node for JobSpec {
    fn field(&mut self, name: &str) -> Option<&mut dyn Node> {
        (name == "template").then(|| self.template.get_or_insert_default() as &mut dyn Node)
    }
}

impl Node for Items {
    fn shape(&self) -> Shape {
        Shape::List
    }

    fn item(&mut self) -> Option<&mut dyn Node> {
        let is_full = self.count >= MAX_PODS || self.are_too_large();
        (!is_full).then(|| self.item.insert(Box::default()).as_mut() as &mut dyn Node)
    }

    fn end(&mut self, problem: Option<String>) -> Option<String> {
        self.count += 1;
        if let Some(mut item) = self.item.take() {
            item.problem = problem;
            self.bytes += item.bytes();
            self.all.push(*item);
        }
        None
    }
}
