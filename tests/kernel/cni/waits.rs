//! The metrics of what starting pods wait for.

use std::{collections::BTreeMap, net::TcpListener};

use anyhow::{Context as _, Result, ensure};
use lab::{command::run, injected::injected, node::Node};
use serde_json::json;

/// Series of the waits, by name and labels as the page writes them.
fn waits(address: &str) -> Result<BTreeMap<String, f64>> {
    let page = run(&format!("curl -sf http://{address}/metrics"))?;
    let samples = page.lines().filter(|line| !line.starts_with('#'));
    let series = samples.filter_map(|line| line.rsplit_once(' '));
    let waits = series.filter(|(name, _)| name.contains("_duration_seconds"));
    waits
        .map(|(name, value)| Ok((name.to_owned(), value.parse()?)))
        .collect()
}

kernel_test!(waits_are_measured);
fn waits_are_measured() -> Result<()> {
    const ADD: &str = "sidetrack_cni_add_duration_seconds";
    const ENROLLMENT: &str = "sidetrack_enrollment_duration_seconds";
    let mut node = Node::new()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    drop(listener);
    node.agent = None;
    node.start_agent_with(&["--metrics-addr", &address])?;

    let uid = node.lab.uid(1);
    node.api.apply(injected("web", &uid))?;
    let sandbox = node.ready("web", &uid)?;
    let mut plain = injected("plain", &node.lab.uid(2));
    plain["spec"]["containers"] = json!([{"name": "app", "image": "httpbin"}]);
    node.api.apply(plain)?;
    let other = node.ready("plain", &node.lab.uid(2))?;
    // Of this one the API server says nothing.
    let _ = node.failed("unknown", &node.lab.uid(3))?;

    let before = waits(&address)?;
    let value = |name: String| before.get(&name).copied().context(name);
    let add = |what: &str, answer: &str| value(format!("{ADD}_{what}{{answer=\"{answer}\"}}"));
    for (answer, count) in [
        ("enrolled", 1.0),
        ("skipped", 1.0),
        ("refused", 0.0),
        ("later", 1.0),
    ] {
        ensure!(add("count", answer)? == count, "{answer}: {before:?}");
    }
    let patience = f64::from(node.patience);
    let later = add("sum", "later")?;
    ensure!((patience..patience + 1.5).contains(&later), "{before:?}");
    let enrolled = add("sum", "enrolled")?;
    ensure!(enrolled > 0.0 && enrolled < patience, "{before:?}");
    let count = value(format!("{ENROLLMENT}_count"))?;
    let sum = value(format!("{ENROLLMENT}_sum"))?;
    ensure!(count == 1.0 && sum > 0.0 && sum < patience, "{before:?}");

    for sandbox in [sandbox, other] {
        node.runtime.delete(&mut node.lab, &sandbox)?;
    }
    node.end()
}
