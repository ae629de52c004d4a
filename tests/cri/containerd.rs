//! A containerd of our own, with runc and Debian's network plugins: what kubelet talks to on a node.
//!
//! It runs in namespaces of its own. The bridge between its pods is in the lab's outside, not in the
//! machine's network. What it mounts is not visible elsewhere, except the pods' network namespaces in
//! /run/netns, which the agent has to find. All processes below it, shims and containers, are in one
//! pid namespace, so that they end with it however this process ends: shims are made to outlive
//! containerd.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lab::{
    command::{die_with_parent, run_words},
    ledger::remove_cgroup,
    network::Lab,
    private::mount_at,
    wait::eventually,
};
use nix::mount::{MsFlags, mount};
use serde_json::json;

use crate::{cgroups, client::Client, image};

/// Where shims have their sockets, whatever the configuration says; everything else goes there, too.
const HOME: &str = "/run/containerd";
/// Where libcni keeps what it was answered, below a directory that nothing else here needs.
const VAR_LIB: &str = "/var/lib";
/// Where Debian has the network plugins, and where others have them.
const PLUGINS: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];
/// How long it may take to start.
const WAIT_TIMEOUT: Duration = Duration::from_secs(20);

/// The pods' addresses.
pub const SUBNET: &str = "10.79.0.0/24";

/// A running one; dropping it ends it and all it has started.
#[derive(Debug)]
pub struct Containerd {
    /// The connection to it.
    pub client: Client,
    _process: Process,
    /// Directory of the network's plugins.
    pub bin_dir: PathBuf,
    /// Directory of its configuration.
    pub conf_dir: PathBuf,
    /// What is above the pods' cgroups, as CRI wants it.
    pub cgroup_parent: String,
    addresses: PathBuf,
}

/// Its process, and its cgroups.
#[derive(Debug)]
struct Process {
    child: Child,
    parent: String,
}

/// Makes places that it cannot be talked out of private. This process must be in a mount namespace of
/// its own.
pub fn cover_places() -> Result<()> {
    fs::create_dir_all(HOME).with_context(|| format!("create {HOME}"))?;
    mount_at("tmpfs", Path::new(HOME))?;
    mount_at("tmpfs", Path::new(VAR_LIB))?;
    // The network namespaces that containerd mounts there in its mount namespace are to appear in ours.
    mount(
        None::<&str>,
        "/run/netns",
        None::<&str>,
        MsFlags::MS_SHARED,
        None::<&str>,
    )
    .context("make /run/netns shared")
}

impl Containerd {
    /// Starts one whose pods are in the lab's cgroup. `install` puts more plugins into the directories
    /// it is given, of plugins and of configurations, before they are used.
    pub fn start(lab: &Lab, install: impl FnOnce(&Path, &Path) -> Result<()>) -> Result<Self> {
        let dir = lab.dir().join("containerd");
        let (bin_dir, conf_dir) = (dir.join("bin"), dir.join("net.d"));
        let addresses = Path::new(VAR_LIB).join("cni/addresses");
        fs::create_dir_all(&bin_dir)?;
        fs::create_dir_all(&conf_dir)?;
        for name in ["bridge", "host-local", "loopback"] {
            let mut places = PLUGINS.iter().map(|dir| Path::new(dir).join(name));
            let plugin = places.find(|path| path.exists());
            let plugin = plugin.with_context(|| format!("no {name} in {}", PLUGINS.join(", ")))?;
            symlink(plugin, bin_dir.join(name))?;
        }
        let network = json!({
            "cniVersion": "1.0.0", "name": "pods", "plugins": [{
                "type": "bridge", "bridge": "pods0", "isGateway": true,
                "ipam": {
                    "type": "host-local", "dataDir": addresses,
                    "ranges": [[{"subnet": SUBNET}]], "routes": [{"dst": "0.0.0.0/0"}],
                },
            }],
        });
        fs::write(conf_dir.join("10-pods.conflist"), network.to_string())?;
        install(&bin_dir, &conf_dir)?;
        let config = dir.join("config.toml");
        fs::write(&config, configuration(&bin_dir, &conf_dir))?;

        let places = lab.places();
        let name = places.cgroup.file_name().context("the lab's cgroup")?;
        let cgroup_parent = format!("/{}/pods", name.to_string_lossy());
        // runc, where it manages controllers of cgroup v1, leaves processes in the cgroup2 directory
        // they are started in: this one, and everything below it is what the hooks see. Where there is
        // only cgroup2 it makes directories below the parent, which is in the lab's, too.
        let own = places.cgroup.join("containerd");
        fs::create_dir(&own)?;
        let log = dir.join("log");
        let process = Process {
            child: spawn(&own, &lab.outside().path(), &config, &log)?,
            parent: cgroup_parent.clone(),
        };
        let client = connect().with_context(|| {
            format!(
                "containerd did not start; its log:\n{}",
                fs::read_to_string(&log).unwrap_or_default()
            )
        })?;
        let own = Self {
            client,
            _process: process,
            bin_dir,
            conf_dir,
            cgroup_parent,
            addresses,
        };
        own.import(&dir)?;
        Ok(own)
    }

    /// Its image, unpacked and known to CRI.
    fn import(&self, dir: &Path) -> Result<()> {
        let archive = image::build(&dir.join("image"))?;
        run_words(&[
            "ctr",
            "--address",
            &socket(),
            "--namespace",
            "k8s.io",
            "images",
            "import",
            &archive.to_string_lossy(),
        ])?;
        // CRI hears of it by an event.
        for name in image::NAMES {
            wait(|| self.client.has_image(name)).with_context(|| format!("image {name}"))?;
        }
        Ok(())
    }

    /// Stops and removes all sandboxes.
    pub fn remove_all(&self) -> Result<()> {
        for id in self.client.sandboxes()? {
            self.client.stop_sandbox(&id)?;
            self.client.remove_sandbox(&id)?;
        }
        Ok(())
    }

    /// No sandbox, address, result of a plugin, network namespace, process or cgroup of a container. The
    /// pods' own cgroups are kubelet's to remove.
    pub fn nothing_remains(&self, lab: &Lab) -> Result<()> {
        let sandboxes = self.client.sandboxes()?;
        ensure!(sandboxes.is_empty(), "sandboxes: {sandboxes:?}");
        let is_address = |name: &String| name.parse::<std::net::IpAddr>().is_ok();
        let addresses = names_in(&self.addresses.join("pods"));
        ensure!(
            !addresses.iter().any(is_address),
            "addresses: {addresses:?}"
        );
        let results = names_in(&Path::new(VAR_LIB).join("cni/results"));
        ensure!(results.is_empty(), "results: {results:?}");
        let namespaces = names_in(Path::new("/run/netns"));
        ensure!(
            !namespaces.iter().any(|name| name.starts_with("cni-")),
            "network namespaces: {namespaces:?}"
        );
        let cgroups = cgroups::of_containers(&self.cgroup_parent)?;
        ensure!(cgroups.is_empty(), "cgroups: {cgroups:?}");
        // Shims end a moment after they have answered.
        wait(|| Ok(other_processes(lab)?.is_empty()))
            .with_context(|| format!("processes: {:?}", other_processes(lab)))
    }
}

fn socket() -> String {
    format!("{HOME}/containerd.sock")
}

fn configuration(bin_dir: &Path, conf_dir: &Path) -> String {
    format!(
        r#"version = 2
root = "{HOME}/root"
state = "{HOME}/state"
# The first would make /opt/containerd on the machine, the others need what is not there.
disabled_plugins = [
    "io.containerd.internal.v1.opt",
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.zfs",
]

[grpc]
address = "{}"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{}"
# Not every root may make a process less likely to be ended when memory is short.
restrict_oom_score_adj = true
# Of the machine, and of no concern here.
disable_apparmor = true

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{}"
conf_dir = "{}"
"#,
        socket(),
        image::PAUSE,
        bin_dir.display(),
        conf_dir.display(),
    )
}

fn spawn(cgroup: &Path, netns: &str, config: &Path, log: &Path) -> Result<Child> {
    // sh is process 1, for it reaps what the shims leave.
    const SCRIPT: &str = r#"echo $$ > "$1/cgroup.procs" || exit
exec nsenter --net="$2" \
    unshare --mount --propagation unchanged --pid --fork --kill-child --mount-proc \
    sh -c 'containerd --config "$1" & wait' sh "$3""#;
    let log = fs::File::create(log)?;
    let mut command = Command::new("sh");
    command
        .args(["-c", SCRIPT, "sh"])
        .arg(cgroup)
        .arg(netns)
        .arg(config)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    die_with_parent(&mut command)
        .spawn()
        .context("start containerd")
}

fn connect() -> Result<Client> {
    let socket = PathBuf::from(socket());
    let mut client = None;
    let mut missing = Vec::new();
    wait(|| {
        let client = match &client {
            Some(client) => client,
            None => match Client::connect(&socket) {
                Ok(new) => client.insert(new),
                Err(_) => return Ok(false),
            },
        };
        match client.missing() {
            Ok(still) => missing = still,
            Err(error) => missing = vec![format!("{error:#}")],
        }
        Ok(missing.is_empty())
    })
    .with_context(|| missing.join("; "))?;
    client.context("a connection")
}

/// Waits until something is the case.
pub fn wait(mut is: impl FnMut() -> Result<bool>) -> Result<()> {
    eventually(WAIT_TIMEOUT, || {
        ensure!(is()?, "not within {WAIT_TIMEOUT:?}");
        Ok(())
    })
}

fn names_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

/// What runs in the lab's cgroup beside containerd and what started it.
fn other_processes(lab: &Lab) -> Result<Vec<String>> {
    let own = lab.places().cgroup.join("containerd/cgroup.procs");
    let mut others = Vec::new();
    for pid in fs::read_to_string(own)?.lines() {
        let Ok(name) = fs::read_to_string(format!("/proc/{pid}/comm")) else {
            continue;
        };
        if !matches!(name.trim(), "unshare" | "sh" | "containerd") {
            others.push(format!("{pid} {}", name.trim()));
        }
    }
    Ok(others)
}

impl Drop for Containerd {
    fn drop(&mut self) {
        if let Err(error) = self.remove_all() {
            eprintln!("containerd: {error:#}");
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for cgroup in cgroups::roots(&self.parent).unwrap_or_default() {
            remove_cgroup(&cgroup);
        }
    }
}
