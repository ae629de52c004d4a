//! The agent's own life: ends, crashes, successors, cleanup.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::{
    agent::{Agent, Extra, Places},
    command::run,
    network::{Lab, manifest},
    protocol::{APP, Dial, ROOT},
    sidecar,
};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{OwnTest, fixture::at, lifecycle::Place};

const VIP: &str = "10.109.118.31";

pub fn tests() -> Vec<(&'static str, OwnTest)> {
    vec![
        ("agent::sigterm_leaves_interception", sigterm),
        ("agent::kill_and_restart_under_traffic", kill_and_restart),
        (
            "agent::pods_that_vanished_meanwhile_are_removed",
            vanished_meanwhile,
        ),
        ("agent::a_second_agent_is_refused", second_agent),
        ("agent::cleanup_removes_everything", cleanup),
        ("agent::memory_with_two_pods", memory),
        ("agent::commands_print_tables_and_json", commands),
        (
            "agent::rules_and_explain_tell_what_happens",
            rules_and_explain,
        ),
        ("agent::decisions_can_be_logged", kernel_log),
    ]
}

fn redirected(client: &lab::actor::Actor) -> Result<()> {
    let connected = client
        .dial(Dial::new(&APP, at(VIP, 80)))?
        .map_err(|errno| anyhow!("{errno}"))?;
    ensure!(connected.accepted_by == 15001, "{connected:?}");
    ensure!(
        connected.server.original_v4 == Ok(at(VIP, 80)),
        "{connected:?}"
    );
    Ok(())
}

fn sigterm() -> Result<()> {
    let mut place = Place::new()?;
    let _sidecar = sidecar::start(&place.pod, &[80])?;
    place.enroll(&[])?;
    let took = place.agent.end(Signal::SIGTERM)?;
    ensure!(took < Duration::from_secs(1), "it took {took:?}");
    let Place {
        client,
        outside,
        lab,
        ..
    } = &place;
    ensure!(!lab.places().socket.exists(), "the socket is gone");
    redirected(client)?;
    let inbound = outside.dial(Dial::new(&ROOT, at("10.77.0.2", 80)))?;
    ensure!(inbound.is_ok_and(|inbound| inbound.accepted_by == 15006));
    // Commands still tell which pods are intercepted.
    let pods = lab.places().json(&["pods", "-o", "json"])?;
    ensure!(
        pods[0]["name"] == "app" && pods[0]["state"] == "enrolled",
        "{pods}"
    );
    Ok(())
}

fn kill_and_restart() -> Result<()> {
    const ROUNDS: usize = 3;
    let mut place = Place::new()?;
    let _sidecar = sidecar::start(&place.pod, &[80])?;
    place.enroll(&[])?;
    let held = place.client.hold(Dial::new(&APP, at(VIP, 80)))?;
    ensure!(held.is_ok());
    let row = |places: &Places| -> Result<Value> {
        let mut pod = places.pod("test/app")?.context("the pod")?;
        // Counters go on; everything else is the same.
        pod["connections"].take();
        pod["policy_id"].take();
        Ok(pod)
    };
    for _ in 0..ROUNDS {
        let before = row(&place.agent.places)?;
        let client = &place.client;
        let back = AtomicBool::new(false);
        let dialed = thread::scope(|scope| {
            let dialling = scope.spawn(|| {
                let mut dialed = 0;
                while !back.load(Ordering::Relaxed) {
                    redirected(client).context("while the agent was away")?;
                    dialed += 1;
                    // Leaves the processor to the agent where there is only one.
                    thread::sleep(Duration::from_millis(2));
                }
                anyhow::Ok(dialed)
            });
            let restarted = place.agent.end(Signal::SIGKILL).and_then(|_| {
                thread::sleep(Duration::from_millis(100));
                Agent::start(&place.agent.places)
            });
            back.store(true, Ordering::Relaxed);
            let dialed = dialling
                .join()
                .map_err(|_| anyhow!("the dialling thread panicked"))??;
            place.agent = restarted?;
            anyhow::Ok(dialed)
        })?;
        ensure!(dialed > 10, "only {dialed} connections meanwhile");
        place.agent.places.wait_enrolled("test/app")?;
        let after = row(&place.agent.places)?;
        ensure!(before == after, "{before} became {after}");
        ensure!(
            place.client.echo()? == 1,
            "the established connection goes on"
        );
    }
    let listeners = place.agent.places.map("LISTENERS")?;
    // The IPv4 listener, and the IPv6 one, which might take IPv4 as well: no slot more than before.
    ensure!(
        listeners.len() == 3,
        "each listener is adopted once: {listeners:?}"
    );
    Ok(())
}

fn vanished_meanwhile() -> Result<()> {
    let mut lab = Lab::new()?;
    for (name, number) in [("stays", 2), ("unlisted", 3), ("dead", 4)] {
        let pod = lab.pod(name, number)?;
        lab.write_manifest(name, &manifest(name, &pod, &[]))?;
    }
    let mut agent = Agent::start(lab.places())?;
    for name in ["stays", "unlisted", "dead"] {
        agent.places.wait_enrolled(&format!("test/{name}"))?;
    }
    agent.end(Signal::SIGKILL)?;
    lab.remove_manifest("unlisted")?;
    lab.remove_manifest("dead")?;
    run(&format!(
        "ip netns del {}",
        lab.outside().netns.replace("-out", "-dead")
    ))?;
    let agent = Agent::start(lab.places())?;
    agent.places.wait_enrolled("test/stays")?;
    let rows = agent.places.map("POD_BY_NETNS")?;
    ensure!(rows.len() == 1, "{rows:?}");
    let cookie = agent.places.pod("test/stays")?.context("the pod")?["netns"]["cookie"].clone();
    for row in agent.places.map("ROUTE_BY_POD")? {
        ensure!(
            row["formatted"]["key"]["netns"] == cookie,
            "a stale route: {row}"
        );
    }
    agent.places.wait_rows("POLICY_BY_ID", 1)?;
    let links = fs::read_dir(agent.places.bpffs.join("sidetrack/v2/pods"))?.count();
    ensure!(links == 1, "{links} links");
    Ok(())
}

fn second_agent() -> Result<()> {
    let lab = Lab::new()?;
    let agent = Agent::start(lab.places())?;
    let mut other = lab.places().clone();
    other.socket = lab.dir().join("other.sock");
    other.log = lab.dir().join("other.log");
    let ended = Agent::spawn(&other)?.wait()?;
    ensure!(ended.code() == Some(1), "{ended}");
    let log = other.log();
    ensure!(log.contains("another sidetrack agent uses"), "{log}");
    ensure!(log.contains("--bpffs"), "it names the cure: {log}");
    ensure!(agent.places.json(&["status", "-o", "json"])?["agent"]["ready"] == true);
    Ok(())
}

fn cleanup() -> Result<()> {
    let mut lab = Lab::new()?;
    let pod = lab.pod("app", 2)?;
    lab.write_manifest("app", &manifest("app", &pod, &[]))?;
    let mut agent = Agent::start(lab.places())?;
    agent.places.wait_enrolled("test/app")?;
    let refused = lab.places().output(&["cleanup"])?;
    ensure!(refused.status.code() == Some(1), "{refused:?}");
    ensure!(String::from_utf8_lossy(&refused.stderr).contains("an agent is running"));
    agent.end(Signal::SIGTERM)?;
    let removed = lab.places().json(&["cleanup", "-o", "json"])?;
    ensure!(
        removed["links"]
            .as_array()
            .is_some_and(|links| links.len() == 7),
        "{removed}"
    );
    ensure!(!lab.places().bpffs.join("sidetrack").exists());
    let again = lab.places().output(&["cleanup"])?;
    ensure!(again.status.success());
    ensure!(String::from_utf8_lossy(&again.stdout).contains("nothing to remove"));
    // Nothing is attached any more.
    let tree = lab::command::run_words(&[
        "bpftool",
        "cgroup",
        "show",
        &lab.places().cgroup.to_string_lossy(),
    ])?;
    ensure!(!tree.contains("st_"), "{tree}");
    Ok(())
}

fn memory() -> Result<()> {
    const LIMIT_KIB: u64 = 20 * 1024;
    let mut lab = Lab::new()?;
    for (name, number) in [("one", 2), ("two", 3)] {
        let pod = lab.pod(name, number)?;
        lab.write_manifest(name, &manifest(name, &pod, &[]))?;
    }
    let agent = Agent::start(lab.places())?;
    agent.places.wait_enrolled("test/two")?;
    let (resident, anonymous) = agent.memory()?;
    eprintln!("agent with two pods: {resident} KiB resident, {anonymous} KiB of them its own");
    ensure!(resident < LIMIT_KIB, "{resident} KiB resident");
    Ok(())
}

fn commands() -> Result<()> {
    let mut lab = Lab::new()?;
    let pod = lab.pod("app", 2)?;
    lab.write_manifest("app", &manifest("app", &pod, &[]))?;
    let mut agent = Agent::start(lab.places())?;
    let waited = lab
        .places()
        .output(&["status", "--wait", "test/app", "--timeout", "5s"])?;
    ensure!(waited.status.success(), "{waited:?}");
    let table = String::from_utf8(waited.stdout)?;
    ensure!(
        table.contains("1 enrolled") && table.contains("connect4"),
        "{table}"
    );
    let missing =
        lab.places()
            .output(&["status", "--wait", "test/nobody", "--timeout", "200ms"])?;
    ensure!(missing.status.code() == Some(1), "{missing:?}");
    ensure!(String::from_utf8_lossy(&missing.stderr).contains("does not know the pod"));
    let table = lab.places().output(&["pods"])?;
    ensure!(String::from_utf8(table.stdout)?.contains("test/app"));
    let doctor = lab.places().json(&["doctor", "-o", "json"])?;
    ensure!(
        doctor["ok"] == true && doctor["checks"].as_array().is_some(),
        "{doctor}"
    );
    for wrong in [
        &["status", "--nonsense"][..],
        &["nonsense"],
        &["status", "--timeout", "5s"],
    ] {
        let output = lab.places().output(wrong)?;
        ensure!(output.status.code() == Some(2), "{wrong:?}: {output:?}");
    }
    agent.end(Signal::SIGTERM)?;
    let status = lab.places().output(&["status"])?;
    ensure!(status.status.code() == Some(1), "no agent: {status:?}");
    ensure!(String::from_utf8(status.stdout)?.contains("not running"));
    Ok(())
}

fn rules_and_explain() -> Result<()> {
    let place = Place::new()?;
    let _sidecar = sidecar::start(&place.pod, &[80])?;
    place.enroll(&[("traffic.sidecar.istio.io/excludeOutboundPorts", "3306,8443")])?;
    redirected(&place.client)?;
    redirected(&place.client)?;
    let places = &place.agent.places;
    // The counters count connections, by the rule that decided them.
    let rules = places.json(&["rules", "test/app", "-o", "json"])?;
    let count = |name: &str| -> Option<u64> {
        let rules = rules.as_array()?;
        rules.iter().find(|rule| rule["name"] == name)?["connections"].as_u64()
    };
    ensure!(
        count("out-all") == Some(2) && count("out-port-excluded") == Some(0),
        "{rules}"
    );
    // Explain gives the verdict that the kernel gave, in the words of the rules.
    let explain = |words: &[&str]| -> Result<Value> {
        places.json(&[&["explain", "test/app"], words, &["-o", "json"]].concat())
    };
    let app = ["outbound", "--uid", "1000", "--gid", "1000", "--dst"];
    let proxy = ["outbound", "--uid", "1337", "--gid", "1337", "--dst"];
    for (who, destination, verdict, port, rule) in [
        (
            app,
            "10.109.118.31:80",
            "redirect",
            Value::from(15001),
            "-A ISTIO_OUTPUT -j ISTIO_REDIRECT",
        ),
        (
            app,
            "10.109.118.31:8443",
            "untouched",
            Value::Null,
            "--dport 8443 -j RETURN",
        ),
        (
            app,
            "10.77.0.2:80",
            "untouched",
            Value::Null,
            "-o lo -m owner ! --uid-owner 1337 -j RETURN",
        ),
        (
            proxy,
            "10.77.0.2:80",
            "redirect",
            Value::from(15006),
            "--uid-owner 1337 -j ISTIO_IN_REDIRECT",
        ),
        (
            app,
            "224.0.0.1:80",
            "refuse",
            Value::Null,
            "no usable route",
        ),
    ] {
        let answer = explain(&[&who[..], &[destination]].concat())?;
        let said = answer["rule"].as_str().unwrap_or_default();
        ensure!(
            answer["verdict"] == verdict && answer["port"] == port && said.contains(rule),
            "{destination}: {answer}"
        );
    }
    let inbound = explain(&["inbound", "--dst", "10.77.0.2:15021"])?;
    ensure!(
        inbound["verdict"] == "untouched" && inbound["dialect"] == "current",
        "{inbound}"
    );
    // The text loads into the real thing.
    let text = places
        .output(&["rules", "test/app", "--format", "iptables"])?
        .stdout;
    let file = place.lab.dir().join("rules.v4");
    fs::write(&file, text)?;
    let netns = &place.lab.outside().netns;
    run(&format!(
        "ip netns exec {netns} iptables-restore --test {}",
        file.display()
    ))?;
    Ok(())
}

fn kernel_log() -> Result<()> {
    let mut lab = Lab::new()?;
    let pod = lab.pod("app", 2)?;
    lab.write_manifest("app", &manifest("app", &pod, &[]))?;
    let agent = Agent::start_with(
        lab.places(),
        &Extra {
            variables: &[("RUST_LOG", "info,sidetrack_ebpf=debug")],
            ..Extra::default()
        },
    )?;
    agent.places.wait_enrolled("test/app")?;
    let _ = pod.actor()?.dial(Dial::new(&APP, at(VIP, 80)))?;
    for _ in 0..100 {
        if agent.places.log().contains("sidetrack_ebpf::hook::connect") {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(20));
    }
    Err(anyhow!("no decision in the log:\n{}", agent.places.log()))
}
