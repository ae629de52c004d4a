//! The reconciler of this node: the decisions of [`sidetrack_reconcile`] on the real kernel, and repairs.

mod outside;

use std::{
    collections::{BTreeSet, HashMap},
    io,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Result;
use sidetrack_common::ids::NetnsCookie;
use sidetrack_policy::{PodRef, mesh::Mesh};
use sidetrack_reconcile::{Core, Enrollment, Processes as _, Sought, repairs::Scope};
use tokio::sync::mpsc;
use tracing::error;

use self::outside::Outside;
pub use self::outside::OutsideProcesses;
use crate::{
    kernel::{Datapath, foreign::Foreign},
    netns::resolv_conf::ResolvConf,
    node::KernelNode,
};

/// How often everything in the kernel is compared with what was written.
const REPAIR_INTERVAL: Duration = Duration::from_secs(2);

/// How often to repair: the pods' links for inbound connections are looked at each time.
pub const LINK_INTERVAL: Duration = Duration::from_millis(200);

/// The agent's only writer of links, and of what decides about connections except for listeners.
#[derive(Debug)]
pub struct Reconciler {
    /// What is decided of each pod.
    pub core: Core<KernelNode>,
    outside: Outside,
    /// What others have attached; and what is wrong besides and belongs to no pod.
    foreign: Foreign,
    /// When everything is looked at again.
    next_look: Option<Instant>,
}

impl Reconciler {
    /// Adopts the rows of an earlier agent. Cookies of namespaces that change are sent on `changed`; give them to
    /// [`Core::namespaces_changed`].
    ///
    /// # Errors
    /// If the kernel's maps cannot be read.
    pub async fn new(
        datapath: Datapath,
        mesh: Mesh,
        changed: mpsc::UnboundedSender<u64>,
    ) -> Result<Self> {
        let mut node = KernelNode::new(datapath, changed);
        node.follow_mesh(&mesh);
        Ok(Self {
            core: Core::new(node, mesh).await?,
            outside: Outside::default(),
            foreign: Foreign::default(),
            next_look: None,
        })
    }

    /// Sets other mesh-wide settings. They take effect with the next [`Core::apply`].
    pub fn set_mesh(&mut self, mesh: Mesh) {
        self.core.node.follow_mesh(&mesh);
        self.core.set_mesh(mesh);
    }

    /// Follows the DNS servers in pods' resolv.conf files. To be called about twice a second.
    pub async fn follow_dns_servers(&mut self) {
        let read = self.core.node.resolvers.read();
        for (cookie, servers) in read {
            self.core.set_dns_servers(cookie, servers).await;
        }
        let pods = self.core.enrollments();
        let following = pods.filter(|(_, it)| it.policy.follows_resolv_conf());
        let pods: BTreeSet<NetnsCookie> = following.map(|(_, it)| it.cookie).collect();
        let due = self.core.node.resolvers.due(pods);
        if due.is_empty() {
            return;
        }
        let enrollments = self.core.enrollments();
        let of_due = enrollments.filter(|(_, it)| due.contains(&it.cookie));
        let sources: Vec<(PodRef, NetnsCookie, ResolvConf)> = of_due
            .map(|(name, it)| (name.clone(), it.cookie, self.resolv_conf(it)))
            .collect();
        for (pod, cookie, source) in sources {
            let holder = &pod.namespace;
            self.core.node.resolvers.start(holder, cookie, source);
        }
    }

    /// Where a pod's resolv.conf is: where it was the last time, as long as that process is there.
    fn resolv_conf(&self, enrollment: &Enrollment<KernelNode>) -> ResolvConf {
        let node = &self.core.node;
        if let Some(source) = node.resolvers.last(enrollment.cookie)
            && source.is_in(enrollment.inode.get())
        {
            return source.clone();
        }
        let known = Some(enrollment.inode);
        let processes = node.processes_in(BTreeSet::new(), None);
        let uid = enrollment.rows.uid();
        let found = uid.and_then(|uid| {
            let sought = Sought {
                uid: &uid,
                own_users: false,
                known,
            };
            processes.netns_of_pod(sought).ok()
        });
        let process = found.map(|it| it.path);
        node.resolv_conf(&enrollment.path, enrollment.inode, process)
    }

    /// Enrolls a pod that waits for its first process, if that is in its cgroup.
    pub async fn enroll_awaited(&mut self, uid: &str, cgroup: PathBuf) {
        let known = HashMap::from([(uid.to_owned(), cgroup)]);
        let node = &self.core.node;
        let processes = node.processes_in(BTreeSet::new(), Some(known));
        self.core.enroll_awaited(uid, processes).await;
    }

    /// Repairs what other programs or people have changed, removes what is out of use, and looks for what is wrong
    /// besides. To be called every [`LINK_INTERVAL`]. Answers whether the hooks are on another cgroup now.
    pub async fn repair(&mut self) -> bool {
        self.follow_sidecars();
        let now = Instant::now();
        if self.next_look.is_some_and(|next| now < next) {
            return self.core.repair(Scope::InboundLinks).await;
        }
        self.next_look = Some(now + REPAIR_INTERVAL);
        let is_moved = self.core.repair(Scope::All).await;
        let problems = self.tidy();
        let mut foreign = self.core.node.datapath.foreign_programs();
        foreign.problems.extend(problems);
        let before = &self.foreign.problems;
        for problem in foreign.problems.iter().filter(|it| !before.contains(it)) {
            error!("{problem}");
        }
        if foreign != self.foreign {
            self.core.mark_changed();
        }
        self.foreign = foreign;
        is_moved
    }

    /// Gives pods what their sidecars need by the way in which they listen now.
    fn follow_sidecars(&mut self) {
        self.core.node.transparency.set_back();
        let changed = match self.core.node.changed_sidecars() {
            Ok(changed) => changed,
            Err(error) => return error!("read how sidecars listen: {error}"),
        };
        if changed.is_empty() {
            return;
        }
        let node = &self.core.node;
        let is_changed = |cookie| changed.contains(&cookie);
        let all = self.core.enrollments().map(|(_, it)| it);
        for it in all.filter(|it| is_changed(it.link.netns().cookie())) {
            it.link.request_reread();
            node.make_transparent(&it.rows, &it.link, &it.policy);
        }
    }

    /// Removes what no pod needs any more; answers what could not be.
    fn tidy(&mut self) -> Vec<String> {
        let counts = self.sweep_counts();
        let recounted = self.core.node.datapath.charges.recount();
        let node = &mut self.core.node;
        node.datapath.close_removed();
        let results = [
            node.datapath.release_callbacks(),
            node.datapath.unload_acceleration(),
            node.datapath.keep_dns(),
            node.departed.sweep(&node.datapath.maps),
            node.stale_destinations.sweep(&node.datapath.maps),
            recounted.map_err(|error| {
                anyhow::Error::from(error).context("correct the counts of records")
            }),
            counts.map_err(|error| {
                anyhow::Error::from(error).context("remove counts of departed pods")
            }),
        ];
        let node = &self.core.node;
        for (_, it) in self.core.enrollments() {
            node.make_transparent(&it.rows, &it.link, &it.policy);
        }
        let problems = results.into_iter().filter_map(Result::err);
        problems.map(|problem| format!("{problem:#}")).collect()
    }

    /// A program that was running when its pod was released has begun the pod's counts anew.
    fn sweep_counts(&self) -> io::Result<()> {
        let Datapath {
            maps,
            removed_counts,
            ..
        } = &self.core.node.datapath;
        let known = self.core.known_cookies();
        let unknown = |netns: &u64| !known.contains(&NetnsCookie::new(*netns));
        // A search that was running then has written the pod's marks.
        for netns in maps.sidecar_bits.keys()?.into_iter().filter(unknown) {
            maps.sidecar_bits.remove(&netns)?;
        }
        for netns in maps.handshakes_by_pod.keys()?.into_iter().filter(unknown) {
            maps.handshakes_by_pod.remove(&netns)?;
        }
        // Sockets outlive their pod, and count until they are closed.
        let records = maps.records_by_pod.rows()?.into_iter();
        for (netns, _) in records.filter(|(netns, count)| *count == 0 && unknown(netns)) {
            maps.records_by_pod.remove(&netns)?;
        }
        let counted = maps.counters_by_pod.keys()?.into_iter();
        let counted: BTreeSet<u64> = counted.chain(maps.overflow.keys()?).collect();
        for netns in counted.into_iter().filter(unknown) {
            maps.remove_counts(netns, removed_counts)?;
        }
        Ok(())
    }

    /// Waits for the next look at processes that are not where the hooks are. Cancel safe.
    pub async fn look_outside(&mut self) -> OutsideProcesses {
        self.outside.look(&self.core).await
    }

    /// Reports those that were there twice.
    pub fn note_outside(&mut self, look: OutsideProcesses) {
        self.outside.note(&mut self.core, look);
    }

    /// What is wrong with a pod that has processes outside the cgroup.
    #[must_use]
    pub fn partial(&self, pod: &PodRef) -> Option<&str> {
        self.outside.partial(pod)
    }

    /// What is wrong and belongs to no pod.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let (own, repairs) = (&self.core.problems, self.core.repair_problems());
        [
            own,
            repairs,
            &self.foreign.problems,
            &self.outside.problems(),
        ]
        .concat()
    }

    /// What people should know although nothing is wrong, as sentences.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        [&self.foreign.notes, self.outside.notes()].concat()
    }
}
