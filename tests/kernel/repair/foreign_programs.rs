//! Programs of others at the same hooks are reported and stay untouched.

use std::{
    fs,
    os::fd::{AsFd as _, OwnedFd},
};

use anyhow::{Context as _, Result, ensure};
use aya_obj::generated::bpf_attach_type;
use lab::{agent::Agent, product::sys};
use nix::sys::signal::Signal;

use super::{enrolled_pod, foreign_program, repairs, status, works};
use crate::fixture::PodFixture;

kernel_test!(foreign_programs_are_reported);
fn foreign_programs_are_reported() -> Result<()> {
    let (mut fixture, _sidecar) = enrolled_pod(&[])?;
    let attach = |name: &str, attach_type| -> Result<OwnedFd> {
        let cgroup = fs::File::open(&fixture.lab.places().cgroup)?;
        let program = foreign_program(name, attach_type)?;
        Ok(sys::link_create(
            program.as_fd(),
            cgroup.as_fd(),
            attach_type,
        )?)
    };
    let reported = |fixture: &PodFixture, words: &[&str]| -> Result<bool> {
        let problems = status(&fixture.agent.places)?["agent"]["problems"].clone();
        let all = problems.as_array().cloned().unwrap_or_default();
        Ok(all
            .iter()
            .filter_map(|it| it.as_str())
            .any(|problem| words.iter().all(|word| problem.contains(word))))
    };
    let late = attach("tst_late", bpf_attach_type::BPF_CGROUP_INET4_CONNECT)?;
    let words = ["tst_late", "connect4", "runs after sidetrack's"];
    fixture.wait("the late one", || reported(&fixture, &words))?;
    works(&fixture).context("it does nothing, and stays untouched")?;
    let cgroup = fs::File::open(&fixture.lab.places().cgroup)?;
    let attached =
        sys::attached_programs(cgroup.as_fd(), bpf_attach_type::BPF_CGROUP_INET4_CONNECT)?;
    ensure!(attached.ids.len() == 2, "{attached:?}");
    drop(late);
    fixture.wait("it is gone", || Ok(!reported(&fixture, &["tst_late"])?))?;
    // One that was there first.
    fixture.agent.end(Signal::SIGTERM)?;
    let cleanup = fixture.lab.places().output(&["cleanup"])?;
    ensure!(cleanup.status.success(), "{cleanup:?}");
    let attach_type = bpf_attach_type::BPF_CGROUP_INET4_GETPEERNAME;
    let program = foreign_program("tst_early", attach_type)?;
    let _early = sys::link_create(program.as_fd(), cgroup.as_fd(), attach_type)?;
    fixture.agent = Agent::start(fixture.lab.places())?;
    let words = ["tst_early", "getpeername4", "runs before sidetrack's"];
    fixture.wait("the early one", || reported(&fixture, &words))?;
    ensure!(repairs(&fixture)? == 0, "nothing was to repair");
    works(&fixture)
}
