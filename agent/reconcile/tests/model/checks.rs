//! What has to be true when a pod's row is written or removed.

use sidetrack_common::ids::NetnsCookie;
use sidetrack_policy::Policy;

use crate::{ops::Op, rows::FakeRows, rows::Snapshot, world::World};

impl World {
    /// A pod's row is written last: all that decides its connections is there.
    pub fn check_complete(
        &mut self,
        cookie: NetnsCookie,
        rows: &FakeRows,
        op: &Op,
        policy: &Policy,
    ) {
        let namespace = &self.namespaces[&cookie];
        let snapshot = Snapshot::of(namespace);
        let compiled = policy.on_node(&namespace.ids()).ok().map(|it| it.compile());
        let tables = &self.tables;
        let id = op.id.expect("the id of the policy");
        let lists = tables.lists.get(&id);
        let lists = lists.is_some_and(|it| it.complete && Some(&it.policy) == compiled.as_ref());
        let policy_row = compiled.is_some() && tables.policies.get(&id) == compiled.as_ref();
        let routes = snapshot
            .route_rows(policy)
            .into_iter()
            .all(|(route, excluded)| {
                let written = tables.routes.get(&(cookie, route));
                written.is_some_and(|it| *it || !excluded)
            });
        let mut excluded = snapshot.excluded(policy).into_iter();
        let ifaces = excluded.all(|index| tables.ifaces.contains(&(cookie, index)));
        let lookup = tables.lookups.contains_key(&cookie);
        let mut found = rows.found.iter();
        let searched = found.all(|(family, port)| {
            let is_open = self
                .processes
                .values()
                .any(|it| it.cookie == cookie && it.listens.contains(&(*family, *port)));
            !is_open || tables.listeners.contains(&(cookie, *family, *port))
        });
        let is_first = !tables.pods.contains_key(&cookie);
        let v6 = !is_first || !snapshot.has_v6 || rows.captures_v6;
        let answers = policy.return_route().is_none() || namespace.has_return_route;
        let answers = answers || self.faults.fired;
        for (holds, what) in [
            (lists, "lists"),
            (policy_row, "policy row"),
            (routes, "routes"),
            (ifaces, "interface rows"),
            (lookup, "sk_lookup link"),
            (searched, "listeners"),
            (v6, "capture of IPv6"),
            (answers, "return route"),
        ] {
            // What somebody has removed since is repaired later.
            self.require(holds || self.damaged, || {
                format!("a pod's row is written before its {what}")
            });
        }
        if is_first {
            self.check_first(cookie, rows, policy);
        }
    }

    /// The first row of a pod in its life says whether connections may pass the sidecar.
    fn check_first(&mut self, cookie: NetnsCookie, rows: &FakeRows, policy: &Policy) {
        self.require(rows.searched, || {
            "a pod's row is written before its listeners were searched".to_owned()
        });
        let Some(pod) = rows.pod.clone() else { return };
        let listed = self.applied.get(&pod);
        let starting = listed.is_some_and(|it| it.starting && it.uid == rows.uid);
        let started = self.started.get(&(pod, rows.uid.clone())) == Some(&cookie);
        let passes = self.tables.before_sidecar.contains(&cookie);
        let expected = policy.before_sidecar && starting && !started;
        if expected && !self.earlier.contains(&cookie) && !self.is_served(cookie) {
            self.require(passes, || {
                "a starting pod may not pass its sidecar although its policy says so".to_owned()
            });
        }
        // A leave that an earlier enrollment was given has no effect under this policy.
        let own = !self.faults.fired && !self.earlier.contains(&cookie);
        self.require(!(own && passes) || policy.before_sidecar, || {
            "a pod may pass its sidecar although its policy does not say so".to_owned()
        });
    }

    /// The namespace is no other pod's that is to be intercepted.
    pub fn check_owner(&mut self, cookie: NetnsCookie, rows: &FakeRows) {
        let Some(row) = self.tables.pods.get(&cookie) else {
            return;
        };
        let other = Some(&row.pod) != rows.pod.as_ref();
        let wanted = self.applied.get(&row.pod).is_some_and(|it| it.wanted);
        let text = format!("{:?} takes the namespace of {}", rows.pod, row.pod);
        self.require(!(other && wanted), || text);
    }

    /// A pod's row is removed for this pod, and not while its processes run unless it opted out.
    pub fn check_release(&mut self, cookie: NetnsCookie, rows: &FakeRows) {
        let Some(row) = self.tables.pods.get(&cookie) else {
            return;
        };
        let pod = row.pod.clone();
        let same = rows.pod.as_ref() == Some(&pod) && rows.uid == row.uid;
        self.require(!self.api || same, || {
            format!("{:?} removes the row of {pod}", rows.pod)
        });
        let opted_out = self.applied.get(&pod).is_some_and(|it| !it.wanted);
        let runs = self.runs_in(cookie);
        self.require(!self.api || !runs || opted_out, || {
            format!("{pod} is released while its processes run")
        });
    }
}
