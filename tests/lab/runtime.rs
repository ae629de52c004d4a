//! A container runtime's part in the start of a pod, as libcni does it: makes the network namespace,
//! then runs a chain of CNI plugins, each with the result of the one before.

use std::{
    fs,
    io::Write as _,
    path::PathBuf,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::{
    agent::binary,
    command::{die_with_parent, run},
    network::{Lab, PodNet},
};

/// Where Debian and others put the usual plugins.
const PLUGINS: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];
/// The version in configurations here, which Debian's plugins speak as well.
const VERSION: &str = "1.0.0";
/// The plugin's type.
const OURS: &str = "sidetrack-cni";

/// A runtime with a network configuration of its own.
#[derive(Debug)]
pub struct Runtime {
    outside: String,
    bin: PathBuf,
    conf: PathBuf,
}

/// A pod whose network was made.
#[derive(Debug)]
pub struct Sandbox {
    /// Its namespace's name.
    pub netns: String,
    /// Container id.
    pub container: String,
    /// `CNI_ARGS`.
    pub arguments: String,
    /// The last plugin's result.
    pub result: Value,
    /// How long the plugin took, alone.
    pub took: Duration,
}

/// What became of an ADD.
#[derive(Debug)]
pub enum Added {
    /// The pod may start.
    Ready(Box<Sandbox>),
    /// It must not; the plugin's error.
    Failed(Value),
}

impl Runtime {
    /// A bridge network; the plugin is not in it yet.
    pub fn new(lab: &Lab) -> Result<Self> {
        let bin = lab.dir().join("cni-bin");
        let conf = lab.dir().join("cni-conf");
        fs::create_dir(&bin)?;
        fs::create_dir(&conf)?;
        let there = PLUGINS
            .iter()
            .find(|dir| PathBuf::from(dir).join("bridge").exists());
        let there = there.context("the CNI plugins are missing: run `cargo xtask setup`")?;
        for plugin in ["bridge", "host-local", "tuning"] {
            std::os::unix::fs::symlink(PathBuf::from(there).join(plugin), bin.join(plugin))?;
        }
        let list = json!({
            "cniVersion": VERSION,
            "name": "lab",
            "plugins": [
                {
                    "type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
                    "ipam": {
                        "type": "host-local", "dataDir": lab.dir().join("ipam"),
                        "ranges": [[{"subnet": "10.88.0.0/16"}], [{"subnet": "fd88::/64"}]],
                        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
                    },
                },
                {"type": "tuning", "sysctl": {"net.core.somaxconn": "500"}},
            ],
        });
        fs::write(conf.join("10-lab.conflist"), list.to_string())?;
        Ok(Self {
            outside: lab.outside().netns,
            bin,
            conf,
        })
    }

    /// Directory of plugins.
    #[must_use]
    pub fn bin(&self) -> String {
        self.bin.display().to_string()
    }

    /// Directory of configurations.
    #[must_use]
    pub fn conf(&self) -> String {
        self.conf.display().to_string()
    }

    /// The configuration's file.
    #[must_use]
    pub fn list(&self) -> PathBuf {
        self.conf.join("10-lab.conflist")
    }

    /// The configuration as it is now.
    pub fn read(&self) -> Result<Value> {
        Ok(serde_json::from_slice(&fs::read(self.list())?)?)
    }

    /// Puts the plugin behind the others, for an agent that does not do it itself.
    pub fn install(&self, lab: &Lab, more: &[&str]) -> Result<()> {
        let mut words = vec!["install-cni", "--cni-bin-dir"];
        let (bin, conf) = (self.bin(), self.conf());
        words.extend([bin.as_str(), "--cni-conf-dir", &conf]);
        words.extend(more);
        let output = lab.places().output(&words)?;
        ensure!(output.status.success(), "install-cni: {output:?}");
        Ok(())
    }

    /// Makes a pod's network namespace and runs the chain. Whatever fails is cleaned up, as kubelet
    /// has it done.
    pub fn add(&self, lab: &mut Lab, pod: &str, uid: &str) -> Result<Added> {
        let netns = lab.empty_namespace()?;
        // containerd and CRI-O run the plugin loopback before all others.
        run(&format!("ip -n {netns} link set lo up"))?;
        let (namespace, pod) = pod.split_once('/').unwrap_or(("shop", pod));
        let arguments = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={pod};K8S_POD_INFRA_CONTAINER_ID={netns};K8S_POD_UID={uid}"
        );
        let mut sandbox = Sandbox {
            container: netns.clone(),
            netns,
            arguments,
            result: Value::Null,
            took: Duration::ZERO,
        };
        match self.run_chain(&mut sandbox) {
            Ok(None) => Ok(Added::Ready(Box::new(sandbox))),
            Ok(Some(error)) => {
                self.delete(lab, &sandbox)?;
                Ok(Added::Failed(error))
            }
            Err(error) => Err(error),
        }
    }

    fn run_chain(&self, sandbox: &mut Sandbox) -> Result<Option<Value>> {
        let list = self.read()?;
        for plugin in list["plugins"].as_array().context("plugins")? {
            let start = Instant::now();
            let output = self.plugin("ADD", plugin, &list, sandbox)?;
            if plugin["type"] == OURS {
                sandbox.took = start.elapsed();
            }
            let said: Value = serde_json::from_slice(&output.stdout)
                .with_context(|| format!("{plugin} said {output:?}"))?;
            if !output.status.success() {
                ensure!(plugin["type"] == OURS, "{plugin} failed: {said}");
                return Ok(Some(said));
            }
            sandbox.result = said;
        }
        Ok(None)
    }

    /// Runs a command of our plugin for a sandbox.
    pub fn ours(&self, command: &str, sandbox: &Sandbox) -> Result<Output> {
        let list = self.read()?;
        let plugins = list["plugins"].as_array().context("plugins")?;
        let ours = plugins.iter().find(|plugin| plugin["type"] == OURS);
        self.plugin(command, ours.context("our plugin")?, &list, sandbox)
    }

    fn plugin(
        &self,
        command: &str,
        plugin: &Value,
        list: &Value,
        sandbox: &Sandbox,
    ) -> Result<Output> {
        let mut config = plugin.clone();
        config["cniVersion"] = list["cniVersion"].clone();
        config["name"] = list["name"].clone();
        if !sandbox.result.is_null() {
            config["prevResult"] = sandbox.result.clone();
        }
        let program = self.bin.join(plugin["type"].as_str().context("type")?);
        // Plugins work in the node's network, which is the outside here.
        let mut process = Command::new("nsenter");
        process
            .arg(format!("--net=/run/netns/{}", self.outside))
            .arg(program)
            .env_clear()
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", &sandbox.container)
            .env("CNI_NETNS", format!("/run/netns/{}", sandbox.netns))
            .env("CNI_IFNAME", "eth0")
            .env("CNI_ARGS", &sandbox.arguments)
            .env("CNI_PATH", &self.bin)
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        run_with(&mut process, config.to_string().as_bytes())
    }

    /// The chain's DEL, backwards, and the end of the namespace.
    pub fn delete(&self, lab: &mut Lab, sandbox: &Sandbox) -> Result<()> {
        let list = self.read()?;
        for plugin in list["plugins"].as_array().context("plugins")?.iter().rev() {
            let output = self.plugin("DEL", plugin, &list, sandbox)?;
            if !output.status.success() {
                bail!("{plugin} failed to delete: {output:?}");
            }
        }
        lab.remove_namespace(&sandbox.netns)
    }
}

impl Sandbox {
    /// As a pod in which processes can be started.
    pub fn pod(&self, lab: &Lab, uid: &str) -> Result<PodNet> {
        let ips = self.result["ips"].as_array().context("addresses")?;
        let address = |family: fn(&std::net::IpAddr) -> bool| {
            ips.iter()
                .filter_map(|ip| ip["address"].as_str()?.split('/').next()?.parse().ok())
                .find(family)
                .context("an address")
        };
        Ok(PodNet {
            netns: self.netns.clone(),
            uid: uid.to_owned(),
            cgroup: lab.kubelet_cgroup(uid)?,
            v4: address(std::net::IpAddr::is_ipv4)?,
            v6: address(std::net::IpAddr::is_ipv6)?,
        })
    }
}

/// Runs a program to its end with something on its stdin.
pub fn run_with(command: &mut Command, stdin: &[u8]) -> Result<Output> {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = die_with_parent(command).spawn()?;
    // A program may end without reading what it is given.
    let _ = child.stdin.take().context("stdin")?.write_all(stdin);
    Ok(child.wait_with_output()?)
}

/// The plugin run by itself, with the variables given.
pub fn plugin(variables: &[(&str, &str)], stdin: &[u8]) -> Result<Output> {
    let mut command = Command::new(binary()?);
    command.env_clear().envs(variables.iter().copied());
    run_with(&mut command, stdin)
}
