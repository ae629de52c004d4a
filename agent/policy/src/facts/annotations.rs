//! Labels and annotations of a pod.

use std::collections::BTreeMap;

use super::{
    MAX_VALUE_BYTES, bounded,
    read::{AnyText, Node},
};
use crate::{
    gate::OPEN_GATE,
    names::{INJECT, LABEL, ambient, is_of_known_prefix, known_annotation, linkerd},
    text::shortened,
};

/// Labels that select, or set the policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    /// [`LABEL`].
    pub interception: Option<String>,
    /// [`INJECT`].
    pub inject: Option<String>,
    /// `istio.io/dataplane-mode`.
    pub dataplane_mode: Option<String>,
    /// `linkerd.io/control-plane-component`.
    pub linkerd_component: Option<String>,
    other: AnyText,
}

bounded! { Labels { interception, inject, dataplane_mode, linkerd_component; } }

impl Node for Labels {
    fn field(&mut self, name: &str) -> Option<&mut dyn Node> {
        Some(match name {
            LABEL => self.interception.insert(String::new()),
            INJECT => self.inject.insert(String::new()),
            ambient::MODE => self.dataplane_mode.insert(String::new()),
            linkerd::COMPONENT => self.linkerd_component.insert(String::new()),
            _ => &mut self.other,
        })
    }
}

/// Annotations that select or set the policy, and the names of others that look like them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Annotations {
    values: BTreeMap<&'static str, String>,
    unknown: Vec<String>,
    /// [`OPEN_GATE`], which is none of a pod's.
    pub(super) open_gate: Option<String>,
    other: AnyText,
}

impl Annotations {
    /// How many unknown names are kept: a pod may have thousands.
    const MAX_UNKNOWN: usize = 3;

    /// The value of a known annotation.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// Known annotations with their values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let values = self.values.iter();
        values.map(|(name, value)| (*name, value.as_str()))
    }

    /// The first names that look like known ones and are not, in alphabetical order.
    #[must_use]
    pub fn unknown(&self) -> &[String] {
        &self.unknown
    }

    /// About how many bytes they take.
    pub(super) fn bytes(&self) -> usize {
        let all = self.values.values().chain(&self.unknown);
        let all = all.chain(&self.open_gate);
        all.map(String::len).sum()
    }

    /// Drops long values.
    pub(super) fn drop_long(&mut self) {
        self.values
            .retain(|_, value| value.len() <= MAX_VALUE_BYTES);
        self.open_gate = None;
    }

    fn add_unknown(&mut self, name: &str) {
        let name = shortened(name);
        if let Err(at) = self.unknown.binary_search(&name) {
            self.unknown.insert(at, name);
            self.unknown.truncate(Self::MAX_UNKNOWN);
        }
    }
}

impl Node for Annotations {
    fn field(&mut self, name: &str) -> Option<&mut dyn Node> {
        if let Some(known) = known_annotation(name) {
            return Some(self.values.entry(known).or_default());
        }
        if is_of_known_prefix(name) {
            self.add_unknown(name);
        }
        if name == OPEN_GATE {
            return Some(self.open_gate.insert(String::new()));
        }
        Some(&mut self.other)
    }
}
