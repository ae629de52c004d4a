//! Steps that write and remove a pod's rows.

use std::collections::BTreeSet;

use sidetrack_common::ids::NetnsCookie;
use sidetrack_policy::Policy;

use crate::{
    ops::{Kind, Op},
    rows::{FakeRows, Snapshot},
    tables::PodRow,
    world::World,
};

impl World {
    /// Rows are written only of the pod whose namespace it is.
    pub fn check_target(&mut self, cookie: NetnsCookie, rows: &FakeRows, kind: Kind) {
        let Some(namespace) = self.namespaces.get(&cookie) else {
            return self.violate(format!("{kind:?} for a namespace that never was"));
        };
        let same = !self.api || rows.uid.as_deref() == Some(&*namespace.uid);
        self.require(same, || {
            format!(
                "{kind:?} writes rows of {:?} into another pod's namespace",
                rows.pod
            )
        });
    }

    pub fn perform_write(
        &mut self,
        cookie: NetnsCookie,
        rows: &mut FakeRows,
        op: &Op,
        whole: bool,
    ) {
        if op.kind == Kind::ReadNamespace {
            if whole {
                rows.snapshot = Some(Snapshot::of(&self.namespaces[&cookie]));
            }
            return;
        }
        if op.kind == Kind::AttachPrograms {
            if whole {
                self.tables.lookups.insert(cookie, self.generation);
                self.held.insert(cookie);
            }
            return;
        }
        let Some(policy) = &op.policy else { return };
        match op.kind {
            Kind::WriteBefore => self.write_before(cookie, rows, policy, whole),
            Kind::WriteAfter => self.write_after(cookie, rows, policy, whole),
            Kind::CaptureV6 if whole => self.capture_v6(cookie, rows),
            Kind::AddReturnRoute if whole => {
                if let Some(namespace) = self.namespaces.get_mut(&cookie) {
                    namespace.has_return_route |= policy.return_route().is_some();
                }
            }
            Kind::SetReturnRoute if whole => {
                let row = self.tables.pods.get(&cookie);
                let active = row.is_some_and(|row| row.source == *policy);
                self.require(active || self.damaged, || {
                    "the return route of another policy goes while it is active".to_owned()
                });
                if let Some(namespace) = self.namespaces.get_mut(&cookie) {
                    namespace.has_return_route = policy.return_route().is_some();
                }
            }
            Kind::AdoptListeners if whole => self.adopt(cookie, rows, op, policy),
            Kind::AllowBeforeSidecar if whole && !self.is_served(cookie) => {
                self.tables.before_sidecar.insert(cookie);
            }
            Kind::WritePod if whole => self.write_pod(cookie, rows, op, policy),
            Kind::EndBeforeSidecar => {
                let row = self.tables.pods.get(&cookie);
                let active = row.is_some_and(|row| row.source == *policy);
                self.require(active || self.damaged, || {
                    "the leave to pass the sidecar ends before the pod's row is written".to_owned()
                });
                if whole && self.is_served(cookie) {
                    self.tables.before_sidecar.remove(&cookie);
                }
            }
            _ => {}
        }
    }

    fn write_before(
        &mut self,
        cookie: NetnsCookie,
        rows: &mut FakeRows,
        policy: &Policy,
        whole: bool,
    ) {
        let Some(snapshot) = rows.snapshot.clone() else {
            return;
        };
        let wanted = snapshot.route_rows(policy);
        for (route, excluded) in wanted.iter().take(written(wanted.len(), whole)) {
            let included_again = !excluded && rows.routes.get(route) == Some(&true);
            if !included_again {
                self.tables.routes.insert((cookie, *route), *excluded);
                rows.routes.insert(*route, *excluded);
            }
        }
        if !whole {
            return;
        }
        self.remove_old_routes(cookie, rows, |route| !wanted.contains_key(&route));
        for index in snapshot.excluded(policy) {
            self.tables.ifaces.insert((cookie, index));
            rows.ifaces.insert(index);
        }
    }

    fn write_after(
        &mut self,
        cookie: NetnsCookie,
        rows: &mut FakeRows,
        policy: &Policy,
        whole: bool,
    ) {
        let row = self.tables.pods.get(&cookie);
        let active = row.is_some_and(|row| row.source == *policy);
        self.require(active || self.damaged, || {
            "interface rows of another policy are removed while it is active".to_owned()
        });
        let Some(snapshot) = rows.snapshot.clone() else {
            return;
        };
        let wanted = snapshot.route_rows(policy);
        for (route, excluded) in wanted.iter().take(written(wanted.len(), whole)) {
            self.tables.routes.insert((cookie, *route), *excluded);
            rows.routes.insert(*route, *excluded);
        }
        if !whole {
            return;
        }
        self.remove_old_routes(cookie, rows, |route| !wanted.contains_key(&route));
        let wanted = snapshot.excluded(policy);
        for index in rows.ifaces.difference(&wanted) {
            self.tables.ifaces.remove(&(cookie, *index));
        }
        for index in &wanted {
            self.tables.ifaces.insert((cookie, *index));
        }
        rows.ifaces = wanted;
        self.write_flags(cookie, rows, |row, rows| row.captures_v6 = rows.captures_v6);
    }

    fn remove_old_routes(
        &mut self,
        cookie: NetnsCookie,
        rows: &mut FakeRows,
        is_old: impl Fn(u32) -> bool,
    ) {
        let old: Vec<u32> = rows
            .routes
            .keys()
            .copied()
            .filter(|it| is_old(*it))
            .collect();
        for route in old {
            self.tables.routes.remove(&(cookie, route));
            rows.routes.remove(&route);
        }
    }

    fn capture_v6(&mut self, cookie: NetnsCookie, rows: &mut FakeRows) {
        let Some(snapshot) = &rows.snapshot else {
            return;
        };
        if snapshot.has_v6
            && let Some(namespace) = self.namespaces.get_mut(&cookie)
            && !namespace.has_self_v6
        {
            namespace.has_self_v6 = true;
            rows.added_v6 = true;
        }
        let present = self.tables.pods.get(&cookie);
        let was_captured = present.is_some_and(|row| row.captures_v6);
        rows.captures_v6 = snapshot.has_v6 || was_captured;
        self.write_flags(cookie, rows, |row, rows| row.added_v6 = rows.added_v6);
    }

    fn write_flags(
        &mut self,
        cookie: NetnsCookie,
        rows: &mut FakeRows,
        write: impl Fn(&mut PodRow, &FakeRows),
    ) {
        let own = rows.policy.is_some();
        if let Some(row) = self.tables.pods.get_mut(&cookie).filter(|_| own) {
            write(row, rows);
        }
        if let Some(mut row) = rows.row.take() {
            write(&mut row, rows);
            rows.row = Some(row);
        }
    }

    fn adopt(&mut self, cookie: NetnsCookie, rows: &mut FakeRows, op: &Op, policy: &Policy) {
        let ports: BTreeSet<u16> = policy.listener_ports().into_iter().collect();
        rows.searched = true;
        self.searches += 1;
        let all = op.processes.all.iter();
        let in_pod = all.filter(|(pid, it)| {
            // Sockets that were closed since cannot be put into the map.
            it.cookie == cookie && self.processes.contains_key(pid)
        });
        rows.found = in_pod
            .flat_map(|(_, it)| it.listens.iter().copied())
            .filter(|(_, port)| ports.contains(port))
            .collect();
        for (family, port) in &rows.found {
            self.tables.listeners.insert((cookie, *family, *port));
        }
    }

    fn write_pod(&mut self, cookie: NetnsCookie, rows: &mut FakeRows, op: &Op, policy: &Policy) {
        let (Some(id), Some(pod)) = (op.id, rows.pod.clone()) else {
            return self.violate("a pod's row without a pod");
        };
        if std::mem::take(&mut self.race) {
            for pid in self.pids_in(cookie) {
                self.listen(pid);
            }
        }
        self.check_complete(cookie, rows, op, policy);
        self.check_owner(cookie, rows);
        self.stops_naming(cookie);
        // Another policy that did not capture IPv6 may have interface rows.
        let present = self.tables.pods.get(&cookie);
        let captures_v6 = rows.captures_v6 && present.is_none_or(|row| row.captures_v6);
        let row = PodRow {
            pod: pod.clone(),
            uid: rows.uid.clone(),
            inode: rows.inode,
            policy: id,
            captures_v6,
            added_v6: rows.added_v6,
            source: policy.clone(),
        };
        self.tables.pods.insert(cookie, row.clone());
        rows.row = Some(row);
        rows.policy = Some(id);
        self.started.insert((pod, rows.uid.clone()), cookie);
    }

    pub fn perform_removal(
        &mut self,
        cookie: NetnsCookie,
        rows: &mut FakeRows,
        kind: Kind,
        whole: bool,
    ) {
        if kind == Kind::RemovePod {
            rows.leaving = true;
            self.check_release(cookie, rows);
        } else {
            let first = rows.leaving || !self.tables.pods.contains_key(&cookie);
            self.require(first, || {
                format!("{kind:?} before the pod's row is removed")
            });
        }
        if !whole && !matches!(kind, Kind::RemoveRoutes) {
            return;
        }
        match kind {
            Kind::RemovePod => {
                self.stops_naming(cookie);
                self.tables.pods.remove(&cookie);
                rows.row = None;
            }
            Kind::DetachPrograms => {
                self.tables.lookups.remove(&cookie);
                self.held.remove(&cookie);
            }
            Kind::RemoveBeforeSidecar => {
                self.tables.before_sidecar.remove(&cookie);
            }
            Kind::RemoveHandshakeCount => {
                self.tables.handshakes.remove(&cookie);
            }
            Kind::RemoveRoutes => {
                let first = rows.routes.keys().next().copied();
                self.remove_old_routes(cookie, rows, |route| whole || Some(route) == first);
            }
            Kind::RemoveIfaces => {
                for index in std::mem::take(&mut rows.ifaces) {
                    self.tables.ifaces.remove(&(cookie, index));
                }
            }
            Kind::RemoveListeners => self.tables.listeners.retain(|(at, ..)| *at != cookie),
            Kind::RemoveCounters => {
                self.tables.counters.remove(&cookie);
            }
            Kind::RestoreNamespace => {
                if let Some(namespace) = self.namespaces.get_mut(&cookie) {
                    namespace.has_self_v6 &= !std::mem::take(&mut rows.added_v6);
                    namespace.has_return_route = false;
                }
            }
            _ => {}
        }
    }
}

/// How many of a step's rows are written: a step that fails has written half of them.
fn written(rows: usize, whole: bool) -> usize {
    if whole { rows } else { rows / 2 }
}
