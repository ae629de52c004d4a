//! Mode TPROXY: httpbin's sidecar calls httpbin from the client's address.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use lab::command::{output, run};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::{
    APP_UID, heading,
    pods::{Mode, start_sidecar, write_manifest},
    sidetrack,
};
use crate::{
    checks::Checks,
    environment::{DIR, Environment, HTTPBIN, NODE, UBUNTU, node},
};

/// The service's page that shows who the app takes for its client.
const URL: &str = "http://httpbin-service/ip";

/// Clients on the node, each with an address of its own, at the same time.
const CROWD: &str = r#"
import asyncio, ipaddress, json, sys
async def ask(address):
    reader, writer = await asyncio.open_connection(sys.argv[1], 80, local_addr=(address, 0))
    writer.write(b"GET /ip HTTP/1.1\r\nHost: httpbin\r\nConnection: close\r\n\r\n")
    answer = (await reader.read()).decode()
    return json.loads(answer[answer.index("{"):answer.rindex("}") + 1])["origin"] == address
async def main():
    first = ipaddress.ip_address("172.18.0.1")
    asked = [ask(str(first + n)) for n in range(int(sys.argv[2]))]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    print(sum(answer is True for answer in answers))
    wrong = [answer for answer in answers if answer is not True]
    print(repr(wrong[0]) if wrong else "")
asyncio.run(main())
"#;

/// Changes the mode of httpbin's pod; answers its new sidecar.
pub fn transparent(
    environment: &mut Environment,
    sidecar: u32,
    checks: &mut Checks,
) -> Result<u32> {
    heading("Mode TPROXY: the app sees its client");
    checks.equal(
        "in mode REDIRECT httpbin's client",
        &client(environment)?,
        "127.0.0.6",
    );
    environment.end(sidecar, Signal::SIGKILL)?;
    write_manifest(environment, HTTPBIN, Mode::Tproxy)?;
    environment.places.wait_pod("default/httpbin", |pod| {
        pod.is_some_and(|pod| pod["policy"]["mode"] == "TPROXY")
    })?;
    let sidecar = start_sidecar(environment, HTTPBIN, Mode::Tproxy)?;
    print!("{}", sidetrack(environment, &["pods"])?);
    checks.equal(
        "in mode TPROXY httpbin's client",
        &client(environment)?,
        UBUNTU.ip,
    );
    crowd(environment, checks)?;
    Ok(sidecar)
}

/// Who httpbin takes for the client of a request from pod ubuntu.
fn client(environment: &Environment) -> Result<String> {
    let words = ["curl", "-sf", "--max-time", "5", URL];
    let answer = environment.in_pod(UBUNTU, APP_UID, &words).output()?;
    ensure!(answer.status.success(), "{URL}: {answer:?}");
    let answer: Value = serde_json::from_slice(&answer.stdout).context(URL)?;
    Ok(answer["origin"].as_str().unwrap_or_default().to_owned())
}

fn crowd(environment: &Environment, checks: &mut Checks) -> Result<()> {
    const CLIENTS: &str = "1000";
    let script = Path::new(DIR).join("crowd.py");
    fs::write(&script, CROWD)?;
    let node = node();
    // Every address of this range is the node's.
    run(&format!(
        "ip -n {node} route add local 172.18.0.0/16 dev lo src {NODE}"
    ))?;
    let python = environment.tools.join("bin/python");
    let (python, script) = (python.to_string_lossy(), script.to_string_lossy());
    let words = [
        "ip", "netns", "exec", &node, &python, &script, HTTPBIN.ip, CLIENTS,
    ];
    let answered = output(&words)?;
    let text = String::from_utf8_lossy(&answered.stdout);
    let errors = String::from_utf8_lossy(&answered.stderr);
    let (right, first_wrong) = text.split_once('\n').unwrap_or_default();
    let held = (right == CLIENTS)
        .then_some(())
        .ok_or_else(|| format!("{right} of them: {} {}", first_wrong.trim(), errors.trim()));
    checks.record("1,000 clients at once, each seen by its own address", held);
    Ok(())
}
