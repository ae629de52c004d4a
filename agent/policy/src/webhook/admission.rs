//! The fields of an AdmissionReview that the webhook reads and writes.
//!
//! These are not kube's types: kube reads the pod together with the request, but a pod that cannot be
//! read must still be admitted, and its response has a patch as a list of numbers instead of base64.

use k8s_openapi::ByteString;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::pod::{self, PodText};
use crate::{facts::PodFacts, text::shortened};

/// An AdmissionReview with its request unread.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Review<'a> {
    #[serde(default)]
    pub(super) api_version: String,
    #[serde(default)]
    pub(super) kind: String,
    #[serde(borrow)]
    pub(super) request: Option<&'a RawValue>,
}

/// An AdmissionRequest with its object unread.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Request<'a> {
    #[serde(default)]
    pub(super) uid: String,
    #[serde(default)]
    pub(super) kind: Kind,
    #[serde(default)]
    pub(super) sub_resource: Option<String>,
    #[serde(default)]
    pub(super) operation: String,
    #[serde(default)]
    pub(super) namespace: Option<String>,
    #[serde(default)]
    pub(super) dry_run: Option<bool>,
    #[serde(borrow)]
    pub(super) object: Option<&'a RawValue>,
    /// The pod before an update.
    #[serde(borrow)]
    pub(super) old_object: Option<&'a RawValue>,
}

/// A GroupVersionKind.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Kind {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) kind: String,
}

/// An AdmissionReview with a response.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Reply<'a> {
    pub(super) api_version: &'a str,
    pub(super) kind: &'static str,
    pub(super) response: Response<'a>,
}

/// An AdmissionResponse.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Response<'a> {
    pub(super) uid: &'a str,
    pub(super) allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) patch: Option<ByteString>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) warnings: Vec<String>,
}

impl Request<'_> {
    /// Whether a pod is updated, rather than created.
    pub(super) fn is_update(&self) -> bool {
        self.operation == "UPDATE"
    }

    /// The pod that is to be created or updated.
    ///
    /// # Errors
    /// If the request is for something else, or the pod cannot be read.
    pub(super) fn pod(&self) -> Result<PodText<'_>, String> {
        let Kind {
            group,
            version,
            kind,
        } = &self.kind;
        if (&**group, &**version, &**kind) != ("", "v1", "Pod") {
            let [group, version, kind] = [group, version, kind].map(|text| shortened(text));
            return Err(format!(
                "this webhook is for Pods (v1) and was called for kind {kind:?}, version {version:?}, group {group:?}; correct the MutatingWebhookConfiguration"
            ));
        }
        if let Some(sub) = self.sub_resource.as_deref().filter(|sub| !sub.is_empty()) {
            return Err(format!(
                "this webhook is for pods and was called for their subresource {:?}; correct the MutatingWebhookConfiguration",
                shortened(sub)
            ));
        }
        if self.operation != "CREATE" && !self.is_update() {
            return Err(format!(
                "this webhook is for operations CREATE and UPDATE and was called for {:?}; correct the MutatingWebhookConfiguration",
                shortened(&self.operation)
            ));
        }
        let text = self.object.map_or("null", RawValue::get);
        let pod = pod::read(text).map_err(|error| {
            let error = shortened(&error.to_string());
            format!("the pod is not changed because it cannot be read: {error:?}")
        })?;
        if pod.name().is_none() && pod.generate_name().is_none() {
            return Err(
                "the pod is not changed because it has neither name nor generateName".to_owned(),
            );
        }
        Ok(pod)
    }

    /// What selection and policy ask of that pod.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn facts(&self) -> Result<PodFacts, String> {
        let text = self.object.map_or("null", RawValue::get);
        serde_json::from_str(text).map_err(|error| shortened(&error.to_string()))
    }

    /// `namespace/name` for the log. The API server has not checked the names yet.
    pub(super) fn name(&self, pod: &PodText<'_>) -> String {
        let namespace = self.namespace.as_deref().or(pod.namespace());
        let name = match pod.name() {
            Some(name) if !name.is_empty() => name.to_owned(),
            _ => format!("{}*", pod.generate_name().unwrap_or_default()),
        };
        let plain = |text: &str| shortened(text).escape_debug().to_string();
        format!("{}/{}", plain(namespace.unwrap_or_default()), plain(&name))
    }
}
