//! `-w`: a list, then what has changed.

use std::{
    io::{BufRead as _, BufReader},
    process::Stdio,
    thread::sleep,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lab::command::die_with_parent;
use sidetrack::api::PodState;

use crate::fixture::{Agent, Cluster, known};

#[test]
fn a_row_comes_again_when_it_has_changed() -> Result<()> {
    let cluster = Cluster::new(&["node-1"])?;
    cluster.pod("shop", "web", Some("node-1"))?;
    cluster.pod("shop", "db", Some("node-1"))?;
    let pods = |web| {
        let mut db = known("shop", "db", PodState::Enrolled);
        // Counts alone are no change.
        db.connections.outbound_redirected += u64::from(web == PodState::Enrolled);
        Agent::with(&[known("shop", "web", web), db])
    };
    cluster.agent("node-1", pods(PodState::Waiting))?;
    let mut command = cluster.command(&["pods", "-n", "shop", "-w"])?;
    die_with_parent(&mut command);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut plugin = command.spawn()?;
    let mut lines = BufReader::new(plugin.stdout.take().context("its output")?).lines();
    let mut next = || lines.next().context("a line")?.context("read it");
    ensure!(next()?.starts_with("POD "));
    let first = [next()?, next()?];
    ensure!(
        first[0].starts_with("shop/db ") && first[1].contains(" waiting "),
        "{first:?}"
    );
    cluster.agent("node-1", pods(PodState::Enrolled))?;
    let changed = next()?;
    ensure!(
        changed.starts_with("shop/web ") && changed.contains(" enrolled "),
        "{changed}"
    );
    // The columns are where they were.
    let column = |line: &str| line.find("node-1");
    ensure!(column(&changed) == column(&first[0]), "{changed}");

    // What is wrong is said once, and it continues; without a reader it ends.
    cluster.agent("node-1", Agent::Breaks)?;
    sleep(Duration::from_secs(5));
    drop(lines);
    cluster.agent("node-1", pods(PodState::Rejected))?;
    let ended = plugin.wait_with_output()?;
    ensure!(ended.status.success(), "{ended:?}");
    let said = String::from_utf8(ended.stderr)?;
    ensure!(said.matches("do not answer").count() == 1, "{said}");
    Ok(())
}
