//! One agent at a time, and cleanup after the last.

use std::{
    fs,
    os::{fd::AsRawFd as _, unix::net::UnixListener},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Result, ensure};
use lab::{
    agent::Agent, command::run_words, network::Lab, product::CGROUP_HOOKS, wait::eventually,
};
use nix::{
    errno::Errno,
    sys::{
        signal::Signal,
        socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket},
    },
};

kernel_test!(a_second_agent_is_refused);
fn a_second_agent_is_refused() -> Result<()> {
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

kernel_test!(one_whose_socket_is_removed_ends);
/// No one would find it, and no pod would start. The next one has a socket again.
fn one_whose_socket_is_removed_ends() -> Result<()> {
    let lab = Lab::new()?;
    let mut agent = Agent::start(lab.places())?;
    // Another one in its place is not removed with the agent.
    fs::remove_file(&lab.places().socket)?;
    let _another = UnixListener::bind(&lab.places().socket)?;
    eventually(Duration::from_secs(10), || {
        ensure!(agent.has_ended()?, "it runs");
        Ok(())
    })?;
    let log = lab.places().log();
    ensure!(log.contains("was removed or replaced"), "{log}");
    fs::remove_file(&lab.places().socket)?;
    Agent::start(lab.places())?;
    Ok(())
}

kernel_test!(one_that_is_stopped_is_an_agent_too);
/// The first one's queue of connections is full, so that connect would wait.
fn one_that_is_stopped_is_an_agent_too() -> Result<()> {
    let lab = Lab::new()?;
    let path = &lab.places().socket;
    let _stopped = UnixListener::bind(path)?;
    let address = UnixAddr::new(path)?;
    let mut queue = Vec::new();
    loop {
        let flags = SockFlag::SOCK_NONBLOCK;
        let one = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        match connect(one.as_raw_fd(), &address) {
            Err(Errno::EAGAIN) => break,
            other => other?,
        }
        queue.push(one);
    }
    let mut second = Agent::spawn(lab.places())?;
    eventually(Duration::from_secs(10), || {
        ensure!(second.has_ended()?, "it waits");
        Ok(())
    })?;
    let log = lab.places().log();
    ensure!(log.contains("an agent answers on"), "{log}");
    let cleanup = lab.places().output(&["cleanup"])?;
    ensure!(cleanup.status.code() == Some(1), "{cleanup:?}");
    Ok(())
}

kernel_test!(cleanup_removes_everything);
fn cleanup_removes_everything() -> Result<()> {
    let mut lab = Lab::new()?;
    let pod = lab.pod("app", 2)?;
    lab.write_pod("app", &pod, &[])?;
    let mut agent = Agent::start(lab.places())?;
    agent.places.wait_enrolled("test/app")?;
    let refused = lab.places().output(&["cleanup"])?;
    ensure!(refused.status.code() == Some(1), "{refused:?}");
    let refused = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(refused.contains("an agent is running"), "{refused}");
    // A dry run says the same, and who would lose what.
    let dry = lab.places().output(&["cleanup", "--dry-run"])?;
    let said = String::from_utf8_lossy(&dry.stderr).into_owned();
    let why = refused.trim_start_matches("sidetrack: ");
    ensure!(
        dry.status.code() == Some(1) && said.contains(why),
        "{dry:?}"
    );
    let dry = String::from_utf8_lossy(&dry.stdout).into_owned();
    ensure!(
        dry.contains("without mTLS, in pod test/app") && dry.contains("links and"),
        "{dry}"
    );
    agent.end(Signal::SIGTERM)?;
    let status = lab.places().output(&["status"])?;
    ensure!(String::from_utf8_lossy(&status.stdout).contains("not running"));
    let would = lab.places().json(&["cleanup", "--dry-run", "-o", "json"])?;
    let removed = lab.places().json(&["cleanup", "-o", "json"])?;
    for what in ["pods", "links", "maps"] {
        let count = |report: &serde_json::Value| report[what].as_array().map(Vec::len);
        ensure!(
            count(&would) == count(&removed),
            "{what}: {would} {removed}"
        );
    }
    ensure!(removed["pods"][0] == "test/app", "{removed}");
    ensure!(
        removed["links"]
            .as_array()
            .is_some_and(|links| links.len() == CGROUP_HOOKS.len() + 1),
        "{removed}"
    );
    ensure!(!lab.places().bpffs.join("sidetrack").exists());
    let again = lab.places().output(&["cleanup"])?;
    ensure!(again.status.success());
    ensure!(String::from_utf8_lossy(&again.stdout).contains("nothing to remove"));
    let status = lab.places().output(&["status"])?;
    let said = String::from_utf8_lossy(&status.stdout).into_owned();
    ensure!(
        status.status.code() == Some(1) && said.contains("sidetrack is not installed here"),
        "{said}"
    );
    ensure!(
        !said.contains("No such file") && said.contains("pods      none"),
        "{said}"
    );
    // What is no socket of an agent would not be removed either.
    let file = lab.dir().join("precious");
    fs::write(&file, "keep me")?;
    let mut other = lab.places().clone();
    other.socket = file;
    let dry = other.output(&["cleanup", "--dry-run"])?;
    let said = String::from_utf8_lossy(&dry.stdout).into_owned();
    ensure!(
        dry.status.code() == Some(1) && !said.contains("precious"),
        "{dry:?}"
    );
    // Nothing is attached any more.
    let tree = run_words(&[
        "bpftool",
        "cgroup",
        "show",
        &lab.places().cgroup.to_string_lossy(),
    ])?;
    ensure!(!tree.contains("st_"), "{tree}");
    Ok(())
}

kernel_test!(one_directory_of_the_bpffs_is_enough);
/// As in its container, which gets nothing else of the node's bpffs.
fn one_directory_of_the_bpffs_is_enough() -> Result<()> {
    let mut lab = Lab::new()?;
    let pod = lab.pod("app", 2)?;
    lab.write_pod("app", &pod, &[])?;
    let of_node = lab.places().bpffs.join("sidetrack");
    let mut places = lab.places().clone();
    places.bpffs = lab.dir().join("host-bpf");
    let mounted = places.bpffs.join("sidetrack");
    fs::create_dir_all(&mounted)?;
    fs::create_dir(&of_node)?;
    // The container's root file system is read-only.
    let own = places.bpffs.display().to_string();
    run_words(&["mount", "--bind", &own, &own])?;
    let _own = Unmount(places.bpffs.clone());
    run_words(&["mount", "-o", "remount,bind,ro", &own])?;
    run_words(&[
        "mount",
        "--bind",
        &of_node.to_string_lossy(),
        &mounted.to_string_lossy(),
    ])?;
    let _unmount = Unmount(mounted.clone());
    let mut agent = Agent::start(&places)?;
    agent.places.wait_enrolled("test/app")?;
    agent.end(Signal::SIGTERM)?;
    let pods = places.json(&["pods", "-o", "json"])?;
    ensure!(pods[0]["name"] == "app", "{pods}");
    let removed = places.json(&["cleanup", "-o", "json"])?;
    ensure!(removed["left"] == serde_json::json!([]), "{removed}");
    ensure!(fs::read_dir(&of_node)?.count() == 0, "{removed}");
    for kept in ["last-policies.json", "last-defaults.yaml", "events.json"] {
        let path = places.socket.with_file_name(kept);
        ensure!(!path.exists(), "{kept} stays: {removed}");
    }
    Ok(())
}

struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = run_words(&["umount", &self.0.to_string_lossy()]);
    }
}

kernel_test!(an_agent_that_starts_answers_so);
/// Loading the programs takes a second; kubelet's probe and the CNI plugin need not wait for it.
fn an_agent_that_starts_answers_so() -> Result<()> {
    let lab = Lab::new()?;
    let places = lab.places();
    let _agent = Agent::spawn(places)?;
    let probe = |what: &str| -> Result<(bool, String)> {
        let output = places.output(&["probe", what])?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok((output.status.success(), text))
    };
    eventually(Duration::from_secs(20), || {
        let (live, text) = probe("live")?;
        ensure!(live && text.contains("the agent is starting"), "{text}");
        Ok(())
    })?;
    let (ready, text) = probe("ready")?;
    ensure!(!ready || !text.contains("starting"), "{text}");
    eventually(Duration::from_secs(30), || {
        let (ready, text) = probe("ready")?;
        ensure!(ready, "{text}");
        Ok(())
    })?;
    Ok(())
}
