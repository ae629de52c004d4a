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

use k8s_openapi::api::core::v1::{Container, EnvVar, Pod, PodIP, PodSpec, PodStatus};

/// The pod that a text outlines.
pub fn pod(text: &str) -> Pod {
    let mut sidecar = Container {
        name: "istio-proxy".to_owned(),
        ..Container::default()
    };
    let mut init = Container {
        name: "istio-init".to_owned(),
        ..Container::default()
    };
    let mut annotations = std::collections::BTreeMap::new();
    let mut addresses = Vec::new();
    for line in text.lines() {
        let (key, rest) = line.split_once(' ').unwrap_or((line, ""));
        if key.starts_with('-') {
            let words = line.splitn(2, ' ').map(unescaped);
            init.command.get_or_insert_default().extend(words);
        } else if key == "image" {
            sidecar.image = Some(unescaped(rest));
        } else if key == "init-image" {
            init.image = Some(unescaped(rest));
        } else if key == "ip" {
            addresses.push(PodIP {
                ip: unescaped(rest),
            });
        } else if let Some((name, value)) = line.split_once(": ") {
            annotations.insert(unescaped(name), unescaped(value));
        } else if key == "proxy" {
            sidecar.env.get_or_insert_default().push(variable(rest));
        } else if line.contains('=') {
            init.env.get_or_insert_default().push(variable(line));
        } else {
            init.command.get_or_insert_default().push(unescaped(line));
        }
    }
    let has_init = init.command.is_some() || init.env.is_some() || init.image.is_some();
    let mut pod = Pod::default();
    pod.metadata.name = Some("outlined".to_owned());
    pod.metadata.annotations = (!annotations.is_empty()).then_some(annotations);
    pod.spec = Some(PodSpec {
        containers: vec![sidecar],
        init_containers: has_init.then(|| vec![init]),
        ..PodSpec::default()
    });
    pod.status = Some(PodStatus {
        pod_ips: Some(addresses),
        ..PodStatus::default()
    });
    pod
}

fn variable(text: &str) -> EnvVar {
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    EnvVar {
        name: unescaped(name),
        value: Some(unescaped(value)),
        ..EnvVar::default()
    }
}

fn unescaped(text: &str) -> String {
    if text == "\"\"" {
        return String::new();
    }
    text.replace("\\n", "\n")
}
