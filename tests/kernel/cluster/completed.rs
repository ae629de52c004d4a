//! Pods that the API server calls completed while they still run, as kubelet does with evicted ones.

use std::{path::Path, time::Duration};

use anyhow::{Result, ensure};
use lab::{
    actor::Actor, injected::injected, network::PodNet, protocol::APP, sidecar, wait::eventually,
};
use serde_json::json;

use super::accepted_by;
use crate::fixture::{ClusterFixture, start_agent};

/// Enrolls pod `shop/web`; its sidecar, which is its oldest process, and a client in it.
fn enroll(node: &mut ClusterFixture) -> Result<(Actor, Actor)> {
    enroll_pod(node).map(|(_, sidecar, client)| (sidecar, client))
}

fn enroll_pod(node: &mut ClusterFixture) -> Result<(PodNet, Actor, Actor)> {
    let uid = node.lab.uid(1);
    let pod = node.lab.pod("app", 2)?.under_kubelet(&node.lab, &uid)?;
    let sidecar = sidecar::start(&pod, &[80])?;
    let client = pod.actor()?;
    node.api.apply(injected("web", &uid))?;
    node.label("Namespace", "shop", Some("enabled"))?;
    node.wait_enrollment("shop/web", true)?;
    Ok((pod, sidecar, client))
}

kernel_test!(a_completed_pod_stays_until_its_last_process_ends);
fn a_completed_pod_stays_until_its_last_process_ends() -> Result<()> {
    let mut node = ClusterFixture::new()?;
    let (sidecar, client) = enroll(&mut node)?;
    let name = "shop/web";
    ensure!(accepted_by(&client)? == 15001);

    node.api.edit("Pod", "shop", "web", |pod| {
        pod["status"] = json!({ "phase": "Failed", "reason": "Evicted" });
    })?;
    let still_runs = |pod: Option<&serde_json::Value>| {
        pod.is_some_and(|pod| pod["reason"].to_string().contains("still runs"))
    };
    node.soon(name, still_runs)?;
    ensure!(accepted_by(&client)? == 15001, "it is released");

    // An agent without a record of the time before keeps it intercepted as well.
    node.agent.end(nix::sys::signal::Signal::SIGKILL)?;
    node.agent = start_agent(&node.lab, &node.api)?;
    node.places().wait_rows("POD_BY_NETNS", 1)?;
    ensure!(accepted_by(&client)? == 15001, "the next agent releases it");

    drop((client, sidecar));
    node.places().wait_rows("POD_BY_NETNS", 0)?;
    let row = node.places().pod(name)?;
    let state = row.as_ref().map(|row| &row["state"]);
    ensure!(state.is_none_or(|state| state == "skipped"), "{row:?}");
    Ok(())
}

kernel_test!(a_process_without_its_first_thread_runs);
fn a_process_without_its_first_thread_runs() -> Result<()> {
    const FIRST_THREAD_ENDS: &str = "
import ctypes, platform, threading, time
threading.Thread(target=lambda: time.sleep(60)).start()
exit = {'x86_64': 60, 'aarch64': 93}[platform.machine()]
ctypes.CDLL(None).syscall(exit, 0)";
    let mut node = ClusterFixture::new()?;
    let (pod, sidecar, client) = enroll_pod(&mut node)?;
    let words = ["-c", FIRST_THREAD_ENDS];
    let mut process = pod.command(APP.uid, Path::new("/usr/bin/python3"), &words);
    let mut process = process.spawn()?;
    let status = format!("/proc/{}/status", process.id());
    eventually(Duration::from_secs(5), || {
        let status = std::fs::read_to_string(&status)?;
        ensure!(status.contains("State:\tZ"), "{status}");
        Ok(())
    })?;
    node.api.edit("Pod", "shop", "web", |pod| {
        pod["status"] = json!({ "phase": "Failed", "reason": "Evicted" });
    })?;
    drop((client, sidecar));
    std::thread::sleep(Duration::from_secs(3));
    node.places().wait_rows("POD_BY_NETNS", 1)?;
    process.kill()?;
    process.wait()?;
    node.places().wait_rows("POD_BY_NETNS", 0)
}

kernel_test!(a_sidecar_that_ends_with_its_pod_is_no_problem);
/// A pod that is being deleted may end its sidecar before its app. `status --check` would fail during every rollout.
fn a_sidecar_that_ends_with_its_pod_is_no_problem() -> Result<()> {
    let mut node = ClusterFixture::new()?;
    let (sidecar, client) = enroll(&mut node)?;
    let is_fine = |node: &ClusterFixture| -> Result<(bool, String)> {
        let output = node.places().output(&["status", "--check"])?;
        Ok((
            output.status.success(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
        ))
    };
    ensure!(accepted_by(&client)? == 15001);
    ensure!(is_fine(&node)?.0, "{:?}", is_fine(&node)?);
    drop(sidecar);
    eventually(Duration::from_secs(5), || {
        ensure!(accepted_by(&client).is_err(), "it still listens");
        ensure!(!is_fine(&node)?.0, "a sidecar that is down");
        Ok(())
    })?;
    node.api.edit("Pod", "shop", "web", |pod| {
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    })?;
    eventually(Duration::from_secs(5), || {
        ensure!(
            accepted_by(&client).is_err(),
            "its connections go elsewhere"
        );
        let (fine, said) = is_fine(&node)?;
        ensure!(fine, "{said}");
        Ok(())
    })?;
    Ok(())
}

kernel_test!(an_ended_process_names_no_namespace);
fn an_ended_process_names_no_namespace() -> Result<()> {
    let mut node = ClusterFixture::new()?;
    let (sidecar, _client) = enroll(&mut node)?;
    let path = || -> Result<String> {
        let row = node.places().pod("shop/web")?;
        Ok(row.map_or_else(String::new, |row| row["netns"]["path"].to_string()))
    };
    let before = path()?;
    ensure!(before.contains("/proc/"), "{before}");
    drop(sidecar);
    let after = path()?;
    ensure!(after.contains("net:["), "{before}, then {after}");
    Ok(())
}
