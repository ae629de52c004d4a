//! Shared by the kernel programs and the agent: addresses, map rows, and the functions that decide
//! what happens to a connection.
//!
//! Nothing here does I/O or allocates. Two conversions of addresses are `unsafe`. Everything that goes into a map is `repr(C)`,
//! of fixed size and without padding the compiler could leave uninitialized; sizes are asserted.
//!
//! The decision for one connection, in a pod with Istio's defaults and a default route:
//!
//! ```
//! use sidetrack_common::{
//!     addr::Addr,
//!     decide::{Outbound, Owner, Tables, Verdict, outbound},
//!     pod::{Route, RouteKind},
//!     policy::{InboundMode, List, Policy},
//!     rule::Rule,
//! };
//!
//! /// What the maps hold in the kernel: here no lists, and one route.
//! struct OneRoute(Route);
//!
//! impl Tables for OneRoute {
//!     fn port(&self, _: List, _: u16) -> Option<u32> {
//!         None
//!     }
//!     fn range(&self, _: List, _: Addr) -> Option<u32> {
//!         None
//!     }
//!     fn owner(&self, _: List, _: u32) -> Option<u32> {
//!         None
//!     }
//!     fn route(&self, _: Addr) -> Route {
//!         self.0
//!     }
//!     fn before_sidecar(&self) -> bool {
//!         false
//!     }
//! }
//!
//! let policy = Policy {
//!     outbound_port: 15001,
//!     inbound_port: 15006,
//!     tunnel_port: 15008,
//!     inbound: InboundMode::AllExcept as u8,
//!     outbound_all: 1,
//!     loopback_included: 0,
//!     loopback_v4_prefix: 32,
//!     dialect: 0,
//!     virtual_interfaces: 0,
//!     loopback_v4: [127, 0, 0, 1],
//!     lists: 0,
//!     proxy_uid: 1337,
//!     proxy_gid: 1337,
//!     transparent_mark: 0,
//! };
//! let pod_ip = Addr::v4([10, 0, 0, 2]);
//! let tables = OneRoute(Route {
//!     kind: RouteKind::Unicast as u32,
//!     flags: 0,
//!     ifindex: 2,
//!     source: pod_ip,
//! });
//! let mut connection = Outbound {
//!     owner: Owner { uid: 1000, gid: 1000 },
//!     source: Addr::UNSPECIFIED,
//!     destination: Addr::v4([10, 96, 0, 1]),
//!     port: 80,
//!     mark: 0,
//!     routing_header: false,
//!     captured_family: true,
//! };
//!
//! // The application's connection goes to the sidecar ...
//! let decision = outbound(&policy, &connection, &tables);
//! assert_eq!(decision.rule, Rule::AllOutbound);
//! let (port, source, dialed) = (15001, pod_ip, connection.destination);
//! assert_eq!(decision.verdict, Verdict::Redirect { port, source, dialed });
//!
//! // ... and the sidecar's to its destination.
//! connection.owner = Owner { uid: 1337, gid: 1337 };
//! let decision = outbound(&policy, &connection, &tables);
//! assert_eq!((decision.rule, decision.verdict), (Rule::ProxyUid, Verdict::Untouched));
//! ```

#![cfg_attr(not(test), no_std)]
#![deny(unsafe_code)]

pub mod addr;
pub mod btf;
pub mod conn;
pub mod count;
pub mod decide;
pub mod dns;
pub mod event;
pub mod flow;
pub mod forward;
pub mod ids;
pub mod names;
pub mod pod;
pub mod policy;
pub mod route_rules;
pub mod rule;
pub mod target;
pub mod task;

/// Version of the names, keys, values and numbers of rows of all pinned maps, part of the pin directory's name: an agent
/// never opens maps of another layout. A map that is added is another layout: an agent that does not know it would leave
/// its rows.
pub const LAYOUT_VERSION: u32 = 2;
