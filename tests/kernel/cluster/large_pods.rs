//! Pods as large as the API server allows, and larger than the agent keeps.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lab::{
    agent::{Agent, Extra},
    apiserver::ApiServer,
    injected::{injected, namespace},
    network::Lab,
    wait::eventually,
};
use serde_json::{Value, json};

use crate::fixture::start_agent;

/// Stands for the variables of a large pod.
const ENV: &str = "@env@";
/// Entries of 12 bytes: together 1.1 MB, which etcd stores.
const ENTRIES: usize = 87_000;
/// How much the agent's memory may grow, in KiB. A typed pod with so many entries takes 31 MiB.
const MAX_GROWTH: u64 = 32 << 10;

/// Longest time until all pods are known. The dev profile's build reads 220 MB in ten seconds.
const LONGEST: Duration = Duration::from_secs(60);

/// The entries, of which every one counts.
fn env() -> String {
    format!("[{}]", vec![r#"{"name":"A"}"#; ENTRIES].join(","))
}

/// A pod that is not opted in, and has a sidecar and a large container.
fn large(number: usize, uid: &str) -> Value {
    let mut pod = injected(&format!("large-{number}"), uid);
    pod["metadata"]["namespace"] = json!("other");
    pod["spec"]["containers"][number % 2]["env"] = json!(ENV);
    pod
}

/// An API server with this many large pods, and a small one that is opted in.
fn server(lab: &Lab, pods: usize) -> Result<ApiServer> {
    let api = ApiServer::start(lab.dir())?;
    api.substitute(&format!("\"{ENV}\""), env());
    api.apply(namespace("shop", Some("enabled")))?;
    api.apply(namespace("other", None))?;
    for number in 0..pods {
        api.apply(large(number, &lab.uid(100 + number)))?;
    }
    api.apply(injected("web", &lab.uid(1)))?;
    Ok(api)
}

fn peak(agent: &Agent, lab: &Lab, pods: usize) -> Result<u64> {
    let known = || -> Result<usize> {
        let all = lab.places().json(&["pods", "-o", "json"])?;
        Ok(all.as_array().map_or(0, Vec::len))
    };
    eventually(LONGEST, || {
        ensure!(
            known().is_ok_and(|known| known == pods + 1),
            "{}",
            lab.places().log()
        );
        Ok(())
    })?;
    agent.peak_memory()
}

/// What an agent takes for these pods in a list, beyond one without any.
fn growth(pods: usize) -> Result<u64> {
    let mut peaks = [0; 2];
    for (peak_of, pods) in peaks.iter_mut().zip([0, pods]) {
        let lab = Lab::new()?;
        let api = server(&lab, pods)?;
        let start = Instant::now();
        let agent = Agent::spawn_with(lab.places(), &Extra::api(&api))?;
        *peak_of = peak(&agent, &lab, pods)?;
        let (resident, _) = agent.memory()?;
        println!(
            "{pods} large pods: known after {:.2?}, memory {resident} KiB, at most {peak_of} KiB",
            start.elapsed()
        );
    }
    Ok(peaks[1].saturating_sub(peaks[0]))
}

kernel_test!(large_pods_in_a_list);
fn large_pods_in_a_list() -> Result<()> {
    for pods in [6, 200] {
        let growth = growth(pods)?;
        ensure!(growth < MAX_GROWTH, "{pods} large pods: {growth} KiB");
    }
    Ok(())
}

kernel_test!(large_pods_that_arrive);
/// By the watch, also ones that have failed.
fn large_pods_that_arrive() -> Result<()> {
    const PODS: usize = 20;
    let lab = Lab::new()?;
    let api = server(&lab, 0)?;
    let agent = start_agent(&lab, &api)?;
    let before = peak(&agent, &lab, 0)?;
    for number in 0..PODS {
        let mut pod = large(number, &lab.uid(100 + number));
        if number % 3 == 0 {
            pod["status"]["phase"] = json!("Failed");
        }
        api.apply(pod)?;
    }
    // Those that have failed are as good as deleted.
    let after = peak(&agent, &lab, PODS - PODS.div_ceil(3))?;
    println!("{PODS} large pods arrive: from {before} to at most {after} KiB");
    ensure!(after - before < MAX_GROWTH, "from {before} to {after} KiB");
    Ok(())
}

kernel_test!(a_pod_with_too_much_is_rejected);
fn a_pod_with_too_much_is_rejected() -> Result<()> {
    let lab = Lab::new()?;
    let api = server(&lab, 0)?;
    let _agent = start_agent(&lab, &api)?;
    let mut pod = injected("much", &lab.uid(2));
    let init = json!({"name": "istio-init", "args": ["-x", "10.0.0.0/8,".repeat(50_000)]});
    pod["spec"]["initContainers"] = json!([init]);
    api.apply(pod)?;
    lab.places().wait_pod("shop/much", |pod| {
        pod.is_some_and(|pod| {
            let reason = pod["reason"].to_string();
            pod["state"] == "rejected"
                && reason.contains("write at most 524288 bytes")
                && reason.contains("55")
        })
    })?;
    Ok(())
}
