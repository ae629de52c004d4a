//! Where the demo takes place: a bridge and two pods in network namespaces, a cgroup tree, a
//! directory. All of it is found again by name, so that a later run can tear it down.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    net::Ipv6Addr,
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use lab::{
    agent::{self, Places},
    command::run,
    ledger::{cgroup_root, remove_cgroup},
    network::{PodNet, bridge},
    private::mount_at,
    wait::eventually,
};
use nix::{
    mount::{MntFlags, umount2},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

/// Directory of files, sockets and the bpffs mount.
pub const DIR: &str = "/run/sidetrack-demo";
const CGROUP: &str = "sidetrack-demo";
/// Per-namespace configuration that `ip netns exec` shows to processes as /etc.
const NETNS_ETC: &str = "/etc/netns";

/// The node's side of the bridge.
pub const NODE: &str = "172.17.0.1";
/// The service, as in the article.
pub const SERVICE: (&str, u16) = ("10.109.118.31", 80);

/// A pod of the demo.
#[derive(Clone, Copy, Debug)]
pub struct DemoPod {
    /// Pod name.
    pub name: &'static str,
    /// Its address, as in the article.
    pub ip: &'static str,
}

/// The client, as in the article.
pub const UBUNTU: DemoPod = DemoPod {
    name: "ubuntu",
    ip: "172.17.0.9",
};
/// The server, as in the article.
pub const HTTPBIN: DemoPod = DemoPod {
    name: "httpbin",
    ip: "172.17.0.8",
};

impl DemoPod {
    /// Name of its network namespace.
    pub fn netns(self) -> String {
        format!("sidetrack-demo-{}", self.name)
    }
}

/// Name of the namespace that has the bridge, standing for the node.
pub fn node() -> String {
    "sidetrack-demo-node".to_owned()
}

fn cgroup() -> Result<PathBuf> {
    Ok(cgroup_root()?.join(CGROUP))
}

/// The demo's surroundings. Dropping it tears down them, unless [`Environment::keep`] was called.
#[derive(Debug)]
pub struct Environment {
    /// Python environment with Envoy and httpbin.
    pub tools: PathBuf,
    /// The agent's paths.
    pub places: Places,
    children: Vec<Child>,
    /// What BPF objects others have on this machine.
    before: BTreeSet<String>,
    keep: bool,
}

impl Environment {
    /// Builds them.
    pub fn new(tools: &Path) -> Result<Self> {
        let dir = Path::new(DIR);
        let cgroup = cgroup()?;
        let places = Places {
            bpffs: dir.join("bpf"),
            pods: dir.join("pods"),
            socket: dir.join("sidetrack.sock"),
            cgroup: cgroup.join("pods"),
            log: dir.join("agent.log"),
        };
        let environment = Self {
            tools: tools.to_owned(),
            places,
            children: Vec::new(),
            before: objects()?,
            keep: false,
        };
        fs::create_dir_all(&environment.places.pods)?;
        fs::create_dir_all(&environment.places.bpffs)?;
        mount_at("bpf", &environment.places.bpffs)?;
        fs::create_dir_all(&environment.places.cgroup).context("create the demo's cgroup")?;
        fs::create_dir(cgroup.join("agent"))?;
        environment.build_network()?;
        Ok(environment)
    }

    fn build_network(&self) -> Result<()> {
        let node = node();
        bridge::namespace(&node)?;
        bridge::add_bridge(&node, &[&format!("{NODE}/16")])?;
        for pod in [UBUNTU, HTTPBIN] {
            let (name, netns) = (pod.name, pod.netns());
            bridge::namespace(&netns)?;
            let address = format!("{}/16", pod.ip);
            bridge::connect((name, &netns), &node, &[&address], &[NODE])?;
            fs::create_dir(self.places.cgroup.join(name))?;
            let etc = Path::new(NETNS_ETC).join(&netns);
            fs::create_dir_all(&etc)?;
            fs::write(
                etc.join("hosts"),
                format!("127.0.0.1 localhost\n{} httpbin-service\n", SERVICE.0),
            )?;
        }
        Ok(())
    }

    /// A pod's network.
    pub fn net(&self, pod: DemoPod) -> Result<PodNet> {
        Ok(PodNet {
            netns: pod.netns(),
            uid: String::new(),
            cgroup: self.places.cgroup.join(pod.name),
            v4: pod.ip.parse()?,
            v6: Ipv6Addr::UNSPECIFIED.into(),
        })
    }

    /// A command that runs in a pod's cgroup and network namespace, as some user.
    pub fn in_pod(&self, pod: DemoPod, uid: u32, words: &[&str]) -> Command {
        self.in_pod_as(pod, (uid, uid), words)
    }

    /// The same as some user and group.
    pub fn in_pod_as(&self, pod: DemoPod, (uid, gid): (u32, u32), words: &[&str]) -> Command {
        let procs = self.places.cgroup.join(pod.name).join("cgroup.procs");
        let (uid, gid) = (uid.to_string(), gid.to_string());
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg(format!("echo $$ > {} && exec \"$@\"", procs.display()))
            .args(["sh", "ip", "netns", "exec", &pod.netns()])
            .args([
                "setpriv",
                "--reuid",
                &uid,
                "--regid",
                &gid,
                "--clear-groups",
                "--",
            ])
            .args(words);
        command
    }

    /// Starts something that runs until the end, with its output in a file.
    pub fn spawn(&mut self, mut command: Command, log: &str) -> Result<u32> {
        let log = File::create(Path::new(DIR).join(log))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("start {command:?}"))?;
        let pid = child.id();
        self.children.push(child);
        Ok(pid)
    }

    /// Ends something that [`Environment::spawn`] started.
    pub fn end(&mut self, pid: u32, signal: Signal) -> Result<()> {
        let position = self.children.iter().position(|child| child.id() == pid);
        let position = position.context("not one of ours")?;
        let mut child = self.children.remove(position);
        if child.try_wait()?.is_none() {
            kill(Pid::from_raw(pid as i32), signal)?;
        }
        child.wait()?;
        Ok(())
    }

    /// Starts the agent, in a cgroup of its own so that it is found again.
    pub fn spawn_agent(&mut self) -> Result<u32> {
        let procs = cgroup()?.join("agent/cgroup.procs");
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg(format!("echo $$ > {} && exec \"$@\"", procs.display()))
            .arg("sh")
            .arg(agent::binary()?)
            .arg("agent")
            .arg("--pods-dir")
            .arg(&self.places.pods)
            .arg("--cgroup")
            .arg(&self.places.cgroup)
            .arg("--bpffs")
            .arg(&self.places.bpffs)
            .arg("--socket")
            .arg(&self.places.socket);
        self.spawn(command, "agent.log")
    }

    /// Waits until a command in a pod succeeds.
    pub fn wait_for(&self, what: &str, mut attempt: impl FnMut() -> Result<Output>) -> Result<()> {
        eventually(Duration::from_secs(20), || {
            let output = attempt()?;
            ensure!(
                output.status.success(),
                "{what}: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
            Ok(())
        })
    }

    /// Leaves everything up.
    pub fn keep(&mut self) {
        self.keep = true;
    }

    /// Tears down everything, unless it is to be kept; answers what is still there.
    pub fn close(mut self) -> Result<String> {
        if self.keep {
            return Ok(String::new());
        }
        self.keep = true;
        teardown()?;
        for child in &mut self.children {
            child.wait()?;
        }
        traces(&self.before)
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        if !self.keep
            && let Err(error) = teardown()
        {
            eprintln!("demo: {error:#}; run `cargo xtask demo --down`");
        }
    }
}

/// Makes a file writable for a user.
pub fn give(path: &Path, uid: u32) -> Result<()> {
    chown(path, Some(uid), Some(uid)).with_context(|| format!("chown {}", path.display()))
}

/// Removes everything a demo makes; whether there was anything.
pub fn teardown() -> Result<bool> {
    let mut found = false;
    let cgroup = cgroup()?;
    if cgroup.exists() {
        found = true;
        end_all(&cgroup)?;
    }
    for netns in [node(), UBUNTU.netns(), HTTPBIN.netns()] {
        if Path::new("/run/netns").join(&netns).exists() {
            found = true;
            run(&format!("ip netns del {netns}"))?;
        }
        let _ = fs::remove_dir_all(Path::new(NETNS_ETC).join(&netns));
    }
    let _ = fs::remove_dir(NETNS_ETC);
    let dir = Path::new(DIR);
    if dir.exists() {
        found = true;
        let bpffs = dir.join("bpf");
        let pins = bpffs.join("sidetrack");
        if pins.exists() {
            fs::remove_dir_all(&pins).context("remove the demo's pins")?;
        }
        let _ = umount2(&bpffs, MntFlags::empty());
        fs::remove_dir_all(dir).context("remove the demo's directory")?;
    }
    if cgroup.exists() {
        remove_cgroup(&cgroup);
    }
    Ok(found)
}

/// Ends every process in a cgroup tree: only the demo puts processes there.
fn end_all(cgroup: &Path) -> Result<()> {
    for _ in 0..250 {
        let pids = pids_below(cgroup);
        if pids.is_empty() {
            return Ok(());
        }
        for pid in pids {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        thread::sleep(Duration::from_millis(20));
    }
    bail!("processes in {} do not end", cgroup.display())
}

/// Live processes in a cgroup tree.
fn pids_below(cgroup: &Path) -> Vec<i32> {
    let own = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    let mut pids: Vec<i32> = own
        .lines()
        .filter_map(|line| line.parse().ok())
        .filter(|pid| {
            let state = procfs::process::Process::new(*pid).and_then(|process| process.stat());
            state.is_ok_and(|stat| stat.state != 'Z')
        })
        .collect();
    for child in fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if child.path().is_dir() {
            pids.extend(pids_below(&child.path()));
        }
    }
    pids
}

/// BPF programs and links on the machine, by id.
fn objects() -> Result<BTreeSet<String>> {
    let mut objects = BTreeSet::new();
    for kind in ["prog", "link"] {
        let list: Value = serde_json::from_str(&run(&format!("bpftool -j {kind} show"))?)?;
        let ids = list
            .as_array()
            .into_iter()
            .flatten()
            .map(|object| &object["id"]);
        objects.extend(ids.map(|id| format!("{kind} {id}")));
    }
    Ok(objects)
}

/// What of the demo is still on the machine, as a sentence; empty if nothing is.
fn traces(before: &BTreeSet<String>) -> Result<String> {
    let mut traces = Vec::new();
    if run("ip netns list")?.contains("sidetrack-demo") {
        traces.push("network namespaces".to_owned());
    }
    // The kernel frees programs and links a moment after their last user.
    for _ in 0..100 {
        if objects()?.is_subset(before) {
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    traces.extend(objects()?.difference(before).cloned());
    for path in [Path::new(DIR), &cgroup()?] {
        if path.exists() {
            traces.push(path.display().to_string());
        }
    }
    Ok(traces.join(", "))
}
