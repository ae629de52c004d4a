//! Names of pods as people write them.

use super::PodRef;

fn pod(namespace: &str, name: &str) -> PodRef {
    PodRef {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

#[test]
fn names_round_trip() {
    assert_eq!("shop/web-0".parse(), Ok(pod("shop", "web-0")));
    assert_eq!("web-0".parse(), Ok(pod("default", "web-0")));
    assert_eq!(pod("shop", "web-0").to_string(), "shop/web-0");
}

#[test]
fn bad_names_are_refused_with_the_form_to_write() {
    for bad in ["", "/", "shop/", "/web", "a/b/c", "a//b"] {
        let error = bad.parse::<PodRef>().unwrap_err();
        assert!(error.contains("write NAMESPACE/NAME"), "{bad:?}: {error}");
    }
}

#[test]
fn the_daemonset_of_a_pod() {
    let of = |pod: &str| pod.parse::<PodRef>().unwrap().daemonset();
    let found = |pod| of(pod).map(|it| it.to_string());
    assert_eq!(
        found("mesh/a-sidetrack-b-x7k2p"),
        Ok("mesh/a-sidetrack-b".to_owned())
    );
    for pod in [
        "mesh/sidetrack",
        "mesh/sidetrack-x7k2",
        "mesh/sidetrack-x7k2pq",
    ] {
        assert!(of(pod).unwrap_err().contains("no DaemonSet"), "{pod}");
    }
    // 57 characters fit beside the hyphen and the five.
    let name = |length| format!("mesh/{}-x7k2p", "s".repeat(length));
    assert!(of(&name(56)).is_ok());
    assert!(of(&name(57)).unwrap_err().contains("shortened"));
}
