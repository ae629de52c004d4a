//! Pods without Kubernetes: a network namespace and a cgroup each, on a bridge that is in a
//! namespace of its own, so that nothing touches the machine's network.

pub mod bridge;
mod manifest;

use std::{
    fmt::Display,
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    process::{self, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::mount::{MntFlags, umount2};
use tempfile::TempDir;

pub use self::{
    bridge::{GATEWAY_MAC, Wire, set_sysctl},
    manifest::{Manifest, manifest},
};
use crate::{
    actor::Actor,
    agent::{Places, gone},
    command::{Process, run},
    ledger::{PREFIX, cgroup_root, remove_cgroup},
    private::mount_at,
    wait::eventually,
};

static LABS: AtomicU32 = AtomicU32::new(0);

/// Where traffic goes that leaves a pod; it answers for [`Lab::outside`] addresses.
pub const GATEWAY: &str = "10.77.0.254";

/// The outside's interface toward the second interface of a pod.
pub const BESIDE: &str = "beside";

/// What users of [`Lab::pod_with_own_users`] have for 0.
pub const FIRST_OWN_USER: u32 = 100_000;

/// A network with pods.
#[derive(Debug)]
pub struct Lab {
    id: String,
    places: Places,
    dir: TempDir,
    namespaces: Vec<String>,
    /// How many empty ones there have been.
    made: usize,
}

/// A pod.
#[derive(Clone, Debug)]
pub struct PodNet {
    /// Name of its network namespace.
    pub netns: String,
    /// Its UID; empty for what is no pod.
    pub uid: String,
    /// The cgroup of its processes, below the one named after its UID.
    pub cgroup: PathBuf,
    /// IPv4 address.
    pub v4: IpAddr,
    /// IPv6 address.
    pub v6: IpAddr,
}

impl PodNet {
    /// Starts an actor inside.
    pub fn actor(&self) -> Result<Actor> {
        Actor::start(&self.netns, &self.cgroup)
    }

    /// A command that runs inside as a user with the group of the same number, and no other. Its resolv.conf is
    /// `/etc/netns/NAME/resolv.conf`, if there is one.
    #[must_use]
    pub fn command(&self, user: u32, program: &Path, arguments: &[&str]) -> Command {
        const JOIN: &str = "cgroup=$1; netns=$2; user=$3; shift 3; \
            echo $$ > $cgroup/cgroup.procs && \
            exec ip netns exec $netns setpriv --reuid $user --regid $user --clear-groups -- \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", JOIN, "sh"]);
        command.arg(&self.cgroup).arg(&self.netns);
        command.arg(user.to_string()).arg(program).args(arguments);
        command
    }

    /// Gives it a second interface, [`BESIDE`] on the other side, with the addresses 10.78.0.2 and
    /// fd78::2, and routes that refuse in every way a route can.
    pub fn furnish(&self, outside: &Self) -> Result<()> {
        self.ip(&format!(
            "link add eth1 type veth peer name {BESIDE} netns {}",
            outside.netns
        ))?;
        for line in [
            "link set eth1 up",
            "address add 10.78.0.2/24 dev eth1",
            "address add fd78::2/64 dev eth1 nodad",
            "route add blackhole 10.201.0.0/16",
            "route add unreachable 10.202.0.0/16",
            "route add prohibit 10.203.0.0/16",
            // Within the route to the services, if there is one.
            "route add throw 10.109.204.0/24",
            "-6 route add throw fd99::204:0/112 metric 1",
            "route add blackhole fdb1::/64 metric 1",
            "route add unreachable fdb2::/64 metric 1",
            "route add prohibit fdb3::/64 metric 1",
        ] {
            self.ip(line)?;
        }
        for line in [
            format!("link set {BESIDE} up"),
            format!("address add 10.78.0.254/24 dev {BESIDE}"),
            format!("address add fd78::fe/64 dev {BESIDE} nodad"),
            // By the first interface, unless a socket is bound to the second.
            format!("route add 10.78.0.2/32 via {}", self.v4),
            format!("route add fd78::2/128 via {} metric 1", self.v6),
            format!("route add fd78::2/128 dev {BESIDE} metric 9"),
        ] {
            outside.ip(&line)?;
        }
        Ok(())
    }

    /// The same pod, its processes in a cgroup named as kubelet's systemd driver names it.
    pub fn under_kubelet(mut self, lab: &Lab, uid: &str) -> Result<Self> {
        self.cgroup = lab.kubelet_cgroup(uid)?;
        uid.clone_into(&mut self.uid);
        Ok(self)
    }

    /// The cgroup named after its UID.
    #[must_use]
    pub fn own_cgroup(&self) -> &Path {
        self.cgroup.parent().unwrap_or(&self.cgroup)
    }

    /// Runs `ip` inside.
    pub fn ip(&self, arguments: &str) -> Result<String> {
        run(&format!("ip -n {} {arguments}", self.netns))
    }

    /// Path of its namespace.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/run/netns/{}", self.netns)
    }
}

impl Lab {
    /// A network without pods.
    pub fn new() -> Result<Self> {
        let id = format!("{}-{}", process::id(), LABS.fetch_add(1, Ordering::Relaxed));
        let dir = tempfile::Builder::new().prefix(PREFIX).tempdir()?;
        let cgroup = cgroup_root()?.join(format!("{PREFIX}{id}"));
        fs::create_dir(&cgroup).with_context(|| format!("create cgroup {}", cgroup.display()))?;
        let places = Places {
            bpffs: dir.path().join("bpf"),
            pods: dir.path().join("pods"),
            socket: dir.path().join("sidetrack.sock"),
            log: dir.path().join("agent.log"),
            cgroup,
        };
        let mut lab = Self {
            id,
            places,
            dir,
            namespaces: Vec::new(),
            made: 0,
        };
        fs::create_dir(&lab.places.pods)?;
        fs::create_dir(&lab.places.bpffs)?;
        mount_at("bpf", &lab.places.bpffs)?;
        let outside = lab.namespace("out")?;
        bridge::add_bridge(&outside, &[&format!("{GATEWAY}/16"), "fd77::fe/64"])?;
        Ok(lab)
    }

    /// What the agent of this network is started with.
    #[must_use]
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// A directory for files.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn namespace(&mut self, name: &str) -> Result<String> {
        let name = format!("st{}-{name}", self.id);
        bridge::namespace(&name)?;
        self.namespaces.push(name.clone());
        Ok(name)
    }

    /// A network namespace that belongs to a user namespace without processes, as container
    /// runtimes create them.
    fn namespace_with_own_users(&mut self, name: &str) -> Result<String> {
        let name = format!("st{}-{name}", self.id);
        let mut holder = Command::new("unshare");
        holder.args(["--user", "--net", "sleep", "60"]);
        let holder = Process::start(&mut holder)?;
        let pid = holder.id();
        let attached = wait_for_user_namespace(pid).and_then(|()| {
            for file in ["uid_map", "gid_map"] {
                let map = format!("0 {FIRST_OWN_USER} 65536");
                fs::write(format!("/proc/{pid}/{file}"), map).context("map users")?;
            }
            run(&format!("ip netns attach {name} {pid}"))
        });
        drop(holder);
        attached?;
        self.namespaces.push(name.clone());
        run(&format!("ip -n {name} link set lo up"))?;
        Ok(name)
    }

    /// The namespace that everything outside the pods is in.
    #[must_use]
    pub fn outside(&self) -> PodNet {
        PodNet {
            netns: format!("st{}-out", self.id),
            uid: String::new(),
            cgroup: self.places.cgroup.clone(),
            v4: GATEWAY.parse().expect("an address"),
            v6: "fd77::fe".parse().expect("an address"),
        }
    }

    /// Gives the outside another address, reached through the gateway.
    pub fn add_outside(&self, address: &str) -> Result<()> {
        // Even on lo an IPv6 address cannot be bound before the kernel's workers have looked at it.
        let at_once = if address.contains(':') { "nodad" } else { "" };
        self.outside()
            .ip(&format!("address add {address} dev lo {at_once}"))
            .map(drop)
    }

    /// Adds a pod with the addresses 10.77.0.N and fd77::N.
    pub fn pod(&mut self, name: &str, number: u8) -> Result<PodNet> {
        self.pod_at(
            name,
            &format!("10.77.0.{number}"),
            &format!("fd77::{number}"),
        )
    }

    /// Adds a pod with given addresses.
    pub fn pod_at(&mut self, name: &str, v4: &str, v6: &str) -> Result<PodNet> {
        let netns = self.namespace(name)?;
        self.connect(name, netns, v4, v6)
    }

    /// Adds a pod as `hostUsers: false` has it: its users are numbered from [`FIRST_OWN_USER`].
    pub fn pod_with_own_users(&mut self, name: &str, number: u8) -> Result<PodNet> {
        let netns = self.namespace_with_own_users(name)?;
        let (v4, v6) = (format!("10.77.0.{number}"), format!("fd77::{number}"));
        self.connect(name, netns, &v4, &v6)
    }

    /// Adds a pod that is connected in another way.
    pub fn pod_by(&mut self, wire: Wire, name: &str, number: u8) -> Result<PodNet> {
        let netns = self.namespace(name)?;
        let (v4, v6) = (format!("10.77.0.{number}"), format!("fd77::{number}"));
        let outside = self.outside().netns;
        bridge::connect_by(wire, (name, &netns), &outside, [&v4, &v6])?;
        self.as_pod(netns, &v4, &v6)
    }

    fn connect(&mut self, name: &str, netns: String, v4: &str, v6: &str) -> Result<PodNet> {
        let outside = format!("st{}-out", self.id);
        let addresses = [format!("{v4}/16"), format!("{v6}/64")];
        bridge::connect(
            (name, &netns),
            &outside,
            &addresses.each_ref().map(String::as_str),
            &[GATEWAY, "fd77::fe"],
        )?;
        self.as_pod(netns, v4, v6)
    }

    fn as_pod(&self, netns: String, v4: &str, v6: &str) -> Result<PodNet> {
        // Beside the numbers that tests choose themselves.
        const FIRST: usize = 1 << 16;
        let uid = self.uid(FIRST + self.namespaces.len());
        let cgroup = self.kubelet_cgroup(&uid)?;
        Ok(PodNet {
            netns,
            uid,
            cgroup,
            v4: v4.parse().context("an IPv4 address")?,
            v6: v6.parse().context("an IPv6 address")?,
        })
    }

    /// A pod's UID. They are looked for among all processes of the machine, so every network has its
    /// own.
    #[must_use]
    pub fn uid(&self, number: usize) -> String {
        let (process, lab) = self.id.split_once('-').unwrap_or(("0", "0"));
        let number_of = |text: &str| text.parse::<u32>().unwrap_or_default();
        let (process, lab) = (number_of(process), number_of(lab) & 0xffff);
        format!("{process:08x}-{lab:04x}-4b52-9c3a-{number:012x}")
    }

    /// A container's cgroup in the pod with this UID, as kubelet's systemd driver and containerd name
    /// it.
    pub fn kubelet_cgroup(&self, uid: &str) -> Result<PathBuf> {
        let pod = uid.replace('-', "_");
        let path = self.places.cgroup.join(format!(
            "kubepods-burstable.slice/kubepods-burstable-pod{pod}.slice/cri-containerd-{pod}.scope"
        ));
        fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// Adds a network namespace as container runtimes make them: with nothing in it, not even lo up.
    pub fn empty_namespace(&mut self) -> Result<String> {
        self.made += 1;
        let name = format!("st{}-n{}", self.id, self.made);
        run(&format!("ip netns add {name}"))?;
        self.namespaces.push(name.clone());
        Ok(name)
    }

    /// Starts a process that does nothing, in a network namespace and in the cgroup of the pod with this UID.
    pub fn idle_process(&self, netns: &str, uid: &str) -> Result<Process> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", netns, "sleep", "1000"]);
        let process = Process::start(command.stdout(Stdio::null()))?;
        let cgroup = self.kubelet_cgroup(uid)?;
        fs::write(cgroup.join("cgroup.procs"), process.id().to_string())?;
        Ok(process)
    }

    /// Removes a network namespace.
    pub fn remove_namespace(&mut self, name: &str) -> Result<()> {
        self.namespaces.retain(|known| known != name);
        run(&format!("ip netns del {name}")).map(drop)
    }

    /// Adds many network namespaces at once, with nothing in them but lo.
    pub fn bare_namespaces(&mut self, count: usize) -> Result<Vec<String>> {
        let names: Vec<String> = (0..count)
            .map(|number| format!("st{}-b{number}", self.id))
            .collect();
        let file = self.dir.path().join("batch");
        let lines: String = names
            .iter()
            .map(|name| format!("netns add {name}\n"))
            .collect();
        fs::write(&file, lines)?;
        self.namespaces.extend(names.clone());
        run(&format!("ip -batch {}", file.display()))?;
        Ok(names)
    }

    /// Writes the manifest of a pod with these annotations, and waits until it is enrolled by it.
    pub fn enroll(&self, name: &str, pod: &PodNet, annotations: &[(&str, &str)]) -> Result<()> {
        self.enroll_manifest(name, &manifest(name, pod, annotations))
    }

    /// Writes the manifest of a pod, and waits until an agent has enrolled it by its policy: a pod that is enrolled
    /// already has the previous one until the agent has read the manifest.
    pub fn enroll_manifest(&self, name: &str, manifest: &Manifest) -> Result<()> {
        self.write_manifest(name, manifest)?;
        let policy = manifest.policy()?;
        self.places.wait_policy(&format!("test/{name}"), &policy)
    }

    /// Writes the manifest of a pod with these annotations.
    pub fn write_pod(&self, name: &str, pod: &PodNet, annotations: &[(&str, &str)]) -> Result<()> {
        self.write_manifest(name, &manifest(name, pod, annotations))
    }

    /// Writes a manifest, or what else is to be read as one.
    pub fn write_manifest(&self, name: &str, manifest: &(impl Display + ?Sized)) -> Result<()> {
        // Written aside and renamed, as careful tools do.
        let path = self.places.pods.join(format!("{name}.yaml"));
        let aside = self.dir.path().join(format!("{name}.new"));
        fs::write(&aside, manifest.to_string())?;
        Ok(fs::rename(aside, path)?)
    }

    /// Removes the manifest of a pod, and waits until an agent has released it.
    pub fn release(&self, name: &str) -> Result<()> {
        self.remove_manifest(name)?;
        self.places
            .wait_pod(&format!("test/{name}"), gone)
            .map(drop)
    }

    /// Removes a manifest.
    pub fn remove_manifest(&self, name: &str) -> Result<()> {
        Ok(fs::remove_file(
            self.places.pods.join(format!("{name}.yaml")),
        )?)
    }
}

fn wait_for_user_namespace(pid: u32) -> Result<()> {
    let own = fs::read_link("/proc/self/ns/user")?;
    eventually(Duration::from_secs(5), || {
        let user = fs::read_link(format!("/proc/{pid}/ns/user"))?;
        let net = fs::read_link(format!("/proc/{pid}/ns/net"))?;
        let is_made = user != own && net != fs::read_link("/proc/self/ns/net")?;
        ensure!(is_made, "unshare made no namespaces");
        Ok(())
    })
}

impl Drop for Lab {
    fn drop(&mut self) {
        for name in &self.namespaces {
            let _ = run(&format!("ip netns del {name}"));
        }
        // Else the directory cannot be removed.
        let mounts = procfs::process::Process::myself().and_then(|process| process.mountinfo());
        for mount in mounts.into_iter().flatten() {
            if mount.mount_point.starts_with(self.dir()) {
                let _ = umount2(&mount.mount_point, MntFlags::MNT_DETACH);
            }
        }
        remove_cgroup(&self.places.cgroup);
    }
}
