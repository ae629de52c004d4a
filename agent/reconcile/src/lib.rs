//! The reconciler's decisions: what is to be done for each pod, and in which order the kernel is
//! written.
//!
//! Nothing here touches the kernel. [`plan`] decides from plain facts, [`Core`] keeps what is known of
//! the pods, and everything that reads or writes the node goes through the trait [`Node`]. The agent
//! implements it with the real kernel, the model test with tables in memory.
//!
//! Invariants, which the model test checks after every write:
//! - a pod's row is written when everything is there that decides, and removed first when the pod leaves;
//! - a policy's rows outlive the last pod row that names it by [`policies::GRACE`];
//! - what is done for one pod writes no row of another.
//!
//! One pod on a node that only writes down what it is asked to do:
//!
//! ```
//! # use std::{collections::BTreeSet, io, net::IpAddr, path::{Path, PathBuf}, pin::pin, task::{Context, Poll, Waker}, time::Instant};
//! # use sidetrack_common::ids::{NetnsCookie, NetnsInode, PolicyId};
//! use sidetrack_policy::{
//!     PodRef,
//!     compiled::CompiledPolicy,
//!     ids::IdMaps,
//!     manifest::parse_pods,
//!     mesh::{Enroll, Mesh},
//! };
//! use sidetrack_reconcile::{
//!     Core, Found, Listing, Node, NodeError, PodState, Processes, Step,
//!     node::{EarlierRows, KnownListeners, Link, Look, Opened, PolicyRows, Sought},
//!     policies::EarlierPolicy,
//! };
//! # use sidetrack_reconcile::{Enrollment, repairs::{Findings, Repair}};
//!
//! /// What was done, in order.
//! #[derive(Debug, Default)]
//! struct Journal(Vec<String>);
//!
//! impl Node for Journal {
//!     type Rows = ();
//!     type Link = Connection;
//!     type Policies = Self;
//!     type Processes = NoProcesses;
//!
//!     fn check(&self, _: &Found) -> Result<NetnsInode, NodeError> {
//!         Ok(NetnsInode::new(7))
//!     }
//!     async fn open(&mut self, found: &Found) -> Result<Opened<Connection>, NodeError> {
//!         let (cookie, inode) = (NetnsCookie::new(42), self.check(found)?);
//!         Ok(Opened { cookie, inode, ids: IdMaps::of_node(), link: Connection })
//!     }
//!     async fn step(
//!         &mut self,
//!         _: NetnsCookie,
//!         _: &mut (),
//!         _: Option<&mut Connection>,
//!         step: &Step<'_, NoProcesses>,
//!     ) -> Result<(), NodeError> {
//!         let step = format!("{step:?}");
//!         self.0.extend(step.split('(').next().map(str::to_owned));
//!         Ok(())
//!     }
//!     // ... and what a node has to report and to remove.
//! #     fn now(&self) -> Instant { Instant::now() }
//! #     fn processes(&self, _: BTreeSet<NetnsInode>) -> NoProcesses { NoProcesses }
//! #     fn inode_at(&self, _: &Path) -> Option<NetnsInode> { Some(NetnsInode::new(7)) }
//! #     fn rows(&self, _: &PodRef, _: Option<&str>, _: &Opened<Connection>, _: Option<()>) -> Result<(), NodeError> { Ok(()) }
//! #     async fn dns_servers(&mut self, _: &PodRef, _: NetnsCookie, _: (&Path, NetnsInode), _: Option<&Path>) -> Option<Vec<IpAddr>> { None }
//! #     fn earlier_rows(&mut self) -> Result<Vec<EarlierRows<()>>, NodeError> { Ok(Vec::new()) }
//! #     fn refresh_program(&mut self, _: NetnsCookie) -> Result<bool, NodeError> { Ok(true) }
//! #     fn listeners(&self) -> KnownListeners { KnownListeners::new() }
//! #     fn policies(&mut self) -> &mut Self { self }
//! #     fn look(&mut self, _: Look<'_, Self>) -> Findings { Findings::default() }
//! #     fn repair(&mut self, _: &Repair, _: Option<&Enrollment<Self>>) -> Result<bool, NodeError> { Ok(false) }
//! }
//!
//! impl PolicyRows for Journal {
//!     fn write_row(&mut self, id: PolicyId, _: &CompiledPolicy) -> io::Result<()> {
//!         self.0.push(format!("WritePolicy {id}"));
//!         Ok(())
//!     }
//!     // ... and its lists, and what removes both.
//! #     fn write_lists(&mut self, _: PolicyId, _: &CompiledPolicy) -> io::Result<()> { Ok(()) }
//! #     fn remove_row(&mut self, _: PolicyId) -> io::Result<()> { Ok(()) }
//! #     fn remove_lists(&mut self, _: PolicyId, _: &CompiledPolicy) -> io::Result<()> { Ok(()) }
//! #     fn highest(&self) -> io::Result<Option<PolicyId>> { Ok(None) }
//! #     fn complete(&self) -> io::Result<Vec<EarlierPolicy>> { Ok(Vec::new()) }
//! #     fn sweep(&mut self, _: &BTreeSet<PolicyId>) -> io::Result<()> { Ok(()) }
//! }
//! # #[derive(Debug)]
//! # struct Connection;
//! # impl Link for Connection {
//! #     fn follow_path(&mut self, _: &Path) {}
//! #     fn notes(&self) -> Vec<String> { Vec::new() }
//! #     fn is_alive(&self) -> bool { true }
//! # }
//! # #[derive(Debug)]
//! # struct NoProcesses;
//! # impl Processes for NoProcesses {
//! #     fn none() -> Self { Self }
//! #     fn any_in(&self, _: NetnsInode) -> bool { false }
//! #     fn path_of(&self, _: NetnsInode) -> Option<PathBuf> { None }
//! #     fn netns_of_pod(&self, _: Sought<'_>) -> Result<Found, NodeError> { Err(NodeError::NotYet(String::new())) }
//! # }
//! # /// Runs what never waits.
//! # fn ready<T>(future: impl Future<Output = T>) -> T {
//! #     match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
//! #         Poll::Ready(output) => output,
//! #         Poll::Pending => panic!("it waits"),
//! #     }
//! # }
//!
//! let text = r#"
//! kind: Pod
//! apiVersion: v1
//! metadata: {name: web, namespace: shop, annotations: {sidetrack.dev/netns: /run/netns/web}}
//! spec: {containers: [{name: app}, {name: istio-proxy}]}
//! "#;
//! let (pods, _) = parse_pods(Path::new("web.yaml"), text).expect("a manifest");
//! let mut core = ready(Core::new(Journal::default(), Mesh::new(Enroll::Injected))).expect("a node");
//! ready(core.apply(&Listing { pods, complete: true, ..Listing::default() }));
//!
//! let (name, web) = core.pods().next().expect("the pod");
//! assert_eq!((name.to_string().as_str(), web.state()), ("shop/web", PodState::Enrolled));
//! // The policy is there before the pod's row names it, and everything else that decides. Last comes a search for
//! // listeners that were opened meanwhile.
//! let steps = ["WritePolicy 1", "ReadNamespace", "CaptureV6", "SetReturnRoute", "WriteNamespace"];
//! assert_eq!(core.node.0[..5], steps);
//! let steps = ["AttachPrograms", "AdoptListeners", "WritePod", "WriteNamespace", "SetReturnRoute"];
//! assert_eq!(core.node.0[5..10], steps);
//! assert_eq!(core.node.0[10..], ["AdoptListeners"]);
//! ```

#![forbid(unsafe_code)]

pub mod allowance;
pub mod cni;
mod core;
pub mod events;
pub mod listing;
pub mod node;
pub mod plan;
pub mod policies;
pub mod repairs;
mod selected;
pub mod state;

pub use self::{
    core::Core,
    events::PodEvent,
    listing::Listing,
    node::{Enrollment, Found, Node, NodeError, Processes, Sought},
    plan::{Phase, Step},
    policies::Policies,
    state::{PodState, Record},
};
