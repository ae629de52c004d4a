//! From a listing to what is wanted of each pod.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use sidetrack_common::ids::NetnsCookie;
use sidetrack_policy::{
    PodRef, Policy,
    manifest::{Document, NamespaceFacts, NetnsRef},
    select::{NamespaceLabels, Wanted, is_starting, wanted_in},
};
use tracing::error;

use super::Core;
use crate::{
    events::{POLICY_ACCEPTED, POLICY_REJECTED, PREVIOUS_STAYS, RELEASED},
    listing::Listing,
    node::Node,
    policies::GRACE,
    selected::{Read, Selected},
    state::{Desired, Goal, PodState, Record, State},
};

impl<N: Node> Core<N> {
    /// Makes everything agree with a listing.
    pub async fn apply(&mut self, listing: &Listing) {
        self.changed = true;
        let (documents, mut problems) = index(listing);
        problems.extend(
            listing
                .problems
                .iter()
                .map(|problem| format!("{}: {}", problem.origin, problem.message)),
        );
        for problem in problems.iter().filter(|it| !self.problems.contains(it)) {
            error!("{problem}");
        }
        self.problems = problems;

        let gone: Vec<PodRef> = self
            .pods
            .keys()
            .filter(|name| !documents.contains_key(name))
            .cloned()
            .collect();
        for name in gone {
            if listing.running_counts {
                self.mark_unlisted(&name);
            } else {
                self.release(&name, "its manifest is gone").await;
                self.pods.remove(&name);
            }
        }
        for (name, document) in documents {
            self.evaluate(&name, document).await;
        }
        self.retry().await;
        self.listed_all = listing.complete;
        if listing.complete {
            self.running_counts = Some(listing.running_counts);
            self.drop_unlisted(&mut None).await;
            self.sweep_at.get_or_insert(self.node.now() + GRACE);
        }
    }

    /// Reads a pod's manifest. [`Core::converge`] does what follows from it.
    async fn evaluate(&mut self, name: &PodRef, document: &Document) {
        let now = self.node.now();
        let uid = &document.pod.meta.uid;
        let record = self
            .pods
            .entry(name.clone())
            .or_insert_with(|| Record::new(now));
        // Others' changes are no reason to look for a pod's processes again.
        let is_read = |it: &Read| it.is_of(document);
        if record.uid != *uid || !record.read.as_ref().is_some_and(is_read) {
            record.next_try = now;
        }
        let by_uid = matches!(document.netns, Ok(NetnsRef::PodUid(_)));
        if by_uid && record.enrollment().is_some() && record.uid != *uid {
            self.depart(name, "another pod has its name now").await;
        }
        let Some(record) = self.pods.get_mut(name) else {
            return;
        };
        record.origin.clone_from(&document.origin);
        if record.uid != *uid {
            record.started_in = None;
            record.wanted_since = None;
            record.dns_servers = None;
            record.said = None;
        }
        record.uid.clone_from(uid);
        record.is_terminating = document.pod.meta.is_deleted();
        record.unsure = document.namespace != NamespaceFacts::Current;
        record.iptables_init = document.pod.iptables_init();
        match self.selected(name, document) {
            Selected::Enrolled(policy) => match document.netns.clone() {
                Ok(netns) => {
                    let policy = self.with_dns_servers(name, policy);
                    let goal = Goal {
                        netns,
                        policy,
                        starting: is_starting(&document.pod),
                    };
                    self.want(name, goal);
                    self.clear_remark(name);
                }
                Err(reason) => self.reject(name, reason),
            },
            Selected::Rejected(reason) => self.reject(name, reason),
            Selected::Skipped(reason) => {
                let by_namespace = reason.is_by_namespace();
                if by_namespace && document.namespace == NamespaceFacts::Missing && self.has(name) {
                    // The pod goes with its namespace, and the API server has not said so yet.
                    self.mark_unlisted(name);
                    return;
                }
                if let Some(record) = self.pods.get_mut(name) {
                    record.unsure &= by_namespace;
                }
                self.skip(name, reason.to_string()).await;
            }
        }
    }

    /// Whether a pod is enrolled, by this or an earlier agent.
    fn has(&self, name: &PodRef) -> bool {
        let record = self.pods.get(name);
        record.is_some_and(|it| it.enrollment().is_some()) || self.earlier_of(name).is_some()
    }

    /// The pod is to be enrolled. Where that changes nothing, no other event says that it was corrected.
    fn want(&mut self, name: &PodRef, goal: Goal) {
        let now = self.node.now();
        let Some(record) = self.pods.get_mut(name) else {
            return;
        };
        let was_outdated = record.state() == PodState::Outdated;
        let policy = goal.policy.clone();
        let enrollment = record.enrollment_mut();
        let is_enrolled = enrollment.is_some();
        // Where only sentences for people differ, if anything, the kernel keeps what it has.
        let same = enrollment.filter(|it| it.policy.has_rules_of(&policy));
        let before = same.map(|it| std::mem::replace(&mut it.policy, policy.clone()));
        let changes = is_enrolled && before.is_none();
        record.now_wanted(now);
        // It was corrected: the same mistake is news again.
        if matches!(record.desired, Desired::Keep(Some(_))) || was_outdated && !changes {
            record.said = None;
        }
        record.desired = Desired::Enroll(Box::new(goal));
        if was_outdated && !changes {
            let note = "its manifest can be followed again".to_owned();
            self.record_event(name, POLICY_ACCEPTED, note);
        }
        match before {
            Some(before) if before.unknown_annotations == policy.unknown_annotations => {}
            Some(_) if policy.unknown_annotations.is_empty() => {
                let note = "every annotation of it has an effect now".to_owned();
                self.record_event(name, POLICY_ACCEPTED, note);
            }
            Some(_) => self.report_unknown(name, &policy),
            None => {}
        }
    }

    /// What is wanted of a pod. Its annotations and arguments may be long: they are read once.
    fn selected(&mut self, name: &PodRef, document: &Document) -> Selected {
        let known = self.pods.get(name).and_then(|record| record.read.as_ref());
        if let Some(known) = known.filter(|known| known.is_of(document)) {
            return known.selected.clone();
        }
        let labels = NamespaceLabels {
            interception: document.namespace_label.as_deref(),
            dataplane_mode: document.namespace_mode.as_deref(),
        };
        let handler = document.runtime_handler.as_deref();
        let selected = match wanted_in(&document.pod, labels, handler, &self.mesh) {
            Wanted::Enrolled(policy) => Selected::Enrolled(self.shared(*policy)),
            Wanted::Rejected(reason) => Selected::Rejected(reason.to_string()),
            Wanted::Skipped(reason) => Selected::Skipped(reason),
        };
        if let Some(record) = self.pods.get_mut(name) {
            record.read = Some(Read {
                pod: Arc::clone(&document.pod),
                namespace_label: document.namespace_label.clone(),
                namespace_mode: document.namespace_mode.clone(),
                runtime_handler: document.runtime_handler.clone(),
                selected: selected.clone(),
                is_stale: false,
            });
        }
        selected
    }

    /// One copy serves all pods with equal policies.
    fn shared(&self, policy: Policy) -> Arc<Policy> {
        let known = self.pods.values().flat_map(Record::policies);
        let equal = known.into_iter().find(|known| ***known == policy);
        equal.map_or_else(|| Arc::new(policy), Arc::clone)
    }

    /// The same policy with the pod's own DNS servers, if it depends on them.
    pub(super) fn with_dns_servers(&self, name: &PodRef, policy: Arc<Policy>) -> Arc<Policy> {
        if !policy.follows_resolv_conf() {
            return policy;
        }
        let servers = self.pods.get(name).and_then(|it| it.dns_servers.as_deref());
        self.shared(policy.with_dns_servers(servers))
    }

    /// The servers in a pod's resolv.conf were read. If they are others, another policy is wanted.
    pub async fn set_dns_servers(&mut self, cookie: NetnsCookie, servers: Vec<IpAddr>) {
        // Not of a departed pod, whose name may be another one's now.
        let has = |record: &Record<N>| record.enrollment().is_some_and(|it| it.cookie == cookie);
        let mut pods = self.pods.iter_mut();
        let Some((name, record)) = pods.find(|(_, record)| has(record)) else {
            return;
        };
        let name = name.clone();
        if record.dns_servers.as_ref() == Some(&servers) {
            return;
        }
        record.dns_servers = Some(servers);
        self.renew_dns_servers(&name);
        self.mark_changed();
        if self.has_long_lists(&name) {
            self.turn.push(name);
            return;
        }
        self.converge(&name, &mut None).await;
    }

    /// Wants the policy with the servers that are known now.
    pub(super) fn renew_dns_servers(&mut self, name: &PodRef) {
        let record = self.pods.get(name);
        let Some(Desired::Enroll(goal)) = record.map(|record| &record.desired) else {
            return;
        };
        let policy = self.with_dns_servers(name, Arc::clone(&goal.policy));
        let record = self.pods.get_mut(name);
        if let Some(Desired::Enroll(goal)) = record.map(|record| &mut record.desired) {
            goal.policy = policy;
        }
    }

    /// An enrolled pod whose manifest is right again has no remark.
    fn clear_remark(&mut self, name: &PodRef) {
        let settled = self
            .pods
            .get(name)
            .is_some_and(|record| self.is_settled(record));
        if let Some(record) = self.pods.get_mut(name)
            && settled
            && let State::Enrolled(_, remark) = &mut record.state
        {
            *remark = None;
        }
    }

    /// The pod is not to be enrolled.
    async fn skip(&mut self, name: &PodRef, reason: String) {
        let now = self.node.now();
        let uid = self.pods.get(name).and_then(|it| it.uid.clone());
        self.drop_earlier(|it| !it.is_of(name, uid.as_deref()))
            .await;
        let was_enrolled = self.pods.get(name).and_then(Record::enrollment).is_some();
        if was_enrolled {
            self.release(name, &reason).await;
            let note = format!("sidetrack leaves its connections alone now: {reason}");
            self.record_event(name, RELEASED, note);
        }
        if let Some(record) = self.pods.get_mut(name) {
            if was_enrolled {
                // An author may opt it out and in at any rate.
                let _ = record.changes.take(now);
            }
            record.desired = Desired::Skip;
            record.said = None;
            record.wanted_since = None;
            record.state = State::Skipped(reason);
            record.next_try = now;
        }
    }

    /// The manifest cannot be followed. The previous policy stays active, also if an earlier agent
    /// wrote it.
    fn reject(&mut self, name: &PodRef, reason: String) {
        let has_earlier = self.earlier_of(name).is_some();
        let Some(record) = self.pods.get_mut(name) else {
            return;
        };
        let kept = if record.enrollment().is_some() || has_earlier {
            PREVIOUS_STAYS
        } else {
            ""
        };
        record.desired = Desired::Keep(Some(reason.clone()));
        let is_new = record.is_to_be_said(&reason, self.node.now());
        if is_new {
            error!(pod = %name, origin = record.origin, "{reason}{kept}");
        }
        record.settle(PodState::Rejected, has_earlier, Some(reason.clone()));
        if is_new {
            self.record_event(name, POLICY_REJECTED, format!("{reason}{kept}"));
        }
    }
}

/// One document per pod; the others are problems.
fn index(listing: &Listing) -> (BTreeMap<PodRef, &Document>, Vec<String>) {
    let mut documents: BTreeMap<PodRef, &Document> = BTreeMap::new();
    let mut problems = Vec::new();
    for document in &listing.pods {
        let name = document.name();
        match documents.get(&name) {
            Some(first) => problems.push(format!(
                "{}: pod {name} is already in {}; remove one of the two",
                document.origin, first.origin
            )),
            None => {
                documents.insert(name, document);
            }
        }
    }
    (documents, problems)
}
