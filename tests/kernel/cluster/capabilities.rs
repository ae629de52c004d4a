//! The capabilities in `deploy/` suffice, and each is needed.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lab::{
    agent::{Agent, Extra, binary},
    apiserver::ApiServer,
    command::{Process, run_words},
    deploy::capabilities,
    injected::{injected, namespace},
    network::Lab,
    node::VIP,
    protocol::ROOT,
};
use serde_json::json;

use super::wait_for;
use crate::fixture::at;

/// With CAP_SYS_ADMIN the kernel asks for none of these: it accepts either (`bpf_capable`,
/// `perfmon_capable`). They say what the agent does with it.
const IMPLIED: [&str; 2] = ["BPF", "PERFMON"];
/// An agent with all capabilities enrolls the pods in about a second.
const LONGEST_START: Duration = Duration::from_secs(30);
/// How long an agent that lacks a capability is waited for at least.
const SHORTEST_WAIT: Duration = Duration::from_secs(5);

kernel_test!(the_capabilities_in_deploy_suffice);
/// As the container runtime starts the agent: root, with a handful of capabilities.
fn the_capabilities_in_deploy_suffice() -> Result<()> {
    let capabilities = capabilities()?;
    let mut lab = Lab::new()?;
    lab.add_outside(VIP)?;
    let api = ApiServer::start(lab.dir())?;
    api.apply(namespace("shop", Some("enabled")))?;
    let outside = lab.outside().actor()?;
    outside.listen(&ROOT, at("0.0.0.0", 80))?;
    // One that runs already, with listeners to adopt; and one with users of its own.
    let plain = lab.pod("plain", 2)?.under_kubelet(&lab, &lab.uid(1))?;
    let own = lab
        .pod_with_own_users("own", 3)?
        .under_kubelet(&lab, &lab.uid(2))?;
    // A process that is the proxy's from its start: its descriptors are not root's to look at.
    let mut real = Command::new("ip");
    real.args(["netns", "exec", &plain.netns, "setpriv", "--reuid=1337"])
        .args(["--regid=1337", "--clear-groups", "/usr/bin/python3", "-c"])
        .arg("import socket, time\ns = socket.create_server(('0.0.0.0', 15006))\ntime.sleep(1000)");
    let real = Process::start(&mut real)?;
    fs::write(plain.cgroup.join("cgroup.procs"), real.id().to_string())?;
    let listens = || run_words(&["ip", "netns", "exec", &plain.netns, "ss", "-Hltn"]);
    wait_for(|| Ok(listens()?.contains(":15006")))?;
    let _app = own.actor()?;
    // With IPv6, for which its loopback interface gets an address.
    let mut dual = injected("plain", &lab.uid(1));
    dual["spec"]["containers"][1]["env"] = json!([{"name": "ISTIO_DUAL_STACK", "value": "true"}]);
    api.apply(dual)?;
    let mut with_users = injected("own", &lab.uid(2));
    with_users["spec"]["hostUsers"] = json!(false);
    api.apply(with_users)?;
    let extra = Extra {
        api: Some(&api),
        capabilities: Some(&capabilities),
        ..Extra::default()
    };
    let agent = Agent::start_with(lab.places(), &extra)?;
    for name in ["shop/plain", "shop/own"] {
        lab.places().wait_enrolled(name)?;
    }
    let row = lab.places().pod("shop/plain")?.context("the pod")?;
    ensure!(row["listener"] == true, "{}", lab.places().log());
    drop(agent);
    let cleanup = lab.places().output(&["cleanup"])?;
    ensure!(cleanup.status.success(), "{cleanup:?}");
    // Without one of them the agent does not start, and names it.
    for missing in &capabilities {
        let lab = Lab::new()?;
        let fewer = without(&capabilities, missing);
        let extra = Extra {
            api: Some(&api),
            capabilities: Some(&fewer),
            ..Extra::default()
        };
        let ended = Agent::spawn_with(lab.places(), &extra)?.wait()?;
        let log = lab.places().log();
        ensure!(
            !ended.success() && log.contains(&format!("missing CAP_{missing}:")),
            "without {missing}: {ended}, {log}"
        );
    }
    // The kernel asks for the others, whatever the agent's own check says.
    let cgroup = lab.places().cgroup.clone();
    let enrolls = |capabilities: &[String], longest| {
        // What an agent has done to the pod before.
        let _ = plain.ip("address del ::6/128 dev lo");
        enrolls_unchecked(&api, &cgroup, capabilities, longest)
    };
    let start = Instant::now();
    ensure!(
        enrolls(&capabilities, LONGEST_START)?,
        "all of them suffice"
    );
    // Those that enroll nothing are waited for, too.
    let longest = (2 * start.elapsed()).max(SHORTEST_WAIT);
    for missing in &capabilities {
        let enrolled = enrolls(&without(&capabilities, missing), longest)?;
        ensure!(
            enrolled == IMPLIED.contains(&missing.as_str()),
            "without {missing} pods are enrolled: {enrolled}"
        );
    }
    Ok(())
}

fn without(capabilities: &[String], missing: &str) -> Vec<String> {
    let others = capabilities.iter().filter(|one| *one != missing);
    others.cloned().collect()
}

/// Whether an agent with these capabilities enrolls both pods. It is shown all capabilities where it
/// checks its own, so that the kernel decides.
fn enrolls_unchecked(
    api: &ApiServer,
    cgroup: &Path,
    capabilities: &[String],
    longest: Duration,
) -> Result<bool> {
    let lab = Lab::new()?;
    let mut places = lab.places().clone();
    // The pods' own.
    cgroup.clone_into(&mut places.cgroup);
    let shown = lab.dir().join("status");
    let wrapper = lab.dir().join("agent-unchecked");
    let allowed: String = capabilities
        .iter()
        .map(|name| format!(",+{}", name.to_lowercase()))
        .collect();
    let status: String = fs::read_to_string("/proc/self/status")?
        .lines()
        .map(|line| match line.strip_prefix("CapEff:") {
            Some(_) => "CapEff:\t000001ffffffffff\n".to_owned(),
            None => format!("{line}\n"),
        })
        .collect();
    fs::write(&shown, status)?;
    // The mount is on the process's own file, and goes with the process.
    let script = format!(
        "#!/bin/sh -e\n\
         mount --bind {shown} /proc/$$/status\n\
         exec setpriv --bounding-set=-all{allowed} --inh-caps=-all {binary} \"$@\"\n",
        shown = shown.display(),
        binary = binary()?.display(),
    );
    fs::write(&wrapper, script)?;
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755))?;
    let extra = Extra {
        api: Some(api),
        binary: Some(&wrapper),
        ..Extra::default()
    };
    let mut agent = Agent::spawn_with(&places, &extra)?;
    let start = Instant::now();
    while start.elapsed() < longest {
        let is_enrolled = |name: &str| {
            let pod = agent.places.pod(name).ok().flatten();
            pod.is_some_and(|pod| pod["state"] == "enrolled" && pod["reason"].is_null())
        };
        let listener = || agent.places.pod("shop/plain").ok().flatten();
        if is_enrolled("shop/plain")
            && is_enrolled("shop/own")
            && listener().is_some_and(|pod| pod["listener"] == true)
        {
            return Ok(true);
        }
        if agent.has_ended()? {
            let log = lab.places().log();
            ensure!(!log.contains("missing CAP_"), "it was checked: {log}");
            return Ok(false);
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(false)
}
