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
