//! `sidetrack validate` in a pod.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use lab::{
    injected::{LABEL, injected},
    node::Node,
    protocol::PROXY,
};
use serde_json::json;

use super::{PROXY_USER, validate};
use crate::fixture::at;

kernel_test!(validation);
fn validation() -> Result<()> {
    let mut node = Node::new()?;
    let (old, new, none) = (node.lab.uid(1), node.lab.uid(2), node.lab.uid(3));
    node.api.apply(injected("old", &old))?;
    let mut current = injected("new", &new);
    current["spec"]["containers"][1]["image"] = json!("docker.io/istio/proxyv2:1.28.0");
    current["spec"]["containers"][1]["env"] =
        json!([{"name": "ISTIO_DUAL_STACK", "value": "true"}]);
    node.api.apply(current)?;
    let mut out = injected("out", &none);
    out["metadata"]["labels"][LABEL] = json!("disabled");
    node.api.apply(out)?;
    for (name, uid, ipv6) in [("old", &old, "auto"), ("new", &new, "yes")] {
        let sandbox = node.ready(name, uid)?;
        let pod = sandbox.pod(&node.lab, uid)?;
        let (code, text) = validate(&pod, PROXY_USER, &["--ipv6", ipv6])?;
        ensure!(
            code == 0 && text.contains("this pod is intercepted"),
            "{name}: {code} {text}"
        );
        ensure!(text.contains("IPv6") == (ipv6 == "yes"), "{text}");
        // Connections of another user prove nothing; `validate` shows that.
        let (code, text) = validate(&pod, 1000, &["--timeout", "1"])?;
        ensure!(code == 126 && text.contains("user 1000"), "{code} {text}");
        // After the sidecar has started its ports are in use.
        let sidecar = pod.actor()?;
        sidecar.listen(&PROXY, at("0.0.0.0", 15006))?;
        let (code, text) = validate(&pod, PROXY_USER, &[])?;
        ensure!(
            code == 1 && text.contains("before the sidecar"),
            "{code} {text}"
        );
        drop(sidecar);
    }
    let sandbox = node.ready("out", &none)?;
    let pod = sandbox.pod(&node.lab, &none)?;
    let start = Instant::now();
    let (code, text) = validate(&pod, PROXY_USER, &[])?;
    let took = start.elapsed();
    ensure!(
        code == 126 && text.contains("not intercepted"),
        "{code} {text}"
    );
    ensure!((5..7).contains(&took.as_secs()), "{took:?}");
    // It continues to try: the pod is opted in meanwhile.
    let (code, text) = thread::scope(|scope| {
        let trial = scope.spawn(|| validate(&pod, PROXY_USER, &["-o", "json"]));
        thread::sleep(Duration::from_millis(500));
        let edited = node.api.edit("Pod", "shop", "out", |pod| {
            pod["metadata"]["labels"] = json!({});
        });
        edited.and_then(|()| trial.join().expect("no panic"))
    })?;
    ensure!(
        code == 0 && text.contains("\"intercepted\": true"),
        "{code} {text}"
    );
    node.end()
}
