//! The lists of a pod's policy and of a namespace have a quota of the maps.

use anyhow::{Context as _, Result, ensure};
use lab::{agent::Agent, network::Lab};

const EXCLUDED: &str = "traffic.sidecar.istio.io/excludeOutboundPorts";
const INCLUDED: &str = "traffic.sidecar.istio.io/includeOutboundPorts";

/// Ports of a list, which differ from those of the other pods.
fn ports(pod: u16, count: u16) -> String {
    let ports = (0..count).map(|number| (u32::from(number) * 6 + u32::from(pod) + 1).to_string());
    ports.collect::<Vec<_>>().join(",")
}

kernel_test!(lists_of_a_pod_and_a_namespace_have_a_quota);
fn lists_of_a_pod_and_a_namespace_have_a_quota() -> Result<()> {
    let mut lab = Lab::new()?;
    let pods: Vec<_> = (0..6)
        .map(|number| lab.pod(&format!("pod{number}"), number + 2))
        .collect::<Result<_>>()?;
    let write = |lab: &Lab, number: usize, excluded: &str, included: &str| {
        let name = format!("pod{number}");
        let annotations = [(EXCLUDED, excluded), (INCLUDED, included)];
        lab.write_pod(&name, &pods[number], &annotations)
    };
    // 16,003 rows each, of which a namespace may have three times.
    for number in 0..4 {
        let list = ports(number, 8000);
        write(&lab, usize::from(number), &list, &list)?;
    }
    // More than a policy may have, and a short one.
    write(&lab, 4, &ports(0, 10_000), &ports(1, 10_000))?;
    write(&lab, 5, "80", "")?;
    let agent = Agent::start(lab.places())?;
    let places = &agent.places;
    let rejected = |says: &'static str| {
        move |pod: Option<&serde_json::Value>| {
            pod.is_some_and(|pod| {
                pod["state"] == "rejected" && pod["reason"].to_string().contains(says)
            })
        }
    };
    places.wait_pod(
        "test/pod4",
        rejected("20003 ports; a policy may have 16384"),
    )?;
    places.wait_enrolled("test/pod5")?;
    let states = || -> Result<Vec<String>> {
        let pod = |number| places.pod(&format!("test/pod{number}"));
        let pods = (0..4).map(|number| pod(number)?.context("the pod"));
        pods.map(|pod| Ok(pod?.to_string())).collect()
    };
    let states = states()?;
    let enrolled = states.iter().filter(|pod| pod.contains("\"enrolled\""));
    let refused = states.iter().filter(|pod| {
        pod.contains("the policies of a namespace may have 49152 on a node")
            && pod.contains("others of this namespace have 480")
    });
    ensure!((enrolled.count(), refused.count()) == (3, 1), "{states:#?}");
    // The list of pods has no long lists; a pod that is asked for has.
    let listed = places.pod("test/pod5")?.context("the pod")?;
    ensure!(listed["policy"]["excluded_outbound_ports"][0] == 80);
    let big = states.iter().position(|pod| pod.contains("\"enrolled\""));
    let big = format!("test/pod{}", big.context("a pod")?);
    ensure!(places.pod(&big)?.context("the pod")?["policy"].is_null());
    let whole = places.whole_pod(&big)?.policy.context("its policy")?;
    ensure!(whole.excluded_outbound_ports.len() == 8000);
    // Room that a pod releases is another's.
    lab.remove_manifest(big.trim_start_matches("test/"))?;
    for number in (0..4).filter(|number| !big.ends_with(&number.to_string())) {
        places.wait_enrolled(&format!("test/pod{number}"))?;
    }
    Ok(())
}
