//! `/readyz`, `/healthz` and `/metrics` of an agent that follows the API server.

use anyhow::{Result, ensure};
use lab::{
    agent::{Agent, Extra},
    apiserver::ApiServer,
    command::run_words,
    injected::{injected, namespace},
    network::Lab,
};

use super::wait_for;

kernel_test!(health_and_metrics);
fn health_and_metrics() -> Result<()> {
    let lab = Lab::new()?;
    let api = ApiServer::start(lab.dir())?;
    api.apply(namespace("shop", Some("enabled")))?;
    api.apply(injected("web", &lab.uid(1)))?;
    api.down();
    let port = std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port();
    let address = format!("127.0.0.1:{port}");
    let _agent = Agent::spawn_with(
        lab.places(),
        &Extra {
            api: Some(&api),
            arguments: &["--metrics-addr", &address],
            ..Extra::default()
        },
    )?;
    let ask = |path: &str| -> Result<(u16, String)> {
        let output = run_words(&[
            "curl",
            "-s",
            "-w",
            "%{http_code}",
            &format!("http://{address}{path}"),
        ])?;
        let (body, code) = output.split_at(output.len().saturating_sub(3));
        Ok((code.parse()?, body.to_owned()))
    };
    wait_for(|| Ok(ask("/readyz")?.0 == 503))?;
    ensure!(ask("/healthz")?.0 == 200);
    api.up();
    wait_for(|| Ok(ask("/readyz")?.0 == 200))?;
    let (code, metrics) = ask("/metrics")?;
    ensure!(code == 200, "{metrics}");
    for line in [
        "sidetrack_ready 1",
        "sidetrack_pods{state=\"waiting\"} 1",
        "sidetrack_problems 0",
    ] {
        ensure!(
            metrics.lines().any(|known| known == line),
            "no {line}:\n{metrics}"
        );
    }
    ensure!(
        !metrics.contains("shop") && !metrics.contains("web"),
        "{metrics}"
    );
    Ok(())
}
