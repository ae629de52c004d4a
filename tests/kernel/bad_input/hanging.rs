//! Paths of manifests on a file system that never answers.

use std::{
    fs::{self, File},
    io::Write as _,
    os::unix::fs::{OpenOptionsExt as _, symlink},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lab::{
    agent::{Agent, Extra, Places, is},
    hanging::HangingFs,
    network::{Lab, manifest},
    sidecar,
    wait::eventually,
};
use nix::sys::{signal::Signal, stat::Mode};

use crate::doctor;

const NETNS: &str = "sidetrack.dev/netns";

kernel_test!(paths_that_hang_stop_nothing_else);
/// A manifest names a network namespace there, another is a link to a file there, and a pod that is enrolled has its
/// namespace's path replaced by one that leads there.
fn paths_that_hang_stop_nothing_else() -> Result<()> {
    let mut lab = Lab::new()?;
    let dir = lab.dir().join("hanging");
    fs::create_dir(&dir)?;
    let hanging = HangingFs::mount(&dir)?;
    let mut agent = Agent::start(lab.places())?;
    let at = |path: &std::path::Path, name: &str, pod| {
        let path = path.display().to_string();
        manifest(name, pod, &[])
            .edited(move |pod| pod["metadata"]["annotations"][NETNS] = path.into())
    };
    // By a link of its own, which leads to the pod's namespace first.
    let moved = lab.pod("moved", 2)?;
    let link = lab.dir().join("link");
    symlink(moved.path(), &link)?;
    lab.write_manifest("moved", &at(&link, "moved", &moved))?;
    lab.places().wait_enrolled("test/moved")?;

    lab.write_manifest("a-first", &at(&dir.join("netns"), "a-first", &moved))?;
    // More directories than there may be calls that hang.
    for number in 0..70 {
        let name = format!("a-{number}");
        let path = dir.join(number.to_string()).join("netns");
        lab.write_manifest(&name, &at(&path, &name, &moved))?;
    }
    symlink(
        dir.join("manifest.yaml"),
        lab.places().pods.join("b-linked.yaml"),
    )?;
    fs::remove_file(&link)?;
    symlink(dir.join("netns"), &link)?;
    lab.places()
        .wait_pod("test/a-first", is("waiting", "cannot be looked at"))?;
    let healthy = lab.pod("healthy", 3)?;
    let _sidecar = sidecar::start(&healthy, &[])?;
    let enrolled = lab.enroll("healthy", &healthy, &[]);
    enrolled.with_context(|| lab.places().log())?;
    eventually(Duration::from_secs(10), || {
        let problems = lab.places().problems()?;
        ensure!(problems.contains("b-linked.yaml"), "{problems}");
        Ok(())
    })?;
    // What is not known changes nothing.
    thread::sleep(Duration::from_millis(1500));
    let row = lab.places().pod("test/moved")?.context("the pod")?;
    ensure!(row["state"] == "enrolled", "{row}");
    let output = lab.places().output(&["probe", "live"])?;
    ensure!(output.status.success(), "{output:?}");
    let took = agent.end(Signal::SIGTERM)?;
    ensure!(took < Duration::from_secs(5), "{took:?}");
    drop(hanging);
    Ok(())
}

kernel_test!(a_link_that_answers_later_is_read_then);
/// No event says so. Links beyond those that are waited for hold up nothing else.
fn a_link_that_answers_later_is_read_then() -> Result<()> {
    const LINKS: usize = 20;
    let lab = Lab::new()?;
    let dir = lab.dir().join("hanging");
    fs::create_dir(&dir)?;
    let hanging = HangingFs::mount(&dir)?;
    let _agent = Agent::start(lab.places())?;
    for number in 0..LINKS {
        let link = lab.places().pods.join(format!("a-{number:02}.yaml"));
        symlink(dir.join("manifest.yaml"), link)?;
    }
    let own = "kind: Pod\nmetadata: {name: own, namespace: test}\n";
    fs::write(lab.places().pods.join("own.yaml"), own)?;
    let said = |words: &str, count: usize| {
        eventually(Duration::from_secs(20), || {
            let problems = lab.places().problems()?;
            ensure!(problems.matches(words).count() == count, "{problems}");
            Ok(())
        })
    };
    said("does not answer", 8)?;
    said("8 other links", LINKS - 8)?;
    ensure!(lab.places().pod("test/own")?.is_some(), "it was not read");
    drop(hanging);
    fs::write(
        dir.join("manifest.yaml"),
        "kind: Pod\nmetadata: {name: other}\n",
    )?;
    said("does not answer", 0)?;
    said("8 other links", 0)?;
    // All of them name the same pod.
    ensure!(
        lab.places().pod("default/other")?.is_some(),
        "it was not read"
    );
    Ok(())
}

kernel_test!(a_pods_directory_that_hangs_is_a_problem);
/// Its pods stay as they are, and nothing waits for it, the agent's end included.
fn a_pods_directory_that_hangs_is_a_problem() -> Result<()> {
    const SILENT: &str = "its file system does not answer";
    let mut lab = Lab::new()?;
    let pod = lab.pod("app", 2)?;
    let mut agent = Agent::start(lab.places())?;
    lab.enroll("app", &pod, &[])?;
    let said = |says: bool| {
        eventually(Duration::from_secs(10), || {
            let problems = lab.places().problems()?;
            ensure!(problems.contains(SILENT) == says, "{problems}");
            Ok(())
        })
    };
    let hanging = HangingFs::mount(&lab.places().pods)?;
    said(true)?;
    for words in [&["probe", "live"][..], &["status", "--wait", "test/app"]] {
        let output = lab.places().output(words)?;
        ensure!(output.status.success(), "{words:?}: {output:?}");
    }
    ensure!(
        !lab.places()
            .output(&["status", "--check"])?
            .status
            .success()
    );
    drop(hanging);
    said(false)?;
    let _hanging = HangingFs::mount(&lab.places().pods)?;
    said(true)?;
    let took = agent.end(Signal::SIGTERM)?;
    ensure!(took < Duration::from_secs(5), "{took:?}");
    Ok(())
}

kernel_test!(pods_are_listed_while_an_agent_has_no_list_yet);
/// Those of the agent before stay intercepted.
fn pods_are_listed_while_an_agent_has_no_list_yet() -> Result<()> {
    let mut lab = Lab::new()?;
    let pod = lab.pod("app", 2)?;
    let mut agent = Agent::start(lab.places())?;
    lab.enroll("app", &pod, &[])?;
    agent.end(Signal::SIGKILL)?;
    let _hanging = HangingFs::mount(&lab.places().pods)?;
    let _agent = Agent::spawn(lab.places())?;
    eventually(Duration::from_secs(15), || {
        let status = lab.places().json(&["status", "-o", "json"])?;
        ensure!(
            status["agent_state"] == "starting" && !status["agent"].is_null(),
            "{status}"
        );
        ensure!(status["pods"]["enrolled"] == 1, "{status}");
        Ok(())
    })?;
    let pods = lab.places().json(&["pods", "-o", "json"])?;
    ensure!(
        pods[0]["name"] == "app" && pods[0]["state"] == "enrolled",
        "{pods}"
    );
    Ok(())
}

kernel_test!(without_inotify_manifests_are_read_nevertheless);
/// Other processes of root have all instances of the node.
fn without_inotify_manifests_are_read_nevertheless() -> Result<()> {
    let mut lab = Lab::new()?;
    // EMFILE.
    let wrapper = doctor::refusing(&lab, "inotify_init1 24")?;
    let extra = Extra {
        binary: Some(&wrapper),
        ..Extra::default()
    };
    let agent = Agent::start_with(lab.places(), &extra)?;
    let pod = lab.pod("app", 2)?;
    let _sidecar = sidecar::start(&pod, &[])?;
    lab.enroll("app", &pod, &[])?;
    ensure!(
        agent.places.log().contains("cannot be watched"),
        "{}",
        agent.places.log()
    );
    Ok(())
}

kernel_test!(a_log_that_is_not_read_stops_nothing);
/// As when the container runtime is stopped, or the disk hangs that it writes logs to.
fn a_log_that_is_not_read_stops_nothing() -> Result<()> {
    let mut lab = Lab::new()?;
    let log = lab.dir().join("pipe");
    nix::unistd::mkfifo(&log, Mode::S_IRWXU)?;
    let mut options = File::options();
    let mut pipe = options
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(&log)?;
    while pipe.write(&[b'x'; 4096]).is_ok() {}
    let places = Places {
        log,
        ..lab.places().clone()
    };
    let mut agent = Agent::spawn(&places)?;
    let pod = lab.pod("app", 2)?;
    lab.enroll("app", &pod, &[])?;
    let took = agent.end(Signal::SIGTERM)?;
    ensure!(took < Duration::from_secs(5), "{took:?}");
    Ok(())
}
