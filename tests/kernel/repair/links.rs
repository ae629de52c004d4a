//! Links that were detached or have another program.

use std::{
    fs,
    os::{fd::AsFd as _, unix::fs::MetadataExt},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use aya_obj::generated::{bpf_attach_type, bpf_prog_type};
use lab::{
    product::{CGROUP_HOOKS, hook_of_pod, sys},
    wait::eventually,
};
use nix::sys::signal::Signal;

use super::{cookie, enrolled_pod, foreign_program, passing, pins, was_repaired};
use crate::fixture::PodFixture;

kernel_test!(detached_links_are_attached_again);
fn detached_links_are_attached_again() -> Result<()> {
    let (fixture, _sidecar) = enrolled_pod(&[])?;
    let pins = pins(&fixture)?;
    let netns = fs::metadata(fixture.pod.path())?;
    let inode = MetadataExt::ino(&netns);
    let cookie = cookie(&fixture)?;
    let pod = pins.pod_link(cookie);
    let id = |path: &Path| fs::metadata(path).map(|it| MetadataExt::ino(&it));
    let of_all = id(&fixture.lab.places().cgroup)?;
    let own = id(fixture.pod.own_cgroup())?;
    let mut before = Vec::new();
    for hook in &CGROUP_HOOKS {
        let link = sys::open_pin(&hook_of_pod(&pins, hook.name, cookie))?;
        sys::link_detach(link.as_fd()).with_context(|| format!("detach {}", hook.name))?;
        ensure!(sys::link_cgroup(link.as_fd())? == 0, "{}", hook.name);
        before.push(link);
    }
    let link = sys::open_pin(&pod)?;
    sys::link_detach(link.as_fd()).context("detach the pod's link")?;
    ensure!(sys::link_netns(link.as_fd())? == 0);
    for hook in &CGROUP_HOOKS {
        fixture.wait(hook.name, || {
            let link = sys::open_pin(&hook_of_pod(&pins, hook.name, cookie))?;
            let is_callbacks = hook.name == "sockops";
            Ok(sys::link_cgroup(link.as_fd())? == if is_callbacks { own } else { of_all })
        })?;
    }
    fixture.wait("sk_lookup", || {
        let link = sys::open_pin(&pod)?;
        Ok(sys::link_netns(link.as_fd())? == inode)
    })?;
    for hook in CGROUP_HOOKS.iter().filter(|hook| hook.name != "sockops") {
        was_repaired(&fixture, &format!("hook {} was detached", hook.name), 1..=1)?;
    }
    was_repaired(&fixture, "hook sockops of its cgroup was detached", 1..=1)?;
    was_repaired(
        &fixture,
        "pod test/app: its sk_lookup link was detached",
        1..=1,
    )
}

kernel_test!(another_program_in_a_link_is_replaced);
fn another_program_in_a_link_is_replaced() -> Result<()> {
    let (fixture, _sidecar) = enrolled_pod(&[])?;
    let link = sys::open_pin(&pins(&fixture)?.link("connect4"))?;
    let own = sys::link_info(link.as_fd())?.prog_id;
    let other = foreign_program("st_fake", bpf_attach_type::BPF_CGROUP_INET4_CONNECT)?;
    sys::link_update(link.as_fd(), other.as_fd())?;
    fixture.wait("the own program", || {
        Ok(sys::link_info(link.as_fd())?.prog_id == own)
    })?;
    was_repaired(&fixture, "hook connect4 had another program", 1..=1)?;
    // One that lets every inbound connection pass.
    let link = sys::open_pin(&pins(&fixture)?.pod_link(cookie(&fixture)?))?;
    let kind = bpf_prog_type::BPF_PROG_TYPE_SK_LOOKUP;
    let other = passing("st_fake", kind, bpf_attach_type::BPF_SK_LOOKUP)?;
    let theirs = sys::program_id(other.as_fd())?;
    sys::link_update(link.as_fd(), other.as_fd())?;
    fixture.wait("the pod's own program", || {
        Ok(sys::link_info(link.as_fd())?.prog_id != theirs)
    })?;
    was_repaired(
        &fixture,
        "pod test/app: its sk_lookup link was detached or had another program",
        1..=1,
    )
}

kernel_test!(the_inbound_program_is_restored);
fn the_inbound_program_is_restored() -> Result<()> {
    let (fixture, _sidecar) = enrolled_pod(&[])?;
    let map = sys::open_pin(&pins(&fixture)?.map("INBOUND_PROGRAM"))?;
    let slot = 0_u32.to_ne_bytes();
    ensure!(sys::map_delete(map.as_fd(), &slot)?);
    fixture.wait("the program", || {
        let mut id = [0; 4];
        Ok(sys::map_lookup(map.as_fd(), &slot, &mut id)?)
    })?;
    was_repaired(
        &fixture,
        "the program that decides about inbound connections was not active",
        1..=1,
    )
}

kernel_test!(a_detached_inbound_link_is_back_at_once);
/// Inbound connections pass the sidecar meanwhile, so that it does not wait for the comparison of everything else.
fn a_detached_inbound_link_is_back_at_once() -> Result<()> {
    /// 200 ms; the rest is for a busy machine.
    const AT_ONCE: Duration = Duration::from_millis(800);
    let (mut fixture, _sidecar) = enrolled_pod(&[])?;
    let pin = pins(&fixture)?.pod_link(cookie(&fixture)?);
    let hook = |fixture: &PodFixture| -> Result<serde_json::Value> {
        let status = super::status(&fixture.agent.places);
        let status = status.or_else(|_| {
            let output = fixture.agent.places.output(&["status", "-o", "json"])?;
            anyhow::Ok(serde_json::from_slice(&output.stdout)?)
        })?;
        let hooks = status["hooks"].as_array().context("hooks")?;
        let hook = hooks.iter().find(|it| it["hook"] == "sk_lookup");
        hook.cloned().context("the hook of inbound connections")
    };
    let expected = |attached: bool, pods: u64| serde_json::json!([attached, pods, 1]);
    let shown = |fixture: &PodFixture| -> Result<serde_json::Value> {
        let hook = hook(fixture)?;
        Ok(serde_json::json!([
            hook["attached"],
            hook["pods"],
            hook["of_pods"]
        ]))
    };
    ensure!(shown(&fixture)? == expected(true, 1), "{}", hook(&fixture)?);
    for _ in 0..4 {
        let link = sys::open_pin(&pin)?;
        sys::link_detach(link.as_fd())?;
        let start = Instant::now();
        let is_back = || -> Result<bool> {
            let link = sys::open_pin(&pin)?;
            Ok(sys::link_netns(link.as_fd())? != 0)
        };
        eventually(AT_ONCE, || {
            ensure!(is_back()?, "it is still detached");
            Ok(())
        })?;
        eprintln!("attached again after {:?}", start.elapsed());
        thread::sleep(Duration::from_millis(300));
    }
    was_repaired(&fixture, "its sk_lookup link was detached", 4..=4)?;
    // While no agent repairs it, the status shows it.
    fixture.agent.end(Signal::SIGKILL)?;
    sys::link_detach(sys::open_pin(&pin)?.as_fd())?;
    ensure!(
        shown(&fixture)? == expected(false, 0),
        "{}",
        hook(&fixture)?
    );
    Ok(())
}
