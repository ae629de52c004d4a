//! The rights that docs/kubectl.md lists are the ones that the commands use.

use std::{collections::BTreeSet, fs};

use anyhow::{Context as _, Result, ensure};
use lab::apiserver::exec::{Answer, End, Piece};
use serde_json::Value;

use crate::fixture::{Agent, Cluster};

/// Verb, group and resource of a right.
pub type Right = (String, String, String);

/// The rights in a block of the page: the first is for all commands, the second for `test` in addition.
pub fn documented(block: usize) -> Result<BTreeSet<Right>> {
    let page = lab::deploy::checkout("docs/kubectl.md");
    let page = fs::read_to_string(page)?;
    let rest = page.split("```yaml\n").nth(block);
    let (yaml, _) = rest
        .context("a block of YAML")?
        .split_once("```")
        .context("its end")?;
    let mut rights = BTreeSet::new();
    for role in yaml.split("---\n") {
        let role: Value = serde_saphyr::from_str(role)?;
        for rule in role["rules"].as_array().context("rules")? {
            let words = |field: &str| {
                let words = rule[field].as_array().into_iter().flatten();
                let words = words.filter_map(Value::as_str).map(str::to_owned);
                words.collect::<Vec<_>>()
            };
            for group in words("apiGroups") {
                for resource in words("resources") {
                    for verb in words("verbs") {
                        rights.insert((verb, group.clone(), resource.clone()));
                    }
                }
            }
        }
    }
    Ok(rights)
}

/// What the plugin has done in a cluster.
pub fn used(cluster: &Cluster) -> BTreeSet<Right> {
    let used = cluster.api.requests().into_iter();
    used.map(|used| (used.verb.into(), used.group.into(), used.resource.into()))
        .collect()
}

#[test]
fn no_command_uses_another_right() -> Result<()> {
    let cluster = Cluster::new(&["node-1"])?;
    cluster
        .api
        .apply(lab::injected::namespace("shop", Some("enabled")))?;
    cluster.pod("shop", "web-0", Some("node-1"))?;
    cluster.agent("node-1", Agent::with(&[]))?;
    cluster.api.apply(serde_json::json!({
        "kind": "Deployment",
        "metadata": {"name": "istiod", "namespace": "istio-system", "labels": {"app": "istiod"}},
    }))?;
    let dir = tempfile::tempdir()?;
    let archive = dir.path().join("report.tar");
    let archive = archive.to_str().context("a path")?;
    for words in [
        ["status"].as_slice(),
        &["pods", "-A"],
        &["check"],
        &["migrate", "--dry-run", "shop"],
        &["rules", "shop/web-0"],
        &["bug-report", "--file", archive],
    ] {
        if words[0] == "rules" {
            cluster
                .api
                .on_exec(|_| Answer::Output(Vec::new(), End::Code(0)));
        }
        let ended = cluster.run(words)?;
        ensure!(
            ended.code == 0 || ["check", "bug-report"].contains(&words[0]),
            "{words:?}: {ended:?}"
        );
    }
    let used = used(&cluster);
    let documented = documented(1)?;
    let missing: Vec<_> = used.difference(&documented).collect();
    ensure!(missing.is_empty(), "not documented: {missing:?}");
    // `get` on nodes and namespaces comes with `list` for people who look themselves; the rest is needed.
    for right in [
        ("create", "", "pods/exec"),
        ("get", "", "pods"),
        ("get", "", "pods/log"),
        ("list", "", "configmaps"),
        ("list", "apps", "daemonsets"),
        (
            "list",
            "admissionregistration.k8s.io",
            "mutatingwebhookconfigurations",
        ),
    ] {
        let right = (right.0.to_owned(), right.1.to_owned(), right.2.to_owned());
        ensure!(
            used.contains(&right),
            "{right:?} is documented and not used"
        );
    }
    Ok(())
}

#[test]
fn every_request_is_made_as_the_user_who_is_named() -> Result<()> {
    let cluster = Cluster::new(&["node-1"])?;
    cluster.pod("shop", "web-0", Some("node-1"))?;
    cluster.agent("node-1", Agent::with(&[]))?;
    let who = ["--as=jane", "--as-group=ops", "--as-group=on-call"];
    for words in [
        ["pods", "-A"].as_slice(),
        &["status"],
        &["rules", "shop/web-0"],
    ] {
        cluster.run(&[words, &who].concat())?;
    }
    let jane = ["jane", "ops", "on-call"].map(str::to_owned).to_vec();
    ensure!(
        cluster.api.impersonated() == [jane].into(),
        "{:?}",
        cluster.api.impersonated()
    );
    ensure!(cluster.run(&["pods", "--as-group=ops"])?.code == 2);
    ensure!(cluster.run(&["pods", "--as="])?.code == 2);
    cluster.run(&["pods", "-A"])?;
    ensure!(cluster.api.impersonated().contains(&Vec::new()));
    Ok(())
}

#[test]
fn a_reader_of_a_namespace_lists_nothing_else() -> Result<()> {
    let cluster = Cluster::new(&["node-1"])?;
    cluster.pod("shop", "web-0", Some("node-1"))?;
    cluster.agent("node-1", Agent::with(&[]))?;
    for kind in ["Namespace", "Node", "DaemonSet", "Service"] {
        cluster.api.forbid(kind)?;
    }
    for words in [
        &["pods", "-n", "shop"][..],
        &["events", "-n", "shop"],
        &["rules", "shop/web-0"],
    ] {
        cluster.api.on_exec(|_| {
            let piece = Piece::Out(b"[]".to_vec());
            Answer::Output(vec![piece], End::Code(0))
        });
        let ended = cluster.run(words)?;
        ensure!(ended.code == 0, "{words:?}: {ended:?}");
    }
    // What stands in for the agent here is asked by exec.
    let mut used = used(&cluster);
    used.retain(|(_, _, resource)| resource != "pods/exec");
    let documented = documented(4)?;
    let missing: Vec<_> = used.difference(&documented).collect();
    ensure!(missing.is_empty(), "not documented: {missing:?}");
    Ok(())
}
