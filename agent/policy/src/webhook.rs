//! The mutating webhook, for meshes whose injector still adds istio-init. In pods that the agent will
//! intercept, it replaces that container by one without privileges, which waits until redirection
//! works.
//!
//! The arguments of istio-init are kept in an annotation, so the policy of the pod is the same before
//! and after. All other pods stay unchanged, byte for byte. The answer depends only on the request and
//! the [`Settings`].

mod admission;
mod patch;
mod pod;
mod review;
mod update;
mod validation;

pub use self::{
    review::{Malformed, Outcome, ReviewAnswer, answer},
    validation::{PROBE_PORT, VALIDATION},
};
use crate::mesh::Mesh;
pub use crate::names::REPLACED;

/// What an answer depends on in addition to the request.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    /// Which pods the agent enrolls, and defaults of their policies.
    pub mesh: &'a Mesh,
    /// The value of label [`crate::select::LABEL`] on the pod's namespace. A request does not contain
    /// it; the API server selects one of two webhooks by it.
    pub namespace_label: Option<&'a str>,
    /// sidetrack's own image.
    pub image: &'a str,
}
