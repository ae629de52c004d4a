//! The agent is killed, and then the sidecars.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow};
use lab::{agent::WAIT_TIMEOUT, command::output};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use super::{APP_UID, URL, pods::wait_enrolled};
use crate::{
    checks::Checks,
    environment::{Environment, HTTPBIN, UBUNTU, node},
};

/// Kills the agent under traffic and starts it again.
pub fn crash(environment: &mut Environment, agent: u32, checks: &mut Checks) -> Result<u32> {
    let pods = |environment: &Environment| -> Result<Vec<String>> {
        let rows = environment.places.json(&["pods", "-o", "json"])?;
        let rows = rows.as_array().cloned().unwrap_or_default();
        let row = |row: &Value| format!("{} {} {}", row["name"], row["state"], row["netns"]);
        Ok(rows.iter().map(row).collect())
    };
    let before = pods(environment)?;
    let stop = AtomicBool::new(false);
    let requests = |environment: &Environment| {
        let (mut good, mut bad) = (0_u32, 0_u32);
        while !stop.load(Ordering::Relaxed) {
            let words = ["curl", "-sf", "-o", "/dev/null", "--max-time", "5", URL];
            match environment.in_pod(UBUNTU, APP_UID, &words).status() {
                Ok(status) if status.success() => good += 1,
                _ => bad += 1,
            }
        }
        (good, bad)
    };
    let (good, bad) = thread::scope(|scope| {
        let shared: &Environment = environment;
        let traffic = scope.spawn(|| requests(shared));
        thread::sleep(Duration::from_millis(300));
        let killed = kill(Pid::from_raw(agent as i32), Signal::SIGKILL);
        thread::sleep(Duration::from_secs(1));
        stop.store(true, Ordering::Relaxed);
        let counted = traffic
            .join()
            .map_err(|_| anyhow!("the thread that made requests panicked"));
        killed.context("kill the agent")?;
        counted
    })?;
    environment.end(agent, Signal::SIGKILL)?;
    let without = format!("{good} requests while the agent is killed (-9) and away, 0 failed");
    checks.record(
        &without,
        (good > 0 && bad == 0)
            .then_some(())
            .ok_or(format!("{bad} failed")),
    );

    stop.store(false, Ordering::Relaxed);
    let agent = environment.spawn_agent()?;
    let (good, bad) = thread::scope(|scope| {
        let traffic = scope.spawn(|| requests(environment));
        let enrolled = [UBUNTU, HTTPBIN].map(|pod| wait_enrolled(environment, pod));
        stop.store(true, Ordering::Relaxed);
        let counted = traffic
            .join()
            .map_err(|_| anyhow!("the thread that made requests panicked"))?;
        enrolled.into_iter().collect::<Result<()>>()?;
        anyhow::Ok(counted)
    })?;
    let during = format!("{good} requests while the agent adopts the pods again, 0 failed");
    checks.record(
        &during,
        (good > 0 && bad == 0)
            .then_some(())
            .ok_or(format!("{bad} failed")),
    );
    let after = pods(environment)?;
    let same = (before == after)
        .then_some(())
        .ok_or(format!("{before:?} became {after:?}"));
    checks.record("the restarted agent shows the same pods", same);
    Ok(agent)
}

/// Memory without the pages of the binary: this build is not optimized, and its binary is three times
/// as large as the one for nodes.
pub fn memory(agent: u32, checks: &mut Checks) -> Result<()> {
    const LIMIT_KIB: u64 = 8 * 1024;
    let status = procfs::process::Process::new(agent as i32)?.status()?;
    let own = status.rssanon.context("RssAnon")?;
    let held = (own < LIMIT_KIB)
        .then_some(())
        .ok_or("it is more than 8 MiB");
    checks.record(
        &format!(
            "the agent has {:.1} MiB of memory beside its binary",
            own as f64 / 1024.0
        ),
        held,
    );
    Ok(())
}

/// curl's exit code for a connection that was refused.
const CURL_REFUSED: i32 = 7;

pub fn sidecars_down(
    environment: &mut Environment,
    sidecars: [u32; 2],
    checks: &mut Checks,
) -> Result<()> {
    for (pid, pod) in sidecars.into_iter().zip([UBUNTU, HTTPBIN]) {
        environment
            .end(pid, Signal::SIGKILL)
            .with_context(|| format!("stop {}'s sidecar", pod.name))?;
    }
    let patience = WAIT_TIMEOUT.as_secs().to_string();
    let refused = |code: Option<i32>| {
        (code == Some(CURL_REFUSED))
            .then_some(())
            .ok_or(format!("curl says {code:?}"))
    };
    let words = ["curl", "-s", "--max-time", &patience, URL];
    let outbound = environment.in_pod(UBUNTU, APP_UID, &words).output()?;
    checks.record(
        "sidecar stopped: outbound is refused",
        refused(outbound.status.code()),
    );
    let url = format!("http://{}:80/headers", HTTPBIN.ip);
    let words = [
        "ip",
        "netns",
        "exec",
        &node(),
        "curl",
        "-s",
        "--max-time",
        &patience,
        &url,
    ];
    let inbound = output(&words)?;
    checks.record(
        "sidecar stopped: inbound is refused",
        refused(inbound.status.code()),
    );
    Ok(())
}
