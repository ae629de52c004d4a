//! Bad input: one clear error that names the object and the cure; everything else goes on.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use lab::{
    agent::{Agent, Places, binary},
    command::{output, run},
    network::{Lab, manifest},
    protocol::{APP, Dial},
    sidecar,
};
use nix::sys::signal::Signal;

use crate::{OwnTest, fixture::at};

pub fn tests() -> Vec<(&'static str, OwnTest)> {
    vec![
        ("bad_input::manifests", manifests),
        ("bad_input::a_bad_policy_keeps_the_last_good_one", last_good),
        ("bad_input::files_that_become_unreadable", known_files),
        ("bad_input::two_pods_in_one_namespace", one_namespace),
        ("bad_input::places_that_are_not_there", places),
        ("bad_input::missing_capabilities", capabilities),
    ]
}

fn manifests() -> Result<()> {
    let mut lab = Lab::new()?;
    let good = lab.pod("good", 2)?;
    lab.write_manifest("good", &manifest("good", &good, &[]))?;
    let agent = Agent::start(lab.places())?;
    agent.places.wait_enrolled("test/good")?;

    let other = lab.pod("other", 3)?;
    let plain = manifest("bad", &other, &[]);
    let not_netns = lab.dir().join("file");
    fs::write(&not_netns, "")?;
    let with_netns = |path: &str| plain.replace(&other.path(), path);
    let annotated = |key: &str, value: &str| manifest("bad", &other, &[(key, value)]);
    let pipe = lab.dir().join("pipe");
    run(&format!("mkfifo {}", pipe.display()))?;
    let cases: [(&str, String, &str, &[&str]); 14] = [
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
            plain.replace("sidetrack.dev/netns", "sidetrack.dev/other"),
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
        (
            "host network",
            plain.replace("spec:\n", "spec:\n  hostNetwork: true\n"),
            "not-taken",
            &["host's network"],
        ),
        (
            "no sidecar",
            plain.replace("name: istio-proxy", "name: web"),
            "not-taken",
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
            "TPROXY",
            annotated("sidecar.istio.io/interceptionMode", "TPROXY"),
            "rejected",
            &["TPROXY", "REDIRECT"],
        ),
    ];
    for (what, text, state, words) in cases {
        lab.write_manifest("bad", &text)?;
        reported(&agent.places, state, words).context(what)?;
        let good = agent.places.pod("test/good")?.context("the other pod")?;
        ensure!(
            good["state"] == "enrolled",
            "{what} touched another pod: {good}"
        );
        lab.remove_manifest("bad")?;
        agent.places.wait_pod("test/bad", |pod| pod.is_none())?;
    }
    // A pipe among the manifests holds nothing up.
    run(&format!(
        "mkfifo {}",
        lab.places().pods.join("pipe.yaml").display()
    ))?;
    reported(&agent.places, "", &["pipe.yaml", "not a regular file"])?;
    // Two manifests for one pod: the older stays in force.
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

/// Waits until status (for a file) or the pod's row (for a pod) says all the words.
fn reported(places: &Places, state: &str, words: &[&str]) -> Result<()> {
    let says = |text: &str| words.iter().all(|word| text.contains(word));
    if state.is_empty() {
        for _ in 0..100 {
            let problems = places.json(&["status", "-o", "json"])?["problems"].to_string();
            if says(&problems) {
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        anyhow::bail!("status does not say {words:?}; log:\n{}", places.log());
    }
    places
        .wait_pod("test/bad", |pod| {
            pod.is_some_and(|pod| pod["state"] == state && pod["reason"].as_str().is_some_and(says))
        })
        .map(drop)
}

fn last_good() -> Result<()> {
    let mut lab = Lab::new()?;
    let pod = lab.pod("app", 2)?;
    let excluded = [("traffic.sidecar.istio.io/excludeOutboundPorts", "3306")];
    lab.write_manifest("app", &manifest("app", &pod, &excluded))?;
    let mut agent = Agent::start(lab.places())?;
    agent.places.wait_enrolled("test/app")?;
    let bad = [("traffic.sidecar.istio.io/excludeOutboundPorts", "mysql")];
    lab.write_manifest("app", &manifest("app", &pod, &bad))?;
    agent.places.wait_pod("test/app", |pod| {
        pod.is_some_and(|pod| {
            let reason = pod["reason"].as_str().unwrap_or_default();
            pod["state"] == "enrolled"
                && reason.contains("mysql")
                && pod["policy"]["excluded_outbound_ports"][0] == 3306
        })
    })?;
    ensure!(
        agent
            .places
            .log()
            .contains("its last good policy stays in force")
    );
    // A new agent cannot use it either, and leaves in force what the last one wrote.
    agent.end(Signal::SIGKILL)?;
    let agent = Agent::start(lab.places())?;
    agent.places.wait_pod("test/app", |pod| {
        pod.is_some_and(|pod| {
            let reason = pod["reason"].as_str().unwrap_or_default();
            pod["state"] == "enrolled" && reason.contains("mysql")
        })
    })?;
    let _sidecar = sidecar::start(&pod, &[])?;
    let connected = pod.actor()?.dial(Dial::new(&APP, at("10.77.0.254", 80)))?;
    ensure!(connected.is_ok_and(|connected| connected.accepted_by == 15001));
    // Back to what it was: nothing is wrong any more.
    lab.write_manifest("app", &manifest("app", &pod, &excluded))?;
    agent.places.wait_enrolled("test/app")?;
    Ok(())
}

/// A file that is half readable, or empty for a moment, takes no pod out.
fn known_files() -> Result<()> {
    let mut lab = Lab::new()?;
    let pod = lab.pod("app", 2)?;
    let good = manifest("app", &pod, &[]);
    lab.write_manifest("app", &good)?;
    let agent = Agent::start(lab.places())?;
    agent.places.wait_enrolled("test/app")?;
    for broken in [
        good.replace("containers:", "containers: 3 #"),
        String::new(),
        "kind: [".to_owned(),
    ] {
        lab.write_manifest("app", &broken)?;
        reported(&agent.places, "", &["app.yaml", "as they are"]).context(broken)?;
        let pod = agent.places.pod("test/app")?.context("the pod")?;
        ensure!(pod["state"] == "enrolled", "{pod}");
        lab.write_manifest("app", &good)?;
        agent.places.wait_enrolled("test/app")?;
    }
    Ok(())
}

fn one_namespace() -> Result<()> {
    let mut lab = Lab::new()?;
    let pod = lab.pod("app", 2)?;
    lab.write_manifest("a", &manifest("first", &pod, &[]))?;
    let agent = Agent::start(lab.places())?;
    agent.places.wait_enrolled("test/first")?;
    lab.write_manifest("b", &manifest("second", &pod, &[]))?;
    agent.places.wait_pod("test/second", |pod| {
        pod.is_some_and(|pod| {
            let reason = pod["reason"].as_str().unwrap_or_default();
            pod["state"] == "rejected" && reason.contains("already belongs to pod test/first")
        })
    })?;
    Ok(())
}

fn places() -> Result<()> {
    let lab = Lab::new()?;
    let dir = lab.dir().to_string_lossy().into_owned();
    let ends = |change: &dyn Fn(&mut Places), words: &[&str]| -> Result<()> {
        let mut places = lab.places().clone();
        change(&mut places);
        let _ = fs::remove_file(&places.log);
        let ended = Agent::spawn(&places)?.wait()?;
        let log = places.log();
        ensure!(ended.code() == Some(1), "{ended}: {log}");
        ensure!(
            words.iter().all(|word| log.contains(word)),
            "{words:?} in {log}"
        );
        ensure!(log.lines().count() == 1, "one line: {log}");
        Ok(())
    };
    ends(
        &|places| places.bpffs = dir.clone().into(),
        &["not a bpffs", "mount -t bpf", "--bpffs"],
    )?;
    ends(
        &|places| places.cgroup = dir.clone().into(),
        &["in a cgroup2 mount", "--cgroup"],
    )?;
    ends(
        &|places| places.cgroup = "/nowhere".into(),
        &["/nowhere", "No such file"],
    )?;
    let file = lab.dir().join("precious");
    fs::write(&file, "keep me")?;
    ends(
        &|places| places.socket.clone_from(&file),
        &["is not a socket", "--socket"],
    )?;
    let pins = lab.places().bpffs.join("sidetrack");
    ensure!(!pins.exists(), "a start that fails leaves nothing behind");
    let mut other = lab.places().clone();
    other.socket.clone_from(&file);
    ensure!(other.output(&["cleanup"])?.status.code() == Some(1));
    ensure!(fs::read_to_string(&file)? == "keep me");
    ends(
        &|places| places.pods = "/nowhere".into(),
        &["/nowhere", "--pods-dir"],
    )?;
    Ok(())
}

fn capabilities() -> Result<()> {
    let lab = Lab::new()?;
    let places = lab.places();
    let program = binary()?;
    // A process that is root in name only.
    let output = output(&[
        "setpriv",
        "--bounding-set=-all",
        "--inh-caps=-all",
        &program.to_string_lossy(),
        "agent",
        "--pods-dir",
        &places.pods.to_string_lossy(),
        "--bpffs",
        &places.bpffs.to_string_lossy(),
        "--cgroup",
        &places.cgroup.to_string_lossy(),
        "--socket",
        &places.socket.to_string_lossy(),
    ])?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(1), "{output:?}");
    ensure!(said.contains("CAP_BPF") && said.contains("root"), "{said}");
    Ok(())
}
