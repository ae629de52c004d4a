//! What a pod's manifest means for its connections: which pods are enrolled, by which policy, and that
//! policy as iptables rules.
//!
//! Everything here is pure: no kernel, no network, no async. It builds and its tests run without root
//! and without the kernel programs.
//!
//! From a pod's manifest to the decision for one connection:
//!
//! ```
//! use std::path::Path;
//!
//! use sidetrack_common::{
//!     addr::{Addr, Family},
//!     decide::{Outbound, Owner, Verdict, outbound},
//!     rule::Rule,
//! };
//! use sidetrack_policy::{
//!     manifest::parse_pods,
//!     mesh::{Enroll, Mesh},
//!     rules::{KnownRoutes, ListTables, line_of},
//!     select::{Wanted, wanted},
//! };
//!
//! let text = r#"
//! apiVersion: v1
//! kind: Pod
//! metadata:
//!   name: web
//!   namespace: shop
//!   annotations:
//!     traffic.sidecar.istio.io/excludeOutboundPorts: "3306,5432"
//! spec:
//!   containers: [{name: app}, {name: istio-proxy}]
//! "#;
//!
//! // The pod is selected, and its annotation becomes a list of the policy.
//! let (documents, problems) = parse_pods(Path::new("web.yaml"), text)?;
//! assert!(problems.is_empty());
//! let Wanted::Enrolled(policy) = wanted(&documents[0].pod, None, &Mesh::new(Enroll::Injected)) else {
//!     panic!("it is not enrolled");
//! };
//! assert_eq!(policy.excluded_outbound_ports, [3306, 5432]);
//!
//! // The application connects to a database outside.
//! let connection = Outbound {
//!     owner: Owner { uid: 1000, gid: 1000 },
//!     source: Addr::UNSPECIFIED,
//!     destination: Addr::v4([10, 96, 0, 1]),
//!     port: 5432,
//!     mark: 0,
//!     routing_header: false,
//!     captured_family: true,
//! };
//! let routes = KnownRoutes { own: vec!["10.0.0.2".parse()?] };
//! let tables = ListTables { policy: &policy, routes, before_sidecar: false };
//! let decision = outbound(&policy.compile().row(), &connection, &tables);
//! assert_eq!((decision.rule, decision.verdict), (Rule::OutPortExcluded, Verdict::Untouched));
//!
//! // Which of istio-iptables' rules that is: the one of the second port.
//! let line = line_of(&policy, Family::V4, &decision).expect("a rule");
//! assert_eq!(line.command(), "-A ISTIO_OUTPUT -p tcp -m tcp --dport 5432 -j RETURN");
//! # Ok::<(), anyhow::Error>(())
//! ```

#![forbid(unsafe_code)]

mod arguments;
pub mod compiled;
pub mod dialect;
pub mod error;
pub mod exclusions;
pub mod facts;
#[cfg(test)]
mod fixture;
pub mod gate;
pub mod ids;
pub mod inputs;
pub mod interfaces;
pub mod manifest;
pub mod mesh;
mod mesh_name;
mod meshes;
pub mod migration;
pub mod names;
mod parse;
pub mod pod_ref;
pub mod policy;
pub mod reader;
pub mod record;
pub mod rules;
pub mod select;
mod sources;
pub mod text;
pub mod webhook;

pub use self::{
    dialect::Dialect,
    error::PolicyError,
    exclusions::{Exclusions, OwnerExclusion, Protocol, Span, spans},
    inputs::{Input, Inputs},
    pod_ref::PodRef,
    policy::{InboundPorts, Mode, OutboundRanges, Policy, ReturnRoute},
};
