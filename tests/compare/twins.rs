//! Two pods alike in everything but who redirects.

use std::{fs, thread, time::Duration};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use support::{
    actor::Actor,
    agent::{Agent, Places},
    command::{output, run_words},
    lab::{Lab, PodNet},
    protocol::{APP, Identity, PROXY},
    sidecar::listen,
};

use crate::policies::Policy;

/// Ports somebody listens on in the pod, as the proxy.
const PROXY_PORTS: [u16; 8] = [15001, 15006, 15008, 15020, 15021, 15090, 15101, 15106];
/// And as the app.
const APP_PORTS: [u16; 3] = [22, 53, 80];

/// One pod with its surroundings. Fields drop in order: processes before what they run in.
pub struct Twin {
    /// Dials from the pod.
    pub client: Actor,
    /// Dials to the pod.
    pub outside: Actor,
    _servers: Actor,
    pod: PodNet,
    lab: Lab,
}

impl Twin {
    fn new() -> Result<Self> {
        let mut lab = Lab::new()?;
        lab.add_outside("10.109.118.31")?;
        lab.add_outside("fd99::31")?;
        let pod = lab.pod("app", 2)?;
        let outside = lab.outside();
        pod.furnish(&outside)?;
        // Without a default route there are destinations without any.
        for line in [
            "route del default",
            "route add 10.109.0.0/16 via 10.77.0.254",
            "-6 route del default",
            "-6 route add fd99::/64 via fd77::fe",
            "address add ::6/128 dev lo",
        ] {
            pod.ip(line)?;
        }
        let outside = outside.actor()?;
        for port in [22, 53, 80, 15001, 15008, 15021] {
            listen(&outside, &Identity::of(0), port)?;
        }
        let servers = pod.actor()?;
        for (owner, ports) in [(&PROXY, &PROXY_PORTS[..]), (&APP, &APP_PORTS[..])] {
            for port in ports {
                listen(&servers, owner, *port)?;
            }
        }
        Ok(Self {
            client: pod.actor()?,
            outside,
            _servers: servers,
            pod,
            lab,
        })
    }
}

/// Both.
pub struct Twins {
    agent: Agent,
    /// With iptables rules.
    pub oracle: Twin,
    /// Enrolled.
    pub ours: Twin,
}

impl Twins {
    /// Builds both; nothing is redirected yet.
    pub fn new() -> Result<Self> {
        let oracle = Twin::new()?;
        let ours = Twin::new()?;
        Ok(Self {
            agent: Agent::start(ours.lab.places())?,
            oracle,
            ours,
        })
    }

    /// Where the agent keeps things.
    pub fn places(&self) -> &Places {
        &self.agent.places
    }

    /// Puts both under a policy.
    pub fn set(&self, policy: &Policy, dialect: &str) -> Result<()> {
        let text = manifest(policy, dialect, &self.ours.pod);
        let file = self.ours.lab.dir().join("policy.yaml");
        fs::write(&file, &text)?;
        for (flag, program) in [
            (None, "iptables-restore"),
            (Some("-6"), "ip6tables-restore"),
        ] {
            let path = file.to_string_lossy();
            let mut words = vec!["rules", "--manifest", &path, "--format", "iptables"];
            words.extend(flag);
            let rules = self.agent.places.output(&words)?;
            if !rules.status.success() {
                bail!(
                    "{}: {}",
                    policy.name,
                    String::from_utf8_lossy(&rules.stderr)
                );
            }
            let rules_file = self.ours.lab.dir().join("rules");
            fs::write(&rules_file, rules.stdout)?;
            run_words(&[
                "ip",
                "netns",
                "exec",
                &self.oracle.pod.netns,
                program,
                &rules_file.to_string_lossy(),
            ])?;
        }
        // Connections of the last policy keep their translation; their ports may come again.
        let flush = [
            "ip",
            "netns",
            "exec",
            &self.oracle.pod.netns,
            "conntrack",
            "-F",
        ];
        output(&flush)?;
        self.enroll(&text).with_context(|| policy.name)
    }

    /// From scratch, so that nothing of the last policy is taken for this one.
    fn enroll(&self, text: &str) -> Result<()> {
        let places = &self.agent.places;
        if places.pod("test/app")?.is_some() {
            self.ours.lab.remove_manifest("app")?;
            places.wait_pod("test/app", |pod| pod.is_none())?;
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

fn manifest(policy: &Policy, dialect: &str, pod: &PodNet) -> String {
    let arguments: Vec<String> = policy
        .arguments
        .iter()
        .map(|word| format!("{word:?}"))
        .collect();
    let variables: String = [("ISTIO_DUAL_STACK", "true")]
        .iter()
        .chain(policy.variables)
        .map(|(name, value)| format!("    - {{name: {name}, value: {value:?}}}\n"))
        .collect();
    format!(
        "kind: Pod
metadata:
  name: app
  namespace: test
  annotations:
    sidetrack.dev/netns: {}
    sidetrack.dev/dialect: {dialect:?}
spec:
  containers:
  - {{name: app}}
  - {{name: istio-proxy}}
  initContainers:
  - name: istio-init
    args: [istio-iptables, {}]
    env:
{variables}",
        pod.path(),
        arguments.join(", ")
    )
}
