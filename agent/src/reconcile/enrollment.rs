//! One pod's place in the kernel.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use sidetrack_common::{
    conn::{CountKey, ListenerKey},
    pod::{
        IfaceKey, IfaceRow, POD_ADDED_SELF_V6, POD_BEFORE_SIDECAR, POD_CAPTURE_V6,
        POD_HAS_IFACE_RULES, Pod, Route,
    },
};
use tokio::sync::mpsc;

use super::Inherited;
use crate::{
    kernel::{Datapath, maps::Maps, policies::Policies},
    netns::{
        Netns, inode_at,
        listeners::is_served,
        processes::{Found, Processes},
        routes::{RouteId, Snapshot},
        userns,
        watch::Watch,
    },
};
use sidetrack_policy::{PodRef, Policy, compiled::CompiledPolicy, manifest::NetnsRef};

/// The address istio-init adds to lo for IPv6, the sidecar's source towards the app.
const SELF_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6));

/// What is known of a pod that is to be enrolled.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Who it is.
    pub name: &'a PodRef,
    /// Its UID.
    pub uid: Option<&'a str>,
    /// How its network namespace is found.
    pub place: &'a NetnsRef,
    /// Where it was found.
    pub found: &'a Found,
    /// Its policy.
    pub policy: &'a Policy,
    /// Whether the pod is only beginning to run.
    pub starting: bool,
    /// Where to report changes in the namespace.
    pub changed: &'a mpsc::UnboundedSender<u64>,
    /// Which namespaces are taken.
    pub by_cookie: &'a HashMap<u64, PodRef>,
    /// Whether a pod is among those to be intercepted.
    pub listed: &'a dyn Fn(&PodRef) -> bool,
}

/// Exclusions of interfaces are not part of a policy's rows. Those that another policy brings are there
/// before it is in force, those that it takes away go after: in between a connection over such an
/// interface is untouched, as either of the two says, and all others are judged by one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The policy is about to be in force.
    Before,
    /// It is in force.
    After,
}

/// An enrolled pod.
#[derive(Debug)]
pub struct Enrollment {
    place: NetnsRef,
    netns_path: PathBuf,
    inode: u64,
    cookie: u64,
    policy: Policy,
    compiled: CompiledPolicy,
    policy_id: u32,
    ids: sidetrack_policy::ids::IdMaps,
    row: Box<Pod>,
    watch: Watch,
    routes: HashMap<RouteId, Route>,
    ifaces: HashMap<u32, IfaceRow>,
    loopback: Option<u32>,
    stale: bool,
}

impl Enrollment {
    /// Enrolls a pod. Until the last step its connections are untouched, or judged by what an
    /// earlier agent wrote.
    pub async fn new(
        request: Request<'_>,
        datapath: &Datapath,
        policies: &mut Policies,
        inherited: &mut Inherited,
        processes: &Processes,
    ) -> Result<Self> {
        let netns = Netns::open_found(request.found)?;
        let cookie = netns.cookie();
        let earlier = inherited.name(cookie).filter(|name| (request.listed)(name));
        let owner = request.by_cookie.get(&cookie).or(earlier);
        if let Some(other) = owner.filter(|other| *other != request.name) {
            bail!(
                "network namespace {} already belongs to pod {other}; every pod needs its own",
                request.found.path.display()
            );
        }
        let watch = Watch::new(&netns, request.changed.clone())
            .context("open a netlink socket in the pod")?;
        let snapshot = watch.snapshot().await?;
        let ids = userns::id_maps(&netns)?;
        let compiled = request.policy.on_node(&ids)?.compile();
        let mut row = pod_row(&request, &netns)?;
        let policy_id = policies.acquire(&compiled, &datapath.maps)?;
        row.policy = policy_id;
        row.flags =
            inherited.flags(cookie) & POD_ADDED_SELF_V6 | before_sidecar_flag(request.policy);
        let before_sidecar = request.starting && !inherited.has(cookie);
        let mut enrollment = Self {
            place: request.place.clone(),
            netns_path: request.found.path.clone(),
            inode: netns.inode(),
            cookie,
            policy: request.policy.clone(),
            compiled,
            policy_id,
            ids,
            row: Box::new(row),
            watch,
            routes: inherited.routes(cookie),
            ifaces: inherited.ifaces(cookie),
            loopback: snapshot.loopback(),
            stale: false,
        };
        match enrollment
            .go_live(&netns, snapshot, datapath, processes, before_sidecar)
            .await
        {
            Ok(()) => {
                inherited.forget(cookie);
                Ok(enrollment)
            }
            Err(error) if inherited.has(cookie) => {
                // An earlier agent's rows still judge it; taking them away would let it slip past.
                policies.release(&enrollment.compiled);
                inherited.add_rows(cookie, enrollment.routes, enrollment.ifaces);
                Err(error)
            }
            Err(error) => {
                if let Err(more) = enrollment.leave(datapath, policies).await {
                    tracing::error!("undo a failed enrollment: {more:#}");
                }
                Err(error)
            }
        }
    }

    /// The pod's row is written last; nothing after it may fail.
    async fn go_live(
        &mut self,
        netns: &Netns,
        mut snapshot: Snapshot,
        datapath: &Datapath,
        processes: &Processes,
        starting: bool,
    ) -> Result<()> {
        let maps = &datapath.maps;
        if snapshot.captures_v6(self.policy.dual_stack) {
            self.row.flags |= POD_CAPTURE_V6;
            self.add_self_v6(&snapshot).await?;
            snapshot = self.watch.snapshot().await?;
        }
        self.write_namespace(&snapshot, Step::Before, maps)?;
        datapath.attach_pod(self.cookie, netns.as_fd())?;
        self.adopt(processes, maps)?;
        let passes = starting && self.policy.before_sidecar;
        let port = self.policy.outbound_port;
        if passes && !is_served(netns, port)? {
            let written = maps.before_sidecar.insert(&self.cookie, &1);
            written.context("let the pod reach the network until its sidecar listens")?;
        }
        self.write_row(maps)?;
        // It may have begun to before the kernel programs could see that.
        if passes && is_served(netns, port)? {
            maps.before_sidecar.remove(&self.cookie)?;
        }
        self.stale = self.finish_namespace(&snapshot, maps).is_err();
        Ok(())
    }

    /// Gives lo the sidecar's IPv6 source address, as istio-init does.
    async fn add_self_v6(&mut self, snapshot: &Snapshot) -> Result<()> {
        let Some(lo) = self.loopback.filter(|_| !snapshot.has_address(SELF_V6)) else {
            return Ok(());
        };
        let added = self.watch.add_address(lo, SELF_V6).await;
        added.context("add ::6/128 to the pod's lo")?;
        self.row.flags |= POD_ADDED_SELF_V6;
        Ok(())
    }

    /// Takes the sidecar's open listeners into the map.
    pub fn adopt(&self, processes: &Processes, maps: &Maps) -> Result<()> {
        let ports: Vec<u16> = self.policy.listener_ports().collect();
        let missed = processes.adopt(self.inode, self.cookie, &ports, maps)?;
        if missed > 0 {
            tracing::warn!(
                cookie = self.cookie,
                missed,
                "open listeners of the sidecar could not be taken over, so inbound connections may be refused: restart the sidecar, unless the map of listeners is full, which `sidetrack status` says"
            );
        }
        Ok(())
    }

    /// Reads the namespace again and writes what changed. Until that has succeeded
    /// [`Enrollment::is_stale`].
    pub async fn refresh(&mut self, datapath: &Datapath) -> Result<()> {
        self.stale = true;
        let snapshot = self.watch.snapshot().await?;
        self.follow(snapshot, datapath).await
    }

    /// Writes what changed in the namespace, or follows for it from another policy.
    async fn follow(&mut self, snapshot: Snapshot, datapath: &Datapath) -> Result<()> {
        self.stale = true;
        self.loopback = snapshot.loopback();
        self.finish_namespace(&snapshot, &datapath.maps)?;
        if snapshot.captures_v6(self.policy.dual_stack) && !self.captures_v6() {
            self.add_self_v6(&snapshot).await?;
            self.row.flags |= POD_CAPTURE_V6;
            self.write_row(&datapath.maps)?;
        }
        // The other way round nothing is done: rules of istio-init stay as well.
        self.stale = false;
        Ok(())
    }

    /// Whether the kernel's copy of the namespace may be out of date.
    pub fn is_stale(&self) -> bool {
        self.stale || !self.watch.is_alive()
    }

    /// Brings the kernel's copy up to date again.
    pub async fn recover(
        &mut self,
        changed: &mpsc::UnboundedSender<u64>,
        datapath: &Datapath,
    ) -> Result<()> {
        if !self.watch.is_alive() {
            let netns = Netns::open(&self.netns_path)?;
            self.watch =
                Watch::new(&netns, changed.clone()).context("open a netlink socket in the pod")?;
        }
        self.refresh(datapath).await
    }

    /// Judges new connections by another policy.
    pub async fn change_policy(
        &mut self,
        policy: &Policy,
        datapath: &Datapath,
        policies: &mut Policies,
        processes: &Processes,
    ) -> Result<()> {
        let maps = &datapath.maps;
        // Read before anything changes: what follows the flip is only writing.
        let snapshot = self.watch.snapshot().await?;
        let compiled = policy.on_node(&self.ids)?.compile();
        let id = policies.acquire(&compiled, maps)?;
        let before = std::mem::replace(&mut self.policy, policy.clone());
        let ready = self
            .write_namespace(&snapshot, Step::Before, maps)
            .and_then(|()| self.adopt(processes, maps));
        self.row.policy = id;
        self.mark_before_sidecar(policy);
        let flipped = ready.and_then(|()| self.write_row(maps));
        if let Err(error) = flipped {
            policies.release(&compiled);
            self.row.policy = self.policy_id;
            self.mark_before_sidecar(&before);
            self.policy = before;
            self.stale = true;
            return Err(error);
        }
        policies.release(&std::mem::replace(&mut self.compiled, compiled));
        self.policy_id = id;
        self.stale = true;
        // The sidecar may listen on what is the outbound port only now.
        self.end_before_sidecar(maps)?;
        self.follow(snapshot, datapath).await
    }

    /// Has connections no longer go past the sidecar if it listens; whether they did.
    fn end_before_sidecar(&self, maps: &Maps) -> Result<bool> {
        let passes = maps.before_sidecar.get(&self.cookie)?.is_some();
        if !passes || inode_at(&self.netns_path) != Some(self.inode) {
            return Ok(false);
        }
        let netns = Netns::open(&self.netns_path)?;
        if !is_served(&netns, self.policy.outbound_port)? {
            return Ok(false);
        }
        Ok(maps.before_sidecar.remove(&self.cookie)?)
    }

    /// Takes the pod out; the row that judges it goes first.
    pub async fn leave(self, datapath: &Datapath, policies: &mut Policies) -> Result<()> {
        let maps = &datapath.maps;
        let mut first_error = Ok(());
        let mut keep = |result: Result<()>| {
            if first_error.is_ok() {
                first_error = result;
            }
        };
        keep(
            maps.pods
                .remove(&self.cookie)
                .map(drop)
                .context("remove the pod's row"),
        );
        keep(datapath.detach_pod(self.cookie));
        keep(
            maps.before_sidecar
                .remove(&self.cookie)
                .map(drop)
                .context("remove the pod's leave to go past its sidecar"),
        );
        keep(
            maps.handshakes_by_pod
                .remove(&self.cookie)
                .map(drop)
                .context("remove the pod's count of handshakes"),
        );
        for route in self.routes.keys() {
            keep(
                maps.routes
                    .remove(&route.key())
                    .map(drop)
                    .context("remove a route"),
            );
        }
        keep(self.remove_ifaces(maps));
        keep(remove_listeners(self.cookie, maps));
        keep(remove_counts(self.cookie, maps));
        policies.release(&self.compiled);
        if self.row.flags & POD_ADDED_SELF_V6 != 0
            && let Some(lo) = self.loopback
        {
            // The namespace may be going away at the same time.
            let _ = self.watch.remove_address(lo, SELF_V6).await;
        }
        first_error
    }

    /// Routes and interfaces as they are now, for the policy that is in force.
    fn finish_namespace(&mut self, snapshot: &Snapshot, maps: &Maps) -> Result<()> {
        let flags = self.row.flags;
        self.write_namespace(snapshot, Step::After, maps)?;
        if self.row.flags != flags {
            self.write_row(maps)?;
        }
        Ok(())
    }

    /// Routes and interfaces: new rows first, then the old ones go.
    fn write_namespace(&mut self, snapshot: &Snapshot, step: Step, maps: &Maps) -> Result<()> {
        let wanted = snapshot.rows(self.cookie, &self.policy.excluded_interfaces);
        // What is written is remembered at once, so that leaving half-way removes it.
        for (id, route) in &wanted {
            let earlier = self.routes.get(id);
            let included_again = route.excluded().is_none()
                && earlier.is_some_and(|earlier| earlier.excluded().is_some());
            if earlier != Some(route) && !(step == Step::Before && included_again) {
                let written = maps.routes.insert(&id.key(), route);
                written.context("write a route; is ROUTE_BY_POD full?")?;
                self.routes.insert(*id, *route);
            }
        }
        let gone: Vec<RouteId> = self
            .routes
            .keys()
            .filter(|id| !wanted.contains_key(id))
            .copied()
            .collect();
        for id in gone {
            maps.routes.remove(&id.key()).context("remove a route")?;
            self.routes.remove(&id);
        }

        let ifaces: HashMap<u32, IfaceRow> = snapshot
            .links
            .iter()
            .map(|(index, name)| (*index, self.policy.iface(name)))
            .filter(|(_, row)| *row != IfaceRow::PLAIN)
            .collect();
        for (ifindex, row) in &ifaces {
            if step == Step::Before && self.ifaces.contains_key(ifindex) {
                continue;
            }
            maps.ifaces
                .insert(&self.iface_key(*ifindex), row)
                .context("write an interface rule")?;
            self.ifaces.insert(*ifindex, *row);
        }
        if step == Step::After {
            let gone: Vec<u32> = self
                .ifaces
                .keys()
                .filter(|ifindex| !ifaces.contains_key(ifindex))
                .copied()
                .collect();
            for ifindex in gone {
                maps.ifaces
                    .remove(&self.iface_key(ifindex))
                    .context("remove an interface rule")?;
                self.ifaces.remove(&ifindex);
            }
        }
        self.row.flags &= !POD_HAS_IFACE_RULES;
        if !self.ifaces.is_empty() {
            self.row.flags |= POD_HAS_IFACE_RULES;
        }
        Ok(())
    }

    fn remove_ifaces(&self, maps: &Maps) -> Result<()> {
        for ifindex in self.ifaces.keys() {
            maps.ifaces
                .remove(&self.iface_key(*ifindex))
                .context("remove an interface rule")?;
        }
        Ok(())
    }

    fn iface_key(&self, ifindex: u32) -> IfaceKey {
        IfaceKey {
            netns: self.cookie,
            ifindex,
            pad: 0,
        }
    }

    fn mark_before_sidecar(&mut self, policy: &Policy) {
        self.row.flags = self.row.flags & !POD_BEFORE_SIDECAR | before_sidecar_flag(policy);
    }

    fn write_row(&self, maps: &Maps) -> Result<()> {
        maps.pods.insert(&self.cookie, &self.row).context(
            "write the pod's row; if the map is full, this node has more than 4096 sidecar pods",
        )
    }

    /// Writes rows again that are missing or different, the pod's own last; how many that were.
    pub fn mend(&self, maps: &Maps, buffer: &mut Vec<u8>) -> Result<usize> {
        let mut mended = 0;
        for (id, route) in &self.routes {
            mended += usize::from(maps.routes.repair(&id.key(), route, buffer)?);
        }
        for (ifindex, row) in &self.ifaces {
            let key = self.iface_key(*ifindex);
            mended += usize::from(maps.ifaces.repair(&key, row, buffer)?);
        }
        mended += usize::from(maps.pods.repair(&self.cookie, &self.row, buffer)?);
        // The kernel programs notice the first listener, unless they are away just then.
        mended += usize::from(self.end_before_sidecar(maps)?);
        Ok(mended)
    }

    /// Whether this is still the namespace of that place, as far as a look at it tells.
    pub fn is_at(&self, place: &NetnsRef) -> bool {
        self.place == *place && inode_at(&self.netns_path) == Some(self.inode)
    }

    /// The namespace is known by another place or path from now on.
    pub fn found_at(&mut self, place: NetnsRef, path: &Path) {
        self.place = place;
        self.netns_path = path.to_owned();
    }

    /// How the namespace is found.
    pub fn place(&self) -> &NetnsRef {
        &self.place
    }

    /// The path the namespace was found by.
    pub fn netns_path(&self) -> &Path {
        &self.netns_path
    }

    /// The namespace's inode.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// The namespace's cookie.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// The policy in force.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Its id in the maps.
    pub fn policy_id(&self) -> u32 {
        self.policy_id
    }

    /// What people should know of the pod although nothing is wrong.
    pub fn notes(&self) -> Vec<String> {
        let ids = self.ids.to_string();
        let users = (!ids.is_empty())
            .then(|| format!("it numbers its users on its own: on the node, {ids}"));
        users.into_iter().chain(self.policy.notes()).collect()
    }

    /// Whether IPv6 is captured.
    pub fn captures_v6(&self) -> bool {
        self.row.flags & POD_CAPTURE_V6 != 0
    }
}

/// Removes a pod's listeners from the map; the sockets stay open.
pub fn remove_listeners(cookie: u64, maps: &Maps) -> Result<()> {
    let keys: Vec<ListenerKey> = maps.listeners.keys().context("list listeners")?;
    for key in keys.iter().filter(|key| key.netns == cookie) {
        maps.listeners.remove(key).context("remove a listener")?;
    }
    Ok(())
}

/// Removes a pod's counters.
pub fn remove_counts(cookie: u64, maps: &Maps) -> Result<()> {
    let keys: Vec<CountKey> = maps.counts.keys().context("list counters")?;
    for key in keys.iter().filter(|key| key.netns == cookie) {
        maps.counts.remove(key).context("remove a counter")?;
    }
    Ok(())
}

const fn before_sidecar_flag(policy: &Policy) -> u32 {
    if policy.before_sidecar {
        POD_BEFORE_SIDECAR
    } else {
        0
    }
}

fn pod_row(request: &Request<'_>, netns: &Netns) -> Result<Pod> {
    Ok(Pod {
        policy: 0,
        flags: 0,
        netns_inode: netns.inode(),
        namespace: padded(&request.name.namespace).context("the pod's namespace")?,
        name: padded(&request.name.name).context("the pod's name")?,
        uid: padded(request.uid.unwrap_or_default()).context("the pod's UID")?,
    })
}

fn padded<const LEN: usize>(text: &str) -> Result<[u8; LEN]> {
    if text.len() >= LEN {
        bail!("{text:?} is longer than Kubernetes allows");
    }
    let mut bytes = [0; LEN];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    Ok(bytes)
}
