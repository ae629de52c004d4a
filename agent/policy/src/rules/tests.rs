//! The rule lists that the articles print, from the pods they print them for.

use k8s_openapi::api::core::v1::Pod;
use sidetrack_common::addr::Family;

use super::{chains, nat, restore};
use crate::{
    inputs::Inputs,
    policy::{InboundPorts, Policy, PolicyError},
};

fn of_pod(pod: &Pod) -> Result<Policy, Vec<PolicyError>> {
    Policy::of_pod(pod, &Inputs::default())
}

fn pod(image: &str, init: &str) -> Pod {
    serde_saphyr::from_str(&format!(
        "spec:
  containers: [{{name: app}}, {{name: istio-proxy, image: {image}}}]
  initContainers: [{{name: istio-init, {init}}}]
"
    ))
    .expect("a manifest")
}

/// What the rules print, without `-P` and `-N`.
fn lines(pod: &Pod) -> Vec<String> {
    let policy = of_pod(pod).expect("a policy");
    nat(&policy, Family::V4)
        .iter()
        .map(super::Line::command)
        .collect()
}

#[test]
fn istio_1_1_3() {
    // A pod without container ports, so that the injector wrote an empty -b.
    let pod = pod(
        "docker.io/istio/proxyv2:1.1.3",
        r#"image: "docker.io/istio/proxy_init:1.1.3", args: ["-p","15001","-u","1337","-m","REDIRECT","-i","*","-x","","-b","","-d","15020"]"#,
    );
    let printed = "\
-A OUTPUT -p tcp -j ISTIO_OUTPUT
-A ISTIO_IN_REDIRECT -p tcp -j REDIRECT --to-ports 15001
-A ISTIO_OUTPUT ! -d 127.0.0.1/32 -o lo -j ISTIO_REDIRECT
-A ISTIO_OUTPUT -m owner --uid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -m owner --gid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -d 127.0.0.1/32 -j RETURN
-A ISTIO_OUTPUT -j ISTIO_REDIRECT
-A ISTIO_REDIRECT -p tcp -j REDIRECT --to-ports 15001";
    assert_eq!(lines(&pod), printed.lines().collect::<Vec<_>>());
    let policy = of_pod(&pod).expect("a policy");
    assert_eq!(
        chains(&policy),
        ["ISTIO_IN_REDIRECT", "ISTIO_OUTPUT", "ISTIO_REDIRECT"]
    );
}

#[test]
fn istio_1_8_1_and_1_12_7() {
    let printed = "\
-A PREROUTING -p tcp -j ISTIO_INBOUND
-A OUTPUT -p tcp -j ISTIO_OUTPUT
-A ISTIO_INBOUND -p tcp -m tcp --dport 15008 -j RETURN
-A ISTIO_INBOUND -p tcp -m tcp --dport 22 -j RETURN
-A ISTIO_INBOUND -p tcp -m tcp --dport 15090 -j RETURN
-A ISTIO_INBOUND -p tcp -m tcp --dport 15021 -j RETURN
-A ISTIO_INBOUND -p tcp -m tcp --dport 15020 -j RETURN
-A ISTIO_INBOUND -p tcp -j ISTIO_IN_REDIRECT
-A ISTIO_IN_REDIRECT -p tcp -j REDIRECT --to-ports 15006
-A ISTIO_OUTPUT -s 127.0.0.6/32 -o lo -j RETURN
-A ISTIO_OUTPUT ! -d 127.0.0.1/32 -o lo -m owner --uid-owner 1337 -j ISTIO_IN_REDIRECT
-A ISTIO_OUTPUT -o lo -m owner ! --uid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -m owner --uid-owner 1337 -j RETURN
-A ISTIO_OUTPUT ! -d 127.0.0.1/32 -o lo -m owner --gid-owner 1337 -j ISTIO_IN_REDIRECT
-A ISTIO_OUTPUT -o lo -m owner ! --gid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -m owner --gid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -d 127.0.0.1/32 -j RETURN
-A ISTIO_OUTPUT -j ISTIO_REDIRECT
-A ISTIO_REDIRECT -p tcp -j REDIRECT --to-ports 15001";
    let args = r#"args: [istio-iptables, -p, "15001", -z, "15006", -u, "1337", -m, REDIRECT, -i, '*', -x, "", -b, '*', -d, "15090,15021,15020"]"#;
    for version in ["1.8.1", "1.12.7"] {
        let pod = pod(&format!("docker.io/istio/proxyv2:{version}"), args);
        assert_eq!(
            lines(&pod),
            printed.lines().collect::<Vec<_>>(),
            "{version}"
        );
    }
}

#[test]
fn istio_1_5_0_follows_its_arguments() {
    let mut pod = pod(
        "docker.io/istio/proxyv2:1.5.0",
        r#"command: [istio-iptables, -p, "15001", -z, "15006", -u, "1337", -m, REDIRECT, -i, '*', -x, "", -b, '*', -d, "15090,15020"]"#,
    );
    pod.metadata.annotations = Some(
        [(
            "traffic.sidecar.istio.io/includeInboundPorts".to_owned(),
            "80".to_owned(),
        )]
        .into(),
    );
    let policy = of_pod(&pod).expect("a policy");
    assert_eq!(policy.inbound, InboundPorts::AllExcept(vec![15090, 15020]));
    let lines = lines(&pod);
    assert!(lines.contains(&"-A ISTIO_INBOUND -p tcp -m tcp --dport 22 -j RETURN".to_owned()));
    assert!(
        !lines.iter().any(|line| line.contains("15008")),
        "{lines:?}"
    );
}

#[test]
fn restore_input_of_both_families() {
    let policy = Policy {
        excluded_ranges: vec!["192.0.2.7/24".parse().unwrap(), "fd00::/8".parse().unwrap()],
        ..Policy::default()
    };
    let v4 = restore(&policy, Family::V4);
    assert!(v4.starts_with("*nat\n:PREROUTING ACCEPT [0:0]\n"));
    assert!(v4.ends_with("COMMIT\n"));
    assert!(v4.contains("-d 192.0.2.0/24 -j RETURN") && !v4.contains("fd00"));
    assert!(v4.contains("! -d 127.0.0.1/32 -o lo -p tcp -m tcp ! --dport 15008 -m owner"));
    let v6 = restore(&policy, Family::V6);
    assert!(v6.contains("-d fd00::/8 -j RETURN") && !v6.contains("192.0.2"));
    assert!(v6.contains("-s ::6/128 -o lo -j RETURN"));
}
