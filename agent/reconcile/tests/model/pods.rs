//! Manifests of the model's pods.

use std::{
    path::Path,
    sync::{Arc, LazyLock},
};

use sidetrack_policy::{
    PodRef, Policy,
    manifest::{Document, NetnsRef, parse_pods},
    mesh::Mesh,
    select::{Enroll, Wanted, wanted},
};

/// What a manifest says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    Plain,
    Ports,
    Interface,
    /// With the same rows of a policy as `Interface`, and other interface rows.
    OtherInterface,
    BeforeSidecar,
    Tproxy,
    OptedOut,
    NoSidecar,
    Bad,
    /// With the rules of `Plain`.
    Misspelt,
}

/// All variants; those that are to be enrolled more often.
pub const VARIANTS: [Variant; 12] = [
    Variant::Plain,
    Variant::Plain,
    Variant::Ports,
    Variant::Interface,
    Variant::Interface,
    Variant::OtherInterface,
    Variant::BeforeSidecar,
    Variant::BeforeSidecar,
    Variant::Tproxy,
    Variant::OptedOut,
    Variant::NoSidecar,
    Variant::Bad,
];

impl Variant {
    const fn annotations(self) -> &'static str {
        match self {
            Self::Plain | Self::OptedOut | Self::NoSidecar => "",
            Self::Ports => r#""traffic.sidecar.istio.io/excludeOutboundPorts": "3306""#,
            Self::Interface => r#""traffic.sidecar.istio.io/excludeInterfaces": "net1""#,
            Self::OtherInterface => r#""traffic.sidecar.istio.io/excludeInterfaces": "eth0""#,
            Self::BeforeSidecar => r#""sidetrack.dev/before-sidecar": "passthrough""#,
            Self::Tproxy => r#""sidecar.istio.io/interceptionMode": "TPROXY""#,
            Self::Misspelt => r#""traffic.sidecar.istio.io/excludeOutboundPort": "80""#,
            Self::Bad => r#""sidecar.istio.io/interceptionMode": "OTHER""#,
        }
    }

    fn parse(self, init: &str) -> Document {
        let label = if self == Self::OptedOut {
            "disabled"
        } else {
            "enabled"
        };
        let container = if self == Self::NoSidecar {
            "app"
        } else {
            "istio-proxy"
        };
        let text = format!(
            r#"{{"kind": "Pod", "metadata": {{"name": "p",
                "labels": {{"sidetrack.dev/interception": "{label}"}},
                "annotations": {{{}}}}},
                "spec": {{
                    "containers": [{{"name": "{container}", "securityContext": {{"runAsUser": 1337}}}}],
                    "initContainers": [{init}]
                }},
                "status": {{"phase": "Running"}}}}"#,
            self.annotations()
        );
        let (mut documents, problems) = parse_pods(Path::new("pod.json"), &text).unwrap();
        assert!(problems.is_empty(), "{problems:?}");
        documents.remove(0)
    }

    /// Its manifest with an init container istio-init.
    pub fn with_istio_init(self) -> Document {
        self.parse(r#"{"name": "istio-init"}"#)
    }

    /// The policy, if it is to be enrolled.
    pub fn policy(self) -> Option<&'static Policy> {
        PARSED[self as usize].1.as_ref()
    }

    pub fn is_skipped(self) -> bool {
        matches!(self, Self::OptedOut | Self::NoSidecar)
    }
}

static PARSED: LazyLock<Vec<(Document, Option<Policy>)>> = LazyLock::new(|| {
    let all = [
        Variant::Plain,
        Variant::Ports,
        Variant::Interface,
        Variant::OtherInterface,
        Variant::BeforeSidecar,
        Variant::Tproxy,
        Variant::OptedOut,
        Variant::NoSidecar,
        Variant::Bad,
        Variant::Misspelt,
    ];
    let mesh = Mesh::new(Enroll::Injected);
    all.map(|variant| {
        let document = variant.parse("");
        let policy = match wanted(&document.pod, None, &mesh) {
            Wanted::Enrolled(policy) => Some(*policy),
            Wanted::Skipped(_) | Wanted::Rejected(_) => None,
        };
        let is_wanted = !variant.is_skipped() && variant != Variant::Bad;
        assert_eq!(policy.is_some(), is_wanted, "{variant:?}");
        (document, policy)
    })
    .into()
});

/// A pod as its source has it.
#[derive(Clone, Debug)]
pub struct Pod {
    pub name: PodRef,
    pub uid: String,
    /// Whether its manifest has the UID.
    pub has_uid: bool,
    pub variant: Variant,
    pub pending: bool,
    /// Whether this agent has read it in a listing.
    pub is_listed: bool,
}

impl Pod {
    pub fn netns(&self, api: bool) -> NetnsRef {
        if api {
            return NetnsRef::PodUid(self.uid.clone());
        }
        NetnsRef::Path(format!("/run/netns/{}", self.name.name).into())
    }

    pub fn listed_uid(&self) -> Option<String> {
        self.has_uid.then(|| self.uid.clone())
    }

    pub fn document(&self, api: bool) -> Document {
        let mut document = PARSED[self.variant as usize].0.clone();
        let pod = Arc::make_mut(&mut document.pod);
        pod.meta.name = Some(self.name.name.clone());
        pod.meta.uid = self.listed_uid();
        if self.pending {
            pod.status.phase = Some("Pending".to_owned());
        }
        document.netns = Ok(self.netns(api));
        document
    }
}
