//! The scenario of the demo, in the order a newcomer wants to see it.

mod datapath;
mod hints;
mod outage;
mod pods;
mod request;
mod transparent;

use anyhow::Result;

pub use self::hints::what_to_try;
use self::{
    datapath::{loaded, no_iptables, probes},
    outage::{crash, memory, sidecars_down},
    pods::{Mode, start_httpbin, start_sidecar, wait_enrolled, write_manifest},
    request::{access_logs, curl_with_names},
    transparent::transparent,
};

use crate::{
    checks::Checks,
    environment::{Environment, HTTPBIN, UBUNTU},
};

const APP_UID: u32 = 1000;

const PROXY_UID: u32 = 1337;

const URL: &str = "http://httpbin-service/headers";

/// Runs the demo, and checks every claim of it.
pub fn run_demo(environment: &mut Environment, keep: bool) -> Result<Checks> {
    let mut checks = Checks::default();
    heading("Two pods on a bridge, the agent, two Envoys, httpbin");
    let mut agent = environment.spawn_agent()?;
    for pod in [UBUNTU, HTTPBIN] {
        write_manifest(environment, pod, Mode::Redirect)?;
        wait_enrolled(environment, pod)?;
    }
    let mut sidecars = [
        start_sidecar(environment, UBUNTU, Mode::Redirect)?,
        start_sidecar(environment, HTTPBIN, Mode::Redirect)?,
    ];
    start_httpbin(environment)?;
    print!("{}", sidetrack(environment, &["pods"])?);

    let curl = curl_with_names(environment)?;
    access_logs(&mut checks, &curl)?;
    loaded(environment)?;
    heading("Checks");
    no_iptables(&mut checks)?;
    probes(environment, &mut checks)?;
    agent = crash(environment, agent, &mut checks)?;
    memory(agent, &mut checks)?;
    sidecars[1] = transparent(environment, sidecars[1], &mut checks)?;
    if !keep {
        sidecars_down(environment, sidecars, &mut checks)?;
    }
    Ok(checks)
}

fn heading(text: &str) {
    println!("\n== {text}");
}

fn sidetrack(environment: &Environment, words: &[&str]) -> Result<String> {
    let output = environment.places.output(words)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
