//! Enrolls one pod: its namespace is opened, its rows are written, what an earlier agent had of it is
//! replaced.

use sidetrack_common::ids::{NetnsCookie, NetnsInode};
use sidetrack_policy::{PodRef, manifest::NetnsRef};
use tracing::{info, warn};

use super::{
    Core,
    converge::{log_missed, run},
    held::Held,
};
use crate::{
    events::ENROLLED,
    node::{EnrollError, Enrollment, Found, Link as _, Node, NodeError, Opened, Processes as _},
    plan::{self, Change},
    state::{Goal, ListenerSearch, PodState, Record, State},
};

impl<N: Node> Core<N> {
    /// Enrolls a pod where it was found.
    pub(super) async fn enroll(
        &mut self,
        name: &PodRef,
        goal: &Goal,
        found: &Result<Found, NodeError>,
        processes: &N::Processes,
    ) -> Result<(), EnrollError> {
        let found = found.as_ref().map_err(Clone::clone)?;
        let fresh = self.sandboxes.take_fresh(&goal.netns);
        let Some(record) = self.pods.get(name) else {
            return Ok(());
        };
        let uid = record.uid.clone();
        let was_earlier = self.earlier_of(name).is_some();
        let started_in = record.started_in;
        let opened = self.node.open(found).await?;
        let starting = match started_in {
            None => goal.starting || fresh && !was_earlier,
            // Once in a pod's life, but for a sandbox that failed before a container started.
            Some(before) => goal.starting && before != opened.cookie,
        };
        if let Some(other) = self.owner(opened.cookie).filter(|owner| owner != name) {
            return Err(EnrollError::NamespaceInUse {
                path: found.path.clone(),
                other,
            });
        }
        let mut goal = Goal::clone(goal);
        if goal.policy.follows_resolv_conf() {
            let process = uid.as_deref().and_then(|uid| {
                let inode = Some(opened.inode);
                let record = self.pods.get(name)?;
                processes.netns_of_pod(record.sought(uid, inode)).ok()
            });
            let process = process.as_ref().map(|it| &*it.path);
            let cookie = opened.cookie;
            let netns = (&*found.path, opened.inode);
            let servers = self.node.dns_servers(name, cookie, netns, process).await;
            if let Some(record) = self.pods.get_mut(name) {
                record.dns_servers = servers;
            }
            self.renew_dns_servers(name);
            goal.policy = self.with_dns_servers(name, goal.policy);
        }
        let goal = &goal;
        let id = uid.as_deref();
        let writing = self.write_enrollment(name, id, goal, found, opened, starting, processes);
        let enrollment = writing.await?;
        info!(
            pod = %name,
            cookie = %enrollment.cookie,
            policy = %enrollment.policy_id,
            "enrolled"
        );
        if let Some(doubt) = &enrollment.doubt {
            warn!(pod = %name, "{doubt}");
        }
        let dialect = goal.policy.dialect;
        let mesh = dialect.mesh();
        let note = format!("its connections are intercepted by {mesh}'s rules, dialect {dialect}");
        let notes: Vec<String> = [note].into_iter().chain(enrollment.notes()).collect();
        let now = self.node.now();
        if let Some(record) = self.pods.get_mut(name) {
            record.started_in = Some(enrollment.cookie);
            // Its next sandbox is looked for as often as that of a new pod.
            record.trying_since = None;
            record.state = State::Enrolled(Box::new(enrollment), None);
            record.search = ListenerSearch::new(now);
            // A pod of an earlier agent was intercepted all along.
            let since = record.wanted_since.take().filter(|_| !was_earlier);
            let waited = since.map(|since| now.saturating_duration_since(since));
            self.enrollment_waits.extend(waited);
        }
        // An earlier agent may have enrolled it in another namespace. That one is released once
        // nothing runs there.
        if self.earlier_of(name).is_some() {
            let processes = self.processes();
            let uid = uid.as_deref();
            self.drop_earlier(|it| !it.is_of(name, uid) || processes.any_in(it.inode))
                .await;
        }
        // For a pod that an earlier agent had enrolled nothing has changed.
        if !was_earlier {
            self.record_event(name, ENROLLED, notes.join("; "));
            self.report_unknown(name, &goal.policy);
        }
        Ok(())
    }

    /// The pod that has a namespace, as far as it is to be intercepted.
    fn owner(&self, cookie: NetnsCookie) -> Option<PodRef> {
        let own = self
            .enrollments()
            .find(|(_, enrollment)| enrollment.cookie == cookie);
        if let Some((name, _)) = own {
            return Some(name.clone());
        }
        let earlier = self.held.earlier_at(cookie)?;
        let name = earlier.pod.as_ref()?;
        let record = self.pods.get(name)?;
        let is_owner = record.state() != PodState::Skipped
            && record.enrollment().is_none()
            && !self.leaves(record, earlier.inode);
        is_owner.then(|| name.clone())
    }

    /// Whether a pod is to be enrolled in another namespace than an earlier agent has found it in.
    fn leaves(&self, record: &Record<N>, earlier: NetnsInode) -> bool {
        let Some(NetnsRef::Path(path)) = record.goal().map(|goal| goal.netns) else {
            return false;
        };
        let wanted = self.node.inode_at(&path);
        wanted.is_some_and(|wanted| wanted != earlier)
    }

    #[expect(clippy::too_many_arguments, reason = "each is a part of one request")]
    async fn write_enrollment(
        &mut self,
        name: &PodRef,
        uid: Option<&str>,
        goal: &Goal,
        found: &Found,
        opened: Opened<N::Link>,
        starting: bool,
        processes: &N::Processes,
    ) -> Result<Enrollment<N>, EnrollError> {
        let compiled = goal.policy.on_node(&opened.ids)?.compile();
        let cookie = opened.cookie;
        // Rows that are in the kernel already are replaced, not doubled.
        let present = self.held.rows(cookie).cloned();
        let rows = self.node.rows(name, uid, &opened, present)?;
        let (policy_id, compiled) = self.acquire(name, compiled)?;
        let mut held = self.held.take(cookie);
        let mut link = opened.link;
        if let Some(Held::Departing(_, departed)) = &mut held {
            // It has the programs that are attached, and removes those that the policy does not want.
            std::mem::swap(&mut link, &mut departed.link);
            link.follow_path(&found.path);
        }
        let mut enrollment = Enrollment {
            netns: goal.netns.clone(),
            path: found.path.clone(),
            inode: opened.inode,
            cookie,
            policy: goal.policy.clone(),
            compiled,
            policy_id,
            ids: opened.ids,
            doubt: found.doubt.clone(),
            stale: false,
            refresh_at: None,
            rows,
            link,
        };
        let starting = starting && !matches!(held, Some(Held::Earlier(_)));
        let change = Change::Enroll {
            passes: starting && goal.policy.before_sidecar,
        };
        let steps = plan::write(change, &goal.policy, policy_id, processes);
        match run(&mut self.node, &mut enrollment, steps).await {
            Ok(missed) => {
                enrollment.stale = log_missed(name, missed);
                self.forget_held(held);
                Ok(enrollment)
            }
            Err(problem) => {
                self.restore_held(held, enrollment).await;
                Err(problem.into())
            }
        }
    }
}
