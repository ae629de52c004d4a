//! What would change for a namespace.

use anyhow::{Result, ensure};
use lab::injected::namespace;
use serde_json::{Value, json};

use crate::fixture::{Cluster, node_info};

const ARGUMENTS: &str = "istio-iptables -p 15001 -z 15006 -u 1337 -i * -b * -d 15090,15021,15020";

/// Gives a pod an istio-init with these arguments besides.
fn init(cluster: &Cluster, name: &str, more: &[&str]) -> Result<()> {
    cluster.pod("shop", name, Some("node-1"))?;
    cluster.api.edit("Pod", "shop", name, |pod| {
        let words: Vec<&str> = ARGUMENTS.split(' ').chain(more.iter().copied()).collect();
        pod["spec"]["initContainers"] =
            json!([{"name": "istio-init", "image": "istio/proxyv2:1.26.1", "args": words}]);
        pod["spec"]["containers"][1]["image"] = json!("istio/proxyv2:1.26.1");
    })
}

fn row(pods: &Value, name: &str) -> Result<Value> {
    let found = pods
        .as_array()
        .into_iter()
        .flatten()
        .find(|pod| pod["name"] == name);
    found
        .cloned()
        .ok_or_else(|| anyhow::anyhow!("no {name} in {pods}"))
}

#[test]
fn pods_today_and_then() -> Result<()> {
    let cluster = Cluster::new(&["node-1"])?;
    cluster.api.apply(namespace("shop", None))?;
    init(&cluster, "same", &[])?;
    init(&cluster, "again", &[])?;
    init(&cluster, "dns", &["--redirect-dns"])?;
    init(&cluster, "interface", &["-c", "eth1"])?;
    cluster.pod("shop", "other", Some("node-1"))?;
    let fine = cluster.run(&["migrate", "shop"])?;
    ensure!(fine.code == 0, "{fine:?}");
    init(&cluster, "tproxy", &["-m", "TPROXY"])?;
    init(&cluster, "both", &["-m", "TPROXY", "-k", "tap0"])?;
    let all = cluster.run(&["migrate", "--dry-run", "shop", "-o", "json"])?;
    ensure!(all.code == 1, "{all:?}");
    let pods = all.json()?;
    let same = row(&pods, "same")?;
    ensure!(
        same["today"] == "istio-init" && same["then"] == "enrolled",
        "{same}"
    );
    ensure!(same["differences"] == json!([]), "{same}");
    let rules = same["rules_today"].to_string();
    ensure!(
        rules.contains("-A ISTIO_REDIRECT -p tcp -j REDIRECT --to-ports 15001"),
        "{same}"
    );
    ensure!(same["rules_today"] == same["rules_then"], "{same}");
    let dns = row(&pods, "dns")?;
    ensure!(dns["differences"] == json!([]), "{dns}");
    ensure!(
        dns["rules_then"].to_string().contains("--to-ports 15053"),
        "{dns}"
    );
    let tproxy = row(&pods, "tproxy")?;
    ensure!(tproxy["then"] == "enrolled", "{tproxy}");
    let rules = tproxy["rules_today"].to_string();
    ensure!(rules.contains("-t mangle -A ISTIO_TPROXY"), "{tproxy}");
    ensure!(tproxy["rules_today"] == tproxy["rules_then"], "{tproxy}");
    let both = row(&pods, "both")?;
    ensure!(both["then"] == "rejected", "{both}");
    ensure!(both["reason"].to_string().contains("TPROXY"), "{both}");
    ensure!(row(&pods, "other")?["today"] == "unknown", "{pods}");
    let wide = cluster
        .run(&["migrate", "--dry-run", "shop", "-o", "wide"])?
        .out;
    for title in ["rules then of again, same:", "rules then of dns:"] {
        ensure!(wide.contains(title), "{wide}");
    }
    Ok(())
}

#[test]
fn the_kernel_of_the_pods_node_counts() -> Result<()> {
    let cluster = Cluster::new(&["node-1"])?;
    cluster.api.apply(namespace("shop", Some("disabled")))?;
    init(&cluster, "interface", &["-c", "eth1"])?;
    let then = |cluster: &Cluster| {
        let pods = cluster
            .run(&["migrate", "--dry-run", "shop", "-o", "json"])?
            .json()?;
        anyhow::Ok(row(&pods, "interface")?["then"].clone())
    };
    ensure!(then(&cluster)? == "enrolled");
    cluster.api.edit("Node", "", "node-1", |node| {
        node["status"]["nodeInfo"] = node_info("5.15.0-105-generic");
    })?;
    ensure!(then(&cluster)? == "rejected");
    let table = cluster.run(&["migrate", "--dry-run", "shop"])?;
    ensure!(table.out.contains("use Linux 5.17 or later"), "{table:?}");
    ensure!(
        table
            .out
            .contains("is labeled sidetrack.dev/interception=disabled"),
        "{table:?}"
    );
    Ok(())
}

#[test]
fn mistakes() -> Result<()> {
    let cluster = Cluster::new(&["node-1"])?;
    ensure!(cluster.run(&["migrate"])?.code == 2);
    let none = cluster.run(&["migrate", "none"])?;
    ensure!(
        none.code == 1 && none.errors.contains("there is no namespace none"),
        "{none:?}"
    );
    Ok(())
}
