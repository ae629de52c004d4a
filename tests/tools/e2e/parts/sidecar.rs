//! A sidecar that is down: nothing goes past it, and what is refused is counted.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{
    mesh,
    report::Checks,
    world::{SHOP, SOON, START, World},
};

/// The pod whose sidecar ends.
const POD: &str = "alone";
/// Connections while the sidecar is down.
const TRIES: u64 = 5;

pub fn run(world: &World, checks: &mut Checks<'_>) -> Result<()> {
    let (kube, image) = (&world.kube, &world.options.mesh_image);
    kube.label(SHOP, Some("enabled"))?;
    kube.apply(&[mesh::bare_that_ends(POD, SHOP, image)])?;
    world.wait_enrolled(SHOP, 3, START)?;
    let url = world.url(SHOP)?;
    let through = format!("exec python3 /etc/mesh/app.py first {url}");
    kube.wait("a request through the sidecar", START, |kube| {
        kube.shell(SHOP, POD, "app", &through).map(Some)
    })?;
    let before = row(world)?;
    stop_sidecar(world)?;
    let script = format!("exec python3 /etc/mesh/app.py refused {url} {TRIES}");
    checks.record(
        "while the sidecar is down the app's connections are refused",
        kube.shell(SHOP, POD, "app", &script)
            .map(|_| format!("{TRIES} of {TRIES}")),
    );
    let counted = row(world).and_then(|after| {
        let rise = |count: &str| -> Result<u64> {
            let of = |row: &Value| row["connections"][count].as_u64().context("a count");
            Ok(of(&after)?.saturating_sub(of(&before)?))
        };
        let (refused, redirected) = (rise("refused")?, rise("outbound_redirected")?);
        ensure!(
            refused == TRIES && redirected == 0,
            "{refused} refused, {redirected} redirected"
        );
        ensure!(after["outbound_listener"] == false, "{after}");
        Ok(format!("{refused} refused"))
    });
    checks.record(
        "sidetrack pods counts them, and shows the listener as down",
        counted,
    );
    world.delete_pod(POD)?;
    world.wait_enrolled(SHOP, 2, START)
}

/// What the agents say of the pod.
fn row(world: &World) -> Result<Value> {
    let answers = world.ask_agents(&["pods"])?;
    let mut rows = answers.iter().filter_map(Value::as_array).flatten();
    let row = rows.find(|row| row["namespace"] == SHOP && row["name"] == POD);
    Ok(row.context("no row of the pod")?.clone())
}

/// Ends the sidecar and waits until it is gone. Its container is not restarted.
fn stop_sidecar(world: &World) -> Result<()> {
    // The shell may end with the container.
    let words = [
        "-n",
        SHOP,
        "exec",
        POD,
        "-c",
        "istio-proxy",
        "--",
        "sh",
        "-c",
        "kill 1",
    ];
    world.kube.output(&words)?;
    world.kube.wait("the sidecar has ended", SOON, |kube| {
        let pod = kube.get(&["-n", SHOP, "pod", POD])?;
        let statuses = pod["status"]["containerStatuses"].as_array();
        let ended = statuses.is_some_and(|all| {
            all.iter()
                .any(|it| it["name"] == "istio-proxy" && !it["state"]["terminated"].is_null())
        });
        Ok(ended.then_some(()))
    })
}
