//! What is loaded in the kernel, and what is not needed any more.

use anyhow::{Context as _, Result};
use lab::command::{output, run, run_words};

use super::{heading, sidetrack};
use crate::{
    checks::Checks,
    environment::{Environment, HTTPBIN, UBUNTU, node},
};

pub fn loaded(environment: &Environment) -> Result<()> {
    let cgroup = environment.places.cgroup.to_string_lossy();
    heading(&format!("bpftool cgroup show {cgroup}"));
    print!("{}", run_words(&["bpftool", "cgroup", "show", &cgroup])?);
    heading("bpftool link show (one of type netns, sk_lookup, for each pod)");
    let links = run("bpftool link show")?;
    for line in links.lines().skip_while(|line| !line.contains(": netns")) {
        println!("{line}");
    }
    heading("sidetrack pods");
    print!("{}", sidetrack(environment, &["pods"])?);
    Ok(())
}

pub fn no_iptables(checks: &mut Checks) -> Result<()> {
    for pod in [UBUNTU, HTTPBIN] {
        let netns = pod.netns();
        let mut rules = String::new();
        for program in ["iptables-save", "ip6tables-save", "iptables-legacy-save"] {
            let saved = run_words(&["ip", "netns", "exec", &netns, program])?;
            rules.extend(
                saved
                    .lines()
                    .filter(|line| line.starts_with("-A"))
                    .map(|line| format!("{line}; ")),
            );
        }
        let none = rules.is_empty().then_some(()).ok_or(rules);
        checks.record(&format!("pod {} has no iptables rule", pod.name), none);
        let flows = run_words(&["ip", "netns", "exec", &netns, "conntrack", "-L"])?;
        let flows = flows.trim().to_owned();
        let none = flows.is_empty().then_some(()).ok_or(flows);
        checks.record(&format!("pod {} tracks no connection", pod.name), none);
    }
    Ok(())
}

/// As kubelet does it: from the node to the sidecar's health port.
pub fn probes(environment: &Environment, checks: &mut Checks) -> Result<()> {
    let inbound = || -> Result<u64> {
        let pod = environment
            .places
            .pod("default/httpbin")?
            .context("the pod's row")?;
        Ok(pod["connections"]["inbound_redirected"]
            .as_u64()
            .unwrap_or_default())
    };
    let before = inbound()?;
    let url = format!("http://{}:15021/healthz/ready", HTTPBIN.ip);
    let probe = output(&[
        "ip",
        "netns",
        "exec",
        &node(),
        "curl",
        "-sf",
        "--max-time",
        "2",
        &url,
    ])?;
    let after = inbound()?;
    let held = match (probe.status.success(), before == after) {
        (true, true) => Ok(()),
        (false, _) => Err(format!("no answer from {url}")),
        (_, false) => Err("it was redirected".to_owned()),
    };
    checks.record("a probe from the node reaches 15021 untouched", held);
    Ok(())
}
