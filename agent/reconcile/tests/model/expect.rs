//! What has to be true at the end of a sequence, when no write fails any more.

use std::collections::BTreeSet;

use sidetrack_common::ids::NetnsCookie;
use sidetrack_reconcile::{Enrollment, PodState};

use crate::{
    node::FakeNode,
    pods::{Pod, Variant},
    rows::Snapshot,
    run::{Run, cookies_of, end_deleted, own_path},
    world::{Users, World},
};

/// Time that passes until all must have converged, in milliseconds: fast retries, slow ones, and the
/// longest pause between two searches for listeners.
const TICKS: [u64; 14] = [
    600, 600, 600, 600, 2100, 2100, 6000, 10_000, 310_000, 600, 1100, 6000, 1100, 1100,
];

impl Run {
    /// Waits until everything has converged and checks it, then removes all pods and checks that
    /// nothing remains.
    pub fn finish(&mut self) {
        self.settle();
        self.check_pods();
        self.check_tables();
        self.check_core();
        if !self.world.borrow().violations.is_empty() {
            return;
        }
        self.pods.clear();
        {
            let mut world = self.world.borrow_mut();
            end_deleted(&mut world, &[]);
            world.paths.clear();
        }
        self.settle();
        self.check_core();
        let mut world = self.world.borrow_mut();
        let remains = !world.tables.cookies().is_empty() || !world.tables.policy_ids().is_empty();
        if remains {
            let text = format!("rows remain: {:?}", world.tables);
            world.violate(text);
        }
    }

    fn settle(&mut self) {
        {
            let mut world = self.world.borrow_mut();
            world.faults.clear();
            world.unseen = false;
            world.race = false;
            world.broken.clear();
        }
        for millis in TICKS {
            if [600, 6000].contains(&millis) {
                self.list(true);
            }
            self.tick(millis);
        }
    }

    fn check_core(&self) {
        let known = self.core.known_cookies();
        let mut world = self.world.borrow_mut();
        let rows: BTreeSet<NetnsCookie> = world.tables.pods.keys().copied().collect();
        world.require(known == rows, || {
            format!("the agent has {known:?}, and the pods' rows are {rows:?}")
        });
    }

    fn check_pods(&self) {
        for pod in self.pods.values() {
            let mut problems = Vec::new();
            let record = self.core.pods().find(|(name, _)| **name == pod.name);
            match record {
                None => problems.push("is not known".to_owned()),
                Some((_, record)) => {
                    let world = self.world.borrow();
                    let expected = expected(&world, pod, &self.pods.values().collect::<Vec<_>>());
                    if !expected.contains(&record.state()) {
                        let reason = record.reason();
                        let state = record.state();
                        problems.push(format!("is {state:?} ({reason:?}), not {expected:?}"));
                    }
                    // Without a process the agent has only the path it already has.
                    let found = |it: &Enrollment<FakeNode>| {
                        !world.api
                            || world
                                .processes
                                .values()
                                .any(|process| process.uid == pod.uid)
                            || world.at(&it.path) == Some(it.cookie)
                    };
                    if let Some(it) = record.enrollment()
                        && let Some(policy) = pod.variant.policy()
                        && *it.policy != *policy
                        && !cookies_of(&world, pod).is_empty()
                        && found(it)
                    {
                        problems.push("has another policy".to_owned());
                    }
                }
            }
            for problem in problems {
                let text = format!("{} {:?} {problem}", pod.name, pod.variant);
                self.world.borrow_mut().violate(text);
            }
        }
    }

    fn check_tables(&self) {
        let mut world = self.world.borrow_mut();
        let mut problems = Vec::new();
        for (cookie, row) in &world.tables.pods {
            let wanted = self.pods.values().find(|pod| {
                let same = !world.api || row.uid == pod.listed_uid();
                pod.name == row.pod && same && !pod.variant.is_skipped()
            });
            let runs = world.api && world.exists(*cookie);
            if wanted.is_none() && !runs {
                problems.push(format!("{} is not wanted, and has a row", row.pod));
            }
            let mut policies = world.tables.policies.iter();
            let lists = world.tables.lists.get(&row.policy);
            if !policies.any(|(id, _)| *id == row.policy) || !lists.is_some_and(|it| it.complete) {
                problems.push(format!("policy {} is not complete", row.policy));
            }
        }
        let pods: BTreeSet<NetnsCookie> = world.tables.pods.keys().copied().collect();
        let remaining = world.tables.cookies_besides_pods();
        for cookie in remaining.difference(&pods) {
            problems.push(format!("rows of {cookie} remain"));
        }
        if world.tables.named() != world.tables.policy_ids() {
            problems.push(format!(
                "pods name {:?}, and there are {:?}",
                world.tables.named(),
                world.tables.policy_ids()
            ));
        }
        for (_, enrollment) in self.core.enrollments() {
            problems.extend(self.check_enrolled(&world, enrollment.cookie));
        }
        for (cookie, namespace) in &world.namespaces {
            let excused = world.faults.fired || self.restarts > 0;
            if namespace.has_self_v6 && !pods.contains(cookie) && !excused {
                problems.push(format!("::6 remains in {cookie}"));
            }
            if namespace.has_return_route && !pods.contains(cookie) && !excused {
                problems.push(format!("a return route remains in {cookie}"));
            }
        }
        problems.extend(world.lost_of_node());
        for problem in problems {
            world.violate(problem);
        }
    }

    /// What is wrong with the rows of a pod that this agent has enrolled.
    fn check_enrolled(&self, world: &World, cookie: NetnsCookie) -> Vec<String> {
        let tables = &world.tables;
        let Some(row) = tables.pods.get(&cookie) else {
            return vec![format!("{cookie} is enrolled and has no row")];
        };
        let namespace = &world.namespaces[&cookie];
        let snapshot = Snapshot::of(namespace);
        let routes = tables.routes.iter().filter(|((at, _), _)| *at == cookie);
        let routes = routes
            .map(|((_, route), excluded)| (*route, *excluded))
            .collect();
        let ifaces = tables.ifaces.iter().filter(|(at, _)| *at == cookie);
        let ifaces: BTreeSet<u32> = ifaces.map(|(_, index)| *index).collect();
        let ids = world.namespaces[&cookie].ids();
        let compiled = row.source.on_node(&ids).ok().map(|it| it.compile());
        let served = world.is_served(cookie);
        // Listeners of a pod whose name another one has are not searched again.
        let mut records = self.core.pods().filter_map(|(_, it)| it.enrollment());
        let departing = records.all(|it| it.cookie != cookie);
        let mut sockets = world.processes.values().filter(|it| it.cookie == cookie);
        let adopted = sockets.all(|it| {
            let mut ports = row.source.listener_ports().into_iter();
            let row = |port| (cookie, 2, port);
            ports.all(|port| {
                !it.listens.contains(&(2, port)) || tables.listeners.contains(&row(port))
            })
        });
        let checks = [
            (snapshot.route_rows(&row.source) == routes, "routes"),
            (snapshot.excluded(&row.source) == ifaces, "interface rows"),
            (
                tables.policies.get(&row.policy) == compiled.as_ref(),
                "policy",
            ),
            (
                tables.lookups.get(&cookie) == Some(&world.generation),
                "sk_lookup program",
            ),
            (adopted || departing, "listeners"),
            (row.captures_v6 || !snapshot.has_v6, "capture of IPv6"),
            (
                namespace.has_return_route == row.source.return_route().is_some(),
                "return route",
            ),
            (
                !served || !tables.before_sidecar.contains(&cookie) || world.faults.fired,
                "leave to pass the sidecar",
            ),
        ];
        let wrong = checks.into_iter().filter(|(holds, _)| !holds);
        wrong
            .map(|(_, what)| format!("{}: wrong {what}", row.pod))
            .collect()
    }
}

/// Whether more than one namespace was made for a pod.
fn has_several(world: &World, pod: &Pod) -> bool {
    let of_pod = world.namespaces.values().filter(|it| it.uid == pod.uid);
    of_pod.count() > 1
}

/// States that are right for a pod.
fn expected(world: &World, pod: &Pod, all: &[&Pod]) -> Vec<PodState> {
    let has_row = world
        .tables
        .pods
        .values()
        .any(|row| row.pod == pod.name && (!world.api || row.uid == pod.listed_uid()));
    if pod.variant.is_skipped() {
        return vec![PodState::Skipped];
    }
    // Until a pod is found, an earlier agent's row of its name counts.
    let mut of_name = world.tables.pods.values().filter(|row| row.pod == pod.name);
    let is_earlier = of_name.next().is_some() && !has_row;
    if pod.variant == Variant::Bad {
        return match (has_row, is_earlier) {
            // The row may be of a namespace the pod has departed from.
            (true, _) if world.faults.fired || has_several(world, pod) => {
                vec![PodState::Outdated, PodState::Rejected]
            }
            (true, _) => vec![PodState::Outdated],
            (false, true) => vec![PodState::Outdated, PodState::Rejected],
            (false, false) => vec![PodState::Rejected],
        };
    }
    let found = cookies_of(world, pod);
    let runs = world.processes.values().any(|it| it.uid == pod.uid);
    // A sandbox that no process has joined is known only from the plugin.
    let unknown = world.api && !runs;
    if found.is_empty() || unknown {
        return if has_row {
            // Its policy may have changed meanwhile.
            vec![PodState::Enrolled, PodState::Outdated]
        } else if is_earlier {
            vec![PodState::Waiting, PodState::Rejected, PodState::Enrolled]
        } else if unknown && !found.is_empty() {
            vec![PodState::Waiting, PodState::Rejected]
        } else {
            vec![PodState::Waiting]
        };
    }
    let has_room = pod.name.name.len() <= 20;
    let lacks_user = |cookie: &NetnsCookie| world.namespaces[cookie].users == Users::TooFew;
    if found.iter().any(lacks_user) && (has_row || is_earlier) {
        // It may have been enrolled in another namespace before.
        return vec![PodState::Rejected, PodState::Enrolled, PodState::Outdated];
    }
    if !has_room || found.iter().any(lacks_user) {
        return vec![PodState::Rejected];
    }
    // Another pod has the namespace.
    let is_in_it = |other: &&&Pod| {
        other.name != pod.name
            && !other.variant.is_skipped()
            && !world.api
            && world.paths.contains_key(&own_path(other, false))
    };
    let owner = found
        .iter()
        .find_map(|cookie| world.tables.pods.get(cookie));
    let shared = all
        .iter()
        .filter(is_in_it)
        .any(|other| owner.is_some_and(|row| row.pod == other.name));
    if shared && !has_row {
        return vec![PodState::Rejected];
    }
    let enrolled = found.iter().any(|cookie| {
        let row = world.tables.pods.get(cookie);
        row.is_some_and(|row| row.pod == pod.name && Some(&row.source) == pod.variant.policy())
    });
    if !enrolled && !shared {
        return Vec::new();
    }
    vec![PodState::Enrolled]
}
