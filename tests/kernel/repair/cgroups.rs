//! The pods' cgroup is recreated or out of reach.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::{
    actor::Actor,
    agent::{Agent, Extra},
    ledger::{cgroup_root, remove_cgroup},
    network::manifest,
    node::VIP,
    product::Pins,
    protocol::{APP, Dial},
    wait::eventually,
};
use nix::sys::signal::Signal;

use super::{enrolled_pod, repairs, status, was_repaired, works};
use crate::fixture::at;

fn processes_below(cgroup: &Path, found: &mut Vec<(String, String)>) -> Result<()> {
    let name = cgroup.display().to_string();
    for pid in fs::read_to_string(cgroup.join("cgroup.procs"))?.lines() {
        found.push((pid.to_owned(), name.clone()));
    }
    for entry in fs::read_dir(cgroup)?.flatten() {
        if entry.file_type()?.is_dir() {
            processes_below(&entry.path(), found)?;
        }
    }
    Ok(())
}

kernel_test!(a_recreated_cgroup_is_followed);
fn a_recreated_cgroup_is_followed() -> Result<()> {
    let (fixture, _sidecar) = enrolled_pod(&[])?;
    let held = fixture.client.hold(Dial::new(&APP, at(VIP, 80)))?;
    ensure!(held.is_ok_and(|held| held.accepted_by == 15001));
    let cgroup = &fixture.lab.places().cgroup;
    let mut processes = Vec::new();
    processes_below(cgroup, &mut processes)?;
    ensure!(processes.len() >= 3, "{processes:?}");
    let parent = cgroup_root()?.join("cgroup.procs");
    for (pid, _) in &processes {
        fs::write(&parent, pid).with_context(|| format!("move {pid} out"))?;
    }
    remove_cgroup(cgroup);
    fs::create_dir_all(&fixture.pod.cgroup)?;
    for (pid, cgroup) in &processes {
        fs::write(format!("{cgroup}/cgroup.procs"), pid)?;
    }
    fixture.wait("the cgroup", || {
        Ok(fixture.agent.places.log().contains("was made anew"))
    })?;
    was_repaired(&fixture, "attached all hooks to", 1..=1)?;
    // Both ends of what was open, of which the sockets belong to the cgroup that is gone.
    for names in fixture.client.reread_names()? {
        let names = names.map_err(|errno| anyhow!("errno {errno}"))?;
        ensure!(names.client.peer == at(VIP, 80), "{names:?}");
        ensure!(names.server.original_v4 == Ok(at(VIP, 80)), "{names:?}");
    }
    ensure!(fixture.client.echo()? == 1);
    Ok(())
}

kernel_test!(the_cgroup_of_an_ended_pod_is_no_loss);
/// kubelet removes it before the pod's object goes.
fn the_cgroup_of_an_ended_pod_is_no_loss() -> Result<()> {
    let (mut fixture, _sidecar) = enrolled_pod(&[])?;
    let ended = fixture.lab.pod("ended", 3)?;
    let capturing = manifest("ended", &ended, &[]);
    let capturing = capturing.with_variable("ISTIO_META_DNS_CAPTURE", "true");
    fixture.lab.enroll_manifest("ended", &capturing)?;
    let pins = Pins::new(&fixture.agent.places.bpffs)?;
    let cookie = fixture.agent.places.cookie("test/ended")?;
    ensure!(pins.pod_callbacks(cookie).exists());
    remove_cgroup(ended.own_cgroup());
    ensure!(!ended.own_cgroup().exists());
    // A look that would repair them, and the next.
    std::thread::sleep(Duration::from_secs(5));
    ensure!(repairs(&fixture)? == 0, "{}", fixture.agent.places.log());
    ensure!(
        !pins.link("sockops").exists(),
        "they are on the cgroup of all pods"
    );
    works(&fixture)
}

kernel_test!(a_cgroup_out_of_reach_is_reported);
fn a_cgroup_out_of_reach_is_reported() -> Result<()> {
    let (mut fixture, _sidecar) = enrolled_pod(&[])?;
    fixture.agent.end(Signal::SIGTERM)?;
    let mount = fixture.lab.dir().join("cgroups");
    fs::create_dir(&mount)?;
    lab::private::mount_at("cgroup2", &mount)?;
    let name = fixture.lab.places().cgroup.file_name().context("a name")?;
    let mut places = fixture.lab.places().clone();
    places.cgroup = mount.join(name);
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    drop(listener);
    fixture.agent = Agent::start_with(&places, &Extra::arguments(&["--metrics-addr", &address]))?;
    fixture.agent.places.wait_enrolled("test/app")?;
    let is_reported = || -> Result<bool> {
        let problems = status(&places)?["agent"]["problems"].to_string();
        Ok(problems.contains("is gone") && problems.contains("--cgroup PATH"))
    };
    nix::mount::umount2(&mount, nix::mount::MntFlags::MNT_DETACH)?;
    fixture.wait("reported", is_reported)?;
    works(&fixture).context("what is attached stays so")?;
    lab::private::mount_at("cgroup2", &mount)?;
    fixture.wait("back", || Ok(!is_reported()?))?;
    works(&fixture)?;
    nix::mount::umount2(&mount, nix::mount::MntFlags::MNT_DETACH)?;
    // The same hooks in every kind of metrics.
    let answer = lab::command::run(&format!("curl -sf http://{address}/metrics"))?;
    for kind in ["cgroup", "link", "pin", "row"] {
        let line = format!("sidetrack_repairs_total{{what=\"{kind}\"}} 0");
        ensure!(answer.lines().any(|known| known == line), "{answer}");
    }
    Ok(())
}

kernel_test!(a_process_outside_the_cgroup_is_reported);
fn a_process_outside_the_cgroup_is_reported() -> Result<()> {
    let (fixture, _sidecar) = enrolled_pod(&[])?;
    let outside = Actor::start(&fixture.pod.netns, &cgroup_root()?)?;
    let text = format!("process {} is not below", outside.pid());
    let reported = |wanted: bool| -> Result<()> {
        let problems = eventually(Duration::from_secs(25), || {
            let problems = status(&fixture.agent.places)?["problems"].to_string();
            let is_so = problems.contains(&text) == wanted;
            ensure!(is_so, "reported: {}, problems: {problems}", !wanted);
            Ok(problems)
        })?;
        ensure!(!wanted || problems.contains("pod test/app"), "{problems}");
        Ok(())
    };
    let state = || -> Result<String> {
        let pod = fixture.agent.places.pod("test/app")?.context("the pod")?;
        Ok(pod["state"].to_string())
    };
    reported(true)?;
    ensure!(state()? == r#""partial""#, "{}", state()?);
    drop(outside);
    reported(false)?;
    ensure!(state()? == r#""enrolled""#, "{}", state()?);
    Ok(())
}
