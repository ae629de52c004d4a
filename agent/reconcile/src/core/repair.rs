//! Looks at what is in the kernel, and has repaired what is not as it should be.

use std::collections::BTreeMap;

use sidetrack_policy::PodRef;
use tracing::{error, warn};

use super::{Core, converge, enrollments};
use crate::{
    node::{Look, Node, NodeError},
    repairs::{
        Backoff, CgroupState, Findings, LinkId, LinkLoss, Part, Repair, RepairKind, Scope, decide,
    },
};

/// What was repaired so far, and what is wrong.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    backoff: Backoff,
    counts: BTreeMap<RepairKind, u64>,
    /// What was repaired and not reported yet, each with its pod, if it is a pod's.
    unreported: Vec<(Option<PodRef>, String)>,
    /// What the last look at everything could not see.
    not_seen: Vec<String>,
    /// Everything that is wrong, as sentences.
    problems: Vec<String>,
}

impl<N: Node> Core<N> {
    /// Looks at the kernel, and repairs what other programs or people have changed. Answers whether the hooks are on
    /// another cgroup now.
    pub async fn repair(&mut self, scope: Scope) -> bool {
        let mut findings = match scope {
            Scope::InboundLinks => self.node.look(Look::InboundLinks),
            Scope::All => self.look(),
        };
        if scope == Scope::All {
            self.note_not_seen(&mut findings);
        } else if findings.links.is_empty() && self.repairs.backoff.is_empty() {
            return false;
        }
        let enrolled = self.enrollments().map(|(_, it)| it.cookie).collect();
        let earlier = self.held.earlier().map(|it| it.cookie);
        let removals = self.held.removals().map(|(cookie, _)| cookie);
        let known = earlier.chain(removals).collect();
        let not_asked = std::mem::take(&mut findings.not_asked);
        let repairs = decide(findings, &enrolled, &known);
        let damaged = repairs.iter().map(Repair::part).collect();
        if scope == Scope::All {
            self.repairs.backoff.retain(&damaged, &not_asked);
        }
        let mut is_moved = false;
        for repair in repairs {
            let due = self.repairs.backoff.is_due(repair.part(), self.node.now());
            is_moved |= due && self.carry_out(&repair).await;
        }
        self.note_problems();
        is_moved
    }

    /// How often was repaired, by kind.
    #[must_use]
    pub fn repair_counts(&self) -> BTreeMap<&'static str, u64> {
        let count = |kind: RepairKind| self.repairs.counts.get(&kind).copied();
        let all = RepairKind::ALL.into_iter();
        all.map(|kind| (kind.name(), count(kind).unwrap_or_default()))
            .collect()
    }

    /// Takes what was repaired since the last call, as sentences, each with its pod, if it is a pod's.
    pub fn drain_repairs(&mut self) -> Vec<(Option<PodRef>, String)> {
        std::mem::take(&mut self.repairs.unreported)
    }

    /// What is wrong and could not be repaired, as sentences.
    #[must_use]
    pub fn repair_problems(&self) -> &[String] {
        &self.repairs.problems
    }

    fn look(&mut self) -> Findings {
        let earlier = self.pods_of_earlier_agents().into_iter();
        let earlier = earlier.map(|(cookie, inode, _)| (cookie, inode)).collect();
        let pods = enrollments(&self.pods, &self.held);
        let pods = pods.map(|(_, it)| it).collect();
        self.node.look(Look::All {
            policies: self.policies.in_use().collect(),
            pods,
            earlier,
        })
    }

    /// Carries out a repair; answers whether the hooks are on another cgroup now.
    async fn carry_out(&mut self, repair: &Repair) -> bool {
        let part = repair.part();
        match self.try_repair(repair).await {
            Ok(was_damaged) => {
                self.repairs.backoff.succeeded(part);
                let report = repair.report(&self.name_of(part)).filter(|_| was_damaged);
                if let Some((kind, text)) = report {
                    warn!("{text}");
                    *self.repairs.counts.entry(kind).or_default() += 1;
                    let pod = self.pod_of(part).cloned();
                    self.repairs.unreported.push((pod, text));
                    self.changed = true;
                    return kind == RepairKind::Cgroup;
                }
            }
            Err(problem) => {
                let now = self.node.now();
                let why = problem.to_string();
                if self.repairs.backoff.failed(part, why.clone(), now) {
                    error!("{}", part.problem(&self.name_of(part), &why));
                }
            }
        }
        false
    }

    /// Answers whether there was something to repair, which may have been repaired meanwhile.
    async fn try_repair(&mut self, repair: &Repair) -> Result<bool, NodeError> {
        let cookie = match repair {
            Repair::ForgetEarlier(cookie) => {
                self.forget_earlier(*cookie, None).await;
                return Ok(false);
            }
            Repair::WriteRows(cookie, _) => Some(*cookie),
            Repair::RestoreLink(link, _) => link.pod(),
            _ => None,
        };
        if let Repair::RestoreLink(LinkId::Ingress(cookie, ..), LinkLoss::Detached) = repair {
            // Where it is attached follows from the pod's interfaces. This one may be gone.
            self.changed = true;
            let (node, mut pods) = self.enrollments_mut();
            if let Some((name, pod)) = pods.find(|(_, pod)| pod.cookie == *cookie)
                && let Err(problem) = converge::refresh(node, pod).await
            {
                warn!(pod = %name, "follow the pod's interfaces: {problem}");
            }
        }
        let pods = enrollments(&self.pods, &self.held);
        let mut pods = pods.map(|(_, it)| it);
        let pod = cookie.and_then(|cookie| pods.find(|pod| pod.cookie == cookie));
        if cookie.is_some() && pod.is_none() {
            return Ok(false);
        }
        self.node.repair(repair, pod)
    }

    fn note_not_seen(&mut self, findings: &mut Findings) {
        let mut not_seen = std::mem::take(&mut findings.problems);
        if let CgroupState::Gone(problem) = &findings.cgroup {
            not_seen.push(problem.clone());
        }
        for problem in not_seen
            .iter()
            .filter(|it| !self.repairs.not_seen.contains(it))
        {
            error!("{problem}");
        }
        self.repairs.not_seen = not_seen;
    }

    fn note_problems(&mut self) {
        let failed = self.repairs.backoff.problems(self.node.now());
        let failed = failed.map(|(part, why, since)| {
            let problem = part.problem(&self.name_of(part), why);
            format!("{problem}; being repaired since {} s", since.as_secs())
        });
        let problems = self
            .repairs
            .not_seen
            .iter()
            .cloned()
            .chain(failed)
            .collect();
        self.changed |= self.repairs.problems != problems;
        self.repairs.problems = problems;
    }

    /// The name of the pod that something is of.
    fn name_of(&self, part: Part) -> String {
        let name = self.pod_of(part);
        name.map(ToString::to_string).unwrap_or_default()
    }

    /// The pod that something is of.
    fn pod_of(&self, part: Part) -> Option<&PodRef> {
        let cookie = match part {
            Part::Rows(cookie) | Part::Earlier(cookie) => Some(cookie),
            Part::Link(link) => link.pod(),
            _ => None,
        }?;
        let own = self.enrollments().find(|(_, it)| it.cookie == cookie);
        own.map(|(name, _)| name)
            .or_else(|| self.held.earlier_at(cookie)?.pod.as_ref())
    }
}
