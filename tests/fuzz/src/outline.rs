//! A pod as a few lines of text, so that every input is some pod, a dictionary of flags and names
//! works, and a failing input can be read:
//!
//! | line | what it adds |
//! |---|---|
//! | `-b 80`, `-b=80`, `--redirect-dns`, `istio-iptables` | one or two words to istio-init's command line |
//! | `ISTIO_DUAL_STACK=true` | a variable of istio-init |
//! | `proxy ISTIO_DUAL_STACK=true` | a variable of the sidecar |
//! | `sidecar.istio.io/interceptionMode: NONE` | an annotation |
//! | `image docker.io/istio/proxyv2:1.8.1`, `init-image ...` | an image |
//! | `ip 10.0.0.1` | an address of the pod |
//!
//! `\n` in a value is a line break, `""` an empty value.

use serde_json::{Map, Value, json};
use sidetrack_policy::facts::PodFacts;

/// The pod that a text outlines.
pub fn pod(text: &str) -> PodFacts {
    let mut sidecar = json!({"name": "istio-proxy"});
    let mut init = json!({"name": "istio-init"});
    let mut annotations = Map::new();
    let mut addresses = Vec::new();
    for line in text.lines() {
        let (key, rest) = line.split_once(' ').unwrap_or((line, ""));
        if key.starts_with('-') {
            let words = line.splitn(2, ' ').map(|word| unescaped(word).into());
            add(&mut init, "command", words);
        } else if key == "image" {
            sidecar["image"] = unescaped(rest).into();
        } else if key == "init-image" {
            init["image"] = unescaped(rest).into();
        } else if key == "ip" {
            addresses.push(json!({"ip": unescaped(rest)}));
        } else if let Some((name, value)) = line.split_once(": ") {
            annotations.insert(unescaped(name), unescaped(value).into());
        } else if key == "proxy" {
            add(&mut sidecar, "env", [variable(rest)]);
        } else if line.contains('=') {
            add(&mut init, "env", [variable(line)]);
        } else {
            add(&mut init, "command", [unescaped(line).into()]);
        }
    }
    let has_init = init != json!({"name": "istio-init"});
    let pod = json!({
        "metadata": {"name": "outlined", "annotations": annotations},
        "spec": {
            "containers": [sidecar],
            "initContainers": if has_init { vec![init] } else { Vec::new() },
        },
        "status": {"podIPs": addresses},
    });
    serde_json::from_value(pod).expect("a pod")
}

/// Adds to a list of an object, which it may not have yet.
fn add(object: &mut Value, field: &str, items: impl IntoIterator<Item = Value>) {
    let list = &mut object[field];
    if list.is_null() {
        *list = json!([]);
    }
    list.as_array_mut().expect("a list").extend(items);
}

fn variable(text: &str) -> Value {
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    json!({"name": unescaped(name), "value": unescaped(value)})
}

fn unescaped(text: &str) -> String {
    if text == "\"\"" {
        return String::new();
    }
    text.replace("\\n", "\n")
}
