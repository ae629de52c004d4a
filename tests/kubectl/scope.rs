//! Which pods are shown, in which form; and which cluster is asked.

use anyhow::{Result, ensure};
use lab::injected::namespace;
use sidetrack::api::PodState;

use crate::fixture::{Agent, Cluster, known};

fn cluster() -> Result<Cluster> {
    let cluster = Cluster::new(&["node-1"])?;
    let mut pods = Vec::new();
    for (space, name) in [
        ("shop", "web"),
        ("shop", "db"),
        ("bank", "web"),
        ("default", "web"),
    ] {
        cluster.api.apply(namespace(space, Some("enabled")))?;
        cluster.pod(space, name, Some("node-1"))?;
        pods.push(known(space, name, PodState::Enrolled));
    }
    cluster.api.apply(namespace("empty", None))?;
    // Deleted in the API, and still running.
    pods.push(known("shop", "gone", PodState::Enrolled));
    cluster.agent("node-1", Agent::with(&pods))?;
    Ok(cluster)
}

#[test]
fn namespaces_and_labels_select_as_kubectl_does() -> Result<()> {
    let cluster = cluster()?;
    for (flags, expected) in [
        (
            ["-A"].as_slice(),
            "bank/web default/web shop/db shop/gone shop/web",
        ),
        (&["-n", "shop"], "shop/db shop/gone shop/web"),
        (&["-n", "shop", "-l", "app=web"], "shop/web"),
        (&["-A", "-l", "app=web"], "bank/web default/web shop/web"),
        (&[], "default/web"),
        (&["-n", "empty"], ""),
    ] {
        let words = [&["pods", "-o", "json"], flags].concat();
        let pods = cluster.run(&words)?.json()?;
        let names: Vec<String> = pods["pods"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|pod| {
                let text = |field: &str| pod[field].as_str().unwrap_or_default();
                format!("{}/{}", text("namespace"), text("name"))
            })
            .collect();
        ensure!(names.join(" ") == expected, "{flags:?}: {names:?}");
    }
    Ok(())
}

#[test]
fn forms_of_the_output() -> Result<()> {
    let cluster = cluster()?;
    let table = cluster.run(&["pods", "-n", "bank"])?.out;
    let lines: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    ensure!(
        lines
            == [
                vec![
                    "POD", "NODE", "STATE", "LISTENER", "OUT", "IN", "REFUSED", "REMARKS"
                ],
                vec!["bank/web", "node-1", "enrolled", "up", "12", "0", "0"],
            ],
        "{table}"
    );
    let wide = cluster.run(&["pods", "-n", "bank", "-o", "wide"])?.out;
    ensure!(wide.contains("4026532000"), "{wide}");
    let yaml = cluster.run(&["pods", "-n", "bank", "-o", "yaml"])?.out;
    let parsed: serde_json::Value = serde_saphyr::from_str(&yaml)?;
    let json = cluster.run(&["pods", "-n", "bank", "-o", "json"])?.json()?;
    ensure!(parsed == json, "{yaml}");
    Ok(())
}

#[test]
fn mistakes_name_their_cure() -> Result<()> {
    let cluster = cluster()?;
    for (words, code, expected) in [
        (
            ["pods", "--timeout", "soon"].as_slice(),
            2,
            "write a duration such as 500ms, 10s or 2m",
        ),
        (&["pods", "--timeout", "0"], 2, "greater than 0"),
        (&["pods", "--parallel", "0"], 2, "1..=256"),
        (&["pods", "-A", "-n", "shop"], 2, "cannot be used with"),
        (&["pods", "--context", "prod"], 1, "prod"),
        (&["pods", "-n", "shpo"], 1, "there is no namespace shpo"),
        (
            &["trace", "-n", "shpo", "--duration", "1s"],
            1,
            "there is no namespace shpo",
        ),
        (
            &["top", "--once", "-n", "shpo"],
            1,
            "there is no namespace shpo",
        ),
        (
            &["pods", "-A", "--agents-namespace", "mesh"],
            1,
            "namespace mesh has no agent",
        ),
    ] {
        let ended = cluster.run(words)?;
        ensure!(
            ended.code == code && ended.errors.contains(expected),
            "{words:?}: {ended:?}"
        );
    }
    // Without the right to list.
    cluster.api.revoke(true);
    let ended = cluster.run(&["pods", "-A"])?;
    ensure!(
        ended.code == 1 && ended.errors.contains("list"),
        "{ended:?}"
    );
    ensure!(ended.errors.contains("Unauthorized"), "{ended:?}");
    Ok(())
}
