//! AdmissionReview, in and out.

use std::fmt::Display;

use k8s_openapi::ByteString;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    Settings,
    admission::{Reply, Request, Response, Review},
    patch::{Change, change},
    update::{Restored, restore},
};
use crate::text::shortened;

const V1: &str = "admission.k8s.io/v1";
const V1BETA1: &str = "admission.k8s.io/v1beta1";

/// How many objects a request may have. An injected Pod has about two hundred.
const OBJECTS: usize = 20_000;
/// The answer repeats the uid. The API server's has 36 bytes.
const MAX_UID_BYTES: usize = 128;

/// A body that is not an AdmissionReview.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(String);

/// The response to send, and its outcome.
#[derive(Clone, Debug)]
pub struct ReviewAnswer {
    /// An AdmissionReview with the response.
    pub review: Vec<u8>,
    /// The pod as the request has it, `namespace/name`; made for the log.
    pub pod: String,
    /// Whether the pod will not be created anyway.
    pub dry_run: bool,
    /// The result.
    pub outcome: Outcome,
}

/// The result of a request. Every request is admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing to do.
    Unchanged,
    /// istio-init was removed.
    Changed,
    /// A pod that opted in was not changed; why.
    Refused(String),
    /// The webhook was called for something other than a new pod; what to correct.
    Misconfigured(String),
}

/// Answers the body of a request.
///
/// # Errors
/// If it is no AdmissionReview with a request.
pub fn answer(body: &[u8], settings: &Settings<'_>) -> Result<ReviewAnswer, Malformed> {
    let objects = body.iter().filter(|byte| **byte == b'{').count();
    if objects > OBJECTS {
        return Err(Malformed(format!(
            "the body has more than {OBJECTS} opening braces; no pod needs so many"
        )));
    }
    let text = str::from_utf8(body).map_err(|error| malformed(&error))?;
    let review: Review<'_> = object(text)?;
    if review.kind != "AdmissionReview" {
        return Err(Malformed(format!(
            "the body's kind is {:?}; send an AdmissionReview",
            shortened(&review.kind)
        )));
    }
    let mut versions = [V1, V1BETA1].into_iter();
    let Some(version) = versions.find(|version| *version == review.api_version) else {
        return Err(Malformed(format!(
            "the body's apiVersion is {:?}; send {V1} or {V1BETA1}",
            shortened(&review.api_version)
        )));
    };
    let request = review.request.map(|raw| object::<Request<'_>>(raw.get()));
    match request.transpose()? {
        Some(request) if request.uid.len() > MAX_UID_BYTES => Err(Malformed(format!(
            "the request's uid has more than {MAX_UID_BYTES} bytes"
        ))),
        Some(request) if !request.uid.is_empty() => request.answer(version, settings),
        _ => Err(Malformed(
            "the AdmissionReview has no request, or one without uid".to_owned(),
        )),
    }
}

/// Reads an object. serde also accepts a list of the fields' values, which is refused here.
fn object<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Malformed> {
    if !text.trim_ascii_start().starts_with('{') {
        return Err(malformed(&"it is not made of objects"));
    }
    serde_json::from_str(text).map_err(|error| malformed(&error))
}

fn malformed(error: &dyn Display) -> Malformed {
    let error = shortened(&error.to_string());
    Malformed(format!("the body is not an AdmissionReview: {error}"))
}

impl Request<'_> {
    fn answer(&self, version: &str, settings: &Settings<'_>) -> Result<ReviewAnswer, Malformed> {
        let mut patch = None;
        let mut warnings = Vec::new();
        let mut name = String::new();
        let outcome = match self.pod() {
            Err(problem) => Outcome::Misconfigured(problem),
            Ok(pod) if self.is_update() => {
                name = self.name(&pod);
                let old = self.old_object.map_or("null", RawValue::get);
                match restore(old, &pod) {
                    Restored::Unchanged => Outcome::Unchanged,
                    Restored::Refused(reason) => Outcome::Refused(reason),
                    Restored::Patch(operations) => {
                        patch = Some(operations);
                        Outcome::Changed
                    }
                }
            }
            Ok(pod) => {
                name = self.name(&pod);
                let change = match self.facts() {
                    Ok(facts) => change(&pod, &facts, settings),
                    Err(problem) => Change::Refused(problem),
                };
                match change {
                    Change::None => Outcome::Unchanged,
                    Change::Refused(reason) => Outcome::Refused(reason),
                    Change::Patch(operations, lost) => {
                        warnings.extend(lost);
                        patch = Some(json(&operations)?);
                        Outcome::Changed
                    }
                }
            }
        };
        match &outcome {
            Outcome::Unchanged | Outcome::Changed => {}
            Outcome::Refused(reason) => warnings.push(format!("init container stays: {reason}")),
            Outcome::Misconfigured(problem) => warnings.push(problem.clone()),
        }
        if version != V1 {
            warnings.clear();
        }
        let reply = Reply {
            api_version: version,
            kind: "AdmissionReview",
            response: Response {
                uid: &self.uid,
                allowed: true,
                patch_type: patch.is_some().then_some("JSONPatch"),
                patch: patch.map(ByteString),
                // The API server shows 256 bytes of each.
                warnings: warnings
                    .into_iter()
                    .map(|text| shortened(&format!("sidetrack: {text}")))
                    .collect(),
            },
        };
        Ok(ReviewAnswer {
            review: json(&reply)?,
            pod: name,
            dry_run: self.dry_run.unwrap_or_default(),
            outcome,
        })
    }
}

fn json(value: &impl Serialize) -> Result<Vec<u8>, Malformed> {
    serde_json::to_vec(value).map_err(|error| Malformed(error.to_string()))
}

#[cfg(test)]
mod tests;
