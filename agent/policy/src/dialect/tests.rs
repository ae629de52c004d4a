//! Versions, image tags and the rule lists they stand for.

use super::{Dialect, minor};

#[test]
fn tags() {
    for (tag, expected) in [
        ("1.1.3", Some(1)),
        ("1.12.7-distroless", Some(12)),
        ("1.28", Some(28)),
        ("release-1.1-latest-daily", Some(1)),
        ("latest", None),
        ("2.1.0", None),
        ("1.x", None),
        ("1.99999999999999999999", None),
    ] {
        assert_eq!(minor(tag), expected, "{tag}");
    }
}

#[test]
fn images() {
    let of = super::of_image;
    assert_eq!(of("docker.io/istio/proxyv2:1.8.1"), Some(Dialect::V1_8));
    assert_eq!(of("registry:5000/istio/proxyv2:1.5.0"), Some(Dialect::V1_5));
    assert_eq!(of("registry:5000/istio/proxyv2"), None);
    assert_eq!(of("istio/proxyv2:1.13.2@sha256:0123"), Some(Dialect::V1_13));
    assert_eq!(of("istio/proxyv2@sha256:0123"), None);
}

#[test]
fn names_lead_back() {
    for dialect in Dialect::ALL {
        assert_eq!(dialect.to_string().parse(), Ok(dialect));
    }
    assert_eq!("1.7".parse(), Ok(Dialect::V1_8));
    assert!("istio".parse::<Dialect>().is_err());
}
