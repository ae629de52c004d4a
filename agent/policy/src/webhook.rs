//! The mutating webhook, for meshes whose injector still adds istio-init: takes that container out of
//! the pods that the agent will intercept and puts one without privileges in its place, which waits
//! until redirection works.
//!
//! Nothing is lost by it: what the container said stays in an annotation, and the policy of the pod is
//! the same before and after. Every other pod is left alone, byte for byte. The answer depends on
//! nothing but the request and the [`Settings`].

mod admission;
mod patch;
mod review;
mod validation;

pub use self::{
    review::{Answer, Malformed, Outcome, answer},
    validation::{PROBE_PORT, VALIDATION},
};
use crate::mesh::Mesh;

/// What an answer depends on beside the request.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    /// Which pods the agent takes, and defaults of their policies.
    pub mesh: &'a Mesh,
    /// What label [`crate::select::LABEL`] on the pod's namespace says. A request does not tell, but
    /// which of two webhooks the API server calls may depend on it.
    pub namespace_label: Option<&'a str>,
    /// sidetrack's own image.
    pub image: &'a str,
}
