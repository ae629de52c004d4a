//! What others remove or replace, how the fake node sees it, and how it is repaired.

use std::path::PathBuf;

use sidetrack_common::ids::{NetnsCookie, NetnsInode, PolicyId};
use sidetrack_policy::compiled::CompiledPolicy;
use sidetrack_reconcile::{
    Enrollment, NodeError,
    repairs::{CgroupState, EarlierFinding, Findings, LinkId, LinkLoss, Repair},
};

use crate::{node::FakeNode, run::Run, tables::PodRow, world::World};

/// The hooks on the pods' cgroup.
pub const HOOKS: [&str; 2] = ["connect4", "getsockopt"];
const MAP: &str = "POD_BY_NETNS";
/// The agent whose program another one's is.
const FOREIGN: u32 = u32::MAX;
/// How many kinds of losses there are.
pub const LOSSES: u32 = 13;

fn cgroup_path(number: u32) -> PathBuf {
    PathBuf::from(format!("/cgroup/{number}"))
}

impl Run {
    /// Something of an enrolled pod, or of no pod, is lost.
    pub fn lose(&mut self, slot: usize, loss: u32) {
        let name = self.pods.get(&slot).map(|pod| pod.name.clone());
        let mut enrollments = self.core.enrollments();
        let of_slot = enrollments.find(|(other, _)| Some(*other) == name.as_ref());
        let cookie = of_slot.map(|(_, it)| it.cookie);
        let mut world = self.world.borrow_mut();
        world.damaged = true;
        let loss = loss % LOSSES;
        if !world.lose_of_node(loss)
            && let Some(cookie) = cookie
        {
            world.lose_of_pod(cookie, loss);
        }
    }
}

impl World {
    /// What an agent does when it starts.
    pub fn attach_hooks(&mut self) {
        self.held.clear();
        // Policies of pods that it does not enroll are not compared.
        let lost: Vec<PolicyId> = std::mem::take(&mut self.lost_policies)
            .into_iter()
            .collect();
        self.write_policies(lost.iter());
        self.tables.unpinned.clear();
        self.followed = self.cgroup;
        self.tables.hooks = HOOKS.map(|hook| (hook, self.cgroup)).into();
    }

    fn lose_of_node(&mut self, loss: u32) -> bool {
        let tables = &mut self.tables;
        match loss {
            0 => drop(tables.hooks.insert(HOOKS[0], 0)),
            1 => drop(tables.hooks.insert(HOOKS[1], FOREIGN)),
            2 => drop(tables.unpinned.insert(MAP)),
            3 => {
                self.cgroup += 1;
                self.tables.hooks.values_mut().for_each(|at| *at = 0);
            }
            4 => {
                let other = tables.pods.values().next().cloned();
                let row = other.map(|row| PodRow {
                    policy: PolicyId::new(0),
                    ..row
                });
                let cookie = NetnsCookie::new(u64::from(self.fresh()));
                self.tables.pods.extend(row.map(|row| (cookie, row)));
            }
            _ => return false,
        }
        true
    }

    fn lose_of_pod(&mut self, cookie: NetnsCookie, loss: u32) {
        let tables = &mut self.tables;
        let policy = tables.pods.get(&cookie).map(|row| row.policy);
        if loss > 10 {
            self.lost_policies.extend(policy);
        }
        match loss {
            5 => drop(tables.lookups.remove(&cookie)),
            6 => drop(tables.lookups.insert(cookie, FOREIGN)),
            7 => {
                self.stops_naming(cookie);
                self.tables.pods.remove(&cookie);
            }
            8 => tables.routes.retain(|(at, _), _| *at != cookie),
            9 => tables.ifaces.retain(|(at, _)| *at != cookie),
            10 => {
                let mut routes = tables.routes.iter_mut();
                if let Some((_, excluded)) = routes.find(|((at, _), _)| *at == cookie) {
                    *excluded = !*excluded;
                }
            }
            11 => drop(policy.map(|id| tables.policies.remove(&id))),
            _ => {
                let lists = policy.and_then(|id| tables.lists.get_mut(&id));
                if let Some(lists) = lists {
                    lists.complete = false;
                }
            }
        }
    }

    /// Whether this agent's program is attached in a namespace.
    pub fn is_attached(&self, cookie: NetnsCookie) -> bool {
        self.tables.lookups.get(&cookie) == Some(&self.generation)
    }

    pub fn inbound_losses(&self) -> Vec<(LinkId, LinkLoss)> {
        let held = self.held.iter().copied();
        let lost = held.filter(|cookie| !self.is_attached(*cookie));
        lost.map(|cookie| (LinkId::Inbound(cookie), LinkLoss::Detached))
            .collect()
    }

    pub fn look(
        &self,
        policies: Vec<(PolicyId, &CompiledPolicy)>,
        pods: &[&Enrollment<FakeNode>],
        earlier: Vec<(NetnsCookie, NetnsInode)>,
    ) -> Findings {
        let detached = earlier.into_iter();
        let detached =
            detached.filter(|(cookie, _)| !(self.is_attached(*cookie) && self.exists(*cookie)));
        let earlier = detached.map(|(cookie, inode)| {
            let mut processes = self.processes.iter();
            let found = processes.find(|(_, it)| it.inode == inode);
            let path = found.map(|(pid, _)| PathBuf::from(format!("/proc/{pid}/ns/net")));
            EarlierFinding {
                cookie,
                inode,
                has_processes: self.unseen || path.is_some(),
                found: path.filter(|_| !self.unseen).map(|path| {
                    let there = self.at(&path);
                    (path, there)
                }),
            }
        });
        let damaged = policies.into_iter().map(|(id, policy)| {
            let lists = self.tables.lists.get(&id);
            let lists = lists.is_some_and(|it| it.complete && it.policy == *policy);
            let row = self.tables.policies.get(&id) == Some(policy);
            (id, usize::from(!lists) + usize::from(!row))
        });
        let mut links = self.inbound_losses();
        for (hook, at) in &self.tables.hooks {
            let loss = match *at {
                FOREIGN => LinkLoss::Replaced(FOREIGN),
                at if at == self.followed => continue,
                _ => LinkLoss::Detached,
            };
            links.push((LinkId::Hook(hook), loss));
        }
        let unpinned = self.tables.unpinned.iter();
        Findings {
            policies: damaged.filter(|(_, rows)| *rows > 0).collect(),
            rows: pods
                .iter()
                .map(|pod| (pod.cookie, self.differing(pod)))
                .filter(|(_, rows)| *rows > 0)
                .collect(),
            pods: self.tables.pods.keys().copied().collect(),
            maps: unpinned.map(|name| (*name, PathBuf::new())).collect(),
            cgroup: self.cgroup_state(),
            links,
            earlier: earlier.collect(),
            ..Findings::default()
        }
    }

    fn cgroup_state(&self) -> CgroupState {
        if self.cgroup == self.followed {
            return CgroupState::Unchanged;
        }
        CgroupState::Recreated {
            before: cgroup_path(self.followed),
            now: cgroup_path(self.cgroup),
        }
    }

    fn differing(&self, pod: &Enrollment<FakeNode>) -> usize {
        let cookie = pod.cookie;
        let tables = &self.tables;
        let routes = pod.rows.routes.iter();
        let routes = routes
            .filter(|(route, excluded)| tables.routes.get(&(cookie, **route)) != Some(excluded));
        let ifaces = pod.rows.ifaces.iter();
        let ifaces = ifaces.filter(|index| !tables.ifaces.contains(&(cookie, **index)));
        let row = pod.rows.row.as_ref();
        let row = row.filter(|row| tables.pods.get(&cookie) != Some(row));
        let passes = tables.before_sidecar.contains(&cookie) && self.is_served(cookie);
        routes.count() + ifaces.count() + usize::from(row.is_some()) + usize::from(passes)
    }

    /// Repairs, after a check that there is something to repair.
    pub fn repair(
        &mut self,
        repair: &Repair,
        pod: Option<&Enrollment<FakeNode>>,
    ) -> Result<bool, NodeError> {
        *self.repairs.entry(repair.part()).or_default() += 1;
        self.begin_write(&format!("{repair:?}"))?;
        if self.broken.contains(&repair.part()) {
            return Err(NodeError::Failed("it is broken".to_owned()));
        }
        let was_damaged = match (repair, pod) {
            (Repair::WritePolicies(policies), _) => self.write_policies(policies.keys()),
            (Repair::WriteRows(cookie, _), Some(pod)) => self.write_rows(*cookie, pod),
            (Repair::RemoveRows(cookies), _) => {
                let mut was_there = false;
                for cookie in cookies {
                    let gone = !self.held.contains(cookie);
                    self.require(gone, || "the row of an enrolled pod is removed".to_owned());
                    self.stops_naming(*cookie);
                    was_there |= self.tables.pods.remove(cookie).is_some();
                }
                was_there
            }
            (Repair::PinMap(name, _), _) => self.tables.unpinned.remove(name),
            (Repair::FollowCgroup(CgroupState::Recreated { .. }), _) => {
                self.followed = self.cgroup;
                self.tables.hooks = HOOKS.map(|hook| (hook, self.cgroup)).into();
                true
            }
            (Repair::RestoreLink(LinkId::Hook(hook), _), _) => {
                self.tables.hooks.insert(hook, self.followed) != Some(self.followed)
            }
            (Repair::RestoreLink(LinkId::Inbound(cookie), _), _)
            | (Repair::AttachEarlier { cookie, .. }, _) => {
                self.held.insert(*cookie);
                self.tables.lookups.insert(*cookie, self.generation) != Some(self.generation)
            }
            _ => false,
        };
        self.require(was_damaged, || format!("{repair:?} of what is whole"));
        // What the agent writes itself is whole.
        let by_others = self.damaged || self.faults.fired;
        self.require(by_others, || {
            format!("{repair:?} of what no step has damaged")
        });
        Ok(was_damaged)
    }

    fn write_policies<'a>(&mut self, ids: impl Iterator<Item = &'a PolicyId>) -> bool {
        let mut was_damaged = true;
        for id in ids {
            self.lost_policies.remove(id);
            let Some(lists) = self.tables.lists.get_mut(id) else {
                continue;
            };
            let was_complete = std::mem::replace(&mut lists.complete, true);
            let policy = lists.policy.clone();
            let row = self.tables.policies.insert(*id, policy);
            was_damaged &= !was_complete || row.is_none();
        }
        was_damaged
    }

    fn write_rows(&mut self, cookie: NetnsCookie, pod: &Enrollment<FakeNode>) -> bool {
        let differing = self.differing(pod);
        let routes = pod.rows.routes.iter();
        let routes = routes.map(|(route, excluded)| ((cookie, *route), *excluded));
        self.tables.routes.extend(routes);
        let ifaces = pod.rows.ifaces.iter().map(|index| (cookie, *index));
        self.tables.ifaces.extend(ifaces);
        let row = pod.rows.row.clone();
        self.tables.pods.extend(row.map(|row| (cookie, row)));
        if self.is_served(cookie) {
            self.tables.before_sidecar.remove(&cookie);
        }
        differing > 0
    }

    /// What is still lost of what belongs to no pod.
    pub fn lost_of_node(&self) -> Vec<String> {
        let hooks = self.tables.hooks.iter();
        let lost = hooks.filter(|(_, at)| **at != self.cgroup);
        let lost = lost.map(|(hook, at)| format!("hook {hook} is at cgroup {at}"));
        let unpinned = self.tables.unpinned.iter();
        lost.chain(unpinned.map(|map| format!("map {map} has no pin")))
            .collect()
    }
}
