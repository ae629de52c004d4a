//! The capabilities in `deploy/` suffice, and each is needed.

use std::{fs, process::Command, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lab::{
    agent::{Agent, Extra},
    apiserver::ApiServer,
    command::{die_with_parent, run_words},
    deploy::capabilities,
    injected::{injected, namespace},
    network::Lab,
    node::VIP,
    protocol::ROOT,
};

use super::{Idle, wait_for};
use crate::fixture::at;

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
    // One that runs already, with listeners to take over; and one with users of its own.
    let plain = lab.pod("plain", 2)?.under_kubelet(&lab, &lab.uid(1))?;
    let own = lab
        .pod_with_own_users("own", 3)?
        .under_kubelet(&lab, &lab.uid(2))?;
    // A process that is the proxy's from its start: its descriptors are not root's to look at.
    let mut real = Command::new("ip");
    real.args(["netns", "exec", &plain.netns, "setpriv", "--reuid=1337"])
        .args(["--regid=1337", "--clear-groups", "/usr/bin/python3", "-c"])
        .arg("import socket, time\ns = socket.create_server(('0.0.0.0', 15006))\ntime.sleep(1000)");
    let real = Idle(vec![die_with_parent(&mut real).spawn()?]);
    fs::write(
        plain.cgroup.join("cgroup.procs"),
        real.0[0].id().to_string(),
    )?;
    let listens = || run_words(&["ip", "netns", "exec", &plain.netns, "ss", "-Hltn"]);
    wait_for(|| Ok(listens()?.contains(":15006")))?;
    let _app = own.actor()?;
    api.apply(injected("plain", &lab.uid(1)))?;
    api.apply(injected("own", &lab.uid(2)))?;
    let extra = Extra {
        api: Some(&api),
        capabilities: Some(&capabilities),
        ..Extra::default()
    };
    let _agent = Agent::start_with(lab.places(), &extra)?;
    for name in ["shop/plain", "shop/own"] {
        lab.places().wait_enrolled(name)?;
    }
    let row = lab.places().pod("shop/plain")?.context("the pod")?;
    ensure!(row["listener"] == true, "{}", lab.places().log());
    // Each of them is needed: the agent does not start, or cannot enroll.
    for missing in &capabilities {
        let fewer: Vec<String> = capabilities
            .iter()
            .filter(|one| *one != missing)
            .cloned()
            .collect();
        let lab = Lab::new()?;
        let extra = Extra {
            api: Some(&api),
            capabilities: Some(&fewer),
            ..Extra::default()
        };
        let enrolled = Agent::start_with(lab.places(), &extra).is_ok_and(|agent| {
            thread::sleep(Duration::from_millis(700));
            let listening = agent.places.pod("shop/plain");
            if !listening.is_ok_and(|pod| pod.is_some_and(|pod| pod["listener"] == true)) {
                return false;
            }
            let pods = ["shop/plain", "shop/own"].map(|name| agent.places.pod(name));
            pods.into_iter().all(|pod| {
                pod.is_ok_and(|pod| {
                    pod.is_some_and(|pod| pod["state"] == "enrolled" && pod["reason"].is_null())
                })
            })
        });
        ensure!(!enrolled, "{missing} is not needed");
    }
    Ok(())
}
