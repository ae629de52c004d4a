//! Two pods alike in everything but who redirects.

mod pod;

use std::{
    fs,
    net::{IpAddr, TcpListener},
    path::PathBuf,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use lab::{
    agent::{Agent, Extra, Places},
    command::output,
};
use serde_json::Value;

pub use self::pod::{NEIGHBOR, PairedPod, TAP};
use crate::{
    profiles::Profile,
    target::{Rules, Target},
};

/// Both.
pub struct PodPair {
    agent: Agent,
    /// What both have set.
    pub profile: Option<&'static Profile>,
    /// With iptables rules.
    pub oracle: PairedPod,
    /// Enrolled.
    pub ours: PairedPod,
    /// Where the agent serves metrics.
    pub metrics: String,
}

impl PodPair {
    /// Builds both; nothing is redirected yet.
    pub fn new(profile: Option<&'static Profile>) -> Result<Self> {
        let oracle = PairedPod::new(profile)?;
        let ours = PairedPod::new(profile)?;
        ours.add_rules()?;
        let listener = TcpListener::bind("127.0.0.1:0").context("find a free port")?;
        let metrics = listener.local_addr()?.to_string();
        drop(listener);
        let counted = [
            "--metrics-addr",
            &metrics,
            "--metrics-per-pod",
            "1",
            "--ambient",
        ];
        Ok(Self {
            agent: Agent::start_with(ours.lab.places(), &Extra::arguments(&counted))?,
            profile,
            oracle,
            ours,
            metrics,
        })
    }

    /// Ends both sidecars.
    pub fn close_sidecars(&mut self, target: &Target) -> Result<()> {
        self.oracle.close_sidecar(target)?;
        self.ours.close_sidecar(target)
    }

    /// Starts both again.
    pub fn open_sidecars(&mut self, target: &Target) -> Result<()> {
        self.oracle.open_sidecar(target)?;
        self.ours.open_sidecar(target)
    }

    /// Where the agent keeps things.
    pub fn places(&self) -> &Places {
        &self.agent.places
    }

    /// Puts both under a policy.
    pub fn set(&mut self, target: &Target) -> Result<()> {
        for pod in [&mut self.oracle, &mut self.ours] {
            pod.prepare(target)?;
        }
        let netns = self.ours.pod.path();
        let text = target.manifest(&netns);
        self.ours.write_resolv_conf(target)?;
        let wanted = target.policy.return_route();
        self.oracle.route_back(wanted)?;
        self.oracle.routed_back = wanted;
        self.oracle.flush_rules()?;
        match &target.rules {
            Rules::Ours => {
                for (flag, restore) in [("", "iptables-restore"), ("-6", "ip6tables-restore")] {
                    let file = self.printed_rules(target, &netns, flag)?;
                    self.oracle.restore(&[restore], &file)?;
                }
            }
            Rules::Files(rules, rules6) => {
                self.oracle.restore(&["iptables-restore"], rules)?;
                if let Some(rules6) = rules6 {
                    self.oracle.restore(&["ip6tables-restore"], rules6)?;
                }
            }
        }
        self.oracle.add_rules()?;
        self.forget_connections()?;
        self.enroll(&text).with_context(|| target.name.clone())
    }

    /// Connections that have ended keep their translation for a while, and their ports may come again.
    pub fn forget_connections(&self) -> Result<()> {
        for pod in [&self.oracle, &self.ours] {
            let netns = &pod.pod.netns;
            output(&["ip", "netns", "exec", netns, "conntrack", "-F"])?;
        }
        Ok(())
    }

    /// The rules as the command prints them.
    fn printed_rules(&self, target: &Target, netns: &str, flag: &str) -> Result<PathBuf> {
        let file = self.ours.lab.dir().join("policy.json");
        fs::write(&file, target.manifest_of_rules(netns))?;
        let path = file.to_string_lossy();
        let mut words = vec!["rules", "--ambient", "--manifest", &path];
        words.extend(["--format", "iptables"]);
        words.extend((!flag.is_empty()).then_some(flag));
        let servers = target.servers.iter().flatten();
        let servers: Vec<String> = servers.map(IpAddr::to_string).collect();
        words.extend(servers.iter().flat_map(|server| ["--dns-server", server]));
        let rules = self.agent.places.output(&words)?;
        if !rules.status.success() {
            bail!("{}", String::from_utf8_lossy(&rules.stderr));
        }
        let file = self.ours.lab.dir().join("rules");
        fs::write(&file, rules.stdout)?;
        Ok(file)
    }

    /// From scratch, so that nothing of the last policy is mistaken for this one.
    fn enroll(&self, text: &str) -> Result<()> {
        let places = &self.agent.places;
        if places.pod("test/app")?.is_some() {
            self.ours.lab.release("app")?;
        }
        self.ours.lab.write_manifest("app", text)?;
        places.wait_enrolled("test/app")?;
        for _ in 0..100 {
            let up = |pod: Option<Value>| pod.is_some_and(|pod| pod["listener"] == true);
            if up(places.pod("test/app")?) {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(10));
        }
        bail!(
            "the sidecar's listeners were not adopted:\n{}",
            places.log()
        )
    }
}
