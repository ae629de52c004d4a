//! Manifests that cannot be used.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use lab::{
    agent::Agent,
    command::run,
    network::{Lab, PodNet, manifest},
    product::NETNS_ANNOTATION,
};

use super::reported;

kernel_test!(manifests);
fn manifests() -> Result<()> {
    let mut lab = Lab::new()?;
    let good = lab.pod("good", 2)?;
    lab.write_pod("good", &good, &[])?;
    let agent = Agent::start(lab.places())?;
    agent.places.wait_enrolled("test/good")?;

    let other = lab.pod("other", 3)?;
    let cases = [
        bad_files_and_namespaces(&lab, &other)?,
        bad_policies(&other),
    ];
    for (what, text, state, words) in cases.concat() {
        lab.write_manifest("bad", &text)?;
        reported(&agent.places, state, words).context(what)?;
        let good = agent.places.pod("test/good")?.context("the other pod")?;
        ensure!(
            good["state"] == "enrolled",
            "{what} touched another pod: {good}"
        );
        lab.release("bad")?;
    }
    // A pipe among the manifests holds nothing up.
    run(&format!(
        "mkfifo {}",
        lab.places().pods.join("pipe.yaml").display()
    ))?;
    reported(&agent.places, "", &["pipe.yaml", "not a regular file"])?;
    // Two manifests for one pod: the older stays active.
    lab.write_manifest("twice", &manifest("good", &other, &[]))?;
    reported(
        &agent.places,
        "",
        &["twice.yaml", "test/good", "good.yaml", "remove one"],
    )?;
    let pod = agent.places.pod("test/good")?.context("the pod")?;
    ensure!(pod["netns"]["path"] == good.path(), "{pod}");
    Ok(())
}

/// What is wrong, the manifest, the state it leads to, and what the reason mentions.
type Case = (&'static str, String, &'static str, &'static [&'static str]);

fn bad_files_and_namespaces(lab: &Lab, other: &PodNet) -> Result<Vec<Case>> {
    let plain = manifest("bad", other, &[]);
    let not_netns = lab.dir().join("file");
    fs::write(&not_netns, "")?;
    let with_netns = |path: &str| {
        plain
            .clone()
            .annotated(&[(NETNS_ANNOTATION, path)])
            .to_string()
    };
    let pipe = lab.dir().join("pipe");
    run(&format!("mkfifo {}", pipe.display()))?;
    let cases: [Case; 9] = [
        (
            "malformed YAML",
            "kind: Pod\nmetadata: {name: [\n".to_owned(),
            "",
            &["bad.yaml", "not valid YAML"],
        ),
        (
            "not a Pod",
            "kind: Service\n".to_owned(),
            "",
            &["bad.yaml", "Service", "Pod"],
        ),
        (
            "no netns annotation",
            plain
                .to_string()
                .replace("sidetrack.dev/netns", "sidetrack.dev/other"),
            "rejected",
            &["sidetrack.dev/netns", "missing", "/run/netns/NAME"],
        ),
        (
            "netns missing",
            with_netns("/run/netns/nowhere"),
            "waiting",
            &["/run/netns/nowhere", "does not exist"],
        ),
        (
            "not a namespace",
            with_netns(&not_netns.to_string_lossy()),
            "rejected",
            &["is not a network namespace", "/run/netns/NAME"],
        ),
        (
            "another kind of namespace",
            with_netns("/proc/self/ns/mnt"),
            "rejected",
            &["is not a network namespace"],
        ),
        (
            "the node's namespace",
            with_netns("/proc/self/ns/net"),
            "rejected",
            &["the node's own"],
        ),
        (
            "relative path",
            with_netns("run/netns/x"),
            "rejected",
            &["absolute path"],
        ),
        (
            "a pipe",
            with_netns(&pipe.to_string_lossy()),
            "rejected",
            &["is not a network namespace"],
        ),
    ];
    Ok(cases.to_vec())
}

fn bad_policies(other: &PodNet) -> Vec<Case> {
    let plain = manifest("bad", other, &[]);
    let annotated = |key: &str, value: &str| manifest("bad", other, &[(key, value)]).to_string();
    let cases: [Case; 5] = [
        (
            "host network",
            plain
                .clone()
                .edited(|pod| pod["spec"]["hostNetwork"] = true.into())
                .to_string(),
            "skipped",
            &["host's network"],
        ),
        (
            "no sidecar",
            plain
                .edited(|pod| pod["spec"]["containers"][1]["name"] = "web".into())
                .to_string(),
            "skipped",
            &["no sidecar"],
        ),
        (
            "bad CIDR",
            annotated(
                "traffic.sidecar.istio.io/excludeOutboundIPRanges",
                "10.0.0.0/40",
            ),
            "rejected",
            &["excludeOutboundIPRanges", "10.0.0.0/40", "10.0.0.0/8"],
        ),
        (
            "bad port",
            annotated("traffic.sidecar.istio.io/includeInboundPorts", "80,70000"),
            "rejected",
            &["includeInboundPorts", "70000", "1 to 65535"],
        ),
        (
            "bad mode",
            annotated("sidecar.istio.io/interceptionMode", "NAT"),
            "rejected",
            &["NAT", "REDIRECT, TPROXY or NONE"],
        ),
    ];
    cases.to_vec()
}
